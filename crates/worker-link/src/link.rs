//! What a worker and its daemon say to each other: small packets on a `SOCK_SEQPACKET` pair.
//!
//! The first packet tells the worker what it serves ([`Start`]); after that all packets are
//! [`Packet`]s. End of file on either side means that the other process is gone: the worker exits
//! at once, the daemon cleans up. Nothing here is on the data path, and nothing here comes from a
//! client.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sluice_transport::tls::Keys;
use sluice_wire::ExportToken;

/// The largest packet in bytes; [`Start`] is the only one that comes near it.
pub const PACKET_MAX: usize = 16 << 10;

/// What one worker serves.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// Number of the session on its node, for messages.
    pub session: u64,
    /// Which driver executes the commands.
    pub driver: Driver,
    /// The GPUs of the lease, in the client's order.
    pub gpus: Vec<GpuPart>,
    /// Longest time that one kernel may run in milliseconds; 0 is no limit.
    pub kernel_timeout_ms: u64,
    /// Folder of the cache of images.
    pub cache: Option<PathBuf>,
    /// Whether machine code is stored there too, and executed from there: all workers that write to
    /// the folder are trusted as this one is.
    pub stores_code: bool,
    /// What the client may come back with after a cut; `None` where the end of its connection is
    /// its own end.
    pub resume: Option<ResumeStart>,
    /// What protects the client's connection.
    pub tls: Option<Keys>,
    /// Most bytes of host memory that the session may make its worker keep.
    pub host_memory: u64,
    /// Whether the session is suspended: it executes nothing until `MoveIn`.
    pub suspended: bool,
    /// Whether its GPUs are leased beyond their memory: what is free there now is not what the
    /// session can have.
    pub overcommits: bool,
    /// Whether there is host memory for all that may leave its GPUs, to be kept for it.
    pub keeps_host_memory: bool,
    /// The session comes from another worker; `Packet::Arrive` is next.
    pub arrives: bool,
    /// For how long a call of a loaded driver may do nothing, in milliseconds, before the driver is
    /// taken to hang.
    pub driver_patience_ms: u64,
}

/// How a session outlives its connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResumeStart {
    /// The session's secret. The daemon checks it; the worker tells the client.
    pub secret: [u8; 32],
    /// How long the daemon waits for the client.
    pub linger_ms: u32,
    /// Which of its attempts the client has come with: any later one takes its place.
    pub attempt: u32,
}

/// Where the driver functions come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Driver {
    /// The software GPU that is linked into the worker, with devices of these sizes in bytes.
    Software { memory: Vec<u64> },
    /// A driver with `count` GPUs of a model, which records what it is asked and computes nothing.
    Recording { model: String, count: u32 },
    /// A `libcuda.so.1` at this absolute path.
    Library { path: String },
}

/// The part of one GPU that a lease holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuPart {
    /// The driver's device ordinal.
    pub ordinal: u32,
    /// 1 to 1,000,000.
    pub share_ppm: u32,
    /// Bytes.
    pub memory: u64,
    /// Bytes of these that are kept for the session from its start.
    pub reserve: u64,
}

/// What a worker says that keeps its session for a reason that the daemon knows.
pub const STAYS: &str = "it stays";

/// Memory of a session that stays on its GPUs, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    pub reason: String,
    /// On all GPUs of the lease.
    pub bytes: u64,
}

/// What a session gives to others of its lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Export {
    /// Device memory on the lease's `gpu`th GPU, as a descriptor.
    Memory { gpu: u32, bytes: u64 },
    /// An event, as a descriptor or by the driver's own name for it.
    Event { name: Vec<u8> },
}

/// Who gets what a session consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Receiver {
    /// Another worker, which takes the session over.
    Worker,
    /// The keeper of a copy, who has most of it from before (`sluice_wire::checkpoint`).
    Keeper,
    /// The worker of a clone. The client waits meanwhile, and keeps its connection.
    Clone,
}

/// Everything after the start. `gpu` counts within the lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Packet {
    // From the worker.
    /// The session is up; the driver is loaded and the client has its snapshot.
    Ready,
    /// The session could not start or had to end; the text goes to the daemon's log.
    Failed(String),
    /// The session failed because a call of the driver does not return; the text goes to the log.
    /// The process may not be able to end by itself.
    Hangs(String),
    /// There is GPU work and no turn.
    Want { gpu: u32 },
    /// The turn comes back. It has taken `turn_ns`, and what the session did meanwhile has used
    /// `used_ns` of the GPU's time; `more` if work is left.
    Done { gpu: u32, turn_ns: u64, used_ns: u64, more: bool },
    /// Asks for device memory of the lease, of which `reserve` bytes may come out of what is kept
    /// for the session; answered by `Taken`, which may have to wait until other sessions have left
    /// the GPU.
    Take { gpu: u32, bytes: u64, reserve: u64 },
    /// Asks for device memory of the lease that cannot leave the GPU, for a driver that is about to
    /// use it; answered by `TakenAtOnce`.
    TakeAtOnce { gpu: u32, bytes: u64 },
    /// Uses `bytes` of what is kept for the session.
    Spend { gpu: u32, bytes: u64 },
    /// Gives device memory back.
    GiveBack { gpu: u32, bytes: u64 },
    /// The driver refuses memory that the daemon has granted, or that was to return, and has so
    /// many bytes free.
    CardFull { gpu: u32, free: u64 },
    /// Asks what all sessions of the lease have taken on this GPU; answered by `Used`.
    QueryUsed { gpu: u32 },
    /// The client's connection is gone. The daemon decides how long to wait for another.
    Parted,
    /// The client is back.
    Resumed,
    /// Lets others of the lease have this; its memory was the session's. May carry a descriptor.
    /// Answered by `Exported`.
    Export(Export),
    /// Asks for what a session has exported; answered by `Imported`.
    Import(ExportToken),
    /// What was exported or imported is of no more use here.
    DropExport(ExportToken),
    /// The answer to `MoveOut`: the bytes that have left each GPU of the lease, the part of them
    /// that is in the file, those of the session's that are still there, and what is known of
    /// these.
    MovedOut { moved: Vec<u64>, filed: Vec<u64>, stays: Vec<u64>, kept: Vec<Kept>, took_us: u64 },
    /// The answer to `MoveOut` where nothing has moved, and the session continues.
    NotMovedOut { reason: String },
    /// The answer to `MoveIn`: the bytes that have returned to each GPU of the lease. The session
    /// continues.
    MovedIn { moved: Vec<u64>, took_us: u64 },
    /// The answer to `MoveIn` where all is still in host memory.
    NotMovedIn { reason: String },
    /// The client has sent something that waits for the session's memory; once for each time that
    /// it is away.
    Wanted,
    /// The session is here, with the memory that was copied, and begins once its client is. Of each
    /// GPU of its lease it has `taken` bytes, and counts on `reserved` more.
    Arrived { bytes: u64, taken: Vec<u64>, reserved: Vec<u64> },
    /// The session stands still, since it is about to go to another worker, or to be copied there.
    Paused,
    /// The answer to `Depart` where the session continues here.
    NotDeparted { reason: String },
    /// The answer to `AskMovable`: what keeps the session from moving now.
    Movable { reasons: Vec<String> },
    /// Another session of the client's program may connect once, to copy here; answered by
    /// `PeerOffered`.
    PeerOffer,
    /// Asks for a connection to a session of another node, which `node` names; answered by
    /// `PeerConnected` some time.
    PeerConnect { number: u64, node: String, session: u64, token: [u8; 32] },

    // From the daemon.
    /// The answer to `Take`: what is left of the reserve that it named, if the memory is taken.
    Taken(Option<u64>),
    /// The answer to `TakeAtOnce`: whether the lease had it.
    TakenAtOnce(bool),
    /// A notice to the user of the program.
    Notice(String),
    /// Keeps `bytes` more for the session.
    Reserved { gpu: u32, bytes: u64 },
    /// The lease has this amount of memory of each of its GPUs from now on, in bytes.
    Resized { memory: u64 },
    /// The answer to `QueryUsed`, bytes.
    Used(u64),
    /// The answer to `Export`: its number from now on.
    Exported(Option<ExportToken>),
    /// The answer to `Import`: what it is, with its descriptor, and whether it was this session's
    /// own.
    Imported(Option<(Export, bool)>),
    /// The answer to `PeerOffer`: the number of this session, and what the other has to show.
    PeerOffered { session: u64, token: [u8; 32] },
    /// The answer to `PeerConnect`, with the socket unless it was `refused`.
    PeerConnected { number: u64, tls: Option<Keys>, refused: Option<String> },
    /// Another session of the client's program has connected, and the socket comes with the packet.
    Peer { tls: Option<Keys> },
    /// The turn is yours.
    Grant { gpu: u32 },
    /// Another session waits: give the turn back when there is no work.
    Press { gpu: u32 },
    /// Stop at the next opportunity and report.
    Recall { gpu: u32 },
    /// The session's memory is to leave its GPUs for host memory, of which it may use `room` bytes,
    /// and for an empty file that comes with the packet, of which it may use `file_room`, once the
    /// work that it has given the GPUs has finished; in `work_limit_ms` at most. Device memory is
    /// overwritten first if it `poisons`.
    MoveOut { room: u64, file_room: u64, work_limit_ms: u64, poisons: bool },
    /// The memory is to come back. If it is likely to leave again, the worker `keeps` the host
    /// memory that it was in.
    MoveIn { keeps: bool },
    /// Everything of the session goes into the descriptor that comes with the packet, once the work
    /// that it has given its GPUs has finished, in this time at most. The worker then waits for its
    /// end, or for `Stay`.
    Depart { work_limit_ms: u64, to: Receiver },
    /// The session continues here after all.
    Stay,
    /// Asks what keeps the session from moving; answered by `Movable`.
    AskMovable,
    /// Where the session comes from: a descriptor that comes with the packet. Of a session that is
    /// cloned, the contents of its memory come as descriptors there.
    Arrive { is_clone: bool },
    /// The node is about to end: the client is notified, and the worker ends.
    NodeEnds,
    /// The client has connected again, has received `received` bytes, and the socket comes with the
    /// packet: which one of how many.
    Resume { attempt: u32, received: u64, stripe: (u8, u8), tls: Option<Keys> },
}

/// One end of the pair.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
}

impl PacketSocket {
    /// Two connected ends, closed on `exec` unless handed over.
    pub fn pair() -> io::Result<(PacketSocket, PacketSocket)> {
        let mut fds = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: `fds` has room for the two descriptors that the call writes.
        if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call succeeded, so both are open descriptors that have no other owner.
        let [a, b] = fds.map(|fd| PacketSocket { fd: unsafe { OwnedFd::from_raw_fd(fd) } });
        Ok((a, b))
    }

    /// Takes over an inherited end.
    pub fn from_fd(fd: OwnedFd) -> PacketSocket {
        PacketSocket { fd }
    }

    /// The descriptor, to hand over to another process.
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Ends both directions; what was sent before is still received.
    pub fn shut_down(&self) {
        // SAFETY: plain system call on our own descriptor.
        unsafe { libc::shutdown(self.fd.as_raw_fd(), libc::SHUT_RDWR) };
    }

    /// Sends one packet; an error means that the other side is gone.
    pub fn send<T: Serialize>(&self, packet: &T) -> io::Result<()> {
        self.send_with(packet, 0)
    }

    /// As [`PacketSocket::send`], but fails when the other side has stopped reading, instead of
    /// waiting for it.
    pub fn send_now<T: Serialize>(&self, packet: &T) -> io::Result<()> {
        self.send_with(packet, libc::MSG_DONTWAIT)
    }

    fn send_with<T: Serialize>(&self, packet: &T, flags: i32) -> io::Result<()> {
        let flags = flags | libc::MSG_NOSIGNAL;
        let bytes = serde_json::to_vec(packet)?;
        // SAFETY: the pointer and length describe `bytes`, which outlives the call.
        let sent = unsafe { libc::send(self.fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// As [`PacketSocket::send_now`]; the other side gets a descriptor of the same file as `fd`.
    pub fn send_fd<T: Serialize>(&self, packet: &T, fd: BorrowedFd<'_>) -> io::Result<()> {
        let bytes = serde_json::to_vec(packet)?;
        let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut space = ControlSpace([0; CONTROL_SIZE]);
        let mut message = message_of(&mut part, &mut space);
        // SAFETY: the space holds one control message with one descriptor, as `CONTROL_SIZE` says,
        // and is aligned for it.
        unsafe {
            let control = &mut *libc::CMSG_FIRSTHDR(&raw mut message);
            control.cmsg_level = libc::SOL_SOCKET;
            control.cmsg_type = libc::SCM_RIGHTS;
            control.cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
            libc::CMSG_DATA(control).cast::<RawFd>().write_unaligned(fd.as_raw_fd());
        }
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: the message describes memory of this function, which outlives the call.
        let sent = unsafe { libc::sendmsg(self.fd.as_raw_fd(), &raw const message, flags) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Waits for the next packet; `None` when the other side is gone.
    pub fn receive<T: for<'a> Deserialize<'a>>(&self) -> io::Result<Option<T>> {
        Ok(self.receive_fd()?.map(|(packet, _)| packet))
    }

    /// As [`PacketSocket::receive`], with the descriptor that came along, if one did.
    pub fn receive_fd<T: for<'a> Deserialize<'a>>(&self) -> io::Result<Option<(T, Option<OwnedFd>)>> {
        let mut buffer = [0_u8; PACKET_MAX];
        loop {
            let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            let mut space = ControlSpace([0; CONTROL_SIZE]);
            let mut message = message_of(&mut part, &mut space);
            // SAFETY: the message describes memory of this function, which outlives the call.
            let got = unsafe { libc::recvmsg(self.fd.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
            let fd = if got >= 0 { received_fd(&message) } else { None };
            match got {
                0 => return Ok(None),
                1.. => return Ok(Some((serde_json::from_slice(&buffer[..got as usize])?, fd))),
                _ => {
                    let error = io::Error::last_os_error();
                    match error.kind() {
                        io::ErrorKind::Interrupted => continue,
                        io::ErrorKind::ConnectionReset => return Ok(None),
                        _ => return Err(error),
                    }
                }
            }
        }
    }
}

/// Room for a control message with one descriptor.
// SAFETY: a computation on a number.
const CONTROL_SIZE: usize = unsafe { libc::CMSG_SPACE(size_of::<RawFd>() as u32) } as usize;

/// Aligned for a `cmsghdr`.
#[repr(align(8))]
struct ControlSpace([u8; CONTROL_SIZE]);

fn message_of(part: &mut libc::iovec, space: &mut ControlSpace) -> libc::msghdr {
    // SAFETY: an all-zero message header is a valid one without address and control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message.msg_control = space.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL_SIZE as _; // differs between C libraries
    message
}

fn received_fd(message: &libc::msghdr) -> Option<OwnedFd> {
    // SAFETY: the kernel has filled the header and the space that it points to; a control message
    // of this type holds descriptors that are ours from now on, and no more than one fits.
    unsafe {
        let control = libc::CMSG_FIRSTHDR(message).as_ref()?;
        let is_fd = control.cmsg_level == libc::SOL_SOCKET && control.cmsg_type == libc::SCM_RIGHTS;
        is_fd.then(|| OwnedFd::from_raw_fd(libc::CMSG_DATA(control).cast::<RawFd>().read_unaligned()))
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_arrive_whole_and_in_order() {
        let (a, b) = PacketSocket::pair().unwrap();
        for gpu in 0..100 {
            a.send(&Packet::Want { gpu }).unwrap();
        }
        for gpu in 0..100 {
            assert_eq!(b.receive().unwrap(), Some(Packet::Want { gpu }));
        }
    }

    #[test]
    fn a_descriptor_travels_with_its_packet() {
        use std::io::{Read, Write};
        let (a, b) = PacketSocket::pair().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        let resume = Packet::Resume { attempt: 1, received: 2, stripe: (0, 1), tls: None };
        a.send_fd(&resume, writer.as_fd()).unwrap();
        a.send(&Packet::Ready).unwrap();
        drop(writer);
        let (packet, fd) = b.receive_fd::<Packet>().unwrap().unwrap();
        assert_eq!(packet, resume);
        std::fs::File::from(fd.expect("it came along")).write_all(b"here").unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "here");
        assert!(matches!(b.receive_fd::<Packet>(), Ok(Some((Packet::Ready, None)))));
    }

    #[test]
    fn the_end_of_one_side_is_seen_by_the_other() {
        let (a, b) = PacketSocket::pair().unwrap();
        a.send(&Packet::Ready).unwrap();
        drop(a);
        assert_eq!(b.receive::<Packet>().unwrap(), Some(Packet::Ready));
        assert_eq!(b.receive::<Packet>().unwrap(), None);
        assert!(b.send(&Packet::Ready).is_err());
    }
}

//! What a worker and its daemon say to each other: small packets on a `SOCK_SEQPACKET` pair.
//!
//! The first packet tells the worker what it serves ([`Start`]); after that all packets are [`Packet`]s. End of
//! file on either side means that the other process is gone: the worker exits at once, the daemon cleans up.
//! Nothing here is on the data path, and nothing here comes from a client.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

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
    /// Folder of the module cache.
    pub cache: Option<PathBuf>,
}

/// Where the driver functions come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Driver {
    /// The software GPU that is linked into the worker, with cards of these sizes in bytes.
    Software { memory: Vec<u64> },
    /// So many cards of a model that records what it is asked and computes nothing.
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
}

/// Everything after the start. `gpu` counts within the lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Packet {
    // From the worker.
    /// The session is up; the driver is loaded and the client has its snapshot.
    Ready,
    /// The session could not start or had to end; the text goes to the daemon's log.
    Failed(String),
    /// There is GPU work and no turn.
    Want { gpu: u32 },
    /// The turn comes back after this much GPU time; `more` if work is left.
    Done { gpu: u32, used_ns: u64, more: bool },
    /// Asks for device memory of the lease; answered by `Taken`, in order.
    Take { gpu: u32, bytes: u64 },
    /// Gives device memory back.
    GiveBack { gpu: u32, bytes: u64 },
    /// Asks what all sessions of the lease have taken on this GPU; answered by `Used`.
    QueryUsed { gpu: u32 },

    // From the daemon.
    /// The answer to `Take`.
    Taken(bool),
    /// The answer to `QueryUsed`, bytes.
    Used(u64),
    /// The turn is yours.
    Grant { gpu: u32 },
    /// Somebody waits: give the turn back when there is no work.
    Press { gpu: u32 },
    /// Stop at the next opportunity and report.
    Recall { gpu: u32 },
}

/// One end of the pair.
#[derive(Debug)]
pub struct Link {
    fd: OwnedFd,
}

impl Link {
    /// Two connected ends, closed on `exec` unless handed over.
    pub fn pair() -> io::Result<(Link, Link)> {
        let mut fds = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: `fds` has room for the two descriptors that the call writes.
        if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call succeeded, so both are open descriptors that nobody else owns.
        let [a, b] = fds.map(|fd| Link { fd: unsafe { OwnedFd::from_raw_fd(fd) } });
        Ok((a, b))
    }

    /// Takes over an inherited end.
    pub fn from_fd(fd: OwnedFd) -> Link {
        Link { fd }
    }

    /// The descriptor, to hand over to another process.
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Sends one packet; an error means that the other side is gone.
    pub fn send<T: Serialize>(&self, packet: &T) -> io::Result<()> {
        self.send_with(packet, 0)
    }

    /// As [`Link::send`], but fails when the other side has stopped reading, instead of waiting for it.
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

    /// Waits for the next packet; `None` when the other side is gone.
    pub fn receive<T: for<'a> Deserialize<'a>>(&self) -> io::Result<Option<T>> {
        let mut buffer = [0_u8; PACKET_MAX];
        loop {
            // SAFETY: the pointer and length describe `buffer`, which outlives the call.
            let got = unsafe { libc::recv(self.fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
            match got {
                0 => return Ok(None),
                1.. => return Ok(Some(serde_json::from_slice(&buffer[..got as usize])?)),
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

impl AsFd for Link {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_arrive_whole_and_in_order() {
        let (a, b) = Link::pair().unwrap();
        for gpu in 0..100 {
            a.send(&Packet::Want { gpu }).unwrap();
        }
        for gpu in 0..100 {
            assert_eq!(b.receive().unwrap(), Some(Packet::Want { gpu }));
        }
    }

    #[test]
    fn the_end_of_one_side_is_seen_by_the_other() {
        let (a, b) = Link::pair().unwrap();
        a.send(&Packet::Ready).unwrap();
        drop(a);
        assert_eq!(b.receive::<Packet>().unwrap(), Some(Packet::Ready));
        assert_eq!(b.receive::<Packet>().unwrap(), None);
        assert!(b.send(&Packet::Ready).is_err());
    }
}

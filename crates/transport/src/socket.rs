//! The system calls on a connected stream socket.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use sluice_wire::spin::Wait;

/// A connected stream socket, TCP or Unix.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    is_unix: bool,
}

impl Socket {
    pub(crate) fn new(fd: OwnedFd) -> Socket {
        // Now, since a confined worker may not ask any more.
        let is_unix = is_unix(fd.as_fd());
        Socket { fd, is_unix }
    }

    pub(crate) fn set_read_limit(&self, limit: Duration) -> io::Result<()> {
        self.set_limit(libc::SO_RCVTIMEO, limit)
    }

    pub(crate) fn set_write_limit(&self, limit: Duration) -> io::Result<()> {
        self.set_limit(libc::SO_SNDTIMEO, limit)
    }

    /// Zero is no limit.
    fn set_limit(&self, option: i32, limit: Duration) -> io::Result<()> {
        let limit = libc::timeval {
            tv_sec: limit.as_secs() as libc::time_t,
            tv_usec: limit.subsec_micros() as libc::suseconds_t,
        };
        let (level, size) = (libc::SOL_SOCKET, size_of::<libc::timeval>() as u32);
        // SAFETY: the option's value is a `timeval`, and the kernel reads exactly that many bytes.
        let status =
            unsafe { libc::setsockopt(self.fd.as_raw_fd(), level, option, (&raw const limit).cast(), size) };
        if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Limits the bytes that are queued before they can be sent to about this many. On a socket
    /// that is not TCP nothing waits anyway.
    pub(crate) fn limit_unsent(&self, bytes: u32) {
        let size = size_of::<u32>() as u32;
        let (level, option) = (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT);
        // SAFETY: the option's value is an int, and the kernel reads exactly that many bytes.
        unsafe { libc::setsockopt(self.fd.as_raw_fd(), level, option, (&raw const bytes).cast(), size) };
    }

    pub(crate) fn read(&self, into: &mut [u8], wait: Wait) -> io::Result<usize> {
        let flags = flags_of(wait);
        // SAFETY: the kernel writes at most the slice's own length.
        retried(|| unsafe { libc::recv(self.fd.as_raw_fd(), into.as_mut_ptr().cast(), into.len(), flags) })
    }

    pub(crate) fn write_vectored(&self, parts: &[IoSlice<'_>], wait: Wait) -> io::Result<usize> {
        let flags = flags_of(wait) | libc::MSG_NOSIGNAL;
        let fd = self.fd.as_raw_fd();
        if let [part] = parts {
            // SAFETY: the kernel reads at most the slice's own length.
            return retried(|| unsafe { libc::send(fd, part.as_ptr().cast(), part.len(), flags) });
        }
        // SAFETY: an all-zero message header is a valid one without address and control data.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        // An `IoSlice` has the layout of an `iovec`, as the standard library promises.
        message.msg_iov = parts.as_ptr().cast_mut().cast();
        message.msg_iovlen = parts.len() as _; // differs between C libraries
        // SAFETY: the message describes slices that outlive the call; the kernel only reads them.
        retried(|| unsafe { libc::sendmsg(fd, &message, flags) })
    }

    /// Whether one of `events`, or the end, came within `limit`. A signal ends the wait early.
    pub(crate) fn poll(&self, events: i16, limit: Duration) -> io::Result<bool> {
        let mut poll = libc::pollfd { fd: self.fd.as_raw_fd(), events, revents: 0 };
        let limit_ms = i32::try_from(limit.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: one pollfd, and the count says one.
        let ready = unsafe { libc::poll(&mut poll, 1, limit_ms) };
        if ready >= 0 {
            return Ok(ready > 0);
        }
        let error = io::Error::last_os_error();
        if error.kind() == io::ErrorKind::Interrupted { Ok(false) } else { Err(error) }
    }

    /// Whether the peer has closed its end, or is gone.
    pub(crate) fn has_ended(&self) -> bool {
        self.poll(libc::POLLRDHUP, Duration::ZERO).unwrap_or(true)
    }

    /// Waits until then, or until `limit` is over, or a signal comes.
    pub(crate) fn wait_end(&self, limit: Duration) {
        let _ = self.poll(libc::POLLRDHUP, limit);
    }

    pub(crate) fn is_unix(&self) -> bool {
        self.is_unix
    }

    pub(crate) fn shut_down(&self) {
        // SAFETY: shutdown takes any descriptor.
        unsafe { libc::shutdown(self.fd.as_raw_fd(), libc::SHUT_RDWR) };
    }

    pub(crate) fn shut_down_writes(&self) {
        // SAFETY: shutdown takes any descriptor.
        unsafe { libc::shutdown(self.fd.as_raw_fd(), libc::SHUT_WR) };
    }

    /// # Safety
    /// The socket is neither used nor dropped in this process afterwards.
    pub(crate) unsafe fn close_in_child(&self) {
        // SAFETY: the descriptor is open, and the caller promises that its number is not used
        // again.
        unsafe { libc::close(self.fd.as_raw_fd()) };
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Data unacknowledged for this time count as lost.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(9);

/// A host that is switched off sends no end of file, so the idle connection is probed: it fails
/// after 10 s without an answer. No probe is sent while data are under way: for those there is
/// [`limit_unacknowledged`].
pub fn notice_dead_peer(socket: BorrowedFd<'_>) -> io::Result<()> {
    let options = [
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 4),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 2),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3),
    ];
    options.into_iter().try_for_each(|(level, option, value)| set_number(socket, level, option, value))
}

/// Has a TCP connection fail after 9 s in which its peer has acknowledged nothing of what is under
/// way, or has had no room for more (`TCP_USER_TIMEOUT` in tcp(7)). A slow link acknowledges all
/// the time. A peer that is stopped, or computes for a while and takes nothing meanwhile, cannot be
/// distinguished from a dead one once its window is full: this is for connections whose end costs
/// nothing but the next one. The process that accepts it does so: a confined worker may not.
pub fn limit_unacknowledged(socket: BorrowedFd<'_>) -> io::Result<()> {
    let limit_ms = UNACKNOWLEDGED_MAX.as_millis() as i32;
    set_number(socket, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, limit_ms)
}

/// A TCP connection of such a round trip that slows down with each lost packet does not hold what
/// its link does.
const FAR: Duration = Duration::from_millis(5);

/// Has a TCP connection over a far link keep its rate when packets are lost, by BBR
/// (`TCP_CONGESTION` in tcp(7)), where the system has that and lets this process use it; anywhere
/// else the system's own choice stands. The process that accepts a connection does so: a confined
/// worker may not.
pub fn keep_rate(socket: BorrowedFd<'_>) {
    const NAME: &[u8] = b"bbr";
    if !is_far(socket) {
        return;
    }
    let (level, option) = (libc::IPPROTO_TCP, libc::TCP_CONGESTION);
    // SAFETY: the option's value is a name, of which the kernel reads exactly that many bytes.
    unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, NAME.as_ptr().cast(), NAME.len() as u32) };
}

/// What a peer may have in flight on one connection with its system's default limit (`tcp_wmem`).
const ROOM: i32 = 4 << 20;

/// Has a TCP connection over a far link take much at once. The system offers its peer 64 KiB, and
/// more with each round trip in which that is read. Until that is what the link holds it is what
/// limits the peer, whose BBR may take it for the link's own rate and stay there for seconds. It
/// has to be done before large data come, and on a node by the daemon: a confined worker may not.
pub fn make_room(socket: BorrowedFd<'_>) {
    if is_far(socket) {
        raise_room(socket);
    }
}

/// Linux makes space for what a reader says it waits for (`SO_RCVLOWAT`, `tcp_set_rcvlowat` since
/// 4.18), within what `tcp_rmem` allows, and the room stays when the reader wants to see each
/// byte again. `SO_RCVBUF` would end its growth, and `rmem_max` is mostly less. Where a system does
/// not do so, a connection is slow at first; one byte is a number that none refuses.
fn raise_room(socket: BorrowedFd<'_>) {
    for bytes in [ROOM, 1] {
        let _ = set_number(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes);
    }
}

fn is_far(socket: BorrowedFd<'_>) -> bool {
    round_trip(socket).is_some_and(|took| took >= FAR)
}

/// As the system has measured it so far, if this is TCP.
pub(crate) fn round_trip(socket: BorrowedFd<'_>) -> Option<Duration> {
    // SAFETY: an all-zero structure of numbers is a valid one.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut size = size_of_val(&info) as u32;
    let (level, option) = (libc::IPPROTO_TCP, libc::TCP_INFO);
    // SAFETY: the kernel writes at most `size` bytes to a local.
    let status =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut info).cast(), &mut size) };
    (status == 0).then(|| Duration::from_micros(u64::from(info.tcpi_rtt)))
}

fn set_number(socket: BorrowedFd<'_>, level: i32, option: i32, value: i32) -> io::Result<()> {
    let size = size_of::<i32>() as u32;
    // SAFETY: the option's value is an int, and the kernel reads exactly that many bytes.
    let status =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), size) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn is_unix(socket: BorrowedFd<'_>) -> bool {
    let mut domain = 0;
    let mut size = size_of::<i32>() as u32;
    let (level, option) = (libc::SOL_SOCKET, libc::SO_DOMAIN);
    // SAFETY: the option's value is an int, for which there is room.
    let status =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut domain).cast(), &mut size) };
    status == 0 && domain == libc::AF_UNIX
}

fn flags_of(wait: Wait) -> i32 {
    match wait {
        Wait::No => libc::MSG_DONTWAIT,
        Wait::Asleep => 0,
    }
}

/// The count that a system call returns, which is made again when a signal has interrupted it.
pub(crate) fn retried(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        if let Ok(count) = usize::try_from(call()) {
            return Ok(count);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn number(socket: BorrowedFd<'_>, option: i32) -> i32 {
        let (mut value, mut size) = (0, size_of::<i32>() as u32);
        let (fd, level) = (socket.as_raw_fd(), libc::SOL_SOCKET);
        // SAFETY: the option's value is an int, for which there is room.
        let status = unsafe { libc::getsockopt(fd, level, option, (&raw mut value).cast(), &mut size) };
        assert_eq!(status, 0);
        value
    }

    #[test]
    fn a_socket_gets_the_room_that_the_system_allows_and_wakes_its_reader_for_each_byte() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let room = || number(socket.as_fd(), libc::SO_RCVBUF);
        let before = room();
        raise_room(socket.as_fd());
        assert_eq!(number(socket.as_fd(), libc::SO_RCVLOWAT), 1);
        let limits = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_rmem").unwrap_or_default();
        match limits.split_whitespace().next_back().and_then(|most| most.parse::<i32>().ok()) {
            Some(most) if room() != before => assert!(room() >= ROOM.min(most / 2), "{} of {most}", room()),
            _ => eprintln!("skipped: this system makes no more room than {before} bytes"),
        }
    }
}

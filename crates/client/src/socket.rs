//! The socket to the worker: connecting with a deadline, and the system calls that reading and writing need.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{IntoRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use sluice_wire::spin::Wait;

/// A connected stream socket. It is never closed: the process's end closes it, and until then another thread may be
/// inside a call on it. Only a forked child closes its copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Socket(RawFd);

impl Socket {
    /// Connects to `host:port`, trying every address of the host until `deadline`.
    pub(crate) fn connect_tcp(address: &str, deadline: Instant) -> io::Result<Socket> {
        let mut failure = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for address in address.to_socket_addrs()? {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match TcpStream::connect_timeout(&address, left) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    let socket = Socket(stream.into_raw_fd());
                    socket.notice_dead_peer()?;
                    return Ok(socket);
                }
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    pub(crate) fn connect_unix(path: &Path) -> io::Result<Socket> {
        Ok(Socket(UnixStream::connect(path)?.into_raw_fd()))
    }

    #[cfg(test)]
    pub(crate) fn from_unix(stream: UnixStream) -> Socket {
        Socket(stream.into_raw_fd())
    }

    /// A host that is switched off sends no end of file, so the idle connection is probed. There is no limit on data
    /// that is not taken (`TCP_USER_TIMEOUT`): a worker whose queue is full behind a long kernel takes none.
    fn notice_dead_peer(self) -> io::Result<()> {
        self.set_option(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
        self.set_option(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 4)?;
        self.set_option(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 2)?;
        self.set_option(libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3)
    }

    fn set_option(self, level: i32, option: i32, value: i32) -> io::Result<()> {
        // SAFETY: the option's value is an int, and the kernel reads exactly that many bytes.
        let status = unsafe {
            libc::setsockopt(self.0, level, option, (&raw const value).cast(), size_of::<i32>() as u32)
        };
        if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Reads what is there. `Ok(0)` is the end of the stream.
    pub(crate) fn read(self, into: &mut [u8], wait: Wait) -> io::Result<usize> {
        let flags = match wait {
            Wait::No => libc::MSG_DONTWAIT,
            Wait::Asleep => 0,
        };
        loop {
            // SAFETY: the kernel writes at most the slice's own length.
            let read = unsafe { libc::recv(self.0, into.as_mut_ptr().cast(), into.len(), flags) };
            if let Ok(read) = usize::try_from(read) {
                return Ok(read);
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }

    /// Writes as much as fits without waiting.
    pub(crate) fn write(self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            // SAFETY: the kernel reads at most the slice's own length.
            let sent = unsafe { libc::send(self.0, bytes.as_ptr().cast(), bytes.len(), flags) };
            if let Ok(sent) = usize::try_from(sent) {
                return Ok(sent);
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }

    /// Ends reads and writes in other threads.
    pub(crate) fn shut_down(self) {
        // SAFETY: shutdown takes any descriptor.
        unsafe { libc::shutdown(self.0, libc::SHUT_RDWR) };
    }

    /// Waits until the socket can be written, or also read if `or_readable`, or until `limit` is over.
    pub(crate) fn wait_writable(self, or_readable: bool, limit: Duration) -> io::Result<()> {
        let events = libc::POLLOUT | if or_readable { libc::POLLIN } else { 0 };
        self.poll(events, limit).map(|_| ())
    }

    /// Waits until the socket can be read; false if `limit` was over first.
    pub(crate) fn wait_readable(self, limit: Duration) -> io::Result<bool> {
        self.poll(libc::POLLIN, limit)
    }

    fn poll(self, events: i16, limit: Duration) -> io::Result<bool> {
        let mut poll = libc::pollfd { fd: self.0, events, revents: 0 };
        let limit_ms = i32::try_from(limit.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: one pollfd, and the count says one.
        let ready = unsafe { libc::poll(&mut poll, 1, limit_ms) };
        if ready >= 0 {
            return Ok(ready > 0);
        }
        let error = io::Error::last_os_error();
        if error.kind() == io::ErrorKind::Interrupted { Ok(false) } else { Err(error) }
    }

    /// Closes a forked child's copy, so that the worker still sees the parent's end. Async-signal-safe.
    pub(crate) fn close_in_child(self) {
        // SAFETY: the child has detached from the session, so nobody uses the descriptor any more.
        unsafe { libc::close(self.0) };
    }
}

//! The byte stream between a client and its worker: what carries it, how its readers and writers
//! wait.
//!
//! It begins as a socket. Where that is a Unix socket the two may agree ([`Stream::share`]) to
//! continue through shared memory: two rings of bytes ([`ring`]) in a memory file that the worker
//! makes, sealed ([`rings`]), and bells that wake who sleeps ([`bell`]). The socket stays open: it
//! tells either side of the other's end. A TCP socket may carry TLS ([`tls`]), and on a far link
//! several may carry one stream ([`stripes`]).
//!
//! It loads into strangers' programs with the client library: no thread, no global state, nothing
//! that a forked child could be caught in.

pub mod admission;
mod bell;
mod connection;
mod descriptor;
mod descriptor_limit;
pub mod opening;
pub mod process;
pub mod restored;
mod ring;
mod rings;
mod session;
mod shared;
mod socket;
mod stores;
mod stripes;
pub mod tls;
pub mod token;

use std::io::{self, IoSlice, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use sluice_wire::address::Fingerprint;
use sluice_wire::spin::Wait;

use crate::connection::Connection;
use crate::shared::Shared;
use crate::socket::Socket;
use crate::stripes::Stripes;
use crate::tls::{ClientIdentity, Keys, Records, ServerIdentity, Trust};

pub use crate::descriptor_limit::raise_descriptor_limit;
pub use crate::rings::{Rings, Side};
pub use crate::session::{NoSession, own_sessions};
pub use crate::socket::{keep_rate, limit_unacknowledged, make_room, notice_dead_peer};
pub use crate::stripes::STRIPES_MAX;

/// Where a Unix socket is: a file, or behind an `@` a name that no file system has (unix(7),
/// "abstract").
pub fn unix_address(path: &Path) -> io::Result<SocketAddr> {
    match path.as_os_str().as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(path),
    }
}

/// What the name of a node's own socket begins with, behind which the number of the node's user
/// stands, and `-`. Any process may bind a name that is free, and it is in `/proc/net/unix` for all
/// to see.
const NODE_SOCKET: &str = "@sluice-node-";

/// A name for a socket of a node that runs as this process's user; `number` is to be random.
pub fn node_socket(number: &str) -> String {
    // SAFETY: always succeeds, and touches no memory.
    let user = unsafe { libc::geteuid() };
    format!("{NODE_SOCKET}{user}-{number}")
}

/// Whether this is the name of a node's own socket.
pub fn is_node_socket(name: &str) -> bool {
    owner_in(Path::new(name)).is_some()
}

/// Whose a node's own socket is.
fn owner_in(path: &Path) -> Option<libc::uid_t> {
    path.to_str()?.strip_prefix(NODE_SOCKET)?.split_once('-')?.0.parse().ok()
}

/// Who is at the other end of a Unix socket, as the kernel vouches for it.
pub fn peer_of(stream: &UnixStream) -> io::Result<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `peer`.
    let result = unsafe {
        let place = (&raw mut peer).cast();
        libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, place, &mut length)
    };
    if result == 0 { Ok(peer) } else { Err(io::Error::last_os_error()) }
}

/// One connected end. Any thread may read, write, wait and shut down at any time.
#[derive(Debug)]
pub struct Stream {
    connection: Connection,
    /// What carries the bytes once both sides have agreed on it; the socket then only tells of the
    /// peer's end.
    shared: OnceLock<Shared>,
    /// Other connections that carry the bytes beside this one, once both sides have agreed on that.
    stripes: OnceLock<Stripes>,
}

impl Stream {
    /// Connects to `host:port`, trying every address of the host until `deadline`.
    pub fn connect_tcp(address: &str, deadline: Instant) -> io::Result<Stream> {
        let mut failure = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for address in address.to_socket_addrs()? {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match TcpStream::connect_timeout(&address, left) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    notice_dead_peer(stream.as_fd())?;
                    return Ok(Stream::from(OwnedFd::from(stream)));
                }
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// Connects with TLS; also returns which certificate the node has shown.
    pub fn connect_tls(
        address: &str,
        trust: &Trust,
        identity: Option<&ClientIdentity>,
        deadline: Instant,
    ) -> io::Result<(Stream, Fingerprint)> {
        let mut stream = Stream::connect_tcp(address, deadline)?;
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let (keys, shown) = tls::connect(&stream.connection.socket, host, trust, identity, deadline)?;
        stream.connection.tls = Some(Box::new(Records::new(keys, false)?));
        Ok((stream, shown))
    }

    /// Shakes hands as a node; says whether the client has shown a certificate, or need not, and
    /// which the node has shown. Each read takes no more than a record, so that the stream can be
    /// handed on, until [`Stream::read_ahead`].
    pub fn accept_tls(
        &mut self,
        identity: &ServerIdentity,
        deadline: Instant,
    ) -> io::Result<(bool, Fingerprint)> {
        let (keys, may_ask, shown) = tls::accept(&self.connection.socket, identity, deadline)?;
        self.connection.tls = Some(Box::new(Records::new(keys, true)?));
        Ok((may_ask, shown))
    }

    /// Reads as much as there is: the stream stays in this process.
    pub fn read_ahead(&self) {
        if let Some(records) = &self.connection.tls {
            records.read_ahead();
        }
    }

    /// Continues with keys that another process has agreed on.
    pub fn protected(socket: OwnedFd, keys: Option<Keys>) -> io::Result<Stream> {
        let tls = keys.map(|keys| Records::new(keys, false)).transpose()?;
        let mut stream = Stream::from(socket);
        stream.connection.tls = tls.map(Box::new);
        Ok(stream)
    }

    /// What another process needs to continue, beside the socket; nothing without TLS. Fails while
    /// bytes are here that the other would miss.
    pub fn keys(&self) -> io::Result<Option<Keys>> {
        let Some(records) = &self.connection.tls else { return Ok(None) };
        let unread = || io::Error::new(io::ErrorKind::InvalidData, "it sent more before it was answered");
        records.keys().map(Some).ok_or_else(unread)
    }

    pub fn connect_unix(path: &Path) -> io::Result<Stream> {
        let stream = UnixStream::connect_addr(&unix_address(path)?)?;
        let is_anybodys =
            owner_in(path).is_none_or(|owner| peer_of(&stream).is_ok_and(|peer| peer.uid == owner));
        if !is_anybodys {
            let why = "its name is taken by another user's program; the node that had it is gone";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        Ok(stream.into())
    }

    /// Reads what is there, or waits for it as `wait` says. `Ok(0)` is the end of the stream.
    pub fn read(&self, into: &mut [u8], wait: Wait) -> io::Result<usize> {
        match self.shared.get() {
            Some(shared) => shared.read(&self.connection.socket, into, wait),
            None => match self.stripes.get() {
                Some(stripes) => stripes.read(&self.connection, into, wait),
                None => self.connection.read(into, wait),
            },
        }
    }

    /// Whether the bytes go through shared memory.
    pub fn is_shared(&self) -> bool {
        self.shared.get().is_some()
    }

    /// Says whether the bytes are encrypted in transit.
    pub fn is_protected(&self) -> bool {
        self.connection.tls.is_some()
    }

    /// As [`Stream::read`] through shared memory, without a copy: gives from `least` (or half of
    /// what fits) to `limit` bytes to `take` where they lie, start and length of memory that it may
    /// read until it returns. The peer can change them meanwhile: what is concluded from them must
    /// be concluded from a copy. Through a socket bytes do not lie anywhere:
    /// [`io::ErrorKind::Unsupported`].
    pub fn read_in_place(
        &self,
        (least, limit): (usize, usize),
        wait: Wait,
        take: impl FnMut(*const u8, usize),
    ) -> io::Result<usize> {
        match self.shared.get() {
            Some(shared) => shared.read_in_place(&self.connection.socket, (least, limit), wait, take),
            None => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Writes as much as fits without waiting; nothing fitting is [`io::ErrorKind::WouldBlock`].
    /// After that the same bytes come again before any others, or none at all: with TLS they may be
    /// half-way out.
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)], Wait::No)
    }

    /// Writes a beginning of what `parts` hold, and waits for room as `wait` says.
    pub fn write_vectored(&self, parts: &[IoSlice<'_>], wait: Wait) -> io::Result<usize> {
        match self.shared.get() {
            Some(shared) => shared.write_vectored(&self.connection.socket, parts, wait),
            None => match self.stripes.get() {
                Some(stripes) => stripes.write_vectored(&self.connection, parts, wait),
                None => self.connection.write_vectored(parts, wait),
            },
        }
    }

    /// Through shared memory: writes `head` and then `count` bytes that `fill` writes where the
    /// peer will read them, which is given by its start. The peer gets all of it or, after an error
    /// of `fill`, nothing. `None` if there is no room for it now. Through a socket:
    /// [`io::ErrorKind::Unsupported`].
    pub fn write_in_place<E>(
        &self,
        head: &[u8],
        count: usize,
        fill: impl FnOnce(*mut u8) -> Result<(), E>,
    ) -> io::Result<Option<Result<(), E>>> {
        match self.shared.get() {
            Some(shared) => shared.write_in_place(&self.connection.socket, head, count, fill),
            None => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Waits until this many bytes can be written, or half of what fits into the shared memory; on
    /// a socket, until any can.
    pub fn wait_room(&self, bytes: usize) -> io::Result<()> {
        match self.shared.get() {
            Some(shared) => shared.wait_room(&self.connection.socket, bytes),
            None => self.wait_writable(false, Duration::MAX),
        }
    }

    /// A read that has slept this long fails with [`io::ErrorKind::WouldBlock`].
    pub fn set_read_limit(&self, limit: Duration) -> io::Result<()> {
        if let Some(shared) = self.shared.get() {
            shared.set_read_limit(limit);
        }
        if let Some(stripes) = self.stripes.get() {
            stripes.set_read_limit(limit);
        }
        self.connection.socket.set_read_limit(limit)
    }

    /// As [`Stream::set_read_limit`], for writes.
    pub fn set_write_limit(&self, limit: Duration) -> io::Result<()> {
        if let Some(stripes) = self.stripes.get() {
            stripes.set_write_limit(limit);
        }
        self.connection.socket.set_write_limit(limit)
    }

    /// Whether a read would find something that has left the socket already.
    pub fn has_unread(&self) -> bool {
        self.connection.has_unread()
    }

    /// Waits until the stream can be written, or also read if `or_readable`, or until `limit` is
    /// over.
    pub fn wait_writable(&self, or_readable: bool, limit: Duration) -> io::Result<()> {
        if let Some(shared) = self.shared.get() {
            return shared.wait_writable(&self.connection.socket, or_readable, limit);
        }
        if let Some(stripes) = self.stripes.get() {
            return stripes.wait_writable(&self.connection, or_readable, limit);
        }
        if or_readable && self.has_unread() {
            return Ok(());
        }
        let events = libc::POLLOUT | if or_readable { libc::POLLIN } else { 0 };
        self.connection.socket.poll(events, limit).map(drop)
    }

    /// Waits until the stream can be read or has ended; false if `limit` was over first.
    pub fn wait_readable(&self, limit: Duration) -> io::Result<bool> {
        if let Some(stripes) = self.stripes.get() {
            return stripes.wait_readable(&self.connection, limit);
        }
        match self.shared.get() {
            Some(shared) => shared.wait_readable(&self.connection.socket, limit),
            None if self.has_unread() => Ok(true),
            None => self.connection.socket.poll(libc::POLLIN, limit),
        }
    }

    /// Ends reads and writes, also those that other threads are in.
    pub fn shut_down(&self) {
        self.connection.socket.shut_down();
        for other in self.stripes.get().into_iter().flat_map(Stripes::others) {
            other.socket.shut_down();
        }
        if let Some(shared) = self.shared.get() {
            shared.shut_down();
        }
    }

    /// Ends writes: the peer sees the end of the stream, and may continue to write.
    pub fn shut_down_writes(&self) {
        self.connection.socket.shut_down_writes();
        for other in self.stripes.get().into_iter().flat_map(Stripes::others) {
            other.socket.shut_down_writes();
        }
    }

    /// Waits until the peer has closed its end, or is gone, or `limit` is over.
    pub fn wait_end(&self, limit: Duration) {
        self.connection.socket.wait_end(limit);
    }

    /// Whether memory can be shared: descriptors pass through Unix sockets.
    pub fn is_unix(&self) -> bool {
        self.connection.socket.is_unix()
    }

    /// Continues through shared memory. Both sides do so at the same place in their streams; later
    /// calls change nothing.
    pub fn share(&self, memory: Rings, side: Side, cores: usize) {
        self.shared.get_or_init(|| Shared::new(memory, side, cores));
    }

    /// The round-trip time to the peer, as TCP has measured it; `None` over anything but TCP, and
    /// where the bytes go through shared memory.
    pub fn round_trip(&self) -> Option<Duration> {
        match self.shared.get() {
            Some(_) => None,
            None => socket::round_trip(self.connection.socket.as_fd()),
        }
    }

    /// Makes this connection fit to be one of several. The process that accepts it does so: a
    /// confined worker may not.
    pub fn limit_unsent(&self) {
        self.connection.socket.limit_unsent(stripes::UNSENT_MAX);
    }

    /// Continues over these connections too. Both sides do so at the same place in their streams,
    /// with the same connections in the same order, [`STRIPES_MAX`] with this one at most; later
    /// calls change nothing.
    pub fn stripe(&self, others: Vec<Stream>) {
        let others = others.into_iter().map(|other| other.connection).collect();
        self.stripes.get_or_init(|| Stripes::new(others));
    }

    /// Writes bytes with a descriptor beside them; waits for room.
    pub fn write_with_descriptor(&self, bytes: &[u8], fd: BorrowedFd<'_>) -> io::Result<usize> {
        descriptor::send(self.connection.socket.as_fd(), bytes, fd)
    }

    /// Reads what is there, and the descriptor that came beside it. Without waiting.
    pub fn read_with_descriptor(&self, into: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
        match self.shared.get() {
            Some(shared) => Ok((shared.read(&self.connection.socket, into, Wait::No)?, None)),
            None if self.connection.tls.is_some() => Ok((self.read(into, Wait::No)?, None)),
            None => descriptor::receive(self.connection.socket.as_fd(), into),
        }
    }

    /// Closes a forked child's copy, so that the peer still sees the parent's end.
    /// Async-signal-safe.
    ///
    /// # Safety
    /// The stream is neither used nor dropped in this process afterwards.
    pub unsafe fn close_in_child(&self) {
        // SAFETY: the caller's promise is the same.
        unsafe {
            self.connection.socket.close_in_child();
            for other in self.stripes.get().into_iter().flat_map(Stripes::others) {
                other.socket.close_in_child();
            }
        }
    }
}

/// Takes over a connected stream socket.
impl From<OwnedFd> for Stream {
    fn from(fd: OwnedFd) -> Stream {
        let connection = Connection { socket: Socket::new(fd), tls: None };
        Stream { connection, shared: OnceLock::new(), stripes: OnceLock::new() }
    }
}

impl From<UnixStream> for Stream {
    fn from(stream: UnixStream) -> Stream {
        Stream::from(OwnedFd::from(stream))
    }
}

/// Waits for bytes, up to the read limit.
impl Read for &Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Stream::read(self, into, Wait::Asleep)
    }
}

/// Waits for room, up to the write limit.
impl Write for &Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        Stream::write_vectored(self, parts, Wait::Asleep)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The socket: `POLLRDHUP` on it tells that the peer is gone, whatever carries the bytes.
impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.socket.as_fd()
    }
}

#[cfg(test)]
mod tests;

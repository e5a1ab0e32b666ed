//! A link that misbehaves: passes bytes between programs and a node, late, up to a byte, or not at all.
//!
//! Each connection gets a [`Fate`] when it comes: how many bytes it carries, in both directions together, and how it ends
//! then. The byte at which it ends is exact, so it may lie in any message's middle. While the relay is closed it turns
//! every connection away, and counts them: a test that wants a cut to last waits for attempts and not for a clock.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};

/// What a connection is for, as its first bytes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Control,
    Session,
    Resume,
    /// With TLS nobody can tell.
    Sealed,
}

/// How a connection ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    /// Both sides see an end of file.
    Close,
    /// Both sides see a reset.
    Reset,
    /// Nobody sees anything: nothing is passed on any more.
    Silence,
    /// Not at all: one byte is another, and all others pass.
    ChangedByte,
}

/// What becomes of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fate {
    /// Bytes that it carries; without a number it lives for as long as its ends.
    pub(crate) bytes: Option<u64>,
    pub(crate) end: End,
    /// Time by which each piece is late.
    pub(crate) delay: Duration,
    /// The loopback address from which the node sees it.
    pub(crate) from: Ipv4Addr,
    /// After its end the relay turns away so many connections before it opens again.
    pub(crate) attempts: u32,
}

impl Fate {
    /// A link as it should be.
    pub(crate) const GOOD: Fate =
        Fate { bytes: None, end: End::Close, delay: Duration::ZERO, from: Ipv4Addr::LOCALHOST, attempts: 0 };
}

/// Decides a fate; the number counts the connections.
type Decide = dyn FnMut(Purpose, u32) -> Fate + Send;

pub(crate) struct Relay {
    /// Where programs connect, `HOST:PORT`.
    pub(crate) address: String,
    shared: Arc<Shared>,
}

struct Shared {
    node: SocketAddrV4,
    state: Mutex<State>,
    changed: Condvar,
    is_over: AtomicBool,
}

struct State {
    decide: Box<Decide>,
    connections: u32,
    /// Connections that are turned away before the next one passes.
    to_turn_away: u32,
    cuts: u32,
}

impl Relay {
    pub(crate) fn start(
        node: &str,
        decide: impl FnMut(Purpose, u32) -> Fate + Send + 'static,
    ) -> Result<Relay> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        let state = State { decide: Box::new(decide), connections: 0, to_turn_away: 0, cuts: 0 };
        let shared = Arc::new(Shared {
            node: node.parse().with_context(|| format!("{node} is no address"))?,
            state: Mutex::new(state),
            changed: Condvar::new(),
            is_over: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || accepting.accept(&listener));
        Ok(Relay { address, shared })
    }

    /// Connections that were ended on purpose.
    pub(crate) fn cuts(&self) -> u32 {
        self.shared.lock().cuts
    }

    /// Waits until so many connections were ended on purpose.
    pub(crate) fn wait_for_cuts(&self, count: u32) {
        let mut state = self.shared.lock();
        while state.cuts < count {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(&self.address);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(self: Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming().flatten() {
            if self.is_over.load(Ordering::SeqCst) {
                return;
            }
            let shared = Arc::clone(&self);
            std::thread::spawn(move || _ = shared.serve(client));
        }
    }

    /// Reads what a connection is for, and carries it as far as its fate says.
    fn serve(&self, mut client: TcpStream) -> Result<()> {
        /// A `Hello` up to its purpose: a length, an opening of 12 bytes, a process of 12 bytes, the purpose.
        const PURPOSE_AT: usize = 26;
        let mut hello = [0; PURPOSE_AT + 1];
        client.read_exact(&mut hello)?;
        /// The first byte of a handshake of TLS.
        const HANDSHAKE: u8 = 22;
        let purpose = match hello[PURPOSE_AT] {
            _ if hello[0] == HANDSHAKE => Purpose::Sealed,
            0 => Purpose::Control,
            1 => Purpose::Session,
            _ => Purpose::Resume,
        };
        let Some(fate) = self.decide(purpose) else { return Ok(()) };
        let mut node = connect_from(fate.from, self.node)?;
        client.set_nodelay(true)?;
        node.set_nodelay(true)?;
        node.write_all(&hello)?;
        let left = fate.bytes.map_or(i64::MAX, |bytes| bytes as i64) - hello.len() as i64;
        let line = Line { client, node, fate, left: AtomicI64::new(left), has_ended: AtomicBool::new(false) };
        std::thread::scope(|scope| {
            scope.spawn(|| self.carry(&line, &line.client, &line.node));
            self.carry(&line, &line.node, &line.client);
        });
        Ok(())
    }

    fn decide(&self, purpose: Purpose) -> Option<Fate> {
        let mut state = self.lock();
        if state.to_turn_away > 0 {
            state.to_turn_away -= 1;
            return None;
        }
        state.connections += 1;
        let number = state.connections;
        Some((state.decide)(purpose, number))
    }

    fn carry(&self, line: &Line, mut from: &TcpStream, mut to: &TcpStream) {
        let mut piece = [0; 64 << 10];
        loop {
            let count = match from.read(&mut piece) {
                Ok(0) => {
                    let _ = to.shutdown(Shutdown::Write);
                    return;
                }
                Ok(count) => count,
                Err(_) => return line.break_off(),
            };
            if !line.fate.delay.is_zero() {
                std::thread::sleep(line.fate.delay); // the delay that is asked for, not a wait for something
            }
            let left = line.left.fetch_sub(count as i64, Ordering::SeqCst);
            let mut passes = count.min(usize::try_from(left).unwrap_or(0));
            if passes < count && matches!(line.fate.end, End::ChangedByte) {
                self.change(line, &mut piece[passes]);
                passes = count;
            }
            if to.write_all(&piece[..passes]).is_err() {
                return line.break_off();
            }
            if passes < count {
                return self.end(line);
            }
        }
    }

    /// Changes the byte at which another line would end. It counts as a cut, since that is what it leads to.
    fn change(&self, line: &Line, byte: &mut u8) {
        line.left.store(i64::MAX, Ordering::SeqCst);
        *byte ^= 1;
        self.lock().cuts += 1;
        self.changed.notify_all();
    }

    /// The line has carried all that it was to carry.
    fn end(&self, line: &Line) {
        if line.has_ended.swap(true, Ordering::SeqCst) {
            return;
        }
        let mut state = self.lock();
        state.cuts += 1;
        state.to_turn_away += line.fate.attempts;
        drop(state);
        self.changed.notify_all();
        match line.fate.end {
            End::Close => line.break_off(),
            End::Reset => {
                reset_when_closed(&line.client);
                reset_when_closed(&line.node);
                line.break_off();
            }
            // Neither side is read or closed until one of them gives up.
            End::Silence | End::ChangedByte => {}
        }
    }
}

/// Both halves of a relayed connection.
struct Line {
    client: TcpStream,
    node: TcpStream,
    fate: Fate,
    left: AtomicI64,
    has_ended: AtomicBool,
}

impl Line {
    fn break_off(&self) {
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.node.shutdown(Shutdown::Both);
    }
}

fn reset_when_closed(stream: &TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let (option, size) = (libc::SO_LINGER, size_of::<libc::linger>() as libc::socklen_t);
    // SAFETY: the option's value is a `linger`, and the kernel reads exactly that many bytes.
    unsafe {
        libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const linger).cast(), size)
    };
}

/// A connection whose own address is `from`.
fn connect_from(from: Ipv4Addr, to: SocketAddrV4) -> Result<TcpStream> {
    let error = || std::io::Error::last_os_error();
    // SAFETY: plain numbers.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(error().into());
    }
    // SAFETY: the descriptor is new and nobody else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let address = |address: SocketAddrV4| libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
        sin_zero: [0; 8],
    };
    let size = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    let own = address(SocketAddrV4::new(from, 0));
    // SAFETY: the address is a local of the size that is given.
    if unsafe { libc::bind(fd, (&raw const own).cast(), size) } != 0 {
        return Err(error()).with_context(|| format!("from {from}"));
    }
    let other = address(to);
    // SAFETY: as above.
    if unsafe { libc::connect(fd, (&raw const other).cast(), size) } != 0 {
        return Err(error()).with_context(|| SocketAddr::from(to).to_string());
    }
    Ok(TcpStream::from(socket))
}

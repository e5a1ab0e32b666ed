//! A link that misbehaves: passes bytes between programs and a node, late, up to a byte, or not at
//! all.
//!
//! Each connection gets a [`Fate`] when it comes: how many bytes it carries, in both directions
//! together, and how it ends then. The byte at which it ends is exact, so it may lie in any
//! message's middle. While the relay is closed it turns every connection away, and counts them: a
//! test that wants a cut to last waits for attempts and not for a clock. Or it is started anew: all
//! its connections end, and its port refuses for a while.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// What a connection is for, as its first bytes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Control,
    Session,
    Resume,
    /// With TLS the purpose is not visible.
    Sealed,
}

/// How a connection ends.
#[derive(Clone, Copy, Debug)]
pub enum End {
    /// Both sides see an end of file.
    Close,
    /// Both sides see a reset.
    Reset,
    /// No side sees anything: nothing is passed on any more.
    Silence,
    /// Not at all: one byte is another, and all others pass.
    ChangedByte,
}

/// What becomes of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Fate {
    /// Bytes that it carries; without a number it lives for as long as its ends.
    pub bytes: Option<u64>,
    pub end: End,
    /// Time that each byte is under way.
    pub delay: Duration,
    /// What the link carries in each direction; without a number, what the machine can.
    pub bytes_per_s: Option<f64>,
    /// The loopback address from which the node sees it.
    pub from: Ipv4Addr,
    /// After its end the relay turns away this number of connections before it opens again, and
    /// every one for the time `away`.
    pub attempts: u32,
    pub away: Duration,
    /// While away it is being started anew: no connection outlives that, and its port refuses.
    pub refuses: bool,
}

impl Fate {
    /// A link as it should be.
    pub const GOOD: Fate = Fate {
        bytes: None,
        end: End::Close,
        delay: Duration::ZERO,
        bytes_per_s: None,
        from: Ipv4Addr::LOCALHOST,
        attempts: 0,
        away: Duration::ZERO,
        refuses: false,
    };
}

/// Decides a fate; the number counts the connections.
type Decide = dyn FnMut(Purpose, u32) -> Fate + Send;

pub struct Relay {
    /// Where programs connect, `HOST:PORT`.
    pub address: String,
    shared: Arc<Shared>,
}

struct Shared {
    listener: TcpListener,
    node: SocketAddrV4,
    state: Mutex<State>,
    changed: Condvar,
    is_over: AtomicBool,
    /// Bytes of programs that have left for the node.
    to_node: AtomicU64,
    /// To the node and from it: when the link has sent all that came before, on whichever
    /// connection.
    idle_at: [Mutex<Instant>; 2],
}

struct State {
    decide: Box<Decide>,
    connections: u32,
    /// Connections that are turned away before the next one passes.
    to_turn_away: u32,
    closed_until: Option<Instant>,
    /// The port refuses until then.
    refuses: bool,
    lines: Vec<(Purpose, Weak<Line>)>,
    cuts: u32,
    starts_anew: u32,
}

impl Relay {
    pub fn start(node: &str, decide: impl FnMut(Purpose, u32) -> Fate + Send + 'static) -> Result<Relay> {
        // A port that was asked for by its number stays with its socket while that does not listen.
        let chosen = TcpStream::from(bound(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0), true)?);
        let listener = TcpListener::bind(chosen.local_addr()?)?;
        let address = listener.local_addr()?.to_string();
        let state = State {
            decide: Box::new(decide),
            connections: 0,
            to_turn_away: 0,
            closed_until: None,
            refuses: false,
            lines: Vec::new(),
            cuts: 0,
            starts_anew: 0,
        };
        let shared = Arc::new(Shared {
            listener,
            node: node.parse().with_context(|| format!("{node} is no address"))?,
            state: Mutex::new(state),
            changed: Condvar::new(),
            is_over: AtomicBool::new(false),
            to_node: AtomicU64::new(0),
            idle_at: [Mutex::new(Instant::now()), Mutex::new(Instant::now())],
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || accepting.accept());
        Ok(Relay { address, shared })
    }

    /// Connections that were ended on purpose.
    pub fn cuts(&self) -> u32 {
        self.shared.lock().cuts
    }

    /// How often it was started anew.
    pub fn starts_anew(&self) -> u32 {
        self.shared.lock().starts_anew
    }

    /// Forgets the connections of sessions, as a NAT does with those that were idle for long: the
    /// next byte of either side meets their end.
    pub fn forget_sessions(&self) {
        for (purpose, line) in &self.shared.lock().lines {
            if let Some(line) = line.upgrade().filter(|_| *purpose != Purpose::Control) {
                line.left.store(0, Ordering::SeqCst);
            }
        }
    }

    /// Bytes that programs have sent to the node, but for the beginnings of their handshakes.
    pub fn to_node(&self) -> u64 {
        self.shared.to_node.load(Ordering::SeqCst)
    }

    /// Waits until this number of connections was ended on purpose.
    pub fn wait_for_cuts(&self, count: u32) {
        let mut state = self.shared.lock();
        while state.cuts < count {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts, or waits until it may again.
        self.shared.stop_listening();
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(self: Arc<Self>) {
        while !self.is_over() {
            let Ok((client, _)) = self.listener.accept() else {
                self.listen_again();
                continue;
            };
            let shared = Arc::clone(&self);
            std::thread::spawn(move || _ = shared.serve(client));
        }
    }

    /// The port refuses from now on, and still has no other owner.
    fn stop_listening(&self) {
        // SAFETY: shutdown takes any descriptor. Of a listening socket it ends the listening
        // (Linux, tcp(7)).
        unsafe { libc::shutdown(self.listener.as_raw_fd(), libc::SHUT_RD) };
    }

    /// Waits until the port need not refuse any more.
    fn listen_again(&self) {
        let mut state = self.lock();
        while let Some(until) = state.closed_until.filter(|_| state.refuses && !self.is_over()) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                state.refuses = false;
                // SAFETY: the descriptor is of a bound socket.
                unsafe { libc::listen(self.listener.as_raw_fd(), 128) };
                break;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ends all connections, and refuses others until the relay is back.
    fn start_anew(&self, away: Duration) {
        let mut state = self.lock();
        if state.refuses {
            return;
        }
        (state.refuses, state.closed_until) = (true, Some(Instant::now() + away));
        state.starts_anew += 1;
        self.stop_listening();
        let lines = std::mem::take(&mut state.lines);
        for line in lines.iter().filter_map(|(_, line)| line.upgrade()) {
            state.cuts += u32::from(!line.has_ended.swap(true, Ordering::SeqCst));
            line.break_off();
        }
        drop(state);
        self.changed.notify_all();
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// Reads what a connection is for, and carries it as far as its fate says.
    fn serve(&self, mut client: TcpStream) -> Result<()> {
        /// A `Hello` up to its purpose: a length, an opening of 12 bytes, a process of 12 bytes,
        /// the purpose.
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
        let allowed = usize::try_from(fate.bytes.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
        node.write_all(&hello[..hello.len().min(allowed)])?;
        let left = fate.bytes.map_or(i64::MAX, |bytes| bytes as i64) - hello.len() as i64;
        let line = Line { client, node, fate, left: AtomicI64::new(left), has_ended: AtomicBool::new(false) };
        let line = Arc::new(line);
        if !self.enter(purpose, &line) {
            return Ok(());
        }
        if allowed < hello.len() {
            self.end(&line);
            return Ok(());
        }
        std::thread::scope(|scope| {
            let (to_node, from_node) = (&self.to_node, AtomicU64::new(0));
            let [idle_to_node, idle_from_node] = &self.idle_at;
            scope.spawn(|| self.carry(&line, (&line.client, &line.node), to_node, idle_to_node));
            self.carry(&line, (&line.node, &line.client), &from_node, idle_from_node);
        });
        Ok(())
    }

    fn decide(&self, purpose: Purpose) -> Option<Fate> {
        let mut state = self.lock();
        if state.closed_until.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        if state.to_turn_away > 0 {
            state.to_turn_away -= 1;
            return None;
        }
        state.connections += 1;
        let number = state.connections;
        Some((state.decide)(purpose, number))
    }

    /// False if the relay is being started anew meanwhile.
    fn enter(&self, purpose: Purpose, line: &Arc<Line>) -> bool {
        let mut state = self.lock();
        state.lines.retain(|(_, line)| line.strong_count() > 0);
        state.lines.push((purpose, Arc::downgrade(line)));
        !state.refuses
    }

    /// Counts in `carried` what comes out.
    fn carry(
        &self,
        line: &Line,
        (from, to): (&TcpStream, &TcpStream),
        carried: &AtomicU64,
        idle_at: &Mutex<Instant>,
    ) {
        let under_way = UnderWay::new(&line.fate);
        std::thread::scope(|scope| {
            scope.spawn(|| under_way.take_in(from, idle_at));
            self.hand_out(line, &under_way, to, carried);
            under_way.close();
        });
    }

    fn hand_out(&self, line: &Line, under_way: &UnderWay, mut to: &TcpStream, carried: &AtomicU64) {
        loop {
            let mut piece = match under_way.arrival() {
                Arrival::Bytes(piece) => piece,
                Arrival::End => return drop(to.shutdown(Shutdown::Write)),
                Arrival::Reset => return line.break_off(),
            };
            let left = line.left.fetch_sub(piece.len() as i64, Ordering::SeqCst);
            let mut passes = piece.len().min(usize::try_from(left).unwrap_or(0));
            if passes < piece.len() && matches!(line.fate.end, End::ChangedByte) {
                self.change(line, &mut piece[passes]);
                passes = piece.len();
            }
            carried.fetch_add(passes as u64, Ordering::SeqCst);
            if to.write_all(&piece[..passes]).is_err() {
                return line.break_off();
            }
            if passes < piece.len() {
                return self.end(line);
            }
        }
    }

    /// Changes the byte at which another line would end. It counts as a cut, since that is what it
    /// leads to.
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
        if !line.fate.away.is_zero() && !line.fate.refuses {
            state.closed_until = Some(Instant::now() + line.fate.away);
        }
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
        if line.fate.refuses {
            self.start_anew(line.fate.away);
        }
    }
}

/// What has entered one direction of a link and not left it.
struct UnderWay {
    delay: Duration,
    bytes_per_s: Option<f64>,
    bytes_max: usize,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    pieces: VecDeque<(Instant, Arrival)>,
    bytes: usize,
    is_closed: bool,
}

enum Arrival {
    Bytes(Vec<u8>),
    /// Nothing comes after this.
    End,
    Reset,
}

impl UnderWay {
    const PIECE: usize = 64 << 10;

    fn new(fate: &Fate) -> UnderWay {
        // What a link holds is its delay times its rate; routers keep some more.
        let held = fate.bytes_per_s.map_or(64e6, |rate| rate * fate.delay.as_secs_f64());
        UnderWay {
            delay: fate.delay,
            bytes_per_s: fate.bytes_per_s,
            bytes_max: held as usize + 4 * UnderWay::PIECE,
            queue: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads until an end, or until the other side takes out no more.
    fn take_in(&self, mut from: &TcpStream, idle_at: &Mutex<Instant>) {
        let mut piece = vec![0; UnderWay::PIECE];
        loop {
            let arrival = match from.read(&mut piece) {
                Ok(0) => Arrival::End,
                Ok(count) => Arrival::Bytes(piece[..count].to_vec()),
                Err(_) => Arrival::Reset,
            };
            let bytes = if let Arrival::Bytes(piece) = &arrival { piece.len() } else { 0 };
            let sending =
                self.bytes_per_s.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(bytes as f64 / rate));
            let sent_at = {
                let mut idle_at = idle_at.lock().unwrap_or_else(PoisonError::into_inner);
                *idle_at = Instant::now().max(*idle_at) + sending;
                *idle_at
            };
            let is_last = !matches!(arrival, Arrival::Bytes(_));
            let mut queue = self.lock();
            while queue.bytes + bytes > self.bytes_max && !queue.is_closed {
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            queue.bytes += bytes;
            queue.pieces.push_back((sent_at + self.delay, arrival));
            self.changed.notify_all();
            if is_last || queue.is_closed {
                return;
            }
        }
    }

    /// The next piece, when it is due.
    fn arrival(&self) -> Arrival {
        let mut queue = self.lock();
        loop {
            let until = |(due, _): &(Instant, Arrival)| due.saturating_duration_since(Instant::now());
            let wait = queue.pieces.front().map(until);
            queue = match wait {
                None => self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => {
                    let (_, arrival) = queue.pieces.pop_front().expect("it is in front");
                    if let Arrival::Bytes(piece) = &arrival {
                        queue.bytes -= piece.len();
                    }
                    self.changed.notify_all();
                    return arrival;
                }
                Some(wait) => {
                    let waited = self.changed.wait_timeout(queue, wait);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// The reader takes out no more.
    fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
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
    let socket = bound(SocketAddrV4::new(from, 0), false)?;
    let (other, size) = c_address(to);
    // SAFETY: the address is a local of the size that is given.
    if unsafe { libc::connect(socket.as_raw_fd(), (&raw const other).cast(), size) } != 0 {
        return Err(std::io::Error::last_os_error()).with_context(|| SocketAddr::from(to).to_string());
    }
    Ok(TcpStream::from(socket))
}

/// A socket with this address, which others may have too if they all say so and none of them
/// listens yet.
fn bound(own: SocketAddrV4, shares: bool) -> Result<OwnedFd> {
    let failed = || Err(std::io::Error::last_os_error()).with_context(|| own.to_string());
    // SAFETY: plain numbers.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return failed();
    }
    // SAFETY: the descriptor is new and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let (option, value, size) = (libc::SO_REUSEADDR, i32::from(shares), size_of::<i32>() as libc::socklen_t);
    // SAFETY: the option's value is an int, and the kernel reads exactly that many bytes.
    if unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, option, (&raw const value).cast(), size) } != 0 {
        return failed();
    }
    let (address, size) = c_address(own);
    // SAFETY: the address is a local of the size that is given.
    if unsafe { libc::bind(fd, (&raw const address).cast(), size) } != 0 {
        return failed();
    }
    Ok(socket)
}

fn c_address(address: SocketAddrV4) -> (libc::sockaddr_in, libc::socklen_t) {
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
        sin_zero: [0; 8],
    };
    (address, size_of::<libc::sockaddr_in>() as libc::socklen_t)
}

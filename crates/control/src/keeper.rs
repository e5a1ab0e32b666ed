//! Keeps a lease while its program runs: answers the node, and comes back after a cut.
//!
//! ```text
//!            the node asks after a process; a watched one has ended
//!           +--------------------------------------------------------+
//!           v                                                        |
//!        keeping -- the connection ends --> cut -- LeaseResume --> keeping
//!           |                                |
//!           | the program has ended          | refused, or the node has stopped waiting
//!           v                                x  the lease is lost
//!        the lease is ended; where the connection turns out to be cut then, on another one
//! ```
//!
//! A lease that is in a checkpoint is asked for again until it is restored.

use std::collections::BTreeMap;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sluice_transport::process::ProcessWatch;
use sluice_transport::restored;
use sluice_wire::address::Endpoint;
use sluice_wire::control::{
    Control, LeaseGranted, LeaseResume, ProcessEnded, Processes, ProcessesRequest, Usage, UsageRequest,
};
use sluice_wire::handshake::LeaseToken;

use crate::{Cause, Connection, Failure};

/// Pause after a failed attempt, doubled each time up to the longest.
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long the end of a lease is tried to be reported to its node over a link that is cut.
const END_PATIENCE: Duration = Duration::from_secs(10);
/// How long a node that has the lease in a checkpoint may be away.
const STORED_PATIENCE: Duration = Duration::from_secs(7 * 24 * 3600);

/// A thread that holds a lease's connection.
#[derive(Debug)]
pub struct Keeper {
    /// Its end tells the thread to stop.
    stop: PipeWriter,
    thread: JoinHandle<Result<Keeping, Failure>>,
}

impl Keeper {
    /// Takes over the connection on which the lease was granted.
    pub fn start(connection: Connection, lease: &LeaseGranted) -> io::Result<Keeper> {
        let (reader, stop) = io::pipe()?;
        let patience = Duration::from_millis(u64::from(lease.linger_ms));
        notice_cuts(&connection, patience);
        let keeping =
            Keeping { connection, token: lease.token, patience, watched: BTreeMap::new(), stop: reader };
        let thread = std::thread::Builder::new().name("lease".into()).spawn(move || keeping.run())?;
        Ok(Keeper { stop, thread })
    }

    /// Takes over a lease whose keeper has ended without giving it back, as a process that was
    /// killed has.
    pub fn resume(node: &Endpoint, token: LeaseToken, patience: Duration) -> Result<Keeper, Failure> {
        let mut connection = Connection::open(node)?;
        match connection.ask(LeaseResume { token })? {
            Control::LeaseResumed(_) => {}
            _ => return Err(connection.unexpected()),
        }
        let linger_ms = patience.as_millis() as u32;
        let lease = LeaseGranted { lease: 0, token, devices: Vec::new(), linger_ms, nearby: None };
        let failed = |error| Failure { node: node.place(), cause: Cause::Connection(error) };
        Keeper::start(connection, &lease).map_err(failed)
    }

    /// Ends the lease, and says what it has used; see [`Keeper::end_with`].
    pub fn end(self) -> Result<Usage, Failure> {
        self.end_with(|_| Ok(())).map(|(usage, ())| usage)
    }

    /// As [`Keeper::end`], with what each process of the lease has used.
    pub fn end_listing(self) -> Result<(Usage, Processes), Failure> {
        self.end_with(Keeping::processes)
    }

    /// Ends the lease after a last question, and says what it has used: what it held is free when
    /// this returns. A connection that a device between them has forgotten meanwhile, as address
    /// translators do with idle ones, fails only now; then another one carries the message, since
    /// it would wait for this process otherwise.
    fn end_with<T>(self, ask: impl Fn(&mut Keeping) -> Result<T, Failure>) -> Result<(Usage, T), Failure> {
        drop(self.stop);
        // A panic of the thread continues here.
        let joined = self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let mut keeping = joined?;
        let last = |keeping: &mut Keeping| Ok((keeping.usage()?, ask(keeping)?));
        let answer = match last(&mut keeping) {
            Err(Failure { cause: cause @ Cause::Connection(_), .. }) if !keeping.patience.is_zero() => {
                keeping.come_back(cause)?;
                last(&mut keeping)
            }
            answer => answer,
        };
        keeping.connection.close();
        answer
    }
}

struct Keeping {
    connection: Connection,
    token: LeaseToken,
    /// How long the node waits for this side to come back; none at all where the end of the
    /// connection is the end.
    patience: Duration,
    /// Processes after which the node has asked.
    watched: BTreeMap<u32, ProcessWatch>,
    stop: PipeReader,
}

impl Keeping {
    fn run(mut self) -> Result<Keeping, Failure> {
        loop {
            let ready = self.wait();
            if ready.stop {
                return Ok(self);
            }
            let done = ready.ended.into_iter().try_for_each(|process| self.tell_end(process));
            let done = done.and_then(|()| if ready.heard { self.hear() } else { Ok(()) });
            if let Err(cause) = done {
                self.come_back(cause)?;
            }
        }
    }

    fn wait(&self) -> Ready {
        let poll = |fd: BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let mut polled = vec![poll(self.stop.as_fd()), poll(self.connection.as_fd())];
        polled.extend(self.watched.values().map(|watch| poll(watch.as_fd())));
        let limit = if self.connection.has_unread() { 0 } else { -1 };
        // SAFETY: the pointer and length describe `polled`. After a signal nothing is ready, and
        // the caller waits again.
        unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, limit) };
        let ended = self.watched.keys().zip(&polled[2..]).filter(|(_, polled)| polled.revents != 0);
        Ready {
            stop: polled[0].revents != 0,
            heard: polled[1].revents != 0 || self.connection.has_unread(),
            ended: ended.map(|(&process, _)| process).collect(),
        }
    }

    /// Takes what has come. Nothing but questions after processes is expected.
    fn hear(&mut self) -> Result<(), Cause> {
        let mut messages = self.connection.receive()?;
        while self.connection.has_unread() {
            messages.extend(self.connection.receive()?);
        }
        for message in messages {
            if let Control::ProcessWatch(watch) = message {
                match ProcessWatch::new(watch.process) {
                    Ok(Some(watched)) => _ = self.watched.insert(watch.process, watched),
                    Ok(None) => self.connection.send(ProcessEnded { process: watch.process })?,
                    // Cannot be known: the node waits for the process itself.
                    Err(_) => {}
                }
            }
        }
        Ok(())
    }

    fn tell_end(&mut self, process: u32) -> Result<(), Cause> {
        self.connection.send(ProcessEnded { process })?;
        self.watched.remove(&process);
        Ok(())
    }

    fn usage(&mut self) -> Result<Usage, Failure> {
        match self.connection.ask(UsageRequest {})? {
            Control::Usage(usage) => Ok(usage),
            _ => Err(self.connection.unexpected()),
        }
    }

    fn processes(&mut self) -> Result<Processes, Failure> {
        match self.connection.ask(ProcessesRequest {})? {
            Control::Processes(processes) => Ok(processes),
            _ => Err(self.connection.unexpected()),
        }
    }

    /// Connects again and takes the lease over. Fails when the node refuses or has waited long
    /// enough; once the program has ended, also when nothing listens there, and soon.
    fn come_back(&mut self, cause: Cause) -> Result<(), Failure> {
        self.connection.forget_lease();
        let mut failure = self.connection.failure(cause);
        let mut deadline = Instant::now() + self.patience;
        let (mut pause, mut is_stopped, mut is_stored) = (PAUSE, false, false);
        while Instant::now() < deadline {
            match self.attempt_anywhere() {
                Ok(Whereabouts::Here(connection)) => {
                    self.connection = *connection;
                    return Ok(());
                }
                // Its program waits as well.
                Ok(Whereabouts::Stored) if is_stopped => return Err(failure),
                Ok(Whereabouts::Stored) => {
                    deadline = Instant::now() + self.patience.max(STORED_PATIENCE);
                    (pause, is_stored) = (PAUSE_MAX / 2, true);
                }
                // Its daemon was started anew meanwhile, and knows nothing of it until the restore.
                Err(Failure { cause: Cause::Refused(_), .. }) if is_stored && !is_stopped => {
                    pause = PAUSE_MAX / 2;
                }
                Err(refused @ Failure { cause: Cause::Refused(_) | Cause::Protocol(_), .. }) => {
                    return Err(refused);
                }
                Err(other) if other.is_another_node() => return Err(other),
                Err(gone @ Failure { cause: Cause::NobodyListens, .. }) if is_stopped => return Err(gone),
                Err(again) => failure = again,
            }
            if is_stopped {
                std::thread::sleep(pause);
            } else if self.is_stopped_within(pause) {
                is_stopped = true;
                deadline = deadline.min(Instant::now() + END_PATIENCE);
            }
            pause = (2 * pause).min(PAUSE_MAX);
        }
        Err(failure)
    }

    /// Asks the node, and where that does not have the lease, the one to which a note says that the
    /// lease was restored.
    fn attempt_anywhere(&self) -> Result<Whereabouts, Failure> {
        let node = self.connection.node();
        let first = self.attempt(node);
        if matches!(&first, Ok(Whereabouts::Here(_))) {
            return first;
        }
        match restored::find(&self.token.0, node).map(|restored| restored.node) {
            Some(other) if other != *node => self.attempt(&other).or(first),
            _ => first,
        }
    }

    fn attempt(&self, node: &Endpoint) -> Result<Whereabouts, Failure> {
        let mut connection = Connection::open(node)?;
        match connection.ask(LeaseResume { token: self.token })? {
            Control::LeaseResumed(_) => {
                notice_cuts(&connection, self.patience);
                Ok(Whereabouts::Here(Box::new(connection)))
            }
            Control::LeaseStored(_) => Ok(Whereabouts::Stored),
            _ => Err(connection.unexpected()),
        }
    }

    fn is_stopped_within(&self, limit: Duration) -> bool {
        let mut polled = libc::pollfd { fd: self.stop.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd, and the count says one.
        unsafe { libc::poll(&mut polled, 1, limit.as_millis() as i32) > 0 }
    }
}

/// What has become of the lease.
enum Whereabouts {
    /// It is held on this connection.
    Here(Box<Connection>),
    /// It is in a checkpoint.
    Stored,
}

/// Has a connection that may be followed by another one fail also while the node owes it
/// acknowledgements.
fn notice_cuts(connection: &Connection, patience: Duration) {
    if !patience.is_zero() {
        // Without it a cut in such a moment is noticed late, as the kernel sees fit.
        let _ = sluice_transport::limit_unacknowledged(connection.as_fd());
    }
}

/// What there is to do.
struct Ready {
    stop: bool,
    heard: bool,
    /// Watched processes that have ended.
    ended: Vec<u32>,
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use sluice_wire::FrameDecoder;
    use sluice_wire::control::LeaseResumed;
    use sluice_wire::handshake::{HELLO_SIZE_MAX, Hello, Welcome};

    use super::*;

    const TOKEN: LeaseToken = LeaseToken([7; 32]);
    const USAGE: Usage =
        Usage { age_ms: 1, sessions: 2, kernels: 3, bytes_in: 4, bytes_out: 5, busy_us: 6, memory_peak: 7 };

    /// A node's end of a control connection.
    struct Served {
        stream: TcpStream,
        decoder: FrameDecoder,
    }

    impl Served {
        fn accept(listener: &TcpListener) -> Served {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut bytes, mut have) = ([0; HELLO_SIZE_MAX], 0);
            while Hello::from_bytes(&bytes[..have]).unwrap().is_none() {
                have += stream.read(&mut bytes[have..=have]).unwrap();
            }
            stream.write_all(&Welcome::to_bytes()).unwrap();
            Served { stream, decoder: FrameDecoder::new() }
        }

        /// The next message; `None` at the end.
        fn message(&mut self) -> Option<Control> {
            loop {
                if let Some(frame) = self.decoder.next_frame().unwrap() {
                    return Some(Control::decode(frame.header.op, frame.payload).unwrap());
                }
                let count = self.stream.read(self.decoder.space(4096)).unwrap();
                self.decoder.received(count);
                if count == 0 {
                    return None;
                }
            }
        }

        fn say(&mut self, message: impl Into<Control>) {
            let mut bytes = Vec::new();
            message.into().frame(&mut bytes).unwrap();
            self.stream.write_all(&bytes).unwrap();
        }

        /// As an address translator does that has forgotten the connection.
        fn reset(self) {
            let linger = libc::linger { l_onoff: 1, l_linger: 0 };
            // SAFETY: the option's value is a structure of that size.
            let set = unsafe {
                libc::setsockopt(
                    self.stream.as_raw_fd(),
                    libc::SOL_SOCKET,
                    libc::SO_LINGER,
                    (&raw const linger).cast(),
                    size_of::<libc::linger>() as u32,
                )
            };
            assert_eq!(set, 0);
        }
    }

    /// The end of a keeper whose connections are served like that.
    fn end_with(serve: impl FnOnce(&TcpListener) + Send) -> Result<Usage, Failure> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let node = Endpoint::Tcp(listener.local_addr().unwrap().to_string());
        std::thread::scope(|scope| {
            scope.spawn(move || serve(&listener));
            let lease =
                LeaseGranted { lease: 1, token: TOKEN, devices: Vec::new(), linger_ms: 60_000, nearby: None };
            Keeper::start(Connection::open(&node).unwrap(), &lease).unwrap().end()
        })
    }

    #[test]
    fn a_lease_ends_on_its_connection() {
        let usage = end_with(|listener| {
            let mut served = Served::accept(listener);
            assert!(matches!(served.message(), Some(Control::UsageRequest(_))));
            served.say(USAGE);
            assert!(served.message().is_none(), "the end of a connection on which no lease was granted");
        });
        assert_eq!(usage.unwrap(), USAGE);
    }

    #[test]
    fn the_end_of_a_lease_finds_its_node_where_the_connection_was_forgotten() {
        let usage = end_with(|listener| {
            let mut forgotten = Served::accept(listener);
            assert!(matches!(forgotten.message(), Some(Control::UsageRequest(_))));
            forgotten.reset();
            let mut served = Served::accept(listener);
            let Some(Control::LeaseResume(resume)) = served.message() else {
                panic!("no lease is taken over")
            };
            assert_eq!(resume.token, TOKEN);
            served.say(LeaseResumed {});
            assert!(matches!(served.message(), Some(Control::UsageRequest(_))));
            served.say(USAGE);
            assert!(matches!(served.message(), Some(Control::LeaseEnd(_))));
        });
        assert_eq!(usage.unwrap(), USAGE);
    }

    #[test]
    fn a_node_that_is_gone_is_not_waited_for_at_the_end() {
        let ended = end_with(|listener| Served::accept(listener).reset());
        assert!(matches!(ended.unwrap_err().cause, Cause::NobodyListens | Cause::Connection(_)));
    }
}

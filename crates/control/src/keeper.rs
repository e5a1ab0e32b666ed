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
//!        the connection is given back
//! ```

use std::collections::BTreeMap;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sluice_transport::process::ProcessWatch;
use sluice_wire::control::{Control, LeaseGranted, LeaseResume, ProcessEnded};
use sluice_wire::handshake::LeaseToken;

use crate::{Cause, Connection, Failure};

/// Pause after a failed attempt, doubled each time up to the longest.
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// A thread that holds a lease's connection.
#[derive(Debug)]
pub struct Keeper {
    /// Its end tells the thread to stop.
    stop: PipeWriter,
    thread: JoinHandle<Result<Connection, Failure>>,
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

    /// Gives the connection back, or says why there is none any more.
    pub fn stop(self) -> Result<Connection, Failure> {
        drop(self.stop);
        // A panic of the thread goes on here.
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

struct Keeping {
    connection: Connection,
    token: LeaseToken,
    /// How long the node waits for this side to come back; none at all where the end of the connection is the end.
    patience: Duration,
    /// Processes after which the node has asked.
    watched: BTreeMap<u32, ProcessWatch>,
    stop: PipeReader,
}

impl Keeping {
    fn run(mut self) -> Result<Connection, Failure> {
        loop {
            let ready = self.wait();
            if ready.stop {
                return Ok(self.connection);
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
        // SAFETY: the pointer and length describe `polled`. After a signal nothing is ready, and the caller waits again.
        unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, -1) };
        let ended = self.watched.keys().zip(&polled[2..]).filter(|(_, polled)| polled.revents != 0);
        Ready {
            stop: polled[0].revents != 0,
            heard: polled[1].revents != 0,
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

    /// Connects again and takes the lease over. Fails when the node refuses, has waited long enough, or the program has ended.
    fn come_back(&mut self, cause: Cause) -> Result<(), Failure> {
        self.connection.forget_lease();
        let mut failure = self.connection.failure(cause);
        let deadline = Instant::now() + self.patience;
        let mut pause = PAUSE;
        while Instant::now() < deadline {
            match self.attempt() {
                Ok(connection) => {
                    self.connection = connection;
                    return Ok(());
                }
                Err(refused @ Failure { cause: Cause::Refused(_) | Cause::Protocol(_), .. }) => {
                    return Err(refused);
                }
                Err(other) if other.is_another_node() => return Err(other),
                Err(again) => failure = again,
            }
            if self.is_stopped_within(pause) {
                break;
            }
            pause = (2 * pause).min(PAUSE_MAX);
        }
        Err(failure)
    }

    fn attempt(&self) -> Result<Connection, Failure> {
        let mut connection = Connection::open(self.connection.node())?;
        match connection.ask(LeaseResume { token: self.token })? {
            Control::LeaseResumed(_) => {
                notice_cuts(&connection, self.patience);
                Ok(connection)
            }
            _ => Err(connection.unexpected()),
        }
    }

    fn is_stopped_within(&self, limit: Duration) -> bool {
        let mut polled = libc::pollfd { fd: self.stop.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd, and the count says one.
        unsafe { libc::poll(&mut polled, 1, limit.as_millis() as i32) > 0 }
    }
}

/// Has a connection that may be followed by another one fail also while the node owes it acknowledgements.
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

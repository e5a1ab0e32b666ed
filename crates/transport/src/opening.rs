//! Whether something that could not be opened is asked for again: after a cut it is, and where
//! there never was a node it is not.
//!
//! ```text
//!   first attempt -- no listener, no such host, no answer, another certificate --> final
//!        |    \----- the connection ends, also in a handshake of TLS --> tried some times:
//!        v           what listens may not be a node
//!   a node has answered -- whatever happens to the connection --> tried for as long as nodes wait
//!                                                                 for their clients
//! ```
//!
//! A client with a lease knows that there is a node: a listener there is tried as if it had
//! answered, and silence counts as a disconnect.
//!
//! All attempts of one opening have the same unguessable number ([`Once`]), by which the node
//! treats them as one.

use std::io;
use std::time::{Duration, Instant};

use sluice_wire::handshake::{Once, OpeningNonce};

/// Pause after a failed attempt, doubled each time up to the longest.
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long it is tried where a node has answered: nodes wait as long for their clients by default.
/// The last attempt may take its own time on top.
pub const PATIENCE: Duration = Duration::from_secs(90);
/// How often where none has: some two seconds.
const UNHEARD_MAX: u32 = 8;

/// The attempts to open one thing.
#[derive(Debug)]
pub struct Attempts {
    once: Once,
    /// A node has answered.
    heard: bool,
    /// A node is known to be there.
    is_known: bool,
    pause: Duration,
    /// The user was informed that it may take long.
    told: bool,
    patience: Duration,
    /// From the first cut on.
    deadline: Option<Instant>,
}

/// What becomes of an attempt that has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The next comes after this pause.
    Again(Duration),
    /// Try again, and inform the user that it may take long.
    AgainFor {
        pause: Duration,
        patience: Duration,
    },
    Final,
}

impl Attempts {
    /// For as long as nodes wait. Fails only where the system has no random numbers.
    pub fn new() -> io::Result<Attempts> {
        Attempts::for_at_most(PATIENCE)
    }

    /// Sets a shorter limit for callers that do not wait as long.
    pub fn for_at_most(patience: Duration) -> io::Result<Attempts> {
        let once = Once { nonce: OpeningNonce(random()?), attempt: 0 };
        Ok(Attempts {
            once,
            heard: false,
            is_known: false,
            pause: PAUSE,
            told: false,
            patience,
            deadline: None,
        })
    }

    /// What listens there is a node, by what the caller has of it.
    pub fn at_known_node(self) -> Attempts {
        Attempts { is_known: true, ..self }
    }

    /// What the current attempt says.
    pub fn once(&self) -> Once {
        self.once
    }

    /// What answers there is a node.
    pub fn heard(&mut self) {
        self.heard = true;
    }

    /// The connection of the current attempt could not be made, or has failed.
    pub fn failed(&mut self, error: &io::Error) -> Verdict {
        self.failed_at(error, Instant::now())
    }

    fn failed_at(&mut self, error: &io::Error, now: Instant) -> Verdict {
        let is_node = self.heard || self.is_known;
        let is_silence = self.is_known && is_silence(error);
        let listened = self.heard || self.deadline.is_some() || is_end(error) || is_silence;
        if !listened || (!is_node && self.once.attempt + 1 >= UNHEARD_MAX) {
            return Verdict::Final;
        }
        let deadline = *self.deadline.get_or_insert(now + self.patience);
        let pause = self.pause;
        if now + pause >= deadline {
            return Verdict::Final;
        }
        self.pause = (2 * pause).min(PAUSE_MAX);
        self.once.attempt += 1;
        // What is made good at once is not worth a word.
        if is_node && self.once.attempt >= 2 && !std::mem::replace(&mut self.told, true) {
            return Verdict::AgainFor { pause, patience: self.patience };
        }
        Verdict::Again(pause)
    }
}

/// Whether nothing has come from there, which a network that is away for a moment is a reason for.
fn is_silence(error: &io::Error) -> bool {
    use io::ErrorKind::{HostUnreachable, NetworkDown, NetworkUnreachable, TimedOut};
    matches!(error.kind(), TimedOut | HostUnreachable | NetworkUnreachable | NetworkDown)
}

/// Whether a connection that there was has ended.
pub(crate) fn is_end(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), ConnectionReset | ConnectionAborted | BrokenPipe | UnexpectedEof)
}

/// Returns 32 unguessable bytes.
fn random() -> io::Result<[u8; 32]> {
    let mut bytes = [0_u8; 32];
    loop {
        // SAFETY: the pointer and length describe `bytes`. The call itself, since older C libraries
        // have no name for it.
        let got = unsafe { libc::syscall(libc::SYS_getrandom, bytes.as_mut_ptr(), bytes.len(), 0) };
        // Requests of up to 256 bytes are never cut short once the pool is ready.
        if got == bytes.len() as i64 {
            return Ok(bytes);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use io::ErrorKind::{ConnectionRefused, ConnectionReset, TimedOut, UnexpectedEof};

    use super::*;

    #[test]
    fn where_there_never_was_anybody_the_first_failure_is_final() {
        for kind in [ConnectionRefused, TimedOut, io::ErrorKind::NotFound] {
            assert_eq!(Attempts::new().unwrap().failed(&kind.into()), Verdict::Final, "{kind}");
        }
    }

    #[test]
    fn what_hangs_up_and_never_says_that_it_is_a_node_is_tried_some_times() {
        let mut attempts = Attempts::new().unwrap();
        let mut kinds = [UnexpectedEof, ConnectionRefused, ConnectionReset].into_iter().cycle();
        let mut tried = 1;
        while let Verdict::Again(_) = attempts.failed(&kinds.next().unwrap().into()) {
            tried += 1;
        }
        assert_eq!(tried, UNHEARD_MAX);
    }

    #[test]
    fn a_node_that_has_answered_is_tried_until_it_would_not_wait_any_more() {
        let (mut attempts, begin) = (Attempts::new().unwrap(), Instant::now());
        let (nonce, mut now, mut said) = (attempts.once().nonce, begin, 0);
        attempts.heard();
        loop {
            match attempts.failed_at(&ConnectionRefused.into(), now) {
                Verdict::Again(pause) => now += pause,
                Verdict::AgainFor { pause, patience } => {
                    assert_eq!((attempts.once().attempt, patience), (2, PATIENCE));
                    said += 1;
                    now += pause;
                }
                Verdict::Final => break,
            }
        }
        assert!(now - begin >= PATIENCE - PAUSE_MAX && now - begin < PATIENCE);
        assert_eq!((said, attempts.once().nonce), (1, nonce));
        assert!(attempts.once().attempt > 80, "each has a number of its own");
    }

    #[test]
    fn a_known_node_is_waited_for_where_somebody_listens() {
        let known = || Attempts::new().unwrap().at_known_node();
        for kind in [ConnectionRefused, io::ErrorKind::NotFound, io::ErrorKind::InvalidData] {
            assert_eq!(known().failed(&kind.into()), Verdict::Final, "{kind}");
        }
        for kind in [TimedOut, ConnectionReset, UnexpectedEof, io::ErrorKind::NetworkUnreachable] {
            let mut attempts = known();
            let said: Vec<Verdict> = (0..2 * UNHEARD_MAX).map(|_| attempts.failed(&kind.into())).collect();
            assert!(!said.contains(&Verdict::Final), "{kind}: {said:?}");
            assert!(matches!(said[1], Verdict::AgainFor { .. }), "{kind}: {said:?}");
        }
    }

    #[test]
    fn no_two_openings_have_the_same_number() {
        assert_ne!(Attempts::new().unwrap().once().nonce, Attempts::new().unwrap().once().nonce);
    }
}

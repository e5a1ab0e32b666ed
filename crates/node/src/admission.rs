//! Places for connections: those of leases and sessions, and, apart from them, those of peers that
//! have said something and not proved anything yet. (Those that have said nothing have other
//! places, [`silent`](crate::silent).)
//!
//! ```text
//!   silent --> unproven -- a token, a lease, a session --> proven --> ended
//!                   |                                          ^ refused when no place is free
//!                   +-- displaced, too slow, or ended
//! ```

use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sluice_transport::admission::{Entry, Source, Unproven};

/// Connections that have not proved anything, at a time. Each has a thread.
const UNPROVEN_MAX: usize = 3072;
/// A displaced connection's thread ends within this time, unless the machine is far too busy.
const DISPLACED_ENDS: Duration = Duration::from_millis(500);

/// The connections of a node.
#[derive(Debug)]
pub(crate) struct Places {
    state: Mutex<State>,
    left: Condvar,
    proven_max: usize,
    unproven_max: usize,
}

#[derive(Debug)]
struct State {
    unproven: Unproven<OwnedFd>,
    proven: usize,
    /// Threads of connections that have not proved anything, displaced ones included.
    threads: usize,
}

/// Why a connection that has proved itself is not kept; the text goes to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this node serves {0} leases and sessions at a time, and has as many; wait until a program ends")]
pub(crate) struct Full(usize);

/// The place of one connection, which is free when this is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    places: Arc<Places>,
    is: Is,
}

#[derive(Debug)]
enum Is {
    Unproven(Entry),
    Proven,
}

impl Places {
    /// The places for `proven_max` leases and sessions at a time.
    pub(crate) fn new(proven_max: usize) -> Arc<Places> {
        let unproven_max = within_descriptors(UNPROVEN_MAX, 8);
        let state = State { unproven: Unproven::new(unproven_max), proven: 0, threads: 0 };
        Arc::new(Places { state: Mutex::new(state), left: Condvar::new(), proven_max, unproven_max })
    }

    /// Enters a connection. `ends` is its socket, which is shut down if the connection has to make
    /// way for another one. `None` where too many of those have not ended yet.
    pub(crate) fn enter(self: &Arc<Places>, source: Source, ends: OwnedFd) -> Option<ConnectionSlot> {
        let mut state = self.lock();
        let deadline = Instant::now() + DISPLACED_ENDS;
        while state.threads >= 2 * self.unproven_max {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            state = self.left.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let (entry, displaced) = state.unproven.enter(source, ends);
        state.threads += 1;
        drop(state);
        if let Some(socket) = displaced {
            // Its thread finds the end of the connection.
            let _ = TcpStream::from(socket).shutdown(Shutdown::Both);
        }
        Some(ConnectionSlot { places: Arc::clone(self), is: Is::Unproven(entry) })
    }

    /// Enters a connection that has proved itself to the program before this one.
    pub(crate) fn enter_proven(self: &Arc<Places>) -> ConnectionSlot {
        self.lock().proven += 1;
        ConnectionSlot { places: Arc::clone(self), is: Is::Proven }
    }

    /// Connections that have a thread at the moment, proven or not.
    pub(crate) fn connections(&self) -> usize {
        let state = self.lock();
        state.proven + state.threads
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A number of connections, or fewer where this process may not open enough files: at most one for
/// each `descriptors_each` of these.
pub(crate) fn within_descriptors(connections: usize, descriptors_each: u64) -> usize {
    let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
    // SAFETY: the call writes one structure, or leaves it as it is.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    connections.min(usize::try_from(limit.rlim_cur / descriptors_each).unwrap_or(usize::MAX))
}

impl ConnectionSlot {
    /// The peer has shown a token, or has a lease or a session: from now on nothing displaces the
    /// connection.
    pub(crate) fn prove(&mut self) -> Result<(), Full> {
        let Is::Unproven(entry) = self.is else { return Ok(()) };
        let mut state = self.places.lock();
        if state.proven >= self.places.proven_max {
            return Err(Full(self.places.proven_max));
        }
        state.proven += 1;
        state.threads -= 1;
        // A connection that was displaced in this moment ends all the same.
        let _ = state.unproven.leave(entry);
        drop(state);
        self.is = Is::Proven;
        self.places.left.notify_one();
        Ok(())
    }

    pub(crate) fn is_proven(&self) -> bool {
        matches!(self.is, Is::Proven)
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut state = self.places.lock();
        match self.is {
            Is::Unproven(entry) => {
                let _ = state.unproven.leave(entry);
                state.threads -= 1;
            }
            Is::Proven => state.proven -= 1,
        }
        drop(state);
        self.places.left.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{IpAddr, TcpListener};

    use super::*;

    fn connected(listener: &TcpListener) -> (TcpStream, TcpStream) {
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    fn enter(places: &Arc<Places>, socket: &TcpStream, from: u8) -> ConnectionSlot {
        let source = Source::Address(IpAddr::from([10, 0, 0, from]));
        places.enter(source, socket.try_clone().unwrap().into()).unwrap()
    }

    #[test]
    fn a_flood_displaces_itself_and_nobody_who_has_proved_anything() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let places = Places::new(1);
        let ((_first, first), (mut second, socket)) = (connected(&listener), connected(&listener));
        let mut holder = enter(&places, &first, 1);
        holder.prove().unwrap();
        let oldest = enter(&places, &socket, 1);
        let most = places.unproven_max;
        let mut flood: Vec<ConnectionSlot> = (1..most).map(|_| enter(&places, &first, 1)).collect();
        assert_eq!(places.lock().unproven.len(), most);
        flood.push(enter(&places, &first, 1));
        assert_eq!(second.read(&mut [0]).unwrap(), 0, "the oldest was shut down");
        let counts = || {
            let state = places.lock();
            (state.unproven.len(), state.proven)
        };
        assert_eq!(counts(), (most, 1));
        assert_eq!(flood[0].prove(), Err(Full(1)));
        drop(holder);
        flood[0].prove().unwrap();
        drop((flood, oldest));
        let state = places.lock();
        assert_eq!((state.unproven.len(), state.threads, state.proven), (0, 0, 0));
    }
}

//! A session's connections to workers of other nodes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sluice_cuda::CUresult;
use sluice_transport::Stream;

use super::line::Asker;

/// Most connections of a session, each way.
pub(super) const PEERS_MAX: usize = 64;
/// The daemon has this long to connect; it gives up sooner.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Connections to workers of other nodes, by the client's numbers.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    pub(super) peers: Mutex<HashMap<u64, Peer>>,
    pub(super) changed: Condvar,
    /// Connections from others that are being served.
    pub(super) served: AtomicUsize,
}

#[derive(Debug)]
pub(super) enum Peer {
    Asked,
    There(Arc<Mutex<Asker>>),
    Refused(String),
}

impl Peers {
    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<u64, Peer>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there are connections, in either direction.
    pub(crate) fn has_any(&self) -> bool {
        !self.lock().is_empty() || self.served.load(Ordering::Acquire) > 0
    }

    /// What has become of a question.
    pub(crate) fn connected(&self, number: u64, outcome: Result<Stream, String>) {
        let peer = match outcome {
            Ok(stream) => Peer::There(Arc::new(Mutex::new(Asker::new(stream)))),
            Err(reason) => Peer::Refused(reason),
        };
        // Otherwise the question has been given up.
        if let Some(asked) = self.lock().get_mut(&number)
            && matches!(asked, Peer::Asked)
        {
            *asked = peer;
        }
        self.changed.notify_all();
    }

    pub(super) fn expect(&self, number: u64) -> Result<(), CUresult> {
        let mut peers = self.lock();
        if peers.contains_key(&number) {
            return Err(CUresult::INVALID_VALUE);
        }
        if peers.len() >= PEERS_MAX {
            return Err(CUresult::OUT_OF_MEMORY);
        }
        peers.insert(number, Peer::Asked);
        Ok(())
    }

    /// Waits for the answer to a question: why not, or nothing. Without a connection its number is
    /// free again.
    pub(super) fn outcome(&self, number: u64) -> String {
        let deadline = Instant::now() + PATIENCE;
        let mut peers = self.lock();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let refusal = match peers.get(&number) {
                Some(Peer::Asked) if left.is_zero() => "its own node does not answer".to_owned(),
                Some(Peer::Asked) => {
                    peers = self.changed.wait_timeout(peers, left).unwrap_or_else(PoisonError::into_inner).0;
                    continue;
                }
                Some(Peer::Refused(reason)) => reason.clone(),
                _ => return String::new(),
            };
            peers.remove(&number);
            return refusal;
        }
    }

    pub(super) fn asker(&self, number: u64) -> Result<Arc<Mutex<Asker>>, CUresult> {
        match self.lock().get(&number) {
            Some(Peer::There(asker)) => Ok(Arc::clone(asker)),
            _ => Err(CUresult::INVALID_HANDLE),
        }
    }
}

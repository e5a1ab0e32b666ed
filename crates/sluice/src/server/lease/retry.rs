//! Requests to a server that are made again when it does not answer.

use std::io::IsTerminal;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use sluice_api::client::{Client, Failure};
use sluice_api::lease::{Lease, LeaseId};

use crate::child::EarlyEnd;

/// The first pause before a server that is away, or was asked too often, is asked again.
const RETRY_FIRST: Duration = Duration::from_secs(1);

/// The longest such pause. A server drops a waiting lease without a request for 20 s.
const RETRY_LONGEST: Duration = Duration::from_secs(8);

/// A request is tried this often before its failure is the user's.
const TRIES: u32 = 5;

/// The pauses between requests to a server that is away: each is twice as long as the one before,
/// up to a limit.
pub(super) struct Backoff(Duration);

impl Backoff {
    pub(super) fn new() -> Backoff {
        Backoff(RETRY_FIRST)
    }

    pub(super) fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(RETRY_LONGEST);
        pause
    }

    pub(super) fn wait(&mut self) {
        sleep(self.next());
    }
}

/// Asks again while the server is away, or was asked too often: for what comes to the same, asked
/// twice.
pub(super) fn insist<T>(mut ask: impl FnMut() -> Result<T, Failure>) -> Result<T, Failure> {
    let mut tries = 1;
    let mut backoff = Backoff::new();
    loop {
        match ask() {
            Err(failure) if failure.is_temporary() && tries < TRIES => {
                tries += 1;
                backoff.wait();
            }
            answer => return answer,
        }
    }
}

/// Ends the lease, if there is one, and this process, when that is asked to end.
pub(super) fn end_early(lease: &Arc<Mutex<Option<(Client, LeaseId)>>>) -> Result<EarlyEnd> {
    let lease = Arc::clone(lease);
    let heed = EarlyEnd::heed(move |signal| {
        if let Some((client, id)) = &*lease.lock().unwrap_or_else(PoisonError::into_inner) {
            // If the server cannot be notified, it takes a program that does not ask any more for
            // gone.
            let _ = client.delete::<Lease>(&format!("/leases/{id}"));
        }
        if std::io::stderr().is_terminal() {
            eprintln!();
        }
        std::process::exit(128 + signal)
    });
    heed.context("signals")
}

/// By which the server knows a repeated request.
pub(super) fn random_key() -> Result<String> {
    let mut bytes = [0; 16];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

//! A lease from a server: asked for, waited for, claimed on its node, watched, given back.

mod progress;
mod retry;
mod watcher;

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use sluice_api::client::{Client, Failure};
use sluice_api::lease::{Lease, LeaseId, LeaseState, NewLease, Place, Refused};
use sluice_control::open_lease;
use sluice_wire::address::Endpoint;
use sluice_wire::control::{Control, LeaseClaim};

use crate::child::EarlyEnd;
use crate::cli::RunArgs;
use crate::output::with_causes;
use crate::run::say_cut;
use crate::tasks::Event;

pub(crate) use watcher::{Claim, Claimed, Described, grace_left};

use progress::Progress;
use retry::{Backoff, end_early, insist, random_key};
use watcher::{Watcher, budget_line, watch};

/// How long the server may hold an answer back while nothing changes.
const WAIT_MS: u64 = 5_000;
/// A lease that this many nodes have refused is given up.
const REFUSALS_MAX: u32 = 5;

/// How much is printed about a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Talk {
    Quiet,
    Brief,
    /// Also prints all that the scheduler says about why a lease waits.
    Verbose,
}

impl Talk {
    pub(crate) fn of(arguments: &RunArgs) -> Talk {
        match (arguments.quiet, arguments.verbose) {
            (true, _) => Talk::Quiet,
            (false, true) => Talk::Verbose,
            (false, false) => Talk::Brief,
        }
    }
}

/// A lease that the server keeps for this process; dropped, it ends.
pub(crate) struct ServerLease {
    /// With the key of the lease.
    client: Client,
    id: LeaseId,
    /// As it was seen last.
    seen: Lease,
    talk: Talk,
    /// Whether its program has ended by itself.
    finished: bool,
    /// While there is no program that signals are passed on to.
    early_end: Option<EarlyEnd>,
}

impl ServerLease {
    /// Asks for it; it is in the queue when this returns.
    pub(crate) fn ask(client: Client, ask: &NewLease, talk: Talk) -> Result<ServerLease> {
        let key = random_key()?;
        let known = Arc::new(Mutex::new(None));
        let early_end = end_early(&known)?;
        // Who asks for the end meanwhile has to know first whether there is a lease.
        let mut asked = known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut lease: Lease = insist(|| client.post_once("/leases", ask, &key))?;
        // The token may end before the lease does.
        let client = lease.key.take().map_or(client.clone(), |key| client.with_token(&key));
        *asked = Some((client.clone(), lease.id));
        drop(asked);
        if let Some(line) = budget_line(&lease).filter(|_| talk != Talk::Quiet) {
            eprintln!("sluice: {line}");
        }
        Ok(ServerLease {
            client,
            id: lease.id,
            seen: lease,
            talk,
            finished: false,
            early_end: Some(early_end),
        })
    }

    /// Takes up a lease that was asked for elsewhere with the same token. It ends with this
    /// process, as one that this asked for does.
    pub(crate) fn take_up(client: Client, id: LeaseId, talk: Talk) -> Result<ServerLease> {
        let seen: Lease = insist(|| client.get(&format!("/leases/{id}")))?;
        if matches!(seen.state, LeaseState::Running | LeaseState::Preempting) {
            bail!("lease {id} has a program already");
        }
        let is_ready = seen.state == LeaseState::Granted;
        if is_ready && seen.places.iter().all(|place| place.grant.is_none()) {
            bail!("lease {id} was asked for with another token, and only that one can claim it");
        }
        let early_end = end_early(&Arc::new(Mutex::new(Some((client.clone(), id)))))?;
        Ok(ServerLease { client, id, seen, talk, finished: false, early_end: Some(early_end) })
    }

    /// Takes over a lease whose program has run before, on the connection of an earlier process.
    pub(crate) fn take_over(client: Client, id: LeaseId) -> Result<ServerLease> {
        let seen: Lease = insist(|| client.get(&format!("/leases/{id}")))?;
        Ok(ServerLease { client, id, seen, talk: Talk::Brief, finished: false, early_end: None })
    }

    pub(crate) fn id(&self) -> LeaseId {
        self.id
    }

    pub(crate) fn attempt(&self) -> u32 {
        self.seen.attempt
    }

    pub(crate) fn name(&self) -> &str {
        &self.seen.name
    }

    /// Notes that its program has ended by itself, which becomes the reason for the lease's end.
    pub(crate) fn finish(&mut self) {
        self.finished = true;
    }

    pub(crate) fn described(&self) -> Described {
        let Lease { share_ppm, limit_ppm, .. } = self.seen;
        Described { name: format!("lease {} of {}", self.id, self.seen.tenant), share_ppm, limit_ppm }
    }

    /// Waits until its nodes have its tasks, which come in their order.
    pub(crate) fn claim(&mut self, kernel_timeout_ms: u32, name: &str) -> Result<Vec<Claimed>> {
        let mut refusals = 0;
        loop {
            self.wait_for_place()?;
            let claims = self.seen.places.iter().map(|place| claim_on_node(place, kernel_timeout_ms, name));
            let refusal = match claims.collect::<Result<Vec<Claimed>>>() {
                Ok(claimed) => {
                    // From here on its node knows when this process ends.
                    self.early_end = None;
                    return Ok(claimed);
                }
                Err(error) => with_causes(&error),
            };
            refusals += 1;
            if refusals == REFUSALS_MAX {
                bail!("{refusal} (after {refusals} tries)");
            }
            let refused = Refused { attempt: self.seen.attempt, task: None, reason: refusal };
            // A refusal counts once for each attempt, however often it is reported to the server.
            self.seen = insist(|| self.client.post(&format!("/leases/{}/refusals", self.id), &refused))?;
        }
    }

    fn wait_for_place(&mut self) -> Result<()> {
        let mut progress = Progress::new(self.talk);
        let mut away = None;
        loop {
            match self.seen.state {
                LeaseState::Granted if self.seen.places.iter().all(|place| place.grant.is_some()) => {
                    return Ok(());
                }
                LeaseState::Ended => {
                    bail!(
                        "lease {} ended: {}",
                        self.id,
                        self.seen.reason.as_deref().unwrap_or("no reason given")
                    )
                }
                // What was seen last is old while the server is away.
                _ if away.is_some() => {}
                // The node has not said yet that an earlier attempt is over, or this is one.
                _ => progress.show(&self.seen),
            }
            match self.next() {
                Ok(lease) => {
                    self.seen = lease;
                    away = None;
                }
                Err(failure) if failure.is_temporary() => {
                    if away.is_none() {
                        progress.say(&format!("{failure}; still waiting"));
                    }
                    away.get_or_insert_with(Backoff::new).wait();
                }
                Err(failure) => return Err(failure.into()),
            }
        }
    }

    /// The lease once it differs from what was seen, or after a while.
    fn next(&self) -> Result<Lease, Failure> {
        watch(&self.client, self.id, self.seen.revision)
    }

    /// Reports changes of the lease until it is over, or until the receiver is gone.
    pub(crate) fn watch(&self, events: Sender<Event>) {
        let (client, id, attempt) = (self.client.clone(), self.id, self.seen.attempt);
        let (watcher, revision) = (Watcher { client, id, attempt, events }, self.seen.revision);
        // Without the thread the program is ended all the same, only untold.
        let _ = std::thread::Builder::new().name("watch".into()).spawn(move || watcher.run(revision));
    }

    /// For further tasks of this attempt.
    pub(crate) fn claims(&self, kernel_timeout_ms: u32, name: &str) -> Claim {
        Claim {
            client: self.client.clone(),
            id: self.id,
            attempt: self.seen.attempt,
            described: self.described(),
            kernel_timeout_ms,
            name: name.to_owned(),
        }
    }

    /// Waits until the server has the lease back in its queue: its node has said that the earlier
    /// attempt is over.
    pub(crate) fn wait_requeued(&mut self) -> Result<()> {
        self.early_end = Some(end_early(&Arc::new(Mutex::new(Some((self.client.clone(), self.id)))))?);
        let attempt = self.seen.attempt;
        let mut backoff = Backoff::new();
        while self.seen.attempt == attempt && self.seen.state != LeaseState::Ended {
            match self.next() {
                Ok(lease) => {
                    self.seen = lease;
                    backoff = Backoff::new();
                }
                Err(failure) if failure.is_temporary() => backoff.wait(),
                Err(failure) => return Err(failure.into()),
            }
        }
        Ok(())
    }
}

impl Drop for ServerLease {
    fn drop(&mut self) {
        let finished = if self.finished { "?finished=true" } else { "" };
        // If the server cannot be notified, it learns of the end from the node.
        let _ = self.client.delete::<Lease>(&format!("/leases/{}{finished}", self.id));
    }
}

/// How long a node is asked again. The server takes a program that says nothing for 20 s for gone,
/// and has to know of a node that is not there while the other tasks' grants hold.
const CLAIM_PATIENCE: Duration = Duration::from_secs(10);

/// Claims a task on its node.
fn claim_on_node(place: &Place, kernel_timeout_ms: u32, name: &str) -> Result<Claimed> {
    let grant = place.grant.clone().context("the server gave no grant")?;
    let address: Endpoint = place.address.parse()?;
    let claim = |once| LeaseClaim { once, grant: grant.clone(), kernel_timeout_ms, name: name.to_owned() };
    let (connection, answer) = open_lease(&address, CLAIM_PATIENCE, claim, say_cut)?;
    match answer {
        Control::LeaseGranted(granted) => {
            let address = connection.node().clone();
            Ok(Claimed { task: place.task, node: place.node.clone(), address, connection, granted })
        }
        Control::LeaseRefused(refused) => Err(anyhow!("{}: {}", place.node, refused.reason)),
        _ => Err(connection.unexpected().into()),
    }
}

#[cfg(test)]
mod tests;

//! A node that lends its GPUs through a server: it joins, checks the server's grants alone, keeps
//! what leases use on disk, and reports.
//!
//! While the server is away, running leases continue, grants that were made before can still be
//! claimed, and usage records wait in the [`journal`].

mod agent;
mod cards;
mod claims;
mod journal;
mod metering;
mod reporter;
mod saved;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use sluice_api::grant::{Grant, Verifier};
use sluice_api::node::{Attempt, NodeId};
use sluice_api::usage::UsageRecord;

pub(crate) use agent::Agent;
pub use agent::JoinError;
pub(crate) use cards::gpus;
pub(crate) use claims::ClaimRefusal;
pub(crate) use journal::Journal;
pub(crate) use metering::{Metered, Model};
pub(crate) use reporter::{Outgoing, Reporter};
pub(crate) use saved::SavedMembership;

use claims::Claims;
use saved::Enrolled;

/// How to join.
#[derive(Clone, Debug)]
pub struct JoinConfig {
    /// A URL as [`sluice_api::client::ServerUrl`] reads it, or several with commas between.
    pub server: String,
    /// A token of role `node`.
    pub token: String,
    /// By which the server knows this node again.
    pub name: String,
    /// `HOST:PORT` where programs reach it; the address that it listens on unless said.
    pub address: Option<String>,
    /// What the operator says that each GPU computes, in GFLOPS of 32-bit arithmetic; `None`: what
    /// the driver's figures say.
    pub gflops: Option<u64>,
    /// What requests select nodes by.
    pub labels: BTreeMap<String, String>,
    /// Where the usage journal lies.
    pub folder: PathBuf,
}

/// What a joined node shares between its connections and its agent.
#[derive(Debug)]
pub(crate) struct Membership {
    /// For messages.
    pub(crate) server: String,
    node: NodeId,
    verifier: Verifier,
    /// The models of the GPUs, as reported to the server.
    models: Vec<Model>,
    state: Mutex<State>,
    /// Something happened that the server should learn of at once.
    news: Condvar,
}

#[derive(Debug)]
struct State {
    claims: Claims,
    journal: Journal,
    news: bool,
    stopping: bool,
    reported: Reported,
    /// As what the node is known to the server, with the token that it got last.
    enrolled: Option<Enrolled>,
}

/// The reports so far.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Reported {
    /// The number of the last one.
    sequence: u64,
    /// Of the server that answered last.
    leadership: u64,
}

impl Membership {
    fn new(
        server: String,
        node: NodeId,
        verifier: Verifier,
        models: Vec<Model>,
        journal: Journal,
    ) -> Membership {
        let state = State {
            claims: Claims::default(),
            journal,
            news: false,
            stopping: false,
            reported: Reported::default(),
            enrolled: None,
        };
        Membership { server, node, verifier, models, state: Mutex::new(state), news: Condvar::new() }
    }

    /// What usage of this GPU is recorded with.
    pub(crate) fn model(&self, gpu: usize) -> Model {
        self.models.get(gpu).cloned().unwrap_or_default()
    }

    pub(crate) fn node(&self) -> NodeId {
        self.node
    }

    /// The grant in `text`, if it is good. It takes its time, and no lock: any client may bring
    /// one.
    pub(crate) fn check(&self, text: &str, now_ms: u64) -> Result<Grant, ClaimRefusal> {
        Ok(self.verifier.check(text, self.node, now_ms)?)
    }

    /// Takes a good grant, if it has not been claimed yet.
    pub(crate) fn claim(&self, grant: &Grant, now_ms: u64) -> Result<(), ClaimRefusal> {
        let mut state = self.lock();
        state.journal.is_full().map_or(Ok(()), Err)?;
        state.claims.claim(grant, now_ms)
    }

    /// Whether too much waits for the disk already.
    pub(crate) fn is_full(&self) -> bool {
        self.lock().journal.is_full().is_some()
    }

    /// How many records of a grant's attempt are on disk from before the start.
    pub(crate) fn recorded(&self, grant: &Grant) -> u32 {
        let attempt = Attempt { lease: grant.lease, attempt: grant.attempt, task: grant.task };
        self.lock().journal.last(grant.node, attempt)
    }

    /// Puts records on disk, as soon as it takes them; the agent delivers them.
    pub(crate) fn record(&self, records: &[UsageRecord]) {
        self.lock().journal.append(records);
    }

    /// Has the agent report at once.
    pub(crate) fn tell(&self) {
        self.lock().news = true;
        self.news.notify_one();
    }

    /// Records that the server has not confirmed.
    pub(crate) fn undelivered(&self) -> usize {
        self.lock().journal.undelivered()
    }

    /// Whether there was news since this was asked last.
    pub(crate) fn take_news(&self) -> bool {
        std::mem::take(&mut self.lock().news)
    }

    /// Has the agent report for the last time.
    pub(crate) fn stop(&self) {
        self.lock().stopping = true;
        self.news.notify_one();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
impl Membership {
    /// From now on the disk takes nothing, and as much waits for it as may.
    pub(crate) fn fill_up(&self) {
        let mut state = self.lock();
        journal::tests::fill_up(&mut state.journal);
        state.journal.append(&vec![journal::tests::record(1); 20_000]);
    }

    pub(crate) fn make_room(&self) {
        journal::tests::make_room(&mut self.lock().journal);
        self.record(&[]);
    }
}

#[cfg(test)]
mod tests {
    use sluice_api::grant::Signer;

    use super::*;

    #[test]
    fn a_node_whose_journal_is_full_takes_no_grant_and_loses_none() {
        let folder = std::env::temp_dir().join(format!("sluice-journal-claims-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let signer = Signer::new([7; 32]);
        let journal = Journal::open(&folder).unwrap();
        let membership = Membership::new("a server".into(), 1, signer.verifier(), Vec::new(), journal);
        let grant = Grant {
            lease: 5,
            attempt: 1,
            task: 0,
            node: 1,
            tenant: "acme".parse().unwrap(),
            tier: Default::default(),
            pool: "default".into(),
            gpus: vec![0],
            share_ppm: 1,
            promised_ppm: sluice_api::GPU_PPM,
            memory: 1,
            hard_cap: false,
            limit_ppm: None,
            suspended: false,
            version: 0,
            moves: 0,
            promise: None,
            expires_at_ms: 100,
        };
        assert_eq!(membership.check(&signer.sign(&grant), 10), Ok(grant.clone()));
        membership.fill_up();
        let refusal = membership.claim(&grant, 10).unwrap_err();
        assert!(matches!(refusal, ClaimRefusal::Journal(_)), "{refusal}");
        membership.make_room();
        assert_eq!(membership.claim(&grant, 10), Ok(()), "it was not used up");
        std::fs::remove_dir_all(folder).unwrap();
    }
}

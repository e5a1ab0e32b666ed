//! What a node says to the server, and what it does at the answer. Its caller transfers the one to
//! the other.

use std::sync::Arc;
use std::time::Duration;

use sluice_api::grant::Verifier;
use sluice_api::node::{Gpu, Join, Joined, Report, ReportAnswer};
use sluice_api::problem::{Kind, Problem};

use super::journal::Journal;
use super::{JoinError, Membership, Model, Reported};
use crate::registry::{Registry, one_line};

/// Usage records of one report.
const RECORDS_MAX: usize = 500;

#[derive(Debug)]
pub(crate) struct Reporter {
    pub(crate) join: Join,
    pub(crate) membership: Arc<Membership>,
    /// Of the machine.
    boot: String,
    /// The rhythm that the server wants.
    pub(crate) every: Duration,
}

/// A report in flight.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    pub(crate) path: String,
    pub(crate) report: Report,
    /// Lasting faults among it.
    lasting: usize,
}

impl Reporter {
    /// Of a node that has joined.
    pub(crate) fn new(
        server: &str,
        join: Join,
        joined: &Joined,
        journal: Journal,
        boot: String,
    ) -> Result<Reporter, JoinError> {
        let verifier =
            Verifier::from_text(&joined.grant_key).ok_or_else(|| JoinError::Key(server.to_owned()))?;
        let model = |gpu: &Gpu| Model { name: gpu.name.clone(), gflops: gpu.gflops };
        let models = join.gpus.iter().map(model).collect();
        let membership = Membership::new(server.to_owned(), joined.node, verifier, models, journal);
        Ok(Reporter {
            join,
            membership: Arc::new(membership),
            boot,
            every: Duration::from_millis(joined.report_every_ms),
        })
    }

    pub(crate) fn next(&mut self, registry: &Registry) -> Outgoing {
        let mut state = self.membership.lock();
        state.journal.save();
        let usage = state.journal.pending(RECORDS_MAX);
        state.reported.sequence += 1;
        let Reported { sequence, leadership } = state.reported;
        drop(state);
        registry.ask_for_report();
        let (faults, lasting) = registry.faults.all();
        let (boot, release) = (self.boot.clone(), self.join.release.clone());
        let report = Report {
            sequence,
            leadership: Some(leadership),
            usage,
            boot,
            release,
            faults,
            ..registry.report()
        };
        Outgoing { path: format!("/nodes/{}/reports", self.membership.node()), report, lasting }
    }

    pub(crate) fn answered(&mut self, registry: &Registry, sent: &Outgoing, answer: ReportAnswer) {
        let _step = registry.gates.steps.enter("what the server says");
        self.every = Duration::from_millis(answer.report_every_ms.clamp(100, 60_000));
        self.membership.lock().reported.leadership = answer.leadership;
        self.take(&sent.report, &answer);
        registry.results_confirmed(&sent.report.moved);
        registry.order_moves(answer.moves);
        registry.faults.taken(sent.lasting);
        for attempt in answer.end {
            registry.end_attempt(attempt);
        }
        for grant in &answer.resize {
            // What is refused is part of the next report; of what is over nothing need be said.
            let _ = registry.regrant(grant);
        }
    }

    /// What the server has need not be kept; if more waits, the next report does not.
    fn take(&self, report: &Report, answer: &ReportAnswer) {
        let mut state = self.membership.lock();
        for refused in &answer.usage_refused {
            tracing::warn!("the server does not count a usage record: {}", one_line(&refused.reason));
            let record = report.usage.iter().find(|record| record.id == refused.id);
            if let Some(Err(error)) = record.map(|record| state.journal.refuse(record)) {
                tracing::warn!("it could not be kept either: {error}");
            }
        }
        let taken = (answer.usage_taken as usize).min(report.usage.len());
        state.journal.confirm(taken);
        state.news |= taken > 0 && taken == RECORDS_MAX;
    }

    /// Whether the server knows the node's token no more: it was restored from a backup, or another
    /// node took the name.
    pub(crate) fn has_to_join(problem: &Problem) -> bool {
        problem.is(Kind::Unauthenticated) || problem.is(Kind::NotFound)
    }

    /// Whether the server still takes it for the same node.
    pub(crate) fn joined_again(&self, joined: &Joined) -> bool {
        joined.node == self.membership.node()
    }
}

//! One session and its worker.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use sluice_wire::handshake::{Once, SessionSecret};
use sluice_worker_link::counters::CounterPage;
use sluice_worker_link::link::PacketSocket;

use crate::registry::cuts::Process;
use crate::registry::migrate::Migration;
use crate::registry::overcommit::Activity;
use crate::registry::peers::PeerTokens;
use crate::registry::residence::Residence;
use crate::registry::{ClientOf, SessionRecord};
use crate::spawn::WorkerProcess;
use crate::upgrade::{Passed, Passing, Received, RestoreError};

/// A [`SessionRecord`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedSession {
    id: u64,
    lease: u64,
    #[serde(with = "crate::upgrade::with::wire")]
    once: Once,
    client: SavedClient,
    #[serde(with = "crate::upgrade::with::moment")]
    started: Instant,
    worker: u32,
    /// What the worker writes to standard error comes here.
    errors: Option<Passed>,
    link: Passed,
    counters: Passed,
    #[serde(with = "crate::upgrade::with::wire")]
    secret: SessionSecret,
    resumes: bool,
    is_up: bool,
    suspended: bool,
    wants: bool,
    residence: Residence,
    churns: bool,
    planned_on: Option<usize>,
    activity: Activity,
    moves: u64,
    moving_us: u64,
    parted: bool,
    peer_tokens: PeerTokens,
    migration: Migration,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedClient {
    process: SavedProcess,
    peer: String,
    resumes: bool,
}

/// A process, and how its end is seen here, if it is.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SavedProcess {
    number: u32,
    space: u64,
    watch: Option<Passed>,
}

impl SavedSession {
    pub(super) fn of(id: u64, record: &SessionRecord, passing: &mut Passing) -> SavedSession {
        // Each of its fields: a new one cannot be forgotten. A clone without a client is not
        // handed over.
        let &SessionRecord {
            lease,
            once,
            ref client,
            started,
            ref worker,
            ref link,
            ref counters,
            secret,
            resumes,
            is_up,
            suspended,
            wants,
            ref residence,
            churns,
            planned_on,
            activity,
            moves,
            moving_us,
            parted,
            is_awaited: _,
            is_unclaimed: _,
            ref peer_tokens,
            ref migration,
        } = record;
        let ClientOf { process, peer, resumes: client_resumes } = client;
        let process = SavedProcess::of(process, passing);
        SavedSession {
            id,
            lease,
            once,
            client: SavedClient { process, peer: peer.clone(), resumes: *client_resumes },
            started,
            worker: worker.id(),
            errors: worker.errors().map(|errors| passing.pass(errors)),
            link: passing.pass(link.as_fd()),
            counters: passing.pass(counters.file().as_fd()),
            secret,
            resumes,
            is_up,
            suspended,
            wants,
            residence: residence.clone(),
            churns,
            planned_on,
            activity,
            moves,
            moving_us,
            parted,
            peer_tokens: peer_tokens.clone(),
            migration: migration.clone(),
        }
    }

    /// The GPU whose planner moves its memory.
    pub(super) fn planned_on(&self) -> Option<usize> {
        self.planned_on
    }

    pub(super) fn restored(self, received: &mut Received) -> Result<(u64, SessionRecord), RestoreError> {
        let errors = self.errors.map(|errors| received.take(errors)).transpose()?;
        let link = Arc::new(PacketSocket::from_fd(received.take(self.link)?));
        let counters = Arc::new(CounterPage::map(received.take(self.counters)?)?);
        let SavedClient { process, peer, resumes } = self.client;
        let record = SessionRecord {
            lease: self.lease,
            once: self.once,
            client: ClientOf { process: process.restored(received)?, peer, resumes },
            started: self.started,
            worker: WorkerProcess::taken_over(self.worker, errors),
            link,
            counters,
            secret: self.secret,
            resumes: self.resumes,
            is_up: self.is_up,
            suspended: self.suspended,
            wants: self.wants,
            residence: self.residence,
            churns: self.churns,
            planned_on: self.planned_on,
            activity: self.activity,
            moves: self.moves,
            moving_us: self.moving_us,
            parted: self.parted,
            is_awaited: self.parted,
            is_unclaimed: false,
            peer_tokens: self.peer_tokens,
            migration: self.migration,
        };
        Ok((self.id, record))
    }
}

impl SavedProcess {
    pub(super) fn of(process: &Process, passing: &mut Passing) -> SavedProcess {
        let &Process { number, space, ref watch } = process;
        let watch = watch.as_ref().map(|watch| passing.pass(watch.as_fd()));
        SavedProcess { number, space, watch }
    }

    pub(super) fn restored(self, received: &mut Received) -> Result<Process, RestoreError> {
        let watch = self.watch.map(|watch| received.take(watch)).transpose()?;
        Ok(Process { number: self.number, space: self.space, watch: watch.map(Arc::new) })
    }
}

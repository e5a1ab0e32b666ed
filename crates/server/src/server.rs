//! The server: the fleet in memory, the database behind it, and changes that reach both or neither.
//!
//! [`Server::change`] locks the fleet; what the change does to it, together with the audit entries
//! and rows that it adds, is handed over by [`Change::commit`] to be written with whatever else
//! waits ([`crate::commits`]), and answered for only when it is in the database. The lock is free
//! meanwhile: others see the change before it is durable, and wait for it too before they speak. If
//! a transaction fails, or a change is given up half way, the fleet is read from the database
//! again.

mod autonomy;
mod books;
mod budgets;
mod change;
mod idle;
mod live;
mod scaling;

use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sluice_api::grant::Signer;
use sluice_api::lease::LeaseId;
use sluice_api::problem::{Kind, Problem};
use sluice_metrics::expiry_s;
use sluice_transport::tls::ServerIdentity;
use tokio::sync::{Mutex, MutexGuard, Notify, Semaphore, watch};

use crate::auth::{Principal, Recognised};
use crate::commits::{Batch, Commits, Lost, Ticket};
use crate::disk::{self, Disk};
use crate::fleet::{LeaseRecord, Patience};
use crate::http::{LeaderClient, Network, Streams};
use crate::identity;
use crate::kept::KeptSums;
use crate::keys::KeysInUse;
use crate::last_uses::LastUses;
use crate::leader::{Role, Seen};
use crate::metrics::{Counters, FleetPicture, Picture};
use crate::plan::Clock;
use crate::sessions::Sessions;
use crate::store::{Fence, Store, StoreError, Write};
use crate::traces::Traces;
use crate::watches::Watches;
use crate::webhooks::Outgoing;

pub(crate) use self::books::Books;
pub(crate) use self::change::Change;

pub(crate) struct Server {
    pub(crate) store: Store,
    pub(crate) signer: Signer,
    /// How long a preempted program may continue.
    pub(crate) grace_ms: u64,
    /// A GPU whose fault passes is used again after this time without it.
    pub(crate) quiet_ms: u64,
    /// What tenants used this long ago counts half in the division of what is left over; none of it
    /// does without.
    pub(crate) half_life_ms: Option<u64>,
    /// A node that has had no lease for this time is an event; none is without.
    pub(crate) node_idle_ms: Option<u64>,
    pub(crate) recognised: Recognised,
    pub(crate) last_uses: LastUses,
    pub(crate) sessions: Sessions,
    pub(crate) watches: Watches,
    pub(crate) streams: Streams,
    pub(crate) kept: KeptSums,
    /// Tenants' parts of the audit log that are read at the same time.
    pub(crate) audit_reads: Semaphore,
    /// As the last transaction found it.
    pub(crate) disk: Disk,
    pub(crate) keys: KeysInUse,
    pub(crate) role: watch::Sender<Role>,
    /// What it has seen of another's writing, while another leads.
    pub(crate) seen: Mutex<Seen>,
    /// Whose tokens are taken beside its own.
    pub(crate) identity: identity::Current,
    pub(crate) surroundings: Surroundings,
    /// The way to webhooks.
    pub(crate) outgoing: Outgoing,
    /// What has happened since the start, for metrics.
    pub(crate) counters: Counters,
    /// Traces of leases, if an operator has named a collector.
    pub(crate) traces: Option<Traces>,
    /// What is shown to clients, if that is a certificate.
    pub(crate) certificate: std::sync::OnceLock<ServerIdentity>,
    /// What this process is called in the database, if it takes part.
    pub(crate) holder: std::sync::OnceLock<String>,
    /// When it found in the database what it cannot read.
    unreadable: std::sync::Mutex<Option<tokio::time::Instant>>,
    books: Mutex<Books>,
    commits: Commits,
    /// Counts its roles.
    turns: AtomicU64,
    /// Counts the looks at the queue.
    cycles: watch::Sender<u64>,
    /// Tells the scheduler.
    wake: Notify,
    /// A run has ended, and what it used is in the database.
    run_ended: Notify,
}

/// Milliseconds since 1970 by the clock of this machine, which may be set forth and back.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_millis() as u64)
}

/// What a server learns the time from, and reaches other servers through.
pub(crate) struct Surroundings {
    /// Milliseconds since 1970.
    pub(crate) clock: Box<dyn Fn() -> u64 + Send + Sync>,
    pub(crate) link: Box<dyn LeaderClient>,
}

impl Default for Surroundings {
    /// This machine's clock, and the network.
    fn default() -> Surroundings {
        Surroundings { clock: Box::new(now_ms), link: Box::new(Network::default()) }
    }
}

/// The queue is looked at this often even if nothing happens: time alone ends things.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// A server that cannot read its database leaves the lead to others for this time.
const BLIND: Duration = Duration::from_secs(60);
/// A reader looks at most this number of times: transactions that fail one after the other are a
/// reason to say so.
const LOOKS_MAX: usize = 3;
/// Parts of the audit log that are read at the same time; all of it may be looked through for one.
const AUDIT_READS_MAX: usize = 2;
/// A scrape does not wait longer for the fleet.
const PICTURE_TIME_MAX: Duration = Duration::from_secs(1);

impl Server {
    /// Leads nothing yet, see [`Server::take_part`].
    pub(crate) async fn open(
        store: Store,
        signer: Signer,
        patience: Patience,
        surroundings: Surroundings,
    ) -> Result<Server, StoreError> {
        let commits = Commits::new();
        let books = Books::read(&store, commits.epoch(), (surroundings.clock)()).await?;
        let server = Server {
            store,
            sessions: Sessions::new(&signer),
            signer,
            grace_ms: patience.grace_ms,
            quiet_ms: patience.quiet_ms,
            half_life_ms: None,
            node_idle_ms: None,
            identity: identity::Current::default(),
            recognised: Recognised::default(),
            last_uses: LastUses::default(),
            watches: Watches::default(),
            streams: Streams::default(),
            kept: KeptSums::default(),
            audit_reads: Semaphore::new(AUDIT_READS_MAX),
            disk: Disk::default(),
            keys: KeysInUse::default(),
            role: watch::Sender::new(Role::Follower { leader: None }),
            seen: Mutex::default(),
            surroundings,
            outgoing: Outgoing::default(),
            counters: Counters::default(),
            traces: None,
            certificate: std::sync::OnceLock::new(),
            holder: std::sync::OnceLock::new(),
            unreadable: std::sync::Mutex::default(),
            books: Mutex::new(books),
            commits,
            turns: AtomicU64::new(0),
            cycles: watch::Sender::new(0),
            wake: Notify::new(),
            run_ended: Notify::new(),
        };
        server.follow_identity().await?;
        Ok(server)
    }

    /// Takes whose tokens the database says.
    pub(crate) async fn follow_identity(&self) -> Result<(), StoreError> {
        let _looks = self.identity.looking.lock().await;
        let declared = self.store.identity().await?;
        self.identity.set(declared);
        Ok(())
    }

    /// Milliseconds since 1970, as this server believes.
    pub(crate) fn now_ms(&self) -> u64 {
        (self.surroundings.clock)()
    }

    /// Looks at the state, again if what was seen did not become true. What is seen is in the
    /// database when this returns.
    pub(crate) async fn read<T>(&self, look: impl Fn(&Books, u64) -> T) -> Result<T, Problem> {
        self.hear(|books, now_ms| look(books, now_ms)).await
    }

    /// As [`Server::read`], and notes what is never stored: which nodes and programs have reported.
    pub(crate) async fn hear<T>(&self, look: impl Fn(&mut Books, u64) -> T) -> Result<T, Problem> {
        let mut looks = 1;
        loop {
            let mut books = self.books().await?;
            let seen = look(&mut books, self.now_ms());
            let ticket = self.commits.latest_of(books.epoch);
            drop(books);
            match self.durable(ticket).await {
                Ok(()) => return Ok(seen),
                Err(problem) if looks == LOOKS_MAX => return Err(problem),
                Err(_) => looks += 1,
            }
        }
    }

    /// What is true now, for metrics. It needs no database, and does not wait long for the fleet: a
    /// scrape is answered whatever hangs.
    pub(crate) async fn picture(&self) -> Picture {
        let leads = self.fence().is_some();
        let books = tokio::time::timeout(PICTURE_TIME_MAX, self.books.lock()).await;
        let fleet = books.ok().filter(|_| leads).map(|books| FleetPicture::of(&books, self.now_ms()));
        let certificate_ends_s = self.certificate.get().and_then(expiry_s);
        Picture { leads, disk_full: self.disk.is_full(), certificate_ends_s, fleet }
    }

    /// A lease, also one that has ended.
    pub(crate) async fn lease(&self, id: LeaseId) -> Result<Option<LeaseRecord>, Problem> {
        match self.read(|books, _| books.fleet.lease(id).cloned()).await? {
            Some(lease) => Ok(Some(lease)),
            None => self.store.lease(id).await.map_err(unwell),
        }
    }

    /// Begins a change; no other task makes one meanwhile.
    pub(crate) async fn change(&self) -> Result<Change<'_>, Problem> {
        if self.disk.is_full() {
            return Err(disk::full());
        }
        let books = self.books().await?;
        if self.fence().is_none() {
            let detail = "this replica does not lead; the one that does is not known yet";
            return Err(Problem::new(Kind::Unavailable, detail));
        }
        let now_ms = self.now_ms();
        Ok(Change { server: self, books, now_ms, writes: Vec::new(), wakes: false, done: false })
    }

    /// Returns once the database has it; there is no ticket for what has failed already.
    async fn durable(&self, ticket: Result<Ticket, Lost>) -> Result<(), Problem> {
        let decided = match ticket {
            Ok(ticket) => ticket.decided().await,
            Err(lost) => Err(lost),
        };
        decided.map_err(not_written)
    }

    /// The fleet as far as it is known, read again if it may be wrong.
    async fn books(&self) -> Result<MutexGuard<'_, Books>, Problem> {
        let mut books = self.books.lock().await;
        if books.stale || books.epoch != self.commits.epoch() {
            books.stale = true;
            // What has been handed over is in the database or has failed before that is read.
            // Nothing is added meanwhile.
            let _ = self.commits.latest().decided().await;
            let (epoch, turn) = (self.commits.epoch(), self.turns.load(Ordering::Acquire));
            let same = books.turn == turn;
            // By the clock that the other times are of, until it is seen whether it was set.
            let now_ms = if same { books.expected_ms() } else { self.now_ms() };
            let fresh = Books::read(&self.store, epoch, now_ms).await;
            let mut fresh = fresh.map_err(|error| self.cannot_read(error))?;
            // Before they count as fresh: it is tried again with them if it fails.
            self.follow_identity().await.map_err(|error| self.cannot_read(error))?;
            fresh.fleet.leadership = self.fence().map_or(0, Fence::number);
            fresh.fleet.spend_as(&books.fleet);
            if same {
                fresh.fleet.hear_as(&mut books.fleet);
                fresh.looked = books.looked;
                fresh.autonomy.know_as(&mut books.autonomy);
                fresh.scaling = std::mem::take(&mut books.scaling);
            } else if self.fence().is_some() {
                // What was received in an earlier role has been overtaken by what others received
                // since.
                fresh.fleet.take_over_notices(now_ms, self.grace_ms);
            }
            *books = Books { turn, ..fresh };
        }
        match self.fence() {
            // Reports are refused meanwhile, and that is seen when it is over.
            Some(_) if self.disk.is_full() => {}
            Some(_) => books.follow_clock(self.now_ms()),
            // The server that leads gives every node and program its time.
            None => books.looked = (self.now_ms(), tokio::time::Instant::now()),
        }
        // Only times have changed: what others change is handed over before they leave.
        let moved = books.fleet.take_changed();
        if !moved.is_empty() {
            let writes = moved.into_iter().map(|lease| Write::Lease(Box::new(lease))).collect();
            books.stale |= self.commits.add(books.epoch, writes).is_err();
        }
        Ok(books)
    }

    fn cannot_read(&self, error: StoreError) -> Problem {
        if matches!(error, StoreError::Content { .. }) {
            *self.unreadable.lock().unwrap_or_else(PoisonError::into_inner) =
                Some(tokio::time::Instant::now());
        }
        unwell(error)
    }

    /// Whether the state holds what this release cannot read, as far as is known: a server that
    /// knows nothing decides nothing.
    pub(crate) fn is_blind(&self) -> bool {
        let unreadable = *self.unreadable.lock().unwrap_or_else(PoisonError::into_inner);
        unreadable.is_some_and(|at| at.elapsed() < BLIND)
    }

    /// Has the state read again before it is looked at next.
    pub(crate) async fn distrust_books(&self) {
        self.books.lock().await.stale = true;
    }

    /// What this server may write under, while it leads.
    pub(crate) fn fence(&self) -> Option<Fence> {
        match *self.role.borrow() {
            Role::Leader(fence) => Some(fence),
            Role::Follower { .. } => None,
        }
    }

    /// From now on this role; what is in memory does not count any more.
    pub(crate) fn become_role(&self, role: Role) {
        self.turns.fetch_add(1, Ordering::AcqRel);
        self.commits.end_epoch(Lost::Otherwise);
        self.recognised.forget_all();
        self.role.send_replace(role);
        self.wake.notify_one();
    }

    /// Takes what another server has written since this one looked last.
    pub(crate) async fn catch_up(&self, settings_changed: bool) -> Result<(), StoreError> {
        const LEASES: u32 = 1000;
        let mut told = Vec::new();
        let mut books = self.books.lock().await;
        books.stale |= settings_changed;
        if !books.stale {
            loop {
                let seen = books.fleet.revision();
                let changed = self.store.leases_after(seen, LEASES).await?;
                let full = changed.len() == LEASES as usize;
                for lease in changed {
                    told.push(lease.id);
                    books.fleet.learn(lease);
                }
                if !full {
                    break;
                }
            }
        }
        drop(books);
        if settings_changed || !told.is_empty() {
            self.watches.tell(told);
        }
        if settings_changed {
            // A token of a provider is checked before the state is looked at.
            self.follow_identity().await?;
        }
        Ok(())
    }

    /// Writes what has been handed over, for ever.
    pub(crate) async fn write_down(&self) {
        loop {
            let mut batch = self.commits.next().await;
            let writes = std::mem::take(&mut batch.writes);
            self.write_batch(batch, writes).await;
        }
    }

    async fn write_batch(&self, batch: Batch, writes: Vec<Write>) {
        let changed = |write: &Write| match write {
            Write::Lease(lease) => Some(lease.id),
            _ => None,
        };
        let leases: Vec<_> = writes.iter().filter_map(changed).collect();
        let is_news = writes.iter().any(|write| matches!(write, Write::Lease(_) | Write::Audit(..)));
        let revoked = |write: &Write| match write {
            Write::Revoke(id) => Some(id.clone()),
            _ => None,
        };
        let revoked: Vec<String> = writes.iter().filter_map(revoked).collect();
        let run_ended =
            writes.iter().any(|write| matches!(write, Write::Usage { record, .. } if record.last));
        let has_events = writes.iter().any(|write| matches!(write, Write::NewDelivery(_)));
        let counted = self.counters.of_batch(&writes, self.traces.is_some());
        let traced = self.traces.as_ref().map(|traces| (traces, Traces::of_writes(&writes)));
        let written = match self.fence() {
            Some(fence) => self.store.commit(fence, writes).await,
            None => Err(StoreError::Fenced),
        };
        self.disk.note(&written);
        match written {
            Ok(()) => {
                revoked.iter().for_each(|id| self.recognised.forget(id));
                batch.succeed();
                self.counters.written(counted);
                if let Some((traces, leases)) = traced {
                    traces.written(leases, self.now_ms());
                }
                if is_news {
                    self.watches.tell(leases);
                }
                if run_ended {
                    self.run_ended.notify_one();
                }
                if has_events {
                    self.outgoing.news.notify_one();
                }
            }
            Err(error) => {
                let lost = match error {
                    StoreError::DiskFull(_) => Lost::Room,
                    _ => Lost::Otherwise,
                };
                if lost == Lost::Otherwise {
                    tracing::warn!("{error}");
                }
                self.commits.fail(batch, lost);
                if matches!(error, StoreError::Fenced) {
                    self.become_role(Role::Follower { leader: None });
                }
            }
        }
    }

    /// Serves the queue while this server leads; never returns.
    pub(crate) async fn schedule(&self) {
        let mut knows_budgets = false;
        loop {
            // Once before anything is granted: a server that starts does not know which budgets are
            // spent.
            if !knows_budgets && !self.disk.is_full() {
                knows_budgets = self.say_what_is_spent().await;
            }
            let _ = tokio::time::timeout(LOOK_EVERY, self.wake.notified()).await;
            // Who decides what cannot be written decides it again and again.
            if self.fence().is_none() || self.disk.is_full() {
                continue;
            }
            if let Err(problem) = self.cycle().await {
                tracing::warn!("{problem}");
                // Not as often as requests come while the database is away.
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
    }

    async fn cycle(&self) -> Result<(), Problem> {
        let mut change = self.change().await?;
        let clock = Clock { now_ms: change.now_ms, grace_ms: self.grace_ms };
        let begun = std::time::Instant::now();
        if change.books.decide(clock, self.half_life_ms) {
            self.wake.notify_one();
        }
        self.counters.decided(begun.elapsed());
        let now_ms = change.now_ms;
        for (action, subject, detail) in change.books.scaling_news(self.node_idle_ms, now_ms) {
            change.audit(&Principal::server(), action, &subject, detail);
        }
        change.report_incidents();
        // Counted while the fleet is still locked: who began to wait before has been looked at.
        self.cycles.send_modify(|count| *count += 1);
        change.hand_over().map(drop).map_err(not_written)
    }
}

fn not_written(lost: Lost) -> Problem {
    let detail = "the database did not take it, or this server leads no more; nothing was done, ask again";
    match lost {
        Lost::Room => disk::full(),
        Lost::Otherwise => Problem::new(Kind::Unavailable, detail),
    }
}

/// The answer to a client while the database fails; the cause is for the operator.
pub(crate) fn unwell(error: StoreError) -> Problem {
    tracing::error!("{error}");
    match error {
        StoreError::Content { .. } => {
            Problem::new(Kind::Internal, "the database holds what it should not; the server's log says what")
        }
        // Also reading may take room, for sorting.
        StoreError::DiskFull(_) => disk::full(),
        _ => Problem::new(Kind::Unavailable, "the database does not answer; ask again in a while"),
    }
}

#[cfg(test)]
mod tests;

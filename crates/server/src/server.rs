//! The server: the fleet in memory, the database behind it, and changes that reach both or neither.
//!
//! [`Server::change`] locks the fleet; what the change does to it, together with the audit entries
//! and rows that it adds, is handed over by [`Change::commit`] to be written with whatever else
//! waits ([`crate::commits`]), and answered for only when it is in the database. The lock is free
//! meanwhile: others see the change before it is durable, and wait for it too before they speak. If
//! a transaction fails, or a change is given up half way, the fleet is read from the database
//! again.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sluice_api::audit::{Entry, Head};
use sluice_api::bill::{Bill, Budget, BudgetStatus, Currency, Seller};
use sluice_api::grant::Signer;
use sluice_api::identity::Identity;
use sluice_api::lease::{Lease, LeaseId, LeaseState, NewLease, ResizeLease};
use sluice_api::problem::{Kind, Problem};
use sluice_api::recommendation::RunDefault;
use sluice_api::tenant::TenantPath;
use sluice_api::usage::UsageRecord;
use sluice_api::webhook::Webhook;
use sluice_metrics::expiry_s;
use sluice_transport::tls::ServerIdentity;
use tokio::sync::{Mutex, MutexGuard, Notify, watch};

use crate::auth::{Principal, Recognised};
use crate::billing::{self, Period};
use crate::commits::{Batch, Commits, Epoch, Lost, Ticket};
use crate::disk::{self, Disk};
use crate::fleet::{Event, Fleet, Incident, LeaseRecord, NoResize, Passed, Patience, Spent};
use crate::history::History;
use crate::http::{Link, Network, Streams};
use crate::identity;
use crate::keys::{self, KeysInUse};
use crate::leader::{Role, Seen};
use crate::metrics::{Counters, FleetPicture, Picture};
use crate::plan::{Clock, Offered, Plan, Trial, never};
use crate::sessions::Sessions;
use crate::store::{Fence, Store, StoreError, Write};
use crate::usage_spans::{Counted, LastCounted};
use crate::watches::Watches;
use crate::webhooks::{self, Outgoing, Webhooks};

pub(crate) struct Server {
    pub(crate) store: Store,
    pub(crate) signer: Signer,
    /// How long a preempted program may continue.
    pub(crate) grace_ms: u64,
    /// A GPU whose fault passes is used again after so long without it.
    pub(crate) quiet_ms: u64,
    /// What tenants used so long ago counts half in the division of what is left over; none of it
    /// does without.
    pub(crate) half_life_ms: Option<u64>,
    pub(crate) recognised: Recognised,
    pub(crate) sessions: Sessions,
    pub(crate) watches: Watches,
    pub(crate) streams: Streams,
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
    /// What is shown to clients, if that is a certificate.
    pub(crate) certificate: std::sync::OnceLock<ServerIdentity>,
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
}

pub(crate) struct Books {
    pub(crate) fleet: Fleet,
    /// While this server leads, once it has looked at the queue.
    plan: Option<Plan>,
    history: History,
    /// The latest leases, until there is a plan.
    past: Vec<LeaseRecord>,
    pub(crate) identity: Option<Identity>,
    pub(crate) seller: Seller,
    pub(crate) counted: Counted,
    pub(crate) webhooks: Webhooks,
    /// By tenant and program.
    pub(crate) run_defaults: BTreeMap<(TenantPath, String), RunDefault>,
    /// When it was last looked what time alone has ended.
    expired_at_ms: u64,
    audit: Head,
    epoch: Epoch,
    /// Does not show what the database holds.
    stale: bool,
    /// The role in which it heard what it has heard.
    turn: u64,
    /// When it was looked at last, by the clock that may be set, and by the one that may not.
    looked: (u64, tokio::time::Instant),
}

/// Milliseconds since 1970 by the clock of this machine, which may be set forth and back.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_millis() as u64)
}

/// What a server learns the time from, and reaches other servers through.
pub(crate) struct Surroundings {
    /// Milliseconds since 1970.
    pub(crate) clock: Box<dyn Fn() -> u64 + Send + Sync>,
    pub(crate) link: Box<dyn Link>,
}

impl Default for Surroundings {
    /// This machine's clock, and the network.
    fn default() -> Surroundings {
        Surroundings { clock: Box::new(now_ms), link: Box::new(Network::default()) }
    }
}

/// The queue is looked at this often even if nothing happens: time alone ends things.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Clocks that run at different speeds differ by less from one look to the next.
const CLOCK_SET_MS: u64 = 1000;
/// A server that leads looks at its books more often by far, unless it cannot.
const DEAF_MS: u64 = 5_000;
/// A server that cannot read its books leaves the lead to others for so long, then looks again.
const BLIND: Duration = Duration::from_secs(60);
/// What is spent of budgets is added up this often.
const BUDGETS_EVERY: Duration = Duration::from_secs(5);
/// Or less often: after a pause of so many times what it took.
const BUDGETS_PAUSE: u32 = 10;
/// The latest leases that are learned from at the start.
const HISTORY: u32 = 1000;
/// Who reads looks so often: transactions that fail one after the other are a reason to say so.
const LOOKS_MAX: usize = 3;
/// A scrape does not wait longer for the fleet.
const PICTURE_TIME_MAX: Duration = Duration::from_secs(1);
/// An answer to a request for a lease does not wait longer for a look at the queue.
const LOOK_TIME_MAX: Duration = Duration::from_secs(1);

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
            identity: identity::Current::default(),
            recognised: Recognised::default(),
            watches: Watches::default(),
            streams: Streams::default(),
            disk: Disk::default(),
            keys: KeysInUse::default(),
            role: watch::Sender::new(Role::Follower { leader: None }),
            seen: Mutex::default(),
            surroundings,
            outgoing: Outgoing::default(),
            counters: Counters::default(),
            certificate: std::sync::OnceLock::new(),
            unreadable: std::sync::Mutex::default(),
            books: Mutex::new(books),
            commits,
            turns: AtomicU64::new(0),
            cycles: watch::Sender::new(0),
            wake: Notify::new(),
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

    /// Looks at the books, again if what was seen did not become true. What is seen is in the
    /// database when this returns.
    pub(crate) async fn read<T>(&self, look: impl Fn(&Books, u64) -> T) -> Result<T, Problem> {
        self.hear(|books, now_ms| look(books, now_ms)).await
    }

    /// As [`Server::read`], and notes what is never stored: who has been heard of.
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

    /// Begins a change; nobody else makes one meanwhile.
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
            } else if self.fence().is_some() {
                // What was heard in an earlier role has been overtaken by what others heard since.
                fresh.fleet.take_over_notices(now_ms, self.grace_ms);
            }
            *books = Books { turn, ..fresh };
        }
        match self.fence() {
            // Reports are refused meanwhile, and that is seen when it is over.
            Some(_) if self.disk.is_full() => {}
            Some(_) => books.follow_clock(self.now_ms()),
            // The one that leads gives everybody their time.
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

    /// Whether the books hold what this release cannot read, as far as is known: who knows nothing
    /// decides nothing.
    pub(crate) fn is_blind(&self) -> bool {
        let unreadable = *self.unreadable.lock().unwrap_or_else(PoisonError::into_inner);
        unreadable.is_some_and(|at| at.elapsed() < BLIND)
    }

    /// Has the books read again before they are looked at next.
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
            // Who signs in with a provider is looked at before the books are.
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
        let is_news = writes.iter().any(|write| matches!(write, Write::Lease(_) | Write::Audit(_)));
        let revoked = |write: &Write| match write {
            Write::Revoke(id) => Some(id.clone()),
            _ => None,
        };
        let revoked: Vec<String> = writes.iter().filter_map(revoked).collect();
        let has_events = writes.iter().any(|write| matches!(write, Write::NewDelivery(_)));
        let counted = self.counters.of_batch(&writes);
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
                if is_news {
                    self.watches.tell(leases);
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
                    eprintln!("sluice-server: {error}");
                }
                self.commits.fail(batch, lost);
                if matches!(error, StoreError::Fenced) {
                    self.become_role(Role::Follower { leader: None });
                }
            }
        }
    }

    /// Says of every budget what is spent of it, from the ledger. All servers look, since all
    /// answer questions about it and any may lead next; the one that leads says in the audit log
    /// which marks were passed.
    async fn look_at_budgets(&self) -> Result<(), Problem> {
        let budgets = |books: &Books, now_ms: u64| -> (u64, BTreeMap<TenantPath, Budget>) {
            let budgets = books.fleet.budgets().iter();
            (now_ms, budgets.map(|(tenant, budget)| (tenant.clone(), budget.clone())).collect())
        };
        let (now_ms, budgets) = self.read(budgets).await?;
        if budgets.is_empty() {
            return Ok(());
        }
        // One moment is the end of all periods, so that budgets of one kind are of one period.
        let period = |budget: &Budget| Period { from_ms: budget.per.began_ms(now_ms), until_ms: now_ms + 1 };
        let wanted = budgets.iter().map(|(tenant, budget)| (tenant.clone(), period(budget))).collect();
        let spent = |bill: Bill| {
            let micro = u64::try_from(bill.total_micro).unwrap_or(0);
            (bill.tenant, Spent { period_from_ms: bill.from_ms, micro })
        };
        let bills = billing::bills_of(&self.store, wanted).await.map_err(unwell)?;
        let spent: Vec<(TenantPath, Spent)> = bills.into_iter().map(spent).collect();
        // What is spent of a budget that was declared anew meanwhile may be of another period.
        let of_same = |fleet: &Fleet| -> Vec<(TenantPath, Spent)> {
            let same =
                |(tenant, _): &&(TenantPath, Spent)| fleet.budgets().get(tenant) == budgets.get(tenant);
            spent.iter().filter(same).cloned().collect()
        };
        if self.fence().is_none() {
            let take = |books: &mut Books, _| drop(books.fleet.set_spent(of_same(&books.fleet)));
            return self.hear(take).await;
        }
        let mut change = self.change().await?;
        let spent = of_same(change.fleet());
        let passed = change.fleet().set_spent(spent);
        if passed.is_empty() {
            change.leave();
            return Ok(());
        }
        let currency = change.books().seller.currency.clone();
        for Passed { tenant, status, .. } in passed.iter().filter(|passed| passed.mark_percent > 0) {
            eprintln!("sluice-server: {}", spent_line(tenant, status, currency.as_ref()));
            change.audit(&Principal::server(), "budget.passed", tenant.as_str(), serde_json::json!(status));
        }
        change.wake();
        change.commit().await
    }

    /// Keeps up with what is spent of budgets, beside the scheduler: to add it up may take long.
    /// Never returns.
    pub(crate) async fn follow_budgets(&self) {
        let mut pause = BUDGETS_EVERY;
        loop {
            tokio::time::sleep(pause).await;
            let begun = tokio::time::Instant::now();
            let is_known = !self.disk.is_full() && self.say_what_is_spent().await;
            // The database has other things to do.
            pause = if is_known { BUDGETS_EVERY.max(begun.elapsed() * BUDGETS_PAUSE) } else { BUDGETS_EVERY };
        }
    }

    /// Whether it could be added up.
    async fn say_what_is_spent(&self) -> bool {
        let looked = self.look_at_budgets().await;
        if let Err(problem) = &looked {
            eprintln!("sluice-server: budgets: {problem}");
        }
        looked.is_ok()
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
                eprintln!("sluice-server: {problem}");
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
        change.report_incidents();
        // Counted while the fleet is still locked: who began to wait before has been looked at.
        self.cycles.send_modify(|count| *count += 1);
        change.hand_over().map(drop).map_err(not_written)
    }
}

/// `acme has spent 104 % of its budget (10.4 of 10 EUR)`
fn spent_line(tenant: &TenantPath, status: &BudgetStatus, currency: Option<&Currency>) -> String {
    // In the currency's units, without digits that say nothing.
    let money = |micro: u64| {
        let text = format!("{}.{:06}", micro / 1_000_000, micro % 1_000_000);
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    let (spent, of) = (money(status.spent_micro), money(status.budget.micro));
    let currency = currency.map_or_else(String::new, |currency| format!(" {currency}"));
    format!("{tenant} has spent {} % of its budget ({spent} of {of}{currency})", status.spent_percent)
}

impl Books {
    async fn read(store: &Store, epoch: Epoch, now_ms: u64) -> Result<Books, StoreError> {
        // From before the queries: what they take is no difference between the clocks.
        let looked = (now_ms, tokio::time::Instant::now());
        let revision = store.leader().await?.revision;
        let (tenants, pools) = (store.tenants().await?, store.pools().await?);
        let leases = store.open_leases().await?;
        let last_lease = store.last_lease().await?;
        let nodes = store.nodes().await?;
        let mut fleet = Fleet::new(tenants, pools, nodes, leases, last_lease, revision, now_ms);
        fleet.recall_cards(store.cards().await?);
        fleet.recall_forgotten(store.forgotten_nodes().await?);
        let (identity, seller) = (store.identity().await?, store.seller().await?);
        let webhooks = store.webhooks().await?;
        let defaults = store.run_defaults().await?.into_iter();
        let run_defaults =
            defaults.map(|default| ((default.tenant.clone(), default.program.clone()), default)).collect();
        let audit = store.audit_head().await?;
        let mut history = History::default();
        let mut recent = store.leases(i64::MAX as u64, HISTORY).await?;
        recent.reverse();
        recent.iter().for_each(|lease| _ = history.follow(lease));
        store.estimate_errors(HISTORY).await?.iter().for_each(|error| history.recall(error));
        Ok(Books {
            fleet,
            plan: None,
            history,
            past: recent,
            identity,
            seller,
            counted: Counted::default(),
            webhooks: webhooks.into_iter().map(|webhook| (webhook.id.clone(), webhook)).collect(),
            run_defaults,
            expired_at_ms: 0,
            audit,
            epoch,
            stale: false,
            turn: 0,
            looked,
        })
    }

    /// What the clock says, unless it was set since it was looked at last.
    fn expected_ms(&self) -> u64 {
        self.looked.0 + self.looked.1.elapsed().as_millis() as u64
    }

    /// Notices when the clock has been set, and when nobody has looked for long: nobody has been
    /// silent for longer because of that.
    fn follow_clock(&mut self, now_ms: u64) {
        let (passed_ms, expected_ms) = (self.looked.1.elapsed().as_millis() as u64, self.expected_ms());
        if now_ms.abs_diff(expected_ms) > CLOCK_SET_MS {
            let by_ms = now_ms.wrapping_sub(expected_ms) as i64;
            eprintln!("sluice-server: the clock was set by {by_ms} ms");
            self.fleet.clock_was_set(by_ms);
        }
        if passed_ms > DEAF_MS {
            eprintln!(
                "sluice-server: it did not run, or its database did not answer, for {} s: nobody is taken for silent because of \
                 that",
                passed_ms / 1000
            );
            self.fleet.was_deaf(passed_ms, now_ms);
        }
        self.looked = (now_ms, tokio::time::Instant::now());
    }

    /// Decides what can be decided now; true if there may be more.
    fn decide(&mut self, clock: Clock, half_life_ms: Option<u64>) -> bool {
        let now_ms = clock.now_ms;
        if now_ms.abs_diff(self.expired_at_ms) >= LOOK_EVERY.as_millis() as u64 {
            self.expired_at_ms = now_ms;
            self.fleet.look_at_nodes(now_ms, now_ms + clock.grace_ms);
            self.fleet.expire(now_ms);
        }
        let plan = self.plan.get_or_insert_with(|| {
            let mut plan = Plan::new(&self.fleet, now_ms, half_life_ms);
            plan.recall_use(&self.fleet, &std::mem::take(&mut self.past));
            plan
        });
        let more = plan.decide(&mut self.fleet, clock);
        plan.estimate_all(&self.fleet, &mut self.history, clock);
        more
    }

    /// A lease as users see it, without its grants.
    pub(crate) fn view(&self, lease: &LeaseRecord) -> Lease {
        let mut view = self.fleet.view(lease);
        if let Some(plan) = self.plan.as_ref().filter(|_| lease.waits()) {
            view.reason = plan.why(&self.fleet, lease.id).or(view.reason);
            view.reason_brief = plan.brief(&self.fleet, lease);
            view.start = plan.estimate(lease.id).cloned();
        }
        if lease.state != LeaseState::Ended {
            view.tightest_budget = self.fleet.budgets().tightest(&lease.tenant, self.expected_ms());
        }
        view
    }

    /// What keeps a waiting lease from starting, in one word for metrics.
    pub(crate) fn why_kind(&self, lease: &LeaseRecord) -> &'static str {
        self.plan.as_ref().map_or("undecided", |plan| plan.why_kind(&self.fleet, lease))
    }

    /// Has a lease resized, or where there is no room for that and it may wait, has it wait.
    pub(crate) fn resize(&mut self, id: LeaseId, resize: &ResizeLease, now_ms: u64) -> Result<(), NoResize> {
        let to = self.fleet.resized(id, resize)?;
        let in_the_way = self.fleet.no_room_to_resize(id, to, now_ms);
        let Books { fleet, plan, .. } = self;
        match in_the_way.or_else(|| plan.as_mut()?.make_room(fleet, id, to)) {
            None => fleet.send_resize(id, to),
            Some(NoResize::NoRoom(reason)) if resize.wait => fleet.wait_to_resize(id, to, reason),
            Some(refusal) => return Err(refusal),
        }
        Ok(())
    }

    /// Predicts what a request would lead to, with the GPUs that it accepts. There is no prediction
    /// before the first scheduling cycle.
    pub(crate) fn trial(&self, lease: &LeaseRecord, clock: Clock) -> Option<(Trial, Vec<Offered>)> {
        let plan = self.plan.as_ref()?;
        Some((plan.trial(&self.fleet, &self.history, lease, clock), plan.offers(&self.fleet, lease)))
    }

    /// Why a request could never be granted, as far as is known.
    pub(crate) fn never(&self, tenant: &TenantPath, ask: &NewLease) -> Option<String> {
        never::over_quota(&self.fleet, tenant, ask)
            .or_else(|| self.plan.as_ref().and_then(|plan| plan.over_capacity(&self.fleet, tenant, ask)))
    }
}

/// A change under way; given up unless it is committed.
pub(crate) struct Change<'a> {
    server: &'a Server,
    books: MutexGuard<'a, Books>,
    pub(crate) now_ms: u64,
    writes: Vec<Write>,
    wakes: bool,
    done: bool,
}

impl Change<'_> {
    pub(crate) fn books(&self) -> &Books {
        &self.books
    }

    pub(crate) fn fleet(&mut self) -> &mut Fleet {
        &mut self.books.fleet
    }

    /// As [`Books::resize`].
    pub(crate) fn resize(&mut self, id: LeaseId, resize: &ResizeLease) -> Result<(), NoResize> {
        let now_ms = self.now_ms;
        self.books.resize(id, resize, now_ms)
    }

    /// The provider that was there before.
    pub(crate) fn set_identity(&mut self, identity: Option<Identity>) -> Option<Identity> {
        self.writes.push(Write::Identity(identity.clone().map(Box::new)));
        std::mem::replace(&mut self.books.identity, identity)
    }

    /// What was declared before.
    pub(crate) fn set_seller(&mut self, seller: Seller) -> Seller {
        self.writes.push(Write::Seller(seller.clone()));
        std::mem::replace(&mut self.books.seller, seller)
    }

    /// Adds a webhook, or changes the state of one.
    pub(crate) fn set_webhook(&mut self, webhook: Webhook) {
        self.writes.push(Write::Webhook(Box::new(webhook.clone())));
        self.books.webhooks.insert(webhook.id.clone(), webhook);
    }

    pub(crate) fn set_run_default(&mut self, default: RunDefault) {
        self.writes.push(Write::RunDefault(default.clone()));
        self.books.run_defaults.insert((default.tenant.clone(), default.program.clone()), default);
    }

    pub(crate) fn remove_run_default(&mut self, default: &RunDefault) {
        self.writes.push(Write::RemoveRunDefault(default.clone()));
        self.books.run_defaults.remove(&(default.tenant.clone(), default.program.clone()));
    }

    pub(crate) fn remove_webhook(&mut self, id: &str) {
        self.writes.push(Write::RemoveWebhook(id.to_owned()));
        self.books.webhooks.remove(id);
    }

    pub(crate) fn write(&mut self, write: Write) {
        self.writes.push(write);
    }

    /// Counts a usage record.
    pub(crate) fn count(&mut self, record: &UsageRecord) {
        self.write(Write::Usage { record: record.clone(), received_at_ms: self.now_ms });
        let Books { counted, fleet, .. } = &mut *self.books;
        let last = LastCounted { sequence: record.sequence, until_ms: record.until_ms };
        counted.remember(record.node, record.attempt_of(), last, |lease| fleet.lease(lease).is_some());
    }

    /// Who starts when is another matter now, by somebody's hand.
    pub(crate) fn is_by_hand(&mut self) {
        self.books.history.changed_by_hand();
    }

    /// Says in the audit log who did what.
    pub(crate) fn audit(
        &mut self,
        actor: &Principal,
        action: &str,
        subject: &str,
        detail: serde_json::Value,
    ) {
        let entry =
            Entry::after(&self.books.audit, self.now_ms, &actor.name(), action, subject, &detail.to_string());
        self.books.audit = entry.head();
        if !self.books.webhooks.is_empty()
            && let Some(event) = webhooks::Event::of(&entry, &detail, &self.books.fleet)
        {
            let deliveries = webhooks::deliveries(&self.books.webhooks, &event);
            self.writes.extend(deliveries.into_iter().map(|new| Write::NewDelivery(Box::new(new))));
        }
        self.writes.push(Write::Audit(entry));
    }

    /// Adds a test delivery for a webhook, and returns the id of its event.
    pub(crate) fn test_webhook(&mut self, actor: &Principal, webhook: &Webhook) -> String {
        let detail = serde_json::json!({ "tenant": webhook.tenant }).to_string();
        let entry = Entry::after(
            &self.books.audit,
            self.now_ms,
            &actor.name(),
            "webhook.tested",
            &webhook.id,
            &detail,
        );
        self.books.audit = entry.head();
        let event = webhooks::test_event(&entry, webhook.tenant.clone());
        self.writes.push(Write::NewDelivery(Box::new(event.delivery(&webhook.id))));
        self.writes.push(Write::Audit(entry));
        event.id
    }

    /// Says in the audit log what became of leases just now, and whose doing it was.
    pub(crate) fn audit_leases(&mut self, actor: &Principal) {
        for Event { lease, action, detail } in self.fleet().take_events() {
            self.audit(actor, action, &lease.to_string(), detail);
        }
    }

    /// Says in the log and in the audit log what the fleet has noticed.
    pub(crate) fn report_incidents(&mut self) {
        for incident in self.fleet().take_incidents() {
            self.report(incident);
        }
    }

    fn report(&mut self, incident: Incident) {
        let (action, subject, detail) = match incident {
            Incident::Lost { node, leases } => {
                eprintln!(
                    "sluice-server: node {node} is lost; what {} leases have there runs elsewhere",
                    leases.len()
                );
                ("node.lost", node, serde_json::json!({ "leases": leases }))
            }
            Incident::Silent { node } => {
                eprintln!("sluice-server: node {node} has stopped reporting");
                ("node.silent", node, serde_json::json!({}))
            }
            Incident::Reports { node } => {
                eprintln!("sluice-server: node {node} reports again");
                ("node.reports", node, serde_json::json!({}))
            }
            Incident::Held { silent, online } => {
                eprintln!(
                    "sluice-server: {silent} nodes with leases are silent and {online} report: is this server cut off? \
                     Nothing is queued again; `sluice lease preempt` does so for one lease"
                );
                ("breaker.held", String::new(), serde_json::json!({ "silent": silent, "online": online }))
            }
            Incident::Released => ("breaker.released", String::new(), serde_json::json!({})),
            Incident::Fenced { gpu, fence, leases } => {
                let count = leases.len();
                eprintln!("sluice-server: GPU {gpu} is fenced: {}; {count} leases leave it", fence.why);
                ("gpu.fenced", gpu.to_string(), serde_json::json!({ "fence": fence, "leases": leases }))
            }
            Incident::Unfenced { gpu, why } => {
                eprintln!("sluice-server: GPU {gpu} is used again: {why}");
                ("gpu.unfenced", gpu.to_string(), serde_json::json!({ "why": why }))
            }
            Incident::Suspected { gpu, why } => {
                eprintln!("sluice-server: GPU {gpu} is suspected and not fenced: {why}");
                ("gpu.suspected", gpu.to_string(), serde_json::json!({ "why": why }))
            }
            Incident::GpusHeld { pool, faulty, gpus } => {
                eprintln!(
                    "sluice-server: {faulty} of the {gpus} GPUs of pool {pool} became faulty within minutes: is it something they \
                     have in common? No more are fenced until somebody has looked: `sluice gpus` lists the suspected ones, \
                     `sluice gpu fence` and `sluice gpu unfence` decide"
                );
                ("gpus.held", pool, serde_json::json!({ "faulty": faulty, "gpus": gpus }))
            }
        };
        self.audit(&Principal::server(), action, &subject, detail);
    }

    /// Has the scheduler look at the queue, though nothing is written.
    pub(crate) fn wake(&mut self) {
        self.wakes = true;
    }

    /// When this returns, what was changed before is in the database, and can be asked for there:
    /// nobody adds to it meanwhile.
    pub(crate) async fn see_all_written(&self) -> Result<(), Problem> {
        self.server.durable(self.server.commits.latest_of(self.books.epoch)).await
    }

    /// Makes it true; when this returns, it is in the database.
    pub(crate) async fn commit(self) -> Result<(), Problem> {
        let server = self.server;
        server.durable(self.hand_over()).await
    }

    /// As [`Change::commit`], once the scheduler has looked at the queue as well.
    pub(crate) async fn commit_and_look(self) -> Result<(), Problem> {
        let server = self.server;
        // A look that counts up after this began after the change: both hold the lock.
        let mut cycles = server.cycles.subscribe();
        server.durable(self.hand_over()).await?;
        // A look that fails or takes long leaves the lease in the queue: that is an answer too.
        let _ = tokio::time::timeout(LOOK_TIME_MAX, cycles.changed()).await;
        Ok(())
    }

    /// Ends it without anything that has to be written.
    pub(crate) fn leave(mut self) {
        self.done = self.writes.is_empty() && !self.books.fleet.has_changed();
    }

    /// Lets it be written; the fleet is free again. not if what it was built on has failed.
    fn hand_over(mut self) -> Result<Ticket, Lost> {
        // What nobody asked for.
        self.audit_leases(&Principal::server());
        let mut writes = std::mem::take(&mut self.writes);
        let changed = self.books.fleet.take_changed();
        let errors = changed.iter().filter_map(|lease| self.books.history.follow(lease));
        writes.extend(errors.map(Write::EstimateError));
        writes.extend(changed.into_iter().map(|lease| Write::Lease(Box::new(lease))));
        let cards = self.books.fleet.take_changed_cards();
        writes.extend(cards.into_iter().map(|(id, record)| Write::Card { id, record }));
        if !writes.is_empty() {
            writes.extend(keys::take().map(Write::Key));
        }
        // What was used is nothing that a look at the queue depends on: budgets are added up in
        // their own rhythm.
        let is_about_leases = |write: &Write| !matches!(write, Write::Usage { .. } | Write::Delivery(_));
        let wakes = self.wakes || writes.iter().any(is_about_leases);
        let ticket = self.server.commits.add(self.books.epoch, writes);
        self.done = ticket.is_ok();
        if wakes {
            self.server.wake.notify_one();
        }
        ticket
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.books.stale = true;
        }
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
    eprintln!("sluice-server: {error}");
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
mod tests {
    use futures_util::FutureExt;

    use crate::history::EstimateError;

    use super::*;

    /// Most of what a server hears is reports with usage and nothing else.
    #[tokio::test]
    async fn the_queue_is_looked_at_for_what_changed_and_not_for_what_was_used() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&crate::Database::Sqlite(folder.path().join("database"))).await.unwrap();
        let fence = store.lead("a test", "", true).await.unwrap().unwrap();
        let patience = Patience { grace_ms: 0, quiet_ms: 0 };
        let server =
            Server::open(store, Signer::new([7; 32]), patience, Surroundings::default()).await.unwrap();
        server.become_role(Role::Leader(fence));
        server.wake.notified().await;
        let record = serde_json::json!({
            "id": "", "node": 1, "lease": 1, "attempt": 1, "sequence": 1, "tenant": "acme", "from_ms": 0, "until_ms": 1,
            "share_ppm": 1, "gpus": 1, "memory_mib": 1, "used_ppm_ms": 1, "kernels": 1, "bytes_in": 1, "bytes_out": 1,
            "memory_peak": 1, "last": false,
        });
        let record = serde_json::from_value(record).unwrap();
        for (write, looks) in
            [(Write::Usage { record, received_at_ms: 0 }, false), (Write::ForgetKeys { before_ms: 0 }, true)]
        {
            let mut change = server.change().await.unwrap();
            change.write(write);
            assert!(change.hand_over().is_ok());
            assert_eq!(server.wake.notified().now_or_never().is_some(), looks);
        }
    }

    #[tokio::test]
    async fn the_queue_is_looked_at_while_budgets_are_added_up() {
        let folder = tempfile::tempdir().unwrap();
        let faults = std::sync::Arc::new(crate::store::faults::Faults::default());
        let store = Store::simulated(&folder.path().join("database"), faults.clone()).await.unwrap();
        store.set_clock(1_000_000).await.unwrap();
        let fence = store.lead("a test", "", true).await.unwrap().unwrap();
        let budget = serde_json::json!({ "micro": 1, "per": "ever", "then": "hold" });
        let tenant = serde_json::json!({ "path": "acme", "budget": budget });
        let tenant = serde_json::from_value(tenant).unwrap();
        store.commit(fence, vec![Write::Tenant(tenant)]).await.unwrap();
        let patience = Patience { grace_ms: 0, quiet_ms: 0 };
        let server = Server::open(store, Signer::new([7; 32]), patience, Surroundings::default());
        let server = std::sync::Arc::new(server.await.unwrap());
        let mut sums = faults.sums_begun.subscribe();
        let (mut cycles, other) = (server.cycles.subscribe(), server.clone());
        tokio::spawn(async move { other.schedule().await });
        let waits = Duration::from_secs(60);
        // Before the first look at the queue it is known what is spent.
        tokio::time::timeout(waits, sums.changed()).await.unwrap().unwrap();
        let endless = faults.sums.lock().await;
        let other = server.clone();
        tokio::spawn(async move { other.follow_budgets().await });
        tokio::time::timeout(waits, sums.changed()).await.unwrap().unwrap();
        server.become_role(Role::Leader(fence));
        cycles.mark_unchanged();
        let looked = tokio::time::timeout(waits, cycles.changed()).await;
        assert!(looked.is_ok(), "nobody looks at the queue");
        drop(endless);
    }

    #[tokio::test]
    async fn what_is_spent_is_not_taken_for_that_of_a_budget_that_was_declared_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let faults = std::sync::Arc::new(crate::store::faults::Faults::default());
        let store = Store::simulated(&folder.path().join("database"), faults.clone()).await.unwrap();
        store.set_clock(1_000_000).await.unwrap();
        let fence = store.lead("a test", "", true).await.unwrap().unwrap();
        let budget = |per: &str| -> Budget {
            let budget = serde_json::json!({ "micro": 1, "per": per, "then": "preempt" });
            serde_json::from_value(budget).unwrap()
        };
        let acme: TenantPath = "acme".parse().unwrap();
        let tenant = serde_json::json!({ "path": "acme", "budget": budget("ever") });
        let correction = serde_json::json!({
            "id": 1, "tenant": "acme", "micro": 500, "at_ms": 5, "reason": "long ago", "made_at_ms": 5, "made_by": "a test",
        });
        let [tenant, correction] = [
            Write::Tenant(serde_json::from_value(tenant).unwrap()),
            Write::Correction(serde_json::from_value(correction).unwrap()),
        ];
        store.commit(fence, vec![tenant, correction]).await.unwrap();
        let patience = Patience { grace_ms: 0, quiet_ms: 0 };
        let server = Server::open(store, Signer::new([7; 32]), patience, Surroundings::default());
        let server = server.await.unwrap();
        let spent = async |server: &Server| {
            server.look_at_budgets().await.unwrap();
            let status = |books: &Books, _| books.fleet.budgets().status(&acme).unwrap().spent_micro;
            server.read(status).await.unwrap()
        };
        assert_eq!(spent(&server).await, 500);
        let mut sums = faults.sums_begun.subscribe();
        let slow = faults.sums.lock().await;
        let declares = async {
            sums.changed().await.unwrap();
            let declare =
                |books: &mut Books, _| _ = books.fleet.set_budget(acme.clone(), Some(budget("day")));
            server.hear(declare).await.unwrap();
            drop(slow);
        };
        assert_eq!(tokio::join!(spent(&server), declares).0, 0);
        assert_eq!(spent(&server).await, 0, "nothing is of this day");
    }

    #[tokio::test]
    async fn how_far_off_estimates_were_is_known_to_the_next_server() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&crate::Database::Sqlite(folder.path().join("database"))).await.unwrap();
        let fence = store.lead("a test", "", true).await.unwrap().unwrap();
        let acme: TenantPath = "acme".parse().unwrap();
        let error = |lease, error_ms| {
            let (tenant, at_ms) = (acme.clone(), lease);
            Write::EstimateError(EstimateError { lease, attempt: 1, tenant, at_ms, error_ms })
        };
        let errors =
            [10, 20, 30, 40, 50].into_iter().zip(1..).map(|(error_ms, lease)| error(lease, error_ms));
        store.commit(fence, errors.collect()).await.unwrap();
        // A lease that was granted once more under the same attempt counts once.
        store.commit(fence, vec![error(5, 60)]).await.unwrap();
        let books = Books::read(&store, Commits::new().epoch(), 0).await.unwrap();
        assert_eq!(books.history.error_ms(&acme), Some(30));
        let kept = store.estimate_errors(2).await.unwrap();
        assert_eq!(kept.iter().map(|error| error.error_ms).collect::<Vec<_>>(), [40, 60], "the latest");
    }

    #[test]
    fn what_is_spent_is_said_in_money() {
        let status = serde_json::json!({
            "micro": 10_000_000, "per": "month", "then": "hold", "spent_micro": 1_208_945_446, "spent_percent": 12089,
        });
        let (acme, status) = ("acme".parse().unwrap(), serde_json::from_value(status).unwrap());
        let line = spent_line(&acme, &status, None);
        assert_eq!(line, "acme has spent 12089 % of its budget (1208.945446 of 10)");
        let euro = Currency::try_from("EUR".to_owned()).unwrap();
        assert!(spent_line(&acme, &status, Some(&euro)).ends_with("of 10 EUR)"));
    }

    /// A process that is stopped finds the clock that is never set far ahead, as one does whose
    /// database did not answer.
    #[tokio::test]
    async fn a_server_that_stood_still_takes_nobody_for_silent() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&crate::Database::Sqlite(folder.path().join("database"))).await.unwrap();
        let mut books = Books::read(&store, Commits::new().epoch(), 0).await.unwrap();
        let join = serde_json::json!({ "name": "one", "address": "h:1", "gpus": [], "release": "" });
        let node = books.fleet.join(serde_json::from_value(join).unwrap(), 0).id;
        let report = sluice_api::node::Report { sequence: 1, ..Default::default() };
        books.fleet.report(node, report, 0).unwrap();
        // The database has been read in true time.
        tokio::time::pause();
        let (begun, stood_still_s) = (tokio::time::Instant::now(), 300);
        books.looked = (0, begun);
        let mut look = |after_s: u64| {
            let now_ms = begun.elapsed().as_millis() as u64;
            books.follow_clock(now_ms);
            books.fleet.look_at_nodes(now_ms, now_ms);
            let online = books.fleet.nodes()[&node].takes_work();
            assert_eq!(online, after_s < 15, "{after_s} s of listening without a word");
        };
        for second in 0..=20 {
            look(second - u64::from(second > 10));
            let stands_still = second == 10;
            let passes_s = if stands_still { stood_still_s } else { 1 };
            tokio::time::advance(Duration::from_secs(passes_s)).await;
        }
    }
}

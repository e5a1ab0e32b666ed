//! The server: the fleet in memory, the database behind it, and changes that reach both or neither.
//!
//! [`Server::change`] locks the fleet; what the change does to it, together with the audit entries and rows that it adds, is
//! written in one transaction by [`Change::commit`], and only then does anybody learn of it. If the transaction fails, or the
//! change is given up half way, the fleet is read from the database again before the next change.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sluice_api::audit::{Entry, Head};
use sluice_api::grant::Signer;
use sluice_api::problem::{Kind, Problem};
use sluice_api::tenant::Tenant;
use tokio::sync::{Mutex, MutexGuard, Notify, watch};

use crate::auth::Principal;
use crate::fleet::Fleet;
use crate::place::{self, Decision};
use crate::store::{Database, Store, StoreError, Write};

pub(crate) struct Server {
    pub(crate) store: Store,
    pub(crate) signer: Signer,
    /// How long a preempted program may go on.
    pub(crate) grace_ms: u64,
    books: Mutex<Books>,
    /// Tells watchers of leases that something changed.
    changes: watch::Sender<u64>,
    /// Tells the scheduler.
    wake: Notify,
}

struct Books {
    fleet: Fleet,
    audit: Head,
    /// Does not show what the database holds.
    stale: bool,
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_millis() as u64)
}

/// The queue is looked at this often even if nothing happens: time alone ends things.
const LOOK_EVERY: Duration = Duration::from_millis(500);

impl Server {
    pub(crate) async fn open(
        database: &Database,
        signer: Signer,
        grace_ms: u64,
    ) -> Result<Server, StoreError> {
        let store = Store::open(database).await?;
        let books = Books::read(&store).await?;
        Ok(Server {
            store,
            signer,
            grace_ms,
            books: Mutex::new(books),
            changes: watch::Sender::new(0),
            wake: Notify::new(),
        })
    }

    /// Looks at the fleet.
    pub(crate) async fn read<T>(&self, look: impl FnOnce(&Fleet, u64) -> T) -> T {
        let books = self.books.lock().await;
        look(&books.fleet, now_ms())
    }

    /// Begins a change; nobody else makes one meanwhile.
    pub(crate) async fn change(&self) -> Result<Change<'_>, Problem> {
        let mut books = self.books.lock().await;
        if books.stale {
            *books = Books::read(&self.store).await.map_err(unwell)?;
        }
        Ok(Change { server: self, books, now_ms: now_ms(), writes: Vec::new(), done: false })
    }

    /// Counts up with every change; see [`tokio::sync::watch`].
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Serves the queue; never returns.
    pub(crate) async fn schedule(&self) {
        loop {
            let _ = tokio::time::timeout(LOOK_EVERY, self.wake.notified()).await;
            if let Err(problem) = self.cycle().await {
                eprintln!("sluice-server: {problem}");
            }
        }
    }

    async fn cycle(&self) -> Result<(), Problem> {
        let mut change = self.change().await?;
        let now_ms = change.now_ms;
        let fleet = change.fleet();
        fleet.expire(now_ms);
        loop {
            let decisions = place::decide(fleet, now_ms);
            let mut again = false;
            for decision in decisions {
                match decision {
                    Decision::Grant { lease, seat } => {
                        fleet.grant(lease, seat, now_ms);
                        again = true;
                    }
                    Decision::Wait { lease, reason } => fleet.wait_because(lease, reason),
                }
            }
            if !again {
                break;
            }
        }
        change.commit_quietly().await
    }
}

impl Books {
    async fn read(store: &Store) -> Result<Books, StoreError> {
        let tenants = store.tenants().await?.into_iter().map(|Tenant { path, quota }| (path, quota));
        let leases = store.open_leases().await?;
        let fleet = Fleet::new(tenants, store.nodes().await?, leases, store.last_lease().await?, now_ms());
        Ok(Books { fleet, audit: store.audit_head().await?, stale: false })
    }
}

/// A change under way; given up unless it is committed.
pub(crate) struct Change<'a> {
    server: &'a Server,
    books: MutexGuard<'a, Books>,
    pub(crate) now_ms: u64,
    writes: Vec<Write>,
    done: bool,
}

impl Change<'_> {
    pub(crate) fn fleet(&mut self) -> &mut Fleet {
        &mut self.books.fleet
    }

    pub(crate) fn write(&mut self, write: Write) {
        self.writes.push(write);
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
        self.writes.push(Write::Audit(entry));
    }

    /// Makes it true, and wakes the scheduler.
    pub(crate) async fn commit(self) -> Result<(), Problem> {
        let server = self.server;
        self.commit_quietly().await?;
        server.wake.notify_one();
        Ok(())
    }

    /// Ends it without anything that has to be written.
    pub(crate) fn leave(mut self) {
        self.done = self.writes.is_empty() && !self.books.fleet.has_changed();
    }

    async fn commit_quietly(mut self) -> Result<(), Problem> {
        let mut writes = std::mem::take(&mut self.writes);
        let changed = self.books.fleet.take_changed();
        let anything = !changed.is_empty();
        writes.extend(changed.into_iter().map(|lease| Write::Lease(Box::new(lease))));
        if !writes.is_empty() {
            self.server.store.commit(writes).await.map_err(unwell)?;
        }
        self.done = true;
        if anything {
            self.server.changes.send_modify(|count| *count += 1);
        }
        Ok(())
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.books.stale = true;
        }
    }
}

/// The answer to a client while the database fails; the cause is for the operator.
pub(crate) fn unwell(error: StoreError) -> Problem {
    eprintln!("sluice-server: {error}");
    Problem::new(Kind::Internal, "the database did not answer; the server's log says why")
}

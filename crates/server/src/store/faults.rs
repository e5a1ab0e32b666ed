//! What goes wrong between a simulated server and its database.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlx::any::AnyPoolOptions;

use super::database::CONNECTION_TIME_MAX;
use super::{Result, Store, StoreError};

/// What becomes of one transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CommitFault {
    /// Nothing is written.
    Refused,
    /// All of it is written, and the server gets the answer that nothing was.
    AnswerLost,
    /// The server stands still before it.
    PauseBefore(Duration),
    /// The server stands still between its end and the news of it.
    PauseAfter(Duration),
}

#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Of the next transactions, one each.
    next: Mutex<VecDeque<CommitFault>>,
    pub(crate) cut: AtomicBool,
    /// Nothing can be written, and everything read.
    pub(crate) full: AtomicBool,
    /// Counts how often sums of the ledger were asked for. They take as long as a test holds the
    /// other.
    pub(crate) sums_begun: tokio::sync::watch::Sender<u64>,
    pub(crate) sums: tokio::sync::Mutex<()>,
}

impl Faults {
    pub(crate) fn add(&self, fault: CommitFault) {
        self.next.lock().unwrap().push_back(fault);
    }

    /// A server that starts does not find what was meant for an earlier run: its clock stands still
    /// until it has started.
    pub(crate) fn forget(&self) {
        self.next.lock().unwrap().clear();
    }

    pub(crate) fn clear(&self) {
        self.forget();
        self.cut.store(false, Ordering::Relaxed);
        self.full.store(false, Ordering::Relaxed);
    }

    pub(super) fn reach(&self) -> Result<()> {
        if self.cut.load(Ordering::Relaxed) { Err(away()) } else { Ok(()) }
    }

    pub(super) fn find_room(&self) -> Result<()> {
        self.reach()?;
        // What it is for does not matter here.
        if self.full.load(Ordering::Relaxed) {
            Err(StoreError::DiskFull(sqlx::Error::PoolClosed))
        } else {
            Ok(())
        }
    }

    pub(super) async fn before_sums(&self) {
        self.sums_begun.send_modify(|count| *count += 1);
        drop(self.sums.lock().await);
    }

    /// What is to become of the transaction that begins.
    pub(super) async fn before_commit(&self) -> Result<Option<CommitFault>> {
        self.find_room()?;
        let fault = self.next.lock().unwrap().pop_front();
        match fault {
            Some(CommitFault::Refused) => return Err(away()),
            Some(CommitFault::PauseBefore(pause)) => tokio::time::sleep(pause).await,
            _ => {}
        }
        Ok(fault)
    }

    pub(super) async fn after_commit(&self, fault: Option<CommitFault>) -> Result<()> {
        match fault {
            Some(CommitFault::AnswerLost) => Err(away()),
            Some(CommitFault::PauseAfter(pause)) => {
                tokio::time::sleep(pause).await;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

fn away() -> StoreError {
    StoreError::Database(sqlx::Error::Io(io::Error::other("the simulated link to the database is cut")))
}

impl Store {
    /// A SQLite file behind one connection, so that statements come in one order; the database's
    /// clock is what the table `simulated_clock` says. Processes end here and machines do not, so
    /// nothing is synced.
    pub(crate) async fn simulated(file: &Path, faults: Arc<Faults>) -> Result<Store> {
        sqlx::any::install_default_drivers();
        let options = AnyPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(CONNECTION_TIME_MAX)
            .after_connect(|connection, _| {
                Box::pin(async move {
                    for setting in ["PRAGMA journal_mode = WAL", "PRAGMA synchronous = OFF"] {
                        sqlx::query(setting).execute(&mut *connection).await?;
                    }
                    Ok(())
                })
            });
        let pool = options.connect(&format!("sqlite://{}?mode=rwc", file.display())).await?;
        let store = Store { faults, ..Store::new(pool, "(SELECT ms FROM simulated_clock)") };
        store.migrate(false).await?;
        sqlx::query("CREATE TABLE IF NOT EXISTS simulated_clock (ms BIGINT NOT NULL)")
            .execute(&store.pool)
            .await?;
        Ok(store)
    }

    /// The database's clock shows this from now on.
    pub(crate) async fn set_clock(&self, ms: u64) -> Result<()> {
        let set = sqlx::query("UPDATE simulated_clock SET ms = $1").bind(ms as i64);
        if set.execute(&self.pool).await?.rows_affected() == 0 {
            let begin = sqlx::query("INSERT INTO simulated_clock (ms) VALUES ($1)").bind(ms as i64);
            begin.execute(&self.pool).await?;
        }
        Ok(())
    }

    /// Writes as another user of the database does.
    pub(crate) async fn execute(&self, sql: &'static str) {
        sqlx::query(sql).execute(&self.pool).await.unwrap();
    }

    /// Whether no statement is under way.
    pub(crate) fn rests(&self) -> bool {
        self.pool.size() as usize == self.pool.num_idle()
    }
}

//! The database: SQLite or PostgreSQL, in SQL that both understand; but for what keeps the sums of
//! usage records, in `migrations`.
//!
//! [`Store::commit`] writes everything that one change consists of in one transaction: what is
//! answered to a client is durable. Numbers are stored as 64-bit signed ones; the types of
//! `sluice-api` are checked to fit before they get here.

mod aside;
mod audit;
mod autonomy;
mod bills;
mod card_sums;
mod cards;
mod convert;
mod copy;
mod database;
#[cfg(test)]
pub(crate) mod faults;
mod history;
mod identity;
mod last_uses;
mod leader;
mod leases;
mod ledger;
mod migrations;
mod nodes;
mod pools;
mod promises;
mod replicas;
mod rows;
mod run_defaults;
mod seller;
mod tenants;
mod tokens;
mod webhooks;
mod within;
mod write;

use std::path::PathBuf;

use sluice_api::lease::LeaseId;
use sqlx::{Any, AnyPool, Transaction};

pub(crate) use audit::Told;
pub(crate) use card_sums::CardSum;
pub use database::Database;
pub(crate) use leader::{Fence, LEADERSHIP, Leader};
pub(crate) use leases::KeyUse;
pub(crate) use ledger::Sum;
pub(crate) use pools::Declared;
pub(crate) use promises::PromisedSum;
pub(crate) use replicas::{Presence, Replica, Replicas};
pub(crate) use tokens::StoredToken;
pub(crate) use webhooks::{DueDelivery, NewDelivery};
pub(crate) use write::Write;

use convert::{
    from_json, largest, parsed, signed, small, small_or_null, text, to_json, unsigned, unsigned_or_null,
    within,
};
use database::{clock, connect};
use migrations::MIGRATIONS;

/// Why the database did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("the database: {0}")]
    Database(#[source] sqlx::Error),
    #[error("the disk of the database is full: {0}")]
    DiskFull(#[source] sqlx::Error),
    #[error(
        "the database is damaged: {0}. Put it back, or restore a backup into another folder (`sluice restore --data NEW_FOLDER BACKUP`)"
    )]
    Damaged(#[source] sqlx::Error),
    #[error("the database's schema: {0}")]
    Migration(#[from] sqlx::migrate::MigrateError),
    #[error("another server leads now; nothing was written")]
    Fenced,
    #[error(
        "grant.key in the data folder is not the key of the servers that use this database; copy theirs, which they all need"
    )]
    OtherKey,
    #[error("{}: there is no database", .0.display())]
    NoDatabase(PathBuf),
    #[error(
        "the database is of another release; start this release's server on it once, or take its own release"
    )]
    OtherRelease,
    #[error("the database to copy into is not empty")]
    NotEmpty,
    #[error("the database holds {what} that this release cannot read: {value}")]
    Content { what: &'static str, value: String },
}

pub(crate) type Result<T> = std::result::Result<T, StoreError>;

/// What databases say when they find no room: SQLite `SQLITE_FULL`, and `SQLITE_IOERR_SHMSIZE`
/// where the index of its log cannot grow (sqlite.org/rescode.html), PostgreSQL `disk_full` (its
/// manual, appendix A).
const DISK_FULL: [&str; 3] = ["13", "4874", "53100"];

/// What SQLite says where a file is damaged: `SQLITE_CORRUPT` with its extended codes, and
/// `SQLITE_NOTADB` (sqlite.org/rescode.html).
const DAMAGED: [&str; 5] = ["11", "267", "523", "779", "26"];

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> StoreError {
        let code = error.as_database_error().and_then(|error| error.code());
        match code.as_deref() {
            Some(code) if DISK_FULL.contains(&code) => StoreError::DiskFull(error),
            Some(code) if DAMAGED.contains(&code) => StoreError::Damaged(error),
            _ => StoreError::Database(error),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Store {
    pool: AnyPool,
    /// Milliseconds since 1970 by the database's clock, in SQL.
    clock: &'static str,
    #[cfg(test)]
    faults: std::sync::Arc<faults::Faults>,
}

impl Store {
    /// Opens the database and brings its schema up to this release.
    pub(crate) async fn open(database: &Database) -> Result<Store> {
        let store = Store::new(connect(database).await?, clock(database));
        store.migrate(matches!(database, Database::Postgres(_))).await?;
        Ok(store)
    }

    fn new(pool: AnyPool, clock: &'static str) -> Store {
        Store {
            pool,
            clock,
            #[cfg(test)]
            faults: Default::default(),
        }
    }
}

type Tx<'a> = Transaction<'a, Any>;

impl Store {
    pub(crate) async fn last_lease(&self) -> Result<LeaseId> {
        largest(&self.pool, "SELECT MAX(id) AS largest FROM lease").await
    }
}

#[cfg(test)]
mod tests;

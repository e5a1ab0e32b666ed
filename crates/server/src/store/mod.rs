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
mod cards;
mod copy;
#[cfg(test)]
pub(crate) mod faults;
mod history;
mod identity;
mod leader;
mod leases;
mod ledger;
mod nodes;
mod pools;
mod rows;
mod run_defaults;
mod seller;
mod tenants;
mod tokens;
mod webhooks;
mod within;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use sluice_api::audit::Entry;
use sluice_api::autonomy::{Consent, LeftAlone, ProgramName};
use sluice_api::bill::{Correction, Price, Seller};
use sluice_api::identity::Identity;
use sluice_api::invoice::Invoice;
use sluice_api::lease::LeaseId;
use sluice_api::node::NodeId;
use sluice_api::pool::Pool;
use sluice_api::recommendation::RunDefault;
use sluice_api::tenant::{Tenant, TenantPath};
use sluice_api::usage::{AsideRecord, UsageRecord};
use sluice_api::webhook::{Delivery, Webhook};
use sqlx::any::{AnyPoolOptions, AnyRow};
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{Any, AnyPool, Connection, Row, SqlSafeStr, Transaction};

use crate::autonomy::SizedProgram;
use crate::fleet::{CardId, CardRecord, LeaseRecord, Node};
use crate::history::EstimateError;

pub(crate) use audit::Told;
pub(crate) use leader::{Fence, LEADERSHIP, Leader};
pub(crate) use leases::KeyUse;
pub(crate) use ledger::Sum;
pub(crate) use pools::Declared;
pub(crate) use tokens::StoredToken;
pub(crate) use webhooks::{DueDelivery, NewDelivery};

/// Why the database did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("the database: {0}")]
    Database(#[source] sqlx::Error),
    #[error("the disk of the database is full: {0}")]
    DiskFull(#[source] sqlx::Error),
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

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> StoreError {
        let code = error.as_database_error().and_then(|error| error.code());
        let is_full = code.is_some_and(|code| DISK_FULL.contains(&code.as_ref()));
        if is_full { StoreError::DiskFull(error) } else { StoreError::Database(error) }
    }
}

/// One thing to write.
pub(crate) enum Write {
    Tenant(Tenant),
    Token(StoredToken),
    Revoke(String),
    Node {
        node: Node,
        joined_at_ms: u64,
    },
    Drain(Node),
    ForgetNode(NodeId),
    RemoveTenant(TenantPath),
    /// Its declarations stay: what was used by them is priced by them.
    RemovePool(String),
    Lease(Box<LeaseRecord>),
    Card {
        id: CardId,
        record: Option<CardRecord>,
    },
    Usage {
        record: UsageRecord,
        received_at_ms: u64,
    },
    /// A usage record that does not count.
    Aside(Box<AsideRecord>),
    /// It has been decided about.
    AsideGone(String),
    EstimateError(EstimateError),
    Price(Price),
    Pool {
        pool: Pool,
        from_ms: u64,
    },
    Identity(Option<Box<Identity>>),
    Seller(Seller),
    Correction(Correction),
    /// A new one, or one in another state.
    Invoice(Box<Invoice>),
    /// Replaces the draft of this number, or discards it.
    Draft {
        number: u64,
        draft: Option<Box<Invoice>>,
    },
    Audit(Entry),
    Key(KeyUse),
    /// What a request under a key was answered with, sealed.
    Answer {
        token: String,
        name: String,
        answer: String,
    },
    /// Idempotency keys from before this moment are forgotten.
    ForgetKeys {
        before_ms: u64,
    },
    RunDefault(RunDefault),
    RemoveRunDefault(RunDefault),
    Consent(Box<Consent>),
    LeftAlone(LeftAlone),
    NotLeftAlone(ProgramName),
    /// Without a size the next runs of the program get what they ask for.
    ProgramSize {
        name: ProgramName,
        size: Option<Box<SizedProgram>>,
    },
    /// A webhook that is new, or whose state has changed.
    Webhook(Box<Webhook>),
    /// Removes the webhook with this id, and its deliveries.
    RemoveWebhook(String),
    /// An event for a webhook.
    NewDelivery(Box<NewDelivery>),
    /// A delivery after an attempt.
    Delivery(Box<Delivery>),
    /// Deliveries from before this moment that are over are forgotten.
    ForgetDeliveries {
        before_ms: u64,
    },
}

/// In the order of their versions; a file that has been released never changes. For SQLite and for
/// PostgreSQL, where they differ.
const MIGRATIONS: &[(i64, &str, [&str; 2])] = &[
    (1, "begin", [include_str!("../../migrations/0001_begin.sql"); 2]),
    (2, "replicas", [include_str!("../../migrations/0002_replicas.sql"); 2]),
    (3, "tasks", [include_str!("../../migrations/0003_tasks.sql"); 2]),
    (4, "pools", [include_str!("../../migrations/0004_pools.sql"); 2]),
    (5, "health", [include_str!("../../migrations/0005_health.sql"); 2]),
    (6, "personalities", [include_str!("../../migrations/0006_personalities.sql"); 2]),
    (7, "identity", [include_str!("../../migrations/0007_identity.sql"); 2]),
    (8, "units", [include_str!("../../migrations/0008_units.sql"); 2]),
    (9, "unit quotas", [include_str!("../../migrations/0009_unit_quotas.sql"); 2]),
    (
        10,
        "usage hours",
        [
            include_str!("../../migrations/0010_usage_hours.sqlite.sql"),
            include_str!("../../migrations/0010_usage_hours.postgres.sql"),
        ],
    ),
    (11, "money", [include_str!("../../migrations/0011_money.sql"); 2]),
    (
        12,
        "histories",
        [
            include_str!("../../migrations/0012_histories.sqlite.sql"),
            include_str!("../../migrations/0012_histories.postgres.sql"),
        ],
    ),
    (13, "drains", [include_str!("../../migrations/0013_drains.sql"); 2]),
    (14, "answers", [include_str!("../../migrations/0014_answers.sql"); 2]),
    (
        15,
        "transfer",
        [
            include_str!("../../migrations/0015_transfer.sqlite.sql"),
            include_str!("../../migrations/0015_transfer.postgres.sql"),
        ],
    ),
    (
        16,
        "tenants",
        [
            include_str!("../../migrations/0016_tenants.sqlite.sql"),
            include_str!("../../migrations/0016_tenants.postgres.sql"),
        ],
    ),
    (
        17,
        "sums",
        [
            include_str!("../../migrations/0017_sums.sqlite.sql"),
            include_str!("../../migrations/0017_sums.postgres.sql"),
        ],
    ),
    (
        18,
        "suspended",
        [
            include_str!("../../migrations/0018_suspended.sqlite.sql"),
            include_str!("../../migrations/0018_suspended.postgres.sql"),
        ],
    ),
    (19, "invoices", [include_str!("../../migrations/0019_invoices.sql"); 2]),
    (20, "node tokens", [include_str!("../../migrations/0020_node_tokens.sql"); 2]),
    (21, "webhooks", [include_str!("../../migrations/0021_webhooks.sql"); 2]),
    (22, "run defaults", [include_str!("../../migrations/0022_run_defaults.sql"); 2]),
    (23, "autonomy", [include_str!("../../migrations/0023_autonomy.sql"); 2]),
];

/// Where everything that is counted is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Database {
    /// A file, made if it is not there; for one server.
    Sqlite(PathBuf),
    /// A `postgres://` URL.
    Postgres(String),
}

impl Database {
    /// Reads what `--database` says.
    pub fn parse(text: &str) -> std::result::Result<Database, String> {
        match text.split_once("://") {
            Some(("postgres" | "postgresql", _)) => Ok(Database::Postgres(text.into())),
            Some(("sqlite", path)) if !path.is_empty() => Ok(Database::Sqlite(path.into())),
            _ => Err("postgres://USER@HOST/NAME, or sqlite://FILE".into()),
        }
    }

    /// What `SLUICE_DATABASE` names, if it does.
    pub fn of_environment() -> std::result::Result<Option<Database>, String> {
        const VARIABLE: &str = "SLUICE_DATABASE";
        match std::env::var(VARIABLE) {
            Ok(text) if !text.is_empty() => {
                let database = Database::parse(&text).map_err(|why| format!("{VARIABLE}: {why}"))?;
                Ok(Some(database))
            }
            _ => Ok(None),
        }
    }

    fn url(&self) -> String {
        match self {
            Database::Sqlite(path) => format!("sqlite://{}?mode=rwc", path.display()),
            Database::Postgres(url) => url.clone(),
        }
    }
}

/// Nobody waits longer than this for a connection: who asks is told that the database is away.
const CONNECTION_TIME_MAX: Duration = Duration::from_secs(3);
/// To the database, of one server.
const CONNECTIONS_MAX: u32 = 8;

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

    async fn migrate(&self, postgres: bool) -> Result<()> {
        let migrations = MIGRATIONS.iter().map(|&(version, name, sql)| {
            let sql = sql[usize::from(postgres)];
            Migration::new(version, name.into(), MigrationType::Simple, sql.into_sql_str(), false)
        });
        Migrator::with_migrations(migrations.collect()).run(&self.pool).await?;
        Ok(())
    }

    /// Writes all of it or nothing; nothing if another leader has come, see [`StoreError::Fenced`].
    pub(crate) async fn commit(&self, fence: Fence, writes: Vec<Write>) -> Result<()> {
        #[cfg(test)]
        let fault = self.faults.before_commit().await?;
        let mut rows = Rows::default();
        let mut transaction = self.pool.begin().await?;
        let tx = &mut transaction;
        for write in writes {
            match write {
                Write::Lease(lease) => drop(rows.leases.insert(lease.id, *lease)),
                Write::Audit(entry) => rows.entries.push(entry),
                Write::Key(key) => rows.keys.push(key),
                Write::Answer { token, name, answer } => rows.answers.push((token, name, answer)),
                Write::Usage { record, received_at_ms } => rows.usage.push((record, received_at_ms)),
                Write::Aside(record) => aside::write(tx, &record).await?,
                Write::AsideGone(id) => aside::remove(tx, &id).await?,
                Write::Revoke(id) => tokens::revoke(tx, &id).await?,
                Write::ForgetKeys { before_ms } => leases::forget_keys(tx, before_ms).await?,
                Write::NewDelivery(new) => webhooks::add(tx, &new).await?,
                Write::Delivery(delivery) => webhooks::write_attempt(tx, &delivery).await?,
                Write::ForgetDeliveries { before_ms } => webhooks::forget(tx, before_ms).await?,
                Write::RunDefault(default) => {
                    rows.settings = true;
                    run_defaults::write(tx, &default).await?;
                }
                Write::RemoveRunDefault(default) => {
                    rows.settings = true;
                    run_defaults::remove(tx, &default.tenant, &default.program).await?;
                }
                Write::Consent(consent) => {
                    rows.settings = true;
                    autonomy::write_consent(tx, &consent).await?;
                }
                Write::LeftAlone(left_alone) => {
                    rows.settings = true;
                    autonomy::write_left_alone(tx, &left_alone).await?;
                }
                Write::NotLeftAlone(name) => {
                    rows.settings = true;
                    autonomy::remove_left_alone(tx, &name).await?;
                }
                Write::ProgramSize { name, size } => {
                    rows.settings = true;
                    autonomy::write_size(tx, &name, size.as_deref()).await?;
                }
                Write::Webhook(webhook) => {
                    rows.settings = true;
                    webhooks::write(tx, &webhook).await?;
                }
                Write::RemoveWebhook(id) => {
                    rows.settings = true;
                    webhooks::remove(tx, &id).await?;
                }
                Write::EstimateError(error) => history::write(tx, &error).await?,
                Write::Price(price) => ledger::write_price(tx, &price).await?,
                Write::Pool { pool, from_ms } => {
                    rows.settings = true;
                    pools::write(tx, &pool, from_ms).await?;
                }
                Write::Identity(identity) => {
                    rows.settings = true;
                    identity::write(tx, identity.as_deref()).await?;
                }
                Write::Seller(seller) => {
                    rows.settings = true;
                    seller::write(tx, &seller).await?;
                }
                Write::Correction(correction) => bills::write_correction(tx, &correction).await?,
                Write::Invoice(invoice) => bills::write_invoice(tx, &invoice).await?,
                Write::Draft { number, draft } => bills::write_draft(tx, number, draft.as_deref()).await?,
                Write::Token(token) => tokens::write(tx, &token).await?,
                Write::Tenant(tenant) => {
                    rows.settings = true;
                    tenants::write(tx, &tenant).await?;
                }
                Write::Card { id, record } => {
                    rows.settings = true;
                    cards::write(tx, &id, record.as_ref()).await?;
                }
                Write::Node { node, joined_at_ms } => {
                    rows.settings = true;
                    nodes::write(tx, &node, joined_at_ms).await?;
                }
                Write::Drain(node) => {
                    rows.settings = true;
                    nodes::write_drain(tx, &node).await?;
                }
                Write::ForgetNode(node) => {
                    rows.settings = true;
                    nodes::forget(tx, node).await?;
                }
                Write::RemoveTenant(tenant) => {
                    rows.settings = true;
                    tenants::remove(tx, &tenant).await?;
                    autonomy::remove_tenant(tx, &tenant).await?;
                }
                Write::RemovePool(name) => {
                    rows.settings = true;
                    pools::remove(tx, &name).await?;
                }
            }
        }
        rows.write(tx).await?;
        // Last, since the row is everybody's: it is locked until the commit.
        self.prolong(tx, fence, rows.revision(), rows.settings).await?;
        transaction.commit().await?;
        #[cfg(test)]
        self.faults.after_commit(fault).await?;
        Ok(())
    }
}

/// What is written many rows at a time.
#[derive(Default)]
struct Rows {
    /// The last state of each.
    leases: BTreeMap<LeaseId, LeaseRecord>,
    entries: Vec<Entry>,
    keys: Vec<KeyUse>,
    /// To keys.
    answers: Vec<(String, String, String)>,
    usage: Vec<(UsageRecord, u64)>,
    /// Something else changed that servers keep in memory.
    settings: bool,
}

impl Rows {
    async fn write(&mut self, transaction: &mut Tx<'_>) -> Result<()> {
        let leases: Vec<LeaseRecord> = self.leases.values().cloned().collect();
        leases::write(transaction, &leases).await?;
        audit::write(transaction, &self.entries).await?;
        leases::write_keys(transaction, &self.keys).await?;
        for (token, name, answer) in &self.answers {
            leases::write_answer(transaction, token, name, answer).await?;
        }
        ledger::write_usage(transaction, &self.usage).await
    }

    fn revision(&self) -> u64 {
        self.leases.values().map(|lease| lease.revision).max().unwrap_or(0)
    }
}

async fn connect(database: &Database) -> Result<AnyPool> {
    Ok(options(database).connect(&database.url()).await?)
}

fn options(database: &Database) -> AnyPoolOptions {
    sqlx::any::install_default_drivers();
    AnyPoolOptions::new()
        .max_connections(CONNECTIONS_MAX)
        .acquire_timeout(CONNECTION_TIME_MAX)
        .after_connect({
            let settings = settings(database);
            move |connection, _| {
                Box::pin(async move {
                    for setting in settings {
                        sqlx::query(*setting).execute(&mut *connection).await?;
                    }
                    Ok(())
                })
            }
        })
        // SQLite that finds no room ends a transaction by itself (sqlite.org/lang_transaction.html,
        // 3.1), and the ROLLBACK that follows fails. sqlx takes it for open still, and the next
        // ones for parts of it: sooner or later they end without a COMMIT.
        .after_release(|connection, _| {
            let is_left_open = connection.is_in_transaction();
            Box::pin(async move { Ok(!is_left_open) })
        })
}

/// What every connection begins with.
fn settings(database: &Database) -> &'static [&'static str] {
    match database {
        // Readers do not wait for the writer; a commit is on the disk when it returns.
        Database::Sqlite(_) => &["PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL"],
        // A server that stops in the middle of a transaction does not hold up the next one.
        Database::Postgres(_) => &[
            "SET synchronous_commit = on",
            "SET idle_in_transaction_session_timeout = '2s'",
            "SET statement_timeout = '20s'",
        ],
    }
}

fn clock(database: &Database) -> &'static str {
    match database {
        Database::Sqlite(_) => "CAST((julianday('now') - 2440587.5) * 86400000 AS BIGINT)",
        Database::Postgres(_) => "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)",
    }
}

type Tx<'a> = Transaction<'a, Any>;

/// A number that the checks of `sluice-api` keep far below the largest.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn unsigned(row: &AnyRow, column: &'static str) -> Result<u64> {
    let number: i64 = row.try_get(column)?;
    u64::try_from(number).map_err(|_| StoreError::Content { what: column, value: number.to_string() })
}

fn small(row: &AnyRow, column: &'static str) -> Result<u32> {
    let number = unsigned(row, column)?;
    u32::try_from(number).map_err(|_| StoreError::Content { what: column, value: number.to_string() })
}

fn unsigned_or_null(row: &AnyRow, column: &'static str) -> Result<Option<u64>> {
    match row.try_get::<Option<i64>, _>(column)? {
        None => Ok(None),
        Some(_) => unsigned(row, column).map(Some),
    }
}

fn small_or_null(row: &AnyRow, column: &'static str) -> Result<Option<u32>> {
    match row.try_get::<Option<i64>, _>(column)? {
        None => Ok(None),
        Some(_) => small(row, column).map(Some),
    }
}

fn text(row: &AnyRow, column: &'static str) -> Result<String> {
    Ok(row.try_get(column)?)
}

fn parsed<T: std::str::FromStr>(row: &AnyRow, column: &'static str) -> Result<T> {
    let text = text(row, column)?;
    text.parse().map_err(|_| StoreError::Content { what: column, value: text })
}

fn from_json<T: serde::de::DeserializeOwned>(row: &AnyRow, column: &'static str) -> Result<T> {
    let text = text(row, column)?;
    serde_json::from_str(&text).map_err(|_| StoreError::Content { what: column, value: text })
}

fn to_json(value: &impl serde::Serialize) -> String {
    // Lists and structs of numbers and strings always have a JSON form.
    serde_json::to_string(value).unwrap_or_default()
}

/// For `tenant = A OR tenant LIKE B`: it and all below it. Paths hold no sign that means something
/// to LIKE.
fn within(tenant: &TenantPath) -> (String, String) {
    let below = if tenant.is_root() { "%".to_owned() } else { format!("{tenant}/%") };
    (tenant.to_string(), below)
}

/// The largest id of a table, 0 for none.
async fn largest(pool: &AnyPool, query: &'static str) -> Result<u64> {
    let row = sqlx::query(query).fetch_one(pool).await?;
    Ok(unsigned_or_null(&row, "largest")?.unwrap_or(0))
}

impl Store {
    pub(crate) async fn last_lease(&self) -> Result<LeaseId> {
        largest(&self.pool, "SELECT MAX(id) AS largest FROM lease").await
    }
}

#[cfg(test)]
mod tests {
    use sqlx::AssertSqlSafe;

    use super::*;

    /// Longer than what fits into the pages that are there.
    const LONG: usize = 1 << 20;

    fn key(name: &str, length: usize) -> Vec<Write> {
        let request = "x".repeat(length);
        vec![Write::Key(KeyUse {
            token: "t".into(),
            name: name.into(),
            request,
            lease: 1,
            at_ms: 1,
            answer: String::new(),
        })]
    }

    /// SQLite may find out only at its end that what a statement writes cannot be written: here
    /// since a row refers to one that is not there, and else where there is no room.
    #[tokio::test]
    async fn who_leads_is_said_once_it_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&Database::Sqlite(folder.path().join("database"))).await.unwrap();
        let first = store.lead("first", "http://127.0.0.1:1", true).await.unwrap().unwrap();
        store.execute("CREATE TABLE known (id INTEGER PRIMARY KEY)").await;
        store
            .execute("CREATE TABLE refers (id INTEGER REFERENCES known DEFERRABLE INITIALLY DEFERRED)")
            .await;
        store
            .execute(
                "CREATE TRIGGER refuse AFTER UPDATE ON leader WHEN NEW.holder = 'second' \
                 BEGIN INSERT INTO refers VALUES (1); END",
            )
            .await;
        let second = store.lead("second", "http://127.0.0.1:2", true).await;
        assert!(second.is_err(), "{second:?}");
        store.commit(first, Vec::new()).await.unwrap();
        let third = store.lead("third", "http://127.0.0.1:3", true).await.unwrap().unwrap();
        assert!(matches!(store.commit(first, Vec::new()).await, Err(StoreError::Fenced)));
        store.commit(third, Vec::new()).await.unwrap();
    }

    /// SQLite ends a transaction by itself when it finds no room. That one, and one that is given
    /// up after it, take nothing with them that is reported as written later.
    #[tokio::test]
    async fn what_is_written_after_there_was_no_room_stays_written() {
        let folder = tempfile::tempdir().unwrap();
        let database = Database::Sqlite(folder.path().join("database"));
        let other = Store::open(&database).await.unwrap();
        let before = other.lead("before", "http://127.0.0.1:1", true).await.unwrap().unwrap();
        let fence = other.lead("a test", "http://127.0.0.1:1", true).await.unwrap().unwrap();
        // One connection, so that each transaction finds what the one before has left.
        let pool = options(&database).max_connections(1).connect(&database.url()).await.unwrap();
        let store = Store::new(pool, clock(&database));
        let pages: i64 = sqlx::query("PRAGMA page_count").fetch_one(&store.pool).await.unwrap().get(0);
        let limit = AssertSqlSafe(format!("PRAGMA max_page_count = {pages}"));
        sqlx::query(limit).execute(&store.pool).await.unwrap();

        let refused = store.commit(fence, key("long", LONG)).await;
        assert!(matches!(refused, Err(StoreError::DiskFull(_))), "{refused:?}");
        let refused = store.commit(before, key("fenced", 1)).await;
        assert!(matches!(refused, Err(StoreError::Fenced)), "{refused:?}");
        store.commit(fence, key("short", 1)).await.unwrap();

        assert!(other.idempotent("t", "short").await.unwrap().is_some(), "it was reported as written");
        for name in ["long", "fenced"] {
            assert!(other.idempotent("t", name).await.unwrap().is_none(), "{name}");
        }
    }
}

//! Which database it is, and connections to it.

use std::path::PathBuf;
use std::time::Duration;

use sqlx::any::AnyPoolOptions;
use sqlx::{AnyConnection, AnyPool, Connection};

use super::Result;

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

    pub(super) fn url(&self) -> String {
        match self {
            Database::Sqlite(path) => format!("sqlite://{}?mode=rwc", path.display()),
            Database::Postgres(url) => url.clone(),
        }
    }
}

/// No request waits longer than this for a connection: its answer is that the database is away.
pub(super) const CONNECTION_TIME_MAX: Duration = Duration::from_secs(3);

/// To the database, of one server.
pub(super) const CONNECTIONS_MAX: u32 = 8;

pub(super) async fn connect(database: &Database) -> Result<AnyPool> {
    if matches!(database, Database::Sqlite(_)) {
        try_file(database).await?;
    }
    Ok(options(database).connect(&database.url()).await?)
}

/// Makes one connection to a file and closes it, so that the reason is known where that fails: a
/// pool tries until its time is up, and says only that.
async fn try_file(database: &Database) -> Result<()> {
    sqlx::any::install_default_drivers();
    let mut connection = AnyConnection::connect(&database.url()).await?;
    for setting in settings(database) {
        sqlx::query(*setting).execute(&mut connection).await?;
    }
    Ok(connection.close().await?)
}

pub(super) fn options(database: &Database) -> AnyPoolOptions {
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
pub(super) fn settings(database: &Database) -> &'static [&'static str] {
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

pub(super) fn clock(database: &Database) -> &'static str {
    match database {
        Database::Sqlite(_) => "CAST((julianday('now') - 2440587.5) * 86400000 AS BIGINT)",
        Database::Postgres(_) => "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)",
    }
}

//! The servers that share the database: each writes down that it is there.

use std::time::Duration;

use sqlx::AssertSqlSafe;

use super::{Result, Store, signed, text, unsigned};

/// What a server says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Presence<'a> {
    /// The process, as [`Store::lead`] names it.
    pub(crate) holder: &'a str,
    pub(crate) url: &'a str,
    /// What it has read of what leaders write.
    pub(crate) revision: u64,
    pub(crate) settings_revision: u64,
}

/// A server as the database knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Replica {
    pub(crate) holder: String,
    pub(crate) url: String,
    pub(crate) release: String,
    /// By the database's clock, as is the next.
    pub(crate) started_ms: u64,
    pub(crate) seen_ms: u64,
    pub(crate) revision: u64,
    pub(crate) settings_revision: u64,
}

/// All servers at one moment, and who of them leads.
#[derive(Clone, Debug)]
pub(crate) struct Replicas {
    pub(crate) now_ms: u64,
    /// The number of the leadership: how many there have been.
    pub(crate) fence: u64,
    pub(crate) holder: String,
    pub(crate) since_ms: u64,
    /// No server leads: the last one has said nothing for too long.
    pub(crate) expired: bool,
    pub(crate) revision: u64,
    pub(crate) settings_revision: u64,
    pub(crate) servers: Vec<Replica>,
}

/// A server that has said nothing for this time is gone for good.
const FORGOTTEN_AFTER: Duration = Duration::from_hours(1);

impl Store {
    /// Writes down that a server is there. It needs no leadership: the row is its own.
    pub(crate) async fn say_here(&self, presence: &Presence<'_>) -> Result<()> {
        #[cfg(test)]
        self.faults.find_room()?;
        let now = self.clock;
        let sql = format!(
            "INSERT INTO replica (holder, url, release, started_ms, seen_ms, revision, settings_revision) \
             VALUES ($1, $2, $3, {now}, {now}, $4, $5) ON CONFLICT (holder) DO UPDATE SET url = excluded.url, \
             seen_ms = excluded.seen_ms, revision = excluded.revision, settings_revision = excluded.settings_revision"
        );
        let query = sqlx::query(AssertSqlSafe(sql)).bind(presence.holder.to_owned());
        let query = query.bind(presence.url.to_owned()).bind(env!("CARGO_PKG_VERSION").to_owned());
        let query = query.bind(signed(presence.revision)).bind(signed(presence.settings_revision));
        let mut transaction = self.pool.begin().await?;
        query.execute(&mut *transaction).await?;
        let gone = format!("DELETE FROM replica WHERE seen_ms < {now} - $1");
        let gone = sqlx::query(AssertSqlSafe(gone)).bind(FORGOTTEN_AFTER.as_millis() as i64);
        gone.execute(&mut *transaction).await?;
        Ok(transaction.commit().await?)
    }

    /// A server ends.
    pub(crate) async fn say_gone(&self, holder: &str) -> Result<()> {
        let query = sqlx::query("DELETE FROM replica WHERE holder = $1").bind(holder.to_owned());
        query.execute(&self.pool).await?;
        Ok(())
    }

    pub(crate) async fn replicas(&self) -> Result<Replicas> {
        let leader = self.leader().await?;
        let sql =
            format!("SELECT fence, holder, since_ms, {} AS now_ms FROM leader WHERE id = 1", self.clock);
        let row = sqlx::query(AssertSqlSafe(sql)).fetch_one(&self.pool).await?;
        let rows = sqlx::query("SELECT * FROM replica ORDER BY url, holder").fetch_all(&self.pool).await?;
        let servers = rows.iter().map(|row| {
            Ok(Replica {
                holder: text(row, "holder")?,
                url: text(row, "url")?,
                release: text(row, "release")?,
                started_ms: unsigned(row, "started_ms")?,
                seen_ms: unsigned(row, "seen_ms")?,
                revision: unsigned(row, "revision")?,
                settings_revision: unsigned(row, "settings_revision")?,
            })
        });
        Ok(Replicas {
            now_ms: unsigned(&row, "now_ms")?,
            fence: unsigned(&row, "fence")?,
            holder: text(&row, "holder")?,
            since_ms: unsigned(&row, "since_ms")?,
            expired: leader.expired,
            revision: leader.revision,
            settings_revision: leader.settings_revision,
            servers: servers.collect::<Result<_>>()?,
        })
    }
}

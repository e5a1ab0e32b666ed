//! The row that says who may write.

use std::time::Duration;

use sqlx::AssertSqlSafe;

use super::{Result, Store, StoreError, Tx, signed, text, unsigned};

/// Which leadership a write belongs to; grows with every new leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fence(u64);

impl Fence {
    pub(crate) fn number(self) -> u64 {
        self.0
    }
}

/// What the row says.
#[derive(Clone, Debug)]
pub(crate) struct Leader {
    pub(crate) url: String,
    /// By the database's clock, as is the next; every write moves it.
    pub(crate) until_ms: u64,
    pub(crate) expired: bool,
    /// Of the last change of a lease.
    pub(crate) revision: u64,
    /// Grows when something else changes that servers keep in memory.
    pub(crate) settings_revision: u64,
}

/// A leader that has not written or said so for this long may be replaced.
pub(crate) const LEADERSHIP: Duration = Duration::from_secs(3);

impl Store {
    pub(crate) async fn leader(&self) -> Result<Leader> {
        #[cfg(test)]
        self.faults.reach()?;
        let sql = format!("SELECT leader.*, {} AS now_ms FROM leader WHERE id = 1", self.clock);
        let lead_ms = LEADERSHIP.as_millis() as u64;
        let row = sqlx::query(AssertSqlSafe(sql)).fetch_one(&self.pool).await?;
        let (until_ms, now_ms) = (unsigned(&row, "until_ms")?, unsigned(&row, "now_ms")?);
        Ok(Leader {
            url: text(&row, "url")?,
            until_ms,
            // No server leads for this long ahead: the clock was set back. By a little it may be.
            expired: until_ms < now_ms || until_ms > now_ms + 2 * lead_ms,
            revision: unsigned(&row, "revision")?,
            settings_revision: unsigned(&row, "settings_revision")?,
        })
    }

    /// Leads from now on, unless another server does; with `force` in any case. The previous leader
    /// can write no more.
    pub(crate) async fn lead(&self, holder: &str, url: &str, force: bool) -> Result<Option<Fence>> {
        #[cfg(test)]
        self.faults.find_room()?;
        let sql = format!(
            "UPDATE leader SET fence = fence + 1, holder = $1, url = $2, until_ms = {now} + $3, since_ms = {now} \
             WHERE id = 1 AND ($4 = 1 OR until_ms < {now} OR until_ms > {now} + 2 * $3) RETURNING fence",
            now = self.clock
        );
        let query = sqlx::query(AssertSqlSafe(sql)).bind(holder.to_owned()).bind(url.to_owned());
        let query = query.bind(LEADERSHIP.as_millis() as i64).bind(i64::from(force));
        // Of a statement that is a transaction of its own sqlx takes the row, and does not see
        // whether SQLite could write it.
        let mut transaction = self.pool.begin().await?;
        let row = query.fetch_optional(&mut *transaction).await?;
        transaction.commit().await?;
        row.map(|row| Ok(Fence(unsigned(&row, "fence")?))).transpose()
    }

    /// Part of every write: whether it is still this leader's to make, and the right to make more.
    pub(super) async fn prolong(
        &self,
        transaction: &mut Tx<'_>,
        Fence(fence): Fence,
        revision: u64,
        settings: bool,
    ) -> Result<()> {
        let sql = format!(
            "UPDATE leader SET until_ms = {} + $1, revision = CASE WHEN revision < $2 THEN $2 ELSE revision END, \
             settings_revision = settings_revision + $3 WHERE id = 1 AND fence = $4",
            self.clock
        );
        let query = sqlx::query(AssertSqlSafe(sql)).bind(LEADERSHIP.as_millis() as i64);
        let query = query.bind(signed(revision)).bind(i64::from(settings)).bind(signed(fence));
        match query.execute(&mut **transaction).await?.rows_affected() {
            1 => Ok(()),
            _ => Err(StoreError::Fenced),
        }
    }

    /// Leads no more: another may at once.
    pub(crate) async fn resign(&self, Fence(fence): Fence) -> Result<()> {
        let query = sqlx::query("UPDATE leader SET until_ms = 0 WHERE id = 1 AND fence = $1");
        query.bind(signed(fence)).execute(&self.pool).await?;
        Ok(())
    }

    /// Compares the public half of the key for grants with that of the other servers; the first one
    /// to come says it.
    pub(crate) async fn agree_on_grant_key(&self, key: &str) -> Result<()> {
        // On a full disk a server that was here before starts: nothing is written.
        let known = sqlx::query("SELECT 1 FROM leader WHERE id = 1 AND grant_key = $1");
        if known.bind(key.to_owned()).fetch_optional(&self.pool).await?.is_some() {
            return Ok(());
        }
        let query = sqlx::query("UPDATE leader SET grant_key = $1 WHERE id = 1 AND grant_key IN ('', $1)");
        match query.bind(key.to_owned()).execute(&self.pool).await?.rows_affected() {
            1 => Ok(()),
            _ => Err(StoreError::OtherKey),
        }
    }
}

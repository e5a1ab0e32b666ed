use sluice_api::audit::{Entry, Head};
use sluice_api::lease::LeaseId;
use sqlx::any::AnyRow;

use super::rows::{Insert, Statement};
use super::{Result, Store, Tx, signed, text, unsigned};

static ENTRIES: Insert =
    Insert::new("audit (sequence, at_ms, actor, action, subject, detail, previous, hash)", "");

pub(super) async fn write(transaction: &mut Tx<'_>, entries: &[Entry]) -> Result<()> {
    ENTRIES.write(transaction, entries, bind).await
}

fn bind<'q>(statement: Statement<'q>, entry: &Entry) -> Statement<'q> {
    statement
        .bind(signed(entry.sequence))
        .bind(signed(entry.at_ms))
        .bind(entry.actor.clone())
        .bind(entry.action.clone())
        .bind(entry.subject.clone())
        .bind(entry.detail.clone())
        .bind(entry.previous.clone())
        .bind(entry.hash.clone())
}

impl Store {
    /// Entries after `after`, in their order.
    pub(crate) async fn audit(&self, after: u64, limit: u32) -> Result<Vec<Entry>> {
        let query = sqlx::query("SELECT * FROM audit WHERE sequence > $1 ORDER BY sequence LIMIT $2");
        let rows = query.bind(signed(after)).bind(i64::from(limit)).fetch_all(&self.pool).await?;
        rows.iter().map(entry).collect()
    }

    /// The same of one lease.
    pub(crate) async fn audit_of(&self, lease: LeaseId, after: u64, limit: u32) -> Result<Vec<Entry>> {
        let query = sqlx::query(
            "SELECT * FROM audit WHERE subject = $1 AND sequence > $2 AND action LIKE 'lease.%' ORDER BY sequence LIMIT $3",
        );
        let query = query.bind(lease.to_string()).bind(signed(after)).bind(i64::from(limit));
        query.fetch_all(&self.pool).await?.iter().map(entry).collect()
    }

    pub(crate) async fn audit_head(&self) -> Result<Head> {
        let query = sqlx::query("SELECT sequence, hash FROM audit ORDER BY sequence DESC LIMIT 1");
        match query.fetch_optional(&self.pool).await? {
            None => Ok(Head::default()),
            Some(row) => Ok(Head { sequence: unsigned(&row, "sequence")?, hash: text(&row, "hash")? }),
        }
    }
}

fn entry(row: &AnyRow) -> Result<Entry> {
    Ok(Entry {
        sequence: unsigned(row, "sequence")?,
        at_ms: unsigned(row, "at_ms")?,
        actor: text(row, "actor")?,
        action: text(row, "action")?,
        subject: text(row, "subject")?,
        detail: text(row, "detail")?,
        previous: text(row, "previous")?,
        hash: text(row, "hash")?,
    })
}

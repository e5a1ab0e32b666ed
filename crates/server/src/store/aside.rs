use sluice_api::node::NodeId;
use sluice_api::usage::{AsideRecord, UsageRecord};
use sqlx::Row;
use sqlx::any::AnyRow;

use super::{Result, Store, Tx, from_json, signed, text, to_json, unsigned};

/// Sets a record aside, unless it counts already.
pub(super) async fn write(transaction: &mut Tx<'_>, aside: &AsideRecord) -> Result<()> {
    let query = sqlx::query(
        "INSERT INTO usage_aside (id, node, record, reason, received_at_ms) SELECT $1, CAST($2 AS BIGINT), $3, $4, CAST($5 AS BIGINT) \
         WHERE NOT EXISTS (SELECT 1 FROM usage_record WHERE id = $6) ON CONFLICT (id) DO NOTHING",
    );
    query
        .bind(aside.record.id.clone())
        .bind(signed(aside.record.node))
        .bind(to_json(&aside.record))
        .bind(aside.reason.clone())
        .bind(signed(aside.received_at_ms))
        .bind(aside.record.id.clone())
        .execute(&mut **transaction)
        .await?;
    Ok(())
}

pub(super) async fn remove(transaction: &mut Tx<'_>, id: &str) -> Result<()> {
    let query = sqlx::query("DELETE FROM usage_aside WHERE id = $1").bind(id.to_owned());
    query.execute(&mut **transaction).await?;
    Ok(())
}

impl Store {
    /// Returns the records that were set aside whose id comes after `after`, in the order of their
    /// ids.
    pub(crate) async fn aside(&self, after: &str, limit: u32) -> Result<Vec<AsideRecord>> {
        let query = sqlx::query("SELECT * FROM usage_aside WHERE id > $1 ORDER BY id LIMIT $2");
        let rows = query.bind(after.to_owned()).bind(i64::from(limit)).fetch_all(&self.pool).await?;
        rows.iter().map(aside).collect()
    }

    pub(crate) async fn aside_of(&self, id: &str) -> Result<Option<AsideRecord>> {
        let query = sqlx::query("SELECT * FROM usage_aside WHERE id = $1").bind(id.to_owned());
        query.fetch_optional(&self.pool).await?.as_ref().map(aside).transpose()
    }

    /// Counts the records of a node that were set aside.
    pub(crate) async fn count_aside(&self, node: NodeId) -> Result<u64> {
        let query =
            sqlx::query("SELECT COUNT(*) AS count FROM usage_aside WHERE node = $1").bind(signed(node));
        let count: i64 = query.fetch_one(&self.pool).await?.try_get("count")?;
        Ok(count.unsigned_abs())
    }
}

fn aside(row: &AnyRow) -> Result<AsideRecord> {
    let record: UsageRecord = from_json(row, "record")?;
    Ok(AsideRecord { record, reason: text(row, "reason")?, received_at_ms: unsigned(row, "received_at_ms")? })
}

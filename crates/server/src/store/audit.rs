use sluice_api::audit::{Entry, Head};
use sluice_api::lease::LeaseId;
use sluice_api::tenant::TenantPath;
use sqlx::any::AnyRow;

use super::convert::within;
use super::rows::{Insert, Statement};
use super::{Result, Store, Tx, signed, text, unsigned};

/// What watchers get of an entry.
#[derive(Clone)]
pub(crate) struct Told {
    pub(crate) sequence: u64,
    pub(crate) hash: String,
    pub(crate) at_ms: u64,
    pub(crate) action: String,
    pub(crate) subject: String,
    /// Of pools and prices, which say whom they concern; of others nothing.
    pub(crate) detail: String,
}

static ENTRIES: Insert =
    Insert::new("audit (sequence, at_ms, actor, action, subject, detail, previous, hash, tenant)", "");

/// An entry, and the tenant that it concerns.
pub(crate) type Concerning = (Entry, Option<TenantPath>);

pub(super) async fn write(transaction: &mut Tx<'_>, entries: &[Concerning]) -> Result<()> {
    ENTRIES.write(transaction, entries, bind).await
}

fn bind<'q>(statement: Statement<'q>, (entry, tenant): &Concerning) -> Statement<'q> {
    statement
        .bind(signed(entry.sequence))
        .bind(signed(entry.at_ms))
        .bind(entry.actor.clone())
        .bind(entry.action.clone())
        .bind(entry.subject.clone())
        .bind(entry.detail.clone())
        .bind(entry.previous.clone())
        .bind(entry.hash.clone())
        .bind(tenant.as_ref().map(ToString::to_string))
}

impl Store {
    /// Entries after `after`, in their order.
    pub(crate) async fn audit(&self, after: u64, limit: u32) -> Result<Vec<Entry>> {
        let query = sqlx::query("SELECT * FROM audit WHERE sequence > $1 ORDER BY sequence LIMIT $2");
        let rows = query.bind(signed(after)).bind(i64::from(limit)).fetch_all(&self.pool).await?;
        rows.iter().map(entry).collect()
    }

    /// Entries before `before` whose actor's name has this in it, the latest first.
    pub(crate) async fn audit_before(&self, before: u64, actor: &str, limit: u32) -> Result<Vec<Entry>> {
        let query = sqlx::query(
            "SELECT * FROM audit WHERE sequence < $1 AND LOWER(actor) LIKE $2 ESCAPE '!' \
             ORDER BY sequence DESC LIMIT $3",
        );
        let before = i64::try_from(before).unwrap_or(i64::MAX);
        let query = query.bind(before).bind(has(actor)).bind(i64::from(limit));
        query.fetch_all(&self.pool).await?.iter().map(entry).collect()
    }

    /// As [`Store::audit_before`], those alone that concern a tenant or one below it.
    pub(crate) async fn audit_within(
        &self,
        tenant: &TenantPath,
        before: u64,
        actor: &str,
        limit: u32,
    ) -> Result<Vec<Entry>> {
        let query = sqlx::query(
            "SELECT * FROM audit WHERE sequence < $1 AND (tenant = $2 OR tenant LIKE $3) \
             AND LOWER(actor) LIKE $4 ESCAPE '!' ORDER BY sequence DESC LIMIT $5",
        );
        let before = i64::try_from(before).unwrap_or(i64::MAX);
        let (tenant, below) = within(tenant);
        let query = query.bind(before).bind(tenant).bind(below).bind(has(actor)).bind(i64::from(limit));
        query.fetch_all(&self.pool).await?.iter().map(entry).collect()
    }

    /// Returns the entries after `after` that concern a tenant or one below it, in their order.
    pub(crate) async fn audit_of_tenant(
        &self,
        tenant: &TenantPath,
        after: u64,
        limit: u32,
    ) -> Result<Vec<Entry>> {
        let query = sqlx::query(
            "SELECT * FROM audit WHERE sequence > $1 AND (tenant = $2 OR tenant LIKE $3) ORDER BY sequence LIMIT $4",
        );
        let (tenant, below) = within(tenant);
        let query = query.bind(signed(after)).bind(tenant).bind(below).bind(i64::from(limit));
        query.fetch_all(&self.pool).await?.iter().map(entry).collect()
    }

    /// Entries of one lease after `after`, in their order.
    pub(crate) async fn audit_of(&self, lease: LeaseId, after: u64, limit: u32) -> Result<Vec<Entry>> {
        let query = sqlx::query(
            "SELECT * FROM audit WHERE subject = $1 AND sequence > $2 AND action LIKE 'lease.%' ORDER BY sequence LIMIT $3",
        );
        let query = query.bind(lease.to_string()).bind(signed(after)).bind(i64::from(limit));
        query.fetch_all(&self.pool).await?.iter().map(entry).collect()
    }

    /// What watchers get of entries after the first number, up to the second, in their order.
    pub(crate) async fn audit_told(&self, (after, until): (u64, u64)) -> Result<Vec<Told>> {
        let query = sqlx::query(
            "SELECT sequence, hash, at_ms, action, subject, \
             CASE WHEN action LIKE 'pool.%' OR action LIKE 'price.%' THEN detail ELSE '' END AS detail \
             FROM audit WHERE sequence > $1 AND sequence <= $2 \
             AND (action LIKE 'tenant.%' OR action = 'budget.passed' OR action LIKE 'node.%' OR action LIKE 'gpu.%' \
             OR action LIKE 'pool.%' OR action LIKE 'price.%') \
             ORDER BY sequence",
        );
        let query = query.bind(signed(after)).bind(signed(until));
        let told = |row| {
            Ok(Told {
                sequence: unsigned(row, "sequence")?,
                hash: text(row, "hash")?,
                at_ms: unsigned(row, "at_ms")?,
                action: text(row, "action")?,
                subject: text(row, "subject")?,
                detail: text(row, "detail")?,
            })
        };
        query.fetch_all(&self.pool).await?.iter().map(told).collect()
    }

    /// Where the log stood after this number of entries; at its beginning if it has fewer.
    pub(crate) async fn audit_head_at(&self, sequence: u64) -> Result<Head> {
        let query =
            sqlx::query("SELECT sequence, hash FROM audit WHERE sequence = $1").bind(signed(sequence));
        query.fetch_optional(&self.pool).await?.as_ref().map_or(Ok(Head::default()), head)
    }

    pub(crate) async fn audit_head(&self) -> Result<Head> {
        let query = sqlx::query("SELECT sequence, hash FROM audit ORDER BY sequence DESC LIMIT 1");
        query.fetch_optional(&self.pool).await?.as_ref().map_or(Ok(Head::default()), head)
    }
}

/// The pattern of LIKE for a text in lower case that has this in it, whatever it consists of.
fn has(part: &str) -> String {
    let plain = part.to_lowercase().replace('!', "!!").replace('%', "!%").replace('_', "!_");
    format!("%{plain}%")
}

fn head(row: &AnyRow) -> Result<Head> {
    Ok(Head { sequence: unsigned(row, "sequence")?, hash: text(row, "hash")? })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_name_is_itself_and_no_pattern() {
        let check = |part, expect| assert_eq!(has(part), expect, "{part}");
        check("", "%%");
        check("Ada", "%ada%");
        check("100%_!", "%100!%!_!!%");
    }
}

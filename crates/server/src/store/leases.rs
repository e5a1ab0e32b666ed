use std::collections::HashMap;

use sluice_api::lease::{LeaseId, LeaseState};
use sluice_api::tenant::TenantPath;
use sqlx::AssertSqlSafe;
use sqlx::any::AnyRow;
use sqlx::query::Query;

use super::rows::{Insert, Statement};
use super::{
    Result, Store, StoreError, Tx, from_json, parsed, signed, small, text, to_json, unsigned,
    unsigned_or_null,
};
use crate::fleet::LeaseRecord;

static LEASES: Insert = Insert::new(
    "lease (id, tenant, name, ask, token, state, attempt, reason, seats, preempt_at_ms, created_at_ms, queued_at_ms, \
     granted_at_ms, ended_at_ms, revision, person, automatic)",
    "ON CONFLICT (id) DO UPDATE SET ask = excluded.ask, state = excluded.state, attempt = excluded.attempt, reason = excluded.reason, \
     seats = excluded.seats, preempt_at_ms = excluded.preempt_at_ms, queued_at_ms = excluded.queued_at_ms, \
     granted_at_ms = excluded.granted_at_ms, ended_at_ms = excluded.ended_at_ms, revision = excluded.revision, \
     automatic = excluded.automatic",
);

static KEYS: Insert = Insert::new("idempotency (token, name, request, lease, at_ms)", "");

/// A lease must not be twice among them.
pub(super) async fn write(transaction: &mut Tx<'_>, leases: &[LeaseRecord]) -> Result<()> {
    LEASES.write(transaction, leases, bind).await
}

fn bind<'q>(statement: Statement<'q>, lease: &LeaseRecord) -> Statement<'q> {
    statement
        .bind(signed(lease.id))
        .bind(lease.tenant.to_string())
        .bind(lease.ask.name.clone())
        .bind(to_json(&lease.ask))
        .bind(lease.token.clone())
        .bind(lease.state.name())
        .bind(i64::from(lease.attempt))
        .bind(lease.reason.clone())
        .bind(to_json(&lease.seats))
        .bind(lease.preempt_at_ms.map(signed))
        .bind(signed(lease.created_at_ms))
        .bind(signed(lease.queued_at_ms))
        .bind(lease.granted_at_ms.map(signed))
        .bind(lease.ended_at_ms.map(signed))
        .bind(signed(lease.revision))
        .bind(lease.person.clone())
        .bind(to_json(&lease.automatic))
}

/// That a request came under an idempotency key, and what came of it.
#[derive(Clone, Debug)]
pub(crate) struct KeyUse {
    pub(crate) token: String,
    pub(crate) name: String,
    pub(crate) request: String,
    /// 0 for none.
    pub(crate) lease: LeaseId,
    pub(crate) at_ms: u64,
    /// Sealed; empty while it is not known.
    pub(crate) answer: String,
}

pub(super) async fn write_keys(transaction: &mut Tx<'_>, keys: &[KeyUse]) -> Result<()> {
    KEYS.write(transaction, keys, bind_key).await
}

fn bind_key<'q>(statement: Statement<'q>, key: &KeyUse) -> Statement<'q> {
    statement
        .bind(key.token.clone())
        .bind(key.name.clone())
        .bind(key.request.clone())
        .bind(signed(key.lease))
        .bind(signed(key.at_ms))
}

pub(super) async fn write_answer(
    transaction: &mut Tx<'_>,
    token: &str,
    name: &str,
    answer: &str,
) -> Result<()> {
    let query = sqlx::query("UPDATE idempotency SET answer = $1 WHERE token = $2 AND name = $3");
    let query = query.bind(answer.to_owned()).bind(token.to_owned()).bind(name.to_owned());
    query.execute(&mut **transaction).await?;
    Ok(())
}

pub(super) async fn forget_keys(transaction: &mut Tx<'_>, before_ms: u64) -> Result<()> {
    let query = sqlx::query("DELETE FROM idempotency WHERE at_ms < $1").bind(signed(before_ms));
    query.execute(&mut **transaction).await?;
    Ok(())
}

impl Store {
    /// All leases that have not ended.
    pub(crate) async fn open_leases(&self) -> Result<Vec<LeaseRecord>> {
        let query = sqlx::query("SELECT * FROM lease WHERE state <> 'ended' ORDER BY id");
        query.fetch_all(&self.pool).await?.iter().map(lease_record).collect()
    }

    pub(crate) async fn lease(&self, id: LeaseId) -> Result<Option<LeaseRecord>> {
        let query = sqlx::query("SELECT * FROM lease WHERE id = $1").bind(signed(id));
        query.fetch_optional(&self.pool).await?.as_ref().map(lease_record).transpose()
    }

    /// Returns those of these leases that there are, ended ones among them.
    pub(crate) async fn leases_by_id(&self, ids: &[LeaseId]) -> Result<Vec<LeaseRecord>> {
        const AT_ONCE: usize = 500;
        let mut leases = Vec::new();
        for ids in ids.chunks(AT_ONCE) {
            // They are numbers.
            let numbers: Vec<String> = ids.iter().map(LeaseId::to_string).collect();
            let sql = format!("SELECT * FROM lease WHERE id IN ({})", numbers.join(", "));
            for row in sqlx::query(AssertSqlSafe(sql)).fetch_all(&self.pool).await? {
                leases.push(lease_record(&row)?);
            }
        }
        Ok(leases)
    }

    /// What has changed after `revision`, in the order of the changes; leases that have ended are
    /// among it.
    pub(crate) async fn leases_after(&self, revision: u64, limit: u32) -> Result<Vec<LeaseRecord>> {
        let query = sqlx::query("SELECT * FROM lease WHERE revision > $1 ORDER BY revision LIMIT $2");
        let rows = query.bind(signed(revision)).bind(i64::from(limit)).fetch_all(&self.pool).await?;
        rows.iter().map(lease_record).collect()
    }

    /// Leases before `before`, the latest first.
    pub(crate) async fn leases(&self, before: LeaseId, limit: u32) -> Result<Vec<LeaseRecord>> {
        let query = sqlx::query("SELECT * FROM lease WHERE id < $1 ORDER BY id DESC LIMIT $2");
        let rows = query.bind(signed(before)).bind(i64::from(limit)).fetch_all(&self.pool).await?;
        rows.iter().map(lease_record).collect()
    }

    /// Returns the leases of a tenant and those below it, in these states; in any if none is named.
    pub(crate) async fn leases_of(
        &self,
        tenant: &TenantPath,
        states: &[LeaseState],
        user: Option<&str>,
        before: LeaseId,
        limit: u32,
    ) -> Result<Vec<LeaseRecord>> {
        let of = self.within("lease", tenant).await?;
        if of.is_nobody() {
            return Ok(Vec::new());
        }
        // They are our own words.
        let states: Vec<String> = states.iter().map(|state| format!("'{}'", state.name())).collect();
        let among =
            if states.is_empty() { String::new() } else { format!(" AND state IN ({})", states.join(", ")) };
        let sql = of.sql("lease", &format!("id < $1{among} AND ($2 = '' OR person = $2)"), "id DESC", 3);
        let query = sqlx::query(AssertSqlSafe(sql)).bind(signed(before));
        let query = query.bind(user.unwrap_or_default().to_owned()).bind(i64::from(limit));
        let rows = of.names().into_iter().fold(query, Query::bind).fetch_all(&self.pool).await?;
        rows.iter().map(lease_record).collect()
    }

    /// Returns the user and the program of leases, as far as they are known.
    pub(crate) async fn programs_of(&self, leases: &[LeaseId]) -> Result<HashMap<LeaseId, (String, String)>> {
        const AT_ONCE: usize = 500;
        let mut programs = HashMap::new();
        for leases in leases.chunks(AT_ONCE) {
            // They are our own numbers.
            let numbers: Vec<String> = leases.iter().map(LeaseId::to_string).collect();
            let sql =
                format!("SELECT id, name, token, person FROM lease WHERE id IN ({})", numbers.join(", "));
            for row in sqlx::query(AssertSqlSafe(sql)).fetch_all(&self.pool).await? {
                let person = match text(&row, "person")? {
                    // A lease of an earlier release.
                    person if person.is_empty() => text(&row, "token")?,
                    person => person,
                };
                programs.insert(unsigned(&row, "id")?, (person, text(&row, "name")?));
            }
        }
        Ok(programs)
    }

    /// What was asked for under an idempotency key, and what came of it.
    pub(crate) async fn idempotent(&self, token: &str, name: &str) -> Result<Option<KeyUse>> {
        let query = sqlx::query("SELECT * FROM idempotency WHERE token = $1 AND name = $2");
        let row = query.bind(token.to_owned()).bind(name.to_owned()).fetch_optional(&self.pool).await?;
        let key_use = |row: AnyRow| {
            Ok(KeyUse {
                token: text(&row, "token")?,
                name: text(&row, "name")?,
                request: text(&row, "request")?,
                lease: unsigned(&row, "lease")?,
                at_ms: unsigned(&row, "at_ms")?,
                answer: text(&row, "answer")?,
            })
        };
        row.map(key_use).transpose()
    }
}

fn lease_record(row: &AnyRow) -> Result<LeaseRecord> {
    Ok(LeaseRecord {
        id: unsigned(row, "id")?,
        tenant: parsed(row, "tenant")?,
        ask: from_json(row, "ask")?,
        token: text(row, "token")?,
        person: text(row, "person")?,
        state: state(&text(row, "state")?)?,
        attempt: small(row, "attempt")?,
        reason: sqlx::Row::try_get(row, "reason")?,
        seats: from_json(row, "seats")?,
        preempt_at_ms: unsigned_or_null(row, "preempt_at_ms")?,
        created_at_ms: unsigned(row, "created_at_ms")?,
        queued_at_ms: unsigned(row, "queued_at_ms")?,
        granted_at_ms: unsigned_or_null(row, "granted_at_ms")?,
        ended_at_ms: unsigned_or_null(row, "ended_at_ms")?,
        heard_at_ms: 0,
        revision: unsigned(row, "revision")?,
        automatic: from_json(row, "automatic")?,
    })
}

fn state(name: &str) -> Result<LeaseState> {
    use LeaseState::{Ended, Granted, Preempting, Queued, Running};
    let found = [Queued, Granted, Running, Preempting, Ended].into_iter().find(|state| state.name() == name);
    found.ok_or_else(|| StoreError::Content { what: "a state of a lease", value: name.into() })
}

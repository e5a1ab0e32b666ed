use sluice_api::lease::{LeaseId, LeaseState, NewLease};
use sqlx::any::AnyRow;

use super::rows::{Insert, Statement};
use super::{
    Result, Store, StoreError, Tx, from_json, parsed, signed, small, text, to_json, unsigned,
    unsigned_or_null,
};
use crate::fleet::{LeaseRecord, Seat};

static LEASES: Insert = Insert::new(
    "lease (id, tenant, name, gpus, share_ppm, memory, hard_cap, priority, preemptible, token, state, attempt, reason, \
     node, node_gpus, node_memory, preempt_at_ms, created_at_ms, queued_at_ms, granted_at_ms, ended_at_ms, revision)",
    "ON CONFLICT (id) DO UPDATE SET state = excluded.state, attempt = excluded.attempt, reason = excluded.reason, \
     node = excluded.node, node_gpus = excluded.node_gpus, node_memory = excluded.node_memory, \
     preempt_at_ms = excluded.preempt_at_ms, queued_at_ms = excluded.queued_at_ms, \
     granted_at_ms = excluded.granted_at_ms, ended_at_ms = excluded.ended_at_ms, revision = excluded.revision",
);

static KEYS: Insert = Insert::new("idempotency (token, name, request, lease, at_ms)", "");

/// A lease must not be twice among them.
pub(super) async fn write(transaction: &mut Tx<'_>, leases: &[LeaseRecord]) -> Result<()> {
    LEASES.write(transaction, leases, bind).await
}

fn bind<'q>(statement: Statement<'q>, lease: &LeaseRecord) -> Statement<'q> {
    let ask = &lease.ask;
    statement
        .bind(signed(lease.id))
        .bind(lease.tenant.to_string())
        .bind(ask.name.clone())
        .bind(i64::from(ask.gpus))
        .bind(i64::from(ask.share_ppm))
        .bind(signed(ask.memory))
        .bind(i64::from(ask.hard_cap))
        .bind(i64::from(ask.priority))
        .bind(i64::from(ask.preemptible))
        .bind(lease.token.clone())
        .bind(lease.state.name())
        .bind(i64::from(lease.attempt))
        .bind(lease.reason.clone())
        .bind(lease.seat.as_ref().map(|seat| signed(seat.node)))
        .bind(to_json(&lease.seat.as_ref().map_or(&[][..], |seat| &seat.gpus)))
        .bind(signed(lease.seat.as_ref().map_or(0, |seat| seat.memory)))
        .bind(lease.preempt_at_ms.map(signed))
        .bind(signed(lease.created_at_ms))
        .bind(signed(lease.queued_at_ms))
        .bind(lease.granted_at_ms.map(signed))
        .bind(lease.ended_at_ms.map(signed))
        .bind(signed(lease.revision))
}

/// That a request came under an idempotency key, and what came of it.
#[derive(Clone, Debug)]
pub(crate) struct KeyUse {
    pub(crate) token: String,
    pub(crate) name: String,
    pub(crate) request: String,
    pub(crate) lease: LeaseId,
    pub(crate) at_ms: u64,
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

    /// What has changed after `revision`, in the order of the changes; leases that have ended are among it.
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

    /// What was asked for under an idempotency key, and the lease that came of it.
    pub(crate) async fn idempotent(&self, token: &str, name: &str) -> Result<Option<(String, LeaseId)>> {
        let query = sqlx::query("SELECT request, lease FROM idempotency WHERE token = $1 AND name = $2");
        let row = query.bind(token.to_owned()).bind(name.to_owned()).fetch_optional(&self.pool).await?;
        row.map(|row| Ok((text(&row, "request")?, unsigned(&row, "lease")?))).transpose()
    }
}

fn lease_record(row: &AnyRow) -> Result<LeaseRecord> {
    let ask = NewLease {
        tenant: None,
        gpus: small(row, "gpus")?,
        share_ppm: small(row, "share_ppm")?,
        memory: unsigned(row, "memory")?,
        hard_cap: small(row, "hard_cap")? != 0,
        priority: small(row, "priority")? as i32,
        preemptible: small(row, "preemptible")? != 0,
        name: text(row, "name")?,
    };
    let seat = match unsigned_or_null(row, "node")? {
        None => None,
        Some(node) => {
            Some(Seat { node, gpus: from_json(row, "node_gpus")?, memory: unsigned(row, "node_memory")? })
        }
    };
    Ok(LeaseRecord {
        id: unsigned(row, "id")?,
        tenant: parsed(row, "tenant")?,
        ask,
        token: text(row, "token")?,
        state: state(&text(row, "state")?)?,
        attempt: small(row, "attempt")?,
        reason: sqlx::Row::try_get(row, "reason")?,
        seat,
        preempt_at_ms: unsigned_or_null(row, "preempt_at_ms")?,
        created_at_ms: unsigned(row, "created_at_ms")?,
        queued_at_ms: unsigned(row, "queued_at_ms")?,
        granted_at_ms: unsigned_or_null(row, "granted_at_ms")?,
        ended_at_ms: unsigned_or_null(row, "ended_at_ms")?,
        heard_at_ms: 0,
        revision: unsigned(row, "revision")?,
    })
}

fn state(name: &str) -> Result<LeaseState> {
    use LeaseState::{Ended, Granted, Preempting, Queued, Running};
    let found = [Queued, Granted, Running, Preempting, Ended].into_iter().find(|state| state.name() == name);
    found.ok_or_else(|| StoreError::Content { what: "a state of a lease", value: name.into() })
}

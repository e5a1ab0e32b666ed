//! Webhooks, and the queue of their deliveries.

use sluice_api::tenant::TenantPath;
use sluice_api::webhook::{Delivery, DeliveryState, EventKind, Webhook};
use sqlx::any::AnyRow;

use super::{
    Result, Store, StoreError, Tx, from_json, parsed, signed, small, small_or_null, text, to_json, unsigned,
    unsigned_or_null, within,
};

/// Pending deliveries of one webhook. Further events are counted and discarded.
const PENDING_MAX: i64 = 1000;

/// An event that is to be sent to a webhook.
#[derive(Clone, Debug)]
pub(crate) struct NewDelivery {
    pub(crate) webhook: String,
    pub(crate) event: String,
    pub(crate) kind: EventKind,
    pub(crate) body: String,
    pub(crate) at_ms: u64,
}

/// A delivery whose time has come.
#[derive(Clone, Debug)]
pub(crate) struct DueDelivery {
    pub(crate) delivery: Delivery,
    pub(crate) body: String,
}

pub(super) async fn write(transaction: &mut Tx<'_>, webhook: &Webhook) -> Result<()> {
    let query = sqlx::query(
        "INSERT INTO webhook (id, tenant, url, format, events, name, created_at_ms, failing_since_ms, disabled) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (id) DO UPDATE SET \
         failing_since_ms = excluded.failing_since_ms, disabled = excluded.disabled",
    );
    query
        .bind(webhook.id.clone())
        .bind(webhook.tenant.to_string())
        .bind(webhook.url.clone())
        .bind(webhook.format.name())
        .bind(to_json(&webhook.events))
        .bind(webhook.name.clone())
        .bind(signed(webhook.created_at_ms))
        .bind(webhook.failing_since_ms.map(signed))
        .bind(webhook.disabled.clone().unwrap_or_default())
        .execute(&mut **transaction)
        .await?;
    Ok(())
}

pub(super) async fn remove(transaction: &mut Tx<'_>, id: &str) -> Result<()> {
    for sql in ["DELETE FROM webhook_delivery WHERE webhook = $1", "DELETE FROM webhook WHERE id = $1"] {
        sqlx::query(sql).bind(id.to_owned()).execute(&mut **transaction).await?;
    }
    Ok(())
}

/// Adds a delivery to the queue of its webhook, unless the queue is full or has the event already.
/// The first statement writes: a transaction of SQLite that begins with reading fails when it
/// writes after another one has written (`SQLITE_BUSY_SNAPSHOT`).
pub(super) async fn add(transaction: &mut Tx<'_>, new: &NewDelivery) -> Result<()> {
    let query = sqlx::query(
        "INSERT INTO webhook_delivery (webhook, event, kind, body, created_at_ms, state, next_at_ms) \
         SELECT $1, $2, $3, $4, CAST($5 AS BIGINT), 'pending', CAST($6 AS BIGINT) \
         WHERE (SELECT COUNT(*) FROM webhook_delivery WHERE webhook = $7 AND state = 'pending') < CAST($8 AS BIGINT) \
         ON CONFLICT (webhook, event) DO NOTHING",
    );
    let added = query
        .bind(new.webhook.clone())
        .bind(new.event.clone())
        .bind(new.kind.name())
        .bind(new.body.clone())
        .bind(signed(new.at_ms))
        .bind(signed(new.at_ms))
        .bind(new.webhook.clone())
        .bind(PENDING_MAX)
        .execute(&mut **transaction)
        .await?;
    if added.rows_affected() == 0 {
        let query = sqlx::query(
            "UPDATE webhook SET discarded = discarded + 1 WHERE id = $1 \
             AND NOT EXISTS (SELECT 1 FROM webhook_delivery WHERE webhook = $2 AND event = $3)",
        );
        let query = query.bind(new.webhook.clone()).bind(new.webhook.clone()).bind(new.event.clone());
        query.execute(&mut **transaction).await?;
    }
    Ok(())
}

/// Writes what became of an attempt.
pub(super) async fn write_attempt(transaction: &mut Tx<'_>, delivery: &Delivery) -> Result<()> {
    let query = sqlx::query(
        "UPDATE webhook_delivery SET state = $1, attempts = $2, next_at_ms = $3, last_at_ms = $4, status = $5, \
         error = $6 WHERE webhook = $7 AND event = $8",
    );
    query
        .bind(delivery.state.name())
        .bind(i64::from(delivery.attempts))
        .bind(signed(delivery.next_at_ms.unwrap_or(0)))
        .bind(delivery.last_at_ms.map(signed))
        .bind(delivery.status.map(i64::from))
        .bind(delivery.error.clone().unwrap_or_default())
        .bind(delivery.webhook.clone())
        .bind(delivery.id.clone())
        .execute(&mut **transaction)
        .await?;
    Ok(())
}

/// Deletes deliveries that are over and were made before a moment.
pub(super) async fn forget(transaction: &mut Tx<'_>, before_ms: u64) -> Result<()> {
    let query = sqlx::query("DELETE FROM webhook_delivery WHERE state <> 'pending' AND created_at_ms < $1");
    query.bind(signed(before_ms)).execute(&mut **transaction).await?;
    Ok(())
}

impl Store {
    pub(crate) async fn webhooks(&self) -> Result<Vec<Webhook>> {
        let rows = sqlx::query("SELECT * FROM webhook ORDER BY id").fetch_all(&self.pool).await?;
        rows.iter().map(webhook).collect()
    }

    /// Returns the webhooks of a tenant and of all below it whose id comes after `after`.
    pub(crate) async fn webhooks_within(
        &self,
        tenant: &TenantPath,
        after: &str,
        limit: u32,
    ) -> Result<Vec<Webhook>> {
        let (own, below) = within(tenant);
        let query = sqlx::query(
            "SELECT * FROM webhook WHERE (tenant = $1 OR tenant LIKE $2) AND id > $3 ORDER BY id LIMIT $4",
        );
        let query = query.bind(own).bind(below).bind(after.to_owned()).bind(i64::from(limit));
        query.fetch_all(&self.pool).await?.iter().map(webhook).collect()
    }

    pub(crate) async fn webhook(&self, id: &str) -> Result<Option<Webhook>> {
        let query = sqlx::query("SELECT * FROM webhook WHERE id = $1").bind(id.to_owned());
        query.fetch_optional(&self.pool).await?.as_ref().map(webhook).transpose()
    }

    /// Returns the deliveries of a webhook that come after one in the order of the list, the latest
    /// first.
    pub(crate) async fn deliveries(
        &self,
        webhook: &str,
        (before_ms, event): (u64, &str),
        limit: u32,
    ) -> Result<Vec<Delivery>> {
        let query = sqlx::query(
            "SELECT * FROM webhook_delivery WHERE webhook = $1 \
             AND (created_at_ms < $2 OR (created_at_ms = $3 AND event < $4)) \
             ORDER BY created_at_ms DESC, event DESC LIMIT $5",
        );
        let at_ms = signed(before_ms);
        let query = query.bind(webhook.to_owned()).bind(at_ms).bind(at_ms).bind(event.to_owned());
        let rows = query.bind(i64::from(limit)).fetch_all(&self.pool).await?;
        rows.iter().map(delivery).collect()
    }

    /// Returns the ids of webhooks that have deliveries whose time has come.
    pub(crate) async fn due_webhooks(&self, now_ms: u64, limit: u32) -> Result<Vec<String>> {
        let query = sqlx::query(
            "SELECT webhook FROM webhook_delivery WHERE state = 'pending' AND next_at_ms <= $1 \
             GROUP BY webhook ORDER BY MIN(next_at_ms) LIMIT $2",
        );
        let rows = query.bind(signed(now_ms)).bind(i64::from(limit)).fetch_all(&self.pool).await?;
        rows.iter().map(|row| text(row, "webhook")).collect()
    }

    /// Returns deliveries of a webhook whose time has come, the earliest first.
    pub(crate) async fn due_deliveries(
        &self,
        webhook: &str,
        now_ms: u64,
        limit: u32,
    ) -> Result<Vec<DueDelivery>> {
        let query = sqlx::query(
            "SELECT * FROM webhook_delivery WHERE webhook = $1 AND state = 'pending' AND next_at_ms <= $2 \
             ORDER BY next_at_ms, event LIMIT $3",
        );
        let query = query.bind(webhook.to_owned()).bind(signed(now_ms)).bind(i64::from(limit));
        let due = |row| Ok(DueDelivery { delivery: delivery(row)?, body: text(row, "body")? });
        query.fetch_all(&self.pool).await?.iter().map(due).collect()
    }
}

fn webhook(row: &AnyRow) -> Result<Webhook> {
    Ok(Webhook {
        id: text(row, "id")?,
        tenant: parsed(row, "tenant")?,
        url: text(row, "url")?,
        format: parsed(row, "format")?,
        events: from_json(row, "events")?,
        name: text(row, "name")?,
        created_at_ms: unsigned(row, "created_at_ms")?,
        failing_since_ms: unsigned_or_null(row, "failing_since_ms")?,
        disabled: Some(text(row, "disabled")?).filter(|why| !why.is_empty()),
        discarded: unsigned(row, "discarded")?,
    })
}

fn delivery(row: &AnyRow) -> Result<Delivery> {
    let state: DeliveryState = parsed(row, "state")?;
    let wrong = |status: u32| StoreError::Content { what: "status", value: status.to_string() };
    let status = small_or_null(row, "status")?;
    let status = status.map(|status| u16::try_from(status).map_err(|_| wrong(status))).transpose()?;
    Ok(Delivery {
        webhook: text(row, "webhook")?,
        id: text(row, "event")?,
        event: parsed(row, "kind")?,
        created_at_ms: unsigned(row, "created_at_ms")?,
        state,
        attempts: small(row, "attempts")?,
        next_at_ms: Some(unsigned(row, "next_at_ms")?).filter(|_| state == DeliveryState::Pending),
        last_at_ms: unsigned_or_null(row, "last_at_ms")?,
        status,
        error: Some(text(row, "error")?).filter(|error| !error.is_empty()),
    })
}

use sluice_api::bill::{Goods, Meter, Price};
use sluice_api::pool::Tier;
use sluice_api::tenant::TenantPath;
use sluice_api::usage::UsageRecord;

use sqlx::any::AnyRow;

use super::rows::{Insert, Statement};
use super::{Result, Store, StoreError, Tx, parsed, signed, small, text, unsigned, unsigned_or_null};

/// What a tenant's records between two moments add up to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) tenant: TenantPath,
    pub(crate) goods: Goods,
    pub(crate) records: u64,
    /// In the order of [`Meter::ALL`].
    pub(crate) amounts: [u64; 3],
}

static USAGE: Insert = Insert::new(
    "usage_record (id, node, lease, attempt, sequence, tenant, from_ms, until_ms, share_ppm, gpus, memory_mib, \
     reserved_ppm_ms, used_ppm_ms, memory_mib_ms, kernels, bytes_in, bytes_out, memory_peak, last, received_at_ms, \
     task, tier, pool, model)",
    "ON CONFLICT (id) DO NOTHING",
);

/// Records and when they came. One that is there already changes nothing.
pub(super) async fn write_usage(transaction: &mut Tx<'_>, records: &[(UsageRecord, u64)]) -> Result<()> {
    USAGE.write(transaction, records, bind_usage).await
}

fn bind_usage<'q>(statement: Statement<'q>, (record, received_at_ms): &(UsageRecord, u64)) -> Statement<'q> {
    statement
        .bind(record.id.clone())
        .bind(signed(record.node))
        .bind(signed(record.lease))
        .bind(i64::from(record.attempt))
        .bind(i64::from(record.sequence))
        .bind(record.tenant.to_string())
        .bind(signed(record.from_ms))
        .bind(signed(record.until_ms))
        .bind(i64::from(record.share_ppm))
        .bind(i64::from(record.gpus))
        .bind(signed(record.memory_mib))
        .bind(signed(record.reserved_ppm_ms()))
        .bind(signed(record.used_ppm_ms))
        .bind(signed(record.memory_mib_ms()))
        .bind(signed(record.kernels))
        .bind(signed(record.bytes_in))
        .bind(signed(record.bytes_out))
        .bind(signed(record.memory_peak))
        .bind(i64::from(record.last))
        .bind(signed(*received_at_ms))
        .bind(i64::from(record.task))
        .bind(record.tier.name())
        .bind(record.pool.clone())
        .bind(record.model.clone())
}

pub(super) async fn write_price(transaction: &mut Tx<'_>, price: &Price) -> Result<()> {
    let query = sqlx::query(
        "INSERT INTO price (meter, tier, pool, model, from_ms, until_ms, micro) VALUES ($1, $2, $3, $4, $5, $6, $7) \
         ON CONFLICT (meter, tier, pool, model, from_ms) DO UPDATE SET micro = excluded.micro, \
         until_ms = excluded.until_ms",
    );
    query
        .bind(price.meter.name())
        .bind(price.tier.map_or("", Tier::name))
        .bind(price.pool.clone().unwrap_or_default())
        .bind(price.model.clone().unwrap_or_default())
        .bind(signed(price.from_ms.unwrap_or(0)))
        .bind(price.until_ms.map(signed))
        .bind(signed(price.micro))
        .execute(&mut **transaction)
        .await?;
    Ok(())
}

impl Store {
    /// All prices, the oldest first.
    pub(crate) async fn prices(&self) -> Result<Vec<Price>> {
        let rows = sqlx::query("SELECT * FROM price ORDER BY from_ms, meter").fetch_all(&self.pool).await?;
        rows.iter().map(price).collect()
    }

    /// Sums per tenant and sort of goods over the records that begin in `from_ms..until_ms`.
    pub(crate) async fn usage_sums(&self, from_ms: u64, until_ms: u64) -> Result<Vec<Sum>> {
        // SUM of BIGINT is NUMERIC in PostgreSQL, hence the casts.
        let query = sqlx::query(
            "SELECT tenant, tier, pool, model, COUNT(*) AS records, CAST(SUM(reserved_ppm_ms) AS BIGINT) AS reserved, \
             CAST(SUM(used_ppm_ms) AS BIGINT) AS used, CAST(SUM(memory_mib_ms) AS BIGINT) AS memory \
             FROM usage_record WHERE from_ms >= $1 AND from_ms < $2 GROUP BY tenant, tier, pool, model \
             ORDER BY tenant, tier, pool, model",
        );
        let rows = query.bind(signed(from_ms)).bind(signed(until_ms)).fetch_all(&self.pool).await?;
        let sum = |row| {
            let amounts = [unsigned(row, "reserved")?, unsigned(row, "used")?, unsigned(row, "memory")?];
            Ok(Sum {
                tenant: parsed(row, "tenant")?,
                goods: goods(row)?,
                records: unsigned(row, "records")?,
                amounts,
            })
        };
        rows.iter().map(sum).collect()
    }

    /// Records after the cursor (`from_ms` and id of the last one seen), in the order of their beginning.
    pub(crate) async fn usage(&self, after: (u64, &str), limit: u32) -> Result<Vec<UsageRecord>> {
        let query = sqlx::query(
            "SELECT * FROM usage_record WHERE from_ms > $1 OR (from_ms = $1 AND id > $2) \
             ORDER BY from_ms, id LIMIT $3",
        );
        let query = query.bind(signed(after.0)).bind(after.1.to_owned()).bind(i64::from(limit));
        let record = |row| {
            Ok(UsageRecord {
                id: text(row, "id")?,
                node: unsigned(row, "node")?,
                lease: unsigned(row, "lease")?,
                attempt: small(row, "attempt")?,
                task: small(row, "task")?,
                sequence: small(row, "sequence")?,
                tenant: parsed(row, "tenant")?,
                tier: parsed(row, "tier")?,
                pool: text(row, "pool")?,
                model: text(row, "model")?,
                from_ms: unsigned(row, "from_ms")?,
                until_ms: unsigned(row, "until_ms")?,
                share_ppm: small(row, "share_ppm")?,
                gpus: small(row, "gpus")?,
                memory_mib: unsigned(row, "memory_mib")?,
                used_ppm_ms: unsigned(row, "used_ppm_ms")?,
                kernels: unsigned(row, "kernels")?,
                bytes_in: unsigned(row, "bytes_in")?,
                bytes_out: unsigned(row, "bytes_out")?,
                memory_peak: unsigned(row, "memory_peak")?,
                last: small(row, "last")? != 0,
            })
        };
        query.fetch_all(&self.pool).await?.iter().map(record).collect()
    }
}

fn goods(row: &AnyRow) -> Result<Goods> {
    Ok(Goods { tier: parsed(row, "tier")?, pool: text(row, "pool")?, model: text(row, "model")? })
}

fn price(row: &AnyRow) -> Result<Price> {
    let name = text(row, "meter")?;
    let meter = Meter::ALL.into_iter().find(|meter| meter.name() == name);
    let named = |column| text(row, column).map(|text| Some(text).filter(|text| !text.is_empty()));
    let tier = named("tier")?
        .map(|tier| tier.parse().map_err(|_| StoreError::Content { what: "a tier", value: tier.clone() }));
    Ok(Price {
        meter: meter.ok_or(StoreError::Content { what: "a meter", value: name })?,
        tier: tier.transpose()?,
        pool: named("pool")?,
        model: named("model")?,
        micro: unsigned(row, "micro")?,
        from_ms: Some(unsigned(row, "from_ms")?),
        until_ms: unsigned_or_null(row, "until_ms")?,
    })
}

use sluice_api::bill::{Goods, Meter, Price, PricePer};
use sluice_api::pool::Tier;
use sluice_api::tenant::TenantPath;
use sluice_api::usage::UsageRecord;

use sqlx::AssertSqlSafe;
use sqlx::any::AnyRow;

use super::rows::{Insert, Statement};
use super::{
    Result, Store, StoreError, Tx, largest, parsed, signed, small, text, unsigned, unsigned_or_null,
};
use crate::billing::Period;

/// Parts of one question.
const PARTS_MAX: usize = 250;

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
     task, tier, pool, model, gflops)",
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
        .bind(signed(record.gflops))
}

pub(super) async fn write_price(transaction: &mut Tx<'_>, price: &Price) -> Result<()> {
    let query = sqlx::query(
        "INSERT INTO price (meter, tier, pool, model, from_ms, until_ms, micro, per) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8) \
         ON CONFLICT (meter, tier, pool, model, per, from_ms) DO UPDATE SET micro = excluded.micro, \
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
        .bind(price.per.name())
        .execute(&mut **transaction)
        .await?;
    Ok(())
}

impl Store {
    /// All prices, the oldest first.
    pub(crate) async fn prices(&self) -> Result<Vec<Price>> {
        let rows = sqlx::query("SELECT meter, tier, pool, model, per, from_ms, until_ms, micro FROM price ORDER BY from_ms, meter").fetch_all(&self.pool).await?;
        rows.iter().map(price).collect()
    }

    /// For each part, sums per tenant and sort of goods over the records that begin in it.
    pub(crate) async fn usage_sums(&self, parts: &[Period]) -> Result<Vec<Vec<Sum>>> {
        #[cfg(test)]
        self.faults.before_sums().await;
        let mut sums = vec![Vec::new(); parts.len()];
        for (first, parts) in (0..).step_by(PARTS_MAX).zip(parts.chunks(PARTS_MAX)) {
            let part = |(at, part): (usize, &Period)| {
                format!("({at}, {}, {})", signed(part.from_ms), signed(part.until_ms))
            };
            let values: Vec<String> = parts.iter().enumerate().map(part).collect();
            // SUM of BIGINT is NUMERIC in PostgreSQL, hence the casts. SQLite reads the tables of a CROSS JOIN in their order, so that
            // it looks the records of a part up by their time.
            let sql = format!(
                "WITH part (at, from_ms, until_ms) AS (VALUES {}) SELECT CAST(part.at AS BIGINT) AS at, tenant, tier, pool, model, gflops, \
                 COUNT(*) AS records, CAST(SUM(reserved_ppm_ms) AS BIGINT) AS reserved, \
                 CAST(SUM(used_ppm_ms) AS BIGINT) AS used, CAST(SUM(memory_mib_ms) AS BIGINT) AS memory \
                 FROM part CROSS JOIN usage_record \
                 WHERE usage_record.from_ms >= part.from_ms AND usage_record.from_ms < part.until_ms \
                 GROUP BY part.at, tenant, tier, pool, model, gflops \
                 ORDER BY part.at, tenant, tier, pool, model, gflops",
                values.join(", ")
            );
            // It consists of numbers besides.
            for row in sqlx::query(AssertSqlSafe(sql)).fetch_all(&self.pool).await? {
                let amounts =
                    [unsigned(&row, "reserved")?, unsigned(&row, "used")?, unsigned(&row, "memory")?];
                let (tenant, records) = (parsed(&row, "tenant")?, unsigned(&row, "records")?);
                let sum = Sum { tenant, goods: goods(&row)?, records, amounts };
                if let Some(sums) = sums.get_mut(first + unsigned(&row, "at")? as usize) {
                    sums.push(sum);
                }
            }
        }
        Ok(sums)
    }

    /// When the last record begins; 0 if there is none.
    pub(crate) async fn last_usage_ms(&self) -> Result<u64> {
        largest(&self.pool, "SELECT MAX(from_ms) AS largest FROM usage_record").await
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
                gflops: unsigned(row, "gflops")?,
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
    Ok(Goods {
        tier: parsed(row, "tier")?,
        pool: text(row, "pool")?,
        model: text(row, "model")?,
        gflops: unsigned(row, "gflops")?,
    })
}

fn price(row: &AnyRow) -> Result<Price> {
    let name = text(row, "meter")?;
    let meter = Meter::ALL.into_iter().find(|meter| meter.name() == name);
    let named = |column| text(row, column).map(|text| Some(text).filter(|text| !text.is_empty()));
    let tier = named("tier")?
        .map(|tier| tier.parse().map_err(|_| StoreError::Content { what: "a tier", value: tier.clone() }));
    let per_name = text(row, "per")?;
    let per = PricePer::ALL.into_iter().find(|per| per.name() == per_name);
    Ok(Price {
        meter: meter.ok_or(StoreError::Content { what: "a meter", value: name })?,
        tier: tier.transpose()?,
        pool: named("pool")?,
        model: named("model")?,
        per: per.ok_or(StoreError::Content { what: "what a price is per", value: per_name })?,
        micro: unsigned(row, "micro")?,
        from_ms: Some(unsigned(row, "from_ms")?),
        until_ms: unsigned_or_null(row, "until_ms")?,
    })
}

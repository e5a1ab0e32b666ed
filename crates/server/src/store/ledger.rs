use sluice_api::bill::{Goods, Meter, Price, PricePer};
use sluice_api::lease::{LeaseId, LeaseUse};
use sluice_api::node::{Attempt, NodeId};
use sluice_api::pool::Tier;
use sluice_api::tenant::TenantPath;
use sluice_api::usage::{UsageHour, UsageRecord};

use sqlx::any::AnyRow;
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Row};

use super::promises;
use super::rows::{Insert, Statement};
use super::{
    Result, Store, StoreError, Tx, largest, parsed, signed, small, text, to_json, unsigned, unsigned_or_null,
    within,
};
use crate::billing::Period;
use crate::usage_spans::LastCounted;

/// Parts of one question.
pub(super) const PARTS_MAX: usize = 250;

/// What a tenant's records between two moments add up to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) tenant: TenantPath,
    pub(crate) goods: Goods,
    pub(crate) records: u64,
    /// In the order of [`Meter::ALL`].
    pub(crate) amounts: [u64; Meter::ALL.len()],
}

static USAGE: Insert = Insert::new(
    "usage_record (id, node, lease, attempt, sequence, tenant, from_ms, until_ms, share_ppm, gpus, memory_mib, \
     reserved_ppm_ms, used_ppm_ms, memory_mib_ms, kernels, bytes_in, bytes_out, memory_peak, last, received_at_ms, \
     task, tier, pool, model, gflops, suspended_ppm_ms, wait_us, attained_ppm, credit_ppm, waits, waits_within, \
     devices)",
    "ON CONFLICT (id) DO NOTHING",
);

/// Records, when they came, and of which GPUs they are. One that is there already changes nothing.
pub(super) async fn write_usage(
    transaction: &mut Tx<'_>,
    records: &[(UsageRecord, u64, Vec<String>)],
) -> Result<()> {
    USAGE.write(transaction, records, bind_usage).await
}

fn bind_usage<'q>(
    statement: Statement<'q>,
    (record, received_at_ms, cards): &(UsageRecord, u64, Vec<String>),
) -> Statement<'q> {
    let promise = record.promised.map(|of| of.promise);
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
        .bind(record.tier.name().to_owned())
        .bind(record.pool.clone())
        .bind(record.model.clone())
        .bind(signed(record.gflops))
        .bind(signed(record.suspended_ppm_ms()))
        .bind(promise.map_or(0, |promise| signed(promise.wait_us)))
        .bind(promise.map_or(0, |promise| i64::from(promise.attained_ppm)))
        .bind(promise.map_or(0, |promise| i64::from(promise.credit_ppm)))
        .bind(record.promised.map_or(0, |of| signed(of.waits)))
        .bind(record.promised.map_or(0, |of| signed(of.within)))
        .bind(if cards.is_empty() { String::new() } else { to_json(cards) })
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
        .bind(price.tier.as_ref().map_or("", Tier::name).to_owned())
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
            // It consists of numbers besides.
            for row in sqlx::query(AssertSqlSafe(sums_sql(parts))).fetch_all(&self.pool).await? {
                let sum = sum(&row)?;
                if let Some(sums) = sums.get_mut(first + unsigned(&row, "at")? as usize) {
                    sums.push(sum);
                }
            }
        }
        Ok(sums)
    }

    /// Sums per lease, node, tenant and sort of goods over the records of a tenant and all below it
    /// that begin in a period, of leases after one. All of these records are read: the hours that
    /// are summed up do not tell leases apart.
    pub(crate) async fn usage_by_lease(
        &self,
        tenant: &TenantPath,
        period: Period,
        after: LeaseId,
    ) -> Result<Vec<(LeaseId, NodeId, Sum)>> {
        let sql = format!(
            "SELECT lease, node, tenant, tier, pool, model, gflops, CAST(COUNT(*) AS BIGINT) AS records, {amounts} \
             FROM usage_record WHERE from_ms >= $1 AND from_ms < $2 AND (tenant = $3 OR tenant LIKE $4) AND +lease > $5 \
             GROUP BY lease, node, tenant, tier, pool, model, gflops",
            amounts = amounts_sql("bytes_in + bytes_out"),
        );
        let query = sqlx::query(AssertSqlSafe(sql));
        let (tenant, below) = within(tenant);
        let query = query.bind(signed(period.from_ms)).bind(signed(period.until_ms));
        let rows = query.bind(tenant).bind(below).bind(signed(after)).fetch_all(&self.pool).await?;
        rows.iter().map(|row| Ok((unsigned(row, "lease")?, unsigned(row, "node")?, sum(row)?))).collect()
    }

    /// For each part, sums per tenant and sort of goods over the records of one lease that begin in
    /// it.
    pub(crate) async fn usage_sums_of(&self, lease: LeaseId, parts: &[Period]) -> Result<Vec<Vec<Sum>>> {
        let sql = format!(
            "SELECT tenant, tier, pool, model, gflops, CAST(COUNT(*) AS BIGINT) AS records, {amounts} FROM usage_record \
             WHERE lease = $1 AND from_ms >= $2 AND from_ms < $3 GROUP BY tenant, tier, pool, model, gflops",
            amounts = amounts_sql("bytes_in + bytes_out"),
        );
        let mut sums = Vec::with_capacity(parts.len());
        for part in parts {
            let query = sqlx::query(AssertSqlSafe(sql.clone())).bind(signed(lease));
            let query = query.bind(signed(part.from_ms)).bind(signed(part.until_ms));
            sums.push(query.fetch_all(&self.pool).await?.iter().map(sum).collect::<Result<_>>()?);
        }
        Ok(sums)
    }

    /// Returns what a tenant and all below it used in each hour and pool after `after`, in this
    /// order.
    pub(crate) async fn usage_hours(
        &self,
        tenant: &TenantPath,
        after: (u64, &str),
        limit: u32,
    ) -> Result<Vec<UsageHour>> {
        let sql = format!(
            "SELECT hour, pool, {amounts} FROM usage_hour \
             WHERE (hour > $1 OR (hour = $1 AND pool > $2)) AND (tenant = $3 OR tenant LIKE $4) \
             GROUP BY hour, pool ORDER BY hour, pool LIMIT $5",
            amounts = amounts_sql("transfer_bytes"),
        );
        let (tenant, below) = within(tenant);
        let query = sqlx::query(AssertSqlSafe(sql)).bind(signed(after.0)).bind(after.1.to_owned());
        let rows = query.bind(tenant).bind(below).bind(i64::from(limit)).fetch_all(&self.pool).await?;
        let hour = |row| {
            Ok(UsageHour {
                from_ms: unsigned(row, "hour")?.saturating_mul(HOUR_MS as u64),
                pool: text(row, "pool")?,
                reserved_ppm_ms: total(row, "reserved")?,
                used_ppm_ms: total(row, "used")?,
            })
        };
        rows.iter().map(hour).collect()
    }

    pub(crate) async fn has_usage(&self, id: &str) -> Result<bool> {
        let query = sqlx::query("SELECT id FROM usage_record WHERE id = $1").bind(id.to_owned());
        Ok(query.fetch_optional(&self.pool).await?.is_some())
    }

    /// Returns what was counted last of a task, which is nothing if there is no record of it.
    pub(crate) async fn last_usage(&self, node: NodeId, task: Attempt) -> Result<LastCounted> {
        let query = sqlx::query(
            "SELECT MAX(sequence) AS sequence, MAX(until_ms) AS until_ms FROM usage_record \
             WHERE lease = $1 AND attempt = $2 AND task = $3 AND node = $4",
        );
        let query = query.bind(signed(task.lease)).bind(i64::from(task.attempt)).bind(i64::from(task.task));
        let row = query.bind(signed(node)).fetch_one(&self.pool).await?;
        let sequence = unsigned_or_null(&row, "sequence")?.unwrap_or(0);
        Ok(LastCounted {
            sequence: u32::try_from(sequence).unwrap_or(u32::MAX),
            until_ms: unsigned_or_null(&row, "until_ms")?.unwrap_or(0),
        })
    }

    /// When the first record of a period begins.
    pub(crate) async fn first_usage_ms(&self, period: Period) -> Result<Option<u64>> {
        let query = sqlx::query(
            "SELECT from_ms FROM usage_record WHERE from_ms >= $1 AND from_ms < $2 ORDER BY from_ms LIMIT 1",
        );
        let query = query.bind(signed(period.from_ms)).bind(signed(period.until_ms));
        query.fetch_optional(&self.pool).await?.map(|row| unsigned(&row, "from_ms")).transpose()
    }

    /// When the last record begins; 0 if there is none.
    pub(crate) async fn last_usage_ms(&self) -> Result<u64> {
        largest(&self.pool, "SELECT MAX(from_ms) AS largest FROM usage_record").await
    }

    /// Whether something has been used by a tenant or one below it.
    pub(crate) async fn has_used(&self, tenant: &TenantPath) -> Result<bool> {
        let query = sqlx::query("SELECT 1 FROM usage_hour WHERE tenant = $1 OR tenant LIKE $2 LIMIT 1");
        let (tenant, below) = within(tenant);
        Ok(query.bind(tenant).bind(below).fetch_optional(&self.pool).await?.is_some())
    }

    /// What the records of a lease add up to.
    pub(crate) async fn use_of(&self, lease: LeaseId) -> Result<LeaseUse> {
        let sql = format!(
            "SELECT COUNT(*) AS records, {amounts}, {kernels}, {bytes_in}, {bytes_out}, \
             COALESCE(MAX(memory_peak), 0) AS memory_peak FROM usage_record WHERE lease = $1",
            amounts = amounts_sql("bytes_in + bytes_out"),
            kernels = total_sql("kernels", "kernels"),
            bytes_in = total_sql("bytes_in", "bytes_in"),
            bytes_out = total_sql("bytes_out", "bytes_out"),
        );
        let row = sqlx::query(AssertSqlSafe(sql)).bind(signed(lease)).fetch_one(&self.pool).await?;
        Ok(LeaseUse {
            records: unsigned(&row, "records")?,
            reserved_ppm_ms: total(&row, "reserved")?,
            suspended_ppm_ms: total(&row, "suspended")?,
            used_ppm_ms: total(&row, "used")?,
            memory_mib_ms: total(&row, "memory")?,
            kernels: total(&row, "kernels")?,
            bytes_in: total(&row, "bytes_in")?,
            bytes_out: total(&row, "bytes_out")?,
            memory_peak: unsigned(&row, "memory_peak")?,
        })
    }

    /// Records of a tenant and those below it after the cursor (`from_ms` and id of the last one
    /// seen), in the order of their beginning.
    pub(crate) async fn usage(
        &self,
        tenant: &TenantPath,
        after: (u64, &str),
        limit: u32,
    ) -> Result<Vec<UsageRecord>> {
        let of = self.within("usage_record", tenant).await?;
        if of.is_nobody() {
            return Ok(Vec::new());
        }
        let condition = "from_ms >= $1 AND (from_ms > $1 OR id > $2)";
        let sql = of.sql("usage_record", condition, "from_ms, id", 3);
        let query = sqlx::query(AssertSqlSafe(sql)).bind(signed(after.0)).bind(after.1.to_owned());
        let query = of.names().into_iter().fold(query.bind(i64::from(limit)), Query::bind);
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
                suspended: unsigned(row, "suspended_ppm_ms")? > 0,
                gpus: small(row, "gpus")?,
                memory_mib: unsigned(row, "memory_mib")?,
                used_ppm_ms: unsigned(row, "used_ppm_ms")?,
                kernels: unsigned(row, "kernels")?,
                bytes_in: unsigned(row, "bytes_in")?,
                bytes_out: unsigned(row, "bytes_out")?,
                memory_peak: unsigned(row, "memory_peak")?,
                promised: promises::promised(row)?,
                last: small(row, "last")? != 0,
            })
        };
        query.fetch_all(&self.pool).await?.iter().map(record).collect()
    }
}

/// What usage is summed up by beforehand: `usage_hour.hour` counts these.
const HOUR_MS: i64 = 3_600_000;

/// Parts of a time as tables that statements read by: whole hours, which are taken as they have
/// been summed up, and what is left at their ends, which is added up record by record. So is the
/// last hour of a part, unless nothing in it begins after the part.
pub(super) struct PartRanges {
    /// `WITH` and the tables `hours (at, first, until, after_ms, over_ms)` and
    /// `ends (at, begins_ms, until_ms, over_ms)`.
    pub(super) with: String,
    /// Which hours of a table count, by its column `hour`.
    pub(super) of_hours: String,
    /// Which records count, by their column `from_ms`.
    pub(super) of_records: String,
}

impl PartRanges {
    pub(super) fn new(parts: &[Period]) -> PartRanges {
        // Rows that nothing is in, since there is no VALUES without rows.
        let (mut hours, mut ends) = (vec!["(0, 0, 0, 0, 0)".to_owned()], vec!["(0, 0, 0, 0)".to_owned()]);
        for (at, part) in parts.iter().enumerate() {
            let (from, until) = (signed(part.from_ms), signed(part.until_ms));
            // The first whole hour, and the one that the part ends in.
            let (first, last) = (from / HOUR_MS + i64::from(from % HOUR_MS > 0), until / HOUR_MS);
            if first > last {
                ends.push(format!("({at}, {from}, {until}, 0)"));
                continue;
            }
            hours.push(format!("({at}, {first}, {last}, 0, 0)"));
            ends.push(format!("({at}, {from}, {}, 0)", first.saturating_mul(HOUR_MS).min(until)));
            let (begins, over) = (last * HOUR_MS, (last + 1).saturating_mul(HOUR_MS));
            hours.push(format!("({at}, {last}, {}, {until}, {over})", last + 1));
            ends.push(format!("({at}, {begins}, {until}, {over})"));
        }
        let later = |from: &str, until: &str| {
            format!(
                "EXISTS (SELECT 1 FROM usage_record AS later WHERE later.from_ms >= {from} AND later.from_ms < {until})"
            )
        };
        PartRanges {
            with: format!(
                "WITH hours (at, first, until, after_ms, over_ms) AS (VALUES {}), \
                 ends (at, begins_ms, until_ms, over_ms) AS (VALUES {})",
                hours.join(", "),
                ends.join(", ")
            ),
            of_hours: format!(
                "hour >= hours.first AND hour < hours.until AND NOT {}",
                later("hours.after_ms", "hours.over_ms")
            ),
            of_records: format!(
                "from_ms >= ends.begins_ms AND from_ms < ends.until_ms AND (ends.over_ms = 0 OR {})",
                later("ends.until_ms", "ends.over_ms")
            ),
        }
    }
}

/// One statement, so that all of it is of one moment.
fn sums_sql(parts: &[Period]) -> String {
    let PartRanges { with, of_hours, of_records } = PartRanges::new(parts);
    // SQLite reads the tables of a CROSS JOIN in their order, so that it looks up
    // what a part has by its time.
    let goods = "tenant, tier, pool, model, gflops";
    format!(
        "{with} \
         SELECT CAST(at AS BIGINT) AS at, {goods}, CAST(SUM(records) AS BIGINT) AS records, {amounts} FROM ( \
         SELECT at, {goods}, records, reserved_ppm_ms, used_ppm_ms, memory_mib_ms, transfer_bytes, suspended_ppm_ms \
         FROM hours CROSS JOIN usage_hour WHERE {of_hours} \
         UNION ALL \
         SELECT at, {goods}, 1, reserved_ppm_ms, used_ppm_ms, memory_mib_ms, bytes_in + bytes_out, suspended_ppm_ms \
         FROM ends CROSS JOIN usage_record WHERE {of_records} \
         ) AS each_of GROUP BY at, {goods} ORDER BY at, {goods}",
        amounts = amounts_sql("transfer_bytes"),
    )
}

/// In the order of [`Meter::ALL`], and by their names; bytes are not in one column everywhere.
pub(super) fn amounts_sql(bytes: &str) -> String {
    let columns = [
        ("reserved_ppm_ms", "reserved"),
        ("used_ppm_ms", "used"),
        ("memory_mib_ms", "memory"),
        (bytes, "transfer"),
        ("suspended_ppm_ms", "suspended"),
    ];
    columns.map(|(column, name)| total_sql(column, name)).join(", ")
}

/// A sum for [`total`], in two columns: of the upper and of the lower halves of the numbers. All
/// together may be more than a column holds, in what nodes say, and in what a large tenant uses
/// within years. SUM of BIGINT is NUMERIC in PostgreSQL, hence the casts.
pub(super) fn total_sql(column: &str, name: &str) -> String {
    format!(
        "CAST(COALESCE(SUM(({column}) >> 32), 0) AS BIGINT) AS {name}_high, \
         CAST(COALESCE(SUM(({column}) & 4294967295), 0) AS BIGINT) AS {name}_low"
    )
}

/// What no 64-bit number holds counts as the largest.
pub(super) fn total(row: &AnyRow, name: &str) -> Result<u64> {
    let half = |half: &str| {
        let number: i64 = row.try_get(&*format!("{name}_{half}"))?;
        u128::try_from(number).map_err(|_| StoreError::Content { what: "a sum", value: number.to_string() })
    };
    let total = (half("high")? << 32) + half("low")?;
    Ok(u64::try_from(total).unwrap_or_else(|_| {
        tracing::error!(
            "{name} adds up to {total}, which is more than can be counted; taken for {}",
            u64::MAX
        );
        u64::MAX
    }))
}

fn sum(row: &AnyRow) -> Result<Sum> {
    let (tenant, records) = (parsed(row, "tenant")?, unsigned(row, "records")?);
    Ok(Sum { tenant, goods: goods(row)?, records, amounts: amounts(row)? })
}

/// In the order of [`Meter::ALL`].
pub(super) fn amounts(row: &AnyRow) -> Result<[u64; Meter::ALL.len()]> {
    let mut amounts = [0; Meter::ALL.len()];
    for (amount, name) in amounts.iter_mut().zip(["reserved", "used", "memory", "transfer", "suspended"]) {
        *amount = total(row, name)?;
    }
    Ok(amounts)
}

pub(super) fn goods(row: &AnyRow) -> Result<Goods> {
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use sluice_api::node::Attempt;

    use super::*;
    use crate::store::{Database, Write};

    const HOUR: u64 = HOUR_MS as u64;

    fn record(lease: u64, sequence: u32, (tenant, model, from_ms): (usize, usize, u64)) -> UsageRecord {
        let attempt = Attempt { lease, attempt: 1, task: 0 };
        let (tenant, gflops) = (["acme", "acme/a", "globex"][tenant], model * 1000);
        let model = ["A", "B"][model];
        let record = serde_json::json!({
            "id": UsageRecord::id_of(1, attempt, sequence), "node": 1, "lease": lease, "attempt": 1, "sequence": sequence,
            "tenant": tenant, "model": model, "gflops": gflops,
            "from_ms": from_ms, "until_ms": from_ms + 10_000 + u64::from(sequence), "share_ppm": 250_000, "gpus": 1,
            "memory_mib": lease, "used_ppm_ms": from_ms % 1000, "kernels": 1, "bytes_in": sequence, "bytes_out": from_ms % 100, "memory_peak": 1,
            "suspended": from_ms % 3 == 0, "last": false,
        });
        serde_json::from_value(record).unwrap()
    }

    /// What is said of records one by one.
    fn added_up(records: &BTreeMap<String, UsageRecord>, part: &Period) -> Vec<Sum> {
        let mut sums: BTreeMap<(String, Goods), (u64, [u64; Meter::ALL.len()])> = BTreeMap::new();
        for record in records.values().filter(|r| (part.from_ms..part.until_ms).contains(&r.from_ms)) {
            let UsageRecord { tier, pool, model, gflops, .. } = record.clone();
            let goods = Goods { tier, pool, model, gflops };
            let (count, amounts) = sums.entry((record.tenant.to_string(), goods)).or_default();
            *count += 1;
            let of = [
                record.reserved_ppm_ms(),
                record.used_ppm_ms,
                record.memory_mib_ms(),
                record.transfer_bytes(),
                record.suspended_ppm_ms(),
            ];
            amounts.iter_mut().zip(of).for_each(|(sum, amount)| *sum += amount);
        }
        let sum = |((tenant, goods), (records, amounts)): ((String, Goods), _)| Sum {
            tenant: tenant.parse().unwrap(),
            goods,
            records,
            amounts,
        };
        sums.into_iter().map(sum).collect()
    }

    /// Moments that are often the beginning of an hour, or near it.
    fn moment() -> impl Strategy<Value = u64> {
        (0..50_u64, prop_oneof![Just(0), Just(1), Just(HOUR - 1), 0..HOUR])
            .prop_map(|(hour, ms)| hour * HOUR + ms)
    }

    #[test]
    fn hours_that_are_summed_up_and_records_say_the_same() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let record_of = (1..4_u64, 1..9_u32, (0..3_usize, 0..2_usize, moment()));
        let batches = proptest::collection::vec(proptest::collection::vec(record_of, 1..20), 1..5);
        let part = (moment(), moment(), 0..20).prop_filter_map("no time", |(from_ms, until_ms, open)| {
            let until_ms = if open == 0 { i64::MAX as u64 } else { until_ms };
            (from_ms < until_ms).then_some(Period { from_ms, until_ms })
        });
        let parts = proptest::collection::vec(part, 1..8);
        proptest!(ProptestConfig::with_cases(24), |(batches in batches, parts in parts)| {
            runtime.block_on(async {
                let folder = tempfile::tempdir().unwrap();
                let store = Store::open(&Database::Sqlite(folder.path().join("database"))).await.unwrap();
                let fence = store.lead("a test", "", true).await.unwrap().unwrap();
                let mut records = BTreeMap::new();
                for batch in batches {
                    // Some come twice, in one batch or in a later one, and say something else: the
                    // first counts. Some come late.
                    let batch = batch.into_iter().map(|(lease, sequence, what)| record(lease, sequence, what));
                    let write = |record: UsageRecord| {
                        records.entry(record.id.clone()).or_insert_with(|| record.clone());
                        Write::Usage { record, received_at_ms: 0, cards: Vec::new() }
                    };
                    store.commit(fence, batch.map(write).collect()).await.unwrap();
                    let sums = store.usage_sums(&parts).await.unwrap();
                    for (part, mut sums) in parts.iter().zip(sums) {
                        let mut expect = added_up(&records, part);
                        let key = |sum: &Sum| (sum.tenant.clone(), sum.goods.clone());
                        sums.sort_by_key(key);
                        expect.sort_by_key(key);
                        assert_eq!(sums, expect, "{part:?}");
                    }
                }
            });
        });
    }
}

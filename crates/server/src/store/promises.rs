//! What leases were promised about their waits for GPUs, and the waits, in the database.

use sluice_api::bill::Goods;
use sluice_api::lease::LeaseId;
use sluice_api::pool::{Promise, Promised};
use sluice_api::tenant::TenantPath;
use sqlx::AssertSqlSafe;
use sqlx::any::AnyRow;

use super::ledger::{PARTS_MAX, PartRanges, goods, total, total_sql};
use super::{Result, Store, parsed, signed, small, unsigned};
use crate::billing::Period;

const DAY_MS: u64 = 24 * 3_600_000;

/// What a lease had under one promise with a credit on one day of UTC, of one sort of goods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PromisedSum {
    pub(crate) tenant: TenantPath,
    pub(crate) lease: LeaseId,
    pub(crate) goods: Goods,
    pub(crate) promise: Promise,
    /// The beginning of the day.
    pub(crate) day_ms: u64,
    pub(crate) reserved_ppm_ms: u64,
    pub(crate) waits: u64,
    pub(crate) within: u64,
}

impl Store {
    /// For each part, what was promised with a credit: of all leases, or of one.
    pub(crate) async fn promised_sums(
        &self,
        parts: &[Period],
        lease: Option<LeaseId>,
    ) -> Result<Vec<Vec<PromisedSum>>> {
        let mut sums = vec![Vec::new(); parts.len()];
        for (first, parts) in (0..).step_by(PARTS_MAX).zip(parts.chunks(PARTS_MAX)) {
            // It consists of numbers besides.
            for row in sqlx::query(AssertSqlSafe(sums_sql(parts, lease))).fetch_all(&self.pool).await? {
                let sum = promised_sum(&row)?;
                if let Some(sums) = sums.get_mut(first + unsigned(&row, "at")? as usize) {
                    sums.push(sum);
                }
            }
        }
        Ok(sums)
    }

    /// What a lease was promised, and all its waits: one for each promise.
    pub(crate) async fn promised(&self, lease: LeaseId) -> Result<Vec<Promised>> {
        let sql = format!(
            "SELECT wait_us, attained_ppm, credit_ppm, {waits}, {within} FROM promised_hour \
             WHERE lease = $1 GROUP BY wait_us, attained_ppm, credit_ppm ORDER BY MIN(hour), wait_us, attained_ppm, credit_ppm",
            waits = total_sql("waits", "waits"),
            within = total_sql("waits_within", "within"),
        );
        let rows = sqlx::query(AssertSqlSafe(sql)).bind(signed(lease)).fetch_all(&self.pool).await?;
        let promised = |row| {
            Ok(Promised {
                promise: promise(row)?,
                waits: total(row, "waits")?,
                within: total(row, "within")?,
            })
        };
        rows.iter().map(promised).collect()
    }
}

fn sums_sql(parts: &[Period], lease: Option<LeaseId>) -> String {
    let PartRanges { with, of_hours, of_records } = PartRanges::new(parts);
    let key = "lease, tenant, tier, pool, model, gflops, wait_us, attained_ppm, credit_ppm";
    let amounts = "reserved_ppm_ms, waits, waits_within";
    let of_lease = lease.map_or_else(String::new, |lease| format!(" AND lease = {}", signed(lease)));
    format!(
        "{with} \
         SELECT CAST(at AS BIGINT) AS at, CAST(day AS BIGINT) AS day, {key}, {reserved}, {waits}, {within} FROM ( \
         SELECT at, hour / 24 AS day, {key}, {amounts} FROM hours CROSS JOIN promised_hour \
         WHERE {of_hours} AND credit_ppm > 0{of_lease} \
         UNION ALL \
         SELECT at, from_ms / {DAY_MS} AS day, {key}, {amounts} FROM ends CROSS JOIN usage_record \
         WHERE {of_records} AND wait_us > 0 AND credit_ppm > 0{of_lease} \
         ) AS each_of GROUP BY at, day, {key} ORDER BY at, day, {key}",
        reserved = total_sql("reserved_ppm_ms", "reserved"),
        waits = total_sql("waits", "waits"),
        within = total_sql("waits_within", "within"),
    )
}

fn promised_sum(row: &AnyRow) -> Result<PromisedSum> {
    Ok(PromisedSum {
        tenant: parsed(row, "tenant")?,
        lease: unsigned(row, "lease")?,
        goods: goods(row)?,
        promise: promise(row)?,
        day_ms: unsigned(row, "day")?.saturating_mul(DAY_MS),
        reserved_ppm_ms: total(row, "reserved")?,
        waits: total(row, "waits")?,
        within: total(row, "within")?,
    })
}

/// Of a usage record; none where nothing was promised.
pub(super) fn promised(row: &AnyRow) -> Result<Option<Promised>> {
    if unsigned(row, "wait_us")? == 0 {
        return Ok(None);
    }
    let (waits, within) = (unsigned(row, "waits")?, unsigned(row, "waits_within")?);
    Ok(Some(Promised { promise: promise(row)?, waits, within }))
}

pub(super) fn promise(row: &AnyRow) -> Result<Promise> {
    Ok(Promise {
        wait_us: unsigned(row, "wait_us")?,
        attained_ppm: small(row, "attained_ppm")?,
        credit_ppm: small(row, "credit_ppm")?,
    })
}

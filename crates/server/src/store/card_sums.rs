//! What records of the same GPUs add up to.

use sluice_api::bill::{Goods, Meter};
use sluice_api::node::NodeId;
use sqlx::AssertSqlSafe;

use super::ledger::{PARTS_MAX, PartRanges, amounts, amounts_sql, goods};
use super::{Result, Store, from_json, signed, unsigned};
use crate::billing::Period;

/// Of records that are of the same GPUs, which their lease had together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CardSum {
    pub(crate) node: NodeId,
    /// Their names on the node.
    pub(crate) cards: Vec<String>,
    pub(crate) goods: Goods,
    /// In the order of [`Meter::ALL`].
    pub(crate) amounts: [u64; Meter::ALL.len()],
}

impl Store {
    /// For each part, sums over the records of these nodes that begin in it, as far as it is known
    /// of which GPUs they are.
    pub(crate) async fn card_sums(&self, parts: &[Period], nodes: &[NodeId]) -> Result<Vec<Vec<CardSum>>> {
        let mut sums = vec![Vec::new(); parts.len()];
        if nodes.is_empty() {
            return Ok(sums);
        }
        for (first, parts) in (0..).step_by(PARTS_MAX).zip(parts.chunks(PARTS_MAX)) {
            // It consists of numbers besides.
            for row in sqlx::query(AssertSqlSafe(sums_sql(parts, nodes))).fetch_all(&self.pool).await? {
                let sum = CardSum {
                    node: unsigned(&row, "node")?,
                    cards: from_json(&row, "devices")?,
                    goods: goods(&row)?,
                    amounts: amounts(&row)?,
                };
                if let Some(sums) = sums.get_mut(first + unsigned(&row, "at")? as usize) {
                    sums.push(sum);
                }
            }
        }
        Ok(sums)
    }
}

fn sums_sql(parts: &[Period], nodes: &[NodeId]) -> String {
    let PartRanges { with, of_hours, of_records } = PartRanges::new(parts);
    let nodes: Vec<String> = nodes.iter().map(|node| signed(*node).to_string()).collect();
    let (nodes, of) = (nodes.join(", "), "node, devices, tier, pool, model, gflops");
    format!(
        "{with} \
         SELECT CAST(at AS BIGINT) AS at, {of}, {amounts} FROM ( \
         SELECT at, {of}, reserved_ppm_ms, used_ppm_ms, memory_mib_ms, transfer_bytes, suspended_ppm_ms \
         FROM hours CROSS JOIN device_hour WHERE {of_hours} AND node IN ({nodes}) \
         UNION ALL \
         SELECT at, {of}, reserved_ppm_ms, used_ppm_ms, memory_mib_ms, bytes_in + bytes_out, suspended_ppm_ms \
         FROM ends CROSS JOIN usage_record WHERE {of_records} AND devices <> '' AND node IN ({nodes}) \
         ) AS each_of GROUP BY at, {of} ORDER BY at, {of}",
        amounts = amounts_sql("transfer_bytes"),
    )
}

//! Prices and bills: integers all the way, one rounding per line.

use serde::{Deserialize, Serialize};

use crate::tenant::TenantPath;
use crate::usage::{GIB_HOUR_MIB_MS, GPU_HOUR_PPM_MS};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Meter {
    /// Share x time held; priced per GPU-hour.
    Reserved,
    /// Device time x occupied part; priced per GPU-hour.
    Used,
    /// Memory x time held; priced per GiB-hour.
    Memory,
}

impl Meter {
    pub const ALL: [Meter; 3] = [Meter::Reserved, Meter::Used, Meter::Memory];

    pub fn name(self) -> &'static str {
        match self {
            Meter::Reserved => "reserved",
            Meter::Used => "used",
            Meter::Memory => "memory",
        }
    }

    /// What its price is per.
    pub fn unit_name(self) -> &'static str {
        match self {
            Meter::Reserved | Meter::Used => "GPU-hour",
            Meter::Memory => "GiB-hour",
        }
    }

    /// How many of the meter's smallest units make one of the unit that its price is per.
    pub fn unit(self) -> u64 {
        match self {
            Meter::Reserved | Meter::Used => GPU_HOUR_PPM_MS,
            Meter::Memory => GIB_HOUR_MIB_MS,
        }
    }
}

/// A price; it holds from a moment until the next price of the same meter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Price {
    pub meter: Meter,
    /// Millionths of the currency's unit per GPU-hour or GiB-hour.
    pub micro: u64,
    /// From when on; the moment of its declaration unless said. Prices of the past cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_ms: Option<u64>,
}

/// One line of a bill: all of a tenant's use of one meter at one price.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Line {
    pub tenant: TenantPath,
    pub meter: Meter,
    /// In the meter's smallest unit, exact; see [`Meter::unit`].
    pub amount: u64,
    /// The amount in millionths of the unit that the price is per, rounded half up, for people to read.
    pub quantity_micro: u64,
    pub price_micro: u64,
    /// Amount x price, rounded half up.
    pub cost_micro: u64,
}

impl Line {
    pub fn new(tenant: TenantPath, meter: Meter, amount: u64, price_micro: u64) -> Line {
        Line {
            tenant,
            meter,
            amount,
            quantity_micro: scaled(amount, 1_000_000, meter.unit()),
            price_micro,
            cost_micro: scaled(amount, price_micro, meter.unit()),
        }
    }
}

/// `amount` x `factor` / `unit`, rounded half up; what no 64-bit number holds becomes the largest.
fn scaled(amount: u64, factor: u64, unit: u64) -> u64 {
    let (product, unit) = (u128::from(amount) * u128::from(factor), u128::from(unit));
    u64::try_from((product + unit / 2) / unit).unwrap_or(u64::MAX)
}

/// What a tenant and all below it used between two moments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Bill {
    pub tenant: TenantPath,
    pub from_ms: u64,
    pub until_ms: u64,
    pub lines: Vec<Line>,
    /// The sum of the lines' costs.
    pub total_micro: u64,
    /// How many usage records it was made from.
    pub records: u64,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::usage::UsageRecord;

    const HOUR_MS: u64 = 3_600_000;

    fn record(share_ppm: u32, from_ms: u64, until_ms: u64) -> UsageRecord {
        UsageRecord {
            id: String::new(),
            node: 1,
            lease: 1,
            attempt: 1,
            task: 0,
            sequence: 1,
            tenant: "acme".parse().unwrap(),
            from_ms,
            until_ms,
            share_ppm,
            gpus: 1,
            memory_mib: 0,
            used_ppm_ms: 0,
            kernels: 0,
            bytes_in: 0,
            bytes_out: 0,
            memory_peak: 0,
            last: false,
        }
    }

    fn line(records: &[UsageRecord], price_micro: u64) -> Line {
        let amount = records.iter().map(UsageRecord::reserved_ppm_ms).sum();
        Line::new("acme".parse().unwrap(), Meter::Reserved, amount, price_micro)
    }

    proptest! {
        /// However each of four quarters' hour is cut into records, they are one GPU-hour to the unit and cost its price.
        #[test]
        fn four_quarters_for_an_hour_are_one_gpu_hour(
            cuts in proptest::collection::vec(proptest::collection::btree_set(1..HOUR_MS, 0..20), 4),
            begins in proptest::collection::vec(0..1_u64 << 42, 4),
            price_micro in 0..1_000_000_000_000_u64,
        ) {
            let mut records = Vec::new();
            for (cuts, begin) in cuts.iter().zip(begins) {
                let mut from = 0;
                for &until in cuts.iter().chain([&HOUR_MS]) {
                    records.push(record(250_000, begin + from, begin + until));
                    from = until;
                }
            }
            let line = line(&records, price_micro);
            prop_assert_eq!(line.amount, GPU_HOUR_PPM_MS);
            prop_assert_eq!(line.quantity_micro, 1_000_000);
            prop_assert_eq!(line.cost_micro, price_micro);
        }

        /// Shares that add up to whole GPUs cost what the whole GPUs cost, for any time.
        #[test]
        fn shares_of_a_gpu_cost_what_the_gpu_costs(
            first in 1..crate::GPU_PPM, held_ms in 1..HOUR_MS * 24, price_micro in 0..1_000_000_000_u64,
        ) {
            let parts = [record(first, 0, held_ms), record(crate::GPU_PPM - first, 0, held_ms)];
            prop_assert_eq!(line(&parts, price_micro), line(&[record(crate::GPU_PPM, 0, held_ms)], price_micro));
        }
    }

    #[test]
    fn costs_round_half_up_and_do_not_overflow() {
        let cost = |amount, price| Line::new("a".parse().unwrap(), Meter::Reserved, amount, price).cost_micro;
        assert_eq!(cost(GPU_HOUR_PPM_MS / 2, 1), 1);
        assert_eq!(cost(GPU_HOUR_PPM_MS / 2 - 1, 1), 0);
        assert_eq!(cost(u64::MAX, u64::MAX), u64::MAX);
    }
}

//! Credits for promises that were not kept.

use serde::{Deserialize, Serialize};

use crate::GPU_PPM;
use crate::lease::LeaseId;
use crate::pool::{Promised, Tier};
use crate::tenant::TenantPath;
use crate::written::{moment, money, percent};

const DAY_MS: u64 = 24 * 3_600_000;

/// What a bill takes off for one lease and day, since the promise of the lease's tier was not kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Credit {
    pub tenant: TenantPath,
    pub lease: LeaseId,
    pub tier: Tier,
    pub pool: String,
    /// The day of UTC, as far as it is in the bill's period.
    pub from_ms: u64,
    pub until_ms: u64,
    #[serde(flatten)]
    pub promised: Promised,
    /// What the lease's share cost meanwhile, in millionths of the currency's unit: the meter
    /// `reserved`.
    pub reserved_micro: u64,
    /// The promised part of that, rounded half up, which the bill takes off.
    pub micro: u64,
}

impl Credit {
    /// The promised part of what the share of a lease cost.
    pub fn micro_of(promised: &Promised, reserved_micro: u64) -> u64 {
        let product = u128::from(reserved_micro) * u128::from(promised.promise.credit_ppm);
        let part = (product + u128::from(GPU_PPM) / 2) / u128::from(GPU_PPM);
        u64::try_from(part).unwrap_or(u64::MAX)
    }

    /// `lease 7 (premium, pool inference) on 2026-11-28: 98.2% of 1824 waits; 99% within 20ms
    /// promised: missed; 10% of 1.25 for its share`
    pub fn reason(&self) -> String {
        let Credit { lease, tier, pool, from_ms, promised, reserved_micro, .. } = self;
        let day = moment(from_ms - from_ms % DAY_MS);
        let part = percent(promised.promise.credit_ppm.into());
        let cost = money(*reserved_micro);
        format!(
            "lease {lease} ({}, pool {pool}) on {day}: {}; {part} of {cost} for its share",
            tier.name(),
            promised.text()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Promise;

    #[test]
    fn a_credit_is_rounded_once_and_says_what_it_is_for() {
        let of = |credit_ppm| Promised {
            promise: Promise { wait_us: 20_000, attained_ppm: 990_000, credit_ppm },
            waits: 1000,
            within: 982,
        };
        let micro = |credit_ppm, cost| Credit::micro_of(&of(credit_ppm), cost);
        assert_eq!([micro(100_000, 1_250_004), micro(100_000, 1_250_005)], [125_000, 125_001]);
        assert_eq!([micro(1_000_000, u64::MAX), micro(1_000_000, 7), micro(0, 7)], [u64::MAX, 7, 0]);
        let credit = Credit {
            tenant: "acme".parse().unwrap(),
            lease: 7,
            tier: Tier::Premium,
            pool: "inference".into(),
            from_ms: DAY_MS + 5,
            until_ms: 2 * DAY_MS,
            promised: of(100_000),
            reserved_micro: 1_250_000,
            micro: 125_000,
        };
        assert_eq!(
            credit.reason(),
            "lease 7 (premium, pool inference) on 1970-01-02: 98.2% of 1000 waits; 99% within 20ms promised: missed; \
             10% of 1.25 for its share"
        );
        let json = serde_json::to_value(&credit).unwrap();
        assert_eq!((&json["waits"], &json["wait_us"]), (&1000.into(), &20_000.into()));
        assert_eq!(serde_json::from_value::<Credit>(json).unwrap(), credit);
    }
}

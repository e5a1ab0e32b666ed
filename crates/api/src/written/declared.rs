//! Quotas, budgets, prices, taxes and hours as declarations have them.

use serde::Deserialize;

use super::read::{either, either_small, memory_mib};
use super::{WrittenError, decimal, moment_ms, thousandths};
use crate::bill::{Budget, BudgetEnd, BudgetPeriod, Meter, Price, PricePer};
use crate::invoice::Tax;
use crate::pool::{PoolPrice, Tier, Window};
use crate::tenant::Quota;

/// What a tenant may hold, all tenants below it included.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WrittenQuota {
    /// GPUs that are this tenant's whenever it asks for them, such as 0.5.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[0-9]{1,6}(\\.[0-9]{1,3})?$", examples("0.5")))]
    guaranteed: Option<String>,
    /// Guaranteed GPUs, in thousandths.
    guaranteed_milli: Option<u32>,
    /// Units that are. Once any tenant is guaranteed units, each tenant with a guarantee states its
    /// units, and the guarantee is what is within all that is stated.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[0-9]{1,9}(\\.[0-9]{1,3})?$", examples("40")))]
    guaranteed_units: Option<String>,
    /// Guaranteed units, in thousandths.
    guaranteed_units_milli: Option<u64>,
    /// Device memory that is, over all GPUs; as with units.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[0-9]{1,6} ?[MGT]iB$", examples("64GiB")))]
    guaranteed_memory: Option<String>,
    /// Guaranteed memory, in MiB.
    guaranteed_memory_mib: Option<u64>,
    /// The most GPUs that it may hold.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[0-9]{1,6}(\\.[0-9]{1,3})?$", examples("1.5")))]
    limit: Option<String>,
    /// Limit of GPUs, in thousandths.
    limit_milli: Option<u32>,
    /// The most units that it may hold.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[0-9]{1,9}(\\.[0-9]{1,3})?$", examples("160")))]
    units_limit: Option<String>,
    /// Limit of units, in thousandths.
    units_limit_milli: Option<u64>,
    /// Its part of what is left over, in proportion to its siblings' weights; 0 for none. 1 unless
    /// said.
    #[serde(default = "weight_of_one")]
    over_quota_weight: u32,
    /// The most device memory that it may hold, over all GPUs.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[0-9]{1,6} ?[MGT]iB$", examples("64GiB")))]
    memory_limit: Option<String>,
    /// Limit of memory, in MiB.
    memory_limit_mib: Option<u64>,
    /// The most leases it may hold at a time.
    leases_limit: Option<u32>,
}

fn weight_of_one() -> u32 {
    1
}

impl TryFrom<WrittenQuota> for Quota {
    type Error = WrittenError;

    fn try_from(written: WrittenQuota) -> Result<Quota, WrittenError> {
        let milli = |written, exact| either(written, exact, |text| decimal(text, 3));
        let memory = |written, exact| either(written, exact, memory_mib);
        Ok(Quota {
            guaranteed_milli: either_small(
                ("guaranteed", written.guaranteed),
                ("guaranteed_milli", written.guaranteed_milli),
            )?
            .unwrap_or(0),
            guaranteed_units_milli: milli(
                ("guaranteed_units", written.guaranteed_units),
                ("guaranteed_units_milli", written.guaranteed_units_milli),
            )?
            .unwrap_or(0),
            guaranteed_memory_mib: memory(
                ("guaranteed_memory", written.guaranteed_memory),
                ("guaranteed_memory_mib", written.guaranteed_memory_mib),
            )?
            .unwrap_or(0),
            limit_milli: either_small(("limit", written.limit), ("limit_milli", written.limit_milli))?,
            units_limit_milli: milli(
                ("units_limit", written.units_limit),
                ("units_limit_milli", written.units_limit_milli),
            )?,
            over_quota_weight: written.over_quota_weight,
            memory_limit_mib: memory(
                ("memory_limit", written.memory_limit),
                ("memory_limit_mib", written.memory_limit_mib),
            )?,
            leases_limit: written.leases_limit,
        })
    }
}

/// What a tenant and all below it may spend in a period.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WrittenBudget {
    /// In the currency's unit, such as 5000 or 12.50. This or `micro` is there.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[0-9]{1,9}(\\.[0-9]{1,6})?$", examples("5000")))]
    amount: Option<String>,
    /// The amount in millionths of the currency's unit.
    pub(super) micro: Option<u64>,
    per: BudgetPeriod,
    /// What happens once it is spent.
    #[serde(default)]
    then: BudgetEnd,
}

impl TryFrom<WrittenBudget> for Budget {
    type Error = WrittenError;

    fn try_from(written: WrittenBudget) -> Result<Budget, WrittenError> {
        let WrittenBudget { amount, micro, per, then } = written;
        Ok(Budget { micro: money_of("amount", amount, micro)?, per, then })
    }
}

/// A price; it holds from a moment until the next price for the same things, or until its own end.
///
/// Of several that fit, the one that names the most of tier, pool and model counts; of these the
/// one per unit-hour, which is for GPUs that have units; and of these the latest.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WrittenPrice {
    meter: Meter,
    /// For this tier only.
    tier: Option<Tier>,
    /// For this pool only.
    pool: Option<String>,
    /// For GPUs of this model only, as the driver names it.
    model: Option<String>,
    #[serde(default)]
    per: PricePer,
    /// In the currency's unit per GPU-hour, unit-hour, GiB-hour or GiB, such as 2.00. This or
    /// `micro` is there.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[0-9]{1,6}(\\.[0-9]{1,6})?$", examples("2.00")))]
    price: Option<String>,
    /// The price in millionths of the currency's unit.
    pub(super) micro: Option<u64>,
    /// From when on, such as 2026-12-01 (its midnight, UTC) or 2026-12-01T08:30:00Z; the moment of
    /// its declaration unless said. Prices of the past cannot be changed.
    #[cfg_attr(
        feature = "openapi",
        schema(pattern = "^20[0-9]{2}-[0-9]{2}-[0-9]{2}(T.+)?$", examples("2026-12-01"))
    )]
    from: Option<String>,
    /// The start in milliseconds since 1970.
    from_ms: Option<u64>,
    /// Until before when.
    #[cfg_attr(
        feature = "openapi",
        schema(pattern = "^20[0-9]{2}-[0-9]{2}-[0-9]{2}(T.+)?$", examples("2027-01-01"))
    )]
    until: Option<String>,
    /// The end in milliseconds since 1970.
    until_ms: Option<u64>,
}

impl TryFrom<WrittenPrice> for Price {
    type Error = WrittenError;

    fn try_from(written: WrittenPrice) -> Result<Price, WrittenError> {
        Ok(Price {
            meter: written.meter,
            tier: written.tier,
            pool: written.pool,
            model: written.model,
            per: written.per,
            micro: money_of("price", written.price, written.micro)?,
            from_ms: either(("from", written.from), ("from_ms", written.from_ms), moment_ms)?,
            until_ms: either(("until", written.until), ("until_ms", written.until_ms), moment_ms)?,
        })
    }
}

/// A price in a pool while a personality is in force. Of several that fit, the one that names the
/// most of tier and model counts, and of these the one per unit-hour, which is for GPUs that have
/// units.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WrittenPoolPrice {
    meter: Meter,
    /// For this tier only.
    tier: Option<Tier>,
    /// For GPUs of this model only, as the driver names it.
    model: Option<String>,
    #[serde(default)]
    per: PricePer,
    /// In the currency's unit per GPU-hour, unit-hour, GiB-hour or GiB, such as 2.00. This or
    /// `micro` is there.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[0-9]{1,6}(\\.[0-9]{1,6})?$", examples("2.00")))]
    price: Option<String>,
    /// The price in millionths of the currency's unit.
    pub(super) micro: Option<u64>,
}

impl TryFrom<WrittenPoolPrice> for PoolPrice {
    type Error = WrittenError;

    fn try_from(written: WrittenPoolPrice) -> Result<PoolPrice, WrittenError> {
        let WrittenPoolPrice { meter, tier, model, per, price, micro } = written;
        Ok(PoolPrice { meter, tier, model, per, micro: money_of("price", price, micro)? })
    }
}

/// A tax with its rate.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WrittenTax {
    /// Such as `VAT`.
    name: String,
    /// Such as 19 or 7.5. This or `percent_milli` is there.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[0-9]{1,3}(\\.[0-9]{1,3})?$", examples("19")))]
    percent: Option<String>,
    /// The rate in thousandths of a percent.
    percent_milli: Option<u32>,
}

impl TryFrom<WrittenTax> for Tax {
    type Error = WrittenError;

    fn try_from(written: WrittenTax) -> Result<Tax, WrittenError> {
        let rate = either_small(("percent", written.percent), ("percent_milli", written.percent_milli))?;
        let percent_milli = rate.ok_or(WrittenError::Missing("percent", "percent_milli"))?;
        if percent_milli > 100_000 {
            return Err(WrittenError::TooMuch { field: "percent", text: thousandths(percent_milli.into()) });
        }
        Ok(Tax { name: written.name, percent_milli })
    }
}

/// From a moment until before another, each in one of its two forms.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WrittenWindow {
    /// Such as 2026-12-01 (its midnight, UTC) or 2026-12-01T08:30:00+01:00.
    #[cfg_attr(
        feature = "openapi",
        schema(pattern = "^20[0-9]{2}-[0-9]{2}-[0-9]{2}(T.+)?$", examples("2026-12-01"))
    )]
    from: Option<String>,
    /// The start in milliseconds since 1970.
    from_ms: Option<u64>,
    #[cfg_attr(
        feature = "openapi",
        schema(pattern = "^20[0-9]{2}-[0-9]{2}-[0-9]{2}(T.+)?$", examples("2026-12-24"))
    )]
    until: Option<String>,
    /// The end in milliseconds since 1970.
    until_ms: Option<u64>,
}

impl TryFrom<WrittenWindow> for Window {
    type Error = WrittenError;

    fn try_from(written: WrittenWindow) -> Result<Window, WrittenError> {
        let from_ms = either(("from", written.from), ("from_ms", written.from_ms), moment_ms)?;
        let until_ms = either(("until", written.until), ("until_ms", written.until_ms), moment_ms)?;
        Ok(Window {
            from_ms: from_ms.ok_or(WrittenError::Missing("from", "from_ms"))?,
            until_ms: until_ms.ok_or(WrittenError::Missing("until", "until_ms"))?,
        })
    }
}

fn money_of(field: &'static str, text: Option<String>, micro: Option<u64>) -> Result<u64, WrittenError> {
    let micro = either((field, text), ("micro", micro), |text| decimal(text, 6))?;
    micro.ok_or(WrittenError::Missing(field, "micro"))
}

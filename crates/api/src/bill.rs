//! Prices and bills: integers all the way, one rounding per line.

use std::fmt;
use std::hash::Hash;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use crate::invoice::Invoicing;
use crate::lease::LeaseId;
use crate::pool::Tier;
use crate::tenant::TenantPath;
use crate::usage::{GIB_HOUR_MIB_MS, GPU_HOUR_PPM_MS};
use crate::written::{WrittenBudget, WrittenPrice};

/// In what all amounts of an installation are, and who bills them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seller {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub currency: Option<Currency>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issuer: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invoicing: Option<Invoicing>,
}

/// A currency by its code of ISO 4217, such as `EUR`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(value_type = String, pattern = "^[A-Z]{3}$", examples("EUR")))]
pub struct Currency(String);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no currency as ISO 4217 names it, such as EUR")]
pub struct CurrencyError(String);

impl TryFrom<String> for Currency {
    type Error = CurrencyError;

    fn try_from(text: String) -> Result<Currency, CurrencyError> {
        let is_code = text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_uppercase());
        if is_code { Ok(Currency(text)) } else { Err(CurrencyError(text.chars().take(16).collect())) }
    }
}

impl From<Currency> for String {
    fn from(currency: Currency) -> String {
        currency.0
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Meter {
    /// Share x time held; priced per GPU-hour or unit-hour.
    Reserved,
    /// Device time x occupied part; priced per GPU-hour or unit-hour.
    Used,
    /// Memory x time held; priced per GiB-hour.
    Memory,
    /// Bytes between programs and nodes, both ways; priced per GiB.
    Transfer,
    /// Share x time of suspended leases; priced per GPU-hour or unit-hour.
    Suspended,
}

impl Meter {
    pub const ALL: [Meter; 5] =
        [Meter::Reserved, Meter::Used, Meter::Memory, Meter::Transfer, Meter::Suspended];

    pub fn name(self) -> &'static str {
        match self {
            Meter::Reserved => "reserved",
            Meter::Used => "used",
            Meter::Memory => "memory",
            Meter::Transfer => "transfer",
            Meter::Suspended => "suspended",
        }
    }

    /// What its price is per.
    pub fn unit_name(self, per: PricePer) -> &'static str {
        match (self, per) {
            (Meter::Memory, _) => "GiB-hour",
            (Meter::Transfer, _) => "GiB",
            (_, PricePer::Gpu) => "GPU-hour",
            (_, PricePer::Unit) => "unit-hour",
        }
    }

    /// How many of the meter's smallest units make one GPU-hour, GiB-hour or GiB.
    pub fn unit(self) -> u64 {
        match self {
            Meter::Reserved | Meter::Used | Meter::Suspended => GPU_HOUR_PPM_MS,
            Meter::Memory => GIB_HOUR_MIB_MS,
            Meter::Transfer => 1 << 30,
        }
    }

    /// Whether it counts GPUs, so that a price may be per unit-hour.
    pub fn is_of_gpus(self) -> bool {
        matches!(self, Meter::Reserved | Meter::Used | Meter::Suspended)
    }
}

/// What a price of GPUs is per. Memory is priced per GiB-hour, transfer per GiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum PricePer {
    /// GPU-hour.
    #[default]
    Gpu,
    /// Unit-hour, so that use costs the same on every card: a whole GPU for an hour is as many of
    /// them as it has units ([`crate::UNIT_GFLOPS`]).
    Unit,
}

impl PricePer {
    pub const ALL: [PricePer; 2] = [PricePer::Gpu, PricePer::Unit];

    pub fn name(self) -> &'static str {
        match self {
            PricePer::Gpu => "gpu",
            PricePer::Unit => "unit",
        }
    }

    pub(crate) fn is_usual(&self) -> bool {
        *self == PricePer::default()
    }
}

/// What some use costs; nothing unless said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate {
    pub micro: u64,
    pub per: PricePer,
}

/// A price; it holds from a moment until the next price for the same things, or until its own end.
///
/// Of several that fit, the one that names the most of tier, pool and model counts; of these the
/// one per unit-hour, which is for GPUs that have units; and of these the latest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "WrittenPrice")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Price {
    pub meter: Meter,
    /// For this tier only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<Tier>,
    /// For this pool only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// For GPUs of this model only, as the driver names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default, skip_serializing_if = "PricePer::is_usual")]
    pub per: PricePer,
    /// Millionths of the currency's unit per GPU-hour, unit-hour, GiB-hour or GiB.
    pub micro: u64,
    /// From when on; the moment of its declaration unless said. Prices of the past cannot be
    /// changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_ms: Option<u64>,
    /// Until before when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
}

/// What use is told apart by when it is priced.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Goods {
    pub tier: Tier,
    pub pool: String,
    pub model: String,
    /// Of each GPU, where that matters: of what is priced per unit-hour.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub gflops: u64,
}

impl Price {
    /// Whether another price is for the same things, per the same: it takes this one's place.
    pub fn is_for_the_same(&self, other: &Price) -> bool {
        self.things() == other.things()
    }

    /// What it is for, per what.
    pub fn things(&self) -> impl Eq + Hash + '_ {
        (self.meter, self.tier, self.pool.as_deref(), self.model.as_deref(), self.per)
    }

    /// Whether it is for these goods at this moment.
    fn holds(&self, meter: Meter, goods: &Goods, at_ms: u64) -> bool {
        self.meter == meter
            && self.tier.is_none_or(|tier| tier == goods.tier)
            && self.pool.as_ref().is_none_or(|pool| *pool == goods.pool)
            && self.model.as_ref().is_none_or(|model| *model == goods.model)
            && (self.per == PricePer::Gpu || goods.gflops > 0)
            && self.from_ms.unwrap_or(0) <= at_ms
            && self.until_ms.is_none_or(|until_ms| at_ms < until_ms)
    }

    /// The price of these goods at a moment; what has none costs nothing.
    pub fn at(prices: &[Price], meter: Meter, goods: &Goods, at_ms: u64) -> Rate {
        let named = |price: &Price| {
            u32::from(price.tier.is_some())
                + u32::from(price.pool.is_some())
                + u32::from(price.model.is_some())
        };
        let holding = prices.iter().filter(|price| price.holds(meter, goods, at_ms));
        let counts = holding.max_by_key(|price| (named(price), price.per, price.from_ms));
        counts.map_or(Rate::default(), |price| Rate { micro: price.micro, per: price.per })
    }
}

/// One line of a bill: all of a tenant's use of one meter and one sort of goods at one price.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Line {
    pub tenant: TenantPath,
    pub meter: Meter,
    #[serde(flatten)]
    pub goods: Goods,
    /// In the meter's smallest unit, exact; see [`Meter::unit`].
    pub amount: u64,
    #[serde(default, skip_serializing_if = "PricePer::is_usual")]
    pub per: PricePer,
    /// The amount in millionths of what the price is per, rounded half up, for people to read.
    pub quantity_micro: u64,
    pub price_micro: u64,
    /// Amount x price, rounded half up; in unit-hours amount x GFLOPS x price.
    pub cost_micro: u64,
}

impl Line {
    pub fn new(tenant: TenantPath, meter: Meter, goods: Goods, amount: u64, rate: Rate) -> Line {
        let (times, of) = match rate.per {
            PricePer::Gpu => (1, meter.unit()),
            PricePer::Unit => (goods.gflops, meter.unit() * crate::UNIT_GFLOPS),
        };
        let scaled = |factor: u64| scaled(amount, u128::from(factor) * u128::from(times), of);
        let (quantity_micro, cost_micro) = (scaled(1_000_000), scaled(rate.micro));
        Line {
            tenant,
            meter,
            goods,
            amount,
            per: rate.per,
            quantity_micro,
            price_micro: rate.micro,
            cost_micro,
        }
    }

    /// What its price is per.
    pub fn unit_name(&self) -> &'static str {
        self.meter.unit_name(self.per)
    }
}

/// `amount` x `factor` / `unit`, rounded half up; what no 64-bit number holds becomes the largest.
fn scaled(amount: u64, factor: u128, unit: u64) -> u64 {
    let unit = u128::from(unit);
    let product = u128::from(amount).saturating_mul(factor).saturating_add(unit / 2);
    u64::try_from(product / unit).unwrap_or(u64::MAX)
}

/// What a tenant and all below it used between two moments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Bill {
    pub tenant: TenantPath,
    /// Of all its amounts, where one is declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub currency: Option<Currency>,
    /// Who bills, where that is declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issuer: Option<String>,
    pub from_ms: u64,
    pub until_ms: u64,
    pub lines: Vec<Line>,
    pub corrections: Vec<Correction>,
    /// The sum of the lines' costs and the corrections.
    pub total_micro: i64,
    /// How many usage records it was made from.
    pub records: u64,
}

/// What a tenant and all below it spent in one day of UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DaySpent {
    /// The beginning of the day, or of the period that was asked for.
    pub from_ms: u64,
    /// The end of the day, or of the period.
    pub until_ms: u64,
    /// The total of the day's bill, with its corrections.
    pub total_micro: i64,
}

/// What one lease used on one node in one day of UTC, at one price. Charges of a period add up to
/// the lines of its bill that have a price, in amounts; costs are rounded for each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Charge {
    /// The day, as far as it was asked for.
    pub from_ms: u64,
    pub until_ms: u64,
    pub lease: LeaseId,
    /// The name of the node.
    pub node: String,
    #[serde(flatten)]
    pub line: Line,
}

/// What somebody adds to a bill, or takes off it. Nothing that was counted is ever changed: a
/// correction stands beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Correction {
    /// Counted by the server.
    pub id: u64,
    pub tenant: TenantPath,
    /// Millionths of the currency's unit; negative for a credit.
    pub micro: i64,
    /// On the bill of the period that this moment is in.
    pub at_ms: u64,
    pub reason: String,
    pub made_at_ms: u64,
    /// As the audit log names it.
    pub made_by: String,
}

/// A correction to be made.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NewCorrection {
    pub tenant: TenantPath,
    pub micro: i64,
    /// Now unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_ms: Option<u64>,
    pub reason: String,
}

/// What new prices change in money for a tenant and all below it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CostChange {
    pub tenant: TenantPath,
    /// What all that has been used until now costs, in millionths of the currency's unit: it
    /// changes only where a price begins in the past.
    pub until_now: BeforeAndAfter,
    /// What the use of the last 30 days costs, had the new prices been there all that time.
    pub last_30_days: BeforeAndAfter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BeforeAndAfter {
    pub before_micro: i64,
    pub after_micro: i64,
}

/// What a tenant and all below it may spend in a period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "WrittenBudget")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Budget {
    /// Millionths of the currency's unit.
    pub micro: u64,
    pub per: BudgetPeriod,
    /// What happens once it is spent.
    pub then: BudgetEnd,
}

/// Periods begin at midnight, UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum BudgetPeriod {
    Day,
    /// Of the calendar.
    Month,
    /// All time.
    Ever,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum BudgetEnd {
    /// New leases wait until the next period; those that run go on.
    #[default]
    Hold,
    /// Those that run are preempted as well.
    Preempt,
    /// It is said, and nothing more.
    Warn,
}

/// A budget and what of it is spent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BudgetStatus {
    #[serde(flatten)]
    pub budget: Budget,
    /// Of the period that runs.
    pub spent_micro: u64,
    pub spent_percent: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub currency: Option<Currency>,
}

/// How far the tightest of the budgets is spent that a tenant's leases count towards: its own and
/// those above it. Whose it is and how much is not said: who spends may not see those above.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TightestBudget {
    pub spent_percent: u64,
    /// What happens once it is spent.
    pub then: BudgetEnd,
    /// When its next period begins; never without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
}

impl BudgetPeriod {
    /// When the period began in which a moment is.
    pub fn began_ms(self, at_ms: u64) -> u64 {
        let moment = i64::try_from(at_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
        let date = moment.unwrap_or(Timestamp::MAX).to_zoned(TimeZone::UTC).date();
        let begun = match self {
            BudgetPeriod::Ever => return 0,
            BudgetPeriod::Day => date,
            BudgetPeriod::Month => date.first_of_month(),
        };
        let midnight =
            begun.to_zoned(TimeZone::UTC).map_or(0, |midnight| midnight.timestamp().as_millisecond());
        u64::try_from(midnight).unwrap_or(0)
    }

    /// When the next one begins; none if this one never ends.
    pub fn ends_ms(self, at_ms: u64) -> Option<u64> {
        const DAY_MS: u64 = 24 * 3_600_000;
        let begun_ms = self.began_ms(at_ms);
        match self {
            BudgetPeriod::Ever => None,
            BudgetPeriod::Day => Some(begun_ms + DAY_MS),
            // It begins on a first, and the next one is 28 to 31 days later.
            BudgetPeriod::Month => Some(self.began_ms(begun_ms + 31 * DAY_MS)),
        }
    }
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
            tier: Tier::Standard,
            pool: String::new(),
            model: String::new(),
            gflops: 0,
            from_ms,
            until_ms,
            share_ppm,
            suspended: false,
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
        Line::new("acme".parse().unwrap(), Meter::Reserved, Goods::default(), amount, per_gpu(price_micro))
    }

    fn per_gpu(micro: u64) -> Rate {
        Rate { micro, per: PricePer::Gpu }
    }

    proptest! {
        /// However each of four quarters' hour is cut into records, they are one GPU-hour to the
        /// unit and cost its price.
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
    fn transfer_is_priced_per_gib() {
        let line = |amount| {
            Line::new("a".parse().unwrap(), Meter::Transfer, Goods::default(), amount, per_gpu(1_000_000))
        };
        assert_eq!((line(3 << 29).quantity_micro, line(3 << 29).cost_micro), (1_500_000, 1_500_000));
        assert_eq!(
            (line(537).cost_micro, line(536).cost_micro),
            (1, 0),
            "half of a millionth of it is 536.9 bytes"
        );
        assert_eq!(line(1).unit_name(), "GiB");
        let amount = UsageRecord { bytes_in: 3, bytes_out: 4, ..record(0, 0, 0) }.transfer_bytes();
        assert_eq!(amount, 7);
    }

    #[test]
    fn costs_round_half_up_and_do_not_overflow() {
        let cost = |amount, price| {
            Line::new("a".parse().unwrap(), Meter::Reserved, Goods::default(), amount, per_gpu(price))
                .cost_micro
        };
        assert_eq!(cost(GPU_HOUR_PPM_MS / 2, 1), 1);
        assert_eq!(cost(GPU_HOUR_PPM_MS / 2 - 1, 1), 0);
        assert_eq!(cost(u64::MAX, u64::MAX), u64::MAX);
    }

    #[test]
    fn the_price_that_names_the_most_counts_while_it_holds() {
        let price = |json| serde_json::from_value::<Price>(json).unwrap();
        let prices = [
            price(serde_json::json!({ "meter": "reserved", "micro": 10 })),
            price(serde_json::json!({ "meter": "reserved", "micro": 20, "from_ms": 100 })),
            price(serde_json::json!({ "meter": "reserved", "micro": 5, "tier": "basic" })),
            price(serde_json::json!({ "meter": "reserved", "micro": 3, "tier": "basic", "pool": "old",
                                      "from_ms": 50, "until_ms": 60 })),
            price(serde_json::json!({ "meter": "used", "micro": 1 })),
        ];
        let check = |tier, pool: &str, at_ms, expect| {
            let goods = Goods { tier, pool: pool.into(), model: "H100".into(), gflops: 0 };
            let rate = Price::at(&prices, Meter::Reserved, &goods, at_ms);
            assert_eq!(rate, per_gpu(expect), "{tier:?} {pool} {at_ms}");
        };
        check(Tier::Standard, "default", 0, 10);
        check(Tier::Standard, "default", 100, 20);
        check(Tier::Basic, "default", 200, 5);
        check(Tier::Basic, "old", 55, 3);
        check(Tier::Basic, "old", 60, 5);
        assert_eq!(Price::at(&prices, Meter::Memory, &Goods::default(), 0), Rate::default());
    }

    #[test]
    fn a_price_per_unit_hour_is_for_gpus_that_have_units() {
        let price = |json| serde_json::from_value::<Price>(json).unwrap();
        let prices = [
            price(serde_json::json!({ "meter": "reserved", "micro": 10 })),
            price(serde_json::json!({ "meter": "reserved", "micro": 3, "per": "unit", "from_ms": 100 })),
            price(serde_json::json!({ "meter": "reserved", "micro": 7, "tier": "basic", "from_ms": 50 })),
            price(serde_json::json!({ "meter": "reserved", "micro": 20, "from_ms": 200 })),
        ];
        assert!(!prices[0].is_for_the_same(&prices[1]) && prices[0].is_for_the_same(&prices[3]));
        let at = |tier, gflops, at_ms| {
            Price::at(&prices, Meter::Reserved, &Goods { tier, gflops, ..Goods::default() }, at_ms)
        };
        let per_unit = Rate { micro: 3, per: PricePer::Unit };
        assert_eq!(at(Tier::Standard, 20_000, 99), per_gpu(10));
        assert_eq!(at(Tier::Standard, 20_000, 100), per_unit);
        assert_eq!(at(Tier::Standard, 0, 100), per_gpu(10), "the one per GPU-hour goes on");
        assert_eq!(at(Tier::Standard, 20_000, 200), per_unit, "a new one per GPU-hour is for the others");
        assert_eq!(at(Tier::Standard, 0, 200), per_gpu(20));
        assert_eq!(at(Tier::Basic, 20_000, 100), per_gpu(7), "it names more");
    }

    proptest! {
        /// What so many units cost for an hour does not depend on the card, as far as shares are
        /// exact.
        #[test]
        fn units_cost_the_same_on_every_card(units in 1..20_u64, faster in 1..50_u64, micro in 0..1_000_000_000_u64) {
            let hour_on = |gflops: u64| {
                let share_ppm = units * 1000 * 1_000_000 / gflops;
                let goods = Goods { gflops, ..Goods::default() };
                let rate = Rate { micro, per: PricePer::Unit };
                Line::new("a".parse().unwrap(), Meter::Reserved, goods, share_ppm * HOUR_MS, rate)
            };
            // Of these the units are a whole number of millionths.
            for line in [hour_on(units * 1000), hour_on(units * 1000 * [1, 2, 4, 5, 8, 10][faster as usize % 6])] {
                prop_assert_eq!((line.quantity_micro, line.cost_micro), (units * 1_000_000, units * micro));
                prop_assert_eq!(line.unit_name(), "unit-hour");
            }
        }
    }

    #[test]
    fn unit_hours_round_half_up_and_do_not_overflow() {
        let line = |amount, gflops, micro| {
            let (goods, rate) = (Goods { gflops, ..Goods::default() }, Rate { micro, per: PricePer::Unit });
            Line::new("a".parse().unwrap(), Meter::Reserved, goods, amount, rate)
        };
        assert_eq!(line(GPU_HOUR_PPM_MS, 500, 1).cost_micro, 1);
        assert_eq!(line(GPU_HOUR_PPM_MS, 499, 1).cost_micro, 0);
        assert_eq!(line(GPU_HOUR_PPM_MS, 19_491, 1_000_000).quantity_micro, 19_491_000);
        assert_eq!(line(u64::MAX, u64::MAX, u64::MAX).cost_micro, u64::MAX);
    }

    #[test]
    fn periods_begin_with_the_calendar() {
        const DAY_MS: u64 = 86_400_000;
        // 2026-03-01 is day 20513; 2024-02-29 is day 19782.
        for (day, first) in [(20_513, 20_513), (20_512, 20_485), (19_782, 19_754), (0, 0), (30, 0), (31, 31)]
        {
            assert_eq!(BudgetPeriod::Month.began_ms(day * DAY_MS + 5), first * DAY_MS, "day {day}");
        }
        assert_eq!(BudgetPeriod::Day.began_ms(3 * DAY_MS + 7), 3 * DAY_MS);
        // From February 2026, January 1970 and February 2024.
        for (day, next) in [(20_512, 20_513), (0, 31), (19_754, 19_783)] {
            assert_eq!(BudgetPeriod::Month.ends_ms(day * DAY_MS + 5), Some(next * DAY_MS), "day {day}");
        }
        assert_eq!(BudgetPeriod::Day.ends_ms(3 * DAY_MS), Some(4 * DAY_MS));
        assert_eq!(BudgetPeriod::Ever.ends_ms(5), None);
        assert!(
            BudgetPeriod::Month.began_ms(u64::MAX) > 0,
            "what is no date belongs to the last month there is"
        );
    }
}

//! Prices, and what they are for.

use std::hash::Hash;

use serde::{Deserialize, Serialize};

use crate::pool::Tier;
use crate::usage::{GIB_HOUR_MIB_MS, GPU_HOUR_PPM_MS};
use crate::written::WrittenPrice;

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
    /// Unit-hour, so that use costs the same on every GPU: a whole GPU for an hour is as many of
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

/// The properties of use on which its price may depend.
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
            && self.tier.is_none_or(|tier| goods.tier.is_kind_of(tier))
            && self.pool.as_ref().is_none_or(|pool| *pool == goods.pool)
            && self.model.as_ref().is_none_or(|model| *model == goods.model)
            && (self.per == PricePer::Gpu || goods.gflops > 0)
            && self.from_ms.unwrap_or(0) <= at_ms
            && self.until_ms.is_none_or(|until_ms| at_ms < until_ms)
    }

    /// The price of these goods at a moment; what has none costs nothing. An own tier without a
    /// price of its own costs what the tier does that its name begins with.
    pub fn at(prices: &[Price], meter: Meter, goods: &Goods, at_ms: u64) -> Rate {
        let named = |price: &Price| {
            u32::from(price.tier.is_some())
                + u32::from(price.pool.is_some())
                + u32::from(price.model.is_some())
        };
        let holding = prices.iter().filter(|price| price.holds(meter, goods, at_ms));
        let counts = holding
            .max_by_key(|price| (goods.tier.is_own_and(price.tier), named(price), price.per, price.from_ms));
        counts.map_or(Rate::default(), |price| Rate { micro: price.micro, per: price.per })
    }
}

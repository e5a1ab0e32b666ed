//! Personalities: a pool at certain hours serves others, at other prices.

use serde::{Deserialize, Serialize};

use super::{Access, Pool, PoolTier, Promise, Sharing, Tier};
use crate::GPU_PPM;
use crate::bill::{Goods, Meter, PricePer, Rate};
use crate::calendar::{Calendar, CalendarError};
use crate::tenant::TenantPath;
#[cfg(feature = "openapi")]
use crate::written::WrittenPoolTier;
use crate::written::{WrittenPoolPrice, WrittenWindow};

/// What is different about a pool at some times. What it leaves out is as the pool has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Personality {
    /// Such as `night`; one of its kind in the pool.
    pub name: String,
    pub calendar: Calendar,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<Access>,
    /// Empty for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Vec<WrittenPoolTier>>))]
    pub tiers: Option<Vec<PoolTier>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing: Option<Sharing>,
    /// Count before all other prices for what is used meanwhile.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<WrittenPoolPrice>))]
    pub prices: Vec<PoolPrice>,
}

/// A price in a pool while a personality is in force. Of several that fit, the one that names the
/// most of tier and model counts, and of these the one per unit-hour, which is for GPUs that have
/// units.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "WrittenPoolPrice")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PoolPrice {
    pub meter: Meter,
    /// For this tier only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<Tier>,
    /// For GPUs of this model only, as the driver names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default, skip_serializing_if = "PricePer::is_usual")]
    pub per: PricePer,
    /// Millionths of the currency's unit per GPU-hour, unit-hour, GiB-hour or GiB.
    pub micro: u64,
}

impl PoolPrice {
    /// The price of these goods, if there is one.
    pub fn of(prices: &[PoolPrice], meter: Meter, goods: &Goods) -> Option<Rate> {
        let fits = |price: &&PoolPrice| {
            price.meter == meter
                && price.tier.is_none_or(|tier| goods.tier.is_kind_of(tier))
                && price.model.as_ref().is_none_or(|model| *model == goods.model)
                && (price.per == PricePer::Gpu || goods.gflops > 0)
        };
        let named = |price: &&PoolPrice| u32::from(price.tier.is_some()) + u32::from(price.model.is_some());
        let counts = prices
            .iter()
            .filter(fits)
            .max_by_key(|price| (goods.tier.is_own_and(price.tier), named(price), price.per));
        counts.map(|price| Rate { micro: price.micro, per: price.per })
    }
}

/// A pool and what it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PoolStatus {
    /// As `sluice apply` takes it.
    pub declared: Pool,
    /// The name of the personality that is in force; without one the pool is as declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub personality: Option<String>,
    /// When another one comes into force, or none; nothing changes within the next week without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
}

impl PoolStatus {
    pub fn at(declared: Pool, at_ms: u64) -> PoolStatus {
        let in_force = declared.in_force(at_ms);
        let personality =
            declared.personality(in_force.personality).map(|personality| personality.name.clone());
        PoolStatus { personality, until_ms: in_force.until_ms, declared }
    }

    /// What holds now.
    pub fn terms(&self) -> Terms<'_> {
        let is_named = |personality: &Personality| self.personality.as_ref() == Some(&personality.name);
        self.declared.terms(self.declared.personalities.iter().position(is_named))
    }
}

/// Which of a pool's personalities is in force, by its place in the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InForce {
    pub personality: Option<usize>,
    /// When that changes; without it nothing does within [`AHEAD_MS`].
    pub until_ms: Option<u64>,
}

/// Who is served, as it holds at a moment.
#[derive(Clone, Copy, Debug)]
pub struct Terms<'a> {
    pub access: &'a Access,
    pub tiers: &'a [PoolTier],
    pub sharing: Sharing,
}

/// Personalities are looked for so far ahead: two weeks, since clocks that are put forward skip a
/// time that is all within what they skip, and what they are put forward or back by.
pub const AHEAD_MS: u64 = 16 * 24 * 3_600_000;

/// Of one pool.
const PERSONALITIES_MAX: usize = 16;

/// What is wrong about a pool's personalities.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PersonalityError {
    #[error("up to {PERSONALITIES_MAX} personalities")]
    TooMany,
    #[error("two personalities are named {0:?}")]
    Twice(String),
    #[error("personality {name:?}: {source}")]
    Calendar { name: String, source: CalendarError },
}

/// From a moment until before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "WrittenWindow")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Window {
    pub from_ms: u64,
    pub until_ms: u64,
}

impl Window {
    pub fn contains(&self, at_ms: u64) -> bool {
        (self.from_ms..self.until_ms).contains(&at_ms)
    }
}

impl Pool {
    /// Whether its personalities make sense.
    pub fn check_personalities(&self) -> Result<(), PersonalityError> {
        if self.personalities.len() > PERSONALITIES_MAX {
            return Err(PersonalityError::TooMany);
        }
        for (index, personality) in self.personalities.iter().enumerate() {
            let name = || personality.name.clone();
            if self.personalities[..index].iter().any(|other| other.name == personality.name) {
                return Err(PersonalityError::Twice(name()));
            }
            let checked = personality.calendar.check();
            checked.map_err(|source| PersonalityError::Calendar { name: name(), source })?;
        }
        Ok(())
    }

    pub fn personality(&self, index: Option<usize>) -> Option<&Personality> {
        self.personalities.get(index?)
    }

    /// Which personality is in force from when on: what holds at `from_ms`, and each change before
    /// `until_ms`.
    pub fn turns(&self, from_ms: u64, until_ms: u64) -> Vec<(u64, Option<usize>)> {
        // Beginnings and ends in their order; those at one moment count together.
        let mut edges = Vec::new();
        for (index, personality) in self.personalities.iter().enumerate() {
            for (begin, end) in personality.calendar.spans(from_ms, until_ms) {
                edges.extend([(begin.max(from_ms), index, 1), (end, index, -1)]);
            }
        }
        edges.retain(|&(at_ms, ..)| at_ms < until_ms);
        edges.sort_unstable();
        let mut holding = vec![0_i32; self.personalities.len()];
        let mut turns = vec![(from_ms, None)];
        for together in edges.chunk_by(|one, other| one.0 == other.0) {
            together.iter().for_each(|&(_, index, by)| holding[index] += by);
            let now = holding.iter().position(|&count| count > 0);
            let at_ms = together[0].0;
            match turns.last_mut() {
                Some(last) if last.0 == at_ms => last.1 = now,
                Some(last) if last.1 == now => {}
                _ => turns.push((at_ms, now)),
            }
        }
        turns
    }

    pub fn in_force(&self, at_ms: u64) -> InForce {
        if self.personalities.is_empty() {
            return InForce::default();
        }
        let turns = self.turns(at_ms, at_ms.saturating_add(AHEAD_MS));
        InForce { personality: turns[0].1, until_ms: turns.get(1).map(|turn| turn.0) }
    }

    /// What holds while this personality is in force, or none is.
    pub fn terms(&self, personality: Option<usize>) -> Terms<'_> {
        let of = self.personality(personality);
        Terms {
            access: of.and_then(|of| of.access.as_ref()).unwrap_or(&self.access),
            tiers: of.and_then(|of| of.tiers.as_ref()).unwrap_or(&self.tiers),
            sharing: of.and_then(|of| of.sharing).unwrap_or(self.sharing),
        }
    }

    /// Those of all its personalities, and its own.
    pub fn all_terms(&self) -> impl Iterator<Item = Terms<'_>> {
        let personalities = (0..self.personalities.len()).map(Some);
        std::iter::once(None).chain(personalities).map(|index| self.terms(index))
    }
}

impl Terms<'_> {
    /// Whether a lease of this tenant, tier and share of each GPU may be here at a moment; at some
    /// moment, if none is said.
    pub fn serves(&self, tenant: &TenantPath, tier: Tier, share_ppm: u32, at_ms: Option<u64>) -> bool {
        self.access.lets_in(tenant, at_ms) && self.serves_tier(tier) && self.lends(share_ppm)
    }

    pub fn serves_tier(&self, tier: Tier) -> bool {
        (self.tiers.is_empty() && !tier.is_own()) || self.tiers.iter().any(|of| of.tier == tier)
    }

    /// What the leases of a tier are promised here.
    pub fn promise(&self, tier: Tier) -> Option<Promise> {
        self.tiers.iter().find(|of| of.tier == tier)?.promise
    }

    /// The most that each lease of a tier gets of a GPU here, in millionths.
    pub fn limit_ppm(&self, tier: Tier) -> Option<u32> {
        self.tiers.iter().find(|of| of.tier == tier)?.limit_ppm
    }

    pub fn lends(&self, share_ppm: u32) -> bool {
        self.sharing == Sharing::Fractions || share_ppm >= GPU_PPM
    }
}

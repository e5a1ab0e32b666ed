//! Pools: which nodes serve whom, and tiers: how firmly a lease holds what it has.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::GPU_PPM;
use crate::autonomy::Mode;
use crate::bill::{Goods, Meter, PricePer, Rate};
use crate::calendar::{Calendar, CalendarError};
use crate::health::GpuName;
use crate::tenant::TenantPath;
use crate::written::{WrittenPoolPrice, WrittenWindow};

/// The pool of nodes that no declared pool claims; everybody may use it.
pub const DEFAULT_POOL: &str = "default";

/// Some GPUs, and who may use them. A GPU belongs to the pool that names it, else to the first
/// pool, by name, that claims it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Pool {
    pub name: String,
    /// The names of its nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// Nodes with all these labels are its as well, if there are any here.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Of these nodes only the GPUs whose model has one of these in its name, in any case; without
    /// nodes and labels, such GPUs of all nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(examples(json!(["h100"]))))]
    pub models: Vec<String>,
    /// Single GPUs, which are its before any other pool's.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "gpu_names")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>, examples(json!(["node7/0", "node7/1"]))))]
    pub gpus: Vec<GpuName>,
    #[serde(default)]
    pub access: Access,
    /// The tiers that it serves; all unless said.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<Tier>,
    #[serde(default, skip_serializing_if = "Sharing::is_usual")]
    pub sharing: Sharing,
    /// How much of the compute of each GPU may be leased in parts, at all times: above 100, leases
    /// whose shares add up to more than the GPU has share its time in proportion. A whole GPU is
    /// nobody else's, and memory is never leased twice.
    #[serde(default = "no_overcommit", skip_serializing_if = "is_no_overcommit")]
    #[cfg_attr(feature = "openapi", schema(minimum = 100, maximum = 1000))]
    pub overcommit_percent: u32,
    /// What it is at other times: the first whose calendar holds is in force, and where none does
    /// the pool is as said above.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub personalities: Vec<Personality>,
    /// The most that the server changes by itself about leases here: `off`, `recommend`, `next-run`
    /// or `live`. It takes away from what tenants consent to, and adds nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autonomy: Option<Mode>,
    /// Programs here that are idle for this time are suspended, in milliseconds; or
    /// `idle_after: 30min`. Ten seconds to 30 days; 0 for never.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        alias = "idle_after",
        deserialize_with = "crate::written::time_ms"
    )]
    pub idle_after_ms: Option<u64>,
}

/// GPUs as people name them: `node7/0`.
mod gpu_names {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::health::GpuName;

    pub(super) fn serialize<S: Serializer>(gpus: &[GpuName], serializer: S) -> Result<S::Ok, S::Error> {
        gpus.iter().map(GpuName::to_string).collect::<Vec<_>>().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<GpuName>, D::Error> {
        let names = Vec::<String>::deserialize(deserializer)?;
        names.iter().map(|name| name.parse().map_err(serde::de::Error::custom)).collect()
    }
}

/// Of what a GPU has, ten times as much may be leased.
pub const OVERCOMMIT_PERCENT_MAX: u32 = 1000;

fn no_overcommit() -> u32 {
    100
}

fn is_no_overcommit(percent: &u32) -> bool {
    *percent == 100
}

/// What is wrong about a pool's overcommit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OvercommitError {
    #[error("overcommit_percent: 100 (what each GPU has) to {OVERCOMMIT_PERCENT_MAX}, not {0}")]
    Range(u32),
    #[error("overcommit_percent: whole GPUs are never overcommitted, and it lends no parts of GPUs")]
    Whole,
}

/// How the GPUs of a pool are lent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Sharing {
    /// In shares of any size.
    #[default]
    Fractions,
    /// To one lease at a time: those that ask for a part of a GPU are not served.
    Whole,
}

impl Sharing {
    pub fn name(self) -> &'static str {
        match self {
            Sharing::Fractions => "fractions",
            Sharing::Whole => "whole",
        }
    }

    fn is_usual(&self) -> bool {
        *self == Sharing::default()
    }
}

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
    pub tiers: Option<Vec<Tier>>,
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
                && price.tier.is_none_or(|tier| tier == goods.tier)
                && price.model.as_ref().is_none_or(|model| *model == goods.model)
                && (price.per == PricePer::Gpu || goods.gflops > 0)
        };
        let named = |price: &&PoolPrice| u32::from(price.tier.is_some()) + u32::from(price.model.is_some());
        let counts = prices.iter().filter(fits).max_by_key(|price| (named(price), price.per));
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
    pub tiers: &'a [Tier],
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

/// Who may use a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Access {
    /// Every tenant.
    #[default]
    Public,
    /// These tenants and those below them.
    Private { tenants: Vec<TenantPath> },
    /// During the windows these tenants and those below them, at other times everybody. Whoever
    /// else is there when a window begins has to make room.
    Reserved {
        tenants: Vec<TenantPath>,
        #[cfg_attr(feature = "openapi", schema(value_type = Vec<WrittenWindow>))]
        windows: Vec<Window>,
    },
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
    /// Whether it claims the GPUs of this model of a node of this name and with these labels.
    pub fn claims(&self, node: &str, labels: &BTreeMap<String, String>, model: &str) -> bool {
        let labelled = || self.labels.iter().all(|(name, value)| labels.get(name) == Some(value));
        let here = || self.nodes.iter().any(|name| name == node) || (!self.labels.is_empty() && labelled());
        if self.models.is_empty() {
            return here();
        }
        let model = model.to_lowercase();
        let is_of_these = self.models.iter().any(|part| model.contains(&part.to_lowercase()));
        is_of_these && ((self.nodes.is_empty() && self.labels.is_empty()) || here())
    }

    /// Whether it names a GPU.
    pub fn names(&self, node: &str, gpu: u32) -> bool {
        self.gpus.iter().any(|name| name.gpu == gpu && name.node == node)
    }

    /// Millionths of each GPU that may be leased in parts.
    pub fn promised_ppm(&self) -> u32 {
        self.overcommit_percent.saturating_mul(GPU_PPM / 100)
    }

    pub fn check_overcommit(&self) -> Result<(), OvercommitError> {
        if !(100..=OVERCOMMIT_PERCENT_MAX).contains(&self.overcommit_percent) {
            return Err(OvercommitError::Range(self.overcommit_percent));
        }
        let lends_parts = self.all_terms().any(|terms| terms.sharing == Sharing::Fractions);
        if self.overcommit_percent > 100 && !lends_parts { Err(OvercommitError::Whole) } else { Ok(()) }
    }

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

impl Access {
    /// Whether this tenant is let in at a moment; at some moment, if none is said.
    pub fn lets_in(&self, tenant: &TenantPath, at_ms: Option<u64>) -> bool {
        let among = |tenants: &[TenantPath]| tenants.iter().any(|listed| listed.contains(tenant));
        match self {
            Access::Public => true,
            Access::Private { tenants } => among(tenants),
            Access::Reserved { tenants, windows } => {
                let taken = |at_ms| windows.iter().any(|window| window.contains(at_ms));
                among(tenants) || !at_ms.is_some_and(taken)
            }
        }
    }
}

impl Terms<'_> {
    /// Whether a lease of this tenant, tier and share of each GPU may be here at a moment; at some
    /// moment, if none is said.
    pub fn serves(&self, tenant: &TenantPath, tier: Tier, share_ppm: u32, at_ms: Option<u64>) -> bool {
        self.access.lets_in(tenant, at_ms) && self.serves_tier(tier) && self.lends(share_ppm)
    }

    pub fn serves_tier(&self, tier: Tier) -> bool {
        self.tiers.is_empty() || self.tiers.contains(&tier)
    }

    pub fn lends(&self, share_ppm: u32) -> bool {
        self.sharing == Sharing::Fractions || share_ppm >= GPU_PPM
    }
}

/// How firmly a lease holds what it has; prices may differ by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Tier {
    /// Is never preempted, and granted within the tenant's guaranteed quota only.
    Premium,
    #[default]
    Standard,
    /// Goes after all standard leases of its tenant, and makes room for them.
    Basic,
}

impl Tier {
    pub const ALL: [Tier; 3] = [Tier::Premium, Tier::Standard, Tier::Basic];

    pub fn name(self) -> &'static str {
        match self {
            Tier::Premium => "premium",
            Tier::Standard => "standard",
            Tier::Basic => "basic",
        }
    }
}

impl std::str::FromStr for Tier {
    type Err = String;

    fn from_str(text: &str) -> Result<Tier, String> {
        let found = Tier::ALL.into_iter().find(|tier| tier.name() == text);
        found.ok_or_else(|| format!("{text:?} is none of premium, standard and basic"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_serves_whom_it_says_when_it_says() {
        let pool = |json: serde_json::Value| serde_json::from_value::<Pool>(json).unwrap();
        let check = |pool: &Pool, tenant: &str, tier, at_ms, expect| {
            assert_eq!(
                pool.terms(None).serves(&tenant.parse().unwrap(), tier, GPU_PPM, Some(at_ms)),
                expect,
                "{tenant} {tier:?} {at_ms}"
            );
        };
        let public = pool(serde_json::json!({ "name": "a", "tiers": ["basic"] }));
        check(&public, "acme", Tier::Basic, 0, true);
        check(&public, "acme", Tier::Standard, 0, false);
        let private =
            pool(serde_json::json!({ "name": "a", "access": { "private": { "tenants": ["acme"] } } }));
        check(&private, "acme/research", Tier::Premium, 0, true);
        check(&private, "globex", Tier::Premium, 0, false);
        let windows = serde_json::json!([{ "from_ms": 10, "until_ms": 20 }]);
        let reserved = serde_json::json!({ "reserved": { "tenants": ["acme"], "windows": windows } });
        let reserved = pool(serde_json::json!({ "name": "a", "access": reserved }));
        for (at_ms, expect) in [(9, true), (10, false), (19, false), (20, true)] {
            check(&reserved, "globex", Tier::Standard, at_ms, expect);
            check(&reserved, "acme", Tier::Standard, at_ms, true);
        }
        let at_some_moment = |tenant: &str| {
            reserved.terms(None).serves(&tenant.parse().unwrap(), Tier::Standard, GPU_PPM, None)
        };
        assert!(at_some_moment("globex"));
    }

    const HOUR_MS: u64 = 3_600_000;

    fn with_personalities(personalities: serde_json::Value) -> Pool {
        serde_json::from_value(serde_json::json!({ "name": "a", "personalities": personalities })).unwrap()
    }

    fn daily(name: &str, from: &str, until: &str) -> serde_json::Value {
        let times = [serde_json::json!({ "from": from, "until": until })];
        serde_json::json!({ "name": name, "calendar": { "zone": "UTC", "times": times } })
    }

    #[test]
    fn the_first_personality_whose_calendar_holds_is_in_force() {
        let lunch_before_day = with_personalities(serde_json::json!([
            daily("lunch", "12:00", "13:00"),
            daily("day", "08:00", "20:00")
        ]));
        let hours = |hours: u64| hours * HOUR_MS;
        let turns: Vec<_> =
            [(0, None), (8, Some(1)), (12, Some(0)), (13, Some(1)), (20, None), (32, Some(1))]
                .map(|(at, personality)| (hours(at), personality))
                .to_vec();
        assert_eq!(lunch_before_day.turns(0, hours(32) + 1), turns);
        assert_eq!(lunch_before_day.turns(hours(12), hours(13)), [(hours(12), Some(0))]);
        for (at_ms, personality, until) in
            [(0, None, 8), (hours(8), Some(1), 12), (hours(13) - 1, Some(0), 13), (hours(19), Some(1), 20)]
        {
            let expect = InForce { personality, until_ms: Some(hours(until)) };
            assert_eq!(lunch_before_day.in_force(at_ms), expect, "{at_ms}");
        }
        let status = PoolStatus::at(lunch_before_day, hours(12));
        assert_eq!((status.personality.as_deref(), status.until_ms), (Some("lunch"), Some(hours(13))));
    }

    #[test]
    fn a_personality_that_always_holds_has_no_end() {
        let always = with_personalities(serde_json::json!([daily("always", "00:00", "24:00")]));
        assert_eq!(always.in_force(5), InForce { personality: Some(0), until_ms: None });
        assert_eq!(with_personalities(serde_json::json!([])).in_force(5), InForce::default());
        assert_eq!(always.in_force(u64::MAX - 1).personality, None, "no calendar goes so far");
    }

    #[test]
    fn a_weekly_time_that_clocks_skip_comes_a_week_later() {
        let times = [serde_json::json!({ "days": ["sun"], "from": "02:15", "until": "02:45" })];
        let calendar = serde_json::json!({ "zone": "Europe/Berlin", "times": times });
        let pool = with_personalities(serde_json::json!([{ "name": "night", "calendar": calendar }]));
        // At the end of that of 22 March 2026. On the 29th there is no 02:15; on 5 April there is.
        let expect = InForce { personality: None, until_ms: Some(1_775_348_100_000) };
        assert_eq!(pool.in_force(1_774_143_900_000), expect);
    }

    #[test]
    fn a_personality_says_what_is_different() {
        let mut night = daily("night", "20:00", "08:00");
        night["tiers"] = serde_json::json!(["basic"]);
        night["sharing"] = serde_json::json!("whole");
        let mut pool = with_personalities(serde_json::json!([night]));
        pool.access = Access::Private { tenants: vec!["acme".parse().unwrap()] };
        let serves = |personality, tenant: &str, tier, share_ppm| {
            pool.terms(personality).serves(&tenant.parse().unwrap(), tier, share_ppm, Some(0))
        };
        assert!(serves(None, "acme", Tier::Standard, 1) && !serves(Some(0), "acme", Tier::Standard, GPU_PPM));
        assert!(
            serves(Some(0), "acme", Tier::Basic, GPU_PPM) && !serves(Some(0), "acme", Tier::Basic, 999_999)
        );
        assert!(!serves(Some(0), "globex", Tier::Basic, GPU_PPM), "the access is the pool's own");
        let some = |tier, share_ppm| {
            pool.all_terms().any(|terms| terms.serves(&"acme".parse().unwrap(), tier, share_ppm, None))
        };
        assert!(some(Tier::Standard, 1) && some(Tier::Basic, GPU_PPM));
    }

    #[test]
    fn personalities_that_make_no_sense_are_named() {
        let check = |personalities: serde_json::Value, words: &str| {
            let error = with_personalities(personalities).check_personalities().unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        };
        check(serde_json::json!([daily("a", "00:00", "01:00"), daily("a", "02:00", "03:00")]), "named \"a\"");
        check(serde_json::json!([daily("a", "00:00", "00:00")]), "personality \"a\"");
        check(serde_json::json!(vec![daily("a", "00:00", "01:00"); 17]), "up to 16");
    }

    #[test]
    fn overcommit_is_of_parts_and_bounded() {
        let pool = |json: serde_json::Value| serde_json::from_value::<Pool>(json).unwrap();
        let usual = pool(serde_json::json!({ "name": "a" }));
        assert_eq!((usual.overcommit_percent, usual.promised_ppm()), (100, GPU_PPM));
        assert_eq!(serde_json::to_value(&usual).unwrap().get("overcommit_percent"), None);
        for (percent, sharing, expect) in [
            (100, "whole", Ok(())),
            (150, "fractions", Ok(())),
            (1000, "fractions", Ok(())),
            (99, "fractions", Err(OvercommitError::Range(99))),
            (1001, "fractions", Err(OvercommitError::Range(1001))),
            (150, "whole", Err(OvercommitError::Whole)),
        ] {
            let json = serde_json::json!({ "name": "a", "overcommit_percent": percent, "sharing": sharing });
            let pool = pool(json);
            assert_eq!(pool.check_overcommit(), expect, "{percent} {sharing}");
            let again: Pool = serde_json::from_value(serde_json::to_value(&pool).unwrap()).unwrap();
            assert_eq!(again, pool);
        }
        let memory = serde_json::json!({ "name": "a", "memory_overcommit_percent": 150 });
        assert!(serde_json::from_value::<Pool>(memory).unwrap_err().to_string().contains("unknown field"));
        let mut by_day = daily("day", "08:00", "20:00");
        by_day["sharing"] = serde_json::json!("fractions");
        let json = serde_json::json!({ "name": "a", "overcommit_percent": 150, "sharing": "whole", "personalities": [by_day] });
        assert_eq!(pool(json).check_overcommit(), Ok(()), "it lends parts by day");
    }

    #[test]
    fn the_price_that_names_the_most_counts() {
        let price = |json| serde_json::from_value::<PoolPrice>(json).unwrap();
        let prices = [
            price(serde_json::json!({ "meter": "reserved", "tier": "basic", "micro": 2 })),
            price(serde_json::json!({ "meter": "reserved", "micro": 1 })),
            price(
                serde_json::json!({ "meter": "reserved", "tier": "basic", "model": "H100", "per": "unit", "micro": 4 }),
            ),
            price(serde_json::json!({ "meter": "reserved", "tier": "basic", "model": "H100", "micro": 3 })),
        ];
        let check = |tier, model: &str, expect| {
            let goods = Goods { tier, pool: "a".into(), model: model.into(), gflops: 20_000 };
            let rate = PoolPrice::of(&prices, Meter::Reserved, &goods);
            assert_eq!(rate.map(|rate| (rate.micro, rate.per)), Some(expect));
            assert_eq!(PoolPrice::of(&prices, Meter::Used, &goods), None);
        };
        check(Tier::Standard, "H100", (1, PricePer::Gpu));
        check(Tier::Basic, "A100", (2, PricePer::Gpu));
        check(Tier::Basic, "H100", (4, PricePer::Unit));
        let without = Goods { tier: Tier::Basic, pool: "a".into(), model: "H100".into(), gflops: 0 };
        assert_eq!(PoolPrice::of(&prices, Meter::Reserved, &without).map(|rate| rate.micro), Some(3));
    }

    #[test]
    fn nodes_are_claimed_by_name_or_by_all_labels() {
        let labels =
            BTreeMap::from([("gpu".to_owned(), "a100".to_owned()), ("zone".to_owned(), "a".to_owned())]);
        let claims =
            |json| serde_json::from_value::<Pool>(json).unwrap().claims("n1", &labels, "NVIDIA H100");
        assert!(claims(serde_json::json!({ "name": "p", "nodes": ["n1"] })));
        assert!(claims(serde_json::json!({ "name": "p", "labels": { "gpu": "a100" } })));
        assert!(!claims(serde_json::json!({ "name": "p", "labels": { "gpu": "a100", "zone": "b" } })));
        assert!(!claims(serde_json::json!({ "name": "p" })));
        for (json, expect) in [
            (serde_json::json!({ "name": "p", "models": ["a100", "h100"] }), true),
            (serde_json::json!({ "name": "p", "models": ["a100"] }), false),
            (serde_json::json!({ "name": "p", "models": ["h100"], "nodes": ["n1"] }), true),
            (serde_json::json!({ "name": "p", "models": ["h100"], "nodes": ["n2"] }), false),
            (serde_json::json!({ "name": "p", "models": ["a100"], "nodes": ["n1"] }), false),
            (serde_json::json!({ "name": "p", "gpus": ["n1/0"] }), false),
        ] {
            assert_eq!(claims(json.clone()), expect, "{json}");
        }
        let json = serde_json::json!({ "name": "p", "gpus": ["n1/0", "n2/11"], "access": "public" });
        let pool: Pool = serde_json::from_value(json.clone()).unwrap();
        assert_eq!(
            [("n1", 0), ("n1", 1), ("n2", 11)].map(|(node, gpu)| pool.names(node, gpu)),
            [true, false, true]
        );
        assert_eq!(serde_json::to_value(&pool).unwrap(), json);
        let wrong = serde_json::json!({ "name": "p", "gpus": ["n1"] });
        assert!(serde_json::from_value::<Pool>(wrong).unwrap_err().to_string().contains("n1"));
    }
}

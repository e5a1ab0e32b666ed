//! What a pool promises the leases of a tier, and what was kept of it.

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::ser::SerializeStruct;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Tier;
use crate::GPU_PPM;
use crate::written::{WrittenTier, percent, wait_text};

/// The longest wait that is promised: a minute, in microseconds.
pub const WAIT_US_MAX: u64 = 60_000_000;
/// The least part of waits unless said: 99 %.
pub const ATTAINED_PPM_USUAL: u32 = 990_000;

/// A lease that is within its share waits for the GPU no longer than this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Promise {
    /// The longest wait, in microseconds.
    pub wait_us: u64,
    /// The least part of the waits that are no longer, in millionths.
    pub attained_ppm: u32,
    /// The part of what the lease's share costs that is credited for a day on which the promise was
    /// not kept, in millionths.
    pub credit_ppm: u32,
}

impl Promise {
    /// Whether it was kept, where `within` of the waits were no longer than promised. Without any
    /// wait it was.
    pub fn is_kept(&self, waits: u64, within: u64) -> bool {
        u128::from(within) * u128::from(GPU_PPM) >= u128::from(waits) * u128::from(self.attained_ppm)
    }

    /// `20ms for 99%`
    pub fn text(&self) -> String {
        format!("{} for {}", wait_text(self.wait_us), percent(self.attained_ppm.into()))
    }
}

/// A promise, and the waits that it was about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Promised {
    #[serde(flatten)]
    pub promise: Promise,
    /// How often a session of the lease had work and got the GPU, while the lease was within its
    /// share.
    pub waits: u64,
    /// Those of them for which it waited no longer than promised.
    pub within: u64,
}

impl Promised {
    pub fn is_kept(&self) -> bool {
        self.promise.is_kept(self.waits, self.within)
    }

    /// The part of the waits that were no longer than promised, in millionths; none without waits.
    pub fn attained_ppm(&self) -> Option<u64> {
        let part = u128::from(self.within) * u128::from(GPU_PPM);
        part.checked_div(u128::from(self.waits)).and_then(|ppm| u64::try_from(ppm).ok())
    }

    /// `99.51% of 1824 waits; 99% within 20ms promised: kept`
    pub fn text(&self) -> String {
        let Promise { wait_us, attained_ppm, .. } = self.promise;
        let promised = format!("{} within {}", percent(attained_ppm.into()), wait_text(wait_us));
        match self.attained_ppm() {
            None => format!("no waits so far; {promised} promised"),
            Some(ppm) => {
                let kept = if self.is_kept() { "kept" } else { "missed" };
                // Two digits after the point, and never more than it was.
                let ppm = if ppm < u64::from(GPU_PPM) { ppm / 100 * 100 } else { ppm };
                format!("{} of {} waits; {promised} promised: {kept}", percent(ppm), self.waits)
            }
        }
    }
}

/// A tier that a pool serves: `premium`, or `{name: premium, wait: 20ms, attained: 99%, credit:
/// 10%}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolTier {
    pub tier: Tier,
    pub promise: Option<Promise>,
    /// The most that each of its leases gets of a GPU, in millionths, also of an idle
    /// GPU; a lease whose share is larger gets its share.
    pub limit_ppm: Option<u32>,
}

impl From<Tier> for PoolTier {
    fn from(tier: Tier) -> PoolTier {
        PoolTier { tier, promise: None, limit_ppm: None }
    }
}

impl Serialize for PoolTier {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.promise.is_none() && self.limit_ppm.is_none() {
            return self.tier.serialize(serializer);
        }
        let mut fields = serializer.serialize_struct("PoolTier", 5)?;
        fields.serialize_field("name", &self.tier)?;
        if let Some(Promise { wait_us, attained_ppm, credit_ppm }) = self.promise {
            fields.serialize_field("wait_us", &wait_us)?;
            fields.serialize_field("attained_ppm", &attained_ppm)?;
            fields.serialize_field("credit_ppm", &credit_ppm)?;
        }
        if let Some(limit_ppm) = self.limit_ppm {
            fields.serialize_field("limit_ppm", &limit_ppm)?;
        }
        fields.end()
    }
}

impl<'de> Deserialize<'de> for PoolTier {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<PoolTier, D::Error> {
        deserializer.deserialize_any(NameOrPromise)
    }
}

/// Not an untagged enum, whose errors name nothing.
struct NameOrPromise;

impl<'de> Visitor<'de> for NameOrPromise {
    type Value = PoolTier;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a tier such as premium, or {name: premium, wait: 20ms}")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<PoolTier, E> {
        text.parse::<Tier>().map(PoolTier::from).map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<PoolTier, A::Error> {
        let written = WrittenTier::deserialize(MapAccessDeserializer::new(map))?;
        PoolTier::try_from(written).map_err(A::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::written::as_written;

    fn check(written: Value, expect: Result<PoolTier, &str>) {
        let read = serde_json::from_value::<PoolTier>(written.clone());
        match (read, expect) {
            (Ok(read), Ok(expect)) => assert_eq!(read, expect, "{written}"),
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{written}: {error}"),
            (read, expect) => panic!("{written}: {read:?} and not {expect:?}"),
        }
    }

    fn premium(wait_us: u64, attained_ppm: u32, credit_ppm: u32) -> PoolTier {
        let promise = Some(Promise { wait_us, attained_ppm, credit_ppm });
        PoolTier { tier: Tier::Premium, promise, limit_ppm: None }
    }

    #[test]
    fn a_tier_is_a_name_or_has_a_promise() {
        check(json!("basic"), Ok(Tier::Basic.into()));
        check(json!({ "name": "basic" }), Ok(Tier::Basic.into()));
        check(
            json!({ "name": "premium", "wait": "20ms", "attained": "99.5%", "credit": "10%" }),
            Ok(premium(20_000, 995_000, 100_000)),
        );
        check(json!({ "name": "premium", "wait": "1.5 ms" }), Ok(premium(1500, 990_000, 0)));
        check(
            json!({ "name": "premium", "wait": "1s", "attained": "100" }),
            Ok(premium(1_000_000, 1_000_000, 0)),
        );
        check(
            json!({ "name": "premium", "wait_us": 7, "attained_ppm": 500_000, "credit_ppm": 1 }),
            Ok(premium(7, 500_000, 1)),
        );
        check(
            json!({ "name": "basic-night", "limit": "50%" }),
            Ok(PoolTier { tier: "basic-night".parse().unwrap(), promise: None, limit_ppm: Some(500_000) }),
        );
        check(
            json!({ "name": "premium", "wait": "20ms", "limit_ppm": 7 }),
            Ok(PoolTier { limit_ppm: Some(7), ..premium(20_000, 990_000, 0) }),
        );
        check(json!({ "name": "basic", "limit": "0%" }), Err("limit: more than 0 %, and at most 100 %"));
        check(json!({ "name": "basic", "limit": "101%" }), Err("limit: more than 0 %, and at most 100 %"));
        check(json!("gold"), Err("none of premium, standard and basic"));
        check(json!({ "name": "premium", "wait": "20" }), Err("wait: \"20\" is no time such as 20ms"));
        check(json!({ "name": "premium", "wait": "2min" }), Err("is no time"));
        check(json!({ "name": "premium", "wait": "61s" }), Err("up to a minute"));
        check(json!({ "name": "premium", "wait": "0ms" }), Err("up to a minute"));
        check(json!({ "name": "premium", "wait": "20ms", "attained": "101%" }), Err("at most 100 %"));
        check(json!({ "name": "premium", "wait": "20ms", "attained": "0%" }), Err("more than 0 %"));
        check(json!({ "name": "premium", "wait": "20ms", "credit": "101%" }), Err("at most 100 %"));
        check(json!({ "name": "premium", "credit": "10%" }), Err("wait is not there"));
        check(json!({ "name": "premium", "weight": 2 }), Err("unknown field `weight`"));
        check(json!(7), Err("a tier such as premium"));
    }

    #[test]
    fn what_is_shown_is_read_as_the_same() {
        let limited = PoolTier { limit_ppm: Some(125_000), ..premium(20_000, 995_000, 0) };
        let own = PoolTier { limit_ppm: Some(1), ..PoolTier::from("basic-night".parse::<Tier>().unwrap()) };
        for tier in [Tier::Standard.into(), premium(20_000, 995_000, 100_000), premium(1, 1, 0), limited, own]
        {
            let exact = json!(tier);
            check(as_written(&exact), Ok(tier.clone()));
            check(exact, Ok(tier));
        }
        let shown = as_written(&json!(premium(20_000, 990_000, 125_000)));
        assert_eq!(shown, json!({ "name": "premium", "wait": "20ms", "attained": "99%", "credit": "12.5%" }));
    }

    #[test]
    fn a_promise_is_kept_from_the_promised_part_on() {
        let of = |waits, within| {
            let promise = Promise { wait_us: 20_000, attained_ppm: 990_000, credit_ppm: 0 };
            Promised { promise, waits, within }
        };
        assert_eq!([of(100, 99), of(100, 98), of(0, 0)].map(|of| of.is_kept()), [true, false, true]);
        assert_eq!(of(1000, 990).text(), "99% of 1000 waits; 99% within 20ms promised: kept");
        assert_eq!(of(100_001, 98_999).text(), "98.99% of 100001 waits; 99% within 20ms promised: missed");
        assert_eq!(of(0, 0).text(), "no waits so far; 99% within 20ms promised");
        assert!(of(u64::MAX, u64::MAX).is_kept());
    }
}

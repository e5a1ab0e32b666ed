//! Tiers: how firmly a lease holds what it has.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// How firmly a lease holds what it has; prices may differ by it.
///
/// A provider's own tier is a kind of one of the three, and its name begins with that one's:
/// `premium-gold` is as firm as premium. So a node, a bill and a record of years ago say what it
/// is, whatever pools are declared now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Is never preempted, and granted within the tenant's guaranteed quota only.
    Premium,
    #[default]
    Standard,
    /// Goes after all standard leases of its tenant, and is preempted for them.
    Basic,
    /// One that pools declare.
    Own(OwnTier),
}

/// A tier with a name of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnTier {
    class: Class,
    /// The whole name, filled up with zeros.
    name: [u8; NAME_MAX],
}

/// What a tier is a kind of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    Premium,
    Standard,
    Basic,
}

/// Bytes of a tier's name.
const NAME_MAX: usize = 32;

impl Tier {
    /// Those that need no declaration.
    pub const ALL: [Tier; 3] = [Tier::Premium, Tier::Standard, Tier::Basic];

    pub fn name(&self) -> &str {
        match self {
            Tier::Premium => "premium",
            Tier::Standard => "standard",
            Tier::Basic => "basic",
            Tier::Own(own) => own.name(),
        }
    }

    pub fn class(self) -> Class {
        match self {
            Tier::Premium => Class::Premium,
            Tier::Standard => Class::Standard,
            Tier::Basic => Class::Basic,
            Tier::Own(own) => own.class,
        }
    }

    /// Whether its leases are never preempted, and granted within the guaranteed quota only.
    pub fn is_premium(self) -> bool {
        self.class() == Class::Premium
    }

    /// Whether only pools that declare it serve it.
    pub fn is_own(self) -> bool {
        matches!(self, Tier::Own(_))
    }

    /// Whether it is this tier, or an own one whose name begins with it.
    pub fn is_kind_of(self, tier: Tier) -> bool {
        self == tier || (self.is_own() && !tier.is_own() && self.class() == tier.class())
    }

    /// Whether it is an own tier, and this is it.
    pub(crate) fn is_own_and(self, tier: Option<Tier>) -> bool {
        self.is_own() && tier == Some(self)
    }
}

impl OwnTier {
    fn name(&self) -> &str {
        let end = self.name.iter().position(|&byte| byte == 0).unwrap_or(NAME_MAX);
        std::str::from_utf8(&self.name[..end]).unwrap_or_default()
    }
}

impl fmt::Debug for OwnTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Tier {
    type Err = String;

    fn from_str(text: &str) -> Result<Tier, String> {
        if let Some(tier) = Tier::ALL.into_iter().find(|tier| tier.name() == text) {
            return Ok(tier);
        }
        let unknown = || {
            format!("{text:?} is none of premium, standard and basic, nor a kind of one such as premium-gold")
        };
        let base = Tier::ALL.into_iter().find_map(|tier| Some((tier, text.strip_prefix(tier.name())?)));
        let (base, own) =
            base.and_then(|(tier, rest)| Some((tier, rest.strip_prefix('-')?))).ok_or_else(unknown)?;
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if own.is_empty() || text.len() > NAME_MAX || !own.chars().all(is_plain) {
            return Err(format!(
                "{text:?}: after {}- the name of a tier has small letters, digits and -, up to {NAME_MAX} characters in all",
                base.name()
            ));
        }
        let mut name = [0; NAME_MAX];
        name[..text.len()].copy_from_slice(text.as_bytes());
        Ok(Tier::Own(OwnTier { class: base.class(), name }))
    }
}

impl Serialize for Tier {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Tier {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Tier, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for Tier {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        let about = "How firmly a lease holds what it has: premium is never preempted, and granted within the tenant's \
                     guaranteed quota only; basic goes after all standard leases of its tenant, and is preempted for them. \
                     A tier that pools declare is a kind of one of them, such as premium-gold.";
        utoipa::openapi::ObjectBuilder::new()
            .schema_type(utoipa::openapi::schema::Type::String)
            .description(Some(about))
            .pattern(Some("^(premium|standard|basic)(-[a-z0-9-]+)?$"))
            .max_length(Some(NAME_MAX))
            .examples(["premium", "standard", "basic", "premium-gold"])
            .into()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for Tier {}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expect: Result<Class, &str>) {
        match (text.parse::<Tier>(), expect) {
            (Ok(tier), Ok(class)) => {
                assert_eq!((tier.name(), tier.class()), (text, class));
                let json = serde_json::to_string(&tier).unwrap();
                assert_eq!(json, format!("{text:?}"));
                assert_eq!(serde_json::from_str::<Tier>(&json).unwrap(), tier);
            }
            (Err(error), Err(part)) => assert!(error.contains(part), "{text}: {error}"),
            (read, expect) => panic!("{text}: {read:?} and not {expect:?}"),
        }
    }

    #[test]
    fn the_name_of_an_own_tier_says_what_it_is_a_kind_of() {
        check("premium", Ok(Class::Premium));
        check("standard", Ok(Class::Standard));
        check("basic", Ok(Class::Basic));
        check("premium-gold", Ok(Class::Premium));
        check("standard-2", Ok(Class::Standard));
        check("basic-night-shift", Ok(Class::Basic));
        check("basic-abcdefghijklmnopqrstuvwxyz", Ok(Class::Basic));
        check("basic-abcdefghijklmnopqrstuvwxyz1", Err("up to 32 characters"));
        check("gold", Err("none of premium, standard and basic, nor a kind of one"));
        check("premiumgold", Err("nor a kind of one"));
        check("premium-", Err("small letters"));
        check("premium-Gold", Err("small letters"));
        check("premium-g\0", Err("small letters"));
        check("", Err("none of premium"));
        assert!("premium-gold".parse::<Tier>().unwrap().is_own());
        assert!(!Tier::Premium.is_own());
    }
}

//! Tiers: how firmly a lease holds what it has.

use serde::{Deserialize, Serialize};

/// How firmly a lease holds what it has; prices may differ by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Tier {
    /// Is never preempted, and granted within the tenant's guaranteed quota only.
    Premium,
    #[default]
    Standard,
    /// Goes after all standard leases of its tenant, and is preempted for them.
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

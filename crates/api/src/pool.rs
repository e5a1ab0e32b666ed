//! Pools: which nodes serve whom, and tiers: how firmly a lease holds what it has.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::tenant::TenantPath;

/// The pool of nodes that no declared pool claims; everybody may use it.
pub const DEFAULT_POOL: &str = "default";

/// Some nodes, and who may use them. A node belongs to the first pool, by name, that claims it.
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
    #[serde(default)]
    pub access: Access,
    /// The tiers that it serves; all unless said.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<Tier>,
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
    /// During the windows these tenants and those below them, at other times everybody. Whoever else is there when a window
    /// begins has to make room.
    Reserved { tenants: Vec<TenantPath>, windows: Vec<Window> },
}

/// From a moment until before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
    /// Whether it claims a node of this name and with these labels.
    pub fn claims(&self, node: &str, labels: &BTreeMap<String, String>) -> bool {
        let labelled = || self.labels.iter().all(|(name, value)| labels.get(name) == Some(value));
        self.nodes.iter().any(|name| name == node) || (!self.labels.is_empty() && labelled())
    }

    /// Whether a lease of this tenant and tier may be here at this moment.
    pub fn serves(&self, tenant: &TenantPath, tier: Tier, at_ms: u64) -> bool {
        let among = |tenants: &[TenantPath]| tenants.iter().any(|listed| listed.contains(tenant));
        let lets_in = match &self.access {
            Access::Public => true,
            Access::Private { tenants } => among(tenants),
            Access::Reserved { tenants, windows } => {
                among(tenants) || !windows.iter().any(|window| window.contains(at_ms))
            }
        };
        lets_in && (self.tiers.is_empty() || self.tiers.contains(&tier))
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
                pool.serves(&tenant.parse().unwrap(), tier, at_ms),
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
    }

    #[test]
    fn nodes_are_claimed_by_name_or_by_all_labels() {
        let labels =
            BTreeMap::from([("gpu".to_owned(), "a100".to_owned()), ("zone".to_owned(), "a".to_owned())]);
        let claims = |json| serde_json::from_value::<Pool>(json).unwrap().claims("n1", &labels);
        assert!(claims(serde_json::json!({ "name": "p", "nodes": ["n1"] })));
        assert!(claims(serde_json::json!({ "name": "p", "labels": { "gpu": "a100" } })));
        assert!(!claims(serde_json::json!({ "name": "p", "labels": { "gpu": "a100", "zone": "b" } })));
        assert!(!claims(serde_json::json!({ "name": "p" })));
    }
}

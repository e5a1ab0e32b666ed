//! Tenants: organisations, departments, teams, users and projects in one tree, named by their path.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::bill::{Budget, BudgetStatus, CostChange, Currency, Price, TightestBudget};
use crate::identity::Identity;
use crate::invoice::{BillTo, Invoicing};
use crate::pool::Pool;
use crate::written::WrittenQuota;
#[cfg(feature = "openapi")]
use crate::written::{WrittenBudget, WrittenPrice};

/// A place in the tree, such as `acme/research/vision`; `/` is its root, which is no tenant itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(value_type = String, pattern = "^(/|[a-z0-9][a-z0-9.-]{0,62}(/[a-z0-9][a-z0-9.-]{0,62}){0,7})$", examples("acme/research")))]
pub struct TenantPath(String);

/// Levels below the root.
const DEPTH_MAX: usize = 8;
/// Characters of one name.
const NAME_MAX: usize = 63;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no path of a tenant: up to {DEPTH_MAX} names of a-z, 0-9, - and . with / between them, such as \
     acme/research"
)]
pub struct PathError(String);

impl TenantPath {
    pub fn root() -> TenantPath {
        TenantPath("/".into())
    }

    pub fn is_root(&self) -> bool {
        self.0 == "/"
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The path one level up; the root's is none.
    pub fn parent(&self) -> Option<TenantPath> {
        match self.0.rsplit_once('/') {
            _ if self.is_root() => None,
            Some((parent, _)) => Some(TenantPath(parent.into())),
            None => Some(TenantPath::root()),
        }
    }

    /// Itself and every tenant above it, the root left out.
    pub fn lineage(&self) -> impl Iterator<Item = TenantPath> {
        std::iter::successors(Some(self.clone()), TenantPath::parent).filter(|path| !path.is_root())
    }

    /// Whether `other` is this tenant or one below it.
    pub fn contains(&self, other: &TenantPath) -> bool {
        self.is_root()
            || other.0.strip_prefix(&self.0).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

impl Borrow<str> for TenantPath {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl FromStr for TenantPath {
    type Err = PathError;

    fn from_str(text: &str) -> Result<TenantPath, PathError> {
        let of_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
        let is_name = |name: &str| {
            (1..=NAME_MAX).contains(&name.len())
                && name.chars().all(of_name)
                && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        };
        if text == "/" {
            return Ok(TenantPath::root());
        }
        if text.split('/').count() > DEPTH_MAX || !text.split('/').all(is_name) {
            return Err(PathError(text.chars().take(100).collect()));
        }
        Ok(TenantPath(text.into()))
    }
}

impl TryFrom<String> for TenantPath {
    type Error = PathError;

    fn try_from(text: String) -> Result<TenantPath, PathError> {
        text.parse()
    }
}

impl From<TenantPath> for String {
    fn from(path: TenantPath) -> String {
        path.0
    }
}

impl fmt::Display for TenantPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// What a tenant may hold, all tenants below it included.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "WrittenQuota")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Quota {
    /// Thousandths of a GPU that are this tenant's whenever it asks for them.
    pub guaranteed_milli: u32,
    /// Thousandths of units that are. Once any tenant is guaranteed units, each tenant with a
    /// guarantee states its units, and the guarantee is what is within all that is stated.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub guaranteed_units_milli: u64,
    /// Device memory that is, in MiB over all GPUs; as with units.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub guaranteed_memory_mib: u64,
    /// The most it may hold, in thousandths of a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_milli: Option<u32>,
    /// The most it may hold, in thousandths of a unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub units_limit_milli: Option<u64>,
    /// Its part of what is left over, in proportion to its siblings' weights; 0 for none.
    pub over_quota_weight: u32,
    /// The most device memory it may hold, in MiB over all GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit_mib: Option<u64>,
    /// The most leases it may hold at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leases_limit: Option<u32>,
}

impl Default for Quota {
    fn default() -> Quota {
        Quota {
            guaranteed_milli: 0,
            guaranteed_units_milli: 0,
            guaranteed_memory_mib: 0,
            limit_milli: None,
            units_limit_milli: None,
            over_quota_weight: 1,
            memory_limit_mib: None,
            leases_limit: None,
        }
    }
}

/// A tenant as an administrator has declared it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tenant {
    pub path: TenantPath,
    #[serde(default)]
    pub quota: Quota,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bill_to: Option<BillTo>,
}

/// What is declared of a tenant; what is left out stays as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeclaredTenant {
    pub path: TenantPath,
    /// As a whole: what it does not mention is as it is by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<WrittenQuota>))]
    pub quota: Option<Quota>,
    /// As a whole; null for none.
    #[serde(default, deserialize_with = "even_null", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<WrittenBudget>))]
    pub budget: Option<Option<Budget>>,
    /// Whom its invoices are for, as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bill_to: Option<BillTo>,
}

/// Tells null from what is left out.
fn even_null<'de, T: Deserialize<'de>, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

impl DeclaredTenant {
    /// What it is from now on, where that is what it was before.
    pub fn after(self, quota: Option<&Quota>, budget: Option<&Budget>, bill_to: Option<&BillTo>) -> Tenant {
        Tenant {
            path: self.path,
            quota: self.quota.or_else(|| quota.cloned()).unwrap_or_default(),
            budget: self.budget.unwrap_or_else(|| budget.cloned()),
            bill_to: self.bill_to.or_else(|| bill_to.cloned()),
        }
    }
}

/// A tenant with what it holds now, all tenants below it included.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TenantStatus {
    pub path: TenantPath,
    pub quota: Quota,
    pub held_milli: u64,
    /// What it may hold now of what it asks for: what it is guaranteed first, then its part of the
    /// rest, by weight and what it has used of late. Not there where nothing of it runs or waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fair_share_milli: Option<u64>,
    /// Of GPUs whose units are known.
    #[serde(default)]
    pub held_units_milli: u64,
    pub held_memory_mib: u64,
    pub leases: u32,
    pub queued: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<BudgetStatus>,
    /// Of its own and those above it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tightest_budget: Option<TightestBudget>,
}

/// What `sluice apply -f` declares; parts that are left out stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Declaration {
    /// Created or changed; parents before their children or not.
    #[serde(default)]
    pub tenants: Vec<DeclaredTenant>,
    /// Each as a whole: what a pool's declaration does not mention is as it is by default.
    #[serde(default)]
    pub pools: Vec<Pool>,
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<WrittenPrice>))]
    pub prices: Vec<Price>,
    /// Of all prices, budgets, bills and invoices. Once an invoice has been issued it cannot become
    /// another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub currency: Option<Currency>,
    /// Who bills: a name for invoices and exports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 200, examples("Acme Compute GmbH")))]
    pub issuer: Option<String>,
    /// How invoices are made, as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invoicing: Option<Invoicing>,
    /// In place of the provider that was there, with all its rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<Identity>,
}

/// What a declaration changed, in words.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Applied {
    pub changes: Vec<String>,
    /// What is allowed, and may not be meant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// What use costs before and after, of each top-level tenant for which that differs; of a dry
    /// run only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub costs: Vec<CostChange>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> TenantPath {
        text.parse().unwrap()
    }

    #[test]
    fn a_tenant_contains_itself_and_what_is_below() {
        let check = |above: &str, below: &str, expect| {
            assert_eq!(path(above).contains(&path(below)), expect, "{above} {below}");
        };
        check("/", "acme", true);
        check("/", "/", true);
        check("acme", "acme", true);
        check("acme", "acme/research", true);
        check("acme", "acme2", false);
        check("acme/research", "acme", false);
        check("acme", "/", false);
    }

    #[test]
    fn the_lineage_ends_below_the_root() {
        let names: Vec<String> = path("a/b/c").lineage().map(String::from).collect();
        assert_eq!(names, ["a/b/c", "a/b", "a"]);
        assert_eq!(TenantPath::root().lineage().count(), 0);
    }

    #[test]
    fn what_a_declaration_leaves_out_stays() {
        let quota = Quota { limit_milli: Some(1000), ..Quota::default() };
        let budget: Budget =
            serde_json::from_value(serde_json::json!({ "micro": 5, "per": "ever", "then": "warn" })).unwrap();
        let other = serde_json::json!({ "micro": 6, "per": "day", "then": "hold" });
        let check = |declared: serde_json::Value, expect: (Option<u32>, Option<u64>)| {
            let mut whole = serde_json::json!({ "path": "acme" });
            whole.as_object_mut().unwrap().extend(declared.as_object().unwrap().clone());
            let declared: DeclaredTenant = serde_json::from_value(whole).unwrap();
            let written = serde_json::from_value(serde_json::to_value(&declared).unwrap()).unwrap();
            assert_eq!(declared, written);
            let after = declared.after(Some(&quota), Some(&budget), None);
            assert_eq!((after.quota.limit_milli, after.budget.map(|budget| budget.micro)), expect);
        };
        check(serde_json::json!({}), (Some(1000), Some(5)));
        check(serde_json::json!({ "budget": other }), (Some(1000), Some(6)));
        check(serde_json::json!({ "budget": null }), (Some(1000), None));
        check(serde_json::json!({ "quota": { "guaranteed_milli": 1 } }), (None, Some(5)));
    }

    #[test]
    fn names_are_checked() {
        for text in ["", "a//b", "/a", "a/", "A", "a b", "-a", ".", "..", "a/b/c/d/e/f/g/h/i", "é"] {
            assert!(text.parse::<TenantPath>().is_err(), "{text}");
        }
        assert!(format!("{}a", "a/".repeat(7)).parse::<TenantPath>().is_ok());
    }
}

//! Pools: which nodes serve whom, and tiers: how firmly a lease holds what it has.

mod access;
mod personality;
mod promise;
mod tier;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::GPU_PPM;
use crate::autonomy::Mode;
use crate::health::GpuName;
#[cfg(feature = "openapi")]
use crate::written::WrittenPoolTier;

pub use access::Access;
pub use personality::{
    AHEAD_MS, InForce, Personality, PersonalityError, PoolPrice, PoolStatus, Terms, Window,
};
pub use promise::{ATTAINED_PPM_USUAL, PoolTier, Promise, Promised, WAIT_US_MAX};
pub use tier::{Class, Tier};

/// The pool of nodes that no declared pool claims; every tenant may use it.
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
    /// The tiers that it serves, each with what it promises; premium, standard and basic, without
    /// promises, unless said.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<WrittenPoolTier>))]
    pub tiers: Vec<PoolTier>,
    #[serde(default, skip_serializing_if = "Sharing::is_usual")]
    pub sharing: Sharing,
    /// How much of the compute of each GPU may be leased in parts, at all times: above 100, leases
    /// whose shares add up to more than the GPU has share its time in proportion. A whole GPU is
    /// not shared. Memory is `memory_overcommit_percent`.
    #[serde(default = "no_overcommit", skip_serializing_if = "is_no_overcommit")]
    #[cfg_attr(feature = "openapi", schema(minimum = 100, maximum = 1000))]
    pub overcommit_percent: u32,
    /// How much of the memory of each GPU may be leased, at all times: above 100, programs that do
    /// not fit there together run in time slices, and the memory of those that wait is with the
    /// node. No more than the node can back (`sluice node --overcommit`), and no lease has more
    /// than the GPU.
    #[serde(default = "no_overcommit", skip_serializing_if = "is_no_overcommit")]
    #[cfg_attr(feature = "openapi", schema(minimum = 100, maximum = 1000))]
    pub memory_overcommit_percent: u32,
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
    #[error("memory_overcommit_percent: 100 (what each GPU has) to {OVERCOMMIT_PERCENT_MAX}, not {0}")]
    MemoryRange(u32),
    #[error("{0}: whole GPUs are never overcommitted, and it lends no parts of GPUs")]
    Whole(&'static str),
}

/// What is wrong about a pool's tiers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TiersError {
    #[error("tiers: {} is there twice", .0.name())]
    Twice(Tier),
    #[error("tiers: {0}, and a pool has up to {TIERS_MAX}")]
    Many(usize),
}

/// That one pool serves.
const TIERS_MAX: usize = 32;

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

    /// Bytes of a GPU that may be leased, where it has `memory` and its node can back `leasable`.
    pub fn leasable_memory(&self, memory: u64, leasable: u64) -> u64 {
        let of_pool = u128::from(memory) * u128::from(self.memory_overcommit_percent) / 100;
        u64::try_from(of_pool).unwrap_or(u64::MAX).min(leasable).max(memory)
    }

    /// Whether it says of each tier once what that is, and serves no more than it may.
    pub fn check_tiers(&self) -> Result<(), TiersError> {
        for terms in self.all_terms() {
            if terms.tiers.len() > TIERS_MAX {
                return Err(TiersError::Many(terms.tiers.len()));
            }
            let is_twice =
                |(index, of): &(usize, &PoolTier)| terms.tiers[..*index].iter().any(|o| o.tier == of.tier);
            if let Some((_, twice)) = terms.tiers.iter().enumerate().find(is_twice) {
                return Err(TiersError::Twice(twice.tier));
            }
        }
        Ok(())
    }

    pub fn check_overcommit(&self) -> Result<(), OvercommitError> {
        if !(100..=OVERCOMMIT_PERCENT_MAX).contains(&self.overcommit_percent) {
            return Err(OvercommitError::Range(self.overcommit_percent));
        }
        if !(100..=OVERCOMMIT_PERCENT_MAX).contains(&self.memory_overcommit_percent) {
            return Err(OvercommitError::MemoryRange(self.memory_overcommit_percent));
        }
        if self.all_terms().any(|terms| terms.sharing == Sharing::Fractions) {
            return Ok(());
        }
        let fields = [
            ("overcommit_percent", self.overcommit_percent),
            ("memory_overcommit_percent", self.memory_overcommit_percent),
        ];
        let above = fields.into_iter().find(|&(_, percent)| percent > 100);
        above.map_or(Ok(()), |(field, _)| Err(OvercommitError::Whole(field)))
    }
}

#[cfg(test)]
mod tests;

//! Recommendations: shares and memory that fit, from what earlier runs of a program used.

use serde::{Deserialize, Serialize};

use crate::bill::Currency;
use crate::tenant::TenantPath;

/// The programs of one name in one tenant, and what to ask for instead.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProgramAdvice {
    pub tenant: TenantPath,
    /// The name of the program's leases.
    pub program: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recommendation: Option<RightSize>,
    /// The reason why there is no recommendation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unchanged: Option<Unchanged>,
    /// What following the recommendation gives back while the program runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saves: Option<Saving>,
    /// The default that is set for the program's next runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_default: Option<RunDefault>,
}

/// A request that fits, with its evidence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RightSize {
    /// The number of runs that it is drawn from.
    pub runs: u64,
    /// Their time together.
    pub held_ms: u64,
    /// What the latest run asked for of each GPU, in millionths.
    pub asked_share_ppm: u32,
    /// What to ask for of each GPU, in millionths; never more than was asked.
    pub share_ppm: u32,
    /// What the latest run asked for, in bytes on each GPU.
    pub asked_memory: u64,
    /// What to ask for, in bytes on each GPU; never more than was asked.
    pub memory: u64,
    /// The most bytes that any run had on one GPU.
    pub memory_peak: u64,
    /// Replay of these runs with the recommended share.
    pub replay: Replayed,
}

/// What runs would have been like with another request.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Replayed {
    /// The number of runs that would have been slowed by more than 5 %.
    pub slowed: u64,
    /// The slowdown of the run that suffers most, in per cent of its time.
    pub worst_percent: f64,
}

/// The reason why there is nothing to recommend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Unchanged {
    /// There are fewer than three runs with the latest number of GPUs.
    FewRuns,
    /// The runs need what they ask for.
    Fits,
}

/// What a smaller request gives back while the program runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Saving {
    /// Millionths of a GPU, on all GPUs of the program together.
    pub share_ppm: u64,
    /// Money per hour, in millionths of the currency; absent where GPU time has no price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_per_hour: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub currency: Option<Currency>,
}

/// A default to be set.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NewRunDefault {
    pub tenant: TenantPath,
    /// The name of the program's leases.
    pub program: String,
    /// Millionths of each GPU's compute.
    pub share_ppm: u32,
    /// Bytes on each GPU; 0 for the same part of its memory as of its compute.
    pub memory: u64,
}

/// The share and the memory that the next runs of a program get if they do not state any.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunDefault {
    pub tenant: TenantPath,
    pub program: String,
    pub share_ppm: u32,
    pub memory: u64,
    pub set_at_ms: u64,
    /// The token that it was set with, and its name.
    pub set_by: String,
}

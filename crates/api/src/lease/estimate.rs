//! What a request would lead to.

use serde::{Deserialize, Serialize};

use crate::bill::{Currency, TightestBudget};
use crate::tenant::TenantPath;

/// When a waiting lease is expected to start, if those that run take as long as they said or as
/// their like took before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StartEstimate {
    /// Unknown without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_ms: Option<u64>,
    /// Half of the estimates of late were off by no more than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_ms: Option<u64>,
    /// Nine in ten of the latest estimates were off by no more than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_p90_ms: Option<u64>,
    /// What the estimate rests on, or why there is none.
    pub because: String,
}

/// What a request would lead to, as far as it can be predicted. This is the answer to a dry run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LeaseEstimate {
    pub tenant: TenantPath,
    /// The predicted start, with the usual error of such predictions.
    pub start: StartEstimate,
    /// The reason why it would wait, unless it would start at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The places of its tasks, as far as they can be predicted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<EstimatedPlace>,
    /// The number of leases that would be preempted for it.
    pub preempts: u32,
    /// The price of an hour in which these places are reserved, in millionths of the currency's
    /// unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_per_hour: Option<u64>,
    /// The most that GPU time used adds to the price of an hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_micro_per_hour_max: Option<u64>,
    /// The currency of all amounts, if one is declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub currency: Option<Currency>,
    /// The tightest of the budgets that it would count towards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tightest_budget: Option<TightestBudget>,
    /// The kinds of GPUs that it accepts, the cheapest first.
    pub offers: Vec<Offer>,
}

/// The predicted place of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EstimatedPlace {
    /// The node's name.
    pub node: String,
    /// Indices of the node's GPUs.
    pub gpus: Vec<u32>,
    pub pool: String,
    /// As the driver names it.
    pub model: String,
    /// Of each GPU.
    pub share_ppm: u32,
    /// Bytes on each GPU.
    pub memory: u64,
}

/// Equal GPUs that a request accepts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Offer {
    pub pool: String,
    /// As the driver names it.
    pub model: String,
    /// The memory of one GPU, in bytes.
    pub memory: u64,
    /// The speed of one GPU in GFLOPS, or 0 if it is unknown.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub gflops: u64,
    /// The share that the request takes of each of these GPUs.
    pub share_ppm: u32,
    /// The number of these GPUs that take new leases.
    pub gpus: u32,
    /// The number of them with room for one GPU of the request now.
    pub gpus_free: u32,
    /// The price of an hour in which the whole request is reserved on such GPUs, in millionths of
    /// the currency's unit.
    pub micro_per_hour: u64,
}

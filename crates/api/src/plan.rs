//! When the GPUs of a pool will be full, from how its load has grown.

use serde::{Deserialize, Serialize};

/// A pool and how it fills. Loads are what 95 of 100 hours of a day do with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PoolPlan {
    pub pool: String,
    /// GPUs that report and are not fenced.
    pub gpus: u64,
    /// Whole days of history.
    pub days: u64,
    /// None where the history is too short.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub growth: Option<PoolGrowth>,
    /// None where the history is too short to test earlier plans.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tested: Option<PlanTest>,
}

/// How the load of a pool grows, in thousandths of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PoolGrowth {
    /// What the last day needs.
    pub load_milli: u64,
    /// Of 30 days, and its bounds of 95 %.
    pub growth_milli: i64,
    pub growth_low_milli: i64,
    pub growth_high_milli: i64,
    /// When the load reaches what there is; none if it does not grow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full: Option<PoolFull>,
    /// What the last day of the horizon needs.
    pub load_ahead_milli: u64,
    /// GPUs that are missing then.
    pub missing: u64,
    /// Instead of more GPUs: what part of each would be promised.
    pub overcommit_percent: u64,
    /// Instead of more GPUs: what was held and not used in the last week, in the mean.
    pub reclaimable_milli: u64,
}

/// When a pool is full, in milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PoolFull {
    pub earliest_ms: u64,
    pub likely_ms: u64,
    /// None if the growth may as well be none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latest_ms: Option<u64>,
}

/// How far off plans were that would have been made on earlier days.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PlanTest {
    pub plans: u64,
    pub ahead_days: u64,
    /// The mean, in thousandths of a GPU.
    pub error_milli: u64,
    /// The days in which the load grows by as much; none if it does not grow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_days: Option<u64>,
}

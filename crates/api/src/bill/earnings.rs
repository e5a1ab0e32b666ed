//! What a GPU earned, and what its idle time would have.

use serde::{Deserialize, Serialize};

/// A GPU in a period: what it earned, by the records that are known to be of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CardEarnings {
    /// The name of its node.
    pub node: String,
    /// Its place on the node, if the node has it now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// Its UUID, or `#` and its place where it has none of its own.
    pub card: String,
    pub model: String,
    /// The pool that it is in now, or that it was used in last.
    pub pool: String,
    /// All meters at their prices, before corrections and credits, in millionths of the currency.
    pub income_micro: u64,
    /// Shares of it that were reserved, x their time.
    pub reserved_ppm_ms: u64,
    pub used_ppm_ms: u64,
    /// What was left of it, whether it could be used or not, since its node joined first.
    pub idle_ppm_ms: u64,
    /// What that would have cost in the tier `standard`; not there where reserved compute had no
    /// price, and for a GPU that is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_micro: Option<u64>,
}

//! What the control plane, the nodes and `sluice` say to each other: the types of the REST API, the
//! grants that a node checks alone, the usage records, the chain of the audit log; and a blocking
//! client.
//!
//! Amounts are integers whose names carry the unit: shares in millionths of a GPU (`_ppm`), GPUs of
//! quotas in thousandths (`_milli`), times in milliseconds since 1970 (`_ms`), money in millionths
//! of the currency's unit (`_micro`).

pub mod audit;
pub mod autonomy;
pub mod bill;
pub mod calendar;
pub mod grant;
pub mod health;
pub mod identity;
pub mod invoice;
pub mod lease;
pub mod moving;
pub mod node;
pub mod plan;
pub mod pool;
pub mod problem;
pub mod recommendation;
pub mod replica;
pub mod report;
pub mod session;
pub mod tenant;
pub mod text;
pub mod token;
pub mod usage;
pub mod watch;
pub mod webhook;
pub mod written;

#[cfg(feature = "client")]
pub mod client;

/// A page of a list. `next` is the cursor of the page after it; without one this is the last.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Page<T> {
    pub items: Vec<T>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A whole GPU in millionths.
pub const GPU_PPM: u32 = 1_000_000;

/// A unit: the compute in which GPUs of all models are counted alike, a TFLOPS of 32-bit
/// arithmetic. A GPU has [`node::Gpu::gflops`] thousandths of one; one whose driver's figures do
/// not say has none.
pub const UNIT_GFLOPS: u64 = 1000;

/// Leaves out of JSON what is 0.
fn is_zero(number: &u64) -> bool {
    *number == 0
}

//! The health of GPUs: what nodes report of it, and fences.
//!
//! ```text
//!             a fault, or an operator
//!  healthy ─────────────────────────▶ fenced: nothing new; its sessions finish, make room or end
//!   ▲  ▲ │                              │
//!   │  │ └─ a fault while the breaker ─▶ suspected: continues as before, until an operator decides
//!   │  └──── quiet for long enough ─────┤ passing faults only
//!   └── an operator, or a machine that ─┘
//!       has started anew
//! ```

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A GPU by its node's name and its place there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GpuName {
    pub node: String,
    pub gpu: u32,
}

impl fmt::Display for GpuName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.node, self.gpu)
    }
}

impl FromStr for GpuName {
    type Err = String;

    fn from_str(text: &str) -> Result<GpuName, String> {
        let parts = text.rsplit_once('/').filter(|(node, _)| !node.is_empty());
        let parts = parts.and_then(|(node, gpu)| Some((node, gpu.parse().ok()?)));
        let (node, gpu) = parts.ok_or_else(|| format!("{text:?} is no GPU such as gpu1/0"))?;
        Ok(GpuName { node: node.to_owned(), gpu })
    }
}

/// What becomes of the sessions on a GPU that is fenced. The later ones are the harder ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Clearing {
    /// They run to their own end: the GPU is degraded, and still right.
    Finish,
    /// They have the grace time, and wait in the queue again.
    #[default]
    Preempt,
    /// They are ended within seconds, and wait in the queue again: nothing that the GPU computes
    /// can be trusted.
    End,
}

impl Clearing {
    pub const ALL: [Clearing; 3] = [Clearing::Finish, Clearing::Preempt, Clearing::End];

    pub fn name(self) -> &'static str {
        match self {
            Clearing::Finish => "finish",
            Clearing::Preempt => "preempt",
            Clearing::End => "end",
        }
    }
}

impl FromStr for Clearing {
    type Err = String;

    fn from_str(text: &str) -> Result<Clearing, String> {
        let found = Clearing::ALL.into_iter().find(|clearing| clearing.name() == text);
        found.ok_or_else(|| format!("{text:?} is none of finish, preempt and end"))
    }
}

/// What a node has found wrong with a GPU. A lasting fault is reported until the server has taken
/// it; a passing one with every report for as long as it is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GpuFault {
    /// In the order in which the node joined with them.
    pub gpu: u32,
    /// For people: `Xid 79: the GPU has fallen off the bus`.
    pub what: String,
    pub sessions: Clearing,
    /// Does not go away by itself.
    pub lasting: bool,
}

/// What the sensors and the driver of a GPU say, which its node asks NVML once a second. What NVML
/// does not report of the GPU is absent. A software GPU has no sensors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Condition {
    /// Degrees Celsius.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature_c: Option<u32>,
    /// The temperature at which the GPU slows down, in degrees Celsius.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slowdown_at_c: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_mw: Option<u32>,
    /// The power that the GPU draws at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_limit_mw: Option<u32>,
    /// The clock of the multiprocessors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_clock_mhz: Option<u32>,
    /// The version of the kernel driver, such as `580.159.04`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// The number of the last Xid error that was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xid: Option<u64>,
}

/// Whether a text can be the version of a driver or of Sluice: 1 to 64 visible ASCII characters.
pub fn is_version(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.chars().all(|c| c.is_ascii_graphic())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum FenceState {
    /// Faulty by what its node says, and used as before: too many GPUs became faulty at once, so an
    /// operator has to look first.
    Suspected,
    /// Takes nothing new.
    Fenced,
}

/// Why a GPU is not used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GpuFence {
    pub state: FenceState,
    pub why: String,
    /// `its node`, or the operator's token.
    pub by: String,
    pub since_ms: u64,
    pub sessions: Clearing,
    /// Stays until an operator takes it away, or (if its node said so) its machine has started
    /// anew.
    pub lasting: bool,
}

/// GPUs to fence.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NewFence {
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 1000))]
    pub gpus: Vec<GpuName>,
    /// The reason, for other operators.
    #[cfg_attr(feature = "openapi", schema(min_length = 1))]
    pub why: String,
    #[serde(default)]
    pub sessions: Clearing,
}

/// GPUs to use again.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Unfence {
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 1000))]
    pub gpus: Vec<GpuName>,
    /// For the audit log.
    #[serde(default)]
    pub why: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_named_by_its_node_and_its_place() {
        let name: GpuName = "rack1/gpu7/3".parse().unwrap();
        assert_eq!((name.node.as_str(), name.gpu), ("rack1/gpu7", 3));
        assert_eq!(name.to_string(), "rack1/gpu7/3");
        for wrong in ["", "gpu1", "/0", "gpu1/", "gpu1/x", "gpu1/-1"] {
            assert!(wrong.parse::<GpuName>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn what_is_harder_on_sessions_is_greater() {
        assert!(Clearing::Finish < Clearing::Preempt && Clearing::Preempt < Clearing::End);
        for clearing in Clearing::ALL {
            assert_eq!(clearing.name().parse(), Ok(clearing));
            assert_eq!(serde_json::to_value(clearing).unwrap(), clearing.name());
        }
    }
}

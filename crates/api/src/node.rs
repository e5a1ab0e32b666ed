//! What a node and its server say to each other: joining, and reports with their answers.
//!
//! A node reports in the rhythm that the last answer gave. A report brings what is true on the node
//! now and the usage records that the server has not confirmed yet; the answer confirms them and
//! names the leases to end.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::autonomy::Idle;
use crate::health::{Condition, GpuFault, GpuFence};
use crate::lease::LeaseId;
use crate::moving::{LeaseMoving, MoveOrder, MoveResult};
use crate::usage::UsageRecord;

/// Counted by the server.
pub type NodeId = u64;

/// A node's first words, under a token of role `node`. A node that joins again under its name is
/// the same node.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Join {
    pub name: String,
    /// `HOST:PORT`, where programs reach it.
    pub address: String,
    pub gpus: Vec<Gpu>,
    /// What requests select nodes by, such as `zone` and `rack`, which also say what is near what.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Of Sluice.
    pub release: String,
}

/// The most times its memory of which a node leases a GPU.
pub const MEMORY_OVERCOMMIT_MAX: u64 = 16;

/// What is fixed about a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Gpu {
    /// As its driver names the model.
    pub name: String,
    /// `GPU-` and hexadecimal digits.
    pub uuid: String,
    /// Bytes.
    pub memory: u64,
    /// Bytes that all its leases together may have; 0 where that is `memory`. A node says what it
    /// can back, and a server as much of that as the GPU's pool allows.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub memory_leasable: u64,
    pub software: bool,
    /// As `12.0`.
    pub compute_capability: String,
    pub driver_version: u32,
    /// What its 32-bit arithmetic counts as, which its units and requests go by: what the node's
    /// operator has stated, else the driver's figure, else 0. What was measured does not count.
    #[serde(default)]
    pub gflops: u64,
    /// Whether `gflops` was stated.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stated: bool,
    /// Peaks, from the driver's figures; not there where they say nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub figures: Option<Rates>,
    /// As its node found when it first joined with this driver, to two digits; not there where it
    /// could not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Rates>,
    /// `nvidia`, another vendor's name or PCI id, or `sluice` for one that computes on CPUs; absent
    /// where unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// `domain:bus:device.function`, hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
    /// The NUMA node whose memory is nearest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcie: Option<PcieLink>,
    /// GPUs of the same node that NVLinks lead to, straight or through switches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nvlinks: Vec<NvLinks>,
}

impl Gpu {
    /// Bytes that all its leases together may have.
    pub fn leasable(&self) -> u64 {
        self.memory_leasable.max(self.memory)
    }
}

/// What a GPU does in a second; 0 where that is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Rates {
    /// 32-bit operations, thousand millions of them.
    pub gflops: u64,
    /// Bytes of its memory that are read and written.
    pub memory_bytes_per_s: u64,
}

/// More than any GPU's memory moves in a second.
pub const MEMORY_RATE_MAX: u64 = 1 << 50;

/// What a GPU and its slot have in common; a link that is idle may be slower for the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PcieLink {
    pub generation: u32,
    pub lanes: u32,
}

/// To one other GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NvLinks {
    /// Its index on the node.
    pub gpu: u32,
    /// Active links; of two GPUs behind switches, as many as the one with fewer has there.
    pub links: u32,
}

/// The answer to a node that may join.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Joined {
    pub node: NodeId,
    /// For its reports; made anew at every joining.
    pub token: String,
    /// What grants are checked with, see [`crate::grant::Verifier`].
    pub grant_key: String,
    pub report_every_ms: u64,
}

/// What is true on a node now.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Report {
    /// Counted up by every report since the node joined: one that comes late is not the truth any
    /// more.
    pub sequence: u64,
    /// Of the last answer that the node has had, 0 before the first: what a report does not mention
    /// has ended only if the node has had an answer of the server that takes it. A node of an
    /// earlier release does not say.
    #[serde(default)]
    pub leadership: Option<u64>,
    /// In the order in which the node joined with them.
    pub gpus: Vec<GpuReport>,
    /// Leases of the server that live on the node.
    pub leases: Vec<Attempt>,
    pub sessions: Vec<SessionReport>,
    /// Oldest first; confirmed by their count.
    pub usage: Vec<UsageRecord>,
    /// Another one after each start of the machine; empty where that is not known.
    #[serde(default)]
    pub boot: String,
    /// The release of Sluice that the node runs. A node of an earlier release does not say.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub release: String,
    /// What is wrong with GPUs; an answer confirms all of it.
    #[serde(default)]
    pub faults: Vec<GpuFault>,
    /// It takes no new leases, since it cannot write down what they use.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub closed: bool,
    /// Of the leases that were resized here, the last change of each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resized: Vec<Resized>,
    /// Suspended leases whose memory has left their GPUs. A node that leases memory beyond what its
    /// GPUs have keeps the room, and names none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vacated: Vec<VacatedLease>,
    /// Leases that another node is giving to this one, and that may still stay there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arriving: Vec<Attempt>,
    /// The results of orders to move leases away, until an answer has confirmed them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moved: Vec<MoveResult>,
    /// Leases whose programs do nothing, and those of which a call waits for a suspended lease.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub idle: Vec<IdleLease>,
}

/// A lease whose programs make no CUDA calls and use no GPU time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct IdleLease {
    #[serde(flatten)]
    pub attempt: Attempt,
    /// For how long they have done nothing.
    pub idle_ms: u64,
    /// It is suspended, and a call of one of its programs waits.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub wants: bool,
    /// Why its memory cannot leave its GPUs; empty where it can.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stays: String,
}

/// A suspended lease whose memory has left its GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VacatedLease {
    #[serde(flatten)]
    pub attempt: Attempt,
    /// Bytes that cannot leave, on the GPU that has the most of them.
    pub stays: u64,
}

/// What became of a grant that changes what a lease has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Resized {
    #[serde(flatten)]
    pub attempt: Attempt,
    /// Of the grant.
    pub version: u32,
    /// Why the lease stays as it was; it has what the grant says without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// One attempt to run a task of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Attempt {
    pub lease: LeaseId,
    pub attempt: u32,
    /// Counted from 0.
    #[serde(default)]
    pub task: u32,
}

/// A value that is written as an object. Serde takes an array of the fields' values as well, and
/// one of nulls is any structure whose fields are all optional.
fn of_object<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: serde::de::DeserializeOwned,
{
    let object = Option::<serde_json::Map<String, serde_json::Value>>::deserialize(deserializer)?;
    let value = object.map(|object| serde_json::from_value(serde_json::Value::Object(object)));
    value.transpose().map_err(serde::de::Error::custom)
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GpuReport {
    /// Bytes that sessions have taken.
    pub memory_used: u64,
    /// Part of the last second in which it worked.
    pub busy_ppm: u32,
    /// Absent where NVML does not know the GPU.
    #[serde(default, deserialize_with = "of_object", skip_serializing_if = "Option::is_none")]
    pub condition: Option<Condition>,
    /// The number of faults that were found since the node was started.
    #[serde(default)]
    pub faults: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SessionReport {
    pub session: u64,
    pub lease: LeaseId,
    /// What kept it from moving to another GPU a few seconds ago; not known without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unmovable: Option<Vec<String>>,
    pub name: String,
    /// The client's process id and address, as far as they mean something.
    pub process: u32,
    pub peer: String,
    pub gpu: u32,
    pub share_ppm: u32,
    pub hard_cap: bool,
    /// The most that it gets of the GPU's compute, in millionths; a whole GPU without a limit.
    #[serde(default = "whole")]
    pub limit_ppm: u32,
    pub memory: u64,
    pub memory_used: u64,
    /// Bytes of `memory_used` that have left the GPU.
    #[serde(default)]
    pub memory_swapped: u64,
    /// Bytes of `memory_swapped` that are in the node's swap file instead of in its memory.
    #[serde(default)]
    pub memory_in_file: u64,
    /// Bytes of `memory_used` that cannot leave the GPU.
    #[serde(default)]
    pub memory_pinned: u64,
    /// What is to be said of where its memory is; empty where it is on the GPU.
    #[serde(default)]
    pub memory_state: String,
    /// How often its memory has left the GPUs, and how long that and the ways back have taken, in
    /// microseconds.
    #[serde(default)]
    pub memory_moves: u64,
    #[serde(default)]
    pub memory_moving_us: u64,
    pub kernels: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub busy_us: u64,
    pub age_ms: u64,
    /// It gets no GPU time until it is resumed.
    #[serde(default)]
    pub suspended: bool,
}

fn whole() -> u32 {
    crate::GPU_PPM
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReportAnswer {
    /// How many usage records of the report, from its first, are stored for good or refused.
    pub usage_taken: u32,
    /// Those of them that cannot be counted, and why; the node keeps them aside.
    #[serde(default)]
    pub usage_refused: Vec<RefusedRecord>,
    /// Another one for each server that comes to lead.
    #[serde(default)]
    pub leadership: u64,
    /// Leases that the node ends now.
    pub end: Vec<Attempt>,
    /// Grants of leases that live on the node, which change what they have; sent until a report
    /// says what became of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resize: Vec<String>,
    /// Leases that the node gives to other nodes; sent until a report has the result.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moves: Vec<MoveOrder>,
    /// When to report next.
    pub report_every_ms: u64,
}

/// A usage record that the server does not count.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RefusedRecord {
    pub id: String,
    pub reason: String,
}

/// How often the state of nodes differed from the server's and was put right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Drift {
    /// From when on it has been counted.
    pub since_ms: u64,
    /// When the server last compared its sums with its leases; what nodes say it compares with
    /// every report.
    pub compared_at_ms: u64,
    /// Nodes with leases that were silent for too long.
    pub nodes_lost: u64,
    /// Leases that were queued again for that.
    pub leases_requeued: u64,
    /// What nodes that came back still had and should not have had.
    pub attempts_ended: u64,
    /// Times that too many nodes were silent at once, so that nothing was queued again.
    pub alarms_held: u64,
    /// Times that sums over leases were not what the leases add up to.
    pub sums_corrected: u64,
}

/// A GPU as `sluice gpus` lists it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GpuStatus {
    pub node: String,
    pub address: String,
    /// Whether the node reports.
    pub online: bool,
    pub index: u32,
    /// The pool that it is in; not there where the token may not see that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    #[serde(flatten)]
    pub gpu: Gpu,
    pub share_leased_ppm: u32,
    pub memory_leased: u64,
    pub memory_used: u64,
    pub busy_ppm: u32,
    pub leases: u32,
    /// Absent where NVML does not know the GPU, and while the node does not report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<Condition>,
    /// The number of faults that its node has found since it was started.
    #[serde(default)]
    pub faults: u64,
    /// Healthy without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<GpuFence>,
}

/// Sums over all GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GpuSums {
    pub nodes: u64,
    pub gpus: u64,
    /// The number of GPUs that compute on the CPUs of their nodes.
    pub software: u64,
    /// The number of GPUs that are on nodes that report, and are not fenced.
    pub usable: u64,
    /// The leased shares of all GPUs, in millionths of a GPU.
    pub leased_ppm: u64,
    /// What is not leased of usable GPUs, in millionths of a GPU.
    pub free_ppm: u64,
    /// The mean part of the last second in which a usable GPU worked.
    pub busy_ppm: u32,
    /// The memory of all GPUs, in bytes.
    pub memory: u64,
    pub memory_leased: u64,
}

/// That an operator wants a node empty: nothing new is placed there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Drain {
    pub since_ms: u64,
    /// The token that it was done with, and its name.
    pub by: String,
    /// The reason, for other operators.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// When what is there has to have ended; it continues to its own end unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_at_ms: Option<u64>,
}

/// A node is to be drained.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NewDrain {
    /// Milliseconds that its leases have to end before they wait in the queue again. Without it
    /// they continue to their own end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
    /// Running programs move to other nodes, as far as they can. Not together with `grace_ms`: what
    /// stays can get a grace time by a second request.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub migrate: bool,
    #[serde(default)]
    pub why: String,
}

/// A node as `sluice node list` shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeStatus {
    pub name: String,
    pub address: String,
    /// Whether it reports.
    pub online: bool,
    /// It takes no new leases, since it cannot write down what they use.
    pub closed: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,
    pub labels: BTreeMap<String, String>,
    /// The release of Sluice that it runs, as its last report says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release: Option<String>,
    pub gpus: u32,
    /// Leases that hold parts of its GPUs.
    pub leases: u32,
    /// Those of them that are to move to other nodes, or were and stay.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moving: Vec<LeaseMoving>,
}

/// A session as `sluice sessions` lists it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SessionStatus {
    pub node: String,
    pub tenant: crate::tenant::TenantPath,
    /// Who asked for its lease.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// What comes of it that its lease is idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_idle: Option<Idle>,
    #[serde(flatten)]
    pub session: SessionReport,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_an_object() {
        let parse = |condition: &str| {
            let text = format!(r#"{{"memory_used": 0, "busy_ppm": 0, "condition": {condition}}}"#);
            serde_json::from_str::<GpuReport>(&text).map(|report| report.condition)
        };
        assert_eq!(parse("null").expect("none"), None);
        let condition = parse(r#"{"temperature_c": 95}"#).expect("an object").expect("a condition");
        assert_eq!(condition.temperature_c, Some(95));
        assert!(parse("[null, null]").is_err());
    }
}

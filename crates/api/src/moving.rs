//! Running leases that move to other nodes of a server.
//!
//! ```text
//! operator -- NewMove --> server -- MoveOrder (in the answer to a report) --> the lease's node
//!                            ^                                                    |  the program
//!                            `------------ MoveResult (in a report) --------------|  and its lease
//!                                                                                 v
//!                                                                           the other node
//! ```

use serde::{Deserialize, Serialize};

use crate::lease::LeaseId;
use crate::node::Attempt;

/// A request to move a running lease to another node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NewMove {
    /// The name of the node that is to have it; any with a free GPU of the same kind unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The index of that node's GPU; any unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
}

/// What a move would do, as far as is known. Nothing was moved for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MovePlan {
    /// The name of the node with room for the lease, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The index of its GPU there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// Bytes of device memory that the program had a moment ago, which are copied while it stands
    /// still.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// The time for which the program would stand still, in microseconds, if the bytes are copied
    /// as fast as by the last move; not known before the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stall_us: Option<u64>,
    /// What keeps the lease where it is; it would move without any.
    pub reasons: Vec<String>,
    /// Whether the lease's node has said what keeps the program; else it may have reasons of its
    /// own.
    pub is_asked: bool,
}

/// The last move of a lease: under way, done, or refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Moving {
    pub state: MoveState,
    /// The name of the other node, unless it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The index of its GPU there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// The reason why it stays where it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Bytes of device memory that were copied, if it is done and that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// For how long its program stood still, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stall_us: Option<u64>,
}

/// The progress of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum MoveState {
    /// Its node has the order, or gets it with its next report. Both places are held for it.
    Sent,
    /// It continues on the other node.
    Moved,
    /// It continues where it was.
    Refused,
}

/// A lease of a node that is to move, or was to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LeaseMoving {
    pub lease: LeaseId,
    #[serde(flatten)]
    pub moving: Moving,
}

/// An order to a node: it gives a lease, with its running program, to another node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MoveOrder {
    #[serde(flatten)]
    pub attempt: Attempt,
    /// Counts the orders of this attempt's task.
    pub number: u32,
    /// The address at which nodes and programs reach the other node.
    pub address: String,
    /// The grant by which the other node takes it.
    pub grant: String,
}

/// The result of an order to move a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MoveResult {
    #[serde(flatten)]
    pub attempt: Attempt,
    /// Of the order.
    pub number: u32,
    /// The reason why the lease stays; the other node has it without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Bytes of device memory that were copied.
    #[serde(default)]
    pub bytes: u64,
    /// For how long its program stood still, in microseconds.
    #[serde(default)]
    pub stall_us: u64,
}

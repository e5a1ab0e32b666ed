//! The servers of a control plane, and which of them leads.

use serde::{Deserialize, Serialize};

/// What a server does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ServerState {
    /// It decides, and writes.
    Leads,
    /// It answers, and leads when the one that leads is gone.
    Follows,
    /// It has not written down for a while that it is there.
    Silent,
}

/// A server as `sluice servers` lists it. Times are those of the database's clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ServerStatus {
    /// At which the others reach it.
    pub url: String,
    /// The release of Sluice that it runs.
    pub release: String,
    pub state: ServerState,
    pub started_ms: u64,
    /// When it last wrote down that it is there.
    pub seen_ms: u64,
    /// Since when it leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leads_since_ms: Option<u64>,
    /// Changes of leases that it had not read when it last said so.
    pub behind: u64,
    /// It had not read the latest change of something else, such as a quota or a token.
    pub settings_behind: bool,
    /// It gives this answer.
    pub answers: bool,
}

/// All servers that share the database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Servers {
    /// The number of the leadership: it grows with every server that takes the lead.
    pub leadership: u64,
    /// The database's clock.
    pub now_ms: u64,
    pub items: Vec<ServerStatus>,
}

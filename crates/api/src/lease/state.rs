//! States of a lease, and filters by them.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum LeaseState {
    /// Waits for room.
    Queued,
    /// Has a place; its program has not come to the node yet.
    Granted,
    /// Its node has it.
    Running,
    /// To make room for others: its grace time runs.
    Preempting,
    Ended,
}

/// Which leases are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum StateFilter {
    /// In any state but ended.
    Open,
    Queued,
    Granted,
    Running,
    Preempting,
    Ended,
}

impl StateFilter {
    pub const ALL: [StateFilter; 6] = [
        StateFilter::Open,
        StateFilter::Queued,
        StateFilter::Granted,
        StateFilter::Running,
        StateFilter::Preempting,
        StateFilter::Ended,
    ];

    pub fn states(self) -> &'static [LeaseState] {
        use LeaseState::{Ended, Granted, Preempting, Queued, Running};
        match self {
            StateFilter::Open => &[Queued, Granted, Running, Preempting],
            StateFilter::Queued => &[Queued],
            StateFilter::Granted => &[Granted],
            StateFilter::Running => &[Running],
            StateFilter::Preempting => &[Preempting],
            StateFilter::Ended => &[Ended],
        }
    }

    pub fn name(self) -> &'static str {
        match self.states() {
            [state] => state.name(),
            _ => "open",
        }
    }
}

impl std::str::FromStr for StateFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<StateFilter, String> {
        let names = StateFilter::ALL.map(StateFilter::name).join(", ");
        let found = StateFilter::ALL.into_iter().find(|filter| filter.name() == text);
        found.ok_or_else(|| format!("{text:?} is none of {names}"))
    }
}

impl LeaseState {
    pub fn name(self) -> &'static str {
        match self {
            LeaseState::Queued => "queued",
            LeaseState::Granted => "granted",
            LeaseState::Running => "running",
            LeaseState::Preempting => "preempting",
            LeaseState::Ended => "ended",
        }
    }

    /// Whether it holds a part of a GPU.
    pub fn holds(self) -> bool {
        matches!(self, LeaseState::Granted | LeaseState::Running | LeaseState::Preempting)
    }
}

//! What a node that has joined a server knows of that, for the next program of its daemon.
//!
//! Usage records are not among it: they are on the disk.

use serde::{Deserialize, Serialize};
use sluice_api::node::{Join, Joined};

use super::claims::{Claims, SavedClaims};
use super::{Membership, Reported};

/// As what a node is known to its server.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Enrolled {
    pub(super) join: Join,
    pub(super) joined: Joined,
}

impl std::fmt::Debug for Enrolled {
    /// Without the token.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Enrolled {{ node: {} }}", self.joined.node)
    }
}

/// A [`Membership`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedMembership {
    enrolled: Enrolled,
    rest: Rest,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rest {
    reported: Reported,
    claims: SavedClaims,
}

impl SavedMembership {
    pub(super) fn parts(self) -> (Enrolled, Rest) {
        (self.enrolled, self.rest)
    }
}

impl Membership {
    /// The server knows the node as this.
    pub(super) fn enrolled(&self, join: &Join, joined: &Joined) {
        self.lock().enrolled = Some(Enrolled { join: join.clone(), joined: joined.clone() });
    }

    /// Nothing is recorded from now on. An error says why what was recorded would be lost.
    pub(crate) fn save(&self) -> Result<SavedMembership, String> {
        let mut state = self.lock();
        state.journal.save();
        if !state.journal.is_saved() {
            return Err("the disk does not take what leases have used, which waits in memory".into());
        }
        let enrolled = state.enrolled.clone().ok_or("the node has not joined its server yet")?;
        let rest = Rest { reported: state.reported, claims: state.claims.save() };
        Ok(SavedMembership { enrolled, rest })
    }

    pub(super) fn restore(&self, saved: Rest) {
        let mut state = self.lock();
        (state.reported, state.claims) = (saved.reported, Claims::restored(saved.claims));
    }
}

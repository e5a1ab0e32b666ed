//! Which grants a node takes: good ones, once each.

use std::collections::BTreeMap;

use sluice_api::grant::{Grant, GrantError};
use sluice_api::lease::LeaseId;

use super::journal::JournalFull;

/// Why a grant is not honoured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ClaimRefusal {
    #[error(transparent)]
    Grant(#[from] GrantError),
    #[error("the grant of lease {0} has been claimed already, or a later one has")]
    Claimed(LeaseId),
    #[error(transparent)]
    Journal(#[from] JournalFull),
}

/// The grants that have been claimed and could be claimed again.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// Of each task of each lease the latest attempt, how often it had been ordered to move, and
    /// when the grant expires.
    claimed: BTreeMap<(LeaseId, u32), ((u32, u32), u64)>,
}

/// A [`Claims`], for the next program of this daemon.
pub(super) type SavedClaims = Vec<((LeaseId, u32), ((u32, u32), u64))>;

impl Claims {
    pub(super) fn save(&self) -> SavedClaims {
        self.claimed.iter().map(|(task, claimed)| (*task, *claimed)).collect()
    }

    pub(super) fn restored(saved: SavedClaims) -> Claims {
        Claims { claimed: saved.into_iter().collect() }
    }

    /// Takes a grant that was found to be good.
    pub(super) fn claim(&mut self, grant: &Grant, now_ms: u64) -> Result<(), ClaimRefusal> {
        // It may have expired since, and one that has expired is not remembered.
        if let Some(late_ms) = now_ms.checked_sub(grant.expires_at_ms) {
            return Err(GrantError::Expired(late_ms / 1000).into());
        }
        self.claimed.retain(|_, (_, expires_at_ms)| *expires_at_ms >= now_ms);
        let (task, place) = ((grant.lease, grant.task), (grant.attempt, grant.moves));
        if self.claimed.get(&task).is_some_and(|(claimed, _)| *claimed >= place) {
            return Err(ClaimRefusal::Claimed(grant.lease));
        }
        self.claimed.insert(task, (place, grant.expires_at_ms));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_is_good_for_one_claim() {
        let grant = |lease, attempt, expires_at_ms| Grant {
            lease,
            attempt,
            task: 0,
            node: 1,
            tenant: "acme".parse().unwrap(),
            tier: Default::default(),
            pool: "default".into(),
            gpus: vec![0],
            share_ppm: 1,
            promised_ppm: sluice_api::GPU_PPM,
            memory: 1,
            hard_cap: false,
            limit_ppm: None,
            suspended: false,
            version: 0,
            moves: 0,
            promise: None,
            expires_at_ms,
        };
        let mut claims = Claims::default();
        let first = grant(5, 1, 100);
        assert_eq!(claims.claim(&first, 10), Ok(()));
        assert_eq!(claims.claim(&first, 10), Err(ClaimRefusal::Claimed(5)));
        assert!(claims.claim(&grant(5, 2, 100), 10).is_ok());
        assert_eq!(claims.claim(&first, 10), Err(ClaimRefusal::Claimed(5)));
        let moved_back = Grant { moves: 2, ..grant(5, 2, 100) };
        assert!(claims.claim(&moved_back, 10).is_ok(), "the same attempt comes back from another node");
        assert_eq!(claims.claim(&moved_back, 10), Err(ClaimRefusal::Claimed(5)));
        let other_task = Grant { task: 1, ..grant(5, 1, 100) };
        assert!(claims.claim(&other_task, 10).is_ok(), "each task claims its own");
        assert!(claims.claim(&grant(6, 1, 300), 200).is_ok());
        assert_eq!(claims.claimed.len(), 1, "what has expired is forgotten");
        assert_eq!(claims.claim(&first, 200), Err(GrantError::Expired(0).into()), "and not taken again");
    }
}

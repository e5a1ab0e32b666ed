//! Which grants a node takes: good ones, once each.

use std::collections::BTreeMap;

use sluice_api::grant::{Grant, GrantError, Verifier};
use sluice_api::lease::LeaseId;
use sluice_api::node::NodeId;

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
#[derive(Debug)]
pub(super) struct Claims {
    verifier: Verifier,
    node: NodeId,
    /// Latest attempt of each task of each lease, and when its grant expires.
    claimed: BTreeMap<(LeaseId, u32), (u32, u64)>,
}

impl Claims {
    pub(super) fn new(verifier: Verifier, node: NodeId) -> Claims {
        Claims { verifier, node, claimed: BTreeMap::new() }
    }

    pub(super) fn claim(&mut self, text: &str, now_ms: u64) -> Result<Grant, ClaimRefusal> {
        let grant = self.verifier.check(text, self.node, now_ms)?;
        self.claimed.retain(|_, (_, expires_at_ms)| *expires_at_ms >= now_ms);
        let task = (grant.lease, grant.task);
        if self.claimed.get(&task).is_some_and(|(attempt, _)| *attempt >= grant.attempt) {
            return Err(ClaimRefusal::Claimed(grant.lease));
        }
        self.claimed.insert(task, (grant.attempt, grant.expires_at_ms));
        Ok(grant)
    }
}

#[cfg(test)]
mod tests {
    use sluice_api::grant::Signer;

    use super::*;

    #[test]
    fn a_grant_is_good_for_one_claim() {
        let signer = Signer::new([7; 32]);
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
            memory: 1,
            hard_cap: false,
            expires_at_ms,
        };
        let mut claims = Claims::new(signer.verifier(), 1);
        let first = signer.sign(&grant(5, 1, 100));
        assert_eq!(claims.claim(&first, 10), Ok(grant(5, 1, 100)));
        assert_eq!(claims.claim(&first, 10), Err(ClaimRefusal::Claimed(5)));
        assert!(claims.claim(&signer.sign(&grant(5, 2, 100)), 10).is_ok());
        assert_eq!(claims.claim(&first, 10), Err(ClaimRefusal::Claimed(5)));
        let other_task = signer.sign(&Grant { task: 1, ..grant(5, 1, 100) });
        assert!(claims.claim(&other_task, 10).is_ok(), "each task claims its own");
        assert_eq!(claims.claim(&first, 200), Err(GrantError::Expired(0).into()));
        assert!(claims.claim(&signer.sign(&grant(6, 1, 300)), 200).is_ok());
        assert_eq!(claims.claimed.len(), 1, "what has expired is forgotten");
    }
}

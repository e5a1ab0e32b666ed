//! Leases that have gone to another node, where their clients and holders are sent, or into a
//! checkpoint: then these ask again until it is restored.

use std::collections::VecDeque;

use sluice_wire::address::Endpoint;
use sluice_wire::control::{Control, LeaseMoved, LeaseStored, SessionMoved};
use sluice_wire::handshake::{LeaseToken, Resume, SessionSecret};

use crate::registry::same;

/// Most of them that a node remembers, the last ones.
const MOVED_MAX: usize = 4096;

/// A lease and its session, and where they are now.
#[derive(Clone, Debug)]
pub(crate) struct Moved {
    pub(super) token: LeaseToken,
    /// The session's number here.
    pub(super) session: u64,
    /// Numbers that it had here before.
    pub(super) formers: Vec<u64>,
    pub(super) secret: SessionSecret,
    pub(crate) to: Whereabouts,
}

/// Where a lease is that was here.
#[derive(Clone, Debug)]
pub(crate) enum Whereabouts {
    Node {
        node: Endpoint,
        /// The session's number there.
        session: u64,
    },
    Checkpoint,
}

impl Moved {
    /// Whether its client may know it by this number.
    fn was(&self, session: u64) -> bool {
        self.session == session || self.formers.contains(&session)
    }

    /// The answer to the holder of the lease.
    pub(crate) fn for_holder(&self) -> Control {
        match &self.to {
            Whereabouts::Node { node, .. } => LeaseMoved { node: node.to_string() }.into(),
            Whereabouts::Checkpoint => LeaseStored {}.into(),
        }
    }

    /// The answer to the session's client.
    pub(crate) fn for_client(&self) -> Control {
        match self.to {
            Whereabouts::Node { ref node, session } => {
                SessionMoved { node: node.to_string(), session }.into()
            }
            Whereabouts::Checkpoint => LeaseStored {}.into(),
        }
    }
}

#[derive(Debug, Default)]
pub(in crate::registry) struct MovedLeases(VecDeque<Moved>);

impl MovedLeases {
    pub(super) fn note(&mut self, moved: Moved) {
        self.forget(&moved.token);
        if self.0.len() == MOVED_MAX {
            self.0.pop_front();
        }
        self.0.push_back(moved);
    }

    /// A lease is here, or about to be.
    pub(super) fn forget(&mut self, token: &LeaseToken) {
        self.0.retain(|moved| !same(&moved.token.0, &token.0));
    }

    pub(in crate::registry) fn of_token(&self, token: &LeaseToken) -> Option<&Moved> {
        self.0.iter().find(|moved| same(&moved.token.0, &token.0))
    }

    /// The numbers here of a session that is in a checkpoint.
    pub(super) fn formers(&self, secret: &SessionSecret) -> Vec<u64> {
        let is_stored = |moved: &&Moved| matches!(moved.to, Whereabouts::Checkpoint);
        let mut stored = self.0.iter().filter(is_stored);
        let moved = stored.find(|moved| same(&moved.secret.0, &secret.0));
        moved.map_or_else(Vec::new, |moved| [&moved.formers[..], &[moved.session]].concat())
    }

    pub(in crate::registry) fn of_session(&self, resume: &Resume) -> Option<&Moved> {
        let is_it = |moved: &&Moved| moved.was(resume.session) && same(&moved.secret.0, &resume.secret.0);
        self.0.iter().find(is_it)
    }
}

#[cfg(test)]
mod tests {
    use sluice_wire::handshake::Stripe;

    use super::*;

    fn moved(number: u8, there: u64) -> Moved {
        Moved {
            token: LeaseToken([number; 32]),
            session: u64::from(number),
            formers: vec![100],
            secret: SessionSecret([number; 32]),
            to: Whereabouts::Node { node: Endpoint::Tcp("127.0.0.1:1".into()), session: there },
        }
    }

    #[test]
    fn a_lease_is_where_it_has_gone_last() {
        let mut all = MovedLeases::default();
        all.note(moved(1, 10));
        all.note(moved(2, 20));
        all.note(moved(1, 11));
        let is_at = |moved: &Moved| matches!(moved.to, Whereabouts::Node { session: 11, .. });
        assert!(all.of_token(&LeaseToken([1; 32])).is_some_and(is_at));
        all.forget(&LeaseToken([1; 32]));
        assert!(all.of_token(&LeaseToken([1; 32])).is_none());
        assert!(all.of_token(&LeaseToken([2; 32])).is_some());
    }

    #[test]
    fn a_session_is_sent_on_only_with_its_secret() {
        let mut all = MovedLeases::default();
        all.note(moved(1, 10));
        let resume = |session, secret| Resume {
            session,
            secret: SessionSecret([secret; 32]),
            attempt: 1,
            received: 0,
            stripe: Stripe::ONLY,
        };
        assert!(all.of_session(&resume(1, 1)).is_some());
        assert!(all.of_session(&resume(100, 1)).is_some(), "an earlier number");
        assert!(all.of_session(&resume(1, 2)).is_none());
        assert!(all.of_session(&resume(2, 1)).is_none());
    }
}

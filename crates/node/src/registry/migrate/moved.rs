//! Leases that have gone to another node, where their clients and holders are sent, or into a
//! checkpoint: then these ask again until it is restored.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use sluice_wire::address::Endpoint;
use sluice_wire::control::{Control, LeaseMoved, LeaseStored, SessionMoved};
use sluice_wire::handshake::{LeaseToken, Resume, SessionSecret};

use crate::registry::same;

/// Most of them that a node remembers of each kind, the last ones.
const MOVED_MAX: usize = 4096;

/// A lease and its session, and where they are now.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Moved {
    #[serde(with = "crate::upgrade::with::wire")]
    pub(super) token: LeaseToken,
    /// The session's number here.
    pub(super) session: u64,
    /// Numbers that it had here before.
    pub(super) formers: Vec<u64>,
    #[serde(with = "crate::upgrade::with::wire")]
    pub(super) secret: SessionSecret,
    pub(crate) to: Whereabouts,
    /// It was in a checkpoint: a restore says where it is now.
    pub(super) is_restorable: bool,
}

/// Where a lease is that was here.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Whereabouts {
    Node {
        #[serde(with = "crate::upgrade::with::text")]
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

/// Each kind pushes out only its own.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(in crate::registry) struct MovedLeases {
    /// These have gone to another node.
    gone: VecDeque<Moved>,
    stored: VecDeque<Moved>,
    /// Nothing is known here of these but what a restore says.
    told: VecDeque<Moved>,
}

impl MovedLeases {
    /// A lease of this node is there from now on.
    pub(super) fn note(&mut self, moved: Moved) {
        self.forget(&moved.token);
        match moved.to {
            Whereabouts::Node { .. } => push(&mut self.gone, moved),
            Whereabouts::Checkpoint => push(&mut self.stored, moved),
        }
    }

    /// A restore says where a lease is. The answer is whether it can be that one's.
    pub(super) fn note_restored(&mut self, moved: Moved) -> bool {
        let Some(known) = self.of_token(&moved.token) else {
            push(&mut self.told, moved);
            return true;
        };
        let is_it = known.was(moved.session) && same(&known.secret.0, &moved.secret.0);
        if !is_it || !known.is_restorable {
            return false;
        }
        let moved = Moved { to: moved.to, ..known.clone() };
        match self.told.iter_mut().find(|told| same(&told.token.0, &moved.token.0)) {
            Some(told) => *told = moved,
            None => self.note(moved),
        }
        true
    }

    /// A lease is here, or about to be.
    pub(super) fn forget(&mut self, token: &LeaseToken) {
        for kind in [&mut self.gone, &mut self.stored, &mut self.told] {
            kind.retain(|moved| !same(&moved.token.0, &token.0));
        }
    }

    fn all(&self) -> impl Iterator<Item = &Moved> {
        self.gone.iter().chain(&self.stored).chain(&self.told)
    }

    pub(in crate::registry) fn of_token(&self, token: &LeaseToken) -> Option<&Moved> {
        self.all().find(|moved| same(&moved.token.0, &token.0))
    }

    /// The numbers here of a session that comes back.
    pub(super) fn formers(&self, secret: &SessionSecret) -> Vec<u64> {
        let moved = self.all().find(|moved| same(&moved.secret.0, &secret.0));
        moved.map_or_else(Vec::new, |moved| [&moved.formers[..], &[moved.session]].concat())
    }

    pub(in crate::registry) fn of_session(&self, resume: &Resume) -> Option<&Moved> {
        let is_it = |moved: &&Moved| moved.was(resume.session) && same(&moved.secret.0, &resume.secret.0);
        self.all().find(is_it)
    }
}

fn push(kind: &mut VecDeque<Moved>, moved: Moved) {
    if kind.len() == MOVED_MAX {
        kind.pop_front();
    }
    kind.push_back(moved);
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
            is_restorable: false,
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

    #[test]
    fn a_restore_says_only_of_a_stored_lease_where_it_is() {
        let mut all = MovedLeases::default();
        all.note(moved(1, 10));
        assert!(!all.note_restored(moved(1, 11)), "it has gone to another node");
        let stored = Moved { to: Whereabouts::Checkpoint, is_restorable: true, ..moved(2, 0) };
        all.note(stored.clone());
        assert!(!all.note_restored(Moved { secret: SessionSecret([9; 32]), ..moved(2, 20) }));
        assert!(!all.note_restored(Moved { session: 9, ..moved(2, 20) }));
        assert!(matches!(all.of_token(&stored.token).unwrap().to, Whereabouts::Checkpoint));
        assert!(all.note_restored(moved(2, 20)));
        // One that failed after that is made again.
        assert!(all.note_restored(moved(2, 21)));
        let is_at = |to: &Whereabouts| matches!(to, Whereabouts::Node { session: 21, .. });
        assert!(is_at(&all.of_token(&stored.token).unwrap().to));
    }

    #[test]
    fn what_a_node_is_told_pushes_out_nothing_that_it_knows() {
        let mut all = MovedLeases::default();
        all.note(moved(1, 10));
        all.note(Moved { to: Whereabouts::Checkpoint, is_restorable: true, ..moved(2, 0) });
        for number in 0..MOVED_MAX as u64 + 5 {
            let mut token = [7; 32];
            token[..8].copy_from_slice(&number.to_le_bytes());
            assert!(all.note_restored(Moved { token: LeaseToken(token), ..moved(7, 1) }));
        }
        assert_eq!(all.told.len(), MOVED_MAX);
        assert!(all.of_token(&LeaseToken([1; 32])).is_some());
        assert!(all.of_token(&LeaseToken([2; 32])).is_some());
    }

    #[test]
    fn a_session_that_comes_back_is_known_by_its_numbers() {
        let mut all = MovedLeases::default();
        all.note(moved(1, 10));
        assert_eq!(all.formers(&SessionSecret([1; 32])), [100, 1], "it had gone to another node");
        assert!(all.formers(&SessionSecret([2; 32])).is_empty());
    }
}

//! Leases that have gone to another node, where their clients and holders are sent.

use std::collections::VecDeque;

use sluice_wire::address::Endpoint;
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
    pub(super) secret: SessionSecret,
    pub(crate) node: Endpoint,
    /// The session's number there.
    pub(crate) there: u64,
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

    pub(in crate::registry) fn of_session(&self, resume: &Resume) -> Option<&Moved> {
        let is_it =
            |moved: &&Moved| moved.session == resume.session && same(&moved.secret.0, &resume.secret.0);
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
            secret: SessionSecret([number; 32]),
            node: Endpoint::Tcp("127.0.0.1:1".into()),
            there,
        }
    }

    #[test]
    fn a_lease_is_where_it_has_gone_last() {
        let mut all = MovedLeases::default();
        all.note(moved(1, 10));
        all.note(moved(2, 20));
        all.note(moved(1, 11));
        assert_eq!(all.of_token(&LeaseToken([1; 32])).map(|moved| moved.there), Some(11));
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
        assert!(all.of_session(&resume(1, 2)).is_none());
        assert!(all.of_session(&resume(2, 1)).is_none());
    }
}

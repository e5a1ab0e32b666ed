//! Connections between the workers of two nodes, for copies between their memories.
//!
//! The client lets its session on one node be connected to, and has its session on another node
//! connect: only it knows the token. The daemons make the connection, and have no part in it after
//! that. Where a node connects to is the client's word, within what the operator allows
//! ([`Peering`]): what answers there gets a greeting and the token, and has to know that to be
//! asked for more.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sluice_control::{Cause, connect_peer};
use sluice_transport::Stream;
use sluice_transport::tls::Keys;
use sluice_wire::address::Endpoint;
use sluice_wire::handshake::{Peer, PeerToken};
use sluice_worker_link::link::{Packet, PacketSocket};

use super::{Registry, random, same};
use crate::peering::Peering;
use crate::upgrade::Gate;

/// Most tokens of a session that were not shown yet; the oldest goes first.
const TOKENS_MAX: usize = 64;
/// A token that was not shown for this time is invalid: longer than a node takes to connect.
const TOKEN_LIFE: Duration = Duration::from_secs(30);
/// Most connections that this node makes for one session at a time.
const CONNECTING_MAX: u32 = 4;

/// What sessions of other nodes may show that want to copy here; each token is good for one
/// connection.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct PeerTokens(Vec<Offered>);

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Offered {
    #[serde(with = "crate::upgrade::with::wire")]
    token: PeerToken,
    #[serde(with = "crate::upgrade::with::moment")]
    since: Instant,
}

impl PeerTokens {
    fn offer(&mut self, token: PeerToken, now: Instant) {
        self.expire(now);
        if self.0.len() == TOKENS_MAX {
            self.0.remove(0);
        }
        self.0.push(Offered { token, since: now });
    }

    /// Takes a token that was shown; false if it is none.
    fn take(&mut self, shown: &PeerToken, now: Instant) -> bool {
        self.expire(now);
        // Each is compared whole: the time says nothing about how much was right.
        let at = self.0.iter().rposition(|offered| same(&offered.token.0, &shown.0));
        at.map(|at| self.0.remove(at)).is_some()
    }

    fn expire(&mut self, now: Instant) {
        self.0.retain(|offered| now.saturating_duration_since(offered.since) < TOKEN_LIFE);
    }
}

impl Registry {
    /// Draws a token for a session.
    pub(super) fn offer_peer(&self, session: u64) -> Packet {
        let token = random();
        if let Some(record) = self.lock().sessions.get_mut(&session) {
            record.peer_tokens.offer(PeerToken(token), Instant::now());
        }
        Packet::PeerOffered { session, token }
    }

    /// Gives a socket, and what protects it, to the worker whose token it has shown; false if there
    /// is no such worker.
    pub(crate) fn admit_peer(&self, peer: &Peer, socket: BorrowedFd<'_>, tls: Option<Keys>) -> bool {
        let mut ledger = self.lock();
        let Some(record) = ledger.sessions.get_mut(&peer.session) else { return false };
        record.peer_tokens.take(&peer.token, Instant::now())
            && record.link.send_fd(&Packet::Peer { tls }, socket).is_ok()
    }
}

/// Connects to other nodes for one worker.
#[derive(Debug, Default)]
pub(super) struct Connecting {
    /// Held by each thread that does.
    threads: Arc<()>,
}

impl Connecting {
    /// In a thread of its own: the worker's other questions continue meanwhile.
    pub(super) fn connect(
        &self,
        (peering, steps): (&Arc<Peering>, &Arc<Gate>),
        link: &Arc<PacketSocket>,
        number: u64,
        node: &str,
        peer: Peer,
    ) {
        let refuse = |reason: String| {
            // A worker that is gone needs no answer.
            let _ = link.send_now(&Packet::PeerConnected { number, tls: None, refused: Some(reason) });
        };
        let node: Endpoint = match node.parse() {
            Ok(node) => node,
            Err(error) => return refuse(format!("{error}")),
        };
        if Arc::strong_count(&self.threads) > CONNECTING_MAX as usize {
            return refuse(format!("its node makes {CONNECTING_MAX} connections for the session already"));
        }
        let (answering, busy, peering) = (Arc::clone(link), Arc::clone(&self.threads), Arc::clone(peering));
        // The worker waits for the answer.
        let step = steps.enter_late("a connection to another node");
        let made = std::thread::Builder::new().name("peer".into()).spawn(move || {
            let _step = step;
            answer(&peering, &answering, number, &node, peer);
            drop(busy);
        });
        if let Err(error) = made {
            refuse(format!("its node cannot start a thread: {error}"));
        }
    }
}

fn answer(peering: &Peering, link: &PacketSocket, number: u64, node: &Endpoint, peer: Peer) {
    let _ = match connect(peering, node, peer) {
        Ok((tls, stream)) => {
            let packet = Packet::PeerConnected { number, tls, refused: None };
            link.send_fd(&packet, stream.as_fd())
        }
        Err(reason) => {
            let reason = super::one_line(&reason);
            link.send_now(&Packet::PeerConnected { number, tls: None, refused: Some(reason) })
        }
    };
}

/// At the first of the allowed addresses that answers; a token is shown to one node only.
fn connect(peering: &Peering, node: &Endpoint, peer: Peer) -> Result<(Option<Keys>, Stream), String> {
    let allowed = peering.allowed(node).map_err(|refusal| format!("{}: {refusal}", node.place()))?;
    let mut failure = String::new();
    for node in allowed {
        match connect_peer(&node, peer) {
            Ok(stream) => return Ok((stream.keys().map_err(|error| error.to_string())?, stream)),
            Err(error) if matches!(error.cause, Cause::Refused(_)) => return Err(error.to_string()),
            Err(error) => failure = error.to_string(),
        }
    }
    Err(failure)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(number: u8) -> PeerToken {
        PeerToken([number; 32])
    }

    #[test]
    fn a_token_is_good_for_one_connection() {
        let (mut tokens, now) = (PeerTokens::default(), Instant::now());
        tokens.offer(token(1), now);
        tokens.offer(token(2), now);
        assert!(!tokens.take(&token(3), now));
        assert!(tokens.take(&token(1), now));
        assert!(!tokens.take(&token(1), now), "it has been shown");
        assert!(tokens.take(&token(2), now));
        assert!(!tokens.take(&PeerToken([0; 32]), now), "there is none left");
    }

    #[test]
    fn a_token_that_nobody_shows_goes() {
        let (mut tokens, now) = (PeerTokens::default(), Instant::now());
        tokens.offer(token(1), now);
        tokens.offer(token(2), now + TOKEN_LIFE / 2);
        assert!(!tokens.take(&token(1), now + TOKEN_LIFE));
        assert!(tokens.take(&token(2), now + TOKEN_LIFE));
    }

    #[test]
    fn tokens_are_bounded() {
        let (mut tokens, now) = (PeerTokens::default(), Instant::now());
        for number in 0..=TOKENS_MAX as u8 {
            tokens.offer(token(number), now);
        }
        assert_eq!(tokens.0.len(), TOKENS_MAX);
        assert!(!tokens.take(&token(0), now), "the oldest has gone");
        assert!(tokens.take(&token(TOKENS_MAX as u8), now));
    }
}

//! What a worker asks of the daemon while it serves its session, and the answers.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use sluice_wire::handshake::{Peer, PeerToken};
use sluice_worker_link::link::{Packet, PacketSocket};

use super::peers::Connecting;
use super::{Registry, cuts, one_line};
use crate::arbiter::Use;
use crate::lease::Books;

impl Registry {
    /// Answers a worker until it is gone, or its client is. The answer is why, where that is known.
    pub(super) fn serve_worker(&self, lease: u64, session: u64, link: &Arc<PacketSocket>) -> Option<String> {
        let (mut why, connecting) = (None, Connecting::default());
        // Until when the client is waited for, and how its end is seen.
        let mut away: Option<(Instant, Option<Arc<OwnedFd>>)> = self.awaited_client(session);
        loop {
            if let Some((until, watch)) = &away
                && !self.await_client(link, *until, watch.as_deref())
            {
                if self.is_unclaimed(session) {
                    // The connection on which it was asked for says when no child will come.
                    away = Some(self.client_parted(session));
                    continue;
                }
                let linger = self.linger.as_secs();
                let is_known = Instant::now() < *until;
                return Some(match is_known {
                    true => "its client has ended".to_owned(),
                    false => {
                        format!("its connection was cut, and its client did not come back within {linger} s")
                    }
                });
            }
            cuts::wait([Some(link.as_fd()), None], cuts::FOR_EVER);
            let _step = self.gates.packets.enter("a worker's question");
            let (packet, file) = match link.receive_fd::<Packet>() {
                Ok(Some(received)) => received,
                Ok(None) => return why,
                Err(error) => {
                    tracing::error!(
                        session,
                        lease,
                        "session {session} ended: its worker sent nonsense: {error}"
                    );
                    return why;
                }
            };
            let answered = match packet {
                Packet::Want { gpu } => {
                    self.turns.want(session, gpu);
                    Ok(())
                }
                Packet::Done { gpu, turn_ns, used_ns, more } => {
                    self.turns.done(session, gpu, Use { turn_ns, used_ns }, more);
                    Ok(())
                }
                Packet::Take { gpu, bytes, .. } if self.overcommits => {
                    self.take_planned(lease, session, gpu, bytes);
                    Ok(())
                }
                Packet::TakeAtOnce { gpu, bytes } => {
                    let taken = self.take_at_once(lease, session, gpu, bytes);
                    link.send_now(&Packet::TakenAtOnce(taken))
                }
                Packet::Take { gpu, bytes, reserve } => {
                    let taken =
                        self.account(lease, |books| books.take(lease, session, gpu as usize, bytes, reserve));
                    // Before the answer, so that the client receives it first.
                    let filled =
                        if taken.is_some() { self.fill_reserve(lease, session, gpu, link) } else { Ok(()) };
                    filled.and_then(|()| link.send_now(&Packet::Taken(taken)))
                }
                Packet::Spend { gpu, bytes } => {
                    self.account(lease, |books| books.spend(lease, session, gpu as usize, bytes));
                    self.fill_reserve(lease, session, gpu, link)
                }
                Packet::GiveBack { gpu, bytes } => {
                    self.give_back(lease, session, gpu, bytes);
                    Ok(())
                }
                Packet::CardFull { gpu, free } => {
                    self.card_is_full(lease, session, gpu, free);
                    Ok(())
                }
                Packet::QueryUsed { gpu } => link.send_now(&Packet::Used(self.used(lease, gpu))),
                Packet::Export(export) => {
                    link.send_now(&Packet::Exported(self.export(lease, session, export, file)))
                }
                Packet::Import(token) => self.import(lease, session, token, link),
                Packet::DropExport(token) => {
                    self.drop_export(lease, session, token);
                    Ok(())
                }
                Packet::PeerOffer => link.send_now(&self.offer_peer(session)),
                Packet::PeerConnect { number, node, session: other, token } => {
                    let peer = Peer { session: other, token: PeerToken(token) };
                    connecting.connect((&self.peering, &self.gates.steps), link, number, &node, peer);
                    Ok(())
                }
                Packet::Failed(text) => {
                    let text = one_line(&text);
                    tracing::warn!(session, lease, "session {session} ended: {text}");
                    why = Some(text);
                    Ok(())
                }
                Packet::Hangs(text) => {
                    let text = one_line(&text);
                    tracing::warn!(session, lease, "session {session} ended: {text}");
                    self.driver_hangs(lease, &text);
                    // It may not get to its end by itself, and so say nothing more.
                    return Some(text);
                }
                Packet::Parted => {
                    away = Some(self.client_parted(session));
                    Ok(())
                }
                Packet::Resumed => {
                    away = None;
                    self.client_resumed(session);
                    Ok(())
                }
                Packet::Ready => {
                    self.session_is_up(session);
                    Ok(())
                }
                Packet::Paused => {
                    self.session_stands(session);
                    Ok(())
                }
                Packet::Movable { reasons } => {
                    self.session_is_movable(session, reasons);
                    Ok(())
                }
                Packet::NotDeparted { reason } => {
                    self.session_stays(session, reason);
                    Ok(())
                }
                moved @ (Packet::MovedOut { .. }
                | Packet::NotMovedOut { .. }
                | Packet::MovedIn { .. }
                | Packet::NotMovedIn { .. }
                | Packet::Wanted) => {
                    self.memory_of(session, moved);
                    Ok(())
                }
                Packet::Taken(_)
                | Packet::TakenAtOnce(_)
                | Packet::Notice(_)
                | Packet::Reserved { .. }
                | Packet::Resized { .. }
                | Packet::Used(_)
                | Packet::Exported(_)
                | Packet::Imported(_)
                | Packet::PeerOffered { .. }
                | Packet::PeerConnected { .. }
                | Packet::Peer { .. }
                | Packet::Grant { .. }
                | Packet::Press { .. }
                | Packet::Recall { .. }
                | Packet::MoveOut { .. }
                | Packet::MoveIn { .. }
                | Packet::Arrived { .. }
                | Packet::Depart { .. }
                | Packet::Stay
                | Packet::AskMovable
                | Packet::Arrive { .. }
                | Packet::NodeEnds
                | Packet::Resume { .. } => Ok(()),
            };
            if answered.is_err() {
                return why;
            }
        }
    }

    /// Changes the accounts, after which more of a lease's memory may be used.
    fn account<R>(&self, lease: u64, change: impl FnOnce(&mut Books) -> R) -> R {
        let mut ledger = self.lock();
        let changed = change(&mut ledger.books);
        ledger.note_peak(lease);
        changed
    }

    /// Keeps more for a session, if there is more, and tells its worker.
    pub(super) fn fill_reserve(
        &self,
        lease: u64,
        session: u64,
        gpu: u32,
        link: &PacketSocket,
    ) -> io::Result<()> {
        let bytes = self.lock().books.fill_reserve(lease, session, gpu as usize);
        if bytes == 0 { Ok(()) } else { link.send_now(&Packet::Reserved { gpu, bytes }) }
    }

    pub(super) fn used(&self, lease: u64, gpu: u32) -> u64 {
        self.lock().books.lease(lease).map_or(0, |l| l.used(gpu as usize))
    }
}

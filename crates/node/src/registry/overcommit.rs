//! GPUs whose memory is leased beyond what they have: the planners decide who has memory there, and
//! this module carries that out.
//!
//! A worker that asks for memory gets its answer when its planner grants it. The thread of the
//! daemon that serves the worker does not wait meanwhile: it serves moves and further questions,
//! and the answer is sent by the thread on which the planner decides. Everything here happens with
//! the ledger locked, and only sends packets without waiting.
//!
//! Sessions of premium leases, and of leases on several GPUs, are *fixed*: they wait for memory
//! like others, but theirs leaves the GPU only when they are suspended.

use std::sync::PoisonError;
use std::time::Duration;

use sluice_worker_link::link::Packet;

use super::residence::Residence;
use super::{Ledger, Registry};
use crate::arbiter::SessionKey;
use crate::lease::bytes_text;
use crate::residency::{Action, Planner};

/// How often the planner looks at who has work, while sessions wait for memory.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The longest pause while none waits.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// What changes in the counters of a session that has work.
pub(super) type Activity = (u64, u64, u64, u64);

impl Registry {
    /// Takes memory for a session, which is notified when it has it.
    pub(super) fn take_planned(&self, lease: u64, session: u64, gpu: u32, bytes: u64) {
        let mut ledger = self.lock();
        let place = gpu as usize;
        let taken = ledger.books.take(lease, session, place, bytes, 0).is_some();
        let planned = ledger.gpus(lease).get(place).copied().filter(|_| taken);
        let Some(on) = planned else { return self.answer(&mut ledger, session, &Packet::Taken(None)) };
        ledger.books.await_bytes(lease, session, place, bytes);
        if let Some(planner) = ledger.planners.get_mut(on) {
            planner.request(SessionKey(session), bytes);
        }
        self.plan(&mut ledger, on);
    }

    /// Takes memory that a driver needs now and that cannot leave; false if the lease has too
    /// little.
    pub(super) fn take_at_once(&self, lease: u64, session: u64, gpu: u32, bytes: u64) -> bool {
        let mut ledger = self.lock();
        let is_taken = ledger.books.take(lease, session, gpu as usize, bytes, 0).is_some();
        ledger.note_peak(lease);
        if is_taken && let Some(on) = ledger.planner_of(lease, gpu) {
            ledger.planners[on].pin(SessionKey(session), bytes);
            self.plan(&mut ledger, on);
        }
        is_taken
    }

    /// Gives back memory of a session.
    pub(super) fn give_back(&self, lease: u64, session: u64, gpu: u32, bytes: u64) {
        let mut ledger = self.lock();
        ledger.books.give_back(lease, session, gpu as usize, bytes);
        if let Some(on) = ledger.planner_of(lease, gpu) {
            ledger.planners[on].give_back(SessionKey(session), bytes);
            self.plan(&mut ledger, on);
        }
    }

    /// The driver has refused memory that a session has been granted, with `free` bytes left.
    pub(super) fn card_is_full(&self, lease: u64, session: u64, gpu: u32, free: u64) {
        let mut ledger = self.lock();
        if let Some(on) = ledger.planner_of(lease, gpu) {
            ledger.planners[on].card_is_full(self.now_ns(), SessionKey(session), free);
            self.plan(&mut ledger, on);
        }
    }

    /// A session has ended, and what it had is free.
    pub(super) fn leave_planners(&self, ledger: &mut Ledger, lease: u64, session: u64) {
        for gpu in ledger.gpus(lease) {
            if let Some(planner) = ledger.planners.get_mut(gpu) {
                planner.leave(SessionKey(session));
                self.plan(ledger, gpu);
            }
        }
    }

    /// Has the planner of a session decide, if it has one.
    pub(super) fn plan_session(&self, ledger: &mut Ledger, session: u64) {
        if let Some(gpu) = ledger.planned_on(session) {
            self.plan(ledger, gpu);
        }
    }

    /// As [`Registry::settle`], for a session that the planner moves.
    pub(super) fn settle_planned(&self, ledger: &mut Ledger, session: u64) {
        let Some(record) = ledger.sessions.get(&session).filter(|record| record.is_up) else { return };
        let (Some(gpu), churns) = (record.planned_on, record.churns) else { return };
        let suspended = ledger.session_is_suspended(record);
        if let Some(planner) = ledger.planners.get_mut(gpu) {
            planner.set_suspended(SessionKey(session), suspended);
            if churns {
                planner.evict(SessionKey(session));
            }
        }
        self.plan(ledger, gpu);
    }

    /// Has the planner of a GPU decide, and carries that out.
    pub(super) fn plan(&self, ledger: &mut Ledger, gpu: usize) {
        let now_ns = self.now_ns();
        ledger.look_at_activity(gpu, now_ns);
        let Some(planner) = ledger.planners.get_mut(gpu) else { return };
        let decision = planner.step(now_ns);
        let has_waiting = planner.has_waiting();
        ledger.plan_at_ns[gpu] = decision.wake_at_ns;
        for action in decision.actions {
            self.act(ledger, gpu, action);
        }
        if has_waiting {
            self.plan_changed.notify_one();
        }
    }

    fn act(&self, ledger: &mut Ledger, gpu: usize, action: Action) {
        match action {
            Action::MoveOut(SessionKey(session)) => {
                let room = self.swap_room(ledger, session);
                if let Some(record) = ledger.sessions.get_mut(&session) {
                    (record.residence, record.churns) = (Residence::leaving(room), false);
                }
                // Without time slices its work would not finish.
                self.turns.set_suspended(session, false);
                self.move_out(ledger, session, room);
            }
            Action::MoveIn(SessionKey(session)) => {
                // With a file, host memory is for more sessions than it has room for at a time.
                let keeps = !self.swap.has_file();
                if let Some(record) = ledger.sessions.get_mut(&session) {
                    record.residence = Residence::returning();
                }
                self.answer(ledger, session, &Packet::MoveIn { keeps });
            }
            Action::Grant(SessionKey(session)) => {
                if let Some((lease, place)) = ledger.place_of(session, gpu) {
                    ledger.books.arrived(lease, session, place);
                    ledger.note_peak(lease);
                }
                self.answer(ledger, session, &Packet::Taken(Some(0)));
            }
            Action::Refuse(SessionKey(session)) => {
                if let Some((lease, place)) = ledger.place_of(session, gpu) {
                    let bytes = ledger.books.arrived(lease, session, place);
                    ledger.books.give_back(lease, session, place, bytes);
                    let text = ledger.no_room_text(session, gpu, bytes);
                    self.answer(ledger, session, &Packet::Notice(text));
                }
                self.answer(ledger, session, &Packet::Taken(None));
            }
        }
    }

    /// Sends a packet to a worker. One that has stopped reading would wait for an answer that it
    /// never gets, so it ends.
    fn answer(&self, ledger: &mut Ledger, session: u64, packet: &Packet) {
        let Some(record) = ledger.sessions.get_mut(&session) else { return };
        if record.link.send_now(packet).is_err() {
            // An error means that it has ended by itself.
            let _ = record.worker.kill();
        }
    }

    /// Ends time slices on memory when their time has come; never returns.
    pub(crate) fn keep_residency(&self) -> ! {
        let mut ledger = self.lock();
        loop {
            for gpu in 0..ledger.planners.len() {
                self.plan(&mut ledger, gpu);
            }
            let has_waiting = ledger.planners.iter().any(Planner::has_waiting);
            let now_ns = self.now_ns();
            let at_ns = ledger.plan_at_ns.iter().flatten().min();
            let until = at_ns.map_or(PAUSE_MAX, |at| Duration::from_nanos(at.saturating_sub(now_ns)));
            let pause = if has_waiting { until.min(LOOK_EVERY) } else { until };
            let waited = self.plan_changed.wait_timeout(ledger, pause);
            ledger = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Time by the clock that is never set.
    pub(super) fn now_ns(&self) -> u64 {
        u64::try_from(self.clock.running().as_nanos()).unwrap_or(u64::MAX)
    }
}

impl Ledger {
    /// A session begins. One that is suspended has nothing on the GPU.
    pub(super) fn join_planners(&mut self, lease: u64, session: u64, now_ns: u64) {
        let Some(entry) = self.books.lease(lease) else { return };
        let (gpus, is_fixed, suspended) = (entry.gpus.clone(), entry.is_fixed(), entry.suspended);
        for &gpu in &gpus {
            let Some(planner) = self.planners.get_mut(gpu) else { return };
            planner.join(now_ns, SessionKey(session), is_fixed);
            if suspended && !is_fixed {
                planner.begin_suspended(SessionKey(session));
            }
        }
        if let Some(record) = self.sessions.get_mut(&session) {
            record.planned_on = gpus.first().copied().filter(|_| !is_fixed);
        }
    }

    /// The GPU whose planner moves a session's memory, if one does.
    pub(super) fn planned_on(&self, session: u64) -> Option<usize> {
        self.sessions.get(&session)?.planned_on
    }

    /// The planner of a lease's GPU, where memory is overcommitted.
    fn planner_of(&self, lease: u64, gpu: u32) -> Option<usize> {
        let on = self.books.lease(lease)?.gpus.get(gpu as usize).copied()?;
        (on < self.planners.len()).then_some(on)
    }

    /// The lease of a session, and the place in it of a node's GPU.
    fn place_of(&self, session: u64, gpu: usize) -> Option<(u64, usize)> {
        let lease = self.sessions.get(&session)?.lease;
        Some((lease, self.gpus(lease).iter().position(|&of_lease| of_lease == gpu)?))
    }

    /// What a session exports cannot leave any more, and is the lease's.
    pub(super) fn plan_export(&mut self, lease: u64, session: u64, gpu: u32, bytes: u64, now_ns: u64) {
        if let Some(on) = self.planner_of(lease, gpu) {
            // Leases and sessions are counted in one sequence.
            self.planners[on].join_shared(now_ns, SessionKey(lease));
            self.planners[on].give_back(SessionKey(session), bytes);
            self.planners[on].pin(SessionKey(lease), bytes);
        }
    }

    /// What a lease's sessions shared is free.
    pub(super) fn plan_unshare(&mut self, lease: u64, gpu: u32, bytes: u64) {
        if let Some(on) = self.planner_of(lease, gpu) {
            self.planners[on].give_back(SessionKey(lease), bytes);
        }
    }

    /// Tells a session's planner what its worker says of the session's memory.
    pub(super) fn tell_planner(&mut self, session: u64, said: &Packet, now_ns: u64) {
        let lacked_file = self.lacked_file(session);
        let planner = self.planned_on(session).and_then(|gpu| self.planners.get_mut(gpu));
        let (Some(planner), key) = (planner, SessionKey(session)) else { return };
        match said {
            Packet::MovedOut { stays, .. } => planner.moved_out(now_ns, key, stays.iter().sum()),
            Packet::NotMovedOut { .. } => planner.not_moved_out(now_ns, key, lacked_file),
            Packet::MovedIn { .. } => planner.moved_in(now_ns, key),
            Packet::NotMovedIn { .. } => planner.not_moved_in(now_ns, key),
            Packet::Wanted => planner.want(key),
            _ => {}
        }
    }

    /// Sees which sessions on a GPU have done something since the last look, while others wait for
    /// them, and how much of theirs can leave.
    fn look_at_activity(&mut self, gpu: usize, now_ns: u64) {
        let Some(planner) = self.planners.get_mut(gpu).filter(|planner| planner.has_waiting()) else {
            return;
        };
        for (&session, record) in &mut self.sessions {
            let (key, counts) = (SessionKey(session), record.counters.read());
            if record.planned_on != Some(gpu) || !planner.is_present(key) {
                continue;
            }
            let activity = (counts.commands, counts.gpu_ns, counts.bytes_in, counts.bytes_out);
            if std::mem::replace(&mut record.activity, activity) == activity {
                planner.idle(now_ns, key);
            } else {
                planner.want(key);
            }
            let used = self.books.lease(record.lease).map_or(0, |lease| lease.used_by(session));
            planner.limit_pinned(key, used.saturating_sub(counts.movable));
        }
    }

    /// Why a session cannot have memory that its lease has.
    fn no_room_text(&self, session: u64, gpu: usize, bytes: u64) -> String {
        let planner = self.planners.get(gpu);
        let others = planner.into_iter().flat_map(Planner::immovable);
        let of = others.filter(|(key, _)| key.0 != session).map(|(key, bytes)| {
            let record = self.sessions.get(&key.0);
            let whose = record.map_or_else(
                || format!("is shared by the sessions of lease {}", key.0),
                |record| format!("is of session {}{}", key.0, record.residence.kept_text()),
            );
            format!("{} {whose}", bytes_text(bytes))
        });
        let outside = planner.map_or(0, Planner::used_by_others);
        let outside = (outside > 0)
            .then(|| format!("{} are used by drivers and programs without a lease", bytes_text(outside)));
        format!(
            "GPU {gpu} has no room for {} more, though the lease has: memory that cannot leave the GPU is in the way ({})",
            bytes_text(bytes),
            of.chain(outside).collect::<Vec<_>>().join("; ")
        )
    }

    /// Whether a session waits for memory on its GPU.
    pub(super) fn awaits_memory(&self, session: u64) -> bool {
        let planner = self.planned_on(session).and_then(|gpu| self.planners.get(gpu));
        planner.is_some_and(|planner| planner.is_waiting(SessionKey(session)))
    }
}

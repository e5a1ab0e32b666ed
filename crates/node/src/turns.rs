//! The I/O shell around the arbiters: one per GPU, a clock, and the links to the workers.
//!
//! A hand-over is one packet to a worker (recall), one back (done) and one to the next worker
//! (grant): about two wake-ups, measured against turns of milliseconds.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sluice_worker_link::link::{Packet, PacketSocket};

use crate::arbiter::{Action, Arbiter, LeaseKey, Pace, SessionKey, Use, Waits, Weight};

/// GPU time of all GPUs of a node.
#[derive(Debug)]
pub(crate) struct Turns {
    state: Mutex<State>,
    earlier_wake: Condvar,
    started: Instant,
}

#[derive(Debug, Default)]
struct State {
    gpus: Vec<Gpu>,
    members: BTreeMap<SessionKey, Member>,
}

#[derive(Debug)]
struct Gpu {
    arbiter: Arbiter,
    wake_at_ns: Option<u64>,
}

#[derive(Debug)]
struct Member {
    link: Arc<PacketSocket>,
    /// The node's GPU for each GPU of the lease.
    gpus: Vec<usize>,
}

impl Turns {
    /// Turns on `gpus` GPUs. [`Turns::keep_time`] has to run on a thread of its own.
    pub(crate) fn new(gpus: usize, pace: Pace) -> Turns {
        let gpus = (0..gpus).map(|_| Gpu { arbiter: Arbiter::new(pace), wake_at_ns: None }).collect();
        Turns {
            state: Mutex::new(State { gpus, members: BTreeMap::new() }),
            earlier_wake: Condvar::new(),
            started: Instant::now(),
        }
    }

    /// Lets a session compete on the GPUs of its lease.
    pub(crate) fn join(
        &self,
        session: u64,
        lease: u64,
        gpus: &[usize],
        weight: Weight,
        link: Arc<PacketSocket>,
    ) {
        let now_ns = self.now_ns();
        let mut state = self.lock();
        for &gpu in gpus {
            state.gpus[gpu].arbiter.join(now_ns, SessionKey(session), LeaseKey(lease), weight);
        }
        state.members.insert(SessionKey(session), Member { link, gpus: gpus.to_vec() });
    }

    /// Changes the weight of a lease on these GPUs, in force at once.
    pub(crate) fn set_weight(&self, lease: u64, gpus: &[usize], weight: Weight) {
        let now_ns = self.now_ns();
        let mut state = self.lock();
        for &gpu in gpus {
            state.gpus[gpu].arbiter.set_weight(now_ns, LeaseKey(lease), weight);
            self.step(&mut state, gpu, now_ns);
        }
    }

    /// Gives a session no GPU time, or lets it compete again.
    pub(crate) fn set_suspended(&self, session: u64, suspended: bool) {
        let now_ns = self.now_ns();
        let mut state = self.lock();
        let Some(gpus) = state.members.get(&SessionKey(session)).map(|member| member.gpus.clone()) else {
            return;
        };
        for gpu in gpus {
            let arbiter = &mut state.gpus[gpu].arbiter;
            if suspended {
                arbiter.suspend(now_ns, SessionKey(session));
            } else {
                arbiter.resume(now_ns, SessionKey(session));
            }
            self.step(&mut state, gpu, now_ns);
        }
    }

    /// A worker has work and no turn on the lease's `gpu`th GPU.
    pub(crate) fn want(&self, session: u64, gpu: u32) {
        self.change(session, gpu, |arbiter, now_ns| arbiter.want(now_ns, SessionKey(session)));
    }

    /// A worker gives its turn back.
    pub(crate) fn done(&self, session: u64, gpu: u32, turn: Use, more: bool) {
        self.change(session, gpu, |arbiter, now_ns| {
            arbiter.done(now_ns, SessionKey(session), turn, more);
        });
    }

    /// A session is over.
    pub(crate) fn leave(&self, session: u64) {
        let now_ns = self.now_ns();
        let mut state = self.lock();
        let Some(member) = state.members.remove(&SessionKey(session)) else { return };
        for gpu in member.gpus {
            state.gpus[gpu].arbiter.leave(now_ns, SessionKey(session));
            self.step(&mut state, gpu, now_ns);
        }
    }

    /// A lease is over or has left these GPUs. The answer is how long its sessions waited for them.
    pub(crate) fn forget(&self, lease: u64, gpus: &[usize]) -> Waits {
        let now_ns = self.now_ns();
        let mut state = self.lock();
        let mut waits = Waits::default();
        for &gpu in gpus {
            waits = waits.and(state.gpus[gpu].arbiter.forget(now_ns, LeaseKey(lease)));
            self.step(&mut state, gpu, now_ns);
        }
        waits
    }

    /// For how long the sessions of each lease have had work and waited for a GPU, over all GPUs
    /// that it has now.
    pub(crate) fn waits(&self) -> BTreeMap<u64, Waits> {
        let now_ns = self.now_ns();
        let mut all: BTreeMap<u64, Waits> = BTreeMap::new();
        for (LeaseKey(lease), waits) in self.lock().gpus.iter().flat_map(|gpu| gpu.arbiter.waits(now_ns)) {
            let of_lease = all.entry(lease).or_default();
            *of_lease = of_lease.and(waits);
        }
        all
    }

    /// Ends quanta when their time has come; never returns.
    pub(crate) fn keep_time(&self) -> ! {
        let mut state = self.lock();
        loop {
            let now_ns = self.now_ns();
            for gpu in 0..state.gpus.len() {
                if state.gpus[gpu].wake_at_ns.is_some_and(|at| at <= now_ns) {
                    self.step(&mut state, gpu, now_ns);
                }
            }
            let next_ns = state.gpus.iter().filter_map(|g| g.wake_at_ns).min();
            state = match next_ns {
                None => self.earlier_wake.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(at) => {
                    let pause = Duration::from_nanos(at.saturating_sub(self.now_ns()));
                    let waited = self.earlier_wake.wait_timeout(state, pause);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Stops all turns as they are, until the answer is dropped.
    pub(crate) fn stop(&self) -> Stopped<'_> {
        Stopped { began: self.started, state: self.lock() }
    }

    fn change(&self, session: u64, gpu: u32, change: impl FnOnce(&mut Arbiter, u64)) {
        let now_ns = self.now_ns();
        let mut state = self.lock();
        let member = state.members.get(&SessionKey(session));
        let Some(&gpu) = member.and_then(|m| m.gpus.get(gpu as usize)) else { return };
        change(&mut state.gpus[gpu].arbiter, now_ns);
        self.step(&mut state, gpu, now_ns);
    }

    fn step(&self, state: &mut State, gpu: usize, now_ns: u64) {
        let decision = state.gpus[gpu].arbiter.step(now_ns);
        for action in decision.actions {
            let (Action::Grant(session) | Action::Press(session) | Action::Recall(session)) = action;
            let Some(member) = state.members.get(&session) else { continue };
            let Some(place) = member.gpus.iter().position(|&g| g == gpu) else { continue };
            let place = place as u32;
            let packet = match action {
                Action::Grant(_) => Packet::Grant { gpu: place },
                Action::Press(_) => Packet::Press { gpu: place },
                Action::Recall(_) => Packet::Recall { gpu: place },
            };
            // A worker that cannot be reached is about to be reaped, which frees its turn.
            let _ = member.link.send_now(&packet);
        }
        state.gpus[gpu].wake_at_ns = decision.wake_at_ns;
        if decision.wake_at_ns.is_some() {
            self.earlier_wake.notify_one();
        }
    }

    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Turns of which nothing changes.
#[derive(Debug)]
pub(crate) struct Stopped<'t> {
    began: Instant,
    state: MutexGuard<'t, State>,
}

/// All turns, for the next program of this daemon.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedTurns {
    /// When their clock began.
    #[serde(with = "crate::upgrade::with::moment")]
    began: Instant,
    gpus: Vec<Arbiter>,
    /// The sessions that compete, with the node's GPU for each GPU of the lease.
    members: Vec<(u64, Vec<usize>)>,
}

impl Stopped<'_> {
    pub(crate) fn save(&self) -> SavedTurns {
        let member = |(&SessionKey(session), member): (&SessionKey, &Member)| (session, member.gpus.clone());
        SavedTurns {
            began: self.began,
            gpus: self.state.gpus.iter().map(|gpu| gpu.arbiter.clone()).collect(),
            members: self.state.members.iter().map(member).collect(),
        }
    }
}

impl SavedTurns {
    pub(crate) fn gpus(&self) -> usize {
        self.gpus.len()
    }

    /// Whether each session that competes does so on GPUs that there are.
    pub(crate) fn is_sound(&self) -> bool {
        self.members.iter().flat_map(|(_, gpus)| gpus).all(|&gpu| gpu < self.gpus.len())
    }

    /// The turns continue. A session without a link has ended while they were saved.
    pub(crate) fn restored(self, link: impl Fn(u64) -> Option<Arc<PacketSocket>>) -> Turns {
        let at_once = |arbiter| Gpu { arbiter, wake_at_ns: Some(0) };
        let mut state =
            State { gpus: self.gpus.into_iter().map(at_once).collect(), members: BTreeMap::new() };
        let turns = Turns { state: Mutex::default(), earlier_wake: Condvar::new(), started: self.began };
        let now_ns = turns.now_ns();
        for (session, gpus) in self.members {
            match link(session) {
                Some(link) => _ = state.members.insert(SessionKey(session), Member { link, gpus }),
                None => gpus.iter().for_each(|&gpu| {
                    state.gpus[gpu].arbiter.leave(now_ns, SessionKey(session));
                }),
            }
        }
        Turns { state: Mutex::new(state), ..turns }
    }
}

//! Who may use one GPU now: deficit-weighted turns over the sessions that compete for it.
//!
//! The core is pure. Events come in with the time they happened at, decisions come out; there is no
//! clock and no I/O, so the tests below drive it through hours of simulated time. `turns.rs` is the
//! shell around it.
//!
//! ```text
//!          want                 grant                 recall
//! Idle ------------> Waiting ------------> Holding ----------> Recalled --(overrun)--> Overrunning
//!  ^                    ^                     |                    |                        |
//!  |                    +---- done, more -----+--------------------+------------------------+
//!  +------------------------- done, no more --+--------------------+------------------------+
//! ```
//!
//! A lease has a *virtual time*: the GPU time its sessions have used, divided by its share. The
//! turn goes to the waiting lease with the least virtual time, so debt and credit carry over from
//! turn to turn by themselves, and a lease that waits alone gets everything (work-conserving). The
//! holder may get one quantum ahead of those that wait, so a backlogged 90/10 pair hands over
//! rarely, and a session that waits for each of its short kernels gets the turn back soon, as long
//! as it is owed time.
//!
//! A program that computes without pause still leaves the GPU for moments: its client is woken
//! late, its next batch is not queued yet. So a lease that is back within `gap_ns` is owed what the
//! others used meanwhile, up to `credit_ns`, and makes up for it. One that was away for longer was
//! idle, and being idle earns no more credit than a quantum. However much a lease is owed, those
//! that wait for it run for a moment every `patience_ns`, or as often as their share asks for.
//!
//! Shares may add up to more than the GPU, where its pool is overcommitted: they are weights, so
//! all get their proportion.
//!
//! A limit is a token bucket on top: GPU time flows in at the rate of the limit, at most
//! `credit_ns` is kept. What flows out is the GPU time that was used, so a limit is exact by the
//! measure by which it is billed. A hard cap is a limit that equals the share. A lease that has
//! emptied its bucket runs again after a quantum if others have work. While it is alone it runs
//! once per `period_ns`, as under the bandwidth control of Linux's CPU scheduler: each turn costs
//! its start, which fewer and longer turns make small beside what the limit grants.
//!
//! A *premium* lease has a second bucket, which fills at the rate of its share. While there is
//! something in it the lease gets the turn as soon as it has work, and keeps it: what has the turn
//! is recalled at once, however little it has had. So the latency of a service within its share is
//! that of an idle GPU and one hand-over, and what the others lose is bounded by the share and by
//! what the bucket holds, the share of `burst_ns`. With an empty bucket it competes like all
//! others.
//!
//! Share and limit may change while sessions of the lease run ([`Arbiter::set_weight`]). What the
//! lease is ahead or behind in GPU time stays the same, so neither a raise nor a cut is an
//! advantage for what has been used already.
//!
//! Where a lease is *promised* that its sessions wait no longer than a time, the waits are counted
//! that the promise is about: those for a turn that the lease gets while it is within its share, by
//! the bucket that precedence has, and within its limit. Of such a wait counts what comes after the
//! lease was within its share, and after the last turn of another session of the same lease: what
//! keeps a session waiting until then is the lease itself.
//!
//! A *suspended* session is idle as far as the others are concerned, whatever work it has: a turn
//! that it holds is recalled, and it gets none until it is resumed.

mod buckets;
mod decisions;
mod pace;
mod promised;
mod waits;
mod weight;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use self::buckets::Precedence;

pub use self::pace::Pace;
pub use self::waits::{PromisedWaits, WAIT_BOUNDS_NS, Waits};
pub use self::weight::Weight;

/// Parts in a million: the unit of shares.
pub const PPM: u64 = 1_000_000;

/// Which lease a session draws its share from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LeaseKey(pub u64);

/// One session on one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionKey(pub u64);

/// What a turn comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// Its time: what shares are parts of, since the others waited for this time.
    pub turn_ns: u64,
    /// GPU time that was used, by the driver's measure where it has one: what limits are about. A
    /// turn's start and end use none.
    pub used_ns: u64,
}

impl Use {
    /// A turn that counts as used from its beginning to its end.
    pub fn whole(turn_ns: u64) -> Use {
        Use { turn_ns, used_ns: turn_ns }
    }
}

/// What the shell has to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// This session has the turn.
    Grant(SessionKey),
    /// Another waits: this holder gives the turn back as soon as it has no work, without being
    /// recalled.
    Press(SessionKey),
    /// This session must stop at the next opportunity and report what it used.
    Recall(SessionKey),
}

/// The answer to [`Arbiter::step`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// In this order.
    pub actions: Vec<Action>,
    /// Call `step` again at this time at the latest, in nanoseconds.
    pub wake_at_ns: Option<u64>,
}

/// The turns on one GPU.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Arbiter {
    pace: Pace,
    leases: BTreeMap<LeaseKey, Lease>,
    sessions: BTreeMap<SessionKey, Session>,
    holder: Option<SessionKey>,
    /// Virtual time of the lease that was charged last: where newcomers start.
    virtual_now: i128,
    /// What one quantum costs that lease, in virtual time.
    virtual_quantum: i128,
    /// Orders waiting sessions of one lease among themselves.
    arrivals: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Lease {
    weight: Weight,
    /// Nanoseconds of a whole GPU owed to it so far.
    virtual_time: i128,
    /// When it came back, until its virtual time is settled: when the holder reports what it used.
    arrival: Option<Arrival>,
    /// When its last session stopped working, if none works now.
    left_at_ns: Option<u64>,
    tokens_ns: i64,
    refilled_at_ns: u64,
    /// Its last turn ended because the bucket was empty.
    exhausted: bool,
    /// What is left of a premium lease's precedence, and of any lease's share.
    precedence: Precedence,
    /// When a session of it gave its turn back last.
    turn_ended_ns: u64,
    /// Of its sessions for the GPU, without those that are not over.
    waits: Waits,
}

/// A lease comes back after it had no work.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Arrival {
    at_ns: u64,
    /// It was away for a moment only.
    after_gap: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Session {
    lease: LeaseKey,
    state: State,
    /// From the last recall to its report.
    recall_ns: u64,
    /// While it is suspended: whether it has work, which it will want the turn for.
    suspended: Option<Work>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Work {
    None,
    Some,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum State {
    Idle,
    Waiting { arrival: u64, since_ns: u64 },
    Holding { since_ns: u64, pressed: bool },
    Recalled { since_ns: u64, at_ns: u64 },
    Overrunning { since_ns: u64 },
}

impl State {
    fn running_since(self) -> Option<u64> {
        match self {
            State::Holding { since_ns, .. }
            | State::Recalled { since_ns, .. }
            | State::Overrunning { since_ns } => Some(since_ns),
            State::Idle | State::Waiting { .. } => None,
        }
    }
}

impl Arbiter {
    /// A GPU without use.
    pub fn new(pace: Pace) -> Arbiter {
        Arbiter {
            pace,
            leases: BTreeMap::new(),
            sessions: BTreeMap::new(),
            holder: None,
            virtual_now: 0,
            virtual_quantum: 0,
            arrivals: 0,
        }
    }

    /// A session begins. Sessions of one lease share its weight, which is the one that was named
    /// last.
    pub fn join(&mut self, now_ns: u64, session: SessionKey, lease: LeaseKey, weight: Weight) {
        self.set_weight(now_ns, lease, weight);
        let full_bucket = self.pace.quantum_ns as i64;
        self.leases.entry(lease).or_insert(Lease {
            weight,
            virtual_time: 0,
            arrival: None,
            left_at_ns: None,
            tokens_ns: full_bucket,
            refilled_at_ns: now_ns,
            exhausted: false,
            precedence: Precedence::full(now_ns, weight, self.pace.burst_ns),
            turn_ended_ns: now_ns,
            waits: Waits::default(),
        });
        let idle = Session { lease, state: State::Idle, recall_ns: 0, suspended: None };
        self.sessions.entry(session).or_insert(idle);
    }

    /// Gives a session no turn any more; the next decision recalls the one that it holds.
    /// Suspending twice is harmless.
    pub fn suspend(&mut self, now_ns: u64, session: SessionKey) {
        let Some(entry) = self.sessions.get_mut(&session).filter(|s| s.suspended.is_none()) else { return };
        let waits = matches!(entry.state, State::Waiting { .. });
        entry.suspended = Some(if waits { Work::Some } else { Work::None });
        let (lease, waited_ns) = (entry.lease, entry.waited_ns(now_ns));
        if waits {
            entry.state = State::Idle;
            let left = !self.works(lease, session);
            if let Some(lease) = self.leases.get_mut(&lease) {
                lease.waits.add(waited_ns);
                if left {
                    (lease.arrival, lease.left_at_ns) = (None, Some(now_ns));
                }
            }
        }
    }

    /// Lets a suspended session compete again. It comes back as one that was idle: nothing is owed
    /// to it.
    pub fn resume(&mut self, now_ns: u64, session: SessionKey) {
        let Some(entry) = self.sessions.get_mut(&session) else { return };
        if entry.suspended.take() == Some(Work::Some) {
            self.want(now_ns, session);
        }
    }

    /// Changes the weight of a lease that is known here, in force from the next decision on. A
    /// lease that is not known gets its weight from [`Arbiter::join`].
    pub fn set_weight(&mut self, now_ns: u64, key: LeaseKey, weight: Weight) {
        let holds_since =
            self.sessions.values().filter(|s| s.lease == key).find_map(|s| s.state.running_since());
        let Some(lease) = self.leases.get_mut(&key).filter(|lease| lease.weight != weight) else { return };
        let ahead_ns = lease.weight.signed_real_ns(lease.virtual_time - self.virtual_now);
        lease.tokens_ns = if lease.weight.is_limited() {
            lease.tokens_at(now_ns)
        } else {
            // Without a limit no account was kept: the turn so far does not count, and a full
            // quantum is to be had.
            let used_ns = holds_since.map_or(0, |since_ns| now_ns.saturating_sub(since_ns));
            i64::try_from(self.pace.quantum_ns.saturating_add(used_ns)).unwrap_or(i64::MAX)
        };
        lease.refilled_at_ns = lease.refilled_at_ns.max(now_ns);
        // What was used beyond the share stays used, unless the lease becomes a premium one.
        lease.precedence = match weight.premium && !lease.weight.premium {
            true => Precedence::full(now_ns, weight, self.pace.burst_ns),
            false => lease.precedence.refilled(now_ns, lease.weight, self.pace.burst_ns),
        };
        lease.weight = weight;
        lease.virtual_time = self.virtual_now + weight.virtual_of(ahead_ns);
    }

    /// A session has ended, however it ended. A turn that it held is charged up to now and free
    /// again. Its lease keeps its debt until [`Arbiter::forget`].
    pub fn leave(&mut self, now_ns: u64, session: SessionKey) {
        let Some(state) = self.sessions.get(&session).map(|s| s.state) else { return };
        if let Some(since_ns) = state.running_since() {
            self.done(now_ns, session, Use::whole(now_ns.saturating_sub(since_ns)), false);
        }
        let Some(session) = self.sessions.remove(&session) else { return };
        let quantum_ns = self.pace.quantum_ns;
        let is_busy = self.has_turn(session.lease);
        if let Some(lease) = self.leases.get_mut(&session.lease) {
            lease.waits.add(session.waited_ns(now_ns));
            if let State::Waiting { since_ns, .. } = session.state
                && !is_busy
            {
                lease.end_without_turn(since_ns, now_ns, quantum_ns);
            }
        }
    }

    /// For how long the sessions of each lease have had work and waited for this GPU.
    pub fn waits(&self, now_ns: u64) -> BTreeMap<LeaseKey, Waits> {
        let mut waits: BTreeMap<_, _> = self.leases.iter().map(|(&key, lease)| (key, lease.waits)).collect();
        for (_, session) in self.waiting() {
            waits.entry(session.lease).or_default().add(session.waited_ns(now_ns));
        }
        waits
    }

    /// Counts the wait of a session that is about to have the turn.
    fn end_wait(&mut self, now_ns: u64, session: SessionKey) {
        let Some(session) = self.sessions.get(&session) else { return };
        let quantum_ns = self.pace.quantum_ns;
        let is_busy = self.has_turn(session.lease);
        if let (Some(lease), State::Waiting { since_ns, .. }) =
            (self.leases.get_mut(&session.lease), session.state)
        {
            lease.waits.count(session.waited_ns(now_ns));
            if !is_busy {
                lease.end_with_turn(since_ns, now_ns, quantum_ns);
            }
        }
    }

    /// Whether a session of a lease has the GPU: what others of it wait for then is its own work,
    /// about which nothing is promised.
    fn has_turn(&self, lease: LeaseKey) -> bool {
        self.sessions
            .values()
            .any(|session| session.lease == lease && session.state.running_since().is_some())
    }

    /// A lease has ended or left this GPU: nothing of it is remembered. The answer is how long its
    /// sessions waited.
    pub fn forget(&mut self, now_ns: u64, lease: LeaseKey) -> Waits {
        let left: Vec<_> = self.sessions.iter().filter(|(_, s)| s.lease == lease).map(|(&k, _)| k).collect();
        for session in left {
            self.leave(now_ns, session);
        }
        self.leases.remove(&lease).map_or_else(Waits::default, |lease| lease.waits)
    }

    /// A session has work and no turn. Asking twice is harmless.
    pub fn want(&mut self, now_ns: u64, session: SessionKey) {
        let arrival = self.next_arrival();
        let Some(entry) = self.sessions.get_mut(&session) else { return };
        if entry.state != State::Idle {
            return;
        }
        if let Some(work) = &mut entry.suspended {
            *work = Work::Some;
            return;
        }
        entry.state = State::Waiting { arrival, since_ns: now_ns };
        let lease = entry.lease;
        if !self.works(lease, session)
            && let Some(lease) = self.leases.get_mut(&lease)
        {
            let after_gap =
                lease.left_at_ns.is_some_and(|left_ns| now_ns.saturating_sub(left_ns) <= self.pace.gap_ns);
            if !after_gap {
                lease.refill(now_ns, self.pace.quantum_ns);
            }
            lease.arrival = Some(Arrival { at_ns: now_ns, after_gap });
            lease.left_at_ns = None;
        }
        if self.holder.is_none() {
            self.settle_arrivals();
        }
    }

    /// A session gives its turn back; `more` when it still has work.
    pub fn done(&mut self, now_ns: u64, session: SessionKey, turn: Use, more: bool) {
        let arrival = self.next_arrival();
        let Some(entry) = self.sessions.get_mut(&session) else { return };
        match entry.state {
            State::Idle | State::Waiting { .. } => return,
            State::Holding { .. } => {}
            State::Recalled { at_ns, .. } => entry.recall_ns = now_ns.saturating_sub(at_ns),
            State::Overrunning { since_ns } => entry.recall_ns = now_ns.saturating_sub(since_ns),
        }
        if let Some(work) = &mut entry.suspended {
            *work = if more { Work::Some } else { Work::None };
        }
        let more = more && entry.suspended.is_none();
        entry.state = if more { State::Waiting { arrival, since_ns: now_ns } } else { State::Idle };
        let lease = entry.lease;
        let left = !more && !self.works(lease, session);
        if let Some(lease) = self.leases.get_mut(&lease) {
            lease.spend(now_ns, turn, self.pace.credit_ns);
            lease.precedence.spend(now_ns, turn.turn_ns, lease.weight, self.pace.burst_ns);
            lease.virtual_time += lease.weight.virtual_ns(turn.turn_ns);
            lease.turn_ended_ns = now_ns;
            lease.arrival = None;
            lease.left_at_ns = left.then_some(now_ns);
            self.virtual_now = lease.virtual_time;
            self.virtual_quantum = lease.weight.virtual_ns(self.pace.quantum_ns);
        }
        if self.holder == Some(session) {
            self.holder = None;
        }
        self.settle_arrivals();
    }

    /// Newcomers start no further behind those who ran than their credit. A session that is away
    /// between two kernels keeps what the holder got ahead of it meanwhile.
    fn settle_arrivals(&mut self) {
        let arrivals: Vec<_> = self.leases.iter().filter_map(|(&key, l)| Some((key, l.arrival?))).collect();
        for (key, arrival) in arrivals {
            let weight = self.leases[&key].weight;
            let floor = self.virtual_now - self.credit(weight, self.virtual_quantum, arrival);
            if let Some(lease) = self.leases.get_mut(&key) {
                lease.virtual_time = lease.virtual_time.max(floor);
                lease.arrival = None;
            }
        }
    }

    /// How far in virtual time a lease that comes back may be behind a holder for whom a quantum is
    /// worth `held`: at least a quantum of its own or of the holder, whichever is more.
    fn credit(&self, weight: Weight, held: i128, arrival: Arrival) -> i128 {
        let Pace { quantum_ns, credit_ns, .. } = self.pace;
        held.max(weight.virtual_ns(if arrival.after_gap { credit_ns } else { quantum_ns }))
    }

    /// Whether any session of the lease but this one has work.
    fn works(&self, lease: LeaseKey, but: SessionKey) -> bool {
        self.sessions.iter().any(|(&k, s)| k != but && s.lease == lease && s.state != State::Idle)
    }

    fn waiting(&self) -> impl Iterator<Item = (SessionKey, &Session)> {
        self.sessions.iter().filter(|(_, s)| matches!(s.state, State::Waiting { .. })).map(|(&k, s)| (k, s))
    }

    fn set_state(&mut self, session: SessionKey, state: State) {
        if let Some(entry) = self.sessions.get_mut(&session) {
            entry.state = state;
        }
    }

    fn next_arrival(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }
}

impl Session {
    /// How long it has been waiting; 0 if it does not wait.
    fn waited_ns(&self, now_ns: u64) -> u64 {
        match self.state {
            State::Waiting { since_ns, .. } => now_ns.saturating_sub(since_ns),
            _ => 0,
        }
    }

    fn arrival(&self) -> u64 {
        match self.state {
            State::Waiting { arrival, .. } => arrival,
            _ => u64::MAX,
        }
    }
}

#[cfg(test)]
mod tests;

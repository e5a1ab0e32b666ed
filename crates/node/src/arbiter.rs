//! Who may use one GPU now: deficit-weighted turns over the sessions that compete for it.
//!
//! The core is pure. Events come in with the time they happened at, decisions come out; there is no
//! clock and no I/O, so the tests below drive it through hours of simulated time. `turns.rs` is the
//! shell around it.
//!
//! ```text
//!            want                 grant                 recall
//!   Idle ------------> Waiting ------------> Holding ----------> Recalled --(overrun)--> Overrunning
//!    ^                    ^                     |                    |                        |
//!    |                    +---- done, more -----+--------------------+------------------------+
//!    +------------------------- done, no more --+--------------------+------------------------+
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
//! `credit_ns` is kept. A hard cap is a limit that equals the share. A lease that has emptied its
//! bucket runs again after a quantum if others have work. While it is alone it runs once per
//! `period_ns`, as under the bandwidth control of Linux's CPU scheduler: each turn costs its start,
//! which fewer and longer turns make small beside what the limit grants.
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
//! A *suspended* session is idle as far as the others are concerned, whatever work it has: a turn
//! that it holds is recalled, and it gets none until it is resumed.

use std::collections::BTreeMap;

/// Parts in a million: the unit of shares.
pub const PPM: u64 = 1_000_000;

/// Which lease a session draws its share from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseKey(pub u64);

/// One session on one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionKey(pub u64);

/// What one lease may take of the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight {
    /// 1 to [`PPM`].
    pub share_ppm: u32,
    /// The most that it gets, even while no other waits: not less than the share, and [`PPM`]
    /// for no limit.
    pub limit_ppm: u32,
    /// Its work preempts that of others as long as it stays within its share.
    pub premium: bool,
}

/// How long turns last.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// How far sessions may get ahead of each other: the usual length of a turn that another
    /// waits for.
    pub quantum_ns: u64,
    /// No turn is shorter, unless its holder has no work.
    pub slice_min_ns: u64,
    /// A lease that is away for no longer than this has not stopped computing.
    pub gap_ns: u64,
    /// The most GPU time that a lease is owed for its gaps.
    pub credit_ns: u64,
    /// The longest that a session waits while others catch up.
    pub patience_ns: u64,
    /// How often a lease runs that is alone and always at its limit.
    pub period_ns: u64,
    /// For how long a premium lease may have the whole GPU at once, times its share, after it used
    /// nothing for a while.
    pub burst_ns: u64,
    /// A recalled holder that has not given the turn back after this long no longer keeps the
    /// others waiting.
    pub overrun_ns: u64,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            quantum_ns: 5_000_000,
            slice_min_ns: 500_000,
            gap_ns: 50_000_000,
            credit_ns: 200_000_000,
            patience_ns: 50_000_000,
            period_ns: 100_000_000,
            burst_ns: 2_000_000_000,
            overrun_ns: 250_000_000,
        }
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
#[derive(Debug)]
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

#[derive(Debug)]
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
    /// What is left of a premium lease's precedence.
    precedence: Precedence,
    /// Time for which its sessions had work and waited for the GPU, as far as those waits are over.
    waited_ns: u64,
}

/// The bucket of a premium lease: GPU time for which it goes before others.
#[derive(Clone, Copy, Debug)]
struct Precedence {
    /// Below zero after a turn that lasted longer.
    tokens_ns: i64,
    at_ns: u64,
    /// It was emptied, and is of no use until a quantum has flowed in: the turn would change hands
    /// for moments.
    exhausted: bool,
}

/// A lease comes back after it had no work.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    at_ns: u64,
    /// It was away for a moment only.
    after_gap: bool,
}

#[derive(Debug)]
struct Session {
    lease: LeaseKey,
    state: State,
    /// From the last recall to its report.
    recall_ns: u64,
    /// While it is suspended: whether it has work, which it will want the turn for.
    suspended: Option<Work>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    None,
    Some,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
            waited_ns: 0,
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
        if waits {
            entry.state = State::Idle;
            let lease = entry.lease;
            let left = !self.works(lease, session);
            if let Some(lease) = self.leases.get_mut(&lease).filter(|_| left) {
                (lease.arrival, lease.left_at_ns) = (None, Some(now_ns));
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
            // Without a limit nobody kept account: the turn so far does not count, and a full
            // quantum is to be had.
            let used_ns = holds_since.map_or(0, |since_ns| now_ns.saturating_sub(since_ns));
            i64::try_from(self.pace.quantum_ns.saturating_add(used_ns)).unwrap_or(i64::MAX)
        };
        lease.refilled_at_ns = lease.refilled_at_ns.max(now_ns);
        lease.precedence = match lease.weight.premium {
            true => lease.precedence.refilled(now_ns, lease.weight, self.pace.burst_ns),
            false => Precedence::full(now_ns, weight, self.pace.burst_ns),
        };
        lease.weight = weight;
        lease.virtual_time = self.virtual_now + weight.virtual_of(ahead_ns);
    }

    /// A session has ended, however it ended. A turn that it held is charged up to now and free
    /// again. Its lease keeps its debt until [`Arbiter::forget`].
    pub fn leave(&mut self, now_ns: u64, session: SessionKey) {
        let Some(state) = self.sessions.get(&session).map(|s| s.state) else { return };
        if let Some(since_ns) = state.running_since() {
            self.done(now_ns, session, now_ns.saturating_sub(since_ns), false);
        }
        self.end_wait(now_ns, session);
        self.sessions.remove(&session);
    }

    /// For how long the sessions of a lease have had work and waited for this GPU, added up over
    /// its sessions.
    pub fn waited_ns(&self, now_ns: u64, lease: LeaseKey) -> u64 {
        let past_ns = self.leases.get(&lease).map_or(0, |lease| lease.waited_ns);
        let waiting = self.waiting().filter(|(_, session)| session.lease == lease);
        waiting.map(|(_, session)| session.waited_ns(now_ns)).fold(past_ns, u64::saturating_add)
    }

    /// Counts the wait of a session that is about to leave the queue.
    fn end_wait(&mut self, now_ns: u64, session: SessionKey) {
        let Some(session) = self.sessions.get(&session) else { return };
        if let Some(lease) = self.leases.get_mut(&session.lease) {
            lease.waited_ns = lease.waited_ns.saturating_add(session.waited_ns(now_ns));
        }
    }

    /// A lease has ended: nothing of it is remembered.
    pub fn forget(&mut self, now_ns: u64, lease: LeaseKey) {
        let left: Vec<_> = self.sessions.iter().filter(|(_, s)| s.lease == lease).map(|(&k, _)| k).collect();
        for session in left {
            self.leave(now_ns, session);
        }
        self.leases.remove(&lease);
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

    /// A session gives its turn back after `used_ns` of GPU time; `more` when it still has work.
    pub fn done(&mut self, now_ns: u64, session: SessionKey, used_ns: u64, more: bool) {
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
            lease.spend(now_ns, used_ns, self.pace.credit_ns);
            lease.precedence.spend(now_ns, used_ns, lease.weight, self.pace.burst_ns);
            lease.virtual_time += lease.weight.virtual_ns(used_ns);
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

    /// What to do at `now_ns`. The shell calls it after every event and when
    /// [`Decision::wake_at_ns`] has come.
    pub fn step(&mut self, now_ns: u64) -> Decision {
        let mut decision = Decision::default();
        if let Some(holder) = self.holder {
            self.watch_holder(now_ns, holder, &mut decision);
        }
        if self.holder.is_none() {
            self.grant_next(now_ns, &mut decision);
        }
        self.press_holder(&mut decision);
        decision
    }

    /// A holder that nobody waits for keeps the turn while it idles: that saves a hand-over per
    /// kernel.
    fn press_holder(&mut self, decision: &mut Decision) {
        let Some(holder) = self.holder else { return };
        if let State::Holding { since_ns, pressed: false } = self.sessions[&holder].state
            && self.waiting().next().is_some()
        {
            self.set_state(holder, State::Holding { since_ns, pressed: true });
            decision.actions.push(Action::Press(holder));
        }
    }

    /// Recalls the holder when its time is over, gives up on it when it does not listen.
    fn watch_holder(&mut self, now_ns: u64, holder: SessionKey, decision: &mut Decision) {
        let Session { state, suspended, .. } = self.sessions[&holder];
        match state {
            State::Holding { since_ns, .. } => {
                let ends_ns = match suspended {
                    Some(_) => Some(now_ns),
                    None => self.turn_ends(since_ns, now_ns, holder),
                };
                match ends_ns {
                    Some(at) if at <= now_ns => {
                        self.set_state(holder, State::Recalled { since_ns, at_ns: now_ns });
                        decision.actions.push(Action::Recall(holder));
                        decision.wake_at_ns = Some(now_ns + self.pace.overrun_ns);
                    }
                    later => decision.wake_at_ns = later,
                }
            }
            State::Recalled { since_ns, at_ns } => {
                let patience_ends_ns = at_ns + self.pace.overrun_ns;
                if patience_ends_ns <= now_ns {
                    self.set_state(holder, State::Overrunning { since_ns });
                    self.holder = None;
                } else {
                    decision.wake_at_ns = Some(patience_ends_ns);
                }
            }
            State::Idle | State::Waiting { .. } | State::Overrunning { .. } => self.holder = None,
        }
    }

    /// When the present turn has to end, if anything wants it to.
    fn turn_ends(&self, since_ns: u64, now_ns: u64, holder: SessionKey) -> Option<u64> {
        let own = &self.leases[&self.sessions[&holder].lease];
        let capped_ns = own.exhausted_at(since_ns);
        let fair_ns = self.fair_end(since_ns, now_ns, holder);
        [capped_ns, fair_ns].into_iter().flatten().min()
    }

    /// The holder may get one quantum ahead of those that wait. One that is owed more gets the turn
    /// sooner, after `slice_min_ns` at the soonest.
    fn fair_end(&self, since_ns: u64, now_ns: u64, holder: SessionKey) -> Option<u64> {
        let Pace { quantum_ns, slice_min_ns, .. } = self.pace;
        let own_key = self.sessions[&holder].lease;
        let own = &self.leases[&own_key];
        // What the holder had used by some moment, if it was busy all the time.
        let own_at = |at_ns: u64| own.virtual_time + own.weight.virtual_ns(at_ns.saturating_sub(since_ns));
        let precedence_ends_ns = self.precedes(own, since_ns).then(|| own.precedence_ends(since_ns));
        let end_for = |waiting: &Session| {
            let lease = &self.leases[&waiting.lease];
            if waiting.lease == own_key {
                return since_ns + quantum_ns;
            }
            match (precedence_ends_ns, self.precedes(lease, now_ns)) {
                (Some(ends_ns), false) => return ends_ns,
                (None, true) => return since_ns.max(lease.runnable_at_if_limited(quantum_ns)),
                _ => {}
            }
            // As of its arrival: measured against a holder that runs on, nothing would ever be owed
            // to it.
            let owed_since = match lease.arrival {
                Some(arrival) => {
                    let credit = self.credit(lease.weight, own.weight.virtual_ns(quantum_ns), arrival);
                    lease.virtual_time.max(own_at(arrival.at_ns) - credit)
                }
                None => lease.virtual_time,
            };
            let ahead_ns = own.weight.signed_real_ns(owed_since - own.virtual_time);
            let slice_ns = (ahead_ns + i128::from(quantum_ns)).max(i128::from(slice_min_ns));
            let fair_ns = since_ns.saturating_add(u64::try_from(slice_ns).unwrap_or(u64::MAX / 2));
            let impatient_ns = self.impatient_at(waiting).max(since_ns + slice_min_ns);
            let fair_ns = fair_ns.min(impatient_ns);
            // One that has used up its cap disturbs no other until it may run.
            if lease.may_run(now_ns, quantum_ns) {
                fair_ns
            } else {
                fair_ns.max(lease.runnable_at(quantum_ns))
            }
        };
        self.waiting().map(|(_, waiting)| end_for(waiting)).min()
    }

    fn grant_next(&mut self, now_ns: u64, decision: &mut Decision) {
        let needs_ns = |session: &Session| self.needs_ns(session.lease);
        let best = self
            .waiting()
            .filter(|(_, s)| self.leases[&s.lease].may_run(now_ns, needs_ns(s)))
            .min_by_key(|(_, s)| {
                let lease = &self.leases[&s.lease];
                let is_patient = self.impatient_at(s) > now_ns;
                (!self.precedes(lease, now_ns), is_patient, lease.virtual_time, s.arrival())
            })
            .map(|(k, _)| k);
        match best {
            Some(session) => {
                let lease = self.sessions[&session].lease;
                if let Some(lease) = self.leases.get_mut(&lease) {
                    lease.refill(now_ns, self.pace.credit_ns);
                }
                self.end_wait(now_ns, session);
                self.set_state(session, State::Holding { since_ns: now_ns, pressed: false });
                self.holder = Some(session);
                decision.actions.push(Action::Grant(session));
                decision.wake_at_ns = self.turn_ends(now_ns, now_ns, session);
            }
            // All that wait have used up their limits.
            None => {
                let runnable_at = |s: &Session| self.leases[&s.lease].runnable_at(needs_ns(s));
                decision.wake_at_ns = self.waiting().map(|(_, s)| runnable_at(s)).min();
            }
        }
    }

    /// Whether a lease with work goes before leases that are not premium.
    fn precedes(&self, lease: &Lease, now_ns: u64) -> bool {
        let Pace { quantum_ns, burst_ns, .. } = self.pace;
        let left_ns = lease.precedence.refilled(now_ns, lease.weight, burst_ns).tokens_ns;
        let needs_ns = if lease.precedence.exhausted { quantum_ns } else { 1 };
        lease.weight.premium && left_ns >= needs_ns as i64
    }

    /// What has to be in the bucket of a lease before its next turn: a quantum, and for one that is
    /// alone and at its limit what flows in per period beyond what the turn itself lets flow in.
    fn needs_ns(&self, key: LeaseKey) -> u64 {
        let Pace { quantum_ns, period_ns, .. } = self.pace;
        let lease = &self.leases[&key];
        let is_alone = self.sessions.values().all(|s| s.lease == key || s.state == State::Idle);
        if !lease.exhausted || !is_alone {
            return quantum_ns;
        }
        let limit_ppm = u64::from(lease.weight.limit_ppm).min(PPM);
        let pause_ns = period_ns * (PPM - limit_ppm) / PPM;
        quantum_ns.max(pause_ns * limit_ppm / PPM)
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

    /// When a waiting session has waited long enough, one that is owed more: not before the turn
    /// that it then gets is its due, so that impatience earns it no more than its share, or than
    /// its part where all shares are more than the GPU.
    fn impatient_at(&self, waiting: &Session) -> u64 {
        let State::Waiting { since_ns, .. } = waiting.state else { return u64::MAX };
        let Pace { slice_min_ns, patience_ns, .. } = self.pace;
        let turn_ns = slice_min_ns + waiting.recall_ns;
        let whole_ns = self.leases[&waiting.lease].weight.virtual_ns(turn_ns);
        let leased_ppm: u64 = self.leases.values().map(|lease| u64::from(lease.weight.share_ppm)).sum();
        let due_ns = whole_ns * i128::from(leased_ppm.max(PPM)) / i128::from(PPM);
        let due_ns = due_ns.min(i128::from(u64::MAX / 4));
        since_ns + patience_ns.max(due_ns as u64)
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

impl Precedence {
    fn full(now_ns: u64, weight: Weight, burst_ns: u64) -> Precedence {
        Precedence { tokens_ns: weight.part_of(burst_ns), at_ns: now_ns, exhausted: false }
    }

    /// With what has flowed in until now.
    fn refilled(self, now_ns: u64, weight: Weight, burst_ns: u64) -> Precedence {
        let inflow_ns = weight.part_of(now_ns.saturating_sub(self.at_ns));
        let tokens_ns = self.tokens_ns.saturating_add(inflow_ns).min(weight.part_of(burst_ns));
        Precedence { tokens_ns, at_ns: self.at_ns.max(now_ns), ..self }
    }

    fn spend(&mut self, now_ns: u64, used_ns: u64, weight: Weight, burst_ns: u64) {
        // What flows in during a turn counts before the bucket overflows.
        let inflow_ns = weight.part_of(now_ns.saturating_sub(self.at_ns));
        let tokens_ns = self.tokens_ns.saturating_add(inflow_ns).saturating_sub_unsigned(used_ns);
        self.tokens_ns = tokens_ns.min(weight.part_of(burst_ns));
        self.at_ns = self.at_ns.max(now_ns);
        self.exhausted = self.tokens_ns <= 0;
    }
}

impl Weight {
    /// The part of a time that the share grants.
    fn part_of(self, time_ns: u64) -> i64 {
        let part_ns = i128::from(time_ns) * i128::from(self.share_ppm) / i128::from(PPM);
        i64::try_from(part_ns).unwrap_or(i64::MAX / 4)
    }

    /// GPU time as the virtual time that it costs this share.
    fn virtual_ns(self, real_ns: u64) -> i128 {
        i128::from(real_ns) * i128::from(PPM) / i128::from(self.share_ppm.max(1))
    }

    fn virtual_of(self, real_ns: i128) -> i128 {
        real_ns * i128::from(PPM) / i128::from(self.share_ppm.max(1))
    }

    fn is_limited(self) -> bool {
        u64::from(self.limit_ppm) < PPM
    }

    /// GPU time that flows into the bucket of the limit meanwhile.
    fn inflow_ns(self, elapsed_ns: u64) -> i64 {
        let inflow_ns = i128::from(elapsed_ns) * i128::from(self.limit_ppm) / i128::from(PPM);
        i64::try_from(inflow_ns).unwrap_or(i64::MAX / 4)
    }

    /// How long it takes until this much has flowed in.
    fn inflow_takes_ns(self, inflow_ns: u64) -> u64 {
        let takes_ns = i128::from(inflow_ns) * i128::from(PPM) / i128::from(self.limit_ppm.max(1));
        takes_ns.min(i128::from(u64::MAX / 4)) as u64
    }

    /// The inverse of [`Weight::virtual_of`].
    fn signed_real_ns(self, virtual_ns: i128) -> i128 {
        virtual_ns * i128::from(self.share_ppm) / i128::from(PPM)
    }
}

impl Lease {
    fn refill(&mut self, now_ns: u64, depth_ns: u64) {
        self.exhausted = false;
        self.tokens_ns = self.tokens_at(now_ns).min(depth_ns as i64);
        self.refilled_at_ns = self.refilled_at_ns.max(now_ns);
    }

    /// What flowed in during the turn counts before the bucket overflows.
    fn spend(&mut self, now_ns: u64, used_ns: u64, depth_ns: u64) {
        self.tokens_ns = self.tokens_at(now_ns).saturating_sub_unsigned(used_ns).min(depth_ns as i64);
        self.refilled_at_ns = self.refilled_at_ns.max(now_ns);
        self.exhausted = self.weight.is_limited() && self.tokens_ns <= 0;
    }

    fn tokens_at(&self, now_ns: u64) -> i64 {
        let elapsed_ns = now_ns.saturating_sub(self.refilled_at_ns);
        self.tokens_ns.saturating_add(self.weight.inflow_ns(elapsed_ns))
    }

    /// A limited lease runs again once so much has flowed in: each turn costs its start, and
    /// shorter ones more of them.
    fn may_run(&self, now_ns: u64, needs_ns: u64) -> bool {
        !self.weight.is_limited() || self.tokens_at(now_ns) >= needs_ns as i64
    }

    fn runnable_at(&self, needs_ns: u64) -> u64 {
        if !self.weight.is_limited() {
            return self.refilled_at_ns;
        }
        let missing_ns = (needs_ns as i64 - self.tokens_ns).max(0) as u64;
        self.refilled_at_ns + self.weight.inflow_takes_ns(missing_ns) + 1
    }

    fn runnable_at_if_limited(&self, needs_ns: u64) -> u64 {
        if self.weight.is_limited() { self.runnable_at(needs_ns) } else { 0 }
    }

    /// When a turn that began at `since_ns` with precedence has used that up while it kept filling.
    fn precedence_ends(&self, since_ns: u64) -> u64 {
        let inflow_ns = self.weight.part_of(since_ns.saturating_sub(self.precedence.at_ns));
        let left_ns = self.precedence.tokens_ns.saturating_add(inflow_ns).max(0);
        let drain_ppm = PPM.saturating_sub(u64::from(self.weight.share_ppm)).max(1);
        let lasts_ns = i128::from(left_ns) * i128::from(PPM) / i128::from(drain_ppm);
        since_ns.saturating_add(u64::try_from(lasts_ns).unwrap_or(u64::MAX / 4))
    }

    /// When a turn that began at `since_ns` has used the bucket up while it kept filling; never
    /// where there is no limit.
    fn exhausted_at(&self, since_ns: u64) -> Option<u64> {
        let drain_ppm = PPM.checked_sub(u64::from(self.weight.limit_ppm)).filter(|&d| d > 0)?;
        // What the turn has used before the bucket was last looked at is not taken out of it yet.
        let used_ns = self.refilled_at_ns.saturating_sub(since_ns);
        let left_ns = i128::from(self.tokens_ns.saturating_sub_unsigned(used_ns).max(0));
        let lasts_ns = left_ns * i128::from(PPM) / i128::from(drain_ppm);
        Some(
            self.refilled_at_ns.max(since_ns).saturating_add(u64::try_from(lasts_ns).unwrap_or(u64::MAX / 4)),
        )
    }
}

#[cfg(test)]
#[path = "arbiter_tests.rs"]
mod tests;

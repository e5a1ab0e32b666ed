//! The decisions: which session gets the turn, when the holder is asked to hurry, and when it
//! is recalled.

use super::{Action, Arbiter, Decision, Lease, LeaseKey, PPM, Pace, Session, SessionKey, State};

impl Arbiter {
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

    /// A holder that no session waits for keeps the turn while it idles: that saves a hand-over per
    /// kernel. A session that overruns its turn will wait soon. A holder that learned of it only
    /// then could by that time have queued as much work, and overrun its turn as well.
    fn press_holder(&mut self, decision: &mut Decision) {
        let Some(holder) = self.holder else { return };
        let others_work = || self.sessions.iter().any(|(&key, s)| key != holder && s.state != State::Idle);
        if let State::Holding { since_ns, pressed: false } = self.sessions[&holder].state
            && others_work()
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
                // Before the bucket is refilled, which forgets that the lease was at its limit.
                self.end_wait(now_ns, session);
                let lease = self.sessions[&session].lease;
                if let Some(lease) = self.leases.get_mut(&lease) {
                    lease.refill(now_ns, self.pace.credit_ns);
                }
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
}

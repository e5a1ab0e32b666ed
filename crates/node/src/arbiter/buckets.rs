//! The token buckets of a lease: one for its limit, and one for the precedence of a premium lease.

use serde::{Deserialize, Serialize};

use super::{Lease, PPM, Use, Weight};

/// The bucket of a lease's share: GPU time for which a premium lease goes before others, and for
/// which a promise holds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Precedence {
    /// Below zero after a turn that lasted longer.
    pub(super) tokens_ns: i64,
    pub(super) at_ns: u64,
    /// It was emptied, and is of no use until a quantum has flowed in: the turn would change hands
    /// for moments.
    pub(super) exhausted: bool,
}

impl Precedence {
    pub(super) fn full(now_ns: u64, weight: Weight, burst_ns: u64) -> Precedence {
        Precedence { tokens_ns: weight.part_of(burst_ns), at_ns: now_ns, exhausted: false }
    }

    /// With what has flowed in until now.
    pub(super) fn refilled(self, now_ns: u64, weight: Weight, burst_ns: u64) -> Precedence {
        let inflow_ns = weight.part_of(now_ns.saturating_sub(self.at_ns));
        let tokens_ns = self.tokens_ns.saturating_add(inflow_ns).min(weight.part_of(burst_ns));
        Precedence { tokens_ns, at_ns: self.at_ns.max(now_ns), ..self }
    }

    /// From when on there was enough in it for the lease to be within its share.
    pub(super) fn within_share_ns(&self, weight: Weight, quantum_ns: u64) -> u64 {
        let needs_ns = if self.exhausted { i64::try_from(quantum_ns).unwrap_or(i64::MAX) } else { 1 };
        let missing_ns = needs_ns.saturating_sub(self.tokens_ns).max(0);
        let takes_ns = i128::from(missing_ns) * i128::from(PPM) / i128::from(weight.share_ppm.max(1));
        self.at_ns.saturating_add(u64::try_from(takes_ns).unwrap_or(u64::MAX / 4))
    }

    pub(super) fn spend(&mut self, now_ns: u64, used_ns: u64, weight: Weight, burst_ns: u64) {
        // What flows in during a turn counts before the bucket overflows.
        let inflow_ns = weight.part_of(now_ns.saturating_sub(self.at_ns));
        let tokens_ns = self.tokens_ns.saturating_add(inflow_ns).saturating_sub_unsigned(used_ns);
        self.tokens_ns = tokens_ns.min(weight.part_of(burst_ns));
        self.at_ns = self.at_ns.max(now_ns);
        self.exhausted = self.tokens_ns <= 0;
    }
}

impl Lease {
    pub(super) fn refill(&mut self, now_ns: u64, depth_ns: u64) {
        self.exhausted = false;
        self.tokens_ns = self.tokens_at(now_ns).min(depth_ns as i64);
        self.refilled_at_ns = self.refilled_at_ns.max(now_ns);
    }

    /// What flowed in during the turn counts before the bucket overflows. A turn lasts as long as
    /// the bucket would if all of it were used, so what it has not used is left in there.
    pub(super) fn spend(&mut self, now_ns: u64, turn: Use, depth_ns: u64) {
        self.tokens_ns = self.tokens_at(now_ns).saturating_sub_unsigned(turn.used_ns).min(depth_ns as i64);
        self.refilled_at_ns = self.refilled_at_ns.max(now_ns);
        let unused_ns = turn.turn_ns.saturating_sub(turn.used_ns);
        self.exhausted = self.weight.is_limited() && self.tokens_ns.saturating_sub_unsigned(unused_ns) <= 0;
    }

    pub(super) fn tokens_at(&self, now_ns: u64) -> i64 {
        let elapsed_ns = now_ns.saturating_sub(self.refilled_at_ns);
        self.tokens_ns.saturating_add(self.weight.inflow_ns(elapsed_ns))
    }

    /// A limited lease runs again once `needs_ns` has flowed in: each turn costs its start, and
    /// shorter ones more of them.
    pub(super) fn may_run(&self, now_ns: u64, needs_ns: u64) -> bool {
        !self.weight.is_limited() || self.tokens_at(now_ns) >= needs_ns as i64
    }

    pub(super) fn runnable_at(&self, needs_ns: u64) -> u64 {
        if !self.weight.is_limited() {
            return self.refilled_at_ns;
        }
        let missing_ns = (needs_ns as i64 - self.tokens_ns).max(0) as u64;
        self.refilled_at_ns + self.weight.inflow_takes_ns(missing_ns) + 1
    }

    pub(super) fn runnable_at_if_limited(&self, needs_ns: u64) -> u64 {
        if self.weight.is_limited() { self.runnable_at(needs_ns) } else { 0 }
    }

    /// When a turn that began at `since_ns` with precedence has used that up while it kept filling.
    pub(super) fn precedence_ends(&self, since_ns: u64) -> u64 {
        let inflow_ns = self.weight.part_of(since_ns.saturating_sub(self.precedence.at_ns));
        let left_ns = self.precedence.tokens_ns.saturating_add(inflow_ns).max(0);
        let drain_ppm = PPM.saturating_sub(u64::from(self.weight.share_ppm)).max(1);
        let lasts_ns = i128::from(left_ns) * i128::from(PPM) / i128::from(drain_ppm);
        since_ns.saturating_add(u64::try_from(lasts_ns).unwrap_or(u64::MAX / 4))
    }

    /// When a turn that began at `since_ns` has used the bucket up while it kept filling; never
    /// where there is no limit.
    pub(super) fn exhausted_at(&self, since_ns: u64) -> Option<u64> {
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

//! Which waits a promise is about, and which of them were no longer than promised.

use super::Lease;

impl Lease {
    /// A session that has waited since then gets a turn.
    pub(super) fn end_with_turn(&mut self, since_ns: u64, now_ns: u64, quantum_ns: u64) {
        if let Some(waited_ns) = self.promised_wait_ns(since_ns, now_ns, quantum_ns) {
            self.waits.count_promised(waited_ns <= self.weight.wait_ns);
        }
    }

    /// A session that has waited since then ends without a turn: its wait counts if it was longer
    /// than promised already.
    pub(super) fn end_without_turn(&mut self, since_ns: u64, now_ns: u64, quantum_ns: u64) {
        let waited_ns = self.promised_wait_ns(since_ns, now_ns, quantum_ns);
        if waited_ns.is_some_and(|waited_ns| waited_ns > self.weight.wait_ns) {
            self.waits.count_promised(false);
        }
    }

    /// How long a wait was that a promise is about; none for one that the lease itself has caused.
    fn promised_wait_ns(&self, since_ns: u64, now_ns: u64, quantum_ns: u64) -> Option<u64> {
        if self.weight.wait_ns == 0 || self.exhausted {
            return None;
        }
        let within_share_ns = self.precedence.within_share_ns(self.weight, quantum_ns);
        let begins_ns = since_ns.max(self.turn_ended_ns).max(within_share_ns);
        now_ns.checked_sub(begins_ns)
    }
}

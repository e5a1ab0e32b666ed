//! Leases whose programs do nothing, and on a node without a server their suspension.
//!
//! ```text
//!            idle_after x 4/5              idle_after               a CUDA call
//!   active ──────────────────▶ noticed ──────────────────▶ suspended ──────────────▶ active
//!     ▲                          │                          │  its room is gone:
//!     └────── a CUDA call ───────┘                          └── the call waits, tried every second
//! ```
//! A program is idle while it makes no CUDA calls, sends and gets nothing, and uses no GPU time.
//! One with a long kernel is not, since workers account for kernels that run. A lease whose memory
//! cannot leave the GPU is not suspended: nothing would be gained.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sluice_api::node::IdleLease;

use super::{LeaseRecord, Ledger, Registry, SessionRecord};
use crate::lease::bytes_text;

/// What is idle for less is not reported.
const TOLD_FROM: Duration = Duration::from_secs(5);
/// Every session has some memory that cannot leave: its variables, its context. A lease with more
/// than this stays, in bytes.
const PINNED_MAX: u64 = 64 << 20;

/// What changes while a lease does something.
type Activity = (u64, u64, u64, u64, u64);

/// Whether a lease does something.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Idle {
    activity: Activity,
    /// When it did something last, by the clock that is never set.
    since: Duration,
    /// Since when the list of sessions says that it is suspended soon.
    told_at: Option<Duration>,
    /// It was suspended for being idle.
    suspended: bool,
    /// Why its programs' calls wait, where its room is gone.
    waits: String,
}

impl Idle {
    /// Of a lease that is not suspended and is about to be.
    fn step(&self, after: Duration, now: Duration) -> Step {
        match self.told_at {
            None => Step::Tell,
            Some(told_at) if now >= (self.since + after).max(told_at + after / 5) => Step::Suspend,
            Some(_) => Step::Nothing,
        }
    }

    /// A person suspends or resumes the lease: that stays, and what is resumed counts as active.
    pub(super) fn changed_by_hand(&mut self, now: Duration) {
        (self.since, self.told_at, self.suspended) = (now, None, false);
        self.waits.clear();
    }

    pub(super) fn new(since: Duration) -> Idle {
        Idle { activity: Activity::default(), since, told_at: None, suspended: false, waits: String::new() }
    }
}

/// What becomes of a lease on a node without a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Nothing,
    Tell,
    Suspend,
    Resume,
}

impl Registry {
    /// Looks once a second which leases do something.
    pub(super) fn follow_idle(&self, ledger: &mut Ledger) {
        let now = self.clock.running();
        ledger.follow_activity(now);
        let Some(after) = self.idle_after else { return };
        for lease in ledger.leases.keys().copied().collect::<Vec<_>>() {
            self.step_idle(ledger, lease, after, now);
        }
    }

    fn step_idle(&self, ledger: &mut Ledger, lease: u64, after: Duration, now: Duration) {
        match ledger.idle_step(lease, after, now) {
            Step::Nothing => {}
            Step::Tell => {
                ledger.idle_of(lease, |idle| idle.told_at = Some(now));
                let left = after / 5;
                tracing::info!(
                    lease,
                    "lease {lease} is idle; it is suspended in {} s unless it makes a CUDA call",
                    left.as_secs()
                );
            }
            Step::Suspend => {
                if self.set_lease_suspended(ledger, lease, true).is_ok() {
                    ledger.idle_of(lease, |idle| (idle.suspended, idle.told_at) = (true, None));
                    tracing::info!(lease, "lease {lease} was idle and is suspended until its next CUDA call");
                }
            }
            Step::Resume => self.resume_idle(ledger, lease),
        }
    }

    /// Has a lease that was suspended for being idle come back, if its room is free.
    fn resume_idle(&self, ledger: &mut Ledger, lease: u64) {
        if ledger.moving(lease).is_some() {
            // It is tried again a second later.
            return;
        }
        let now = self.clock.running();
        match self.set_lease_suspended(ledger, lease, false) {
            Ok(()) => ledger.idle_of(lease, |idle| {
                (idle.suspended, idle.since) = (false, now);
                idle.waits.clear();
            }),
            Err(refusal) => ledger.idle_of(lease, |idle| idle.waits = refusal.to_string()),
        }
    }

    /// A program of a session has made a call while its memory is away.
    pub(super) fn session_wants(&self, ledger: &mut Ledger, session: u64) {
        let Some(record) = ledger.sessions.get_mut(&session) else { return };
        record.wants = true;
        let lease = record.lease;
        if self.idle_after.is_some() && ledger.leases.get(&lease).is_some_and(|lease| lease.idle.suspended) {
            self.resume_idle(ledger, lease);
        }
    }
}

impl Ledger {
    fn follow_activity(&mut self, now: Duration) {
        let leases: Vec<u64> = self.leases.keys().copied().collect();
        for lease in leases {
            let counts = self.counts(lease);
            let Some(record) = self.leases.get_mut(&lease) else { continue };
            let activity =
                (counts.commands, counts.gpu_ns, counts.bytes_in, counts.bytes_out, record.sessions_total);
            if std::mem::replace(&mut record.idle.activity, activity) != activity {
                (record.idle.since, record.idle.told_at) = (now, None);
            }
        }
    }

    fn idle_of(&mut self, lease: u64, change: impl FnOnce(&mut Idle)) {
        if let Some(record) = self.leases.get_mut(&lease) {
            change(&mut record.idle);
        }
    }

    fn idle_step(&self, lease: u64, after: Duration, now: Duration) -> Step {
        let (Some(record), Some(entry)) = (self.leases.get(&lease), self.books.lease(lease)) else {
            return Step::Nothing;
        };
        if self.moving(lease).is_some() {
            return Step::Nothing;
        }
        let idle = &record.idle;
        let wants = || self.sessions.values().any(|session| session.lease == lease && session.wants);
        let stays = || !self.stays(lease).is_empty();
        match (entry.suspended, now.saturating_sub(idle.since)) {
            (true, _) if idle.suspended && (wants() || stays()) => Step::Resume,
            (true, _) => Step::Nothing,
            (false, idle_for) if idle_for < after / 5 * 4 || record.closing => Step::Nothing,
            (false, _) if wants() || stays() => Step::Nothing,
            (false, _) => idle.step(after, now),
        }
    }

    /// Why the memory of a lease's sessions cannot leave their GPUs; empty where it can.
    fn stays(&self, lease: u64) -> String {
        let of_session = |(&session, record): (&u64, &SessionRecord)| {
            if let Some(reason) = record.residence.stays() {
                return Some(format!("session {session}: {reason}"));
            }
            let entry = self.books.lease(lease)?;
            let shared = self.leases.get(&lease).map_or(0, |lease| lease.exports.bytes_of(session));
            let used = entry.used_by(session) + shared;
            let pinned = used.saturating_sub(record.counters.read().movable);
            let is_here = !record.residence.is_away();
            (is_here && pinned > PINNED_MAX)
                .then(|| format!("{} of session {session} cannot leave the GPU", bytes_text(pinned)))
        };
        let of = self.sessions.iter().filter(|(_, record)| record.lease == lease);
        of.filter_map(of_session).next().unwrap_or_default()
    }

    /// The server's leases that do nothing, and those of which a call waits.
    pub(super) fn idle_leases(&self, now: Duration) -> Vec<IdleLease> {
        let idle = |(&lease, record): (&u64, &LeaseRecord)| {
            let attempt = record.metered.as_ref().filter(|_| !record.has_moved)?.attempt();
            let idle_for = now.saturating_sub(record.idle.since);
            let wants = self.sessions.values().any(|session| session.lease == lease && session.wants);
            let idle_ms = idle_for.as_millis() as u64;
            let is_told = idle_for >= TOLD_FROM || wants;
            is_told.then(|| IdleLease { attempt, idle_ms, wants, stays: self.stays(lease) })
        };
        self.leases.iter().filter_map(idle).collect()
    }

    /// What is to be said of a lease that is idle.
    pub(super) fn idle_text(&self, lease: u64) -> String {
        let Some(LeaseRecord { idle, .. }) = self.leases.get(&lease) else { return String::new() };
        match idle {
            Idle { suspended: true, waits, .. } if !waits.is_empty() => format!("its call waits: {waits}"),
            Idle { suspended: true, .. } => "idle, comes back at its next CUDA call".to_owned(),
            Idle { told_at: Some(_), .. } => "idle, about to be suspended".to_owned(),
            _ => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER: Duration = Duration::from_secs(100);

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_lease_is_suspended_no_sooner_than_was_said() {
        let mut idle = Idle::new(secs(0));
        assert_eq!(idle.step(AFTER, secs(80)), Step::Tell);
        idle.told_at = Some(secs(80));
        assert_eq!(idle.step(AFTER, secs(99)), Step::Nothing);
        assert_eq!(idle.step(AFTER, secs(100)), Step::Suspend);
        // A lease that could not be suspended for a while still gets its notice first.
        idle.told_at = Some(secs(500));
        assert_eq!(idle.step(AFTER, secs(519)), Step::Nothing);
        assert_eq!(idle.step(AFTER, secs(520)), Step::Suspend);
    }

    #[test]
    fn what_a_person_changes_is_no_longer_the_node_s_to_resume() {
        let mut idle = Idle { suspended: true, waits: "no room".into(), ..Idle::new(secs(0)) };
        idle.changed_by_hand(secs(700));
        assert!(!idle.suspended && idle.waits.is_empty());
        assert_eq!((idle.since, idle.told_at), (secs(700), None), "it is idle from then on");
    }
}

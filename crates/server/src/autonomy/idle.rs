//! Leases whose programs do nothing: notified, suspended, and back at their next CUDA call.
//!
//! ```text
//!            idle_after x 4/5              idle_after                a call waits
//!   active ─────────────▶ notified ──────────────────▶ suspended ────────────────▶ active
//!     ▲                          │                                  room is waited for
//!     └──────── a CUDA call ─────┘
//! ```
//! Pure: what nodes say of a lease goes in, and what is to be done comes out.

use serde::{Deserialize, Serialize};
use sluice_api::autonomy::Idle;

/// A lease that could not be resumed is tried again after this time.
const AGAIN_MS: u64 = 10_000;

/// What is known of a lease whose programs do nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct IdleState {
    pub(crate) since_ms: u64,
    pub(crate) suspend_at_ms: u64,
    /// It was suspended for that, or is about to be.
    #[serde(default)]
    pub(crate) suspended: bool,
    /// A call waits.
    #[serde(default)]
    pub(crate) wants: bool,
    /// When its resumption was asked for last.
    #[serde(default)]
    tried_at_ms: u64,
    /// Why it is not suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) stays: Option<String>,
}

impl IdleState {
    pub(crate) fn shown(&self) -> Idle {
        let IdleState { since_ms, suspend_at_ms, suspended, wants, ref stays, .. } = *self;
        Idle { since_ms, suspend_at_ms, suspended, wants, stays: stays.clone() }
    }
}

/// What the nodes of a lease say of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// For how long all of its programs have done nothing.
    pub(crate) idle_ms: u64,
    pub(crate) wants: bool,
    /// Why its memory cannot leave; empty where it can.
    pub(crate) stays: String,
}

/// A lease as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Now {
    pub(crate) now_ms: u64,
    /// Idle programs are suspended after this time, if they are.
    pub(crate) after_ms: Option<u64>,
    pub(crate) is_suspended: bool,
    /// A change of its size is under way.
    pub(crate) is_changing: bool,
}

/// What is to be done, with what is known from then on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum IdleStep {
    Nothing,
    Note(Option<IdleState>),
    Tell(IdleState),
    Suspend(IdleState),
    Resume(IdleState),
}

impl IdleStep {
    /// `seen` is none where a program of the lease does something.
    pub(crate) fn of(known: Option<&IdleState>, seen: Option<&Seen>, now: Now) -> IdleStep {
        let Now { now_ms, after_ms, is_suspended, is_changing } = now;
        let forget = if known.is_some() { IdleStep::Note(None) } else { IdleStep::Nothing };
        if is_changing {
            return IdleStep::Nothing;
        }
        if let Some(state) = known.filter(|state| state.suspended) {
            if !is_suspended {
                // It came back, by a call or by hand, or its node did not suspend it.
                let keep = |stays: &String| IdleState {
                    suspended: false,
                    wants: false,
                    stays: Some(stays.clone()),
                    ..state.clone()
                };
                return IdleStep::Note(state.stays.as_ref().map(keep));
            }
            return IdleStep::wake(state, seen, now);
        }
        if is_suspended {
            // By hand, so that it is resumed by hand.
            return forget;
        }
        // A program whose call waits for its memory to come back is not idle.
        let seen = seen.filter(|seen| !seen.wants);
        let (Some(after_ms), Some(seen)) = (after_ms, seen) else { return forget };
        if seen.idle_ms < after_ms / 5 * 4 {
            return forget;
        }
        let since_ms = now_ms.saturating_sub(seen.idle_ms);
        let suspend_at_ms = (since_ms + after_ms).max(now_ms + after_ms / 5);
        let fresh = IdleState { since_ms, suspend_at_ms, ..IdleState::default() };
        match known {
            Some(IdleState { stays: Some(_), .. }) => IdleStep::Nothing,
            _ if !seen.stays.is_empty() => {
                IdleStep::Note(Some(IdleState { stays: Some(seen.stays.clone()), ..fresh }))
            }
            None => IdleStep::Tell(fresh),
            Some(state) if now_ms >= state.suspend_at_ms => {
                IdleStep::Suspend(IdleState { suspended: true, ..state.clone() })
            }
            Some(_) => IdleStep::Nothing,
        }
    }

    fn wake(state: &IdleState, seen: Option<&Seen>, now: Now) -> IdleStep {
        let stays = seen.map(|seen| seen.stays.clone()).filter(|stays| !stays.is_empty());
        let wants = state.wants || seen.is_some_and(|seen| seen.wants);
        let is_due = now.now_ms.saturating_sub(state.tried_at_ms) >= AGAIN_MS;
        if is_due && (wants || stays.is_some() || now.after_ms.is_none()) {
            let stays = stays.or_else(|| state.stays.clone());
            return IdleStep::Resume(IdleState { wants, stays, tried_at_ms: now.now_ms, ..state.clone() });
        }
        IdleStep::Nothing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER_MS: u64 = 100_000;

    fn at(now_ms: u64) -> Now {
        Now { now_ms, after_ms: Some(AFTER_MS), is_suspended: false, is_changing: false }
    }

    fn idle(idle_ms: u64) -> Seen {
        Seen { idle_ms, ..Seen::default() }
    }

    fn told() -> IdleState {
        match IdleStep::of(None, Some(&idle(80_000)), at(1_080_000)) {
            IdleStep::Tell(state) => state,
            other => panic!("{other:?}"),
        }
    }

    fn suspended() -> IdleState {
        match IdleStep::of(Some(&told()), Some(&idle(100_000)), at(1_100_000)) {
            IdleStep::Suspend(state) => state,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_lease_is_told_before_it_is_suspended_and_forgotten_when_it_does_something() {
        assert_eq!(IdleStep::of(None, Some(&idle(79_999)), at(1_079_999)), IdleStep::Nothing);
        let told = told();
        assert_eq!((told.since_ms, told.suspend_at_ms), (1_000_000, 1_100_000));
        assert_eq!(IdleStep::of(Some(&told), Some(&idle(99_999)), at(1_099_999)), IdleStep::Nothing);
        for active in [Some(idle(10)), None] {
            assert_eq!(IdleStep::of(Some(&told), active.as_ref(), at(1_090_000)), IdleStep::Note(None));
        }
        assert!(suspended().suspended);
        let wants = Seen { wants: true, ..idle(100_000) };
        assert_eq!(IdleStep::of(None, Some(&wants), at(1_100_000)), IdleStep::Nothing);
        assert_eq!(IdleStep::of(Some(&told), Some(&wants), at(1_100_000)), IdleStep::Note(None));
        // A lease that is idle already when the policy is set still gets its notice first.
        let IdleStep::Tell(late) = IdleStep::of(None, Some(&idle(9_000_000)), at(10_000_000)) else {
            panic!("no notice was given")
        };
        assert_eq!(late.suspend_at_ms, 10_020_000);
    }

    #[test]
    fn a_call_brings_it_back_and_is_tried_again_where_that_failed() {
        let (suspended, mut now) = (suspended(), Now { is_suspended: true, ..at(1_200_000) });
        assert_eq!(IdleStep::of(Some(&suspended), Some(&idle(200_000)), now), IdleStep::Nothing);
        let wants = Seen { wants: true, ..idle(0) };
        let IdleStep::Resume(tried) = IdleStep::of(Some(&suspended), Some(&wants), now) else {
            panic!("it comes back")
        };
        now.now_ms += AGAIN_MS - 1;
        assert_eq!(IdleStep::of(Some(&tried), Some(&wants), now), IdleStep::Nothing);
        now.now_ms += 1;
        assert!(matches!(IdleStep::of(Some(&tried), None, now), IdleStep::Resume(_)), "its call still waits");
        let waiting = Now { is_changing: true, ..now };
        assert_eq!(IdleStep::of(Some(&tried), None, waiting), IdleStep::Nothing, "it waits for room");
        assert_eq!(IdleStep::of(Some(&tried), None, at(now.now_ms)), IdleStep::Note(None));
    }

    #[test]
    fn what_cannot_leave_is_not_suspended_or_comes_back_and_is_not_tried_again() {
        let stays = Seen { stays: "96 MiB cannot leave".into(), ..idle(90_000) };
        let IdleStep::Note(Some(noted)) = IdleStep::of(None, Some(&stays), at(1_090_000)) else {
            panic!("it is noted")
        };
        assert_eq!(noted.stays.as_deref(), Some("96 MiB cannot leave"));
        assert_eq!(IdleStep::of(Some(&noted), Some(&stays), at(2_000_000)), IdleStep::Nothing);
        let now = Now { is_suspended: true, ..at(1_200_000) };
        let IdleStep::Resume(back) = IdleStep::of(Some(&suspended()), Some(&stays), now) else {
            panic!("nothing is gained")
        };
        let IdleStep::Note(Some(kept)) = IdleStep::of(Some(&back), Some(&idle(99_999)), at(1_210_000)) else {
            panic!("it is remembered")
        };
        assert_eq!(IdleStep::of(Some(&kept), Some(&idle(900_000)), at(2_000_000)), IdleStep::Nothing);
    }

    #[test]
    fn one_that_a_person_suspended_stays_so_and_one_without_a_policy_any_more_comes_back() {
        let by_hand = Now { is_suspended: true, ..at(1_200_000) };
        let wants = Seen { wants: true, ..idle(0) };
        assert_eq!(IdleStep::of(None, Some(&wants), by_hand), IdleStep::Nothing);
        assert_eq!(IdleStep::of(Some(&told()), Some(&wants), by_hand), IdleStep::Note(None));
        let without = Now { after_ms: None, ..by_hand };
        assert!(matches!(IdleStep::of(Some(&suspended()), None, without), IdleStep::Resume(_)));
        assert_eq!(
            IdleStep::of(None, Some(&idle(9_000_000)), Now { after_ms: None, ..at(1) }),
            IdleStep::Nothing
        );
    }
}

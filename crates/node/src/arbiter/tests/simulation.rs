//! Programs that share a GPU in simulated time: each says how long it keeps running once recalled,
//! and how long it works and rests.

use crate::arbiter::*;

pub(super) const MS: u64 = 1_000_000;
pub(super) const SECOND: u64 = 1_000 * MS;

/// A client program as the arbiter sees it.
#[derive(Clone, Copy)]
pub(super) struct Program {
    pub(super) lease: u64,
    pub(super) share_ppm: u32,
    /// `None` for no limit.
    pub(super) limit_ppm: Option<u32>,
    /// From recall to the report: the rest of a kernel that cannot be paused at once.
    pub(super) overrun_ns: u64,
    /// The start and the end of each turn, in which it uses no GPU time.
    pub(super) unused_ns: u64,
    /// Works this long before it rests; `u64::MAX` is backlogged for ever.
    pub(super) work_ns: u64,
    pub(super) rest_ns: u64,
    /// Each tenth rest lasts this much longer.
    pub(super) hiccup_ns: u64,
    pub(super) starts_ns: u64,
    pub(super) premium: bool,
}

pub(super) const BACKLOGGED: Program = Program {
    lease: 0,
    share_ppm: 0,
    limit_ppm: None,
    overrun_ns: 50_000,
    unused_ns: 0,
    work_ns: u64::MAX,
    rest_ns: 0,
    hiccup_ns: 0,
    starts_ns: 0,
    premium: false,
};

impl Program {
    pub(super) fn backlogged(share_ppm: u32) -> Program {
        Program { lease: u64::from(share_ppm), share_ppm, ..BACKLOGGED }
    }

    pub(super) fn capped(self) -> Program {
        Program { limit_ppm: Some(self.share_ppm), ..self }
    }

    pub(super) fn weight(self) -> Weight {
        let limit_ppm = self.limit_ppm.unwrap_or(PPM as u32);
        Weight { share_ppm: self.share_ppm, limit_ppm, premium: self.premium, wait_ns: 0 }
    }
}

/// Something that is done to the session of a program while it runs.
#[derive(Clone, Copy)]
pub(super) enum Change {
    Weight(Weight),
    Suspend,
    Resume,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Phase {
    Resting { until_ns: u64 },
    Waiting { since_ns: u64 },
    Running { since_ns: u64, stops_ns: u64 },
}

/// GPU time of each program after `length_ns`, and how often the turn changed hands.
pub(super) fn simulate(programs: &[Program], length_ns: u64) -> (Vec<u64>, u64) {
    let outcome = simulate_at(Pace::default(), programs, length_ns);
    (outcome.used_ns, outcome.grants)
}

pub(super) struct Outcome {
    /// GPU time of each program.
    pub(super) used_ns: Vec<u64>,
    /// GPU time of each program before each change.
    pub(super) used_before: Vec<Vec<u64>>,
    /// How often the turn changed hands.
    pub(super) grants: u64,
    /// The longest that each program has waited.
    pub(super) longest_wait_ns: Vec<u64>,
}

pub(super) fn simulate_at(pace: Pace, programs: &[Program], length_ns: u64) -> Outcome {
    simulate_with(pace, programs, &[], length_ns)
}

/// `changes`, the earliest first, are done at these times to the programs of these numbers.
pub(super) fn simulate_with(
    pace: Pace,
    programs: &[Program],
    changes: &[(u64, usize, Change)],
    length_ns: u64,
) -> Outcome {
    let (mut changes, mut used_before) = (changes.iter().copied().peekable(), Vec::new());
    let mut arbiter = Arbiter::new(pace);
    let mut phase = Vec::new();
    let mut left = Vec::new();
    for (i, p) in programs.iter().enumerate() {
        arbiter.join(0, SessionKey(i as u64), LeaseKey(p.lease), p.weight());
        phase.push(Phase::Resting { until_ns: p.starts_ns });
        left.push(p.work_ns);
    }
    let (mut used, mut grants, mut now, mut wake) = (vec![0; programs.len()], 0, 0, Some(0));
    let mut longest_wait_ns = vec![0; programs.len()];
    let mut rests = vec![0; programs.len()];
    while now < length_ns {
        for (i, p) in programs.iter().enumerate() {
            let key = SessionKey(i as u64);
            match phase[i] {
                Phase::Resting { until_ns } if until_ns <= now => {
                    left[i] = p.work_ns;
                    arbiter.want(now, key);
                    phase[i] = Phase::Waiting { since_ns: now };
                }
                Phase::Running { since_ns, stops_ns } if stops_ns <= now => {
                    let ran = now - since_ns;
                    let used_ns = ran.saturating_sub(p.unused_ns);
                    used[i] += used_ns;
                    left[i] = left[i].saturating_sub(ran);
                    let more = left[i] > 0;
                    arbiter.done(now, key, Use { turn_ns: ran, used_ns }, more);
                    phase[i] = if more {
                        Phase::Waiting { since_ns: now }
                    } else {
                        rests[i] += 1;
                        let hiccup_ns = if rests[i] % 10 == 0 { p.hiccup_ns } else { 0 };
                        Phase::Resting { until_ns: now + p.rest_ns.max(1) + hiccup_ns }
                    };
                }
                _ => {}
            }
        }
        while let Some((_, program, change)) = changes.next_if(|&(at_ns, ..)| at_ns <= now) {
            used_before.push(used_at(now, &used, &phase));
            let (session, lease) = (SessionKey(program as u64), LeaseKey(programs[program].lease));
            match change {
                Change::Weight(weight) => arbiter.set_weight(now, lease, weight),
                Change::Suspend => arbiter.suspend(now, session),
                Change::Resume => arbiter.resume(now, session),
            }
        }
        let decision = arbiter.step(now);
        for action in &decision.actions {
            match *action {
                Action::Grant(SessionKey(i)) => {
                    let i = i as usize;
                    let Phase::Waiting { since_ns } = phase[i] else {
                        panic!("granted one that does not wait")
                    };
                    longest_wait_ns[i] = longest_wait_ns[i].max(now - since_ns);
                    let running = phase.iter().any(|p| matches!(p, Phase::Running { .. }));
                    assert!(!running, "two sessions hold the turn");
                    let stops_ns = now.saturating_add(left[i]);
                    phase[i] = Phase::Running { since_ns: now, stops_ns };
                    grants += 1;
                }
                // These programs give their turn back the moment they rest.
                Action::Press(_) => {}
                Action::Recall(SessionKey(i)) => {
                    let i = i as usize;
                    let Phase::Running { since_ns, stops_ns } = phase[i] else {
                        panic!("recalled a program that does not run")
                    };
                    let stops_ns = stops_ns.min(now + programs[i].overrun_ns);
                    phase[i] = Phase::Running { since_ns, stops_ns };
                }
            }
        }
        wake = decision.wake_at_ns.or(wake.filter(|&w| w > now));
        let next = phase
            .iter()
            .filter_map(|p| match *p {
                Phase::Resting { until_ns } => Some(until_ns),
                Phase::Running { stops_ns, .. } => Some(stops_ns),
                Phase::Waiting { .. } => None,
            })
            .chain(decision.wake_at_ns)
            .chain(changes.peek().map(|&(at_ns, ..)| at_ns))
            .min();
        now = next.unwrap_or(length_ns).max(now + 1).min(length_ns);
    }
    let used_ns = used_at(length_ns, &used, &phase);
    Outcome { used_ns, used_before, grants, longest_wait_ns }
}

/// GPU time of each program, with the part of its time slice that has passed at that moment.
pub(super) fn used_at(now_ns: u64, used_ns: &[u64], phase: &[Phase]) -> Vec<u64> {
    let running = |phase: &Phase| match *phase {
        Phase::Running { since_ns, .. } => now_ns - since_ns,
        Phase::Resting { .. } | Phase::Waiting { .. } => 0,
    };
    used_ns.iter().zip(phase).map(|(&used, phase)| used + running(phase)).collect()
}

/// Numbers below what is asked for, the same for the same seed (xorshift).
pub(super) fn random(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    }
}

pub(super) fn percent(used: &[u64], i: usize, length_ns: u64) -> f64 {
    100.0 * used[i] as f64 / length_ns as f64
}

pub(super) fn check_split(programs: &[Program], expect: &[f64], tolerance: f64) {
    let length_ns = 10 * SECOND;
    let (used, _) = simulate(programs, length_ns);
    for (i, want) in expect.iter().enumerate() {
        let got = percent(&used, i, length_ns);
        assert!((got - want).abs() <= tolerance, "program {i} got {got:.2} %, not {want} %: {used:?}");
    }
}

//! The arbiter in simulated time: each simulated session says how long it keeps running once recalled, and how
//! long it works and rests; the simulation measures what share of the GPU each one got.

use super::*;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// A client program as the arbiter sees it.
#[derive(Clone, Copy)]
struct Program {
    lease: u64,
    share_ppm: u32,
    hard_cap: bool,
    /// From recall to the report: the rest of a kernel that cannot be paused at once.
    overrun_ns: u64,
    /// Works this long before it rests; `u64::MAX` is backlogged for ever.
    work_ns: u64,
    rest_ns: u64,
    /// Each tenth rest lasts this much longer.
    hiccup_ns: u64,
    starts_ns: u64,
}

const BACKLOGGED: Program = Program {
    lease: 0,
    share_ppm: 0,
    hard_cap: false,
    overrun_ns: 50_000,
    work_ns: u64::MAX,
    rest_ns: 0,
    hiccup_ns: 0,
    starts_ns: 0,
};

impl Program {
    fn backlogged(share_ppm: u32) -> Program {
        Program { lease: u64::from(share_ppm), share_ppm, ..BACKLOGGED }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Resting { until_ns: u64 },
    Waiting { since_ns: u64 },
    Running { since_ns: u64, stops_ns: u64 },
}

/// GPU time of each program after `length_ns`, and how often the turn changed hands.
fn simulate(programs: &[Program], length_ns: u64) -> (Vec<u64>, u64) {
    let outcome = simulate_at(Pace::default(), programs, length_ns);
    (outcome.used_ns, outcome.grants)
}

struct Outcome {
    /// GPU time of each program.
    used_ns: Vec<u64>,
    /// How often the turn changed hands.
    grants: u64,
    /// The longest that each program has waited.
    longest_wait_ns: Vec<u64>,
}

fn simulate_at(pace: Pace, programs: &[Program], length_ns: u64) -> Outcome {
    let mut arbiter = Arbiter::new(pace);
    let mut phase = Vec::new();
    let mut left = Vec::new();
    for (i, p) in programs.iter().enumerate() {
        let weight = Weight { share_ppm: p.share_ppm, hard_cap: p.hard_cap };
        arbiter.join(0, SessionKey(i as u64), LeaseKey(p.lease), weight);
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
                    used[i] += ran;
                    left[i] = left[i].saturating_sub(ran);
                    let more = left[i] > 0;
                    arbiter.done(now, key, ran, more);
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
                    let Phase::Running { since_ns, stops_ns } = phase[i] else { panic!("recalled nobody") };
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
            .min();
        now = next.unwrap_or(length_ns).max(now + 1).min(length_ns);
    }
    for (i, p) in phase.iter().enumerate() {
        if let Phase::Running { since_ns, .. } = *p {
            used[i] += length_ns - since_ns;
        }
    }
    Outcome { used_ns: used, grants, longest_wait_ns }
}

/// Numbers below what is asked for, the same for the same seed (xorshift).
fn random(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    }
}

fn percent(used: &[u64], i: usize, length_ns: u64) -> f64 {
    100.0 * used[i] as f64 / length_ns as f64
}

fn check_split(programs: &[Program], expect: &[f64], tolerance: f64) {
    let length_ns = 10 * SECOND;
    let (used, _) = simulate(programs, length_ns);
    for (i, want) in expect.iter().enumerate() {
        let got = percent(&used, i, length_ns);
        assert!((got - want).abs() <= tolerance, "program {i} got {got:.2} %, not {want} %: {used:?}");
    }
}

#[test]
fn backlogged_sessions_get_their_shares() {
    check_split(&[Program::backlogged(750_000), Program::backlogged(250_000)], &[75.0, 25.0], 0.5);
    check_split(&[Program::backlogged(900_000), Program::backlogged(100_000)], &[90.0, 10.0], 0.5);
    let three = [Program::backlogged(500_000), Program::backlogged(300_000), Program::backlogged(200_000)];
    check_split(&three, &[50.0, 30.0, 20.0], 0.5);
}

#[test]
fn unclaimed_share_is_divided_in_proportion() {
    check_split(&[Program::backlogged(300_000), Program::backlogged(100_000)], &[75.0, 25.0], 0.5);
    check_split(&[Program::backlogged(100_000)], &[100.0], 0.01);
}

#[test]
fn units_that_overrun_the_quantum_are_paid_back() {
    let long = Program { overrun_ns: 40 * MS, ..Program::backlogged(250_000) };
    check_split(&[Program::backlogged(750_000), long], &[75.0, 25.0], 1.0);
    let long = Program { overrun_ns: 100 * MS, ..Program::backlogged(900_000) };
    check_split(&[long, Program::backlogged(100_000)], &[90.0, 10.0], 2.0);
}

#[test]
fn tiny_units_against_an_endless_kernel_keep_the_shares() {
    // 100 us of work, then 10 us away: never backlogged, as a client that waits for each kernel.
    let tiny = Program { work_ns: 100_000, rest_ns: 1_000, ..Program::backlogged(500_000) };
    let endless = Program { overrun_ns: 200_000, lease: 2, ..Program::backlogged(500_000) };
    let (used, _) = simulate(&[tiny, endless], 10 * SECOND);
    assert!(percent(&used, 0, 10 * SECOND) < 50.5, "{used:?}");
    assert!(percent(&used, 1, 10 * SECOND) > 49.5, "{used:?}");
}

/// Programs that compute without pause, with clients that come late now and then.
const HICCUPS: &[(u32, Program)] = &[
    (750_000, Program { work_ns: 12 * MS, rest_ns: 300_000, hiccup_ns: 15 * MS, ..BACKLOGGED }),
    (750_000, Program { work_ns: 4 * MS, rest_ns: 100_000, hiccup_ns: 2 * MS, ..BACKLOGGED }),
    (900_000, Program { work_ns: 30 * MS, rest_ns: 200_000, hiccup_ns: 20 * MS, ..BACKLOGGED }),
    (250_000, Program { work_ns: 12 * MS, rest_ns: 300_000, hiccup_ns: 40 * MS, ..BACKLOGGED }),
    (100_000, Program { work_ns: 12 * MS, rest_ns: 300_000, hiccup_ns: 49 * MS, ..BACKLOGGED }),
    (500_000, Program { work_ns: 3 * MS, rest_ns: 20_000, hiccup_ns: 500_000, ..BACKLOGGED }),
];

#[test]
fn gaps_of_a_program_without_pause_are_made_up_for() {
    let length_ns = 10 * SECOND;
    for (row, &(share_ppm, hiccups)) in HICCUPS.iter().enumerate() {
        for overrun_ns in [50_000, 500_000] {
            let program = Program { share_ppm, ..hiccups };
            let other = Program { lease: 1, overrun_ns, ..Program::backlogged(PPM as u32 - share_ppm) };
            let (used, _) = simulate(&[program, other], length_ns);
            let (got, want) = (percent(&used, 0, length_ns), f64::from(share_ppm) / 10_000.0);
            assert!((got - want).abs() < 1.0, "row {row}: {got:.2} % of {want} %");
        }
    }
}

#[test]
fn random_gaps_keep_the_shares() {
    for seed in 1..200_u64 {
        let mut random = random(seed);
        let share_ppm = 50_000 + random(850_000);
        // Alone it would be away for less than half of what it leaves to the other.
        let work_ns = 5 * MS + random(30 * MS);
        let away_ns = 10 * work_ns * (PPM - share_ppm) / PPM / 2;
        let hiccup_ns = random(away_ns.min(Pace::default().gap_ns));
        let rest_ns = random(300_000);
        let share_ppm = share_ppm as u32;
        let program = Program { share_ppm, work_ns, rest_ns, hiccup_ns, ..BACKLOGGED };
        let other = Program { lease: 1, ..Program::backlogged(PPM as u32 - share_ppm) };
        let (used, _) = simulate(&[program, other], 10 * SECOND);
        let (got, want) = (percent(&used, 0, 10 * SECOND), f64::from(share_ppm) / 10_000.0);
        assert!((got - want).abs() < 2.0, "seed {seed}: {got:.2} % of {want:.2} %");
    }
}

#[test]
fn nobody_waits_longer_than_its_patience_while_another_catches_up() {
    let pace = Pace::default();
    for share_ppm in [900_000, 950_000, 980_000] {
        let program = Program { work_ns: 400 * MS, rest_ns: 30 * MS, share_ppm, ..BACKLOGGED };
        let other = Program { lease: 1, ..Program::backlogged(PPM as u32 - share_ppm) };
        let outcome = simulate_at(pace, &[program, other], 10 * SECOND);
        let wait_ns = outcome.longest_wait_ns[1];
        // Its turn at the share of the slowest row: 1 ms in 50.
        assert!(wait_ns <= 2 * pace.patience_ns, "{share_ppm}: waited {} ms", wait_ns / MS);
    }
}

#[test]
fn a_newcomer_gets_its_share_from_a_holder_that_ran_alone_before() {
    for (early_ppm, late_ppm) in [(250_000, 750_000), (750_000, 250_000), (100_000, 900_000)] {
        let late = Program { starts_ns: 2 * SECOND, ..Program::backlogged(late_ppm) };
        let (used, _) = simulate(&[Program::backlogged(early_ppm), late], 12 * SECOND);
        let part = used[1] as f64 / (10 * SECOND) as f64;
        assert!(
            (part - f64::from(late_ppm) / 1e6).abs() < 0.01,
            "{late_ppm} ppm got {part} beside {early_ppm}"
        );
    }
}

#[test]
fn a_favoured_holder_is_not_recalled_every_quantum() {
    let (_, grants) = simulate(&[Program::backlogged(900_000), Program::backlogged(100_000)], 10 * SECOND);
    // A cycle is 50 ms: 45 ms and 5 ms.
    assert!(grants < 450, "{grants} hand-overs");
}

#[test]
fn idleness_earns_at_most_a_quantum() {
    let late = Program { starts_ns: 5 * SECOND, lease: 2, ..Program::backlogged(500_000) };
    let (used, _) = simulate(&[Program::backlogged(500_000), late], 6 * SECOND);
    let extra = used[1].abs_diff(500 * MS);
    assert!(extra <= 11 * MS, "the late one got {} ms of its first second", used[1] / MS);
}

#[test]
fn a_returning_session_does_not_wait_longer_than_a_quantum() {
    // 3 ms of work, 1 ms away: with nobody else it would use three quarters of the GPU.
    for (share_ppm, at_least) in [(900_000, 55.0), (500_000, 45.0), (100_000, 9.0)] {
        let returning = Program { work_ns: 3 * MS, rest_ns: MS, ..Program::backlogged(share_ppm) };
        let other = Program { lease: 7, ..Program::backlogged(1_000_000 - share_ppm) };
        let (used, _) = simulate(&[returning, other], 10 * SECOND);
        let got = percent(&used, 0, 10 * SECOND);
        assert!(got >= at_least, "{got:.1} % with a share of {share_ppm} ppm");
    }
}

#[test]
fn sessions_of_one_lease_share_its_weight() {
    let a = Program { lease: 1, ..Program::backlogged(500_000) };
    let b = Program { lease: 2, ..Program::backlogged(500_000) };
    check_split(&[a, a, b], &[25.0, 25.0, 50.0], 1.0);
}

#[test]
fn a_hard_cap_holds_when_nobody_else_waits() {
    let length_ns = 10 * SECOND;
    for share_ppm in [100_000, 250_000, 900_000] {
        let capped = Program { hard_cap: true, overrun_ns: 20_000, ..Program::backlogged(share_ppm) };
        let (used, _) = simulate(&[capped], length_ns);
        let (got, want) = (percent(&used, 0, length_ns), f64::from(share_ppm) / 10_000.0);
        assert!(got <= want + 0.1 && got >= want - 1.0, "{got:.2} % under a cap of {want} %");
    }
    for &(share_ppm, hiccups) in HICCUPS {
        let capped = Program { hard_cap: true, share_ppm: share_ppm.min(500_000), ..hiccups };
        let (used, _) = simulate(&[capped], length_ns);
        let (got, want) = (percent(&used, 0, length_ns), f64::from(capped.share_ppm) / 10_000.0);
        assert!(got <= want + 0.1 && got >= want - 1.0, "{got:.2} % under a cap of {want} %");
    }
    let capped = Program { hard_cap: true, ..Program::backlogged(200_000) };
    check_split(&[capped, Program::backlogged(300_000)], &[20.0, 80.0], 1.0);
}

#[test]
fn random_mixes_keep_the_shares() {
    for seed in 1..200_u64 {
        let mut random = random(seed);
        let count = 2 + random(4);
        let shares: Vec<u64> = (0..count).map(|_| 1 + random(20)).collect();
        let total: u64 = shares.iter().sum();
        let programs: Vec<Program> = shares
            .iter()
            .enumerate()
            .map(|(i, share)| Program {
                lease: i as u64,
                overrun_ns: random(5 * MS),
                ..Program::backlogged((share * PPM / total) as u32)
            })
            .collect();
        let (used, _) = simulate(&programs, 10 * SECOND);
        for (i, share) in shares.iter().enumerate() {
            let (got, want) = (percent(&used, i, 10 * SECOND), 100.0 * *share as f64 / total as f64);
            assert!((got - want).abs() < 1.5, "seed {seed}, program {i}: {got:.2} % of {want:.2} %");
        }
    }
}

/// Of a GPU of which more is leased than there is, everybody gets the part that its share is of all shares.
#[test]
fn shares_of_an_overcommitted_gpu_are_a_proportion() {
    let two = [Program::backlogged(750_000), Program { lease: 1, ..Program::backlogged(750_000) }];
    check_split(&two, &[50.0, 50.0], 0.5);
    check_split(&[Program::backlogged(900_000), Program::backlogged(600_000)], &[60.0, 40.0], 0.5);
    for seed in 1..20_u64 {
        let mut random = random(seed);
        let mut shares: Vec<u64> = Vec::new();
        let promised = PPM * (2 + random(9));
        while promised - shares.iter().sum::<u64>() >= PPM {
            shares.push(10_000 + random(PPM - 10_000));
        }
        let total: u64 = shares.iter().sum();
        let of = |(i, &share): (usize, &u64)| Program {
            lease: i as u64,
            overrun_ns: 50_000,
            ..Program::backlogged(share as u32)
        };
        let programs: Vec<Program> = shares.iter().enumerate().map(of).collect();
        let (used, _) = simulate(&programs, 10 * SECOND);
        for (i, share) in shares.iter().enumerate() {
            let (got, want) = (percent(&used, i, 10 * SECOND), 100.0 * *share as f64 / total as f64);
            assert!((got - want).abs() < 0.5, "seed {seed}, program {i}: {got:.2} % of {want:.2} %");
        }
    }
}

#[test]
fn a_holder_that_never_reports_does_not_stop_the_others() {
    let mut arbiter = Arbiter::new(Pace::default());
    let weight = Weight { share_ppm: 500_000, hard_cap: false };
    let (a, b) = (SessionKey(1), SessionKey(2));
    arbiter.join(0, a, LeaseKey(1), weight);
    arbiter.join(0, b, LeaseKey(2), weight);
    arbiter.want(0, a);
    assert_eq!(arbiter.step(0).actions, [Action::Grant(a)]);
    arbiter.want(0, b);
    let quantum = Pace::default().quantum_ns;
    assert_eq!(arbiter.step(quantum).actions, [Action::Recall(a)]);
    assert_eq!(arbiter.step(quantum + 1).actions, []);
    let later = quantum + Pace::default().overrun_ns;
    assert_eq!(arbiter.step(later).actions, [Action::Grant(b)]);
    // Its report is charged all the same, and b goes first from then on.
    arbiter.done(later + MS, a, later + MS, true);
    arbiter.done(later + 2 * MS, b, 2 * MS, true);
    assert_eq!(arbiter.step(later + 2 * MS).actions, [Action::Grant(b), Action::Press(b)]);
}

#[test]
fn the_holder_hears_once_that_somebody_waits() {
    let mut arbiter = Arbiter::new(Pace::default());
    let weight = Weight { share_ppm: 500_000, hard_cap: false };
    let (a, b, c) = (SessionKey(1), SessionKey(2), SessionKey(3));
    for (session, lease) in [(a, 1), (b, 2), (c, 3)] {
        arbiter.join(0, session, LeaseKey(lease), weight);
    }
    arbiter.want(0, a);
    assert_eq!(arbiter.step(0).actions, [Action::Grant(a)]);
    arbiter.want(0, b);
    assert_eq!(arbiter.step(1).actions, [Action::Press(a)]);
    arbiter.want(0, c);
    assert_eq!(arbiter.step(2).actions, []);
}

#[test]
fn a_session_that_dies_in_its_turn_frees_it() {
    let mut arbiter = Arbiter::new(Pace::default());
    let weight = Weight { share_ppm: 500_000, hard_cap: false };
    let (a, b) = (SessionKey(1), SessionKey(2));
    arbiter.join(0, a, LeaseKey(1), weight);
    arbiter.join(0, b, LeaseKey(2), weight);
    arbiter.want(0, a);
    arbiter.want(0, b);
    assert_eq!(arbiter.step(0).actions, [Action::Grant(a), Action::Press(a)]);
    arbiter.leave(MS, a);
    assert_eq!(arbiter.step(MS).actions, [Action::Grant(b)]);
    arbiter.forget(2 * MS, LeaseKey(2));
    assert_eq!(arbiter.step(2 * MS), Decision::default());
}

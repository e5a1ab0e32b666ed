//! The arbiter in simulated time: each simulated session says how long it keeps running once
//! recalled, and how long it works and rests; the simulation measures what share of the GPU each
//! one got.

mod promised;
mod simulation;

use self::simulation::*;
use super::*;

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

/// A limit of cores has no effect, or gives nothing: HAMi #332, #424, #737, #786, HAMi-core #37,
/// #76.
#[test]
fn a_hard_cap_holds_when_nobody_else_waits() {
    let length_ns = 10 * SECOND;
    for share_ppm in [100_000, 250_000, 900_000] {
        let capped = Program { overrun_ns: 20_000, ..Program::backlogged(share_ppm) }.capped();
        let (used, grants) = simulate(&[capped], length_ns);
        let (got, want) = (percent(&used, 0, length_ns), f64::from(share_ppm) / 10_000.0);
        assert!(got <= want + 0.1 && got >= want - 1.0, "{got:.2} % under a cap of {want} %");
        assert!((95..=115).contains(&grants), "{grants} turns in a hundred periods, {share_ppm} ppm");
    }
    for &(share_ppm, hiccups) in HICCUPS {
        let capped = Program { share_ppm: share_ppm.min(500_000), ..hiccups }.capped();
        let (used, _) = simulate(&[capped], length_ns);
        let (got, want) = (percent(&used, 0, length_ns), f64::from(capped.share_ppm) / 10_000.0);
        assert!(got <= want + 0.1 && got >= want - 1.0, "{got:.2} % under a cap of {want} %");
    }
    let capped = Program::backlogged(200_000).capped();
    check_split(&[capped, Program::backlogged(300_000)], &[20.0, 80.0], 1.0);
}

#[test]
fn the_start_of_a_turn_does_not_count_against_a_hard_cap() {
    let length_ns = 10 * SECOND;
    for share_ppm in [100_000, 250_000, 750_000] {
        let capped = Program { unused_ns: 2 * MS, ..Program::backlogged(share_ppm) }.capped();
        let (used, grants) = simulate(&[capped], length_ns);
        let (got, want) = (percent(&used, 0, length_ns), f64::from(share_ppm) / 10_000.0);
        assert!(got <= want + 0.1 && got >= want - 1.0, "{got:.2} % under a cap of {want} %");
        assert!((95..=130).contains(&grants), "{grants} turns in a hundred periods, {share_ppm} ppm");
    }
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

/// Of a GPU of which more is leased than there is, everybody gets the part that its share is of all
/// shares.
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
    let weight = Weight { share_ppm: 500_000, limit_ppm: PPM as u32, premium: false, wait_ns: 0 };
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
    // The one that runs on will want the next turn: b is not to queue as much.
    assert_eq!(arbiter.step(later).actions, [Action::Grant(b), Action::Press(b)]);
    // Its report is charged all the same, and b goes first from then on.
    arbiter.done(later + MS, a, Use::whole(later + MS), true);
    arbiter.done(later + 2 * MS, b, Use::whole(2 * MS), true);
    assert_eq!(arbiter.step(later + 2 * MS).actions, [Action::Grant(b), Action::Press(b)]);
}

#[test]
fn the_holder_hears_once_that_somebody_waits() {
    let mut arbiter = Arbiter::new(Pace::default());
    let weight = Weight { share_ppm: 500_000, limit_ppm: PPM as u32, premium: false, wait_ns: 0 };
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
    let weight = Weight { share_ppm: 500_000, limit_ppm: PPM as u32, premium: false, wait_ns: 0 };
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

const fn weight(share_ppm: u32, limit_ppm: u32) -> Change {
    Change::Weight(Weight { share_ppm, limit_ppm, premium: false, wait_ns: 0 })
}

/// GPU time of each program in the time from the first to the second number of used times, in
/// percent of it.
fn percent_between(before: &[u64], after: &[u64], length_ns: u64) -> Vec<f64> {
    before.iter().zip(after).map(|(b, a)| 100.0 * (a - b) as f64 / length_ns as f64).collect()
}

/// Request and limit of compute are apart (KAI #274, #2191: a fraction has no effect on time).
#[test]
fn a_limit_above_the_share_is_kept_by_one_that_is_alone() {
    let limited = Program { limit_ppm: Some(500_000), ..Program::backlogged(250_000) };
    check_split(&[limited], &[50.0], 1.0);
    // Beside others its share is a guarantee still, and it may have what is free up to the limit.
    check_split(&[limited, Program::backlogged(750_000)], &[25.0, 75.0], 0.5);
    let light = Program { work_ns: MS, rest_ns: 9 * MS, ..Program::backlogged(750_000) };
    check_split(&[limited, light], &[50.0], 1.5);
}

#[test]
fn a_new_weight_is_in_force_at_once() {
    let programs = [Program::backlogged(250_000), Program::backlogged(750_000)];
    let whole = PPM as u32;
    let changes = [
        (SECOND, 0, weight(750_000, whole)),
        (SECOND, 1, weight(250_000, whole)),
        (2 * SECOND, 0, weight(250_000, whole)),
        (2 * SECOND, 1, weight(750_000, whole)),
    ];
    // The first 200 ms after each change already have the new shares, to a turn and a half.
    for window_ns in [200 * MS, SECOND] {
        let until = |length_ns| simulate_with(Pace::default(), &programs, &changes, length_ns).used_ns;
        for (at_ns, want) in [(SECOND, 75.0), (2 * SECOND, 25.0)] {
            let got = percent_between(&until(at_ns), &until(at_ns + window_ns), window_ns)[0];
            let tolerance = 100.0 * (8 * MS) as f64 / window_ns as f64;
            assert!((got - want).abs() <= tolerance, "{got:.2} % of {want} % in {} ms", window_ns / MS);
        }
    }
}

#[test]
fn weights_that_change_at_random_are_kept_between_the_changes() {
    for seed in 1..100_u64 {
        let mut random = random(seed);
        let count = 2 + random(3) as usize;
        let part = |random: &mut dyn FnMut(u64) -> u64| 50_000 + random(PPM / count as u64 - 50_000) as u32;
        let program = |i: usize, share_ppm, overrun_ns| Program {
            lease: i as u64,
            overrun_ns,
            ..Program::backlogged(share_ppm)
        };
        let programs: Vec<Program> =
            (0..count).map(|i| program(i, part(&mut random), random(2 * MS))).collect();
        let mut shares: Vec<u32> = programs.iter().map(|p| p.share_ppm).collect();
        let (mut changes, mut in_force, mut at_ns) = (Vec::new(), Vec::new(), 0);
        for _ in 0..5 {
            at_ns += 3 * SECOND + random(SECOND);
            in_force.push((at_ns, shares.clone()));
            let i = random(count as u64) as usize;
            shares[i] = part(&mut random);
            changes.push((at_ns, i, weight(shares[i], PPM as u32)));
        }
        let outcome = simulate_with(Pace::default(), &programs, &changes, at_ns + 1);
        let (mut from_ns, mut before) = (0, vec![0; count]);
        for ((at_ns, shares), after) in in_force.into_iter().zip(outcome.used_before) {
            let total: u32 = shares.iter().sum();
            let got = percent_between(&before, &after, at_ns - from_ns);
            for (i, got) in got.into_iter().enumerate() {
                let want = 100.0 * f64::from(shares[i]) / f64::from(total);
                assert!((got - want).abs() < 1.5, "seed {seed}, program {i}: {got:.2} % of {want:.2} %");
            }
            (from_ns, before) = (at_ns, after);
        }
    }
}

#[test]
fn a_limit_can_be_set_moved_and_lifted_while_a_session_runs_alone() {
    let changes = [
        // As long as this it had the whole GPU: that is nothing that it has to pay back.
        (5 * SECOND, 0, weight(250_000, 250_000)),
        (7 * SECOND, 0, weight(250_000, 500_000)),
        (9 * SECOND, 0, weight(100_000, 100_000)),
        (11 * SECOND, 0, weight(100_000, PPM as u32)),
    ];
    let alone = [Program::backlogged(250_000)];
    let outcome = simulate_with(Pace::default(), &alone, &changes, 12 * SECOND);
    let mut marks = vec![vec![0]];
    marks.extend(outcome.used_before);
    marks.push(outcome.used_ns);
    let times = [0, 5, 7, 9, 11, 12].map(|s| s * SECOND);
    let want = [100.0, 25.0, 50.0, 10.0, 100.0];
    for (i, want) in want.into_iter().enumerate() {
        let got = percent_between(&marks[i], &marks[i + 1], times[i + 1] - times[i])[0];
        assert!((got - want).abs() < 1.0, "from {} s on: {got:.2} % of {want} %", times[i] / SECOND);
    }
}

#[test]
fn a_suspended_session_gets_nothing_and_is_owed_nothing() {
    let programs = [Program::backlogged(500_000), Program { lease: 1, ..Program::backlogged(500_000) }];
    let changes = [(SECOND, 0, Change::Suspend), (3 * SECOND, 0, Change::Resume)];
    let outcome = simulate_with(Pace::default(), &programs, &changes, 4 * SECOND);
    let [at_suspend, at_resume] = &outcome.used_before[..] else { panic!("two changes") };
    let while_suspended = percent_between(at_suspend, at_resume, 2 * SECOND);
    // What it was just doing is finished first.
    assert!(while_suspended[0] < 0.1 && while_suspended[1] > 99.9, "{while_suspended:?}");
    let afterwards = percent_between(at_resume, &outcome.used_ns, SECOND);
    assert!((afterwards[0] - 50.0).abs() < 1.5, "{afterwards:?}");
}

#[test]
fn a_lone_holder_that_is_suspended_gives_the_turn_back() {
    let mut arbiter = Arbiter::new(Pace::default());
    let a = SessionKey(1);
    arbiter.join(
        0,
        a,
        LeaseKey(1),
        Weight { share_ppm: 500_000, limit_ppm: PPM as u32, premium: false, wait_ns: 0 },
    );
    arbiter.want(0, a);
    assert_eq!(arbiter.step(0).actions, [Action::Grant(a)]);
    arbiter.suspend(MS, a);
    assert_eq!(arbiter.step(MS).actions, [Action::Recall(a)]);
    arbiter.done(2 * MS, a, Use::whole(2 * MS), true);
    assert_eq!(arbiter.step(2 * MS), Decision::default());
    arbiter.want(3 * MS, a);
    assert_eq!(arbiter.step(3 * MS), Decision::default(), "it stays suspended, whatever it wants");
    arbiter.resume(4 * MS, a);
    assert_eq!(arbiter.step(4 * MS).actions, [Action::Grant(a)]);
    arbiter.suspend(5 * MS, a);
    arbiter.leave(5 * MS, a);
    assert_eq!(arbiter.step(5 * MS), Decision::default());
}

/// Six that compute without pause, and leave this share to others.
fn trainers(left_ppm: u32) -> impl Iterator<Item = Program> {
    let share_ppm = (PPM as u32 - left_ppm) / 6;
    (1..=6).map(move |lease| Program { lease, ..Program::backlogged(share_ppm) })
}

/// Work of lower tiers is stopped for it, and a service has a means beside trainers (HAMi #132: low
/// priority is not blocked; TensorRT #903: one real-time model beside another).
#[test]
fn premium_work_within_its_share_waits_for_one_hand_over_only() {
    // Busy for half of the time, with a share of 60 %.
    for (work_ns, rest_ns) in [(MS, MS), (10 * MS, 10 * MS), (100 * MS, 100 * MS), (200_000, 200_000)] {
        let service = Program { work_ns, rest_ns, premium: true, ..Program::backlogged(600_000) };
        let programs: Vec<Program> = trainers(600_000).chain([service]).collect();
        let outcome = simulate_at(Pace::default(), &programs, 10 * SECOND);
        let wait_ns = outcome.longest_wait_ns[6];
        assert!(wait_ns <= BACKLOGGED.overrun_ns + 2, "{work_ns}: waited {wait_ns} ns");
        let got = percent(&outcome.used_ns, 6, 10 * SECOND);
        let turn_ns = work_ns + rest_ns + BACKLOGGED.overrun_ns;
        let alone = 100.0 * work_ns as f64 / turn_ns as f64;
        assert!(got > alone - 0.5, "{work_ns}: {got:.1} % of {alone:.1} %");
        for trainer in 0..6 {
            let got = percent(&outcome.used_ns, trainer, 10 * SECOND);
            assert!((6.7..=9.5).contains(&got), "{work_ns}: a trainer got {got:.1} %");
        }
    }
}

#[test]
fn premium_is_no_more_than_a_share() {
    let premium = |share_ppm| Program { premium: true, ..Program::backlogged(share_ppm) };
    let length_ns = 60 * SECOND;
    for share_ppm in [100_000, 300_000, 700_000] {
        let other = Program::backlogged(PPM as u32 - share_ppm);
        let (used, grants) = simulate(&[premium(share_ppm), Program { lease: 1, ..other }], length_ns);
        // In the first minute it has its burst as well.
        let burst = 100.0 * 2.0 / 60.0;
        let (got, want) = (percent(&used, 0, length_ns), f64::from(share_ppm) / 10_000.0);
        assert!(got >= want - 0.5 && got <= want + burst, "{got:.1} % of {want} %");
        assert!(grants < 60 * 250, "{grants} hand-overs in a minute");
    }
    check_split(&[premium(700_000), premium(300_000)], &[70.0, 30.0], 0.5);
    // Nobody else wants it.
    check_split(&[premium(100_000)], &[100.0], 0.01);
    let capped = Program { limit_ppm: Some(200_000), ..premium(200_000) };
    check_split(&[capped, Program::backlogged(800_000)], &[20.0, 80.0], 1.5);
}

#[test]
fn a_lease_that_becomes_premium_has_its_burst_once() {
    let to =
        |premium| Change::Weight(Weight { share_ppm: 200_000, limit_ppm: PPM as u32, premium, wait_ns: 0 });
    let programs = [Program::backlogged(200_000), Program::backlogged(800_000)];
    let changes = [(SECOND, 0, to(true)), (21 * SECOND, 0, to(false))];
    let outcome = simulate_with(Pace::default(), &programs, &changes, 41 * SECOND);
    let during_ns = outcome.used_before[1][0] - outcome.used_before[0][0];
    assert!((4 * SECOND - 50 * MS..=4 * SECOND + 600 * MS).contains(&during_ns), "{during_ns}");
    let after_ns = outcome.used_ns[0] - outcome.used_before[1][0];
    assert!(after_ns <= 4 * SECOND + 50 * MS, "{after_ns}");
}

/// An arbiter in which `A` has had the turn since 0 and `B` has waited for it since 1 ms.
fn one_holds_and_one_waits() -> Arbiter {
    let mut arbiter = Arbiter::new(Pace::default());
    for (session, lease) in [(A, LeaseKey(1)), (B, LeaseKey(2))] {
        let weight = Weight { share_ppm: 500_000, limit_ppm: PPM as u32, premium: false, wait_ns: 0 };
        arbiter.join(0, session, lease, weight);
    }
    arbiter.want(0, A);
    assert_eq!(arbiter.step(0).actions, [Action::Grant(A)]);
    arbiter.want(MS, B);
    arbiter.step(MS);
    arbiter
}

const A: SessionKey = SessionKey(1);
const B: SessionKey = SessionKey(2);

/// How long the lease of `B` has waited, how long for turns that it had, and for how many.
fn waits_of_b(arbiter: &Arbiter, now_ns: u64) -> (u64, u64, u64) {
    let waits = arbiter.waits(now_ns)[&LeaseKey(2)];
    (waits.total_ns, waits.turns_ns, waits.counts.iter().sum())
}

#[test]
fn a_wait_is_of_a_turn_once_the_turn_begins() {
    let mut arbiter = one_holds_and_one_waits();
    assert_eq!(waits_of_b(&arbiter, 3 * MS), (2 * MS, 0, 0), "it is not over");
    arbiter.done(4 * MS, A, Use::whole(4 * MS), false);
    assert_eq!(arbiter.step(4 * MS).actions, [Action::Grant(B)]);
    assert_eq!(waits_of_b(&arbiter, 9 * MS), (3 * MS, 3 * MS, 1));
    assert_eq!(arbiter.waits(9 * MS)[&LeaseKey(1)].counts[0], 1, "the first had no wait");
}

#[test]
fn a_wait_that_ends_without_a_turn_stays_counted_as_time() {
    let mut arbiter = one_holds_and_one_waits();
    arbiter.suspend(3 * MS, B);
    assert_eq!(waits_of_b(&arbiter, 8 * MS), (2 * MS, 0, 0), "a suspended session does not wait");
    arbiter.resume(9 * MS, B);
    assert_eq!(waits_of_b(&arbiter, 10 * MS), (3 * MS, 0, 0));
    arbiter.leave(11 * MS, B);
    assert_eq!(waits_of_b(&arbiter, 20 * MS), (4 * MS, 0, 0));
}

#[test]
fn what_a_lease_waited_is_handed_out_when_it_leaves_the_gpu() {
    let mut arbiter = one_holds_and_one_waits();
    let waits = arbiter.forget(4 * MS, LeaseKey(2));
    assert_eq!((waits.total_ns, waits.turns_ns), (3 * MS, 0));
    assert_eq!(arbiter.forget(5 * MS, LeaseKey(2)), Waits::default());
    assert!(!arbiter.waits(5 * MS).contains_key(&LeaseKey(2)));
}

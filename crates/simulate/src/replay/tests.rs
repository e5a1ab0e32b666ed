use super::*;
use crate::trace::{jobs_from_text, nodes_from_text, queues_from_text};

const TWO_GPUS: &str = "name,cpus,memory_gib,gpus,model\na,16,64,2,A100\n";
const JOBS: &str = "name,arrival_s,duration_s,cpus,memory_gib,gpus,share,queue,priority,members\n";

fn plan(policies: &[PolicyName]) -> ReplayPlan {
    let policies = policies.to_vec();
    ReplayPlan { policies, seed: 42, cycle_ms: 1000, eviction: Eviction::Resume, migrate: false, late: None }
}

fn one(nodes: &str, jobs: &str, queues: Option<&str>, plan: &ReplayPlan) -> PolicyReplay {
    let site = Site::new(&nodes_from_text(nodes).unwrap()).unwrap();
    let jobs = jobs_from_text(&format!("{JOBS}{jobs}")).unwrap();
    let queues = match queues {
        Some(text) => queues_from_text(text).unwrap(),
        None => Queues::named_by(&jobs, site.gpus()).unwrap(),
    };
    queues.check(&jobs).unwrap();
    replay(&site, &jobs, &queues, plan).unwrap().policies.remove(0)
}

#[test]
fn jobs_wait_for_room_and_end_after_their_duration() {
    // Two at once; the third waits for the first to end, and starts at the next cycle.
    let jobs = "x,0,100,1,1,1,,,,\ny,0,200,1,1,1,,,,\nz,10,50,1,1,1,,,,\n";
    let got = one(TWO_GPUS, jobs, None, &plan(&[PolicyName::BestFit]));
    assert_eq!(got.finished_jobs, 3);
    assert_eq!(got.wait_s, Wait { mean: 30.0, p50: 0.0, p95: 90.0, p99: 90.0, max: 90.0 });
    assert!((got.makespan_hours * 3600.0 - 200.0).abs() < 1e-6, "{got:?}");
    assert!((got.queues[0].gpu_hours * 3600.0 - 350.0).abs() < 1e-6, "{got:?}");
    assert_eq!(got.never_ran.len(), 0);
}

#[test]
fn gangs_start_together() {
    let jobs = "x,0,100,1,1,1,,,,\ngang,0.5,10,1,1,1,,,,2\n";
    let got = one(TWO_GPUS, jobs, None, &plan(&[PolicyName::BestFit]));
    assert_eq!((got.finished_jobs, got.wait_s.max), (2, 99.5));
}

#[test]
fn higher_priorities_preempt_and_the_evicted_resume_or_restart() {
    let jobs = "low,0,100,1,1,2,,,0,\nhigh,10,20,1,1,2,,,5,\n";
    let mut plan = plan(&[PolicyName::BestFit]);
    let resumed = one(TWO_GPUS, jobs, None, &plan);
    assert_eq!((resumed.preempted, resumed.finished_jobs, resumed.lost_gpu_hours), (1, 2, 0.0));
    plan.eviction = Eviction::Restart;
    let restarted = one(TWO_GPUS, jobs, None, &plan);
    assert!((restarted.lost_gpu_hours * 3600.0 - 20.0).abs() < 1e-6, "{restarted:?}");
    assert!(restarted.makespan_hours > resumed.makespan_hours);
}

#[test]
fn a_queue_takes_back_what_it_deserves() {
    let queues = "name,deserved_gpus\nred,1\nblue,1\n";
    let jobs = "r1,0,100,1,1,1,,red,,\nr2,0,100,1,1,1,,red,,\nb1,10,50,1,1,1,,blue,,\n";
    let got = one(TWO_GPUS, jobs, Some(queues), &plan(&[PolicyName::BestFit]));
    assert_eq!((got.reclaimed, got.finished_jobs), (1, 3));
    assert_eq!(got.queues.iter().map(|queue| queue.evictions).sum::<u64>(), 1);
    assert!(got.fairness > 0.0 && got.fairness <= 1.0, "{got:?}");
}

#[test]
fn jobs_beyond_a_limit_never_run_and_the_report_says_why() {
    let queues = "name,limit_gpus\nsmall,1\n";
    let got = one(
        TWO_GPUS,
        "x,0,10,1,1,2,,small,,\ny,0,10,1,1,1,,small,,\n",
        Some(queues),
        &plan(&[PolicyName::Fgd]),
    );
    assert_eq!(got.finished_jobs, 1);
    let [waiting] = &got.never_ran[..] else { panic!("{got:?}") };
    assert!(waiting.jobs == 1 && waiting.reason.contains("limit"), "{waiting:?}");
}

#[test]
fn replays_repeat_under_every_policy() {
    let mut jobs = String::new();
    for index in 0..60 {
        let share = [0.25, 0.5, 1.0][index % 3];
        jobs.push_str(&format!("j{index},{},{},1,1,1,{share},q{},,\n", index * 7, 40 + index * 3, index % 2));
    }
    let nodes = format!("{TWO_GPUS}b,16,64,4,A100\n");
    for policy in PolicyName::ALL {
        let run = || serde_json::to_string(&one(&nodes, &jobs, None, &plan(&[policy]))).unwrap();
        let first = run();
        assert_eq!(first, run());
        assert!(first.contains("\"finished_jobs\":60"), "{first}");
    }
}

#[test]
fn starts_and_durations_are_estimated_from_the_jobs_before() {
    // One GPU of each node; jobs of one program take 100 s, one arrives every 60 s.
    let mut list = String::from(JOBS);
    for index in 0..40 {
        list.push_str(&format!("j{index},{},100,1,1,2,,,,\n", index * 60));
    }
    let site = Site::new(&nodes_from_text(TWO_GPUS).unwrap()).unwrap();
    let jobs = jobs_from_text(&list).unwrap();
    let queues = Queues::named_by(&jobs, site.gpus()).unwrap();
    let runs = replay_with_estimates(&site, &jobs, &queues, &plan(&[PolicyName::BestFit])).unwrap();
    let [(replayed, estimates)] = &runs[..] else { panic!("{} runs", runs.len()) };
    assert_eq!(replayed.finished_jobs, 40);
    assert!(estimates.starts.count > 30, "{estimates:?}");
    // Equal jobs leave nothing to be wrong about but the scheduler's period of a second.
    assert!(estimates.starts.p90_ms <= 40_000 && estimates.durations.p90_ms == 0, "{estimates:?}");
}

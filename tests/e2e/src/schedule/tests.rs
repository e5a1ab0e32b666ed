use std::sync::Barrier;

use anyhow::{anyhow, ensure};

use super::*;

type Log = Arc<Mutex<Vec<String>>>;

fn options(words: &[&str]) -> Options {
    // What the harness prints would be counted with the results of these tests.
    let words = ["--logfile", "/dev/null"].iter().chain(words);
    crate::options(words.map(|word| word.to_string()).collect()).unwrap()
}

/// A test that notes its name.
fn noted(log: &Log, name: &str) -> Planned {
    let (log, entry) = (Arc::clone(log), name.to_string());
    Planned::new(name, move || {
        log.lock().unwrap().push(entry.clone());
        Ok(())
    })
}

fn outcomes(report: &Report) -> Vec<(String, String)> {
    let report: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_string();
    let tests = report["tests"].as_array().unwrap().iter();
    tests.map(|test| (text(&test["name"]), text(&test["outcome"]))).collect()
}

#[test]
fn groups_run_beside_each_other_and_stages_one_after_the_other() {
    let (log, meeting) = (Log::default(), Arc::new(Barrier::new(2)));
    // They meet only if they run at the same time.
    let meets = |name: &str| {
        let meeting = Arc::clone(&meeting);
        Planned::new(name, move || {
            meeting.wait();
            Ok(())
        })
    };
    let plan = vec![
        Stage(vec![vec![meets("a"), noted(&log, "b"), noted(&log, "c")], vec![meets("d")]]),
        Stage(vec![vec![noted(&log, "e")]]),
    ];
    let report = run(plan, &options(&[]), Report::default());
    assert_eq!(*log.lock().unwrap(), ["b", "c", "e"]);
    assert_eq!(outcomes(&report).len(), 5);
}

#[test]
fn what_fails_beside_others_runs_again_before_the_next_stage() {
    let (log, tries) = (Log::default(), Mutex::new(0));
    let noting = Arc::clone(&log);
    let flaky = Planned::new("flaky", move || {
        let mut tries = tries.lock().unwrap();
        *tries += 1;
        noting.lock().unwrap().push(format!("try {tries}"));
        ensure!(*tries == 2, "busy");
        Ok(())
    });
    let broken = Planned::new("broken", || Err(anyhow!("always")));
    let flaky = Planned { again: true, ..flaky };
    let plan = vec![
        Stage(vec![vec![flaky, noted(&log, "after it")], vec![Planned { again: true, ..broken }]]),
        Stage(vec![vec![noted(&log, "next stage")]]),
    ];
    let report = run(plan, &options(&[]), Report::default());
    assert_eq!(*log.lock().unwrap(), ["try 1", "after it", "try 2", "next stage"]);
    let outcomes = outcomes(&report);
    assert!(outcomes.contains(&("flaky".into(), "passed".into())), "{outcomes:?}");
    assert!(outcomes.contains(&("broken".into(), "failed".into())), "{outcomes:?}");
}

#[test]
fn names_choose_tests_and_skipped_ones_say_so() {
    let log = Log::default();
    let plan = || {
        let skipped = Planned::skipped("graphs, skipped", "no reason");
        vec![Stage(vec![vec![noted(&log, "graphs"), noted(&log, "arrays"), skipped]])]
    };
    let report = run(plan(), &options(&["graphs"]), Report::default());
    assert_eq!(*log.lock().unwrap(), ["graphs"]);
    assert!(outcomes(&report).contains(&("graphs, skipped".into(), "skipped".into())));
    for (words, count) in
        [(&["graphs", "--exact"][..], 1), (&["graphs", "arrays"], 3), (&["--skip", "graphs"], 1), (&[], 3)]
    {
        let report = run(plan(), &options(words), Report::default());
        assert_eq!(outcomes(&report).len(), count, "{words:?}");
    }
    assert!(outcomes(&run(plan(), &options(&["--list"]), Report::default())).is_empty());
}

#[test]
fn one_thread_runs_all_in_order_and_a_panic_is_a_failure() {
    let log = Log::default();
    let panics = Planned::new("panics", || panic!("here"));
    let first = vec![Planned { again: true, ..panics }, noted(&log, "a")];
    let plan = vec![Stage(vec![first, vec![noted(&log, "b")]]), Stage(vec![vec![noted(&log, "c")]])];
    let report = run(plan, &options(&["--test-threads", "1"]), Report::default());
    assert_eq!(*log.lock().unwrap(), ["a", "b", "c"]);
    assert_eq!(outcomes(&report)[0], ("panics".to_string(), "failed".to_string()));
}

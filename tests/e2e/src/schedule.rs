//! When each test runs: the harness gives each test a thread, where it waits until it may run.
//!
//! ```text
//!   stage 1   group a: test, test, test ...  \
//!             group b: test, test ...         > beside each other, each group in order
//!             group c: test ...              /
//!             those that failed beside others, one after the other
//!   stage 2   ...
//! ```

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::{Error, Result};
use libtest_mimic::{Completion, Failed, Trial};

use crate::plan::{Planned, Stage};
use crate::report::{Outcome, Report};
use crate::{Options, Skipped};

/// Where a test stands: its stage, its group in that, and its place in the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position {
    stage: usize,
    group: usize,
    index: usize,
}

struct Schedule {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// Of each group of each stage, the number of tests that have run once, and that of all.
    groups: Vec<Vec<(usize, usize)>>,
    /// The stage whose tests run now.
    stage: usize,
    /// Its tests that failed beside others and run again by themselves.
    failed: VecDeque<Position>,
    running: usize,
    /// The most tests that run at a time.
    limit: usize,
}

/// Runs the tests of the plan that `options` ask for, or lists them. What came out is added to
/// `report`.
pub(crate) fn run(plan: Vec<Stage>, options: &Options, report: Report) -> Report {
    let mut arguments = options.harness.clone();
    let is_wanted = |test: &Planned| {
        let matches =
            |name: &String| if arguments.exact { test.name == *name } else { test.name.contains(name) };
        (options.names.is_empty() || options.names.iter().any(matches))
            && !arguments.is_filtered_out(&Trial::test(&test.name, || Ok(())))
    };
    let mut wanted: Vec<(Position, Planned)> = Vec::new();
    let mut groups = Vec::new();
    for (stage, Stage(lists)) in plan.into_iter().enumerate() {
        groups.push(Vec::new());
        for (group, list) in lists.into_iter().enumerate() {
            let tests: Vec<Planned> = list.into_iter().filter(is_wanted).collect();
            groups[stage].push((0, tests.len()));
            let placed = tests.into_iter().enumerate();
            wanted.extend(placed.map(|(index, test)| (Position { stage, group, index }, test)));
        }
    }
    let limit = arguments.test_threads.unwrap_or(usize::MAX);
    if limit > 1 {
        // Each test has a thread, where most wait. The limit holds for those that run.
        arguments.test_threads = Some(wanted.len().max(2));
    }
    let schedule = Arc::new(Schedule::new(groups, limit));
    let report = Arc::new(Mutex::new(report));
    let trials = wanted.into_iter().map(|(position, test)| {
        let (schedule, report) = (Arc::clone(&schedule), Arc::clone(&report));
        Trial::ignorable_test(test.name.clone(), move || schedule.run(position, &test, &report))
    });
    let _ = libtest_mimic::run(&arguments, trials.collect());
    std::mem::take(&mut *report.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Schedule {
    fn new(groups: Vec<Vec<(usize, usize)>>, limit: usize) -> Schedule {
        let mut state = State { groups, stage: 0, failed: VecDeque::new(), running: 0, limit };
        state.advance();
        Schedule { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn run(&self, position: Position, test: &Planned, report: &Mutex<Report>) -> Result<Completion, Failed> {
        // Without others beside it a second try would show nothing.
        let again = test.again && self.lock().limit > 1;
        let (mut result, mut seconds) = self.first(position, test, again);
        if let Err(error) = &result
            && again
            && !error.is::<Skipped>()
        {
            eprintln!("FAILED beside others, runs again by itself: {}: {error:#}", test.name);
            (result, seconds) = self.second(position, test);
        }
        let add = |outcome| {
            let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
            report.add(test.name.clone(), outcome, seconds);
        };
        match result {
            Ok(()) => {
                add(Outcome::Passed);
                Ok(Completion::Completed)
            }
            Err(error) => match error.downcast_ref::<Skipped>() {
                Some(Skipped(reason)) => {
                    eprintln!("skipped {}: {reason}", test.name);
                    add(Outcome::Skipped(reason.clone()));
                    Ok(Completion::ignored_with(reason))
                }
                None => {
                    eprintln!("FAILED {}: {error:#}", test.name);
                    add(Outcome::Failed);
                    Err(Failed::from(format!("{error:#}")))
                }
            },
        }
    }

    /// Runs a test in its group; one that fails is noted to run again, if it is to.
    fn first(&self, position: Position, test: &Planned, again: bool) -> (Result<()>, f64) {
        let may_run = |state: &State| {
            state.stage == position.stage && state.groups[position.stage][position.group].0 == position.index
        };
        self.begin(may_run);
        eprintln!("-- {}{}", test.name, if test.again { ", beside others" } else { "" });
        let (result, seconds) = timed(test);
        let fails = result.as_ref().is_err_and(|error| !error.is::<Skipped>());
        self.end(|state| {
            state.groups[position.stage][position.group].0 += 1;
            if fails && again {
                state.failed.push_back(position);
            }
        });
        (result, seconds)
    }

    /// Runs a test that failed beside others by itself.
    fn second(&self, position: Position, test: &Planned) -> (Result<()>, f64) {
        self.begin(|state| state.is_through(position.stage) && state.failed.front() == Some(&position));
        eprintln!("-- {}", test.name);
        let outcome = timed(test);
        self.end(|state| _ = state.failed.pop_front());
        outcome
    }

    fn begin(&self, may_run: impl Fn(&State) -> bool) {
        let state = self.lock();
        let waits = |state: &mut State| state.running >= state.limit || !may_run(state);
        let mut state = self.changed.wait_while(state, waits).unwrap_or_else(PoisonError::into_inner);
        state.running += 1;
    }

    fn end(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        state.running -= 1;
        change(&mut state);
        state.advance();
        drop(state);
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether each test of the stage has run once.
    fn is_through(&self, stage: usize) -> bool {
        self.groups[stage].iter().all(|(done, count)| done == count)
    }

    /// Goes to the first stage that has something left to do.
    fn advance(&mut self) {
        while self.stage < self.groups.len() && self.is_through(self.stage) && self.failed.is_empty() {
            self.stage += 1;
        }
    }
}

/// What came out of a test, whose panic is a failure, and the seconds that it took.
fn timed(test: &Planned) -> (Result<()>, f64) {
    let begin = Instant::now();
    let run = std::panic::AssertUnwindSafe(|| (test.run)());
    let result = std::panic::catch_unwind(run).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
        Err(Error::msg(format!("it panicked: {text}")))
    });
    (result, begin.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests;

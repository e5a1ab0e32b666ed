//! Which end-to-end tests there are, in which order they run, and which run beside each other.

use anyhow::{Result, anyhow};

use crate::{
    Skipped, Test, alone, api, bad_input, bench, bounds, checkpoint, ci, coverage, cuts, dist, elastic,
    evasion, exchange, forks, handover, hangs, https, identity, kubernetes, limits, links, migrate, node_log,
    nodes, openings, overcommit, programs, record, recording, sanitize, sequences, shares, silence, simulate,
    surroundings, teams, tls, top, training, upgrade, web,
};

/// Groups that run beside each other, once those of the stage before are done. The tests of a group
/// run one after the other.
pub(crate) struct Stage(pub(crate) Vec<Vec<Planned>>);

/// A test as the plan has it.
pub(crate) struct Planned {
    pub(crate) name: String,
    pub(crate) run: Box<dyn Fn() -> Result<()> + Send>,
    /// Whether a failure beside others counts only if it happens again by itself: several groups of
    /// tests may keep a machine so busy that a timeout of the product, which a user would have seen
    /// as well, ends what is tested.
    pub(crate) again: bool,
}

impl Planned {
    pub(crate) fn new(name: impl Into<String>, run: impl Fn() -> Result<()> + Send + 'static) -> Planned {
        Planned { name: name.into(), run: Box::new(run), again: false }
    }

    /// One that says why it does not run.
    pub(crate) fn skipped(name: impl Into<String>, reason: &'static str) -> Planned {
        Planned::new(name, move || Err(anyhow!(Skipped(reason.into()))))
    }
}

/// Why what takes long does not run.
pub(crate) const ONLY_WITH_ALL: &str = "only with --all";

/// All tests. Most wait for something most of the time, so groups run beside each other.
pub(crate) fn stages(all: bool) -> Vec<Stage> {
    let patient = again(&[silence::TESTS, hangs::TESTS, cuts::PATIENT_TESTS, teams::PATIENT_TESTS]);
    let links = again(&[
        limits::TESTS,
        evasion::TESTS,
        bad_input::TESTS,
        alone::TESTS,
        api::TESTS,
        recording::TESTS,
        record::TESTS,
        cuts::TESTS,
        openings::TESTS,
        bounds::TESTS,
        exchange::TESTS,
        handover::TESTS,
        links::TESTS,
        node_log::TESTS,
        nodes::TESTS,
    ]);
    let mut own = programs::tests(all);
    own.extend(sequences::tests(all));
    own.extend(again(&[
        bench::TESTS,
        overcommit::TESTS,
        migrate::TESTS,
        checkpoint::TESTS,
        upgrade::TESTS,
        forks::TESTS,
        sanitize::TESTS,
        coverage::TESTS,
        // The patient group waits for minutes yet.
        identity::TESTS,
        web::TESTS,
    ]));
    let around = again(&[
        simulate::TESTS,
        surroundings::TESTS,
        tls::TESTS,
        https::TESTS,
        top::TESTS,
        training::TESTS,
        dist::TESTS,
        kubernetes::TESTS,
    ]);
    let mut long = long(all);
    long.push(simulate::openb());
    vec![
        Stage(vec![patient, links, own]),
        // Here other work would count.
        Stage(vec![of(shares::TESTS).collect()]),
        Stage(vec![around, again(&[teams::TESTS])]),
        Stage(vec![long]),
    ]
}

fn of(tests: &'static [Test]) -> impl Iterator<Item = Planned> {
    tests.iter().map(|(name, test)| Planned::new(*name, test))
}

/// The tests of a group beside others.
fn again(lists: &[&'static [Test]]) -> Vec<Planned> {
    let tests = lists.iter().flat_map(|list| of(list));
    tests.map(|test| Planned { again: true, ..test }).collect()
}

/// What downloads or computes much.
fn long(all: bool) -> Vec<Planned> {
    let lists = [
        cuts::LONG_TESTS,
        silence::LONG_TESTS,
        openings::LONG_TESTS,
        api::LONG_TESTS,
        dist::LONG_TESTS,
        elastic::LONG_TESTS,
        ci::LONG_TESTS,
        migrate::LONG_TESTS,
        kubernetes::LONG_TESTS,
    ];
    let tests = lists.into_iter().flat_map(of);
    tests.map(|test| if all { test } else { Planned::skipped(test.name, ONLY_WITH_ALL) }).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    #[test]
    fn every_test_has_a_name_of_its_own() {
        let mut names = HashSet::new();
        for test in super::stages(true).into_iter().flat_map(|stage| stage.0.into_iter().flatten()) {
            assert!(names.insert(test.name.clone()), "two tests are called {}", test.name);
        }
        assert!(names.len() > 200, "{} tests", names.len());
    }
}

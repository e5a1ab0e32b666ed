//! The placement policies by name.

use std::fmt;
use std::str::FromStr;

use sluice_sched::{Fragmentation, Placer, Policy, Random, Request, Training, TrainingError};

use crate::site::Site;

/// A placement policy that can be compared with the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyName {
    Random,
    Spread,
    BestFit,
    Fgd,
    Sluice,
}

impl PolicyName {
    pub const ALL: [PolicyName; 5] =
        [PolicyName::Random, PolicyName::Spread, PolicyName::BestFit, PolicyName::Fgd, PolicyName::Sluice];

    /// As the command line and reports call it.
    pub const fn name(self) -> &'static str {
        match self {
            PolicyName::Random => "random",
            PolicyName::Spread => "spread",
            PolicyName::BestFit => "bestfit",
            PolicyName::Fgd => "fgd",
            PolicyName::Sluice => "sluice",
        }
    }

    /// A policy has the same colour in every chart.
    pub(crate) fn colour(self) -> usize {
        PolicyName::ALL.len() - 1 - self as usize
    }
}

/// A policy that knows the workload, for any number of runs.
pub(crate) struct Prepared {
    pub(crate) name: PolicyName,
    policy: Policy,
}

/// What the policy `sluice` learns from. It is never what is simulated: that must not be known in
/// advance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum History {
    /// Jobs drawn from the list with replacement, independently of all arrivals that are simulated:
    /// as if last month's work had been like this month's.
    #[default]
    Draws,
    /// One half of the list's jobs; all arrivals come from the other half.
    Half,
}

/// Jobs that a policy learns from, at most: more say nothing new.
const HISTORY_MAX: usize = 50_000;

/// Far from the seeds of arrivals; "history" in ASCII.
const HISTORY_SEED: u64 = 0x6869_7374_6f72_7900;

impl History {
    /// Of the jobs of a list, those to learn from and those to simulate.
    pub(crate) fn divide<Job: Clone>(self, jobs: &[Job]) -> (Vec<Job>, Vec<Job>) {
        let mut random = Random::new(HISTORY_SEED);
        match self {
            History::Draws => {
                let draws = (0..jobs.len().min(HISTORY_MAX)).map(|_| jobs[random.below(jobs.len())].clone());
                (draws.collect(), jobs.to_vec())
            }
            History::Half => {
                let mut history = jobs.to_vec();
                random.shuffle(&mut history);
                let simulated = history.split_off(jobs.len() / 2);
                history.truncate(HISTORY_MAX);
                (history, simulated)
            }
        }
    }
}

/// Lets the policies learn what they need to know: `fgd` gets what the simulated jobs ask for,
/// `sluice` the history alone.
pub(crate) fn prepare(
    names: &[PolicyName],
    site: &Site,
    simulated: &[Request],
    history: &[Request],
) -> Result<Vec<Prepared>, TrainingError> {
    let prepare = |&name: &PolicyName| {
        let policy = match name {
            // Its seed comes with each run.
            PolicyName::Random => Policy::Random { seed: 0 },
            PolicyName::Spread => Policy::Spread,
            PolicyName::BestFit => Policy::BestFit,
            PolicyName::Fgd => Policy::Fgd(Fragmentation::from_requests(simulated)),
            PolicyName::Sluice => Policy::Sluice(Training::default().learn(site.specs(), history)?),
        };
        Ok(Prepared { name, policy })
    };
    names.iter().map(prepare).collect()
}

impl Prepared {
    /// For one run, with an empty memory of its own.
    pub(crate) fn placer(&self, seed: u64) -> Placer {
        Placer::new(match &self.policy {
            Policy::Random { .. } => Policy::Random { seed },
            policy => policy.clone(),
        })
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for PolicyName {
    type Err = String;

    fn from_str(text: &str) -> Result<PolicyName, String> {
        PolicyName::ALL.into_iter().find(|policy| policy.name() == text).ok_or_else(|| {
            format!(
                "no policy {text:?}; there are {}, and all",
                PolicyName::ALL.map(PolicyName::name).join(", ")
            )
        })
    }
}

impl serde::Serialize for PolicyName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_half_has_nothing_in_common_with_the_other() {
        for count in [0, 1, 2, 7, 1000] {
            let jobs: Vec<usize> = (0..count).collect();
            let (history, simulated) = History::Half.divide(&jobs);
            assert_eq!((history.len(), simulated.len()), (count / 2, count - count / 2));
            let mut both = [history, simulated].concat();
            both.sort_unstable();
            assert_eq!(both, jobs, "each job is in one half");
        }
    }

    #[test]
    fn draws_leave_the_list_as_it_is() {
        let jobs: Vec<usize> = (0..1000).collect();
        let (history, simulated) = History::Draws.divide(&jobs);
        assert_eq!((history.len(), &simulated), (1000, &jobs));
        assert_ne!(history, jobs);
        assert_eq!(history, History::Draws.divide(&jobs).0, "the same in each run");
    }
}

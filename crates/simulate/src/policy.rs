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

    /// The same policy has the same colour in every chart.
    pub(crate) fn colour(self) -> usize {
        PolicyName::ALL.len() - 1 - self as usize
    }
}

/// A policy that knows the workload, for any number of runs.
pub(crate) struct Prepared {
    pub(crate) name: PolicyName,
    policy: Policy,
}

/// Jobs that a policy learns from, at most: more say nothing new.
const HISTORY_MAX: usize = 50_000;

/// Lets the policies learn what they need to know of a workload that asks for `requests`.
///
/// What is placed later must not be known in advance: `sluice` learns from jobs drawn from the list independently of all
/// arrivals that are simulated, as if last month's work had been like this month's.
pub(crate) fn prepare(
    names: &[PolicyName],
    site: &Site,
    requests: &[Request],
) -> Result<Vec<Prepared>, TrainingError> {
    let prepare = |&name: &PolicyName| {
        let policy = match name {
            // Its seed comes with each run.
            PolicyName::Random => Policy::Random { seed: 0 },
            PolicyName::Spread => Policy::Spread,
            PolicyName::BestFit => Policy::BestFit,
            PolicyName::Fgd => Policy::Fgd(Fragmentation::from_requests(requests)),
            PolicyName::Sluice => {
                let mut random = Random::new(HISTORY_SEED);
                let drawn =
                    (0..requests.len().min(HISTORY_MAX)).map(|_| requests[random.below(requests.len())]);
                Policy::Sluice(Training::default().learn(site.specs(), &drawn.collect::<Vec<Request>>())?)
            }
        };
        Ok(Prepared { name, policy })
    };
    names.iter().map(prepare).collect()
}

/// Far from the seeds of arrivals; "history" in ASCII.
const HISTORY_SEED: u64 = 0x6869_7374_6f72_7900;

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

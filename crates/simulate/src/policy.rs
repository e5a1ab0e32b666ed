//! The placement policies by name.

use std::fmt;
use std::str::FromStr;

use sluice_sched::{Fragmentation, Policy, Request};

/// A placement policy that can be compared with the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyName {
    Random,
    Spread,
    BestFit,
    Fgd,
}

impl PolicyName {
    pub const ALL: [PolicyName; 4] =
        [PolicyName::Random, PolicyName::Spread, PolicyName::BestFit, PolicyName::Fgd];

    /// As the command line and reports call it.
    pub const fn name(self) -> &'static str {
        match self {
            PolicyName::Random => "random",
            PolicyName::Spread => "spread",
            PolicyName::BestFit => "bestfit",
            PolicyName::Fgd => "fgd",
        }
    }

    /// One line for people.
    pub const fn describe(self) -> &'static str {
        match self {
            PolicyName::Random => "any node that fits",
            PolicyName::Spread => "the node that is left with the most",
            PolicyName::BestFit => "the node that is left with the least",
            PolicyName::Fgd => "fragmentation gradient descent (Weng et al., USENIX ATC 2023)",
        }
    }

    /// The same policy has the same colour in every chart.
    pub(crate) fn colour(self) -> usize {
        PolicyName::ALL.len() - 1 - self as usize
    }

    /// The policy for a workload whose requests `usual` are typical of it.
    pub(crate) fn policy(self, usual: &[Request], seed: u64) -> Policy {
        match self {
            PolicyName::Random => Policy::Random { seed },
            PolicyName::Spread => Policy::Spread,
            PolicyName::BestFit => Policy::BestFit,
            PolicyName::Fgd => Policy::Fgd(Fragmentation::from_requests(usual)),
        }
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

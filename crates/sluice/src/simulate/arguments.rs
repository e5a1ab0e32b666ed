//! What can be said to `sluice simulate`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use sluice_simulate::PolicyName;

use crate::cli::Output;
use crate::quantity::Period;

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SimulateArgs {
    /// The cluster: a CSV list of nodes, in our format or openb's
    #[arg(long, value_name = "FILE", required_unless_present = "generate")]
    pub(crate) nodes: Option<PathBuf>,

    /// The workload: a CSV list of jobs, in our format or openb's list of pods
    #[arg(long, value_name = "FILE", visible_alias = "pods", required_unless_present = "generate")]
    pub(crate) jobs: Option<PathBuf>,

    /// A CSV list of queues [default: each queue that jobs name deserves an equal part of the GPUs]
    #[arg(long, value_name = "FILE")]
    pub(crate) queues: Option<PathBuf>,

    /// Placement policies to compare: random, spread, bestfit, fgd, sluice; several with commas, or
    /// all
    #[arg(long = "policy", value_name = "NAMES", value_delimiter = ',', default_value = "all")]
    pub(crate) policies: Vec<Policies>,

    /// Orders of arrival, the same for each policy: 42..51 are ten, 1,5 are two. A replay in time
    /// takes the first
    #[arg(long, value_name = "SEEDS", default_value = "42..51")]
    pub(crate) seeds: Seeds,

    /// Fill the cluster up even if jobs have times
    #[arg(long)]
    pub(crate) fill: bool,

    /// Move running work where more fits then
    #[arg(long)]
    pub(crate) migrate: bool,

    /// What the policy sluice learns from; never what is simulated
    #[arg(long, value_name = "KIND", default_value = "draws")]
    pub(crate) history: HistoryKind,

    /// What evicted jobs do when they run again
    #[arg(long, value_name = "KIND", default_value = "resume")]
    pub(crate) eviction: EvictionKind,

    /// The scheduler decides this often, such as 1s or 500ms
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub(crate) cycle: Period,

    /// Write a report with charts, one HTML file that needs nothing else
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// Write the charts into this folder, as SVG files
    #[arg(long, value_name = "FOLDER")]
    pub(crate) svg: Option<PathBuf>,

    /// Write the charts into this folder, as PNG files; no fonts are needed for them
    #[arg(long, value_name = "FOLDER")]
    pub(crate) png: Option<PathBuf>,

    /// Leave out jobs that do not fit even the empty cluster. Lists of our own format are refused
    /// otherwise
    #[arg(long)]
    pub(crate) keep_impossible: bool,

    /// Write a made-up cluster and workload into this folder, and simulate nothing
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["nodes", "jobs", "queues"])]
    pub(crate) generate: Option<PathBuf>,

    /// GPUs of the made-up cluster
    #[arg(long, value_name = "GPUS", default_value_t = 18_000, value_parser = clap::value_parser!(u32).range(8..=8_000_000), requires = "generate")]
    pub(crate) gpus: u32,

    /// Sessions of the made-up workload
    #[arg(long, value_name = "COUNT", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(10..=5_000_000), requires = "generate")]
    pub(crate) sessions: u32,

    /// What the made-up workload is made of
    #[arg(long, value_name = "KIND", default_value = "training", requires = "generate")]
    pub(crate) mix: MixKind,

    /// How to print
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: Output,
}

const EXAMPLES: &str = "\
Jobs with times are replayed: they come, wait in queues, run, give way and end, as the production scheduler decides. Jobs
without fill the cluster up: they come in a random order until 130 % of the GPUs have been asked for, and none ends;
reported is how much is allocated by then. docs/simulate.md describes the lists and the reports.

Examples:
  sluice simulate --nodes nodes.csv --jobs jobs.csv --html report.html
                                                      compare all policies on your cluster
  sluice simulate --nodes nodes.csv --jobs jobs.csv --queues queues.csv --policy sluice --migrate
                                                      who waits how long, and what each queue gets
  sluice simulate --generate big                      made-up lists: 18,000 GPUs, 100,000 sessions
  sluice simulate --nodes openb_node_list_gpu_node.csv --pods openb_pod_list_default.csv \\
      --policy bestfit,fgd,sluice --seeds 42..51 -o json
                                                      the published openb experiment, for programs";

/// What the policy sluice learns from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum HistoryKind {
    /// Jobs drawn from the list at random, independently of the arrivals
    Draws,
    /// One half of the list's jobs; all arrivals come from the other half. For filling up
    Half,
}

/// What a made-up workload is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MixKind {
    /// Mostly training, by GPU time
    Training,
    /// Notebooks, inference and training, a third of the GPUs each
    Even,
}

/// What becomes of the work that an evicted job has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EvictionKind {
    /// They continue where they were: suspended, or from a checkpoint
    Resume,
    /// They begin again
    Restart,
}

/// One policy, or all.
#[derive(Clone, Debug)]
pub(crate) enum Policies {
    One(PolicyName),
    All,
}

impl FromStr for Policies {
    type Err = String;

    fn from_str(text: &str) -> Result<Policies, String> {
        if text == "all" { Ok(Policies::All) } else { text.parse().map(Policies::One) }
    }
}

impl SimulateArgs {
    /// Each named policy once, in the order of their names on the command line.
    pub(crate) fn policies(&self) -> Vec<PolicyName> {
        let mut policies = Vec::new();
        for named in &self.policies {
            let named = match named {
                Policies::One(policy) => std::slice::from_ref(policy),
                Policies::All => &PolicyName::ALL,
            };
            for policy in named {
                if !policies.contains(policy) {
                    policies.push(*policy);
                }
            }
        }
        policies
    }
}

/// `42..51` with both ends, or `1,5,9`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seeds(pub(crate) Vec<u64>);

/// More orders of arrival say nothing more.
const SEEDS_MAX: u64 = 1000;

impl FromStr for Seeds {
    type Err = String;

    fn from_str(text: &str) -> Result<Seeds, String> {
        let number = |text: &str| {
            text.trim().parse::<u64>().map_err(|_| format!("{text:?} is no seed: expected 42..51, or 1,5,9"))
        };
        let mut seeds = match text.split_once("..") {
            Some((first, last)) => {
                let (first, last) = (number(first)?, number(last)?);
                if last < first {
                    return Err(format!("{text} is empty: the first seed is not above the last"));
                }
                if last - first >= SEEDS_MAX {
                    return Err(format!("{text} are more than {SEEDS_MAX} seeds"));
                }
                (first..=last).collect()
            }
            None => text.split(',').map(number).collect::<Result<Vec<u64>, String>>()?,
        };
        seeds.sort_unstable();
        seeds.dedup();
        if seeds.len() as u64 > SEEDS_MAX {
            return Err(format!("more than {SEEDS_MAX} seeds"));
        }
        Ok(Seeds(seeds))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Simulate {
        #[command(flatten)]
        arguments: SimulateArgs,
    }

    #[test]
    fn seeds() {
        let check =
            |text: &str, expect: &[u64]| assert_eq!(text.parse::<Seeds>().unwrap().0, expect, "{text}");
        check("42..45", &[42, 43, 44, 45]);
        check("7", &[7]);
        check("5,1,5", &[1, 5]);
        for (text, part) in [
            ("", "no seed"),
            ("4..2", "empty"),
            ("-1", "no seed"),
            ("0..99999", "more than 1000"),
            ("0..18446744073709551615", "more than 1000"),
            ("1..2..3", "no seed"),
        ] {
            let error = text.parse::<Seeds>().unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn policies_are_named_repeated_or_all() {
        let policies = |options: &[&str]| {
            let line = ["simulate", "--nodes", "n", "--pods", "p"].iter().chain(options);
            Simulate::try_parse_from(line).map(|simulate| simulate.arguments.policies())
        };
        assert_eq!(policies(&[]).unwrap(), PolicyName::ALL);
        let two = [PolicyName::Fgd, PolicyName::Random];
        assert_eq!(policies(&["--policy", "fgd,random,fgd"]).unwrap(), two);
        assert_eq!(policies(&["--policy", "fgd", "--policy", "random"]).unwrap(), two);
        let error = policies(&["--policy", "best"]).unwrap_err().to_string();
        assert!(
            error.contains("no policy \"best\"; there are random, spread, bestfit, fgd, sluice"),
            "{error}"
        );
    }
}

//! The programs that users bring, unmodified: over TCP, and again from a machine of their own.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Result, anyhow};
use harness::programs::{CASES, Case};

use crate::namespaces::Separation;
use crate::node::Node;
use crate::plan::{ONLY_WITH_ALL, Planned};
use crate::{Skipped, expect_pass, sluice_run, start_node};

const LIMIT: Duration = Duration::from_secs(600);

/// What several tests use, made by the first of them and gone with the last.
pub(crate) struct Shared<T> {
    made: OnceLock<Result<T, String>>,
    make: Box<dyn Fn() -> Result<T> + Send + Sync>,
}

impl<T> Shared<T> {
    pub(crate) fn new(make: impl Fn() -> Result<T> + Send + Sync + 'static) -> Arc<Shared<T>> {
        Arc::new(Shared { made: OnceLock::new(), make: Box::new(make) })
    }

    /// It, or why it could not be made.
    pub(crate) fn get(&self) -> Result<&T, &str> {
        let made = self.made.get_or_init(|| (self.make)().map_err(|error| format!("{error:#}")));
        made.as_ref().map_err(String::as_str)
    }
}

/// Each program twice; one that is not to run, once.
pub(crate) fn tests(all: bool) -> Vec<Planned> {
    let separation = Shared::new(Separation::new);
    let mut tests = Vec::new();
    for case in CASES {
        if case.heavy && !all {
            tests.push(Planned::skipped(case.name, ONLY_WITH_ALL));
            continue;
        }
        let words = Shared::new(|| case.words());
        tests.push(over_loopback(case, Arc::clone(&words)));
        tests.push(in_namespaces(case, words, Arc::clone(&separation)));
    }
    tests
}

fn over_loopback(case: &'static Case, words: Arc<Shared<Vec<PathBuf>>>) -> Planned {
    Planned::new(case.name, move || over_tcp(case.name, words.get().map_err(|error| anyhow!("{error}"))?))
}

fn in_namespaces(
    case: &'static Case,
    words: Arc<Shared<Vec<PathBuf>>>,
    separation: Arc<Shared<Separation>>,
) -> Planned {
    let name = format!("{} in namespaces", case.name);
    Planned::new(name.clone(), move || {
        let separation = separation.get().map_err(|reason| anyhow!(Skipped(reason.into())))?;
        separated(separation, &name, words.get().map_err(|error| anyhow!("{error}"))?)
    })
}

fn over_tcp(name: &str, words: &[PathBuf]) -> Result<()> {
    let node = start_node()?;
    expect_pass(sluice_run(&node, &["-p", "0.5", "--memory", "2GiB"]).args(words), name, LIMIT)?;
    node.wait_until_free()
}

/// Client and node see neither each other's network nor each other's files.
fn separated(separation: &Separation, name: &str, words: &[PathBuf]) -> Result<()> {
    let node: Node = separation.start_node()?;
    let mut command = separation.client(&node, &["-p", "0.5", "--memory", "2GiB"]);
    expect_pass(command.args(words), name, LIMIT)?;
    node.wait_until_free()
}

//! `kubectl sluice`: the pods that have shares of GPUs, why one waits, and what they use.
//!
//! kubectl runs the program `kubectl-sluice`, which is this one under another name. The cluster is
//! asked through kubectl itself: every way to log in to a cluster works, and a person sees what the
//! cluster's rights allow. `pods` and `why` need nothing else, since the controller writes into
//! each pod what Sluice's server says of it. `top` asks the server, as the user of `sluice login`.

mod pod;
mod top;

use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};
use serde_json::Value;
use sluice_api::text::escaped;

use crate::cli::Output;
use crate::server::lists::{Columns, show};
use crate::table::Align::Left;
use pod::Pod;

/// The name under which kubectl finds the program.
pub(crate) const PROGRAM: &str = "kubectl-sluice";

/// The label of pods that the webhook has changed.
const SELECTOR: &str = "sluice.dev/injected=true";

/// Pods with shares of GPUs: where they run, why they wait, and what they use
#[derive(Debug, Parser)]
#[command(name = "kubectl sluice", bin_name = "kubectl sluice", version)]
pub(crate) struct Cli {
    #[command(flatten)]
    cluster: Cluster,

    #[command(subcommand)]
    question: Question,
}

#[derive(Debug, Subcommand)]
enum Question {
    /// List pods with their leases, GPUs, shares and states
    Pods(ListArgs),
    /// Say why a pod waits, or where it runs
    Why(WhyArgs),
    /// Show what pods use of their GPUs, measured over a moment
    Top(top::TopArgs),
}

#[derive(Debug, Args)]
struct ListArgs {
    #[command(flatten)]
    scope: Scope,

    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

#[derive(Debug, Args)]
struct Scope {
    /// Pods of all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
}

#[derive(Debug, Args)]
struct WhyArgs {
    /// The pod's name
    pod: String,

    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

/// Which cluster and namespace; kubectl's own unless said
#[derive(Debug, Args)]
struct Cluster {
    /// The namespace of the pods
    #[arg(short, long, value_name = "NAME", global = true)]
    namespace: Option<String>,

    /// The context of the kubeconfig file
    #[arg(long, value_name = "NAME", global = true)]
    context: Option<String>,

    /// The kubeconfig file
    #[arg(long, value_name = "FILE", global = true)]
    kubeconfig: Option<String>,
}

pub(crate) fn run(Cli { cluster, question }: &Cli) -> Result<ExitCode> {
    match question {
        Question::Pods(arguments) => pods(cluster, arguments)?,
        Question::Why(arguments) => why(cluster, arguments)?,
        Question::Top(arguments) => top::run(cluster, arguments)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn pods(cluster: &Cluster, ListArgs { scope, output }: &ListArgs) -> Result<()> {
    let pods = cluster.pods(scope)?;
    let mut columns: Vec<_> = namespace_column(scope).to_vec();
    columns.extend(
        ["POD", "STATE", "LEASE", "GPU", "NODE", "GPUS", "SHARE", "MEMORY", "TIER"]
            .map(|title| (title, Left)),
    );
    let cells = |pod: &Pod| {
        let mut cells = if scope.all_namespaces { vec![pod.namespace.clone()] } else { Vec::new() };
        cells.extend(pod.cells());
        cells
    };
    show(&pods, *output, &scope.none(), &columns, cells)
}

/// The column that a list of all namespaces has first.
fn namespace_column(scope: &Scope) -> Columns<'static> {
    if scope.all_namespaces { &[("NAMESPACE", Left)] } else { &[] }
}

fn why(cluster: &Cluster, WhyArgs { pod, output }: &WhyArgs) -> Result<()> {
    let object = cluster.get(&["pod", pod])?;
    let pod = Pod::of(&object).context("kubectl has answered with something that is no pod")?;
    match output {
        Output::Json => println!("{}", serde_json::to_string_pretty(&pod)?),
        Output::Table => println!("{}", escaped(&pod.why)),
    }
    Ok(())
}

impl Scope {
    fn none(&self) -> String {
        match self.all_namespaces {
            true => "no pod of this cluster has a share of a GPU, or waits for one".to_owned(),
            false => {
                "no pod of this namespace has a share of a GPU, or waits for one; -A lists those of all \
                      namespaces"
                    .to_owned()
            }
        }
    }
}

impl Cluster {
    /// The pods that have leases or wait for them, by namespace and name.
    fn pods(&self, scope: &Scope) -> Result<Vec<Pod>> {
        let all: &[&str] = if scope.all_namespaces { &["--all-namespaces"] } else { &[] };
        let list = self.get(&[&["pods", "--selector", SELECTOR], all].concat())?;
        let mut pods: Vec<Pod> = list["items"].as_array().into_iter().flatten().filter_map(Pod::of).collect();
        pods.sort_by(|a, b| (&a.namespace, &a.pod).cmp(&(&b.namespace, &b.pod)));
        Ok(pods)
    }

    /// Asks the cluster through `kubectl get`.
    fn get(&self, what: &[&str]) -> Result<Value> {
        let mut kubectl = Command::new("kubectl");
        kubectl.arg("get").args(what).args(["--output", "json"]);
        let options = [
            ("--namespace", &self.namespace),
            ("--context", &self.context),
            ("--kubeconfig", &self.kubeconfig),
        ];
        for (name, value) in options {
            value.iter().for_each(|value| _ = kubectl.arg(format!("{name}={value}")));
        }
        let answer = kubectl.stdin(Stdio::inherit()).output().context(
            "kubectl cannot be run, and the cluster is asked through it: install it, or add its folder to PATH",
        )?;
        if !answer.status.success() {
            let said = String::from_utf8_lossy(&answer.stderr);
            let object = what.iter().take_while(|word| !word.starts_with('-'));
            let object: Vec<&str> = object.copied().collect();
            bail!("kubectl could not get {}: {}", object.join(" "), said.trim());
        }
        serde_json::from_slice(&answer.stdout).context("kubectl's answer is no JSON")
    }
}

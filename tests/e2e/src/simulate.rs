//! `sluice simulate` as operators call it: good lists, their reports, and one clear message for
//! each bad list.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::plan::Planned;
use crate::{Skipped, node, process};
use crate::{Test, expect_failure};

pub(crate) const TESTS: &[Test] = &[
    ("simulate: a replay and its report", a_replay),
    ("simulate: filling up and its figures", filling_up),
    ("simulate: made-up lists", made_up_lists),
    ("simulate: bad lists", bad_lists),
    ("simulate: bad options", bad_options),
];

/// Names the folder with the openb lists, which are not part of this repository.
const OPENB: &str = "SLUICE_OPENB";

/// The published figures, where the lists are at hand.
pub(crate) fn openb() -> Planned {
    Planned::new("simulate: openb as published", || {
        let folder = std::env::var_os(OPENB).with_context(|| {
            Skipped(format!("{OPENB} does not name the folder with the lists of cluster-trace-gpu-v2023"))
        })?;
        as_published(Path::new(&folder))
    })
}

fn simulate(arguments: &[&str]) -> Command {
    let mut command = Command::new(node::sluice());
    command.arg("simulate").args(arguments);
    command
}

fn example(name: &str) -> String {
    crate::root().join("docs/examples/simulate").join(name).display().to_string()
}

/// An empty folder for what a test writes.
fn scratch(name: &str) -> Result<PathBuf> {
    let folder = crate::target_folder().join("e2e-simulate").join(name);
    match std::fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => std::fs::create_dir_all(&folder)?,
    }
    Ok(folder)
}

fn json(command: &mut Command) -> Result<Value> {
    Ok(serde_json::from_str(&process::output_of(command.args(["-o", "json"]))?)?)
}

fn a_replay() -> Result<()> {
    let folder = scratch("replay")?;
    let (html, charts) = (folder.join("report.html"), folder.join("charts"));
    let [nodes, jobs, queues] = ["nodes.csv", "jobs.csv", "queues.csv"].map(example);
    let lists = ["--nodes", &nodes, "--jobs", &jobs, "--queues", &queues];
    let report =
        json(simulate(&lists).arg("--html").arg(&html).arg("--svg").arg(&charts).arg("--png").arg(&charts))?;
    let policies = report["policies"].as_array().context("policies")?;
    ensure!(policies.len() == 5, "{} policies", policies.len());
    for policy in policies {
        ensure!(policy["finished_jobs"] == report["jobs"], "{policy:#}");
        ensure!(policy["never_ran"].as_array().is_some_and(Vec::is_empty), "{policy:#}");
        let hours =
            policy["queues"].as_array().context("queues")?.iter().map(|queue| queue["gpu_hours"].as_f64());
        let used: f64 = hours.flatten().sum();
        let demand = report["demand_gpu_hours"].as_f64().context("demand")?;
        ensure!((used - demand).abs() < demand * 1e-9, "{used} GPU hours used, {demand} asked for");
        for figure in ["mean", "p50", "p95", "p99", "max"] {
            ensure!(
                policy["wait_s"][figure].as_f64().is_some_and(|wait| wait >= 0.0),
                "{figure} of {policy:#}"
            );
        }
    }
    let page = std::fs::read_to_string(&html)?;
    ensure!(page.matches("<svg").count() > 5 && page.trim_end().ends_with("</html>"), "not a whole page");
    let elsewhere = page.replace("http://www.w3.org/2000/svg", "");
    ensure!(!elsewhere.contains("http") && !elsewhere.contains("<script"), "the page needs something else");
    for chart in ["waits", "allocation-over-time", "queue-shares-fgd"] {
        let svg = std::fs::read_to_string(charts.join(format!("{chart}.svg")))?;
        ensure!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{chart}");
        let png = std::fs::read(charts.join(format!("{chart}.png")))?;
        ensure!(png.starts_with(b"\x89PNG\r\n\x1a\n"), "{chart}");
    }
    let repeated = json(&mut simulate(&lists))?;
    ensure!(repeated == report, "the same lists gave another report");
    let restarted = json(simulate(&lists).args(["--eviction", "restart", "--migrate", "--policy", "fgd"]))?;
    ensure!(restarted["eviction"] == "restart" && restarted["migrate"] == true, "{restarted:#}");
    let table = process::output_of(simulate(&lists).args(["--policy", "fgd"]))?;
    ensure!(table.contains("FAIRNESS") && table.contains("serving"), "{table}");
    Ok(())
}

fn filling_up() -> Result<()> {
    let [nodes, jobs] = ["nodes.csv", "jobs.csv"].map(example);
    let arguments =
        ["--nodes", &nodes, "--pods", &jobs, "--fill", "--policy", "random,fgd", "--seeds", "1..3"];
    let report = json(&mut simulate(&arguments))?;
    for policy in report["policies"].as_array().context("policies")? {
        for column in ["80", "90", "95", "100", "110", "130"] {
            let cell = &policy["allocated_percent"][column];
            let seeds = cell["per_seed"].as_object().context("per_seed")?;
            ensure!(seeds.keys().eq(["1", "2", "3"]), "{cell}");
            let (mean, sd) = (cell["mean"].as_f64().context("mean")?, cell["sd"].as_f64().context("sd")?);
            ensure!((0.0..=100.0).contains(&mean) && sd >= 0.0, "{cell}");
        }
    }
    Ok(())
}

fn made_up_lists() -> Result<()> {
    let folder = scratch("made-up")?;
    let path = folder.display().to_string();
    process::output_of(&mut simulate(&["--generate", &path, "--gpus", "64", "--sessions", "300"]))?;
    let [nodes, jobs, queues] = ["nodes.csv", "jobs.csv", "queues.csv"].map(|name| format!("{path}/{name}"));
    let report = json(&mut simulate(&[
        "--nodes", &nodes, "--jobs", &jobs, "--queues", &queues, "--policy", "bestfit",
    ]))?;
    ensure!(report["gpus"] == 64 && report["policies"][0]["finished_jobs"] == 300, "{report:#}");
    Ok(())
}

fn bad_lists() -> Result<()> {
    let folder = scratch("bad")?;
    let nodes = "name,cpus,memory_gib,gpus,model\na,8,32,2,T4\n";
    let jobs = "name,arrival_s,duration_s,cpus,memory_gib,gpus,queue\nj,0,10,1,1,1,\n";
    let queues = "name,parent\nall,\n";
    let check = |name: &str, texts: [&str; 3], says: &str| -> Result<()> {
        let mut command = Command::new(node::sluice());
        command.arg("simulate");
        for (list, text) in ["nodes", "jobs", "queues"].iter().zip(texts) {
            let path = folder.join(format!("{list}.csv"));
            std::fs::write(&path, text)?;
            command.arg(format!("--{list}")).arg(path);
        }
        expect_failure(&mut command, name, 1, &[says])
    };
    check(
        "negative",
        ["name,cpus,memory_gib,gpus,model\na,-8,32,2,T4\n", jobs, queues],
        "nodes.csv:2: cpus: \"-8\"",
    )?;
    check(
        "absurd",
        ["name,cpus,memory_gib,gpus,model\na,8,1e99,2,T4\n", jobs, queues],
        "nodes.csv:2: memory_gib",
    )?;
    check("column", ["name,cpu\na,1\n", jobs, queues], "nodes.csv:1: unknown column \"cpu\"")?;
    check("fields", ["name,cpus,memory_gib,gpus,model\na,8\n", jobs, queues], "nodes.csv:2: 2 fields")?;
    check("empty", ["", jobs, queues], "nodes.csv:1: the column \"name\" is missing")?;
    let job = |cells: &str| format!("name,arrival_s,duration_s,cpus,memory_gib,gpus,queue\n{cells}\n");
    check("time", [nodes, &job("j,-1,10,1,1,1,"), queues], "jobs.csv:2: arrival_s: \"-1\"")?;
    check("queue", [nodes, &job("j,0,10,1,1,1,x"), queues], "jobs.csv:2: queue: there is no queue \"x\"")?;
    check(
        "impossible",
        [nodes, &job("j,0,10,1,1,3,"), queues],
        "jobs.csv:2: gpus: asks for 3 GPUs; the largest node has 2",
    )?;
    check(
        "cycle",
        [nodes, jobs, "name,parent\na,b\nb,a\n"],
        "queues.csv:2: parent: \"a\" is part of \"b\" is part of \"a\" is a cycle",
    )?;
    let missing = folder.join("missing.csv").display().to_string();
    expect_failure(
        &mut simulate(&["--nodes", &missing, "--jobs", &missing]),
        "missing",
        1,
        &["missing.csv: No such file"],
    )
}

fn bad_options() -> Result<()> {
    let [nodes, jobs, queues] = ["nodes.csv", "jobs.csv", "queues.csv"].map(example);
    let with = |options: &[&str]| {
        let mut command = simulate(&["--nodes", &nodes, "--jobs", &jobs]);
        command.args(options);
        command
    };
    expect_failure(&mut with(&["--policy", "best"]), "policy", 2, &["no policy \"best\"", "bestfit"])?;
    expect_failure(&mut with(&["--seeds", "9..1"]), "seeds", 2, &["9..1 is empty"])?;
    expect_failure(
        &mut with(&["--fill", "--queues", &queues]),
        "queues",
        1,
        &["--queues is for jobs that come and end"],
    )?;
    expect_failure(
        &mut with(&["--html", "/no-such-folder/x.html"]),
        "html",
        1,
        &["cannot write /no-such-folder/x.html"],
    )?;
    expect_failure(&mut simulate(&[]), "nothing", 2, &["--nodes", "--jobs"])
}

/// Means of ten seeds at 100 % of arrived demand on the default list (Weng et al.), within 0.3
/// points.
fn as_published(folder: &Path) -> Result<()> {
    let list = |name: &str| folder.join(name).display().to_string();
    let (nodes, pods) = (list("openb_node_list_gpu_node.csv"), list("openb_pod_list_default.csv"));
    let mut command =
        simulate(&["--nodes", &nodes, "--pods", &pods, "--policy", "random,bestfit,fgd,sluice"]);
    let log = crate::target_folder().join("e2e-logs/simulate-openb.log");
    // Two minutes on two cores are promised; a busy machine gets more.
    let limit = Duration::from_secs(600);
    let ended = process::run_limited(command.args(["-o", "json"]), limit, &log)?;
    ensure!(ended.code == Some(0), "{:?}: {}", ended.code, ended.output);
    let begin = ended.output.find('{').context("a JSON report")?;
    let end = ended.output.rfind('}').context("a JSON report")?;
    let report: Value = serde_json::from_str(&ended.output[begin..=end])?;
    let at_100 = |policy: usize| report["policies"][policy]["allocated_percent"]["100"]["mean"].as_f64();
    for (policy, published) in [(0, 86.30), (1, 92.86), (2, 95.23)] {
        let mean = at_100(policy).context("a mean")?;
        ensure!((mean - published).abs() <= 0.3, "{mean} at 100 %, published is {published}");
    }
    ensure!(at_100(3) > at_100(2), "sluice {:?} is not above fgd {:?}", at_100(3), at_100(2));
    Ok(())
}

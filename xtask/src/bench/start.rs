//! The time from the start of a program to its first kernel.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use harness::software_gpu;

use super::{Figures, Row, figures, folder, get, repeat, source};
use crate::node::Node;
use crate::{node, process};

pub(super) const START: &[Row] = &[
    Row {
        what: "`sluice run --node` of `true`",
        unit: "ms",
        figure: get!("with_node_ms"),
        baseline: "`true` alone",
        of_baseline: get!("alone_ms"),
    },
    Row {
        what: "`sluice run` of `true` with a private node",
        unit: "ms",
        figure: get!("private_ms"),
        baseline: "`true` alone",
        of_baseline: get!("alone_ms"),
    },
    Row {
        what: "TCP: from a process to its context",
        unit: "ms",
        figure: get!("tcp_context_ms"),
        baseline: NATIVE,
        of_baseline: get!("native_context_ms"),
    },
    Row {
        what: "TCP: from its last line to its end",
        unit: "ms",
        figure: get!("tcp_exit_ms"),
        baseline: NATIVE,
        of_baseline: get!("native_exit_ms"),
    },
    Row {
        what: "TCP: resident memory with a context",
        unit: "MiB",
        figure: get!("tcp_context_mib"),
        baseline: NATIVE,
        of_baseline: get!("native_context_mib"),
    },
    Row {
        what: "TCP: after copies of 64 MiB each way",
        unit: "MiB",
        figure: get!("tcp_copies_mib"),
        baseline: NATIVE,
        of_baseline: get!("native_copies_mib"),
    },
    Row {
        what: "same host: from a process to its context",
        unit: "ms",
        figure: get!("shm_context_ms"),
        baseline: NATIVE,
        of_baseline: get!("native_context_ms"),
    },
    Row {
        what: "same host: from its last line to its end",
        unit: "ms",
        figure: get!("shm_exit_ms"),
        baseline: NATIVE,
        of_baseline: get!("native_exit_ms"),
    },
    Row {
        what: "same host: resident memory with a context",
        unit: "MiB",
        figure: get!("shm_context_mib"),
        baseline: NATIVE,
        of_baseline: get!("native_context_mib"),
    },
    Row {
        what: "same host: after copies of 64 MiB each way",
        unit: "MiB",
        figure: get!("shm_copies_mib"),
        baseline: NATIVE,
        of_baseline: get!("native_copies_mib"),
    },
];

/// What the program does by itself, memory of the GPU included.
const NATIVE: &str = "software GPU in the process";

pub(super) fn start() -> Result<Vec<Figures>> {
    const STARTS: u32 = 20;
    let node = Node::start(&["--listen", "127.0.0.1:0", "--gpus", "software:1,1GiB"])?;
    let time = |command: &mut Command| -> Result<f64> {
        let begin = Instant::now();
        for _ in 0..STARTS {
            ensure!(command.status()?.success(), "{} failed", process::show(command));
        }
        Ok(begin.elapsed().as_secs_f64() * 1e3 / f64::from(STARTS))
    };
    let sluice = |options: &[&str], program: &str| {
        let mut command = Command::new(node::sluice());
        command.args(["run", "-q"]).args(options).args(["--", program]).env_remove("SLUICE_NODE");
        command
    };
    let program = folder().join("start");
    let mut gcc = Command::new("gcc");
    process::run(gcc.args(["-O2", "-std=gnu11"]).arg(source("start.c")).arg("-o").arg(&program).arg("-ldl"))?;
    let program = program.to_str().context("the target folder's name is not text")?;
    let socket = format!("unix:{}", folder().join("start.sock").display());
    let local = Node::start(&["--listen", &socket, "--gpus", "software:1,1GiB"])?;
    repeat(|| {
        let mut run = Figures::from([
            ("alone_ms".into(), time(&mut Command::new("true"))?),
            ("with_node_ms".into(), time(&mut sluice(&["--node", &node.address], "true"))?),
            ("private_ms".into(), time(&mut sluice(&["--gpus", "software:1,1GiB"], "true"))?),
        ]);
        for (link, node) in [("tcp_", &node), ("shm_", &local)] {
            let output = process::output_of(&mut sluice(&["--node", &node.address], program))?;
            run.extend(figures(link, &output)?);
        }
        let mut native = Command::new(program);
        native.env("LD_LIBRARY_PATH", software_gpu::driver_folder()?);
        run.extend(figures("native_", &process::output_of(&mut native)?)?);
        Ok(run)
    })
}

//! A driver of which a call never returns, in the midst of a worker (`tests/hanging-driver`): the
//! session ends with a reason, its GPU is fenced, and the node continues.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::software_gpu;

use crate::limits::start_endless;
use crate::node::{self, Node};
use crate::process;
use crate::{Test, bare_program, expect_pass};

pub(crate) const TESTS: &[Test] = &[
    ("a driver call never returns", a_call_never_returns),
    ("a driver call waits for a host function", a_call_waits_for_a_host_function),
];

const LIMIT: Duration = Duration::from_secs(120);

/// What hangs, and how it is told; in the end nothing hangs any more, and the same node continues.
fn a_call_never_returns() -> Result<()> {
    let driver = HangingDriver::build("hangs")?;
    let node = driver.node()?;
    // Beside them, all the time: what takes long does not hang. It is a node of its own, since this
    // driver cannot be paused.
    let other = driver.node()?;
    let mut endless = start_endless(&other)?;
    for (fact, function, patience_s) in [
        ("cuMemMap", "cuMemMap", 6),
        ("cuLaunchKernel", "cuLaunchKernel", 3),
        // While the GPU has work: only that it is stuck in the kernel tells it from a long one.
        ("cuCtxSynchronize deep", "cuCtxSynchronize", 3),
        // A driver may take its time to start.
        ("cuInit", "cuInit", 6),
    ] {
        driver.hang(fact)?;
        let mut command = bare_program(&node, &[], "hang.py");
        let name = format!("a driver hangs in {function}");
        let ended = expect_pass(command.env("HANGS", "1"), &name, LIMIT).context(fact)?;
        let said = format!("the node's driver hangs: {function} did not return for {patience_s} s");
        ensure!(ended.output.contains(&said), "no {said:?} in {:?}", ended.output);
        node.wait_until_free().context(fact)?;
        driver.go_on()?;
        expect_pass(&mut bare_program(&node, &[], "hang.py"), "a driver that goes on", LIMIT)?;
    }
    ensure!(endless.try_wait()?.is_none(), "a kernel that takes long was taken for a driver that hangs");
    endless.kill()?;
    endless.wait()?;
    node.wait_until_free()?;
    other.wait_until_free()
}

/// The worker hears from the program that its function has returned, whoever of it waits in the
/// driver.
fn a_call_waits_for_a_host_function() -> Result<()> {
    let driver = HangingDriver::build("callbacks")?;
    let node = driver.node()?;
    let waits = driver.file.with_extension("waits");
    let _ = std::fs::remove_file(&waits); // of an earlier run
    driver.hang("cuEventQuery callbacks")?;
    let mut command = bare_program(&node, &[], "host_function_waits.py");
    expect_pass(command.env("WAITS", &waits), "a driver call waits for a host function", LIMIT)?;
    node.wait_until_free()
}

/// The software GPU as a library, with a call that hangs once a file says which.
pub(crate) struct HangingDriver {
    library: PathBuf,
    pub(crate) file: PathBuf,
}

impl HangingDriver {
    pub(crate) fn build(name: &str) -> Result<HangingDriver> {
        let folder = crate::target_folder().join("hanging-driver").join(name);
        std::fs::create_dir_all(&folder)?;
        let (library, file) = (folder.join("libhanging_driver.so"), folder.join("hangs"));
        let (source, real) =
            (crate::root().join("tests/hanging-driver/hang.c"), software_gpu::driver_folder()?);
        let mut gcc = Command::new("gcc");
        gcc.args(["-shared", "-fPIC", "-Wall", "-Werror", "-O1", "-o"]).args([&library, &source]);
        gcc.arg(format!("-Wl,--no-as-needed,-rpath,{}", real.display())).arg(real.join("libcuda.so.1"));
        process::run(&mut gcc)?;
        let driver = HangingDriver { library, file };
        driver.go_on()?;
        Ok(driver)
    }

    /// What `--gpus` says for it.
    pub(crate) fn gpus(&self) -> String {
        format!("library:{}", self.library.display())
    }

    fn node(&self) -> Result<Node> {
        let mut command = Command::new(node::sluice());
        command.args(["node", "--listen", "127.0.0.1:0", "--driver-patience", "3s", "--gpus", &self.gpus()]);
        Node::start_command(command.env("HANG_FILE", &self.file))
    }

    pub(crate) fn hang(&self, fact: &str) -> Result<()> {
        // At once, so that nobody reads a half of it.
        let new = self.file.with_extension("new");
        std::fs::write(&new, fact)?;
        std::fs::rename(&new, &self.file).context("the fact")
    }

    pub(crate) fn go_on(&self) -> Result<()> {
        self.hang("nothing")
    }
}

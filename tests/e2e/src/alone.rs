//! The software GPU as a `libcuda.so.1` of its own: without a client, node or network, and as the
//! driver that a node loads by its path, where NVIDIA's would be.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use harness::software_gpu::{by_path, driver_folder};

use crate::node::Node;
use crate::{Test, bare_program, expect_pass, program_file};

pub(crate) const TESTS: &[Test] =
    &[("software GPU by itself", driver_functions), ("a driver by its path", driver_by_path)];

const LIMIT: Duration = Duration::from_secs(120);

/// Parts of `driver_functions.py` that need what the client library adds to a driver; the software
/// GPU alone answers `CUDA_ERROR_NOT_SUPPORTED`.
const CLIENT_ONLY: &str = "logs_and_profiler mapped_host_memory pinned_memory managed_memory functions_and_shared_memory batches \
                           abilities attached_contexts managed_batches ranges pools_by_place older_names";

/// A driver that the worker can only load, not pause: what holds for NVIDIA's.
fn driver_by_path() -> Result<()> {
    let node = Node::start(&["--listen", "127.0.0.1:0", "--gpus", &by_path()])?;
    let mut command = bare_program(&node, &["-p", "0.5"], "driver_functions.py");
    expect_pass(&mut command, "a driver by its path", LIMIT)?;
    // What it prints it prints in its own process.
    let ended =
        expect_pass(&mut bare_program(&node, &[], "prints.py"), "prints of a driver by its path", LIMIT)?;
    let expected: String = (0..3).map(|turn| format!("from the device\nwaited {turn}\n")).collect();
    ensure!(ended.output.contains(&expected), "{}", ended.output);
    // It cannot end a kernel alone, so the session ends.
    let mut command = bare_program(&node, &["--kernel-timeout", "500ms"], "endless.py");
    expect_pass(command.env("EXPECT", "timeout"), "kernel timeout of a driver by its path", LIMIT)?;
    node.wait_until_free()
}

fn driver_functions() -> Result<()> {
    let mut command = Command::new("python3");
    command
        .arg(program_file("driver_functions.py"))
        .env("LD_LIBRARY_PATH", driver_folder()?)
        .env("WITHOUT", CLIENT_ONLY);
    expect_pass(&mut command, "software GPU by itself", LIMIT).map(drop)
}

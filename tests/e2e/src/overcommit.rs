//! Programs whose memory adds up to more than their GPU has.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use serde_json::Value;

use super::elastic::{number, sessions_of, text};
use super::teams::Process;
use super::{Test, expect_failure, program_file, sluice_run};
use crate::node::Node;
use crate::python;

pub(crate) const TESTS: &[Test] = &[
    ("programs that do not fit on a GPU together", three_programs),
    ("programs that fit neither on a GPU nor in host memory", swapped_to_a_file),
    ("a swap file that was changed", damaged_file),
    ("elastic: the guide's three programs", guide),
];

const MIB: u64 = 1 << 20;
const GPU: u64 = 256 * MIB;
/// 0.7 of the GPU, and what the program uses of it.
const LEASED: &str = "179MiB";
const HELD: u64 = 160 * MIB;

/// Three programs of 0.7 of a GPU run at once and are swapped; one gets more memory meanwhile, and
/// another is suspended and resumed.
fn three_programs() -> Result<()> {
    refused_options()?;
    let node = ["--listen", "127.0.0.1:0", "--gpus", "software:1,256MiB", "--overcommit", "2.5"];
    let node = Node::start(&node)?;
    let start = |seed: &str| {
        let mut command = sluice_run(&node, &["-p", "0.3", "--memory", LEASED]);
        command.arg("python3").arg(program_file("moved.py")).args([&HELD.to_string(), seed]);
        let mut program = Process::start(&format!("overcommitted {seed}"), &mut command)?;
        // One after the other, so that their sessions are in this order.
        program.expect_line("ready")?;
        Ok(program)
    };
    let mut programs = ["1", "2", "3"].iter().map(|seed| start(seed)).collect::<Result<Vec<_>>>()?;
    let mut fourth = sluice_run(&node, &["-p", "0.1", "--memory", LEASED]);
    expect_failure(fourth.args(["true"]), "more than is overcommitted", 125, &["of memory free"])?;
    all(&mut programs, &[("compute", "computed"), ("check", "right")])?;

    let sessions = sessions_of(&node)?;
    let sum = |name: &str| -> u64 {
        sessions.as_array().into_iter().flatten().map(|session| number(session, name)).sum()
    };
    ensure!(sum("memory_resident") <= GPU && sum("memory_used") >= 3 * HELD, "{sessions}");
    ensure!(sum("memory_moves") >= 2 && sum("memory_moving_us") > 0, "nothing was swapped: {sessions}");
    let gpus: Value = serde_json::from_str(&node.query("gpus")?)?;
    ensure!(number(&gpus[0], "memory_leased") > GPU && number(&gpus[0], "memory_used") <= GPU, "{gpus}");

    let lease = |place: usize| sessions[place]["lease"].to_string();
    text(&node, &["resize", &lease(0), "--memory", "200MiB", "-p", "0.4"])?;
    text(&node, &["suspend", &lease(1)])?;
    let now = sessions_of(&node)?;
    ensure!(now[0]["memory"] == 200 * MIB && now[0]["share_ppm"] == 400_000, "{now}");
    ensure!(now[1]["suspended"] == true && number(&now[1], "memory_swapped") >= HELD, "{now}");
    // The calls of the suspended one wait, and those of the others do not.
    programs.iter_mut().try_for_each(|program| program.tell("compute"))?;
    programs[0].expect_line("computed")?;
    programs[2].expect_line("computed")?;
    text(&node, &["resume", &lease(1)])?;
    programs[1].expect_line("computed")?;
    all(&mut programs, &[("check", "right")])?;
    programs.iter_mut().try_for_each(Process::end_its_input)?;
    node.wait_until_free()
}

/// Three programs of 0.7 of a GPU each, on a node that has host memory for a part of one of them
/// and a file for the rest.
fn swapped_to_a_file() -> Result<()> {
    let (folder, file) = swap_folder()?;
    let options = ["--listen", "127.0.0.1:0", "--gpus", "software:1,256MiB", "--overcommit", "2.5"];
    let node = Node::start(&[&options[..], &["--swap-memory", "96MiB", "--swap-file", &file]].concat())?;
    let start = |seed: &str| {
        let mut command = sluice_run(&node, &["-p", "0.3", "--memory", LEASED]);
        command.arg("python3").arg(program_file("moved.py")).args([&HELD.to_string(), seed]);
        let mut program = Process::start(&format!("swapped to a file {seed}"), &mut command)?;
        program.expect_line("ready")?;
        Ok(program)
    };
    let mut programs = ["1", "2", "3"].iter().map(|seed| start(seed)).collect::<Result<Vec<_>>>()?;
    all(&mut programs, &[("compute", "computed"), ("check", "right")])?;
    let sessions = sessions_of(&node)?;
    let sum = |name: &str| -> u64 {
        sessions.as_array().into_iter().flatten().map(|session| number(session, name)).sum()
    };
    let shown = text(&node, &["sessions"])?;
    ensure!(shown.contains(" in file)"), "{shown}");
    let (swapped, in_file) = (sum("memory_swapped"), sum("memory_in_file"));
    ensure!(in_file > 0 && swapped - in_file <= 96 * MIB && swapped > HELD, "{sessions}");
    ensure!(std::fs::read_dir(&folder)?.next().is_none(), "the files have names");
    let lease = |place: usize| sessions[place]["lease"].to_string();
    text(&node, &["suspend", &lease(1)])?;
    let now = sessions_of(&node)?;
    ensure!(now[1]["suspended"] == true && number(&now[1], "memory_swapped") >= HELD, "{now}");
    text(&node, &["resume", &lease(1)])?;
    all(&mut programs, &[("compute", "computed"), ("check", "right")])?;
    programs.iter_mut().try_for_each(Process::end_its_input)?;
    node.wait_until_free()
}

/// One bit of a suspended program's memory is changed in the file: the program never sees it, and
/// ends with the reason.
fn damaged_file() -> Result<()> {
    let (folder, file) = swap_folder()?;
    let options = ["--listen", "127.0.0.1:0", "--gpus", "software:1,256MiB", "--swap-memory", "1MiB"];
    let node = Node::start(&[&options[..], &["--swap-file", &file]].concat())?;
    let mut command = sluice_run(&node, &["--memory", LEASED]);
    command.arg("python3").arg(program_file("moved.py")).args([&HELD.to_string(), "1"]);
    let mut program = Process::start("swap file changed", &mut command)?;
    program.expect_line("ready")?;
    let lease = sessions_of(&node)?[0]["lease"].to_string();
    text(&node, &["suspend", &lease])?;
    let now = sessions_of(&node)?;
    ensure!(number(&now[0], "memory_in_file") >= HELD, "{now}");
    let files = open_files(&node, &folder)?;
    ensure!(files.len() == 1, "{files:?} are open");
    let open = std::fs::File::options().read(true).write(true).open(&files[0])?;
    ensure!(open.metadata()?.len() >= HELD, "{:?}", open.metadata());
    let mut byte = [0];
    open.read_exact_at(&mut byte, HELD / 2)?;
    open.write_all_at(&[byte[0] ^ 1], HELD / 2)?;
    drop(open);
    program.tell("check")?;
    text(&node, &["resume", &lease])?;
    program
        .expect_message("the memory of the program is lost: the swap file does not hold what was written")?;
    ensure!(!program.end()?.success() && program.line().is_err(), "{}", program.said());
    node.wait_until_free()?;
    ensure!(open_files(&node, &folder)?.is_empty(), "the file is still open");
    Ok(())
}

/// An empty folder for swap files, and `--swap-file` with 1 GiB there.
fn swap_folder() -> Result<(PathBuf, String)> {
    let folder = crate::target_folder().join("swap");
    std::fs::create_dir_all(&folder)?;
    let file = format!("{}:1GiB", folder.display());
    Ok((folder, file))
}

/// The files without names in a folder that the node and its workers have filled and hold open.
fn open_files(node: &Node, folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for process in node.workers().into_iter().chain([node.pid()]) {
        for entry in std::fs::read_dir(format!("/proc/{process}/fd"))? {
            let entry = entry?.path();
            // One that was closed meanwhile has no target; those that a node keeps ready are empty.
            let is_there = std::fs::read_link(&entry).is_ok_and(|file| file.parent() == Some(folder));
            if is_there && std::fs::metadata(&entry).is_ok_and(|file| file.len() > 0) {
                files.push(entry);
            }
        }
    }
    Ok(files)
}

/// What `docs/elastic.md` shows, with CuPy: three programs hold twice the memory of their GPU, one
/// is resized, and another suspended and resumed.
fn guide() -> Result<()> {
    let python = python::CUDA_13.program("python3")?;
    let node =
        Node::start(&["--listen", "127.0.0.1:0", "--gpus", "software:1,512MiB", "--overcommit", "2.5"])?;
    let start = |name: &str| {
        let mut command = sluice_run(&node, &["-p", "0.3", "--memory", "400MiB"]);
        command.arg(&python).arg(crate::root().join("docs/examples/elastic/counts.py")).args(["350", "20"]);
        Process::start(&format!("counts {name}"), &mut command)
    };
    let mut programs = ["1", "2", "3"].into_iter().map(start).collect::<Result<Vec<_>>>()?;
    for program in &mut programs {
        program.expect_line("350 MiB are ready")?;
    }
    let sessions = sessions_of(&node)?;
    let sum = |name: &str| -> u64 {
        sessions.as_array().into_iter().flatten().map(|session| number(session, name)).sum()
    };
    ensure!(sum("memory_used") > 2 * 512 * MIB && sum("memory_resident") <= 512 * MIB, "{sessions}");
    let lease = |place: usize| sessions[place]["lease"].to_string();
    text(&node, &["resize", &lease(0), "-p", "0.4", "--memory", "450MiB"])?;
    text(&node, &["suspend", &lease(1)])?;
    ensure!(sessions_of(&node)?[1]["suspended"] == true, "{}", sessions_of(&node)?);
    text(&node, &["resume", &lease(1)])?;
    for program in &mut programs {
        let line = program.line()?;
        ensure!(line.starts_with("350 MiB, ") && line.ends_with(" rounds: right"), "{line}");
    }
    node.wait_until_free()
}

/// Tells all programs the same, and waits for all, so that they run at once.
fn all(programs: &mut [Process], lines: &[(&str, &str)]) -> Result<()> {
    for (line, expect) in lines {
        programs.iter_mut().try_for_each(|program| program.tell(line))?;
        programs.iter_mut().try_for_each(|program| program.expect_line(expect))?;
    }
    Ok(())
}

fn refused_options() -> Result<()> {
    let overcommit = |options: &[&str], part: &'static str| {
        let mut command = std::process::Command::new(crate::node::sluice());
        command.arg("node").args(options);
        expect_failure(&mut command, "overcommit that cannot be", 2, &[part])
    };
    overcommit(&["--overcommit", "0.5"], "memory is leased 1.0 to 16 times")?;
    overcommit(&["--overcommit", "200%"], "is not a number, such as 2.0")?;
    overcommit(&["--max-wait", "1s"], "--overcommit")?;
    overcommit(&["--swap-file", ":1GiB"], "names no folder")?;
    let mut nowhere = std::process::Command::new(crate::node::sluice());
    nowhere.args(["node", "--listen", "127.0.0.1:0", "--gpus", "software:1,256MiB", "--swap-file"]);
    expect_failure(nowhere.arg("/no/such/folder:1GiB"), "no folder", 1, &["--swap-file: /no/such/folder"])
}

//! Programs recorded on the software GPU, and replayed on it, on a node and on the recording
//! driver.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::node;
use crate::process;
use crate::python;
use crate::{NODE_GPUS, Test, expect_failure, expect_pass, finish, logs, program_file, start_node, tail};

pub(crate) const TESTS: &[Test] = &[
    ("record and replay tinygrad", tinygrad),
    ("record and replay nvcc", nvcc),
    ("record and replay refused calls", refused),
    ("a changed recording is noticed", changed),
    ("recordings that are none", bad_files),
    ("a replay tells how long calls took", times),
];

const LIMIT: Duration = Duration::from_secs(300);

/// Runs a program that ends with PASS, and gives the name of its recording.
fn record(name: &str, words: &[PathBuf]) -> Result<PathBuf> {
    let file = logs().join(format!("{name}.sluice"));
    let _ = std::fs::remove_file(&file); // of an earlier run
    let mut command = Command::new(node::sluice());
    command.args(["record", "--gpus", NODE_GPUS, "--memory", "1GiB", "-o"]).arg(&file).arg("--").args(words);
    let ended = expect_pass(command.env_remove("SLUICE_NODE"), &format!("record {name}"), LIMIT)?;
    ensure!(ended.output.contains("sluice: recorded"), "{}", tail(&ended.output));
    Ok(file)
}

fn replay(file: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(node::sluice());
    command.arg("replay").arg(file).args(options).env_remove("SLUICE_NODE");
    command
}

/// On the software GPU everything is as recorded, here and on a node.
fn expect_same(file: &Path, name: &str) -> Result<()> {
    let node = start_node()?;
    for options in [["--gpus", NODE_GPUS], ["--node", &node.address]] {
        let ended = finish(&mut replay(file, &options), &format!("replay {name}"), LIMIT)?;
        let says = ended.output.contains("compared: all as recorded");
        ensure!(ended.code == Some(0) && says, "{options:?}: {:?}: {}", ended.code, tail(&ended.output));
    }
    node.wait_until_free()
}

/// The recording driver takes every command, and computes nothing: data differ, and what another
/// model makes of functions.
fn expect_only_computation_differs(file: &Path, name: &str) -> Result<()> {
    let options = ["--gpus", "recording:h200"];
    let ended = finish(&mut replay(file, &options), &format!("replay {name} on recording"), LIMIT)?;
    ensure!(ended.code == Some(1), "{:?}: {}", ended.code, tail(&ended.output));
    let (data, others) = (ended.output.contains("(0 in data"), ended.output.contains(" 0 in other answers)"));
    ensure!(!data && others, "{}", tail(&ended.output));
    Ok(())
}

fn tinygrad() -> Result<()> {
    let file = record("tinygrad", &[python::TINYGRAD.ready()?, program_file("tinygrad_train.py")])?;
    expect_same(&file, "tinygrad")?;
    expect_only_computation_differs(&file, "tinygrad")
}

fn nvcc() -> Result<()> {
    let program = logs().join("kernels-record");
    python::nvcc(&program_file("kernels.cu"), &program)?;
    let file = record("nvcc", &[program])?;
    expect_same(&file, "nvcc")
}

/// A replay has the same calls refused.
fn refused() -> Result<()> {
    let file = record("refused", &["python3".into(), program_file("refused.py")])?;
    expect_same(&file, "refused")
}

/// One byte of the data that a program copied in is another: so are those that it reads back, and
/// nothing else.
fn changed() -> Result<()> {
    let program = logs().join("recorded.py");
    std::fs::write(&program, PROGRAM)?;
    let file = record("changed", &["python3".into(), program])?;
    expect_same(&file, "changed")?;
    let mut log = std::fs::read(&file)?;
    let marked = log.windows(64).position(|bytes| bytes == [0xa7; 64]).context("the program's data")?;
    log[marked + 5000] ^= 1;
    std::fs::write(&file, log)?;
    let says = &[
        "cuMemcpyDtoH",
        "1 blocks of 4096 bytes, the first at byte 4096 of",
        "1 differences (1 in data, 0 in",
    ];
    expect_failure(&mut replay(&file, &["--gpus", NODE_GPUS]), "a changed recording", 1, says)
}

/// One object for programs, in which each call is counted and what waited is timed.
fn times() -> Result<()> {
    let program = logs().join("recorded.py");
    std::fs::write(&program, PROGRAM)?;
    let file = record("times", &["python3".into(), program])?;
    let text = process::output_of(&mut replay(&file, &["--gpus", NODE_GPUS, "-o", "json"]))?;
    let report: Value = serde_json::from_str(&text)?;
    let copy = &report["functions"]["cuMemcpyDtoH_v2"];
    ensure!(copy["count"] == 1 && copy["waits"] == 1, "{text}");
    let micros = [&copy["median_us"], &copy["total_us"]].map(|value| value.as_f64().unwrap_or(0.0));
    ensure!(micros[0] > 0.0 && micros[0] == micros[1], "{text}");
    let functions = report["functions"].as_object().context("functions")?;
    let sum = |name: &str| functions.values().filter_map(|of| of[name].as_u64()).sum::<u64>();
    ensure!(report["commands"] == sum("count") && report["waits"] == sum("waits"), "{text}");
    ensure!(report["seconds"].as_f64() > Some(0.0), "{text}");
    ensure!(report["differences"].as_array().is_some_and(Vec::is_empty), "{text}");
    let mut on_two = Command::new(node::sluice());
    on_two.args(["record", "--node", "127.0.0.1:1,127.0.0.1:2", "-o"]).arg(logs().join("two.sluice"));
    let _ = std::fs::remove_file(logs().join("two.sluice")); // of an earlier run
    expect_failure(on_two.args(["--", "true"]), "recording two nodes", 125, &["with one node", "each of 2"])
}

const PROGRAM: &str = "
import ctypes, sys
cuda = ctypes.CDLL('libcuda.so.1')
def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code: sys.exit(f'{name}: {code}')
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
call('cuInit', 0)
call('cuDevicePrimaryCtxRetain', ctypes.byref(context), 0)
call('cuCtxSetCurrent', context)
call('cuMemAlloc_v2', ctypes.byref(memory), ctypes.c_size_t(20000))
data, back = bytes([0xa7]) * 20000, ctypes.create_string_buffer(20000)
call('cuMemcpyHtoD_v2', memory, data, ctypes.c_size_t(20000))
call('cuMemcpyDtoH_v2', back, memory, ctypes.c_size_t(20000))
print('PASS' if back.raw == data else 'different')
";

fn bad_files() -> Result<()> {
    let file = logs().join("bad.sluice");
    let fails = |what: &str, bytes: &[u8], parts: &[&str]| -> Result<()> {
        std::fs::write(&file, bytes)?;
        expect_failure(&mut replay(&file, &["--gpus", NODE_GPUS]), what, 1, parts)
    };
    fails("an empty file", b"", &["bad.sluice", "no recording", "sluice record"])?;
    fails("a foreign file", b"\x7fELF\x02\x01\x01 and more of it", &["bad.sluice", "no recording"])?;
    fails("another version", b"SLUICELG\xff\x00\x02\x00", &["version 255"])?;
    let missing = logs().join("no-such.sluice");
    expect_failure(&mut replay(&missing, &[]), "no file", 1, &["no-such.sluice"])?;

    let program = logs().join("recorded.py");
    std::fs::write(&program, PROGRAM)?;
    let whole = std::fs::read(record("whole", &["python3".into(), program.clone()])?)?;
    fails("a cut file", &whole[..whole.len() - 3], &["bad.sluice", "the rest of the file is missing"])?;

    let there = logs().join("whole.sluice");
    let mut again = Command::new(node::sluice());
    again.args(["record", "--gpus", NODE_GPUS, "-o"]).arg(there).args(["--", "python3"]).arg(program);
    expect_failure(&mut again, "a file that is there", 125, &["is there already"])
}

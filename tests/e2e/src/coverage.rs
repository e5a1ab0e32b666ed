//! `sluice run --coverage`: the lines of kernels that a program executes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::node;
use crate::{Test, expect_failure, expect_pass, logs, program_file, tail};

pub(crate) const TESTS: &[Test] = &[
    ("coverage: lines of the source", source),
    ("coverage: lines of the PTX", plain),
    ("coverage: what cannot be counted", refused),
];

const LIMIT: Duration = Duration::from_secs(60);

/// Two processes whose 64 threads take one branch of two; then one of which 48 take the other.
fn source() -> Result<()> {
    let folder = folder("source")?;
    let file = folder.join("lcov.info");
    let twice = "python3 $0 source 1000 && exec python3 $0 source 1000";
    let mut command = sluice_run(&file, &[]);
    command.args(["sh", "-c", twice]).arg(program_file("covered.py"));
    let ended = expect_pass(&mut command, "coverage source", LIMIT)?;
    ensure!(ended.output.contains("4 of 6 lines of 1 file executed"), "{}", tail(&ended.output));
    expect_lines(&file, [128, 128, 128, 0, 128, 0])?;

    let mut command = program(&file, &["--sanitize"], "source", "15");
    let ended = expect_pass(&mut command, "coverage sanitize", LIMIT)?;
    ensure!(ended.output.contains("no errors found"), "{}", tail(&ended.output));
    ensure!(ended.output.contains("5 of 6 lines of 1 file executed"), "{}", tail(&ended.output));
    expect_lines(&file, [192, 192, 144, 48, 192, 0])
}

/// The whole tracefile: counts of the kernel's lines and of the one that is never launched.
fn expect_lines(file: &Path, counts: [u64; 6]) -> Result<()> {
    let lines = [3, 4, 5, 7, 9, 13].into_iter().zip(counts);
    let executed = counts.iter().filter(|&&count| count > 0).count();
    let lines: String = lines.map(|(line, count)| format!("DA:{line},{count}\n")).collect();
    let want = format!(
        "TN:\nSF:limit.cu\nFN:3,_Z5limitPjj\nFN:13,_Z6unusedv\nFNDA:{},_Z5limitPjj\nFNDA:0,_Z6unusedv\nFNF:2\n\
         FNH:1\n{lines}LF:6\nLH:{executed}\nend_of_record\n",
        counts[0]
    );
    let text = std::fs::read_to_string(file)?;
    for (number, (got, want)) in (1..).zip(text.lines().zip(want.lines())) {
        ensure!(got == want, "line {number} is {got:?}, not {want:?}, in\n{text}");
    }
    ensure!(text == want, "{text}");
    Ok(())
}

fn plain() -> Result<()> {
    let folder = folder("plain")?;
    let file = folder.join("lcov.info");
    expect_pass(&mut program(&file, &[], "plain", "1000"), "coverage plain", LIMIT)?;
    let text = std::fs::read_to_string(&file)?;
    let source = text.lines().find_map(|line| line.strip_prefix("SF:")).context("a source file")?;
    let name = Path::new(source).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    ensure!(name.starts_with("module-") && name.ends_with(".ptx"), "{text}");
    let ptx = std::fs::read_to_string(source)?;
    let mut counts = Vec::new();
    for record in text.lines().filter_map(|line| line.strip_prefix("DA:")) {
        let (line, count) = record.split_once(',').context("DA:LINE,COUNT")?;
        let instruction = ptx.lines().nth(line.parse::<usize>()? - 1).context("a line of the text")?;
        counts.push((instruction.trim(), count.parse::<u64>()?));
    }
    let want = [
        ("ld.param.u64 %rd1, [x];", 64),
        ("mov.u32 %r1, %tid.x;", 64),
        ("mul.wide.u32 %rd2, %r1, 4;", 64),
        ("add.u64 %rd3, %rd1, %rd2;", 64),
        ("ld.param.u32 %r2, [most];", 64),
        ("setp.gt.u32 %p1, %r1, %r2;", 64),
        ("@%p1 bra MORE;", 64),
        ("st.global.u32 [%rd3], %r1;", 64),
        ("bra DONE;", 64),
        ("st.global.u32 [%rd3], %r2;", 0),
        ("ret;", 64),
        ("ret;", 0),
    ];
    ensure!(counts == want, "{counts:?} in\n{ptx}");
    Ok(())
}

fn refused() -> Result<()> {
    let folder = folder("refused")?;
    let other = folder.join("notes.txt");
    std::fs::write(&other, "not a tracefile\n")?;
    let parts = ["line 1 does not belong in an lcov tracefile", "name another file"];
    expect_failure(&mut program(&other, &[], "source", "1"), "coverage other file", 125, &parts)?;
    ensure!(std::fs::read_to_string(&other)? == "not a tracefile\n", "the file stays");
    let file = folder.join("lcov.info");
    let mut recording = Command::new(node::sluice());
    recording.args(["run", "--gpus", "recording", "--coverage"]).arg(&file).args(["--", "true"]);
    let parts = ["cannot be counted", "--gpus software"];
    expect_failure(&mut recording, "coverage recording", 125, &parts)?;
    let mut remote = Command::new(node::sluice());
    remote.env("SLUICE_NODE", "127.0.0.1:1").args(["run", "--coverage"]).arg(&file).args(["--", "true"]);
    let parts = ["--coverage needs a software GPU of this machine", "--gpus software"];
    expect_failure(&mut remote, "coverage elsewhere", 125, &parts)
}

/// `sluice run --gpus software --coverage FILE OPTIONS --`
fn sluice_run(file: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(node::sluice());
    command.args(["run", "--gpus", "software", "--coverage"]).arg(file).args(options).arg("--");
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

fn program(file: &Path, options: &[&str], form: &str, most: &str) -> Command {
    let mut command = sluice_run(file, options);
    command.arg("python3").arg(program_file("covered.py")).args([form, most]);
    command
}

/// An empty folder for a test's files.
fn folder(name: &str) -> Result<PathBuf> {
    let folder = logs().join(format!("coverage-{name}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

//! A CUDA project under continuous integration, by the commands of `docs/guides/ci.md`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use quick_junit::{Report, TestCase};
use xtask::dist;

use crate::node;
use crate::process::Ended;
use crate::python;
use crate::{Test, expect_failure, expect_pass, finish, program_file, tail};

pub(crate) const LONG_TESTS: &[Test] = &[
    ("ci: the guide's commands", guide),
    ("ci: several test processes", several_processes),
    ("ci: a run without a kernel", without_kernel),
    ("ci: a fault in the report", fault),
    ("ci: orders of blocks", orders),
];

const LIMIT: Duration = Duration::from_secs(120);

fn text_of_guide() -> Result<String> {
    Ok(std::fs::read_to_string(crate::root().join("docs/guides/ci.md"))?)
}

/// The first block of the guide in this language.
fn block<'a>(guide: &'a str, language: &str) -> Result<&'a str> {
    let start = guide.find(&format!("```{language}\n")).with_context(|| format!("no {language}"))?;
    let text = &guide[start + language.len() + 4..];
    Ok(&text[..text.find("```").context("an end")?])
}

/// The guide's two commands.
pub(super) fn commands() -> Result<String> {
    Ok(block(&text_of_guide()?, "sh")?.to_owned())
}

/// The guide's two commands, as they are there, in an environment that has the wheel alone.
fn guide() -> Result<()> {
    let guide = text_of_guide()?;
    let commands = block(&guide, "sh")?;
    let [github, gitlab] = ["GitHub Actions", "GitLab"].map(|title| {
        let start = guide.find(&format!("## {title}\n")).with_context(|| title.to_owned())?;
        Ok::<&str, anyhow::Error>(&guide[start..start + guide[start + 3..].find("\n## ").context("an end")?])
    });
    for recipe in [github?, gitlab?, block(&guide, "dockerfile")?] {
        for command in commands.lines() {
            ensure!(recipe.contains(command), "not in this recipe: {command}\n{recipe}");
        }
    }

    let bin = dist::folder().join("ci/bin");
    python::create(bin.parent().context("a folder")?)?;
    let report = report_file("guide")?;
    let script = commands.replace("sluice.xml", &report.display().to_string());
    let mut shell = Command::new("sh");
    shell.args(["-exc", &script]).current_dir(project());
    shell.env_clear().env("SLUICE_WHEEL", dist::package("--wheel")?).env("PYTHONDONTWRITEBYTECODE", "1");
    shell
        .env("PATH", format!("{}:/usr/bin:/bin", bin.display()))
        .env("PYTEST_ADDOPTS", "-p no:cacheprovider");
    let ended = expect_success(&mut shell, "ci guide")?;
    ensure!(ended.output.contains("11 passed"), "{}", tail(&ended.output));

    let report = read(&report)?;
    ensure!(report.failures == 0, "{report:?}");
    let processes = processes(&report);
    ensure!(processes.len() == 1, "one process computed: {processes:?}");
    ensure!(processes[0].name.as_str().contains("pytest"), "{:?}", processes[0]);
    // Each test of a kernel launches it once, saxpy's four.
    ensure!(kernels(processes[0])? == 8, "{:?}", processes[0]);
    Ok(())
}

fn several_processes() -> Result<()> {
    let report = report_file("processes")?;
    let mut command = sluice_run(&["--require-gpu", "--report", &report.display().to_string()]);
    command.arg(python::PYTEST.ready()?).args(["-m", "pytest", "-n", "2", "-p", "no:cacheprovider"]);
    let ended = expect_success(command.current_dir(project()), "ci processes")?;
    ensure!(ended.output.contains("11 passed"), "{}", tail(&ended.output));
    let report = read(&report)?;
    let processes = processes(&report);
    ensure!(processes.len() == 2, "two processes of pytest-xdist computed: {processes:?}");
    let kernels = processes.iter().map(|process| kernels(process)).sum::<Result<u64>>()?;
    ensure!(kernels == 8, "the processes launched {kernels} kernels together");
    Ok(())
}

fn without_kernel() -> Result<()> {
    let report = report_file("without-kernel")?;
    let options = ["--require-gpu", "--report", &report.display().to_string()];
    let skips = "import ctypes; assert ctypes.CDLL('libcuda.so.1').cuInit(0) == 0";
    let parts = ["--require-gpu", "launched no kernel"];
    expect_failure(sluice_run(&options).args(["python3", "-c", skips]), "ci without kernel", 123, &parts)?;
    let read = read(&report)?;
    ensure!(read.failures == 1, "{read:?}");
    // A failure of the program itself is the one to look at.
    expect_failure(sluice_run(&options).args(["sh", "-c", "exit 7"]), "ci failure", 7, &[])?;
    expect_success(sluice_run(&[]).arg("true"), "ci without options")?;
    let unwritable = ["--report", "/nonexistent/sluice.xml"];
    expect_failure(sluice_run(&unwritable).arg("true"), "ci report", 125, &["/nonexistent/sluice.xml"])
}

fn fault() -> Result<()> {
    let report = report_file("fault")?;
    let mut command = sluice_run(&["--report", &report.display().to_string()]);
    // It starts a process for each access, expects that each faults, and succeeds.
    command.arg("python3").arg(program_file("illegal_address.py"));
    let ended = expect_pass(&mut command, "ci fault", LIMIT)?;
    let accesses = ended.output.lines().filter(|line| line.starts_with("OK\t")).count();
    let text = std::fs::read_to_string(&report)?;
    let report = read(&report)?;
    ensure!(accesses > 0 && report.failures == accesses, "{accesses} processes faulted: {text}");
    let faults = text.matches("type=\"CUDA_ERROR_ILLEGAL_ADDRESS\"").count();
    ensure!(faults == accesses, "{accesses} processes faulted: {text}");
    let commands = text.matches("illegal_address.py peek").count();
    ensure!(commands == accesses / 2, "the processes are not named by their commands: {text}");
    Ok(())
}

/// Each block of a kernel takes a number.
fn orders() -> Result<()> {
    let order = |option: &str, name: &str| {
        let mut command = sluice_run(&["--block-order", option]);
        let ended = expect_pass(command.arg("python3").arg(program_file("block_order.py")), name, LIMIT)?;
        let line = ended.output.lines().find(|line| line.starts_with("order ")).context("no order")?;
        Ok::<(String, Ended), anyhow::Error>((line.to_owned(), ended))
    };
    let (fixed, _) = order("fixed", "ci fixed order")?;
    let numbers: Vec<String> = (0..64).map(|number| number.to_string()).collect();
    ensure!(fixed == format!("order {}", numbers.join(" ")), "{fixed}");
    let (random, ended) = order("random", "ci random order")?;
    ensure!(random != fixed, "{random}");
    let option = ended.output.split_whitespace().find(|word| word.starts_with("random:"));
    let (again, _) = order(option.context("no seed")?, "ci repeated order")?;
    ensure!(again == random, "the seed gives {again} and gave {random}");
    let recording = ["--gpus", "recording", "--require-gpu"];
    expect_failure(sluice_run(&recording).arg("true"), "ci recording", 125, &["runs no kernel"])
}

/// `sluice run --gpus software OPTIONS --`, to be completed by the program.
fn sluice_run(options: &[&str]) -> Command {
    let mut command = Command::new(node::sluice());
    command.arg("run");
    if !options.contains(&"--gpus") {
        command.args(["--gpus", "software"]);
    }
    command.args(options).arg("--").env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

fn project() -> PathBuf {
    crate::root().join("tests/ci-project")
}

fn report_file(name: &str) -> Result<PathBuf> {
    std::fs::create_dir_all(dist::folder())?;
    Ok(dist::folder().join(format!("{name}.xml")))
}

fn read(report: &Path) -> Result<Report> {
    let text = std::fs::read_to_string(report).with_context(|| report.display().to_string())?;
    Report::deserialize_from_str(&text).with_context(|| text.clone())
}

/// The cases of processes that used a GPU.
fn processes(report: &Report) -> Vec<&TestCase> {
    let cases = report.test_suites.iter().flat_map(|suite| &suite.test_cases);
    cases
        .filter(|case| case.classname.as_ref().is_some_and(|class| class.as_str() == "sluice.process"))
        .collect()
}

fn kernels(process: &TestCase) -> Result<u64> {
    let property = process.properties.iter().find(|property| property.name.as_str() == "kernels");
    Ok(property.context("no property of kernels")?.value.as_str().parse()?)
}

fn expect_success(command: &mut Command, name: &str) -> Result<Ended> {
    let ended = finish(command, name, LIMIT)?;
    ensure!(ended.code == Some(0), "exit code {:?}: {}", ended.code, tail(&ended.output));
    Ok(ended)
}

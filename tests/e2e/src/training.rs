//! Metrics of training runs: what follows when a program's loss diverges.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::{NODE_GPUS, Test, program_file, start_node};
use crate::{node, process};

pub(crate) const TESTS: &[Test] = &[
    ("training: a run that diverges is ended", is_ended),
    ("training: a run that diverges leaves its GPU and comes back", is_kept),
    ("training: files of earlier runs are judged", files_are_judged),
];

/// The signal that asks a program to end, as shells show it in an exit code.
const ENDED: i32 = 128 + libc::SIGTERM;

fn folder(name: &str) -> Result<PathBuf> {
    let folder = crate::target_folder().join("training").join(name);
    // It may not be there.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

fn training(command: &mut Command, last: &Path) -> Result<Child> {
    command.arg("--").arg("python3").arg(program_file("training.py")).arg("30").arg(last);
    command.env("PYTHONDONTWRITEBYTECODE", "1").stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(command.spawn()?)
}

/// The lines of a program's messages up to one with this text.
fn read_until(lines: &mut impl BufRead, text: &str) -> Result<String> {
    let mut read = String::new();
    while !read.contains(text) {
        ensure!(lines.read_line(&mut read)? > 0, "{text:?} was not said: {read}");
    }
    Ok(read)
}

/// A message, a command and a webhook, and the end of the program.
fn is_ended() -> Result<()> {
    let folder = folder("ended")?;
    let receiver = TcpListener::bind("127.0.0.1:0")?;
    let mut command = Command::new(node::sluice());
    command.args(["run", "--gpus", NODE_GPUS, "--when", "loss diverges", "--when", "drift above 100"]);
    command.arg("--then").arg(format!("exec:echo \"$SLUICE_ALERT_STEP\" > {}/step", folder.display()));
    command.arg("--then").arg(format!("webhook:http://{}/alerts", receiver.local_addr()?));
    let child = training(command.args(["--then", "end"]), &folder.join("never"))?;
    let body = received(&receiver)?;
    let output = child.wait_with_output()?;
    let messages = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(ENDED), "{}: {messages}", output.status);
    ensure!(messages.contains("it is NaN (loss diverges)"), "{messages}");
    ensure!(!messages.contains("drift above"), "a rule that was kept: {messages}");
    let step: u64 = std::fs::read_to_string(folder.join("step"))?.trim().parse()?;
    ensure!(step == 30, "the command has step {step}");
    let alert: serde_json::Value = serde_json::from_str(&body).with_context(|| body.clone())?;
    ensure!(alert["type"] == "training.alert" && alert["step"] == 30 && alert["value"].is_null(), "{alert}");
    Ok(())
}

/// The body of one request, which is answered.
fn received(receiver: &TcpListener) -> Result<String> {
    let (mut stream, _) = receiver.accept()?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut length, mut line) = (0, String::new());
    while reader.read_line(&mut line)? > 2 {
        let lower = line.to_ascii_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse()?;
        }
        line.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    stream.write_all(b"HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n")?;
    Ok(String::from_utf8(body)?)
}

/// The program's memory is in a folder, its GPU is free, and after a restore it continues.
fn is_kept() -> Result<()> {
    let folder = folder("kept")?;
    let (saved, last) = (folder.join("saved"), folder.join("last"));
    let node = start_node()?;
    let mut command = Command::new(node::sluice());
    command.args(["run", "--node", &node.address, "--memory", "64MiB", "--when", "loss diverges"]);
    command.arg("--then").arg(format!("checkpoint:{}", saved.display()));
    let mut child = training(&mut command, &last)?;
    let mut messages = BufReader::new(child.stderr.take().context("piped")?);
    read_until(&mut messages, "its program waits for `sluice restore")?;
    let mut restore = Command::new(node::sluice());
    restore.arg("restore").arg(&saved).args(["--node", &node.address]);
    process::output_of(&mut restore)?;
    std::fs::write(&last, "")?;
    let mut rest = String::new();
    messages.read_to_string(&mut rest)?;
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success() && said.contains("PASS"), "{}: {said}{rest}", output.status);
    Ok(())
}

/// `sluice watch --once`: its exit code is for scripts.
fn files_are_judged() -> Result<()> {
    let folder = folder("files")?;
    let metrics = folder.join("mlruns/0/8f2c/metrics");
    std::fs::create_dir_all(&metrics)?;
    let lines = |value: fn(u32) -> f64| -> String {
        (0..100).map(|step| format!("17000000{step} {} {step}\n", value(step))).collect()
    };
    std::fs::write(metrics.join("loss"), lines(|step| f64::from(100 - step)))?;
    std::fs::write(metrics.join("accuracy"), lines(|step| f64::from(step.min(40))))?;
    let judged = |rule: &str| -> Result<(Option<i32>, String)> {
        let mut command = Command::new(node::sluice());
        command.arg("watch").arg(folder.join("mlruns")).args(["--once", "-o", "json", "--when", rule]);
        let output = command.output()?;
        Ok((output.status.code(), String::from_utf8(output.stdout)?))
    };
    let kept = judged("loss stops falling for 20 steps")?;
    ensure!(kept == (Some(0), String::new()), "{kept:?}");
    let (code, line) = judged("accuracy stops rising for 20 steps")?;
    let alert: serde_json::Value = serde_json::from_str(&line).with_context(|| line.clone())?;
    ensure!(code == Some(1) && alert["run"] == "8f2c" && alert["step"] == 99, "{code:?}: {alert}");
    let (code, _) = judged("perplexity diverges")?;
    ensure!(code == Some(2), "there is no such metric: {code:?}");
    Ok(())
}

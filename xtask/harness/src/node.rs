//! A node in a process of its own, for the time of a demo, a test or a measurement.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::process;

/// Nothing takes longer, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// The release build of the `sluice` binary and of the client libraries beside it.
pub fn sluice() -> PathBuf {
    crate::target_folder().join("release/sluice")
}

/// Builds what the README's commands run.
pub fn build() -> Result<()> {
    build_also(&[])
}

/// As [`build`], and these packages in the same run of cargo: it has work for all cores then until
/// the end, and compiles what they depend on once. `XTASK_BUILT=1` takes what was built before as
/// it is.
pub fn build_also(packages: &[&str]) -> Result<()> {
    if std::env::var_os("XTASK_BUILT").is_some() {
        return Ok(());
    }
    let mut command = process::cargo();
    command.args(["build", "--release"]);
    if !packages.is_empty() {
        let whole = [
            "sluice",
            "sluice-client",
            "sluice-nvml",
            "sluice-nojitlink",
            "sluice-devfiles",
            "sluice-blas",
            "sluice-rand",
            "sluice-fft",
        ];
        command.args(whole.iter().chain(packages).flat_map(|package| ["--package", package]));
    }
    process::run(&mut command)
}

/// The file of what nodes and their workers say.
pub fn log() -> PathBuf {
    crate::target_folder().join("node.log")
}

/// A running node; dropping it ends it.
pub struct Node {
    child: Child,
    /// `HOST:PORT`.
    pub address: String,
    /// The network namespace from which the node can be asked, if not ours.
    pub seen_from: Option<String>,
}

impl Node {
    /// Starts `sluice node` with these options and waits until it says where it listens.
    pub fn start(options: &[&str]) -> Result<Node> {
        let mut command = Command::new(sluice());
        command.arg("node").args(options);
        Node::start_command(&mut command)
    }

    /// As `start`, with the whole command given (it may enter namespaces first).
    pub fn start_command(command: &mut Command) -> Result<Node> {
        let messages = File::options().create(true).append(true).open(log())?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(messages);
        // A test run that is killed takes its nodes along.
        // SAFETY: between fork and exec the closure makes one system call and touches no memory.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
                Ok(())
            })
        };
        let mut child = command.spawn().with_context(|| process::show(command))?;
        let stdout = child.stdout.take().expect("piped above");
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        match line.trim().strip_prefix("listening on ") {
            Some(address) => Ok(Node { address: address.to_string(), child, seen_from: None }),
            None => {
                let _ = child.kill();
                let status = child.wait()?;
                bail!(
                    "{} said {line:?} and ended with {status}; see {}",
                    process::show(command),
                    log().display()
                );
            }
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends the node by this signal, if it still runs.
    pub fn end(&mut self, signal: i32) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // SAFETY: the child has not been waited for, so its process id is still its own.
            unsafe { libc::kill(self.child.id() as i32, signal) };
            let _ = self.child.wait();
        }
    }

    /// Waits until a session's connection is gone as the node sees it; `None` if that does not
    /// happen within `limit`.
    pub fn wait_until_parted(&self, limit: Duration) -> Result<Option<Duration>> {
        let begin = Instant::now();
        while begin.elapsed() < limit {
            let sessions: Value = serde_json::from_str(&self.query("sessions")?)?;
            if sessions.as_array().context("a list of sessions")?.iter().any(|s| s["parted"] == true) {
                return Ok(Some(begin.elapsed()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(None)
    }

    /// CPU time of the node's workers that have ended, from `cutime` and `cstime` of
    /// `/proc/PID/stat`.
    pub fn ended_workers_cpu(&self) -> Result<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()))?;
        let after_name = stat.rsplit_once(')').context("/proc/PID/stat")?.1;
        let ticks: Vec<u64> = after_name.split_whitespace().skip(13).take(2).flat_map(str::parse).collect();
        // SAFETY: sysconf takes a constant and has no other precondition.
        let ticks_per_s = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
        Ok(Duration::from_secs_f64(ticks.iter().sum::<u64>() as f64 / ticks_per_s))
    }

    /// Process ids of the workers that live now.
    pub fn workers(&self) -> Vec<u32> {
        process::children(self.pid())
    }

    /// Waits until the node has no session, no worker and no lease, and all its memory is free;
    /// what is left after [`PATIENCE`] is an error.
    pub fn wait_until_free(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while let Some(left) = self.left()? {
            ensure!(Instant::now() < deadline, "after {PATIENCE:?} the node still has {left}");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// What of a session or a lease is still there.
    fn left(&self) -> Result<Option<String>> {
        let sessions: Value = serde_json::from_str(&self.query("sessions")?)?;
        if !sessions.as_array().context("a list of sessions")?.is_empty() {
            return Ok(Some(format!("the sessions {sessions}")));
        }
        let gpus: Value = serde_json::from_str(&self.query("gpus")?)?;
        for gpu in gpus.as_array().context("a list of GPUs")? {
            for held in ["memory_used", "memory_leased", "share_leased_ppm", "sessions"] {
                if gpu[held] != 0 {
                    return Ok(Some(format!("{held} in {gpu}")));
                }
            }
        }
        let workers = self.workers();
        Ok((!workers.is_empty()).then(|| format!("the processes {workers:?}")))
    }

    /// `sluice WHAT -o json` about this node.
    pub fn query(&self, what: &str) -> Result<String> {
        let mut command = match &self.seen_from {
            None => Command::new(sluice()),
            Some(network) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", network]).arg(sluice());
                command
            }
        };
        process::output_of(command.args([what, "-o", "json", "--node", &self.address]))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.end(libc::SIGTERM);
    }
}

/// The token in a settings file.
pub fn token_in(path: &Path) -> Result<String> {
    let settings: Value = serde_json::from_str(&std::fs::read_to_string(path)?)?;
    Ok(settings["token"].as_str().context("a token")?.to_owned())
}

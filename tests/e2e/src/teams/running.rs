//! A process of Sluice, and what it says.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::PATIENCE;
use crate::process;
use crate::{logs, tail};

/// A program that waits for others says nothing meanwhile.
const LINE_PATIENCE: Duration = Duration::from_secs(300);

/// A process whose lines are read as they come, with its messages in a file.
pub(crate) struct Process {
    pub(super) name: String,
    pub(super) child: Child,
    pub(super) lines: Receiver<String>,
    pub(super) messages: PathBuf,
}

impl Process {
    pub(crate) fn start(name: &str, command: &mut Command) -> Result<Process> {
        let messages = logs().join(format!("teams-{}.log", name.replace(' ', "-")));
        let file = File::create(&messages)?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(file)
            .spawn()
            .with_context(|| process::show(command))?;
        let stdout = BufReader::new(child.stdout.take().context("piped above")?);
        let (sender, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line.trim().to_owned()).is_err() {
                    break;
                }
            }
        });
        Ok(Process { name: name.into(), child, lines, messages })
    }

    /// The next line of its output.
    pub(crate) fn line(&mut self) -> Result<String> {
        let messages = || tail(&said(&self.messages));
        match self.lines.recv_timeout(LINE_PATIENCE) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Disconnected) => bail!("{} ended: {}", self.name, messages()),
            Err(RecvTimeoutError::Timeout) => {
                bail!("{} said no line within {LINE_PATIENCE:?}: {}", self.name, messages())
            }
        }
    }

    /// The address that it prints next.
    pub(crate) fn listening(&mut self) -> Result<String> {
        let line = self.line()?;
        let address =
            line.strip_prefix("listening on ").with_context(|| format!("{} said {line:?}", self.name))?;
        Ok(address.to_owned())
    }

    pub(crate) fn expect_line(&mut self, expect: &str) -> Result<()> {
        let line = self.line()?;
        ensure!(line == expect, "{} said {line:?}: {}", self.name, tail(&said(&self.messages)));
        Ok(())
    }

    /// Waits until its messages contain this.
    pub(crate) fn expect_message(&self, part: &str) -> Result<()> {
        self.expect_messages(part, 1)
    }

    /// Waits until its messages contain this as often as that.
    pub(crate) fn expect_messages(&self, part: &str, count: usize) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while said(&self.messages).matches(part).count() < count {
            ensure!(
                Instant::now() < deadline,
                "{} did not say {part:?}: {}",
                self.name,
                said(&self.messages)
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// What it has said beside its output.
    pub(crate) fn said(&self) -> String {
        said(&self.messages)
    }

    /// Whoever of its tasks reads first gets the line.
    pub(crate) fn tell(&mut self, line: &str) -> Result<()> {
        Ok(writeln!(self.child.stdin.as_mut().context("its input has ended")?, "{line}")?)
    }

    pub(super) fn go_on_to_its_end(&mut self) -> Result<()> {
        let mut stdin = self.child.stdin.take().context("told only once")?;
        writeln!(stdin, "0")?;
        self.expect_success()
    }

    pub(crate) fn end_its_input(&mut self) -> Result<()> {
        drop(self.child.stdin.take());
        self.expect_success()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: the child has not been waited for, so its process id is still its own.
        unsafe { libc::kill(self.child.id() as i32, signal) };
    }

    /// How it ends.
    pub(crate) fn end(&mut self) -> Result<std::process::ExitStatus> {
        Ok(self.child.wait()?)
    }

    pub(crate) fn expect_success(&mut self) -> Result<()> {
        let status = self.child.wait()?;
        ensure!(status.success(), "{} ended with {status}: {}", self.name, tail(&said(&self.messages)));
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal(libc::SIGTERM);
            // A stopped one would not notice.
            self.signal(libc::SIGCONT);
            let _ = self.child.wait();
        }
    }
}

pub(super) fn said(messages: &Path) -> String {
    std::fs::read_to_string(messages).unwrap_or_default()
}

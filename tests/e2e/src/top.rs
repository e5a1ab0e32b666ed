//! `sluice top` on a terminal of tmux: what is drawn, keys, another size, and the terminal
//! afterwards.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::teams::Process;
use super::{Test, program_file};
use crate::Skipped;
use crate::node::{Node, sluice};
use crate::process;

pub(crate) const TESTS: &[Test] = &[("top on a terminal", top_on_a_terminal)];

/// Catches a hang; nothing takes this long.
const PATIENCE: Duration = Duration::from_secs(60);

fn top_on_a_terminal() -> Result<()> {
    // Through a socket of this machine, so that the node knows the program's process.
    let folder = tempfile::tempdir()?;
    let socket = format!("unix:{}", folder.path().join("node.sock").display());
    let node = Node::start(&["--listen", &socket, "--gpus", super::NODE_GPUS])?;
    let mut command = Command::new(sluice());
    command.args(["run", "--node", &node.address, "-p", "0.25", "--memory", "64MiB", "--", "python3"]);
    command.arg(program_file("compute.py")).env("START", "input");
    let mut program = Process::start("top program", &mut command)?;
    program.expect_line("ready")?;

    let top = format!(
        "{} top --interval 200ms --node {}; echo left with $?; cat",
        sluice().display(),
        node.address
    );
    let terminal = Terminal::open(&top)?;
    let screen = terminal.wait_for("compute.py")?;
    ensure!(screen.lines().count() <= 24 && screen.contains("1 sessions by GPU time"), "{screen}");
    for part in ["GPU", "BUSY", "LEASED", "25%", "q quit"] {
        ensure!(screen.contains(part), "no {part}:\n{screen}");
    }
    terminal.keys(&["k"])?;
    terminal.wait_for("End the program python3 compute.py")?;
    terminal.keys(&["n"])?;
    terminal.wait_for("q quit")?;
    terminal.keys(&["/", "n", "o", "n", "e", "Enter"])?;
    terminal.wait_for("0 of 1 sessions by GPU time  filter: none")?;
    terminal.keys(&["/", "Escape"])?;
    terminal.resize(120, 30)?;
    terminal.wait_for("compute.py")?;

    for (suspended, marked) in [("is suspended", true), ("is resumed", false)] {
        terminal.keys(&["z"])?;
        terminal.wait_for("any other key: no")?;
        terminal.keys(&["y"])?;
        terminal.wait_for(suspended)?;
        terminal.wait_until("the program is marked", |screen| screen.contains("(suspended)") == marked)?;
    }
    terminal.keys(&["e", "3", "0", "%", "Enter"])?;
    terminal.wait_for("has 30% of each GPU")?;

    // The whole of it, once it is meant.
    terminal.keys(&["k"])?;
    terminal.wait_for("End the program python3 compute.py")?;
    terminal.keys(&["y"])?;
    terminal.wait_for("got SIGTERM")?;
    terminal.wait_for("0 sessions by GPU time")?;
    let status = program.end()?;
    ensure!(!status.success(), "the program went on to its end: {status}");
    terminal.keys(&["q"])?;
    terminal.wait_for("left with 0")?;
    ensure!(terminal.ask("#{alternate_on}")? == "0", "the screen of before is not back");

    // What is no terminal is told what to do instead.
    let mut piped = Command::new(sluice());
    piped.args(["top", "--node", &node.address]);
    super::expect_failure(&mut piped, "top without a terminal", 1, &["sluice sessions"])
}

/// A window of tmux, of 80 columns and 24 lines at first; it is closed when this is dropped.
struct Terminal {
    socket: String,
}

impl Terminal {
    fn open(command: &str) -> Result<Terminal> {
        let terminal = Terminal { socket: format!("sluice-{}", std::process::id()) };
        let mut tmux = terminal.tmux();
        tmux.args(["-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", command]);
        match tmux.output() {
            Ok(output) => {
                ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                Ok(terminal)
            }
            Err(_) => Err(Skipped("no tmux (apt install tmux)".into()).into()),
        }
    }

    fn tmux(&self) -> Command {
        let mut command = Command::new("tmux");
        command.args(["-L", &self.socket]).env("LC_ALL", "C.UTF-8");
        command
    }

    fn keys(&self, keys: &[&str]) -> Result<()> {
        process::output_of(self.tmux().arg("send-keys").args(keys)).map(drop)
    }

    fn resize(&self, columns: u32, lines: u32) -> Result<()> {
        let size = ["-x", &columns.to_string(), "-y", &lines.to_string()];
        process::output_of(self.tmux().arg("resize-window").args(size)).map(drop)
    }

    fn ask(&self, format: &str) -> Result<String> {
        Ok(process::output_of(self.tmux().args(["display-message", "-p", format]))?.trim().to_owned())
    }

    /// The screen, once it shows this.
    fn wait_for(&self, part: &str) -> Result<String> {
        self.wait_until(&format!("{part:?}"), |screen| screen.contains(part))
    }

    /// The screen, once it is as wanted.
    fn wait_until(&self, what: &str, is_so: impl Fn(&str) -> bool) -> Result<String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let screen = process::output_of(self.tmux().args(["capture-pane", "-p"]))
                .context("the terminal is gone")?;
            if is_so(&screen) {
                return Ok(screen);
            }
            ensure!(Instant::now() < deadline, "not {what} on\n{screen}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.tmux().arg("kill-server").output();
    }
}

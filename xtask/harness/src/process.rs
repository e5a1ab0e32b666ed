//! Commands that say what they do and that are waited for, whatever happens.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Prints the command in the form in which a person could repeat it.
pub fn show(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<String> = words.map(|word| quoted(&word.to_string_lossy())).collect();
    words.join(" ")
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@,+%".contains(c);
    if !word.is_empty() && word.chars().all(plain) { word.into() } else { format!("'{word}'") }
}

/// Runs a command in the open; its failure is an error.
pub fn run(command: &mut Command) -> Result<()> {
    eprintln!("$ {}", show(command));
    let status = command.status().with_context(|| show(command))?;
    if !status.success() {
        bail!("{} ended with {status}", show(command));
    }
    Ok(())
}

/// The command's stdout; its failure is an error with its stderr.
pub fn output_of(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| show(command))?;
    if !output.status.success() {
        bail!("{} ended with {}: {}", show(command), output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// `cargo` as it was called for this run of xtask.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(crate::root());
    command
}

/// How a program ended.
pub struct Ended {
    /// As a shell's `$?`; `None` if it ran past its limit and was killed.
    pub code: Option<i32>,
    /// Both stdout and stderr, in the order in which they came.
    pub output: String,
    /// User and system time of the program and of its children that it waited for.
    pub cpu: Duration,
}

/// Runs a command to its end or to `limit`, with its output in a file of its own (`log`).
pub fn run_limited(command: &mut Command, limit: Duration, log: &Path) -> Result<Ended> {
    let file = std::fs::File::create(log).with_context(|| log.display().to_string())?;
    use std::os::unix::process::CommandExt;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .process_group(0)
        .spawn()
        .with_context(|| show(command))?;
    let (code, cpu) = wait_limited(&mut child, Instant::now() + limit)?;
    let output = String::from_utf8_lossy(&std::fs::read(log)?).into_owned();
    Ok(Ended { code, output, cpu })
}

/// Waits with `wait4`, which also tells the CPU time; past `deadline` the process group is killed.
fn wait_limited(child: &mut Child, deadline: Instant) -> Result<(Option<i32>, Duration)> {
    let pid = child.id() as i32;
    let mut killed = false;
    loop {
        let mut status = 0;
        // SAFETY: an all-zero rusage is valid, and wait4 fills it.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: `pid` is our own child and no other thread waits for it; both pointers outlive
        // the call.
        let waited = unsafe { libc::wait4(pid, &mut status, libc::WNOHANG, &mut usage) };
        if waited == pid {
            let code = match libc::WIFEXITED(status) {
                true => libc::WEXITSTATUS(status),
                false => 128 + libc::WTERMSIG(status),
            };
            let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
            return Ok(((!killed).then_some(code), time(usage.ru_utime) + time(usage.ru_stime)));
        }
        if waited < 0 {
            bail!("waiting for process {pid}: {}", std::io::Error::last_os_error());
        }
        if Instant::now() > deadline && !killed {
            killed = true;
            // SAFETY: the child leads a process group of its own, see `run_limited`.
            unsafe { libc::kill(-pid, libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The processes that a process has started and that have not ended.
pub fn children(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().flat_map(str::parse).collect::<Vec<u32>>()).collect()
}

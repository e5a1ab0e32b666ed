//! `cargo xtask bench lupine`: Lupine and ours by turns, with the same program, over the same
//! driver on the server's side. Lupine is built elsewhere, as its README says.
//!
//! Each run has a server of its own, so that nothing of the others runs beside it. One counts only
//! if the server's side has loaded the software GPU's driver, and the program its side's
//! `libcuda.so.1`.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use harness::software_gpu;

use crate::node::{self, Node};
use crate::process;

use super::{Figures, figures, folder, machine, show, source, values};

pub(super) const NAME: &str = "lupine";

const ROUNDS: usize = 3;
/// One run takes no longer, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(400);

/// What, its name in the output of `tests/bench/calls.c`, and its unit.
const ROWS: [(&str, &str, &str); 11] = [
    ("queued launch, CPU of all client threads", "queued_launch_cpu_us", "us"),
    ("queued launches until all are done, each", "queued_launch_done_wall_us", "us"),
    ("waiting call, nothing queued", "waiting_call_us", "us"),
    ("launch of an empty kernel and waiting for it", "launch_and_wait_us", "us"),
    ("64 bytes to the device", "small_in_us", "us"),
    ("4 bytes from the device after that", "small_out_us", "us"),
    ("128 MiB to the device", "bulk_in_gib_s", "GiB/s"),
    ("128 MiB from the device", "bulk_out_gib_s", "GiB/s"),
    ("plain socket of the same process: 16-byte ping-pong", "waiting_ping_us", "us"),
    ("plain socket of the same process: 128 MiB out", "bulk_in_plain_gib_s", "GiB/s"),
    ("plain socket of the same process: 128 MiB in", "bulk_out_plain_gib_s", "GiB/s"),
];

/// A build of Lupine.
struct Lupine {
    /// Its `libcuda.so.1`.
    client: PathBuf,
    server: PathBuf,
}

/// Measures, and returns the table.
pub(super) fn run(options: &[&str]) -> Result<String> {
    let lupine = Lupine::named(options)?;
    let program = folder().join("calls");
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-std=gnu11"])
        .arg(source("calls.c"))
        .arg("-o")
        .arg(&program)
        .args(["-ldl", "-lpthread"]);
    process::run(&mut gcc)?;
    let driver = software_gpu::driver_folder()?.join("libcuda.so.1");
    let mut runs: [Vec<Figures>; 3] = Default::default();
    for round in 1..=ROUNDS {
        eprintln!("   round {round} of {ROUNDS}");
        runs[0].push(lupine.measure(&program, &driver)?);
        runs[1].push(ours(&program, &driver, false)?);
        runs[2].push(ours(&program, &driver, true)?);
    }
    let mut text = format!(
        "The same program, `tests/bench/calls.c`, through both, by turns, over the same driver on the server's side: the software GPU's own \
         `libcuda.so.1`. Measured by `cargo xtask bench {NAME} --lupine-client PATH --lupine-server PATH` on {}; median of {ROUNDS} rounds, \
         lowest and highest in brackets.\n\n\
         | what | Lupine | Sluice | Sluice, same host: shared memory |\n|---|---|---|---|\n",
        machine()
    );
    for (what, name, unit) in ROWS {
        let cells = runs.iter().map(|runs| format!("{} {unit}", show(values(runs, name))));
        text += &format!("| {what} | {} |\n", cells.collect::<Vec<_>>().join(" | "));
    }
    Ok(text)
}

impl Lupine {
    fn named(options: &[&str]) -> Result<Lupine> {
        let value = |name: &str| -> Result<PathBuf> {
            let at = options.iter().position(|option| *option == name);
            let path = at.and_then(|at| options.get(at + 1)).with_context(|| {
                format!(
                    "{name} PATH is missing: bench {NAME} takes --lupine-client, Lupine's libcuda.so.1, and --lupine-server, its \
                     lupine_driver_server"
                )
            })?;
            std::fs::canonicalize(path).with_context(|| format!("{name} {path}"))
        };
        Ok(Lupine { client: value("--lupine-client")?, server: value("--lupine-server")? })
    }

    fn measure(&self, program: &Path, driver: &Path) -> Result<Figures> {
        // Free a moment ago; the server takes a number and no descriptor.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut command = Command::new(&self.server);
        let folder = driver.parent().context("the driver's folder")?;
        command.env("LD_LIBRARY_PATH", folder).env("LUPINE_PORT", port.to_string()).stdin(Stdio::null());
        let log = File::create(super::folder().join("lupine-server.log"))?;
        let server = Server(
            command.stdout(log.try_clone()?).stderr(log).spawn().with_context(|| process::show(&command))?,
        );
        wait_until_listens(port)?;
        let mut calls = Command::new(program);
        calls.env("LD_LIBRARY_PATH", self.client.parent().context("the client's folder")?);
        calls.env("LUPINE_SERVER", format!("127.0.0.1:{port}"));
        run_calls(&mut calls, server.0.id(), driver, &self.client)
    }
}

/// Ends with this value.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// From the kernel's list: a connection of ours would be a session of the server's.
fn wait_until_listens(port: u16) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(30);
    let entry = format!(":{port:04X} 00000000:0000 0A ");
    while !std::fs::read_to_string("/proc/net/tcp")?.contains(&entry) {
        ensure!(Instant::now() < deadline, "Lupine's server does not listen; see lupine-server.log");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn ours(program: &Path, driver: &Path, shared_memory: bool) -> Result<Figures> {
    let gpus = format!("library:{}", driver.display());
    let node = Node::start(&["--listen", "127.0.0.1:0", "--gpus", &gpus])?;
    let mut command = Command::new(node::sluice());
    command.args(["run", "-q", "--node", &node.address, "--"]).arg(program);
    if shared_memory {
        command.env_remove(crate::SHARED_MEMORY_VARIABLE);
    } else {
        command.env(crate::SHARED_MEMORY_VARIABLE, "off");
    }
    let client = node::sluice().with_file_name("libsluice_client.so");
    run_calls(&mut command, node.pid(), driver, &client)
}

fn run_calls(command: &mut Command, server: u32, driver: &Path, client: &Path) -> Result<Figures> {
    let output = folder().join("calls.txt");
    let child = command.stdout(File::create(&output)?).spawn().with_context(|| process::show(command))?;
    let mut child = Server(child);
    let deadline = Instant::now() + PATIENCE;
    let mut is_loaded = false;
    let status = loop {
        if let Some(status) = child.0.try_wait()? {
            break status;
        }
        ensure!(Instant::now() < deadline, "{} takes longer than {PATIENCE:?}", process::show(command));
        // Few looks, and none once both were seen: they take time from what is measured.
        is_loaded = is_loaded || maps(server, driver) && maps(child.0.id(), client);
        std::thread::sleep(Duration::from_millis(500));
    };
    if !status.success() {
        bail!("{}: {status}", process::show(command));
    }
    ensure!(
        is_loaded,
        "{}: {} in the server or {} in the program was never seen",
        process::show(command),
        driver.display(),
        client.display()
    );
    figures("", &std::fs::read_to_string(output)?)
}

/// Whether a process, or one that it started, has loaded the library.
fn maps(process: u32, library: &Path) -> bool {
    let Ok(library) = std::fs::canonicalize(library) else { return false };
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
    maps.lines().any(|line| line.ends_with(&format!(" {}", library.display())))
        || process::children(process).into_iter().any(|child| self::maps(child, &library))
}

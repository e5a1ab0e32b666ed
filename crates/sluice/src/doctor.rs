//! `sluice doctor`: what this machine and the node or server that programs go to are like, and what
//! to do about what is not as it should be.

use std::fmt::Write;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use serde::Serialize;
use sluice_control::Connection;
use sluice_wire::VERSION;
use sluice_wire::address::Endpoint;
use sluice_wire::control::{Control, StatusRequest};

use crate::cli::{Output, QueryArgs};
use crate::place::Source;
use crate::quantity::Memory;
use crate::run::share_text;
use crate::surroundings::{Libraries, Scratch};

mod confinement;
mod server;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    Note,
    Problem,
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
struct Finding {
    verdict: Verdict,
    text: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

impl Finding {
    fn ok(text: impl Into<String>) -> Finding {
        Finding { verdict: Verdict::Ok, text: text.into(), remedy: None }
    }

    fn note(text: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding { verdict: Verdict::Note, text: text.into(), remedy: Some(remedy.into()) }
    }

    fn problem(text: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding { verdict: Verdict::Problem, text: text.into(), remedy: Some(remedy.into()) }
    }
}

/// Exit code 1 if something keeps programs from running.
pub(crate) fn run(arguments: &QueryArgs) -> Result<ExitCode> {
    let mut findings = vec![Finding::ok(format!("sluice {VERSION}"))];
    findings.push(client_libraries());
    findings.push(temporary_folder());
    findings.push(own_libcuda());
    findings.extend([address_space(), reservation(), overcommit(), open_files()]);
    findings.extend(confinement::findings());
    findings.extend(match Source::choose(arguments.server.as_deref(), arguments.node.as_deref()) {
        Ok(Source::Nodes(parts)) => parts.iter().flat_map(|part| node_findings(&part.node)).collect(),
        Ok(Source::Server(client)) => server::findings(&client),
        Ok(Source::Private) => vec![Finding::note(
            "neither a node nor a server is named; `sluice run` uses this machine's GPU, or a software GPU",
            "to check a node, say --node HOST:PORT or set SLUICE_NODE; for a server --server URL or SLUICE_SERVER",
        )],
        Err(error) => vec![Finding::problem(error.to_string(), "`sluice run` would end with the same")],
    });
    match arguments.output {
        Output::Json => println!("{}", serde_json::to_string_pretty(&findings)?),
        Output::Table => print!("{}", text_of(&findings)),
    }
    let problems = findings.iter().any(|finding| finding.verdict == Verdict::Problem);
    Ok(if problems { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn text_of(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let verdict = match finding.verdict {
            Verdict::Ok => "ok      ",
            Verdict::Note => "note    ",
            Verdict::Problem => "PROBLEM ",
        };
        let _ = writeln!(text, "{verdict} {}", finding.text);
        if let Some(remedy) = &finding.remedy {
            let _ = writeln!(text, "          -> {remedy}");
        }
    }
    text
}

fn client_libraries() -> Finding {
    match Libraries::find() {
        Ok(libraries) if libraries.nvml.is_some() => match libraries.missing_software()[..] {
            [] => Finding::ok(format!(
                "client libraries: {}, with cuBLAS's, cuRAND's and cuFFT's interfaces for software GPUs",
                libraries.cuda.display()
            )),
            ref missing => Finding::note(
                format!("client libraries: {}, without {}", libraries.cuda.display(), missing.join(", ")),
                "build all of it with `cargo build --release`; until then programs on a software GPU get NVIDIA's \
                 libraries, whose kernels do not run there",
            ),
        },
        Ok(libraries) => Finding::note(
            format!("client library {}, without libnvidia-ml.so.1 beside it", libraries.cuda.display()),
            "build all of it with `cargo build --release`; until then nvidia-smi and NVML find no GPU",
        ),
        Err(message) => Finding::problem("no client library", message),
    }
}

fn temporary_folder() -> Finding {
    match Scratch::new() {
        Ok(_) => Finding::ok(format!("temporary folder {}", std::env::temp_dir().display())),
        Err(error) => Finding::problem(
            format!("no folder can be made in {}: {error}", std::env::temp_dir().display()),
            "set TMPDIR to a folder that you can write to",
        ),
    }
}

/// The driver that programs get outside `sluice run`.
fn own_libcuda() -> Finding {
    // SAFETY: the name is a NUL-terminated string; a CUDA driver's constructors are those every
    // CUDA program runs.
    let handle = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return Finding::ok("this machine has no CUDA driver of its own");
    }
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let path =
        maps.lines().filter_map(|line| line.split_whitespace().nth(5)).find(|path| path.contains("libcuda"));
    // SAFETY: the handle comes from dlopen; the name is a NUL-terminated string.
    let client = unsafe { libc::dlsym(handle, c"sluice_client_marker".as_ptr()) };
    let path = path.unwrap_or("libcuda.so.1");
    match client.is_null() {
        true => Finding::ok(format!("programs outside `sluice run` use the CUDA driver {path}")),
        false => Finding::note(
            format!("programs use Sluice's client library {path} also outside `sluice run`"),
            "fine inside a lease; outside, take its folder off LD_LIBRARY_PATH",
        ),
    }
}

/// The client reserves address space for the GPU's memory.
const RESERVED_BYTES: usize = 1 << 40;

fn address_space() -> Finding {
    match limit(libc::RLIMIT_AS) {
        libc::RLIM_INFINITY => Finding::ok("address space is not limited"),
        bytes if bytes > 2 * RESERVED_BYTES as u64 => {
            Finding::ok("address space is limited, and large enough")
        }
        bytes => Finding::problem(
            format!("address space is limited to {}", Memory::from_bytes(bytes)),
            "run `ulimit -v unlimited`: the client library reserves 1 TiB of addresses (no memory) for GPU pointers",
        ),
    }
}

fn reservation() -> Finding {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: an anonymous mapping at an address of the kernel's choice touches nothing that
    // exists.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), RESERVED_BYTES, libc::PROT_NONE, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Finding::problem(
            format!("1 TiB of addresses cannot be reserved: {}", std::io::Error::last_os_error()),
            "look at `ulimit -v` and /proc/sys/vm/overcommit_memory",
        );
    }
    // SAFETY: exactly the mapping made above, to which nothing points.
    unsafe { libc::munmap(start, RESERVED_BYTES) };
    Finding::ok("1 TiB of addresses can be reserved")
}

fn overcommit() -> Finding {
    match std::fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap_or_default().trim() {
        "2" => Finding::note(
            "the kernel commits memory strictly (vm.overcommit_memory=2)",
            "a node with software GPUs may refuse memory early: sysctl vm.overcommit_memory=0",
        ),
        _ => Finding::ok("the kernel commits memory when it is used"),
    }
}

fn open_files() -> Finding {
    const FEW: u64 = 256;
    match limit(libc::RLIMIT_NOFILE) {
        files if files < FEW => Finding::note(
            format!("a process may open {files} files"),
            "a node needs some for each session: `ulimit -n 1024`",
        ),
        files => Finding::ok(format!("a process may open {files} files")),
    }
}

fn limit(resource: libc::__rlimit_resource_t) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: getrlimit fills the structure, or leaves it as it is.
    unsafe { libc::getrlimit(resource, &mut limit) };
    limit.rlim_cur
}

fn node_findings(node: &Endpoint) -> Vec<Finding> {
    let mut connection = match Connection::open(node) {
        Ok(connection) => connection,
        Err(failure) => {
            let remedy = "start `sluice node` there, or look at the name, the port and firewalls in between";
            return vec![Finding::problem(failure.to_string(), remedy)];
        }
    };
    let begin = Instant::now();
    let answer = connection.ask(StatusRequest {});
    let took = begin.elapsed();
    let status = match answer {
        Ok(Control::Status(status)) => status,
        Ok(_) => return vec![Finding::problem(connection.unexpected().to_string(), "update both sides")],
        Err(failure) => return vec![Finding::problem(failure.to_string(), "look at the node's messages")],
    };
    let mut findings = vec![Finding::ok(format!(
        "node {}: {}, same version, answers in {:.1} ms",
        node.place(),
        match node {
            Endpoint::Tls { .. } => "TLS",
            Endpoint::Tcp(_) => "plain text",
            Endpoint::Unix(_) => "a socket file",
        },
        took.as_secs_f64() * 1e3
    ))];
    if status.gpus.is_empty() {
        findings.push(Finding::problem(
            format!("node {} lends no GPU", node.place()),
            "start it with --gpus auto or --gpus software",
        ));
    }
    for gpu in &status.gpus {
        let free = Memory::from_bytes(gpu.memory.saturating_sub(gpu.memory_leased));
        let free_share = share_text(1_000_000u32.saturating_sub(gpu.share_leased_ppm));
        let text = format!("GPU {}: {}, {free_share} and {free} free", gpu.index, gpu.name);
        findings.push(match gpu.share_leased_ppm {
            1_000_000.. => Finding::note(text, "all of it is leased: see `sluice sessions`"),
            _ => Finding::ok(text),
        });
        if gpu.is_software {
            findings.push(Finding::note(
                format!("GPU {} is a software GPU: it runs PTX, not machine code", gpu.index),
                "`sluice run` sets what CuPy and numba need for that; PyTorch's wheels hold no PTX",
            ));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_comes_with_what_to_do() {
        let text = text_of(&[Finding::ok("fine"), Finding::problem("broken", "mend it")]);
        assert_eq!(text, "ok       fine\nPROBLEM  broken\n          -> mend it\n");
    }

    #[test]
    fn an_unreachable_node_is_a_problem() {
        // Below the ports that a system gives out, so nobody takes it meanwhile.
        let findings = node_findings(&Endpoint::Tcp("127.0.0.1:1".into()));
        assert_eq!(findings[0].verdict, Verdict::Problem);
        assert!(findings[0].text.contains("refused"), "{findings:?}");
    }
}

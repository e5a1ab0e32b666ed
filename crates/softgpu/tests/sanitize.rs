//! What the sanitizer finds in small kernels, and in mutants of correct ones.
//!
//! A case in `sanitize/` is a body with a header:
//!
//! ```text
//! //! NAME grid=BLOCKS block=THREADS shared=BYTES together=1 args=ARG,... expect=KIND@THREAD
//! //~ NAME | TEXT#OCCURRENCE | REPLACEMENT | expect=KIND
//! ```
//!
//! Arguments are buffers of so many bytes, written (`w`), never written (`u`) or freed (`f`), or
//! numbers. With `together` it is a cooperative launch. A line with `~` is a mutant: the same case
//! with a part of its text replaced.

use std::sync::{Arc, Once, OnceLock};

use sluice_cuda::*;
use sluice_sanitize::{Finding, Kind, Sanitizer, Tools};

mod common;
use common::*;

/// What the bodies of cases may use.
const HEAD: &str = "
.extern .shared .align 4 .b8 dynamic[];
.global .align 4 .b32 variable[4];
";
const REGISTERS: &str = ".reg .pred %p<8>; .reg .b32 %r<32>; .reg .f32 %f<8>; .reg .b64 %rd<16>;\n";

static SANITIZER: OnceLock<Arc<Sanitizer>> = OnceLock::new();

/// Watches this process, in which nothing has used the driver.
fn sanitizer() -> &'static Arc<Sanitizer> {
    static WATCHED: Once = Once::new();
    let sanitizer = SANITIZER.get_or_init(|| Sanitizer::new(Tools::default(), None));
    WATCHED.call_once(|| assert!(sluice_softgpu::set_sanitizer(Arc::clone(sanitizer)), "nothing has begun"));
    sanitizer
}

#[derive(Clone, Debug, Default)]
struct Case {
    name: String,
    grid: u32,
    block: u32,
    shared: u32,
    /// Whether the launch is cooperative.
    is_together: bool,
    args: Vec<String>,
    expect: String,
    body: String,
    /// Name, text, replacement and expectation of each.
    mutants: Vec<[String; 4]>,
}

fn cases(text: &str) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for line in text.lines() {
        if let Some(header) = line.strip_prefix("//! ") {
            cases.push(case(header));
        } else if let Some(mutant) = line.strip_prefix("//~ ") {
            let parts: Vec<String> = mutant.split(" |").map(|part| part.trim().to_owned()).collect();
            let parts = parts.try_into().unwrap_or_else(|_| panic!("four parts: {line}"));
            cases.last_mut().expect("a case in front of its mutants").mutants.push(parts);
        } else if let Some(case) = cases.last_mut() {
            case.body.push_str(line);
            case.body.push('\n');
        }
    }
    cases
}

fn case(header: &str) -> Case {
    let mut words = header.split_whitespace();
    let name = words.next().expect("a name").to_owned();
    let mut case = Case { name, grid: 1, block: 1, ..Case::default() };
    for word in words {
        let (key, value) = word.split_once('=').expect("KEY=VALUE");
        match key {
            "grid" => case.grid = value.parse().expect("blocks"),
            "block" => case.block = value.parse().expect("threads"),
            "shared" => case.shared = value.parse().expect("bytes"),
            "together" => case.is_together = value == "1",
            "args" => case.args = value.split(',').filter(|arg| !arg.is_empty()).map(str::to_owned).collect(),
            "expect" => case.expect = value.to_owned(),
            _ => panic!("{word} in the header of {}", case.name),
        }
    }
    case
}

impl Case {
    fn mutant(&self, [name, text, replacement, expect]: &[String; 4]) -> Case {
        let (text, occurrence) = match text.split_once('#') {
            Some((text, occurrence)) => (text, occurrence.parse().expect("a number")),
            None => (text.as_str(), 1),
        };
        let places: Vec<usize> = self.body.match_indices(text).map(|(at, _)| at).collect();
        let at = *places.get(occurrence - 1).unwrap_or_else(|| panic!("{name}: {text:?} is not there"));
        let body = format!("{}{replacement}{}", &self.body[..at], &self.body[at + text.len()..]);
        let expect = expect.strip_prefix("expect=").expect("an expectation").to_owned();
        Case { name: name.clone(), expect, body, mutants: Vec::new(), ..self.clone() }
    }

    /// Runs the case in a context of its own; what was found in its kernel.
    fn run(&self) -> Vec<Finding> {
        let params: Vec<String> = (0..self.args.len())
            .map(|number| {
                let is_number = self.args[number].parse::<u32>().is_ok();
                format!(".param .{} p{number}", if is_number { "u32" } else { "u64" })
            })
            .collect();
        let body = self.body.trim_start().strip_prefix('{').expect("a body");
        let text =
            format!("{HEAD}.visible .entry {}({})\n{{\n{REGISTERS}{body}", self.name, params.join(", "));
        let context = Context::new(0);
        let kernel = function(module(&text), &self.name);
        let mut values: Vec<u64> = self.args.iter().map(|arg| argument(arg)).collect();
        let mut pointers: Vec<*mut std::ffi::c_void> = values.iter_mut().map(arg).collect();
        let params = pointers.as_mut_ptr();
        let (grid, block, shared, stream) = (self.grid, self.block, self.shared, CUstream::NULL);
        let launched = if self.is_together {
            result!(cuLaunchCooperativeKernel(kernel, grid, 1, 1, block, 1, 1, shared, stream, params))
        } else {
            let extra = std::ptr::null_mut();
            result!(cuLaunchKernel(kernel, grid, 1, 1, block, 1, 1, shared, stream, params, extra))
        };
        assert_eq!(launched, CUresult::SUCCESS, "{}", self.name);
        // Some fault, as they would without a sanitizer.
        let _ = result!(cuCtxSynchronize());
        drop(context);
        let findings = sanitizer().findings().into_iter();
        findings.filter(|finding| finding.kernel.as_ref() == Some(&self.name)).collect()
    }

    /// What is wrong with what was found.
    fn check(&self, is_exact: bool) -> Option<String> {
        let findings = self.run();
        let (kind, thread) = match self.expect.split_once('@') {
            Some((kind, thread)) => (kind, Some(thread.parse().expect("a thread"))),
            None => (self.expect.as_str(), None),
        };
        let is_it = |finding: &Finding| {
            finding.kind.name() == kind
                && finding.ptx_line > 0
                && thread.is_none_or(|x| finding.thread == Some([x, 0, 0]))
        };
        let is_right = match kind {
            "none" => findings.is_empty(),
            _ if is_exact => !findings.is_empty() && findings.iter().all(is_it),
            _ => findings.iter().any(is_it),
        };
        let found: Vec<String> = findings
            .iter()
            .map(|f| format!("{} line {} thread {:?} {:?}", f.kind.name(), f.ptx_line, f.thread, f.other))
            .collect();
        (!is_right).then(|| format!("{}: expected {}, found {found:?}", self.name, self.expect))
    }
}

/// The value of an argument, after what has to be done for it.
fn argument(text: &str) -> u64 {
    let (kind, rest) = text.split_at(1);
    let bytes = || rest.parse().expect("bytes");
    match kind {
        "w" => {
            let address = allocate(bytes());
            ok!(cuMemsetD8_v2(address, 0, bytes()));
            address
        }
        "u" => allocate(bytes()),
        "f" => {
            let address = allocate(bytes());
            ok!(cuMemFree_v2(address));
            address
        }
        _ => text.parse().expect("a number"),
    }
}

fn check_all(cases: &[Case], is_exact: bool) {
    sanitizer();
    let wrong: Vec<String> = cases.iter().filter_map(|case| case.check(is_exact)).collect();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn memcheck_finds_accesses_without_memory() {
    check_all(&cases(include_str!("sanitize/memcheck.ptx")), true);
}

#[test]
fn initcheck_finds_reads_of_what_was_never_written() {
    check_all(&cases(include_str!("sanitize/initcheck.ptx")), true);
}

#[test]
fn racecheck_finds_accesses_without_an_order() {
    check_all(&cases(include_str!("sanitize/racecheck.ptx")), true);
}

#[test]
fn synccheck_finds_wrong_barriers_and_masks() {
    check_all(&cases(include_str!("sanitize/synccheck.ptx")), false);
}

#[test]
fn copies_beyond_an_allocation_are_found() {
    sanitizer();
    let context = Context::new(0);
    let (address, source) = (allocate(64), [0_u8; 128]);
    let copied = result!(cuMemcpyHtoD_v2(address, source.as_ptr().cast(), source.len()));
    assert_eq!(copied, CUresult::INVALID_VALUE);
    drop(context);
    let findings = sanitizer().findings();
    let found = findings.iter().find(|finding| finding.kind == Kind::InvalidCopy).expect("a finding");
    assert_eq!((found.address, found.region.as_ref().map(|region| region.bytes)), (Some(address), Some(64)));
}

#[test]
fn every_mutant_of_a_correct_kernel_is_found() {
    let correct = cases(include_str!("sanitize/mutants.ptx"));
    check_all(&correct, true);
    let mutants: Vec<Case> =
        correct.iter().flat_map(|case| case.mutants.iter().map(|mutant| case.mutant(mutant))).collect();
    assert!(mutants.len() >= 50, "{}", mutants.len());
    let missed: Vec<String> = mutants.iter().filter_map(|case| case.check(false)).collect();
    let (all, found) = (mutants.len(), mutants.len() - missed.len());
    // `cargo xtask bench sanitizer` reads this line.
    println!("mutants found: {found} of {all}, of {} kernels", correct.len());
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

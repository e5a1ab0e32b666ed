//! Runs every `tests/cases/*.ptx` on the compiled code and on the reference interpreter.
//!
//! A case is PTX with one entry and lines of directions:
//!
//! ```text
//! //@ launch grid=2,1,1 block=64,1,1 shared=0
//! //@ buffer u32 64 = 1 2 3 ...   64 elements, the rest zeros; the address is a parameter
//! //@ buffer u32 64 = iota        0, 1, 2, ...
//! //@ buffer u32 64 = random      the same in every run
//! //@ value u32 7                 a parameter
//! //@ expect 0 u32 = 5x32 7       first elements of buffer 0 afterwards, as `COUNTxVALUE`s
//! //@ fault illegal address       how the launch fails instead
//! ```
//!
//! All buffers must agree with the interpreter's, whether or not something is expected of them.
//! `//@ unordered` lifts that where the order of threads shows in the result.

mod common;

use std::path::Path;

use common::{Device, Generator, Params, compile, generators, lower};
use sluice_ir::interp::{self, SparseMemory};
use sluice_jit::{CompiledKernel, LaunchConfig, LaunchError};

/// How many cases LLVM covers at least.
const COVERED_MIN: usize = 35;

#[test]
fn cases() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let only = std::env::var("CASE").unwrap_or_default();
    let mut paths: Vec<_> =
        folder.read_dir().expect("the cases").map(|entry| entry.expect("a file").path()).collect();
    paths.sort();
    let mut failures = Vec::new();
    let generators = generators();
    let mut covered = 0;
    for path in paths.iter().filter(|path| path.to_string_lossy().contains(&only)) {
        let text = std::fs::read_to_string(path).expect("a readable case");
        let name = path.file_stem().expect("a name").to_string_lossy();
        for &generator in &generators {
            let outcome = std::panic::catch_unwind(|| Case::parse(&text).check(generator));
            match outcome {
                Ok(Ok(None)) => {
                    println!("{name}: {generator:?} ok");
                    covered += usize::from(generator == Generator::Llvm);
                }
                Ok(Ok(Some(reason))) => println!("{name}: not covered by {generator:?}: {reason}"),
                Ok(Err(reason)) => failures.push(format!("{name} by {generator:?}: {reason}")),
                Err(_) => failures.push(format!("{name} by {generator:?}: panicked, see above")),
            }
        }
    }
    if generators.contains(&Generator::Llvm) && only.is_empty() {
        assert!(covered >= COVERED_MIN, "LLVM covers {covered} cases, {COVERED_MIN} are expected");
    }
    assert!(failures.is_empty(), "{} of {} failed:\n{}", failures.len(), paths.len(), failures.join("\n"));
}

struct Case<'t> {
    text: &'t str,
    entry: &'t str,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    params: Vec<Param>,
    expect: Vec<(usize, Vec<u8>)>,
    fault: Option<String>,
    unordered: bool,
}

enum Param {
    /// Type and content.
    Buffer(String, Vec<u8>),
    Value(Vec<u8>),
}

impl<'t> Case<'t> {
    fn parse(text: &'t str) -> Case<'t> {
        let entry = text.split(".entry").nth(1).expect("an entry").trim();
        let entry = &entry[..entry.find(['(', ' ', '\n']).expect("parameters")];
        let mut case = Case {
            text,
            entry,
            grid: [1; 3],
            block: [32, 1, 1],
            shared: 0,
            params: vec![],
            expect: vec![],
            fault: None,
            unordered: false,
        };
        for line in text.lines().filter_map(|line| line.strip_prefix("//@ ")) {
            case.direct(line);
        }
        case
    }

    fn direct(&mut self, line: &str) {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        match verb {
            "launch" => rest.split_whitespace().for_each(|setting| self.set(setting)),
            "buffer" => {
                let (shape, content) = rest.split_once('=').unwrap_or((rest, ""));
                let (ty, count) = shape.trim().split_once(' ').expect("type and count");
                let count: usize = count.trim().parse().expect("a count");
                self.params.push(Param::Buffer(ty.to_owned(), elements(ty, content.trim(), count)));
            }
            "value" => {
                let (ty, value) = rest.split_once(' ').expect("type and value");
                self.params.push(Param::Value(element(ty, value.trim())));
            }
            "expect" => {
                let (place, content) = rest.split_once('=').expect("values");
                let (index, ty) = place.trim().split_once(' ').expect("buffer and type");
                self.expect.push((index.parse().expect("a buffer"), elements(ty, content.trim(), 0)));
            }
            "fault" => self.fault = Some(rest.to_owned()),
            "unordered" => self.unordered = true,
            other => panic!("unknown direction {other}"),
        }
    }

    fn set(&mut self, setting: &str) {
        let (name, value) = setting.split_once('=').expect("NAME=VALUE");
        let mut axes = value.split(',').map(|axis| axis.parse::<u32>().expect("a number"));
        let mut three = [1; 3];
        three.iter_mut().zip(&mut axes).for_each(|(place, axis)| *place = axis);
        match name {
            "grid" => self.grid = three,
            "block" => self.block = three,
            "shared" => self.shared = three[0],
            other => panic!("unknown setting {other}"),
        }
    }

    /// Says why the generator leaves the kernel to the other, where it does.
    fn check(&self, generator: Generator) -> Result<Option<String>, String> {
        let kernel = compile(self.text, self.entry);
        if generator == Generator::Llvm
            && let Err(reason) = kernel.optimize(self.block)
        {
            return Ok(Some(reason));
        }
        for threads in [1, 3] {
            self.check_with(threads, &kernel)?;
        }
        Ok(None)
    }

    fn check_with(&self, threads: usize, kernel: &CompiledKernel) -> Result<(), String> {
        let mut device = Device::new(threads);
        let mut params = Params::default();
        let mut buffers = Vec::new();
        let mut memory = SparseMemory::default();
        for param in &self.params {
            match param {
                Param::Value(value) => params.put(value),
                Param::Buffer(ty, content) => {
                    let address = device.buffer(content);
                    params = params.pointer(address);
                    buffers.push((address, content.len(), ty.as_str()));
                    memory.insert(address, content.clone());
                }
            }
        }
        assert!(kernel.globals().is_empty(), "cases have no module variables");
        let config = LaunchConfig {
            grid: self.grid,
            block: self.block,
            cluster: None,
            dynamic_shared_bytes: self.shared,
            stack_bytes: 1 << 10,
            params: &params.0,
            ..LaunchConfig::default()
        };
        match (device.launch(kernel, &config), &self.fault) {
            (Ok(_), None) => {}
            (Err(LaunchError::Fault(fault)), Some(expected)) if fault.to_string().contains(expected) => {
                return Ok(());
            }
            (other, expected) => return Err(format!("launch gave {other:?}, expected fault: {expected:?}")),
        }
        for (index, expected) in &self.expect {
            let (address, ..) = buffers[*index];
            let found = device.read(address, expected.len());
            if found != *expected {
                return Err(format!("buffer {index}\n found {}\n expected {}", show(&found), show(expected)));
            }
        }
        if self.unordered {
            return Ok(());
        }
        let launch = interp::Launch {
            kernel: &lower(self.text, self.entry),
            grid: self.grid,
            block: self.block,
            cluster: None,
            dynamic_shared_bytes: self.shared,
            stack_bytes: 1 << 10,
            params: &params.0,
            globals: &[],
            seed: 1,
            steps_max: 1 << 26,
        };
        interp::run(&launch, &mut memory).map_err(|fault| format!("interpreter: {fault}"))?;
        for (index, &(address, len, ty)) in buffers.iter().enumerate() {
            let (found, expected) = (device.read(address, len), memory.get(address).expect("the buffer"));
            let differences = differences(ty, &found, expected);
            if !differences.is_empty() {
                return Err(format!("buffer {index} is not the interpreter's: {differences}"));
            }
        }
        Ok(())
    }
}

/// Whether two elements are the same. Which NaN an operation gives is not specified.
fn agree(ty: &str, found: &[u8], expected: &[u8]) -> bool {
    let float = |bytes: &[u8]| match bytes.try_into() {
        Ok(bytes) => f64::from(f32::from_le_bytes(bytes)),
        Err(_) => f64::from_le_bytes(bytes.try_into().expect("an f64")),
    };
    found == expected || (ty.starts_with('f') && float(found).is_nan() && float(expected).is_nan())
}

/// The first elements that differ, by index; empty when none does.
fn differences(ty: &str, found: &[u8], expected: &[u8]) -> String {
    let size = element(ty, "0").len();
    let pairs = found.chunks(size).zip(expected.chunks(size)).enumerate();
    let different = pairs.filter(|(_, (found, expected))| !agree(ty, found, expected));
    different.take(8).map(|(index, (a, b))| format!("[{index}] {}not {}", show(a), show(b))).collect()
}

fn elements(ty: &str, content: &str, count: usize) -> Vec<u8> {
    let size = element(ty, "0").len();
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut bytes: Vec<u8> = match content {
        "iota" => (0..count).flat_map(|index| element(ty, &index.to_string())).collect(),
        "random" => (0..count * size)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 32) as u8
            })
            .collect(),
        listed => listed.split_whitespace().flat_map(|word| repeated(ty, word)).collect(),
    };
    bytes.resize(bytes.len().max(count * size), 0);
    bytes
}

fn repeated(ty: &str, word: &str) -> Vec<u8> {
    match word.split_once('x').and_then(|(count, value)| Some((count.parse::<usize>().ok()?, value))) {
        Some((count, value)) if !word.starts_with("0x") => element(ty, value).repeat(count),
        _ => element(ty, word),
    }
}

fn element(ty: &str, value: &str) -> Vec<u8> {
    let integer = || match value.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).expect("hexadecimal digits"),
        None => value.parse::<i128>().expect("an integer") as u64,
    };
    match ty {
        "u8" | "s8" => vec![integer() as u8],
        "u16" | "s16" => (integer() as u16).to_le_bytes().to_vec(),
        "u32" | "s32" => (integer() as u32).to_le_bytes().to_vec(),
        "u64" | "s64" => integer().to_le_bytes().to_vec(),
        "f32" => value.parse::<f32>().expect("a float").to_le_bytes().to_vec(),
        "f64" => value.parse::<f64>().expect("a float").to_le_bytes().to_vec(),
        other => panic!("unknown type {other}"),
    }
}

fn show(bytes: &[u8]) -> String {
    bytes
        .chunks(8)
        .map(|word| word.iter().rev().map(|byte| format!("{byte:02x}")).collect::<String>() + " ")
        .collect()
}

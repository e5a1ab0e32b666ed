//! Passes must not change what a kernel does: each kernel of `tests/ptx` runs on the reference
//! interpreter as it was lowered and as passes leave it, on the same random data, and memory must
//! come out the same.
//!
//! Kernels are called by a convention: an 8-byte parameter is the address of a buffer of random
//! small numbers, a 4-byte one is 37. Two blocks of 64 threads; threads of different blocks and
//! warps must not race. `SLUICE_PTX_DIR` names another directory with kernels of that kind.
#![cfg(feature = "interp")]

use std::path::{Path, PathBuf};

use sluice_ir::interp::{self, Launch, SparseMemory};
use sluice_ir::{Kernel, lower, passes, text, verify};
use sluice_ptx::ModuleIndex;

const BUFFER_BYTES: usize = 64 << 10;

#[test]
fn passes_keep_the_meaning() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ptx");
    let directory = std::env::var_os("SLUICE_PTX_DIR").map_or(own, PathBuf::from);
    let mut ran = 0;
    for entry in std::fs::read_dir(&directory).expect("the directory of cases") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "ptx") {
            ran += check_file(&path);
        }
    }
    assert!(ran > 0, "no kernels in {}", directory.display());
}

fn check_file(path: &Path) -> usize {
    let index = ModuleIndex::new(std::fs::read(path).expect("a readable file")).expect("PTX");
    let mut ran = 0;
    for function in index.functions().iter().filter(|function| function.is_entry) {
        let name = &*function.name;
        let module = index.closure(name).expect("a closure");
        let kernel = match lower::lower_kernel(&module, name) {
            Ok(kernel) => kernel,
            Err(error) => panic!("{}: {error}", path.display()),
        };
        verify::verify(&kernel).unwrap_or_else(|error| panic!("{}: {error}\n{kernel}", path.display()));
        let mut optimized = kernel.clone();
        passes::pipeline(&mut optimized);
        verify::verify_scheduled(&optimized)
            .unwrap_or_else(|error| panic!("{}: {error}\n{optimized}", path.display()));
        let printed = optimized.to_string();
        let reread = text::parse(&printed).unwrap_or_else(|error| panic!("{name}: {error}\n{printed}"));
        assert_eq!(reread.to_string(), printed);

        let expected = run(&kernel);
        let found = run(&optimized);
        assert!(expected == found, "{}: {name} differs\n{kernel}\n{optimized}", path.display());
        ran += 1;
    }
    ran
}

/// What a launch leaves in its buffers, or how it fails.
fn run(kernel: &Kernel) -> Result<Vec<Vec<u8>>, String> {
    let mut memory = SparseMemory::default();
    let mut params = vec![0; kernel.params.bytes as usize];
    let mut buffers = Vec::new();
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut buffer = |memory: &mut SparseMemory, buffers: &mut Vec<u64>| {
        let address = (buffers.len() as u64 + 1) << 24;
        let mut bytes = Vec::with_capacity(BUFFER_BYTES);
        while bytes.len() < BUFFER_BYTES {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            // Halves of small magnitude: sensible as integers, and as floats with a few exponents.
            bytes.extend_from_slice(&((random % 9) as u32 * 0x0081_0203 % 0x4100_0000).to_le_bytes());
        }
        memory.insert(address, bytes);
        buffers.push(address);
        address
    };
    for slot in &kernel.params.params {
        let value = if slot.bytes == 8 { buffer(&mut memory, &mut buffers) } else { 37 };
        let at = slot.offset as usize;
        let bytes = (slot.bytes as usize).min(8);
        params[at..at + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
    }
    let globals: Vec<u64> = kernel.globals.iter().map(|_| buffer(&mut memory, &mut buffers)).collect();
    let launch = Launch {
        kernel,
        grid: [2, 1, 1],
        block: [64, 1, 1],
        cluster: None,
        dynamic_shared_bytes: 4096,
        stack_bytes: 1 << 10,
        params: &params,
        globals: &globals,
        seed: 11,
        steps_max: 100_000_000,
    };
    interp::run(&launch, &mut memory).map_err(|fault| fault.to_string())?;
    Ok(buffers.iter().map(|address| memory.get(*address).unwrap_or_default().to_vec()).collect())
}

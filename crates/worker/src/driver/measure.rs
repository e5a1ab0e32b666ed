//! How fast GPUs are: found out in a process of its own before their node joins a server. A kernel
//! of multiply-adds says what they compute, a copy within their memory how fast that is.

use std::ffi::c_void;
use std::fmt::Write as _;
use std::io::Write;
use std::time::{Duration, Instant};

use sluice_cuda::{CUdevice_attribute, CUdeviceptr, CUfunction, CUmodule, CUresult, CUstream, DriverTable};

use sluice_worker_link::measure::Rates;

use crate::connection::snapshot;
use crate::driver::{self, DriverError, check};
use crate::link::Driver;

/// Time that one launch has to take for its rate to say something: a launch itself takes some 10
/// us.
const LAUNCH_TIME_MIN: Duration = Duration::from_millis(10);
/// For each of the two, once its first launch or copy is done: an idle GPU needs some of it to
/// raise its clocks.
const TIME: Duration = Duration::from_millis(150);
/// Threads of a block.
const THREADS: u32 = 256;
/// Blocks for each multiprocessor, enough to fill it with threads.
const BLOCKS: u32 = 16;
/// Values that a thread computes with, so that no multiply-add waits for the one before it.
const CHAINS: u32 = 8;
/// Multiply-adds of each value in a round of the kernel's loop.
const STEPS: u32 = 8;
/// Bytes that are copied: more than the caches of large GPUs hold, and than those of CPUs.
const COPY: u64 = 256 << 20;
const COPY_SOFTWARE: u64 = 32 << 20;

/// Measures each GPU after the other, since those of a machine may have something in common.
pub(crate) fn measure(what: &Driver, out: &mut impl Write) -> Result<(), DriverError> {
    let table = driver::start(what)?;
    let is_software = matches!(what, Driver::Software { .. });
    let count = snapshot::count(&table).map_err(|result| failed("cuDeviceGetCount", result))?;
    let rates: Vec<Result<Rates, String>> =
        (0..count).map(|gpu| rates(&table, gpu, is_software).map_err(|error| error.to_string())).collect();
    let said = serde_json::to_writer(&mut *out, &rates).map_err(std::io::Error::from);
    said.and_then(|()| out.flush()).map_err(|error| DriverError::Output(error.to_string()))
}

/// The process ends when all is measured, so nothing is freed.
fn rates(table: &DriverTable, ordinal: i32, is_software: bool) -> Result<Rates, DriverError> {
    driver::retain_context(table, ordinal)?;
    let memory = snapshot::memory(table, ordinal).map_err(|result| failed("cuDeviceTotalMem", result))?;
    let copied = if is_software { COPY_SOFTWARE } else { COPY }.min(memory / 8);
    Ok(Rates { flops: flops(table, ordinal)?, bytes_per_s: bytes_per_s(table, copied)? })
}

fn flops(table: &DriverTable, ordinal: i32) -> Result<f64, DriverError> {
    let blocks = multiprocessors(table, ordinal)?.saturating_mul(BLOCKS);
    let results = allocate(table, u64::from(blocks) * u64::from(THREADS) * 4)?;
    let function = function(table)?;
    let launch = table.cuLaunchKernel.ok_or(DriverError::Missing("cuLaunchKernel"))?;
    let run = |rounds: u32| {
        let (mut results, mut rounds) = (results, rounds);
        let mut parameters: [*mut c_void; 2] = [(&raw mut results).cast(), (&raw mut rounds).cast()];
        let parameters = parameters.as_mut_ptr();
        let null = CUstream::NULL;
        // SAFETY: the function is of this context and takes an address and a 32-bit number, which
        // live until the call returns. Every thread writes one number of the memory, of which there
        // is one for each.
        let result = unsafe {
            launch(function, blocks, 1, 1, THREADS, 1, 1, 0, null, parameters, std::ptr::null_mut())
        };
        check("cuLaunchKernel", result)?;
        synchronize(table)
    };
    let per_round = 2.0 * f64::from(CHAINS * STEPS) * f64::from(THREADS) * f64::from(blocks);
    // The kernel is compiled.
    run(1)?;
    let (begin, mut rounds, mut best) = (Instant::now(), 1_u32, 0.0_f64);
    while begin.elapsed() < TIME {
        let launched = Instant::now();
        run(rounds)?;
        let took = launched.elapsed();
        best = best.max(per_round * f64::from(rounds) / took.as_secs_f64());
        if took < LAUNCH_TIME_MIN {
            rounds = rounds.saturating_mul(2);
        }
    }
    Ok(best)
}

fn bytes_per_s(table: &DriverTable, bytes: u64) -> Result<f64, DriverError> {
    let (from, to) = (allocate(table, bytes)?, allocate(table, bytes)?);
    let copy = table.cuMemcpyDtoDAsync_v2.ok_or(DriverError::Missing("cuMemcpyDtoDAsync"))?;
    let run = || {
        // SAFETY: both allocations have this number of bytes.
        check("cuMemcpyDtoDAsync", unsafe { copy(to, from, bytes as usize, CUstream::NULL) })?;
        synchronize(table)
    };
    // Memory of a software GPU is there once it has been written to.
    run()?;
    let (begin, mut best) = (Instant::now(), 0.0_f64);
    while begin.elapsed() < TIME {
        let started = Instant::now();
        run()?;
        best = best.max(2.0 * bytes as f64 / started.elapsed().as_secs_f64());
    }
    Ok(best)
}

fn multiprocessors(table: &DriverTable, ordinal: i32) -> Result<u32, DriverError> {
    let get = table.cuDeviceGetAttribute.ok_or(DriverError::Missing("cuDeviceGetAttribute"))?;
    let mut count = 0;
    // SAFETY: the driver writes one number to a local.
    let result = unsafe { get(&mut count, CUdevice_attribute::MULTIPROCESSOR_COUNT, ordinal) };
    check("cuDeviceGetAttribute", result)?;
    Ok(u32::try_from(count).unwrap_or(1).clamp(1, MULTIPROCESSORS_MAX))
}

/// More than any GPU has.
const MULTIPROCESSORS_MAX: u32 = 4096;

fn function(table: &DriverTable) -> Result<CUfunction, DriverError> {
    let load = table.cuModuleLoadData.ok_or(DriverError::Missing("cuModuleLoadData"))?;
    let get = table.cuModuleGetFunction.ok_or(DriverError::Missing("cuModuleGetFunction"))?;
    let (text, mut module, mut function) = (kernel(), CUmodule::NULL, CUfunction::NULL);
    // SAFETY: the text ends with a null byte; the driver writes one handle to a local.
    check("cuModuleLoadData", unsafe { load(&mut module, text.as_ptr().cast()) })?;
    // SAFETY: the module was loaded just now, and the name ends with a null byte.
    check("cuModuleGetFunction", unsafe { get(&mut function, module, c"multiply_add".as_ptr()) })?;
    Ok(function)
}

/// PTX for any GPU that is still driven. Each value goes towards 2, whatever it begins with.
fn kernel() -> String {
    let each = |line: &dyn Fn(u32) -> String| (0..CHAINS).map(line).collect::<String>();
    let mut steps = String::new();
    for _ in 0..STEPS {
        steps += &each(&|value| format!("fma.rn.f32 %f{value}, %f{value}, 0f3F000000, 0f3F800000;\n"));
    }
    let begin = each(&|value| format!("add.u32 %r5, %r1, {value};\ncvt.rn.f32.u32 %f{value}, %r5;\n"));
    let mut sum = String::new();
    for value in 1..CHAINS {
        let _ = writeln!(sum, "add.rn.f32 %f0, %f0, %f{value};");
    }
    format!(
        ".version 6.0\n.target sm_60\n.address_size 64\n\
         .visible .entry multiply_add(.param .u64 results, .param .u32 rounds) {{\n\
         .reg .pred %p;\n.reg .b32 %r<6>;\n.reg .f32 %f<{CHAINS}>;\n.reg .b64 %d<3>;\n\
         ld.param.u64 %d0, [results];\nld.param.u32 %r0, [rounds];\n\
         mov.u32 %r2, %ctaid.x;\nmov.u32 %r3, %ntid.x;\nmov.u32 %r4, %tid.x;\nmad.lo.u32 %r1, %r2, %r3, %r4;\n\
         {begin}\
         again:\n{steps}\
         sub.u32 %r0, %r0, 1;\nsetp.ne.u32 %p, %r0, 0;\n@%p bra again;\n\
         {sum}\
         cvta.to.global.u64 %d1, %d0;\nmul.wide.u32 %d2, %r1, 4;\nadd.u64 %d1, %d1, %d2;\n\
         st.global.f32 [%d1], %f0;\nret;\n}}\n\0"
    )
}

fn allocate(table: &DriverTable, bytes: u64) -> Result<CUdeviceptr, DriverError> {
    let allocate = table.cuMemAlloc_v2.ok_or(DriverError::Missing("cuMemAlloc"))?;
    let mut address = 0;
    // SAFETY: the driver writes one address to a local.
    check("cuMemAlloc", unsafe { allocate(&mut address, bytes as usize) })?;
    Ok(address)
}

fn synchronize(table: &DriverTable) -> Result<(), DriverError> {
    let synchronize = table.cuCtxSynchronize.ok_or(DriverError::Missing("cuCtxSynchronize"))?;
    // SAFETY: takes nothing.
    check("cuCtxSynchronize", unsafe { synchronize() })
}

fn failed(function: &'static str, result: CUresult) -> DriverError {
    DriverError::Call { function, result }
}

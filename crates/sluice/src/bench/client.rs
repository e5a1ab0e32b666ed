//! The program that measures: a client of `libcuda.so.1` like any other.
//!
//! Each figure stands beside its baseline, taken by turns with it in the same process. How often
//! something is measured follows from how long it takes, so that a far link takes seconds and not
//! hours.

use std::ffi::{CStr, c_void};
use std::process::ExitCode;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use sluice_control::Connection;
use sluice_cuda::{CUcontext, CUfunction, CUmodule, CUstream, DriverTable};
use sluice_wire::handshake::LeaseToken;

use super::figures::Figures;
use crate::cli::{Baseline, BenchClientArgs};

/// Device memory that a lease for this program needs, also while what the one before it had is
/// being freed.
pub(super) const MEMORY_BYTES: u64 = 384 << 20;
/// The largest copy that is measured, and the smallest.
const BULK_BYTES_MAX: usize = 128 << 20;
const BULK_BYTES_MIN: usize = 1 << 20;
/// A large copy takes at least this long, and [`BULK_ROUND_TRIPS`], if there is a copy that does.
const BULK_TIME: Duration = Duration::from_millis(50);
const BULK_ROUND_TRIPS: f64 = 10.0;
const BULK_ROUNDS: usize = 5;
/// On a link that takes longer, fewer rounds have to do.
const BULK_TIME_MAX: Duration = Duration::from_secs(15);
/// How long calls of one kind are measured.
const CALLS_TIME: Duration = Duration::from_millis(500);
const CALLS_MAX: usize = 4000;
/// Queued calls are made for this long, after [`QUEUED_CALLS_FIRST`] whose time says how many that
/// are.
const QUEUED_TIME: Duration = Duration::from_secs(1);
const QUEUED_CALLS_FIRST: u32 = 20_000;
const QUEUED_CALLS_MAX: u32 = 4_000_000;

/// Threads that call at the same time.
const THREADS: usize = 4;

/// An empty kernel with one parameter, so that a launch carries something.
const EMPTY: &CStr = c".version 7.0
.target sm_75
.address_size 64
.visible .entry empty(.param .u64 p) { ret; }
";

macro_rules! call {
    ($driver:expr, $name:ident($($argument:expr),*)) => {{
        let function = $driver.$name.context(concat!("libcuda.so.1 has no ", stringify!($name)))?;
        // SAFETY: pointers among the arguments are to locals, constants and buffers of the sizes
        // that the call gets.
        let result = unsafe { function($($argument),*) };
        result.ok().map_err(|error| anyhow!(concat!(stringify!($name), ": {:?}"), error))
    }};
}

pub(crate) fn run(arguments: &BenchClientArgs) -> Result<ExitCode> {
    let mut program = Program::start()?;
    let mut figures = Figures::default();
    program.measure_waiting(&mut figures)?;
    program.measure_queued(&mut figures)?;
    program.measure_threads(&mut figures)?;
    program.measure_small_copies(&mut figures)?;
    program.measure_bulk(arguments.baseline, &mut figures)?;
    println!("{}", serde_json::to_string(&figures)?);
    Ok(ExitCode::SUCCESS)
}

struct Program {
    calls: Calls,
    node: Connection,
    token: LeaseToken,
}

/// What any thread needs in order to call.
#[derive(Clone, Copy)]
struct Calls {
    driver: &'static DriverTable,
    context: CUcontext,
    function: CUfunction,
    /// `BULK_BYTES_MAX` bytes.
    memory: u64,
}

impl Calls {
    fn synchronize(&self) -> Result<()> {
        call!(self.driver, cuCtxSynchronize())
    }

    fn launch(&self) -> Result<()> {
        let mut parameter = self.memory;
        let mut parameters = [(&raw mut parameter).cast::<c_void>()];
        let parameters = parameters.as_mut_ptr();
        call!(
            self.driver,
            cuLaunchKernel(self.function, 1, 1, 1, 1, 1, 1, 0, CUstream::NULL, parameters, null_mut())
        )
    }

    fn copy_in(&self, bytes: &[u8]) -> Result<()> {
        call!(self.driver, cuMemcpyHtoD_v2(self.memory, bytes.as_ptr().cast(), bytes.len()))
    }

    fn copy_out(&self, bytes: &mut [u8]) -> Result<()> {
        call!(self.driver, cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), self.memory, bytes.len()))
    }

    fn launch_all(&self, count: u32) -> Result<()> {
        for _ in 0..count {
            self.launch()?;
        }
        self.synchronize()
    }

    /// Calls that all threads together make in a second, of `each` that every one makes.
    fn at_once(self, each: u32, call: impl Fn(Calls) -> Result<()> + Sync) -> Result<f64> {
        let thread = || {
            call!(self.driver, cuCtxSetCurrent(self.context))?;
            (0..each).try_for_each(|_| call(self))
        };
        let begin = Instant::now();
        std::thread::scope(|scope| {
            let threads = [(); THREADS].map(|()| scope.spawn(thread));
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?)
        })?;
        self.synchronize()?;
        Ok(f64::from(each) * THREADS as f64 / begin.elapsed().as_secs_f64())
    }
}

impl Program {
    fn start() -> Result<Program> {
        let (node, token) = sluice_control::own_leases()
            .pop()
            .context("there is no lease; this runs under `sluice bench`")?;
        // For threads, and for as long as the process lives, as the library is.
        let driver: &DriverTable = Box::leak(Box::new(DriverTable::load_as_program()?));
        let (mut device, mut context, mut module, mut function, mut memory) =
            (0, CUcontext::NULL, CUmodule::NULL, CUfunction::NULL, 0);
        call!(driver, cuInit(0))?;
        call!(driver, cuDeviceGet(&mut device, 0))?;
        call!(driver, cuDevicePrimaryCtxRetain(&mut context, device))?;
        call!(driver, cuCtxSetCurrent(context))?;
        call!(driver, cuMemAlloc_v2(&mut memory, BULK_BYTES_MAX))?;
        call!(driver, cuModuleLoadData(&mut module, EMPTY.as_ptr().cast()))?;
        call!(driver, cuModuleGetFunction(&mut function, module, c"empty".as_ptr()))?;
        let calls = Calls { driver, context, function, memory };
        Ok(Program { calls, node: Connection::open(&node)?, token })
    }

    fn measure_waiting(&mut self, figures: &mut Figures) -> Result<()> {
        self.calls.synchronize()?;
        let mut word = [0; 16];
        let count = {
            let mut echo = self.node.echo(self.token, word.len(), word.len(), 1)?;
            let alone = time(|| Ok(echo.round(&mut word)?))?;
            calls_in(CALLS_TIME, alone)
        };
        let Program { calls, node, token } = self;
        let mut echo = node.echo(*token, word.len(), word.len(), count as u32)?;
        let (mut pings, mut synchronized) = (Vec::new(), Vec::new());
        for _ in 0..count {
            pings.push(time(|| Ok(echo.round(&mut word)?))?);
            synchronized.push(time(|| calls.synchronize())?);
        }
        figures.round_trip_us = microseconds(median(pings));
        figures.waiting_call_us = microseconds(median(synchronized));
        Ok(())
    }

    fn measure_queued(&mut self, figures: &mut Figures) -> Result<()> {
        // These wake all threads up, and are not measured.
        let first = time(|| self.calls.launch_all(QUEUED_CALLS_FIRST))?;
        let fit = QUEUED_TIME.as_secs_f64() / first.as_secs_f64() * f64::from(QUEUED_CALLS_FIRST);
        let count = (fit as u32).clamp(QUEUED_CALLS_FIRST, QUEUED_CALLS_MAX);
        let begin = (Instant::now(), cpu_time());
        for _ in 0..count {
            self.calls.launch()?;
        }
        let (queued, cpu) = (begin.0.elapsed(), cpu_time() - begin.1);
        self.calls.synchronize()?;
        figures.queued_call_client_cpu_us = microseconds(cpu) / f64::from(count);
        figures.queued_call_us = microseconds(queued) / f64::from(count);
        figures.queued_calls_per_s = f64::from(count) / begin.0.elapsed().as_secs_f64();
        Ok(())
    }

    /// What several threads do in the time of one, by turns of all.
    fn measure_threads(&mut self, figures: &mut Figures) -> Result<()> {
        let each = QUEUED_TIME.as_secs_f64() * figures.queued_calls_per_s / THREADS as f64;
        let queued = (each as u32).clamp(1, QUEUED_CALLS_MAX);
        figures.queued_calls_threads_per_s = self.calls.at_once(queued, |calls| calls.launch())?;
        let waiting = calls_in(CALLS_TIME, Duration::from_secs_f64(figures.waiting_call_us / 1e6)) as u32;
        figures.waiting_calls_threads_per_s = self.calls.at_once(waiting, |calls| calls.synchronize())?;
        Ok(())
    }

    fn measure_small_copies(&mut self, figures: &mut Figures) -> Result<()> {
        let bytes = [7; 64];
        let alone = time(|| self.calls.copy_in(&bytes))?;
        let count = calls_in(CALLS_TIME, alone);
        let begin = Instant::now();
        for _ in 0..count {
            self.calls.copy_in(&bytes)?;
        }
        figures.small_htod_us = microseconds(begin.elapsed()) / count as f64;
        self.calls.synchronize()
    }

    fn measure_bulk(&mut self, baseline: Baseline, figures: &mut Figures) -> Result<()> {
        let mut bytes = random_bytes(BULK_BYTES_MAX);
        let mut size = BULK_BYTES_MIN;
        let long = BULK_TIME.max(Duration::from_secs_f64(BULK_ROUND_TRIPS * figures.round_trip_us / 1e6));
        // The better of two: a session that continues over several connections makes those in one
        // of its first copies.
        while size < BULK_BYTES_MAX && self.time_in(&bytes[..size])?.min(self.time_in(&bytes[..size])?) < long
        {
            size *= 2;
        }
        let bytes = &mut bytes[..size];
        // That has warmed the way there up, and the way back finds its rate by itself.
        for _ in 0..2 {
            self.calls.copy_out(bytes)?;
        }
        let mut other = vec![1; size];
        let [mut to, mut plain_to, mut from, mut plain_from] = [const { Vec::new() }; 4];
        let begin = Instant::now();
        for round in 0..BULK_ROUNDS {
            let took = begin.elapsed();
            if round > 0 && took > 2 * BULK_TIME_MAX {
                break;
            }
            // The plain socket may be many times as slow, and one round of ours alone says little.
            let is_plain_too = round == 0 || took < BULK_TIME_MAX;
            if is_plain_too {
                plain_to.push(self.plain_to(baseline, bytes, &mut other)?);
            }
            to.push(self.time_in(bytes)?);
            if is_plain_too {
                plain_from.push(self.plain_from(baseline, bytes, &mut other)?);
            }
            from.push(time(|| self.calls.copy_out(bytes))?);
        }
        let per_s = |times| size as f64 / median(times).as_secs_f64();
        figures.htod_bytes_per_s = per_s(to);
        figures.htod_baseline_bytes_per_s = per_s(plain_to);
        figures.dtoh_bytes_per_s = per_s(from);
        figures.dtoh_baseline_bytes_per_s = per_s(plain_from);
        Ok(())
    }

    /// The time until the bytes are on the device, not only in flight.
    fn time_in(&self, bytes: &[u8]) -> Result<Duration> {
        time(|| self.calls.copy_in(bytes).and_then(|()| self.calls.synchronize()))
    }

    fn plain_to(&mut self, baseline: Baseline, bytes: &mut [u8], other: &mut [u8]) -> Result<Duration> {
        match baseline {
            Baseline::Memory => time_copy(bytes, other),
            Baseline::Socket => {
                let mut echo = self.node.echo(self.token, bytes.len(), 16, 1)?;
                time(|| Ok(echo.round(bytes)?))
            }
        }
    }

    fn plain_from(&mut self, baseline: Baseline, bytes: &mut [u8], other: &mut [u8]) -> Result<Duration> {
        match baseline {
            Baseline::Memory => time_copy(bytes, other),
            Baseline::Socket => {
                let mut echo = self.node.echo(self.token, 16, other.len(), 1)?;
                time(|| Ok(echo.round(other)?))
            }
        }
    }
}

fn time(work: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let begin = Instant::now();
    work()?;
    Ok(begin.elapsed())
}

fn time_copy(from: &[u8], to: &mut [u8]) -> Result<Duration> {
    let begin = Instant::now();
    to.copy_from_slice(from);
    std::hint::black_box(to);
    Ok(begin.elapsed())
}

/// How many calls fit into a time, of which one alone took `one`.
fn calls_in(time: Duration, one: Duration) -> usize {
    let fit = time.as_secs_f64() / one.as_secs_f64().max(1e-6);
    (fit as usize).clamp(5, CALLS_MAX)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn microseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// User and system time of all threads of this process.
fn cpu_time() -> Duration {
    // SAFETY: an all-zero rusage is valid, and the call fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// Bytes that nothing on the way could compress (xorshift64).
fn random_bytes(count: usize) -> Vec<u8> {
    let mut state = 88_172_645_463_325_252_u64;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.take(count / 8).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_far_link_is_measured_with_few_calls() {
        assert_eq!(calls_in(CALLS_TIME, Duration::from_millis(150)), 5);
        assert_eq!(calls_in(CALLS_TIME, Duration::from_millis(1)), 500);
        assert_eq!(calls_in(CALLS_TIME, Duration::from_nanos(1)), CALLS_MAX);
    }
}

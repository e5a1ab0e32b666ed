//! The software GPU against the same computation in C: `cargo bench -p sluice-jit`.
//!
//! Needs gcc. `cargo bench -p sluice-jit -- sgemm` runs one, `OMP_NUM_THREADS=1` compares single
//! threads by CPU time. Both use all cores; each pair of measurements alternates, and the median of
//! several is shown.

#[path = "../tests/common/mod.rs"]
mod common;

use std::process::Command;
use std::time::Instant;

use common::{Device, Params, compile};
use libloading::{Library, Symbol};
use sluice_jit::{CompiledKernel, LaunchConfig};

const ROUNDS: usize = 9;

type Saxpy = unsafe extern "C" fn(f32, *const f32, *mut f32, usize);
type Sgemm = unsafe extern "C" fn(*const f32, *const f32, *mut f32, usize);
type Sum = unsafe extern "C" fn(*const f32, usize) -> f32;

fn main() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = std::env::var("OMP_NUM_THREADS").ok().and_then(|count| count.parse().ok()).unwrap_or(cores);
    let only = std::env::args().nth(1).filter(|name| !name.starts_with('-')).unwrap_or_default();
    let c = build_c();
    let mut device = Device::new(threads);
    println!("{threads} threads; median of {ROUNDS}");
    println!("{:<28}{:>14}{:>14}{:>9}", "", "software GPU", "C", "ratio");
    for shift in [16, 20, 24].into_iter().filter(|_| "saxpy".contains(&only)) {
        saxpy(&mut device, &c, 1 << shift);
    }
    for n in [256, 512, 1024].into_iter().filter(|_| "sgemm".contains(&only)) {
        sgemm(&mut device, &c, n, 32);
        sgemm(&mut device, &c, n, 16);
    }
    for shift in [20, 24].into_iter().filter(|_| "reduce".contains(&only)) {
        reduce(&mut device, &c, 1 << shift);
    }
}

fn build_c() -> Library {
    let folder = tempfile::tempdir().expect("a folder");
    let library = folder.path().join("kernels.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/c/kernels.c");
    let flags = ["-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-o"];
    let status = Command::new("gcc").args(flags).arg(&library).arg(source).status().expect("gcc runs");
    assert!(status.success());
    // SAFETY: the library is ours and has no constructors but OpenMP's.
    unsafe { Library::new(&library) }.expect("the library loads")
}

/// Alternates the two and prints the rates of their medians; `work` is what one run does, in units
/// of 1e-9.
fn compare(name: &str, unit: &str, work: f64, mut gpu: impl FnMut(), mut c: impl FnMut()) {
    let is_single = std::env::var("OMP_NUM_THREADS").is_ok_and(|count| count == "1");
    let time = |run: &mut dyn FnMut()| {
        let (start, cpu_start) = (Instant::now(), cpu_time());
        run();
        if is_single { cpu_time() - cpu_start } else { start.elapsed().as_secs_f64() }
    };
    gpu();
    c();
    let (mut of_gpu, mut of_c): (Vec<f64>, Vec<f64>) =
        (0..ROUNDS).map(|_| (time(&mut gpu), time(&mut c))).unzip();
    of_gpu.sort_by(f64::total_cmp);
    of_c.sort_by(f64::total_cmp);
    let (gpu, c) = (of_gpu[ROUNDS / 2], of_c[ROUNDS / 2]);
    println!("{name:<28}{:>9.2} {unit}{:>9.2} {unit}{:>9.2}", work / gpu, work / c, c / gpu);
}

/// CPU time of this thread in seconds.
fn cpu_time() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid clock and a valid place for the result.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn launch(device: &Device, kernel: &CompiledKernel, grid: [u32; 3], block: [u32; 3], params: &Params) {
    let config = LaunchConfig { grid, block, params: &params.0, ..LaunchConfig::default() };
    device.launch(kernel, &config).expect("the launch succeeds");
}

fn saxpy(device: &mut Device, c: &Library, n: usize) {
    // SAFETY: the function has this type.
    let function: Symbol<'_, Saxpy> = unsafe { c.get(b"saxpy") }.expect("saxpy");
    let values: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let (x, y) = (device.floats(&values), device.floats(&values));
    let kernel = compile(include_str!("saxpy.ptx"), "saxpy");
    let params = Params::default().float(0.5).pointer(x).pointer(y).word(n as u32);
    let mut own = values.clone();
    let grid = [n.div_ceil(256) as u32, 1, 1];
    let repeats = ((1 << 24) / n).max(1);
    compare(
        &format!("saxpy {n}"),
        "Gelem/s",
        (n * repeats) as f64 / 1e9,
        || (0..repeats).for_each(|_| launch(device, &kernel, grid, [256, 1, 1], &params)),
        // SAFETY: both arrays have n elements.
        || (0..repeats).for_each(|_| unsafe { function(0.5, values.as_ptr(), own.as_mut_ptr(), n) }),
    );
    assert_eq!(device.read_floats(y, n), own);
}

fn sgemm(device: &mut Device, c: &Library, n: usize, tile: u32) {
    // SAFETY: the function has this type.
    let function: Symbol<'_, Sgemm> = unsafe { c.get(b"sgemm") }.expect("sgemm");
    let matrix =
        |seed: usize| -> Vec<f32> { (0..n * n).map(|i| ((i * 7 + seed) % 13) as f32 - 6.0).collect() };
    let (a, b) = (matrix(1), matrix(2));
    let mut own = vec![0.0; n * n];
    let (da, db, dc) = (device.floats(&a), device.floats(&b), device.floats(&own));
    let kernel = match tile {
        32 => compile(include_str!("sgemm.ptx"), "sgemm"),
        _ => compile(include_str!("sgemm16.ptx"), "sgemm16"),
    };
    let params = Params::default().pointer(da).pointer(db).pointer(dc).word(n as u32);
    let tiles = n as u32 / tile;
    compare(
        &format!("sgemm {n}, tiles of {tile}"),
        "GFLOP/s",
        2.0 * (n as f64).powi(3) / 1e9,
        || launch(device, &kernel, [tiles, tiles, 1], [tile, tile, 1], &params),
        // SAFETY: all three have n * n elements.
        || unsafe { function(a.as_ptr(), b.as_ptr(), own.as_mut_ptr(), n) },
    );
    assert_eq!(device.read_floats(dc, n * n), own);
}

fn reduce(device: &mut Device, c: &Library, n: usize) {
    let values: Vec<f32> = (0..n).map(|i| (i % 3) as f32).collect();
    let blocks = 64;
    let (x, out) = (device.floats(&values), device.floats(&vec![0.0; blocks]));
    let kernel = compile(include_str!("reduce.ptx"), "reduce");
    let params = Params::default().pointer(x).pointer(out).word(n as u32);
    for name in ["sum", "sum_simd"] {
        // SAFETY: the function has this type.
        let function: Symbol<'_, Sum> = unsafe { c.get(name.as_bytes()) }.expect("sum");
        let mut sums = (0.0, 0.0);
        compare(
            &format!("reduce {n} ({name})"),
            "Gelem/s",
            n as f64 / 1e9,
            || {
                launch(device, &kernel, [blocks as u32, 1, 1], [256, 1, 1], &params);
                sums.0 = device.read_floats(out, blocks).iter().sum();
            },
            // SAFETY: there are n elements.
            || sums.1 = unsafe { function(values.as_ptr(), n) },
        );
        assert!((sums.0 - n as f32).abs() < 16.0, "{sums:?}");
    }
}

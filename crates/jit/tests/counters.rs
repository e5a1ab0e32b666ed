//! Counters of the threads that execute each basic block.

mod common;

use std::sync::atomic::{AtomicU64, Ordering};

use common::{Device, Params};
use sluice_jit::{CompiledKernel, Compiler, LaunchConfig, LaunchError};

/// Threads below `n` go round as often as their number says; with `n` 0 all take the other branch.
const ROUNDS: &str = ".version 8.0
.target sm_80
.address_size 64
.visible .entry rounds(.param .u32 n)
{
    .reg .pred %p<3>;
    .reg .b32 %r<4>;
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %tid.x;
    setp.ge.u32 %p1, %r2, %r1;
    @%p1 bra OTHER;
ROUND:
    setp.eq.u32 %p2, %r2, 0;
    @%p2 bra END;
    sub.u32 %r2, %r2, 1;
    bra ROUND;
OTHER:
    mov.u32 %r3, 1;
END:
    ret;
}
";
/// The first line of each block.
const LINES: [u32; 5] = [8, 13, 15, 18, 20];

fn compile(text: &str) -> CompiledKernel {
    let module = sluice_ptx::parse(text).expect("the text parses");
    let mut kernel = sluice_ir::lower::lower_kernel_with_counters(&module, "rounds").expect("it lowers");
    sluice_ir::passes::pipeline(&mut kernel);
    Compiler::new().expect("this processor").compile(&kernel).expect("the kernel compiles")
}

fn counts(kernel: &CompiledKernel, block: [u32; 3], n: u32) -> Vec<u64> {
    let counters: Vec<AtomicU64> = kernel.counters().iter().map(|_| AtomicU64::new(0)).collect();
    let params = Params::default().word(n);
    let config = LaunchConfig {
        grid: [3, 1, 1],
        block,
        params: &params.0,
        counters: &counters,
        ..LaunchConfig::default()
    };
    Device::new(2).launch(kernel, &config).unwrap();
    counters.iter().map(|counter| counter.load(Ordering::Relaxed)).collect()
}

#[test]
fn a_counter_says_how_many_threads_have_executed_its_lines() {
    let kernel = compile(ROUNDS);
    let first: Vec<u32> = kernel.counters().iter().map(|lines| lines[0]).collect();
    assert_eq!(first, LINES);
    // Lanes of one warp part; the last warp of a block has 8.
    let (all, below) = (3 * 40, 3 * 10);
    let rounds = 3 * (0..10).sum::<u64>();
    assert_eq!(counts(&kernel, [40, 1, 1], 10), [all, rounds + below, rounds, all - below, all]);
    assert_eq!(counts(&kernel, [40, 1, 1], 0), [all, 0, 0, all, all]);
}

#[test]
fn counts_do_not_depend_on_how_threads_make_warps() {
    let kernel = compile(ROUNDS);
    for width in [8, 16, 20] {
        let (all, below) = (3 * u64::from(width) * 2, 3 * 4 * 2);
        let rounds = 3 * 2 * (0..4).sum::<u64>();
        let want = [all, rounds + below, rounds, all - below, all];
        assert_eq!(counts(&kernel, [width, 2, 1], 4), want, "rows of {width} threads");
    }
}

#[test]
fn a_launch_brings_as_many_counters_as_the_kernel_has() {
    let kernel = compile(ROUNDS);
    let params = Params::default().word(1);
    let config = LaunchConfig { params: &params.0, ..LaunchConfig::default() };
    let outcome = Device::new(1).launch(&kernel, &config);
    assert_eq!(outcome, Err(LaunchError::Counters { given: 0, expected: LINES.len() }));
}

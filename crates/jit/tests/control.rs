//! Cancel, pause and resume, output, and launches that cannot start.

mod common;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{Device, Generator, Params, compile, generators};
use sluice_jit::{DeviceHeap, FaultKind, LaunchConfig, LaunchError};

const HEAD: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";

/// Counts upwards in memory for ever; lane 0 of each block writes.
fn endless() -> String {
    format!(
        "{HEAD}.visible .entry endless(.param .u64 out)
        {{
            .reg .b32 %r<4>;
            .reg .b64 %rd<2>;
            ld.param.u64 %rd1, [out];
            mov.u32 %r1, 0;
        LOOP:
            add.u32 %r1, %r1, 1;
            st.volatile.global.u32 [%rd1], %r1;
            bra LOOP;
        }}"
    )
}

/// Waits for `condition`; fails after a time that only a hang takes.
fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what} did not happen");
        std::thread::yield_now();
    }
}

#[test]
fn an_endless_kernel_can_be_paused_resumed_and_cancelled() {
    generators().into_iter().for_each(pause_resume_and_cancel);
}

fn pause_resume_and_cancel(generator: Generator) {
    let mut device = Device::new(2);
    let counter = device.words(&[0]);
    let kernel = compile(&endless(), "endless");
    if generator == Generator::Llvm {
        kernel.optimize([64, 1, 1]).expect("LLVM covers it");
    }
    let params = Params::default().pointer(counter);
    let config =
        LaunchConfig { grid: [3, 1, 1], block: [64, 1, 1], params: &params.0, ..LaunchConfig::default() };
    let control = device.control.launch(None);
    // SAFETY: the buffer outlives the test's threads, and the kernel's stores are of 32 bits.
    let count = || unsafe { (*(counter as *const AtomicU32)).load(Ordering::Relaxed) };
    std::thread::scope(|scope| {
        let launched = scope.spawn(|| device.executor.launch(&kernel, &config, &device.memory(), &control));
        wait_until("the start", || count() != 0);
        device.control.pause();
        // Stopped once two readings agree between which it would have counted far, also beside
        // other work.
        wait_until("the pause", || {
            let before = count();
            std::thread::sleep(Duration::from_millis(100));
            count() == before
        });
        let stopped_at = count();
        device.control.resume();
        wait_until("the resumption", || count() != stopped_at);
        control.cancel();
        let fault = launched.join().expect("no panic").expect_err("it was cancelled");
        assert!(matches!(fault, LaunchError::Fault(fault) if fault.kind == FaultKind::Cancelled));
    });
}

#[test]
fn a_paused_launch_can_be_cancelled() {
    let mut device = Device::new(1);
    let counter = device.words(&[0]);
    let kernel = compile(&endless(), "endless");
    let params = Params::default().pointer(counter);
    let config = LaunchConfig { params: &params.0, ..LaunchConfig::default() };
    device.control.pause();
    let control = device.control.launch(None);
    std::thread::scope(|scope| {
        let launched = scope.spawn(|| device.executor.launch(&kernel, &config, &device.memory(), &control));
        control.cancel();
        assert!(launched.join().expect("no panic").is_err());
    });
    assert_eq!(device.read_words(counter, 1), [0]);
}

#[test]
fn printf_formats_like_c() {
    let text = format!(
        "{HEAD}
        .extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 a);
        .visible .entry say(.param .u64 format)
        {{
            .local .align 8 .b8 args[32];
            .reg .b32 %r<4>;
            .reg .f64 %d<2>;
            .reg .b64 %rd<8>;
            ld.param.u64 %rd1, [format];
            mov.u32 %r1, %tid.x;
            mov.f64 %d1, 0d3FF8000000000000;
            st.local.u32 [args], %r1;
            st.local.f64 [args+8], %d1;
            st.local.u64 [args+16], %rd1;
            mov.u64 %rd2, args;
            cvta.local.u64 %rd3, %rd2;
            {{
            .param .b64 p0;
            st.param.b64 [p0], %rd1;
            .param .b64 p1;
            st.param.b64 [p1], %rd3;
            .param .b32 rv;
            call.uni (rv), vprintf, (p0, p1);
            ld.param.b32 %r2, [rv];
            }}
            ret;
        }}"
    );
    let mut device = Device::new(1);
    let format = device.buffer(b"%03d|%-6.2f|%.3s|%%\n\0");
    let kernel = compile(&text, "say");
    let params = Params::default().pointer(format);
    let config = LaunchConfig { block: [2, 1, 1], params: &params.0, ..LaunchConfig::default() };
    let output = Arc::new(Mutex::new(Vec::new()));
    let sink = output.clone();
    let control = device.control.launch(Some(Arc::new(move |bytes: &[u8]| {
        sink.lock().expect("no panic").extend_from_slice(bytes);
    })));
    device.executor.launch(&kernel, &config, &device.memory(), &control).expect("it runs");
    let output = output.lock().expect("no panic").clone();
    assert_eq!(String::from_utf8_lossy(&output), "000|1.50  |%03|%\n001|1.50  |%03|%\n");
}

#[test]
fn device_malloc_takes_from_the_heap() {
    let text = format!(
        "{HEAD}
        .extern .func (.param .b64 r) malloc (.param .b64 n);
        .extern .func free (.param .b64 p);
        .visible .entry take(.param .u64 out)
        {{
            .reg .b32 %r<4>;
            .reg .b64 %rd<8>;
            ld.param.u64 %rd1, [out];
            mov.u32 %r1, %tid.x;
            mul.wide.u32 %rd2, %r1, 4;
            add.u64 %rd3, %rd1, %rd2;
            mov.u64 %rd4, 16;
            {{
            .param .b64 p0;
            st.param.b64 [p0], %rd4;
            .param .b64 rv;
            call.uni (rv), malloc, (p0);
            ld.param.b64 %rd5, [rv];
            }}
            st.u32 [%rd5], %r1;
            ld.u32 %r2, [%rd5];
            st.global.u32 [%rd3], %r2;
            {{
            .param .b64 p0;
            st.param.b64 [p0], %rd5;
            call.uni free, (p0);
            }}
            ret;
        }}"
    );
    let mut device = Device::new(1);
    let out = device.words(&[0; 8]);
    let heap_at = device.buffer(&[0; 4096]);
    let heap = DeviceHeap::new(heap_at..heap_at + 128);
    let kernel = compile(&text, "take");
    let params = Params::default().pointer(out);
    let config = LaunchConfig { block: [8, 1, 1], params: &params.0, ..LaunchConfig::default() };
    let mut memory = device.memory();
    memory.heap = Some(&heap);
    device.executor.launch(&kernel, &config, &memory, &device.control.launch(None)).expect("it runs");
    assert_eq!(device.read_words(out, 8), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(heap.allocate(128), heap_at, "everything was given back");
}

#[test]
fn launches_that_cannot_be_are_refused() {
    let device = Device::new(1);
    let kernel = compile(&endless(), "endless");
    let launch = |config: LaunchConfig<'_>| device.launch(&kernel, &config).expect_err("it cannot run");
    let params = [0; 8];
    let good = LaunchConfig { params: &params, ..LaunchConfig::default() };
    assert_eq!(launch(LaunchConfig { grid: [0, 1, 1], ..good }), LaunchError::GridShape);
    assert_eq!(
        launch(LaunchConfig { block: [1025, 1, 1], ..good }),
        LaunchError::BlockShape { threads: 1025, max: 1024 }
    );
    assert_eq!(launch(LaunchConfig { params: &[], ..good }), LaunchError::Params { given: 0, expected: 8 });
    let mut memory = device.memory();
    memory.arena.end = memory.arena.start + 256;
    let needed = device.executor.arena_bytes(&kernel, &good);
    let config = LaunchConfig { dynamic_shared_bytes: 4096, ..good };
    let control = device.control.launch(None);
    let refused = device.executor.launch(&kernel, &config, &memory, &control);
    assert_eq!(refused, Err(LaunchError::Arena { given: 256, needed: needed + 4096 }));
}

#[test]
fn a_device_goes_on_after_a_fault() {
    let mut device = Device::new(2);
    let text = format!(
        "{HEAD}.visible .entry poke(.param .u64 at)
        {{
            .reg .b64 %rd<2>;
            ld.param.u64 %rd1, [at];
            st.global.u32 [%rd1], 5;
            ret;
        }}"
    );
    let kernel = compile(&text, "poke");
    let good = device.words(&[0]);
    let unmapped = good + 4096;
    for round in 0..50 {
        let params = Params::default().pointer(if round % 2 == 0 { unmapped } else { good });
        let config = LaunchConfig { grid: [8, 1, 1], params: &params.0, ..LaunchConfig::default() };
        let result = device.launch(&kernel, &config);
        match round % 2 {
            0 => assert!(matches!(
                result,
                Err(LaunchError::Fault(fault)) if fault.kind == FaultKind::IllegalAddress { address: unmapped }
            )),
            _ => assert_eq!(result.map(|stats| stats.blocks), Ok(8)),
        }
    }
    assert_eq!(device.read_words(good, 1), [5]);
}

//! Kernels that fail: what the program sees, and what continues. One test, since ending kernels
//! concerns the process.

use std::time::Duration;

use sluice_cuda::*;

mod common;
use common::*;

const KERNELS: &str = "
.visible .entry stray(.param .u64 x) { .reg .b64 %rd<2>; ld.param.u64 %rd1, [x]; st.global.u32 [%rd1], 1; ret; }
.visible .entry trap() { trap; ret; }
.visible .entry endless() { LOOP: bra LOOP; }
.visible .entry lacks() { .reg .b32 %r<2>; frobnicate.sync %r0, %r1; ret; }
";

/// Launches a kernel that fails, in a context of its own, and returns the error that stays.
fn error_of(kernel: &str, argument: u64, meanwhile: impl FnOnce()) -> CUresult {
    let context = Context::new(0);
    let (f, mut argument, mut address) = (function(module(KERNELS), kernel), argument, allocate(4));
    let ready = event();
    assert_eq!(launch(f, 1, 32, CUstream::NULL, &mut [arg(&mut argument)]), CUresult::SUCCESS);
    let _ = result!(cuEventRecord(ready, CUstream::NULL));
    meanwhile();
    let error = result!(cuCtxSynchronize());
    assert_eq!(result!(cuMemAlloc_v2(&mut address, 4)), error, "sticky");
    assert_eq!(result!(cuEventSynchronize(ready)), error, "nothing waits for ever");
    assert_eq!(launch(f, 1, 32, CUstream::NULL, &mut [arg(&mut argument)]), error, "sticky");
    assert_eq!(result!(cuMemcpyDtoH_v2(arg(&mut argument), address, 4)), error, "sticky");
    drop(context);
    error
}

#[test]
fn failures_stay_in_their_context() {
    let other = Context::new(0);
    let add = function(module(ADD), "add");
    let mut x = allocate(4);
    write(x, &[1u32]);
    let host = 0u32;
    let nothing = || {};
    assert_eq!(
        error_of("stray", &raw const host as u64, nothing),
        CUresult::ILLEGAL_ADDRESS,
        "the program's memory"
    );
    assert_eq!(error_of("stray", 0, nothing), CUresult::ILLEGAL_ADDRESS);
    assert_eq!(
        error_of("stray", x + (8 << 20), nothing),
        CUresult::ILLEGAL_ADDRESS,
        "beyond every allocation"
    );
    assert_eq!(host, 0);
    assert_eq!(error_of("trap", 0, nothing), CUresult::LAUNCH_FAILED);
    assert_eq!(error_of("lacks", 0, nothing), CUresult::ILLEGAL_INSTRUCTION);
    let end_it = || {
        while sluice_softgpu::longest_running(0).is_none_or(|age| age < Duration::from_millis(1)) {
            std::thread::yield_now();
        }
        sluice_softgpu::cancel_running(0);
    };
    assert_eq!(error_of("endless", 0, end_it), CUresult::LAUNCH_TIMEOUT);

    let mut current = CUcontext::NULL;
    ok!(cuCtxGetCurrent(&mut current));
    assert_eq!(current, other.0);
    let (mut n, mut v) = (1u32, 1u32);
    assert_eq!(
        launch(add, 1, 32, CUstream::NULL, &mut [arg(&mut x), arg(&mut n), arg(&mut v)]),
        CUresult::SUCCESS
    );
    assert_eq!(read::<u32>(x, 1), [2]);
    assert!(sluice_softgpu::usage().launches >= 6);
}

/// An entry that calls one of so many functions, by their number, through a table.
fn table_of(count: u32) -> String {
    let function = |number: u32| {
        format!(
            ".func (.param .b32 r) f{number}() {{ .reg .b32 %r<2>; mov.u32 %r1, {number}; st.param.b32 [r], %r1; ret; }}\n"
        )
    };
    let functions: String = (0..count).map(function).collect();
    let names: Vec<String> = (0..count).map(|number| format!("f{number}")).collect();
    format!(
        "{functions}.global .align 8 .u64 table[{count}] = {{ {} }};
.visible .entry pick(.param .u64 out, .param .u32 which) {{
    .reg .b32 %r<3>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [which];
    mov.u64 %rd2, table;
    mul.wide.u32 %rd3, %r1, 8;
    add.u64 %rd4, %rd2, %rd3;
    ld.global.u64 %rd5, [%rd4];
    {{
        .param .b32 got;
        prototype: .callprototype (.param .b32 _) _ ();
        call (got), %rd5, (), prototype;
        ld.param.b32 %r2, [got];
    }}
    st.global.u32 [%rd1], %r2;
    ret;
}}",
        names.join(", ")
    )
}

#[test]
fn functions_are_called_through_tables_and_not_through_those_of_libraries() {
    for (count, result) in [(200, CUresult::SUCCESS), (300, CUresult::ILLEGAL_INSTRUCTION)] {
        // Kernels of the other device are ended meanwhile.
        let _context = Context::new(1);
        let pick = function(module(&table_of(count)), "pick");
        let (mut out, mut which) = (allocate(4), 150u32);
        assert_eq!(
            launch(pick, 1, 1, CUstream::NULL, &mut [arg(&mut out), arg(&mut which)]),
            CUresult::SUCCESS
        );
        assert_eq!(result!(cuCtxSynchronize()), result, "{count}");
        if result == CUresult::SUCCESS {
            assert_eq!(read::<u32>(out, 1), [150]);
        }
    }
}

#[test]
fn a_reset_brings_a_failed_primary_context_back() {
    init();
    let (mut primary, mut again) = (CUcontext::NULL, CUcontext::NULL);
    ok!(cuDevicePrimaryCtxRetain(&mut primary, 1));
    ok!(cuCtxSetCurrent(primary));
    let f = function(module(KERNELS), "trap");
    assert_eq!(launch(f, 1, 1, CUstream::NULL, &mut []), CUresult::SUCCESS);
    assert_eq!(result!(cuCtxSynchronize()), CUresult::LAUNCH_FAILED);
    ok!(cuDevicePrimaryCtxReset_v2(1));
    let (mut flags, mut active) = (9, 9);
    ok!(cuDevicePrimaryCtxGetState(1, &mut flags, &mut active));
    assert_eq!((flags, active), (0, 0));
    assert_eq!(result!(cuCtxSynchronize()), CUresult::CONTEXT_IS_DESTROYED);
    ok!(cuDevicePrimaryCtxRetain(&mut again, 1));
    assert_eq!(again, primary);
    ok!(cuCtxSynchronize());
    ok!(cuCtxSetCurrent(CUcontext::NULL));
    ok!(cuDevicePrimaryCtxRelease_v2(1));
    assert_eq!(result!(cuDevicePrimaryCtxRelease_v2(1)), CUresult::INVALID_CONTEXT);
}

#[test]
fn a_forked_child_is_told_so() {
    init();
    // SAFETY: the child calls driver functions that only read a flag, and ends without running
    // anything else.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let (mut count, mut context) = (0, CUcontext::NULL);
        let refused = [
            result!(cuInit(0)),
            result!(cuDeviceGetCount(&mut count)),
            result!(cuCtxGetCurrent(&mut context)),
        ];
        let as_expected = refused.iter().all(|&result| result == CUresult::NOT_INITIALIZED);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(if as_expected { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: the child was forked just now, and the status is on the stack.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!((waited, status), (child, 0));
}

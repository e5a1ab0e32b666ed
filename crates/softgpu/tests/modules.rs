//! Code: loading, variables, functions, launches and their errors.

use std::ffi::CString;
use std::ptr::{null_mut, without_provenance_mut};

use sluice_cuda::*;

mod common;
use common::*;

const HEADER: &str = ".version 7.0\n.target sm_75\n.address_size 64\n";

#[test]
fn a_kernel_gets_its_arguments_both_ways() {
    let _context = Context::new(0);
    let add = function(module(ADD), "add");
    let n = 1000u32;
    let x = allocate(4 * n as usize);
    write(x, &(0..n).collect::<Vec<_>>());
    let (mut pointer, mut count, mut value) = (x, n, 5u32);
    assert_eq!(
        launch(add, 8, 128, CUstream::NULL, &mut [arg(&mut pointer), arg(&mut count), arg(&mut value)]),
        CUresult::SUCCESS
    );
    let mut packed = [x as u32, (x >> 32) as u32, n, 100];
    let mut size = size_of_val(&packed);
    let mut extra = [
        without_provenance_mut(CU_LAUNCH_PARAM_BUFFER_POINTER),
        arg(&mut packed),
        without_provenance_mut(CU_LAUNCH_PARAM_BUFFER_SIZE),
        arg(&mut size),
        without_provenance_mut(CU_LAUNCH_PARAM_END),
    ];
    ok!(cuLaunchKernel(add, 8, 1, 1, 128, 1, 1, 0, CUstream::NULL, null_mut(), extra.as_mut_ptr()));
    assert_eq!(read::<u32>(x, n as usize), (105..105 + n).collect::<Vec<_>>());

    let mut params = Vec::new();
    for index in 0..3 {
        let (mut offset, mut size) = (0, 0);
        ok!(cuFuncGetParamInfo(add, index, &mut offset, &mut size));
        params.push((offset, size));
    }
    assert_eq!(params, [(0, 8), (8, 4), (12, 4)]);
    let (mut offset, mut size) = (0, 0);
    assert_eq!(result!(cuFuncGetParamInfo(add, 3, &mut offset, &mut size)), CUresult::INVALID_VALUE);
}

#[test]
fn impossible_launches_are_refused_and_leave_no_error() {
    let _context = Context::new(0);
    let f = function(module(ADD), "add");
    let (mut x, mut n, mut v) = (allocate(4), 0u32, 0u32);
    let mut params = [arg(&mut x), arg(&mut n), arg(&mut v)];
    let mut shape = |grid: [u32; 3], block: [u32; 3], shared: u32| {
        let ([gx, gy, gz], [bx, by, bz]) = (grid, block);
        result!(cuLaunchKernel(
            f,
            gx,
            gy,
            gz,
            bx,
            by,
            bz,
            shared,
            CUstream::NULL,
            params.as_mut_ptr(),
            null_mut()
        ))
    };
    for (grid, block) in [
        ([0, 1, 1], [1, 1, 1]),
        ([1, 1, 1], [1, 0, 1]),
        ([1, 1, 1], [1025, 1, 1]),
        ([1, 1, 1], [1, 1, 65]),
        ([1, 1, 1], [64, 32, 1]),
        ([1 << 31, 1, 1], [1, 1, 1]),
        ([1, 65536, 1], [1, 1, 1]),
    ] {
        assert_eq!(shape(grid, block, 0), CUresult::INVALID_VALUE, "{grid:?} {block:?}");
    }
    assert_eq!(shape([1, 1, 1], [1, 1, 1], (48 << 10) + 1), CUresult::INVALID_VALUE);
    assert_eq!(shape([1, 1, 1], [1024, 1, 1], 48 << 10), CUresult::SUCCESS);
    ok!(cuFuncSetAttribute(f, CUfunction_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES, 99 << 10));
    assert_eq!(shape([1, 1, 1], [1, 1, 1], 99 << 10), CUresult::SUCCESS);
    let too_much = (99 << 10) + 1;
    let attribute = CUfunction_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES;
    assert_eq!(result!(cuFuncSetAttribute(f, attribute, too_much)), CUresult::INVALID_VALUE);
    ok!(cuCtxSynchronize());
}

#[test]
fn variables_have_their_contents_and_point_to_each_other() {
    let _context = Context::new(0);
    let module = module(
        "
.visible .global .align 4 .u32 table[4] = {1, 2, 3};
.visible .global .align 8 .u64 middle = table + 4;
.const .align 4 .u32 answer = 42;
.visible .entry look(.param .u64 out)
{
    .reg .b32 %r<3>; .reg .b64 %rd<3>;
    ld.global.u64 %rd1, [middle];
    ld.global.u32 %r1, [%rd1];
    ld.const.u32 %r2, [answer];
    add.s32 %r1, %r1, %r2;
    ld.param.u64 %rd2, [out];
    st.global.u32 [%rd2], %r1;
    ret;
}
",
    );
    let (mut table, mut bytes) = (0, 0);
    ok!(cuModuleGetGlobal_v2(&mut table, &mut bytes, module, c"table".as_ptr()));
    assert_eq!((bytes, read::<u32>(table, 4)), (16, vec![1, 2, 3, 0]));
    assert_eq!(
        result!(cuModuleGetGlobal_v2(&mut table, &mut bytes, module, c"none".as_ptr())),
        CUresult::NOT_FOUND
    );
    let mut out = allocate(4);
    write(table + 4, &[58u32]);
    let look = function(module, "look");
    assert_eq!(launch(look, 1, 1, CUstream::NULL, &mut [arg(&mut out)]), CUresult::SUCCESS);
    assert_eq!(read::<u32>(out, 1), [100]);
    let mut missing = CUfunction::NULL;
    assert_eq!(result!(cuModuleGetFunction(&mut missing, module, c"none".as_ptr())), CUresult::NOT_FOUND);
    ok!(cuModuleUnload(module));
    assert_eq!(launch(look, 1, 1, CUstream::NULL, &mut [arg(&mut out)]), CUresult::INVALID_HANDLE);
    assert_eq!(result!(cuModuleUnload(module)), CUresult::INVALID_HANDLE);
}

#[test]
fn a_library_is_used_from_several_contexts() {
    let _first = Context::new(0);
    let text = CString::new(format!("{HEADER}{ADD}")).expect("text");
    let (mut library, mut kernel) = (CUlibrary::NULL, CUkernel::NULL);
    let (image, none) = (text.as_ptr().cast(), null_mut());
    ok!(cuLibraryLoadData(&mut library, image, null_mut(), none, 0, null_mut(), none, 0));
    ok!(cuLibraryGetKernel(&mut kernel, library, c"add".as_ptr()));
    for device in 0..2 {
        let _context = Context::new(device);
        let (mut x, mut n, mut v) = (allocate(4), 1u32, 3u32);
        write(x, &[4u32]);
        // A kernel's handle may stand where a function's is asked for.
        let f = CUfunction(kernel.0);
        assert_eq!(
            launch(f, 1, 1, CUstream::NULL, &mut [arg(&mut x), arg(&mut n), arg(&mut v)]),
            CUresult::SUCCESS
        );
        assert_eq!(read::<u32>(x, 1), [7]);
    }
    ok!(cuLibraryUnload(library));
    assert_eq!(result!(cuLibraryGetKernel(&mut kernel, library, c"add".as_ptr())), CUresult::INVALID_HANDLE);
}

#[test]
fn bad_images_are_told_apart_and_explained() {
    let _context = Context::new(0);
    let load = |image: &[u8]| {
        let mut log = [0u8; 200];
        let mut options = [CUjit_option::ERROR_LOG_BUFFER, CUjit_option::ERROR_LOG_BUFFER_SIZE_BYTES];
        let mut values = [log.as_mut_ptr().cast(), without_provenance_mut(log.len())];
        let mut module = CUmodule::NULL;
        let (image, options) = (image.as_ptr().cast(), options.as_mut_ptr());
        let result = result!(cuModuleLoadDataEx(&mut module, image, 2, options, values.as_mut_ptr()));
        let length = values[1] as usize;
        (result, String::from_utf8_lossy(&log[..length]).into_owned())
    };
    let (result, log) =
        load(b".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry f() { frobnicate.u32 %r1; }\0");
    assert_eq!(result, CUresult::INVALID_PTX);
    assert!(log.contains('4'), "the log names the line: {log}");
    assert_eq!(load(b"no image at all, whatever it may be\0").0, CUresult::INVALID_IMAGE);
    let mut none = CUmodule::NULL;
    assert_eq!(result!(cuModuleLoadData(&mut none, std::ptr::null())), CUresult::INVALID_VALUE);
}

#[test]
fn ptx_from_several_sources_is_linked() {
    let _context = Context::new(0);
    let caller = format!(
        "{HEADER}.extern .func (.param .b32 r) twice(.param .b32 a);
.visible .entry quadruple(.param .u64 x)
{{
    .reg .b32 %r<2>; .reg .b64 %rd<2>;
    .param .b32 in; .param .b32 out;
    ld.param.u64 %rd1, [x];
    ld.global.u32 %r1, [%rd1];
    st.param.b32 [in], %r1;
    call.uni (out), twice, (in);
    ld.param.b32 %r1, [out];
    st.param.b32 [in], %r1;
    call.uni (out), twice, (in);
    ld.param.b32 %r1, [out];
    st.global.u32 [%rd1], %r1;
    ret;
}}\0"
    );
    let callee = format!(
        "{HEADER}.visible .func (.param .b32 r) twice(.param .b32 a)
{{ .reg .b32 %r<2>; ld.param.b32 %r1, [a]; add.s32 %r1, %r1, %r1; st.param.b32 [r], %r1; ret; }}\0"
    );
    let mut link = CUlinkState::NULL;
    ok!(cuLinkCreate_v2(0, null_mut(), null_mut(), &mut link));
    for text in [&caller, &callee] {
        let (data, kind) = (text.as_ptr().cast_mut().cast(), CUjitInputType::INPUT_PTX);
        ok!(cuLinkAddData_v2(link, kind, data, text.len(), NO_NAME, 0, null_mut(), null_mut()));
    }
    let (mut image, mut size, mut module) = (null_mut(), 0, CUmodule::NULL);
    ok!(cuLinkComplete(link, &mut image, &mut size));
    ok!(cuModuleLoadData(&mut module, image));
    ok!(cuLinkDestroy(link));
    let mut x = allocate(4);
    write(x, &[5u32]);
    assert_eq!(
        launch(function(module, "quadruple"), 1, 1, CUstream::NULL, &mut [arg(&mut x)]),
        CUresult::SUCCESS
    );
    assert_eq!(read::<u32>(x, 1), [20]);
}

#[test]
fn what_two_sources_define_is_refused_by_name() {
    let _context = Context::new(0);
    let text = format!("{HEADER}.visible .global .align 4 .u32 table[4];\0");
    let mut log = [0u8; 200];
    let mut options = [CUjit_option::ERROR_LOG_BUFFER, CUjit_option::ERROR_LOG_BUFFER_SIZE_BYTES];
    let mut values = [log.as_mut_ptr().cast(), without_provenance_mut(log.len())];
    let mut link = CUlinkState::NULL;
    ok!(cuLinkCreate_v2(2, options.as_mut_ptr(), values.as_mut_ptr(), &mut link));
    for name in [c"first", c"second"] {
        let (data, kind) = (text.as_ptr().cast_mut().cast(), CUjitInputType::INPUT_PTX);
        ok!(cuLinkAddData_v2(link, kind, data, text.len(), name.as_ptr(), 0, null_mut(), null_mut()));
    }
    let (mut image, mut size) = (null_mut(), 0);
    assert_eq!(result!(cuLinkComplete(link, &mut image, &mut size)), CUresult::INVALID_IMAGE);
    ok!(cuLinkDestroy(link));
    let said = String::from_utf8_lossy(&log);
    assert!(said.starts_with("`table` is defined in first and in second"), "{said}");
}

#[test]
fn occupancy_is_what_runs_at_the_same_time() {
    let _context = Context::new(0);
    let f = function(module(ADD), "add");
    let (mut blocks, mut grid, mut block) = (0, 0, 0);
    ok!(cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, f, 256, 0));
    assert_eq!(blocks, 1);
    ok!(cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, f, 256, 200 << 10));
    assert_eq!(blocks, 0);
    ok!(cuOccupancyMaxPotentialBlockSize(&mut grid, &mut block, f, None, 0, 0));
    let (mut count, device) = (0, 0);
    ok!(cuDeviceGetAttribute(&mut count, CUdevice_attribute::MULTIPROCESSOR_COUNT, device));
    assert!(count >= 20, "a cooperative grid of 20 blocks fits");
    assert_eq!((grid, block), (count, 1024));
    let (mut x, mut n, mut v) = (allocate(4), 0u32, 0u32);
    let mut params = [arg(&mut x), arg(&mut n), arg(&mut v)];
    let mut cooperative = |blocks| {
        result!(cuLaunchCooperativeKernel(f, blocks, 1, 1, 32, 1, 1, 0, CUstream::NULL, params.as_mut_ptr()))
    };
    // One block on each multiprocessor, however few threads run them.
    assert_eq!(cooperative(count.cast_unsigned()), CUresult::SUCCESS);
    assert_eq!(cooperative(count.cast_unsigned() + 1), CUresult::COOPERATIVE_LAUNCH_TOO_LARGE);
}

/// `n` factorial by a function that calls itself, and keeps eight values beside.
const FACTORIAL: &str = "
.func (.param .b64 r) factorial(.param .b64 n)
{
    .reg .pred %p; .reg .b64 %rd<16>;
    ld.param.b64 %rd1, [n];
    mov.u64 %rd2, 1;
    setp.le.u64 %p, %rd1, 1;
    @%p bra done;
    mad.lo.u64 %rd3, %rd1, 3, 1;
    mad.lo.u64 %rd4, %rd1, 5, 2;
    mad.lo.u64 %rd5, %rd1, 7, 3;
    mad.lo.u64 %rd6, %rd1, 11, 4;
    sub.u64 %rd7, %rd1, 1;
    {
        .param .b64 a; .param .b64 b;
        st.param.b64 [a], %rd7;
        call.uni (b), factorial, (a);
        ld.param.b64 %rd2, [b];
    }
    mul.lo.u64 %rd2, %rd2, %rd1;
    xor.b64 %rd8, %rd3, %rd4;
    xor.b64 %rd8, %rd8, %rd5;
    xor.b64 %rd8, %rd8, %rd6;
    setp.eq.u64 %p, %rd8, 1;
    @%p mov.u64 %rd2, 0;
done:
    st.param.b64 [r], %rd2;
    ret;
}
.visible .entry factorials(.param .u64 out) .maxnreg 24
{
    .reg .b32 %r<2>; .reg .b64 %rd<8>;
    mov.u32 %r1, %tid.x;
    cvt.u64.u32 %rd1, %r1;
    {
        .param .b64 a; .param .b64 b;
        st.param.b64 [a], %rd1;
        call.uni (b), factorial, (a);
        ld.param.b64 %rd2, [b];
    }
    ld.param.u64 %rd3, [out];
    mad.wide.u32 %rd3, %r1, 8, %rd3;
    st.global.u64 [%rd3], %rd2;
    ret;
}
";

#[test]
fn calls_as_deep_as_a_gpu_has_room_for_need_no_larger_stack() {
    let _context = Context::new(0);
    let f = function(module(FACTORIAL), "factorials");
    let mut out = allocate(8 * 21);
    assert_eq!(launch(f, 1, 21, CUstream::NULL, &mut [arg(&mut out)]), CUresult::SUCCESS);
    let factorial = |n: u64| (1..=n).product::<u64>();
    assert_eq!(read::<u64>(out, 21), (0..21).map(factorial).collect::<Vec<_>>());
    let mut stack = 0;
    ok!(cuCtxGetLimit(&mut stack, CUlimit::STACK_SIZE));
    assert_eq!(stack, 1024, "as it was");
}

#[test]
fn a_kernel_takes_no_more_registers_than_it_says() {
    let _context = Context::new(0);
    let f = function(module(FACTORIAL), "factorials");
    let mut registers = 0;
    ok!(cuFuncGetAttribute(&mut registers, CUfunction_attribute::NUM_REGS, f));
    assert!((1..=24).contains(&registers), "{registers}");
}

/// Names tie texts together, and nothing else.
#[test]
fn who_calls_may_want_a_result_that_the_definition_does_not_have() {
    let _context = Context::new(0);
    let caller = format!(
        "{HEADER}.extern .func (.param .b64 r) f (.param .b32 x);
.visible .entry k(.param .u64 out) {{ .reg .b64 d, q; ld.param.u64 d, [out];
{{ .param .b32 a; .param .b64 r; st.param.b32 [a], 1; call.uni (r), f, (a); ld.param.b64 q, [r]; }}
st.global.u32 [d], 7; ret; }}\0"
    );
    let callee = format!("{HEADER}.visible .func f (.param .b32 x) {{ ret; }}\0");
    let mut link = CUlinkState::NULL;
    ok!(cuLinkCreate_v2(0, null_mut(), null_mut(), &mut link));
    for text in [&caller, &callee] {
        let (data, kind) = (text.as_ptr().cast_mut().cast(), CUjitInputType::INPUT_PTX);
        ok!(cuLinkAddData_v2(link, kind, data, text.len(), NO_NAME, 0, null_mut(), null_mut()));
    }
    let (mut image, mut size, mut module) = (null_mut(), 0, CUmodule::NULL);
    ok!(cuLinkComplete(link, &mut image, &mut size));
    ok!(cuModuleLoadData(&mut module, image));
    ok!(cuLinkDestroy(link));
    let mut out = allocate(4);
    assert_eq!(launch(function(module, "k"), 1, 1, CUstream::NULL, &mut [arg(&mut out)]), CUresult::SUCCESS);
    assert_eq!(read::<u32>(out, 1), [7]);
}

/// A kernel with 80 values alive at the same time, and its directives.
fn many_values(directives: &str) -> String {
    let loads: String = (0..80).map(|i| format!("ld.global.u32 v{i}, [a+{}];\n", 4 * i)).collect();
    let stores: String = (0..80).map(|i| format!("st.global.u32 [a+{}], v{i};\n", 316 - 4 * i)).collect();
    format!(
        "{HEADER}.visible .entry many(.param .u64 p) {directives}
{{ .reg .b64 a; .reg .b32 v<80>; ld.param.u64 a, [p];\n{loads}{stores}ret; }}\0"
    )
}

fn registers_of(module: CUmodule) -> i32 {
    let mut registers = 0;
    ok!(cuFuncGetAttribute(&mut registers, CUfunction_attribute::NUM_REGS, function(module, "many")));
    registers
}

/// What `ptxas -maxrregcount` says of the same kernels is that `.maxnreg` and `.minnctapersm` count
/// more.
#[test]
fn options_limit_registers_where_a_kernel_does_not() {
    let _context = Context::new(0);
    let limited = |directives: &str, number: usize, overrides: usize| {
        let mut options = [CUjit_option::MAX_REGISTERS, CUjit_option::OVERRIDE_DIRECTIVE_VALUES];
        let mut values = [without_provenance_mut(number), without_provenance_mut(overrides)];
        let (text, mut module) = (many_values(directives), CUmodule::NULL);
        let image = text.as_ptr().cast();
        ok!(cuModuleLoadDataEx(&mut module, image, 2, options.as_mut_ptr(), values.as_mut_ptr()));
        registers_of(module)
    };
    assert_eq!(limited("", 255, 0), 64, "of 1024 threads each");
    assert!(limited(".maxntid 256", 255, 0) > 80);
    assert_eq!(limited("", 38, 0), 38);
    assert_eq!(limited(".maxntid 256", 38, 0), 38);
    assert_eq!(limited(".maxnreg 48", 38, 0), 48);
    assert_eq!(limited(".maxnreg 48", 38, 1), 38);
    assert_eq!(limited(".maxntid 256 .minnctapersm 4", 38, 0), 64);
    assert_eq!(limited("", 8, 0), 24, "the fewest that an assembler gives");
}

#[test]
fn a_linked_kernel_keeps_the_limits_of_its_link() {
    let _context = Context::new(0);
    let linked = |of_link: Option<usize>, of_input: Option<usize>| {
        let mut option = [CUjit_option::MAX_REGISTERS];
        let mut first = [without_provenance_mut(of_link.unwrap_or(0))];
        let mut second = [without_provenance_mut(of_input.unwrap_or(0))];
        let (count, own) = (of_link.iter().len() as u32, of_input.iter().len() as u32);
        let (text, mut link) = (many_values(""), CUlinkState::NULL);
        ok!(cuLinkCreate_v2(count, option.as_mut_ptr(), first.as_mut_ptr(), &mut link));
        let (data, kind) = (text.as_ptr().cast_mut().cast(), CUjitInputType::INPUT_PTX);
        let (options, values) = (option.as_mut_ptr(), second.as_mut_ptr());
        ok!(cuLinkAddData_v2(link, kind, data, text.len(), NO_NAME, own, options, values));
        let (mut image, mut size, mut module) = (null_mut(), 0, CUmodule::NULL);
        ok!(cuLinkComplete(link, &mut image, &mut size));
        ok!(cuModuleLoadData(&mut module, image));
        ok!(cuLinkDestroy(link));
        registers_of(module)
    };
    assert_eq!(linked(None, None), 64);
    assert_eq!(linked(Some(38), None), 38);
    assert_eq!(linked(Some(38), Some(57)), 57);
}

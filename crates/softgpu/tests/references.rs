//! Texture and surface references: PTX that names them, and what is bound to them.

use std::ffi::CString;
use std::ptr::null_mut;

use sluice_cuda::*;

mod common;
use common::*;

const CODE: &str = "
.visible .global .texref line;
.visible .global .texref plane;
.tex .u32 old;
.visible .global .surfref sheet;
.visible .global .align 4 .b8 memory[4];
.func (.param .f32 out) of_line(.param .u32 at) {
    .reg .b32 %r<2>; .reg .f32 %f<5>;
    ld.param.u32 %r1, [at];
    tex.1d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [line, {%r1}];
    st.param.f32 [out], %f1;
    ret;
}
.visible .entry read_line(.param .u64 to) {
    .reg .b32 %r<2>; .reg .b64 %rd<4>; .reg .f32 %f<2>;
    ld.param.u64 %rd1, [to];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd3, %rd1, %rd2;
    { .param .u32 at; .param .f32 out; st.param.u32 [at], %r1; call (out), of_line, (at); ld.param.f32 %f1, [out]; }
    st.global.f32 [%rd3], %f1;
    ret;
}
.visible .entry read_plane(.param .u64 to, .param .f32 x, .param .f32 y) {
    .reg .b64 %rd<3>; .reg .f32 %f<8>;
    ld.param.u64 %rd1, [to];
    ld.param.f32 %f1, [x];
    ld.param.f32 %f2, [y];
    tex.2d.v4.f32.f32 {%f3, %f4, %f5, %f6}, [plane, {%f1, %f2}];
    mov.u64 %rd2, plane;
    tex.2d.v4.f32.f32 {%f7, %f5, %f5, %f5}, [%rd2, {%f2, %f1}];
    st.global.v2.f32 [%rd1], {%f3, %f7};
    ret;
}
.visible .entry read_old(.param .u64 to) {
    .reg .b32 %r<6>; .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [to];
    mov.u32 %r5, 1;
    tex.1d.v4.u32.s32 {%r1, %r2, %r3, %r4}, [old, {%r5}];
    st.global.u32 [%rd1], %r1;
    ret;
}
.visible .entry write_sheet() {
    .reg .b32 %r<5>;
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %tid.y;
    shl.b32 %r3, %r1, 2;
    mad.lo.u32 %r4, %r2, 10, %r1;
    sust.b.2d.b32.trap [sheet, {%r3, %r2}], {%r4};
    ret;
}";

fn texture(module: CUmodule, name: &str) -> CUtexref {
    let (name, mut texture) = (CString::new(name).expect("a name"), CUtexref::NULL);
    ok!(cuModuleGetTexRef(&mut texture, module, name.as_ptr()));
    texture
}

fn surface(module: CUmodule, name: &str) -> CUsurfref {
    let (name, mut surface) = (CString::new(name).expect("a name"), CUsurfref::NULL);
    ok!(cuModuleGetSurfRef(&mut surface, module, name.as_ptr()));
    surface
}

fn floats(values: &[f32]) -> CUdeviceptr {
    let address = allocate(size_of_val(values));
    write(address, values);
    address
}

/// What `read_line` reads in a stream, once it has ended.
fn line_to(module: CUmodule, to: CUdeviceptr, count: u32, s: CUstream) {
    let mut to = to;
    assert_eq!(launch(function(module, "read_line"), 1, count, s, &mut [arg(&mut to)]), CUresult::SUCCESS);
}

/// The element at (x, y), and that at (y, x).
fn plane_at(module: CUmodule, x: f32, y: f32) -> [f32; 2] {
    let (mut to, mut x, mut y) = (allocate(8), x, y);
    let mut params = [arg(&mut to), arg(&mut x), arg(&mut y)];
    assert_eq!(launch(function(module, "read_plane"), 1, 1, CUstream::NULL, &mut params), CUresult::SUCCESS);
    let read = read::<f32>(to, 2);
    [read[0], read[1]]
}

#[test]
fn linear_memory_is_read_from_where_a_texture_can_begin() {
    let _context = Context::new(0);
    let module = module(CODE);
    let line = texture(module, "line");
    let (values, to) = (floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), allocate(16));
    ok!(cuTexRefSetFormat(line, CUarray_format::FLOAT, 1));
    ok!(cuTexRefSetAddress_v2(null_mut(), line, values, 24));
    line_to(module, to, 4, CUstream::NULL);
    assert_eq!(read::<f32>(to, 4), [1.0, 2.0, 3.0, 4.0]);
    // The texture begins before the memory, and the program applies the offset.
    let (mut offset, mut begin) = (1, 0);
    ok!(cuTexRefSetAddress_v2(&mut offset, line, values + 8, 16));
    ok!(cuTexRefGetAddress_v2(&mut begin, line));
    assert_eq!((offset, begin), (8, values));
    assert_eq!(result!(cuTexRefSetAddress_v2(null_mut(), line, values + 8, 16)), CUresult::INVALID_VALUE);
    // One element of two channels: the second is beyond the end.
    ok!(cuTexRefSetFormat(line, CUarray_format::FLOAT, 2));
    ok!(cuTexRefSetAddress_v2(null_mut(), line, values, 16));
    line_to(module, to, 2, CUstream::NULL);
    assert_eq!(read::<f32>(to, 2), [1.0, 3.0]);
    // How the runtime unbinds.
    ok!(cuTexRefSetAddress_v2(null_mut(), line, 0, 0));
    assert_eq!(result!(cuTexRefGetAddress_v2(&mut begin, line)), CUresult::INVALID_VALUE);
}

#[test]
fn a_launch_reads_what_was_bound_when_it_was_made() {
    let _context = Context::new(0);
    let module = module(CODE);
    let (line, s, flag) = (texture(module, "line"), stream(1), allocate(4));
    write(flag, &[0_u32]);
    let (first, second) = (floats(&[1.0, 2.0]), floats(&[3.0, 4.0]));
    let (before, after) = (allocate(8), allocate(8));
    ok!(cuTexRefSetFormat(line, CUarray_format::FLOAT, 1));
    ok!(cuTexRefSetAddress_v2(null_mut(), line, first, 8));
    ok!(cuStreamWaitValue32_v2(s, flag, 1, 0));
    line_to(module, before, 2, s);
    ok!(cuTexRefSetAddress_v2(null_mut(), line, second, 8));
    line_to(module, after, 2, s);
    write(flag, &[1_u32]);
    ok!(cuStreamSynchronize(s));
    assert_eq!((read::<f32>(before, 2), read::<f32>(after, 2)), (vec![1.0, 2.0], vec![3.0, 4.0]));
}

#[test]
fn rows_of_memory_are_read_as_filter_flags_and_modes_say() {
    let _context = Context::new(0);
    let module = module(CODE);
    let plane = texture(module, "plane");
    let rows = allocate(2 * 32);
    write(rows, &[0_u8, 255, 0, 0]);
    write(rows + 32, &[51_u8, 102, 0, 0]);
    let desc =
        CUDA_ARRAY_DESCRIPTOR { Width: 2, Height: 2, Format: CUarray_format::UNSIGNED_INT8, NumChannels: 1 };
    ok!(cuTexRefSetAddress2D_v3(plane, &desc, rows, 32));
    assert_eq!(plane_at(module, 1.0, 0.0), [1.0, 0.2]);
    ok!(cuTexRefSetFilterMode(plane, CUfilter_mode::LINEAR));
    assert_eq!(plane_at(module, 1.0, 0.5)[0], 0.5);
    ok!(cuTexRefSetFilterMode(plane, CUfilter_mode::POINT));
    ok!(cuTexRefSetFlags(plane, CU_TRSF_NORMALIZED_COORDINATES));
    ok!(cuTexRefSetAddressMode(plane, 0, CUaddress_mode::WRAP));
    assert_eq!(plane_at(module, 1.75, 0.25), [1.0, 0.2]);
    ok!(cuTexRefSetAddressMode(plane, 1, CUaddress_mode::BORDER));
    ok!(cuTexRefSetBorderColor(plane, [0.75_f32, 0.0, 0.0, 0.0].as_mut_ptr()));
    assert_eq!(plane_at(module, 0.25, 7.0)[0], 0.75);
    // What is bound has its format; other rows than a texture can have are none.
    let format = || result!(cuTexRefSetFormat(plane, CUarray_format::FLOAT, 1));
    assert_eq!(format(), CUresult::INVALID_VALUE);
    for (address, pitch) in [(rows + 4, 32), (rows, 33), (rows, 0), (rows, 1 << 22), (1 << 40, 32)] {
        let result = result!(cuTexRefSetAddress2D_v3(plane, &desc, address, pitch));
        assert_eq!(result, CUresult::INVALID_VALUE, "{pitch} at {address:#x}");
    }
}

#[test]
fn arrays_bring_their_format_and_surfaces_write_them() {
    let _context = Context::new(0);
    let module = module(CODE);
    let (plane, sheet) = (texture(module, "plane"), surface(module, "sheet"));
    let desc = |flags| CUDA_ARRAY3D_DESCRIPTOR {
        Width: 4,
        Height: 2,
        Depth: 0,
        Format: CUarray_format::SIGNED_INT32,
        NumChannels: 1,
        Flags: flags,
    };
    let (mut array, mut plain, mut found) = (CUarray::NULL, CUarray::NULL, CUarray::NULL);
    ok!(cuArray3DCreate_v2(&mut array, &desc(CUDA_ARRAY3D_SURFACE_LDST)));
    ok!(cuArray3DCreate_v2(&mut plain, &desc(0)));
    assert_eq!(result!(cuSurfRefSetArray(sheet, plain, 0)), CUresult::INVALID_VALUE);
    assert_eq!(result!(cuSurfRefGetArray(&mut found, sheet)), CUresult::INVALID_VALUE);
    ok!(cuSurfRefSetArray(sheet, array, 0));
    ok!(cuSurfRefGetArray(&mut found, sheet));
    assert_eq!(found, array);
    let write_sheet = function(module, "write_sheet");
    ok!(cuLaunchKernel(write_sheet, 1, 1, 1, 4, 2, 1, 0, CUstream::NULL, null_mut(), null_mut()));
    assert_eq!(result!(cuTexRefSetArray(plane, array, 0)), CUresult::INVALID_VALUE);
    ok!(cuTexRefSetArray(plane, array, CU_TRSA_OVERRIDE_FORMAT));
    ok!(cuTexRefGetArray(&mut found, plane));
    let (mut format, mut channels) = (CUarray_format::HALF, 0);
    ok!(cuTexRefGetFormat(&mut format, &mut channels, plane));
    assert_eq!((found, format, channels), (array, CUarray_format::SIGNED_INT32, 1));
    // 32-bit integers are read as they are, whatever the type of the result.
    assert_eq!(plane_at(module, 1.0, 0.0).map(f32::to_bits), [1, 10]);
    assert_eq!(plane_at(module, 3.0, 1.0)[0].to_bits(), 13);
    ok!(cuModuleUnload(module));
    assert_eq!(result!(cuTexRefGetArray(&mut found, plane)), CUresult::INVALID_HANDLE);
    assert_eq!(result!(cuSurfRefGetArray(&mut found, sheet)), CUresult::INVALID_HANDLE);
}

#[test]
fn references_are_found_by_name_and_kind() {
    let _context = Context::new(0);
    let module = module(CODE);
    let old = texture(module, "old");
    assert_eq!(old, texture(module, "old"));
    let (mut none, mut no_surface) = (CUtexref::NULL, CUsurfref::NULL);
    for name in [c"sheet", c"memory", c"nothing", c"read_line"] {
        let result = result!(cuModuleGetTexRef(&mut none, module, name.as_ptr()));
        assert_eq!(result, CUresult::NOT_FOUND, "{name:?}");
    }
    assert_eq!(result!(cuModuleGetSurfRef(&mut no_surface, module, c"old".as_ptr())), CUresult::NOT_FOUND);
    let (mut address, mut bytes) = (0, 0);
    let global = result!(cuModuleGetGlobal_v2(&mut address, &mut bytes, module, c"line".as_ptr()));
    assert_eq!(global, CUresult::NOT_FOUND, "a reference is no memory");
    // Declared as PTX before 1.5 does.
    let (values, mut to) = (allocate(8), allocate(4));
    write(values, &[7_u32, 8]);
    ok!(cuTexRefSetFormat(old, CUarray_format::UNSIGNED_INT32, 1));
    ok!(cuTexRefSetAddress_v2(null_mut(), old, values, 8));
    let read_old = function(module, "read_old");
    ok!(cuParamSetTexRef(read_old, CU_PARAM_TR_DEFAULT, old));
    assert_eq!(result!(cuParamSetTexRef(read_old, 0, old)), CUresult::INVALID_VALUE);
    assert_eq!(launch(read_old, 1, 1, CUstream::NULL, &mut [arg(&mut to)]), CUresult::SUCCESS);
    assert_eq!(read::<u32>(to, 1), [8]);
    // A program's own is no function's, and a module's does not end before it.
    let mut own = CUtexref::NULL;
    ok!(cuTexRefCreate(&mut own));
    assert_eq!(result!(cuParamSetTexRef(read_old, CU_PARAM_TR_DEFAULT, own)), CUresult::INVALID_VALUE);
    ok!(cuTexRefDestroy(own));
    assert_eq!(result!(cuTexRefDestroy(own)), CUresult::INVALID_HANDLE);
    assert_eq!(result!(cuTexRefDestroy(old)), CUresult::INVALID_HANDLE);
}

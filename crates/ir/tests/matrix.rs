//! Matrix instructions on the reference interpreter against plain loops, on small integers that
//! every format holds exactly.
#![cfg(feature = "interp")]

use sluice_ir::interp::{self, Launch, SparseMemory};
use sluice_ir::{lower, passes, verify};

const A: u64 = 1 << 20;
const B: u64 = 2 << 20;
const C: u64 = 3 << 20;
const D: u64 = 4 << 20;

/// Runs one warp of a kernel with the parameters a, b, c, d, and gives the bytes of d.
fn run(body: &str, registers: &str, operands: [Vec<u8>; 3], d_bytes: usize) -> Vec<u8> {
    let ptx = format!(
        ".version 8.0\n.target sm_90\n.address_size 64\n
         .visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d)\n{{\n
         .reg .b64 %rd<8>; .reg .b32 %r<40>; .reg .f32 %f<40>; .reg .f64 %fd<8>; {registers}\n
         ld.param.u64 %rd0, [a]; ld.param.u64 %rd1, [b]; ld.param.u64 %rd2, [c]; ld.param.u64 %rd3, [d];\n
         {body}\nret;\n}}\n"
    );
    let module = sluice_ptx::parse(&ptx).expect("PTX");
    let mut kernel = lower::lower_kernel(&module, "k").expect("a kernel");
    passes::pipeline(&mut kernel);
    verify::verify_scheduled(&kernel).expect("a well-formed kernel");
    let mut memory = SparseMemory::default();
    for (address, bytes) in [A, B, C].into_iter().zip(operands) {
        memory.insert(address, bytes);
    }
    memory.insert(D, vec![0; d_bytes]);
    let params: Vec<u8> = [A, B, C, D].into_iter().flat_map(u64::to_le_bytes).collect();
    let launch = Launch {
        kernel: &kernel,
        grid: [1; 3],
        block: [32, 1, 1],
        cluster: None,
        dynamic_shared_bytes: 0,
        stack_bytes: 1 << 10,
        params: &params,
        globals: &[],
        seed: 5,
        steps_max: 10_000_000,
    };
    interp::run(&launch, &mut memory).expect("a run without faults");
    memory.get(D).expect("the result").to_vec()
}

/// Element (row, column) of a test matrix: -4 to 4.
fn element(seed: usize, row: usize, column: usize) -> i32 {
    ((row * 31 + column * 17 + seed * 7 + row * column) % 9) as i32 - 4
}

/// `element`s of a matrix, row by row or column by column, as bytes.
fn matrix(
    seed: usize,
    [rows, columns]: [usize; 2],
    by_rows: bool,
    bytes: impl Fn(i32) -> Vec<u8>,
) -> Vec<u8> {
    let (slow, fast) = if by_rows { (rows, columns) } else { (columns, rows) };
    (0..slow)
        .flat_map(|s| (0..fast).map(move |f| if by_rows { element(seed, s, f) } else { element(seed, f, s) }))
        .flat_map(bytes)
        .collect()
}

fn product(m: usize, n: usize, k: usize) -> Vec<i32> {
    let dot = |row, column| (0..k).map(|at| element(1, row, at) * element(2, at, column)).sum::<i32>();
    (0..m).flat_map(|row| (0..n).map(move |column| dot(row, column) + element(3, row, column))).collect()
}

/// The bits of a small integer as a half: exact up to 2048.
fn half(value: i32) -> Vec<u8> {
    let magnitude = value.unsigned_abs();
    if magnitude == 0 {
        return vec![0, 0];
    }
    let exponent = 31 - magnitude.leading_zeros();
    let bits = (15 + exponent) << 10 | (magnitude << (10 - exponent)) & 0x3ff;
    ((bits | if value < 0 { 0x8000 } else { 0 }) as u16).to_le_bytes().to_vec()
}

fn single(value: i32) -> Vec<u8> {
    (value as f32).to_le_bytes().to_vec()
}

fn check_wmma(
    [m, n, k]: [usize; 3],
    [layout_a, layout_b]: [&str; 2],
    [ab, cd]: [&str; 2],
    [a_count, c_count]: [usize; 2],
    bytes: [&dyn Fn(i32) -> Vec<u8>; 2],
) {
    let list = |prefix: &str, first: usize, count: usize| {
        (first..first + count).map(|at| format!("{prefix}{at}")).collect::<Vec<_>>().join(", ")
    };
    let (a_registers, b_registers, c_prefix) = match ab {
        "f64" => (list("%fd", 0, 1), list("%fd", 1, 1), "%fd"),
        _ => (list("%r", 0, a_count), list("%r", 20, a_count), if cd == "s32" { "%q" } else { "%f" }),
    };
    let c_registers = list(c_prefix, if ab == "f64" { 2 } else { 0 }, c_count);
    let shape = format!("m{m}n{n}k{k}");
    let types = match ab {
        "f16" => format!("{cd}.{cd}"),
        "f64" => "f64.f64.f64.f64".into(),
        _ => format!("{cd}.{ab}.{ab}.{cd}"),
    };
    let body = format!(
        "wmma.load.a.sync.aligned.{layout_a}.{shape}.global.{ab} {{{a_registers}}}, [%rd0];
         wmma.load.b.sync.aligned.{layout_b}.{shape}.global.{ab} {{{b_registers}}}, [%rd1];
         wmma.load.c.sync.aligned.row.{shape}.global.{cd} {{{c_registers}}}, [%rd2];
         wmma.mma.sync.aligned.{layout_a}.{layout_b}.{shape}.{types} {{{c_registers}}}, {{{a_registers}}}, {{{b_registers}}}, {{{c_registers}}};
         wmma.store.d.sync.aligned.row.{shape}.global.{cd} [%rd3], {{{c_registers}}};"
    );
    let operands = [
        matrix(1, [m, k], layout_a == "row", bytes[0]),
        matrix(2, [k, n], layout_b == "row", bytes[0]),
        matrix(3, [m, n], true, bytes[1]),
    ];
    let want: Vec<u8> = product(m, n, k).into_iter().flat_map(bytes[1]).collect();
    let found = run(&body, ".reg .b32 %q<10>;", operands, want.len());
    assert_eq!(found, want, "{shape} {layout_a} {layout_b} {types}");
}

#[test]
fn wmma_multiplies_matrices_of_all_shapes_and_types() {
    for shape in [[16, 16, 16], [32, 8, 16], [8, 32, 16]] {
        for layouts in [["row", "col"], ["col", "row"], ["row", "row"]] {
            check_wmma(shape, layouts, ["f16", "f32"], [8, 8], [&half, &single]);
        }
    }
    let byte = |value: i32| vec![value as u8];
    let word = |value: i32| value.to_le_bytes().to_vec();
    let double = |value: i32| f64::from(value).to_le_bytes().to_vec();
    check_wmma([16, 16, 16], ["row", "col"], ["s8", "s32"], [2, 8], [&byte, &word]);
    check_wmma([16, 16, 8], ["row", "col"], ["tf32", "f32"], [4, 8], [&single, &single]);
    check_wmma([8, 8, 4], ["row", "col"], ["f64", "f64"], [1, 2], [&double, &double]);
}

/// Fragments by `ldmatrix`, the result by the layout that PTX prescribes for `mma`.
#[test]
fn mma_takes_fragments_of_ldmatrix() {
    let body = "
        .shared .align 16 .b8 sa[512]; .shared .align 16 .b8 sb[256];
        mov.u32 %r0, %tid.x;
        shl.b32 %r1, %r0, 4;
        cvt.u64.u32 %rd4, %r1; add.u64 %rd5, %rd0, %rd4;
        ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%rd5];
        mov.u32 %r6, sa; add.u32 %r7, %r6, %r1;
        st.shared.v4.u32 [%r7], {%r2, %r3, %r4, %r5};
        shl.b32 %r8, %r0, 3;
        cvt.u64.u32 %rd4, %r8; add.u64 %rd5, %rd1, %rd4;
        ld.global.v2.u32 {%r2, %r3}, [%rd5];
        mov.u32 %r9, sb; add.u32 %r10, %r9, %r8;
        st.shared.v2.u32 [%r10], {%r2, %r3};
        bar.sync 0;
        // Rows of A are 32 bytes: lanes 0-15 address rows 0-15 at column 0, lanes 16-31 at column 8.
        and.b32 %r11, %r0, 15; shl.b32 %r11, %r11, 5;
        and.b32 %r12, %r0, 16; add.u32 %r11, %r11, %r12; add.u32 %r11, %r11, %r6;
        ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r20, %r21, %r22, %r23}, [%r11];
        // B is stored by rows of 16 bytes, so its 8 x 8 halves are transposed.
        and.b32 %r13, %r0, 15; shl.b32 %r13, %r13, 4; add.u32 %r13, %r13, %r9;
        ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r24, %r25}, [%r13];
        // C and D: row lane / 4 (and 8 more), columns 2 * (lane % 4) and the next.
        shr.u32 %r14, %r0, 2; and.b32 %r15, %r0, 3;
        shl.b32 %r14, %r14, 5; shl.b32 %r15, %r15, 3; add.u32 %r14, %r14, %r15;
        cvt.u64.u32 %rd4, %r14; add.u64 %rd5, %rd2, %rd4; add.u64 %rd6, %rd3, %rd4;
        ld.global.v2.f32 {%f0, %f1}, [%rd5]; ld.global.v2.f32 {%f2, %f3}, [%rd5+256];
        mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32
          {%f4, %f5, %f6, %f7}, {%r20, %r21, %r22, %r23}, {%r24, %r25}, {%f0, %f1, %f2, %f3};
        st.global.v2.f32 [%rd6], {%f4, %f5}; st.global.v2.f32 [%rd6+256], {%f6, %f7};";
    let operands =
        [matrix(1, [16, 16], true, half), matrix(2, [16, 8], true, half), matrix(3, [16, 8], true, single)];
    let want: Vec<u8> = product(16, 8, 16).into_iter().flat_map(single).collect();
    assert_eq!(run(body, "", operands, want.len()), want);
}

//! Products of matrices in machine code against the reference interpreter, bit by bit, on random
//! operands: three of four are ordinary numbers, the others any bits.

mod common;

use std::fmt::Write;

use common::{Device, Params, lower};
use sluice_ir::interp::{self, SparseMemory};
use sluice_jit::{Compiler, LaunchConfig};

/// A form of `mma`: its modifiers, and the registers of A, B and C.
struct Form {
    modifiers: &'static str,
    registers: [usize; 3],
    ordinary: fn(u32) -> u32,
}

/// Two halves between 1/16 and 16.
fn halves(random: u32) -> u32 {
    let half = |bits: u32| bits & 0x83ff | (11 + (bits >> 10 & 7)) << 10;
    half(random & 0xffff) | half(random >> 16) << 16
}

/// Two bfloat16 numbers between 1/16 and 16.
fn bfloats(random: u32) -> u32 {
    let bfloat = |bits: u32| bits & 0x807f | (123 + (bits >> 7 & 7)) << 7;
    bfloat(random & 0xffff) | bfloat(random >> 16) << 16
}

/// A float between 1/16 and 16.
fn float(random: u32) -> u32 {
    random & 0x807f_ffff | (123 + (random >> 23 & 7)) << 23
}

fn any(random: u32) -> u32 {
    random
}

const FORMS: &[Form] = &[
    Form { modifiers: "m16n8k16.row.col.f32.f16.f16.f32", registers: [4, 2, 4], ordinary: halves },
    Form { modifiers: "m16n8k8.row.col.f32.f16.f16.f32", registers: [2, 1, 4], ordinary: halves },
    Form { modifiers: "m16n8k16.row.col.f32.bf16.bf16.f32", registers: [4, 2, 4], ordinary: bfloats },
    Form { modifiers: "m16n8k8.row.col.f32.tf32.tf32.f32", registers: [4, 2, 4], ordinary: float },
    Form { modifiers: "m16n8k4.row.col.f32.tf32.tf32.f32", registers: [2, 1, 4], ordinary: float },
    Form { modifiers: "m16n8k32.row.col.s32.s8.s8.s32", registers: [4, 2, 4], ordinary: any },
    Form { modifiers: "m16n8k32.row.col.s32.u8.s8.s32", registers: [4, 2, 4], ordinary: any },
    Form { modifiers: "m16n8k16.row.col.s32.s8.u8.s32", registers: [2, 1, 4], ordinary: any },
    Form { modifiers: "m8n8k16.row.col.s32.u8.u8.s32", registers: [1, 1, 2], ordinary: any },
];

/// One warp multiplies twice, the second time onto the sums of the first.
fn text(form: &Form) -> String {
    let [a, b, c] = form.registers;
    let mut text = String::from(
        ".version 8.0\n.target sm_90\n.address_size 64\n
.visible .entry k(.param .u64 in, .param .u64 out)\n{
.reg .b32 %a<9>; .reg .b32 %b<9>; .reg .b32 %c<9>; .reg .b32 %r; .reg .b64 %rd<4>;
ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out]; mov.u32 %r, %tid.x; mul.wide.u32 %rd3, %r, 4;
add.u64 %rd1, %rd1, %rd3; add.u64 %rd2, %rd2, %rd3;\n",
    );
    let names =
        |letter: char, count: usize| (0..count).map(|at| format!("%{letter}{at}")).collect::<Vec<_>>();
    let (a, b, c) = (names('a', a), names('b', b), names('c', c));
    let place = |at: usize| 128 * at;
    for (at, register) in a.iter().chain(&b).chain(&c).enumerate() {
        let _ = writeln!(text, "ld.global.b32 {register}, [%rd1+{}];", place(at));
    }
    let list = |names: &[String]| format!("{{{}}}", names.join(", "));
    let sums = list(&c);
    for _ in 0..2 {
        let _ =
            writeln!(text, "mma.sync.aligned.{} {sums}, {}, {}, {sums};", form.modifiers, list(&a), list(&b));
    }
    for (at, register) in c.iter().enumerate() {
        let _ = writeln!(text, "st.global.b32 [%rd2+{}], {register};", place(at));
    }
    text + "ret;\n}\n"
}

#[test]
fn products_are_those_of_the_interpreter() {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (random >> 32) as u32
    };
    for form in FORMS {
        let text = text(form);
        let is_float = !form.modifiers.contains(".s32");
        for round in 0..8 {
            let [a, b, c] = form.registers;
            let mut input = Vec::new();
            for at in 0..32 * (a + b + c) {
                let word = next();
                let number = match round % 4 == 3 {
                    true => word,
                    false if at >= 32 * (a + b) && is_float => float(word),
                    false => (form.ordinary)(word),
                };
                input.extend(number.to_le_bytes());
            }
            let out_bytes = 128 * c;
            let mut device = Device::new(1);
            let (input_address, out) = (device.buffer(&input), device.buffer(&vec![0; out_bytes]));
            let params = Params::default().pointer(input_address).pointer(out);
            let compiler = Compiler::new().expect("this processor");
            let kernel = compiler.compile(&lower(&text, "k")).expect("a kernel");
            let (grid, block) = ([1; 3], [32, 1, 1]);
            let config = LaunchConfig { grid, block, params: &params.0, ..LaunchConfig::default() };
            device.launch(&kernel, &config).unwrap_or_else(|error| panic!("{error}\n{text}"));

            let mut memory = SparseMemory::default();
            memory.insert(input_address, input);
            memory.insert(out, vec![0; out_bytes]);
            let module = sluice_ptx::parse(&text).expect("PTX");
            let launch = interp::Launch {
                kernel: &sluice_ir::lower::lower_kernel(&module, "k").expect("a kernel"),
                grid,
                block,
                cluster: None,
                dynamic_shared_bytes: 0,
                stack_bytes: 0,
                params: &params.0,
                globals: &[],
                seed: 1,
                steps_max: 1 << 20,
            };
            interp::run(&launch, &mut memory).unwrap_or_else(|fault| panic!("{fault}\n{text}"));
            let expected = memory.get(out).expect("the buffer");
            let found = device.read_words(out, 32 * c);
            for (at, (found, expected)) in found.into_iter().zip(expected.chunks_exact(4)).enumerate() {
                let expected = u32::from_le_bytes(expected.try_into().expect("four bytes"));
                let are_nan = is_float && [found, expected].iter().all(|bits| f32::from_bits(*bits).is_nan());
                assert!(
                    found == expected || are_nan,
                    "{} round {round}: word {at} is {found:#x}, not {expected:#x}",
                    form.modifiers
                );
            }
        }
    }
}

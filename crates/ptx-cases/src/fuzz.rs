//! Random kernels from a seed, run on the interpreter and as compiled code, compared bit for bit.
//!
//! The kernels are valid and their results do not depend on the order in which threads run: control
//! flow is structured (so lanes meet again) but diverges, threads write only their own elements,
//! exchange values through shared memory between barriers, shuffle with full masks where all lanes
//! have met, and update common cells by commutative atomics. NaNs are made canonical where a
//! float's bits would show; approximate instructions are not used.

mod control;
mod functions;
mod statements;
mod together;

use std::fmt::Write;

use sluice_ptx::Type;

use crate::content::{Random, to_bytes};
use crate::machine::{Arg, Launch, Program};

use functions::FUNCTIONS;

/// Threads of each of the two blocks; several shapes, all with whole warps.
const THREADS: u32 = 64;
const BLOCKS: u32 = 2;

/// Runs the kernel of a seed on all back ends. The error holds the kernel.
pub fn check(seed: u64) -> Result<(), String> {
    let text = Generator::new(seed).kernel();
    check_text(seed, &text).map_err(|error| format!("seed {seed}: {error}\n{text}"))
}

fn check_text(seed: u64, text: &str) -> Result<(), String> {
    let program = Program::new(text, "fuzz")?;
    let mut random = Random(seed ^ 0x5eed);
    let threads = (THREADS * BLOCKS) as usize;
    let mut values = |ty: Type, count: usize| {
        let values: Vec<u64> = (0..count).map(|_| random.value(ty)).collect();
        Arg::Buffer(to_bytes(ty, &values))
    };
    let args = vec![
        values(Type::U32, threads),
        values(Type::U64, threads),
        values(Type::F32, threads),
        values(Type::F64, threads),
        Arg::Buffer(vec![0; threads * OUTPUT_BYTES]),
        values(Type::U32, 8),
    ];
    let block = [[64, 1, 1], [32, 2, 1], [8, 8, 1], [16, 2, 2]][(seed % 4) as usize];
    let launch = Launch {
        grid: [BLOCKS, 1, 1],
        block,
        cluster: None,
        cooperative: false,
        shared_bytes: 0,
        stack_bytes: 4096,
        args,
    };
    let expected = program.interpret(&launch, 0).map_err(|fault| format!("interpreter: {fault}"))?;
    let mut outcomes = Vec::new();
    let second =
        program.interpret(&launch, seed | 1).map_err(|fault| format!("behind the passes: {fault}"))?;
    outcomes.push(("behind the passes", second));
    for (name, threads) in [("compiled", 1), ("compiled, two threads", 2)] {
        let outcome = program.execute(&launch, threads).map_err(|fault| format!("{name}: {fault}"))?;
        outcomes.push((name, outcome));
    }
    if let Some(outcome) = program.execute_by_llvm(&launch, 2) {
        outcomes.push(("by LLVM", outcome.map_err(|fault| format!("by LLVM: {fault}"))?));
    }
    for (name, outcome) in outcomes {
        for (index, (found, expected)) in outcome.buffers.iter().zip(&expected.buffers).enumerate() {
            if let Some(at) = found.iter().zip(expected).position(|(found, expected)| found != expected) {
                return Err(format!("{name}: buffer {index} differs at byte {at:#x}, block {block:?}"));
            }
        }
    }
    Ok(())
}

/// Of each class of registers, how many a kernel has.
const REGISTERS: usize = 6;
/// What a thread writes: all of its registers.
const OUTPUT_BYTES: usize = REGISTERS * (4 + 8 + 4 + 8);

struct Generator {
    random: Random,
    text: String,
    labels: u32,
    /// How deep in branches and loops; shuffles and barriers only where it is 0.
    depth: u32,
    /// Statements left.
    budget: u32,
    /// Some threads have ended, so that the others can no longer do things together.
    some_ended: bool,
}

impl Generator {
    fn new(seed: u64) -> Generator {
        let mut random = Random(seed);
        let budget = 10 + random.below(50) as u32;
        Generator { random, text: String::new(), labels: 0, depth: 0, budget, some_ended: false }
    }

    fn kernel(mut self) -> String {
        self.text.push_str(".version 8.8\n.target sm_120\n.address_size 64\n\n");
        self.text.push_str(FUNCTIONS);
        self.text.push_str(
            ".visible .entry fuzz(.param .u64 ints, .param .u64 longs, .param .u64 floats, .param .u64 doubles,\n\
             \x20   .param .u64 out, .param .u64 cells)\n{\n",
        );
        let last = REGISTERS + 1;
        let _ = writeln!(
            self.text,
            "    .reg .pred p<5>;\n    .reg .b32 r<{last}>;\n    .reg .b64 d<{last}>;\n    .reg .f32 f<{last}>;\n    \
             .reg .f64 g<{last}>;\n    .reg .b16 h<4>;\n    .reg .b32 %t<8>, %c<8>;\n    .reg .b64 %a<6>;\n    \
             .shared .align 8 .b8 room[{}];\n    .local .align 8 .b8 own[64];",
            THREADS * 8
        );
        self.prologue();
        while self.budget > 0 {
            self.statement();
            match self.random.below(24) {
                0 => self.wild(),
                1 => self.leave(),
                _ => {}
            }
        }
        if self.random.below(2) == 0 {
            // Ways that meet in the last block.
            self.budget = 8;
            self.branch();
        }
        self.epilogue();
        self.text
    }

    fn line(&mut self, text: &str) {
        let _ = writeln!(self.text, "    {text}");
    }

    /// %t0: number of the thread in its block, %t1: in the grid. Registers are filled from the
    /// buffers.
    fn prologue(&mut self) {
        for line in [
            "mov.u32 %t0, %tid.z;",
            "mov.u32 %t1, %ntid.y;",
            "mov.u32 %t2, %tid.y;",
            "mad.lo.u32 %t0, %t0, %t1, %t2;",
            "mov.u32 %t1, %ntid.x;",
            "mov.u32 %t2, %tid.x;",
            "mad.lo.u32 %t0, %t0, %t1, %t2;",
            "mov.u32 %t1, %ctaid.x;",
        ] {
            self.line(line);
        }
        self.line(&format!("mad.lo.u32 %t1, %t1, {THREADS}, %t0;"));
        for (buffer, class, bytes) in
            [("ints", "r", 4), ("longs", "d", 8), ("floats", "f", 4), ("doubles", "g", 8)]
        {
            self.line(&format!("ld.param.u64 %a0, [{buffer}];"));
            self.line(&format!("mad.wide.u32 %a1, %t1, {bytes}, %a0;"));
            let bits = bytes * 8;
            for index in 0..REGISTERS {
                // Own, uniform and constant values.
                match self.random.below(4) {
                    0 => {
                        let at = self.random.below(16) * bytes;
                        self.line(&format!("ld.global.b{bits} {class}{index}, [%a0+{at}];"));
                    }
                    1 if class == "r" => self.line(&format!("mov.b32 r{index}, %t0;")),
                    1 => {
                        let value = self.random.value(if bytes == 4 { Type::U32 } else { Type::U64 });
                        self.line(&format!("mov.b{bits} {class}{index}, {value:#x};"));
                    }
                    _ => self.line(&format!("ld.global.b{bits} {class}{index}, [%a1];")),
                }
            }
        }
        // Some predicates are the same for all threads.
        self.line("ld.param.u64 %a0, [ints];");
        for index in 0..5 {
            let register = match index {
                0 | 1 => {
                    self.line(&format!("ld.global.u32 %t2, [%a0+{}];", 4 * index));
                    "%t2".to_owned()
                }
                _ => self.register("r"),
            };
            let limit = if index < 2 { "100" } else { "%t0" };
            self.line(&format!("setp.lt.s32 p{index}, {register}, {limit};"));
        }
        for index in 0..4 {
            let register = self.register("r");
            self.line(&format!("cvt.u16.u32 h{index}, {register};"));
        }
        self.line("ld.param.u64 %a5, [cells];");
        self.line("mov.u64 %a4, 0;");
        for at in (0..64).step_by(8) {
            self.line(&format!("st.local.u64 [own+{at}], %a4;"));
        }
    }

    /// Everything a thread has goes to its place in the output; NaNs canonical.
    fn epilogue(&mut self) {
        self.line("ld.param.u64 %a0, [out];");
        self.line(&format!("mad.wide.u32 %a0, %t1, {OUTPUT_BYTES}, %a0;"));
        let mut at = 0;
        for (class, bytes) in [("d", 8), ("g", 8), ("r", 4), ("f", 4)] {
            for index in 0..REGISTERS {
                self.canonical(class, index);
                self.line(&format!("st.global.b{} [%a0+{at}], {class}{index};", bytes * 8));
                at += bytes;
            }
        }
        self.text.push_str("    ret;\n}\n");
    }

    fn canonical(&mut self, class: &str, index: usize) {
        match class {
            "f" => {
                self.line(&format!("setp.nan.f32 p4, f{index}, f{index};"));
                self.line(&format!("@p4 mov.b32 f{index}, 0x7fffffff;"));
            }
            "g" => {
                self.line(&format!("setp.nan.f64 p4, g{index}, g{index};"));
                self.line(&format!("@p4 mov.b64 g{index}, 0x7fffffffffffffff;"));
            }
            _ => {}
        }
    }

    fn register(&mut self, class: &str) -> String {
        let count = match class {
            "p" | "h" => 4,
            _ => REGISTERS,
        };
        format!("{class}{}", self.random.below(count))
    }

    fn label(&mut self) -> String {
        self.labels += 1;
        format!("L{}", self.labels)
    }

    fn pick<'s>(&mut self, choices: &[&'s str]) -> &'s str {
        choices[self.random.below(choices.len())]
    }
}

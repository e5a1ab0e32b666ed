//! Random structured programs on compiled code, against the reference interpreter on the kernel as
//! it was lowered: the interpreter knows neither passes nor shapes nor lockstep.
//!
//! A program is nested branches and loops, left and continued at any level, over eight registers
//! that start out uniform, affine or varying; lanes talk to each other where all of them are.
//! `SLUICE_SEEDS=FIRST..LAST` picks programs.

mod common;

use std::fmt::Write;

use common::{Device, Generator, Params, generators, lower};
use sluice_ir::interp::{self, SparseMemory};
use sluice_jit::{Compiler, LaunchConfig};

const REGISTERS: u64 = 8;

#[test]
fn random_programs_do_what_the_interpreter_does() {
    let range = std::env::var("SLUICE_SEEDS").unwrap_or_else(|_| "0..12".into());
    let (first, last) = range.split_once("..").expect("FIRST..LAST");
    let generators = generators();
    let seeds = first.parse::<u64>().expect("a number")..last.parse().expect("a number");
    for seed in seeds {
        // Whole rows, whole rows of several warps, and blocks that are neither.
        for block in [[64, 1, 1], [40, 1, 1], [16, 3, 1]] {
            generators.iter().for_each(|&generator| check(seed, block, generator));
        }
    }
}

fn check(seed: u64, block: [u32; 3], generator: Generator) {
    let text = Program::new(seed).text();
    let threads = (block[0] * block[1] * block[2]) as usize;
    let grid = [2, 1, 1];
    let input: Vec<u8> =
        (0..64u32).flat_map(|at| (at.wrapping_mul(0x9e37_79b9) >> 7).to_le_bytes()).collect();
    let out_bytes = threads * 2 * REGISTERS as usize * 4;

    let mut device = Device::new(1);
    let (input_address, out) = (device.buffer(&input), device.buffer(&vec![0; out_bytes]));
    let params = Params::default().pointer(input_address).pointer(out).word(5);
    let kernel = Compiler::new().expect("this processor").compile(&lower(&text, "k")).expect("a kernel");
    let config = LaunchConfig { grid, block, params: &params.0, ..LaunchConfig::default() };
    if generator == Generator::Llvm
        && let Err(reason) = kernel.optimize(block)
    {
        println!("seed {seed} {block:?}: not covered by LLVM: {reason}");
        return;
    }
    device.launch(&kernel, &config).unwrap_or_else(|error| panic!("seed {seed} {block:?}: {error}\n{text}"));
    let found = device.read(out, out_bytes);

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
        stack_bytes: 1 << 10,
        params: &params.0,
        globals: &[],
        seed,
        steps_max: 1 << 26,
    };
    interp::run(&launch, &mut memory).unwrap_or_else(|fault| panic!("seed {seed}: {fault}\n{text}"));
    let expected = memory.get(out).expect("the buffer");
    if found != expected {
        let at = found.chunks(4).zip(expected.chunks(4)).position(|(a, b)| a != b).unwrap_or_default();
        panic!("seed {seed} {block:?} by {generator:?}: word {at} differs\n{text}\n{}", lower(&text, "k"));
    }
}

struct Program {
    random: u64,
    body: String,
    /// Labels, predicates and counters are numbered.
    next: u32,
    /// Numbers of the loops around, outermost first.
    loops: Vec<u32>,
    depth: u32,
    statements_left: u32,
}

impl Program {
    fn new(seed: u64) -> Program {
        Program {
            random: seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x9e37_79b9_7f4a_7c15,
            body: String::new(),
            next: 0,
            loops: Vec::new(),
            depth: 0,
            statements_left: 40,
        }
    }

    fn text(mut self) -> String {
        while self.statements_left > 0 {
            self.statement();
        }
        let mut text = String::from(
            ".version 8.0\n.target sm_80\n.address_size 64\n
.visible .entry k(.param .u64 in, .param .u64 out, .param .u32 n)\n{
.shared .align 4 .b8 mail[4096];
.reg .pred %p<1000>; .reg .b32 %r<9>; .reg .b32 %c<1000>; .reg .b32 %t<9>; .reg .b64 %rd<9>;
ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out]; ld.param.u32 %r0, [n];
mov.u32 %t0, %tid.x; mov.u32 %t1, %tid.y; mov.u32 %t2, %ntid.x; mov.u32 %t3, %ntid.y; mov.u32 %t4, %ctaid.x;
mad.lo.u32 %t5, %t1, %t2, %t0; mul.lo.u32 %t6, %t2, %t3; mad.lo.u32 %t7, %t4, %t6, %t5;
mov.u32 %r1, %t0; mov.u32 %r2, %laneid; mov.u32 %r3, %t4; mov.u32 %r4, 3;
and.b32 %t8, %t7, 63; mul.wide.u32 %rd3, %t8, 4; add.u64 %rd3, %rd1, %rd3; ld.global.u32 %r5, [%rd3];
add.u32 %r6, %t7, 1; mov.u32 %r7, %t1;\n",
        );
        text.push_str(&self.body);
        text.push_str("mul.wide.u32 %rd3, %t7, 32; add.u64 %rd3, %rd2, %rd3;\n");
        for register in 0..REGISTERS {
            let _ = writeln!(text, "st.global.u32 [%rd3+{}], %r{register};", 4 * register);
        }
        text.push_str("ret;\n}\n");
        text
    }

    /// SplitMix64.
    fn below(&mut self, limit: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }

    fn pick<'t>(&mut self, choices: &[&'t str]) -> &'t str {
        choices[self.below(choices.len() as u64) as usize]
    }

    fn register(&mut self) -> String {
        format!("%r{}", self.below(REGISTERS))
    }

    fn operand(&mut self) -> String {
        match self.below(3) {
            0 => self.below(40).to_string(),
            _ => self.register(),
        }
    }

    fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.body, "{line}");
    }

    fn condition(&mut self) -> u32 {
        let number = self.number();
        let comparison = self.pick(&["lt.u32", "ge.s32", "eq.s32", "ne.u32", "gt.u32", "le.s32"]);
        let (a, b) = (self.register(), self.operand());
        self.line(format_args!("setp.{comparison} %p{number}, {a}, {b};"));
        number
    }

    fn statement(&mut self) {
        self.statements_left = self.statements_left.saturating_sub(1);
        let is_everybody_here = self.depth == 0;
        match self.below(12) {
            0 | 1 if self.depth < 5 => self.branch(),
            2 | 3 if self.depth < 5 && self.loops.len() < 3 => self.looping(),
            4 if !self.loops.is_empty() => self.leave_loop(),
            5 => self.load(),
            6 if is_everybody_here => self.talk(),
            7 => self.predicated(),
            _ => self.arithmetic(),
        }
    }

    fn statements(&mut self) {
        self.depth += 1;
        for _ in 0..1 + self.below(4) {
            self.statement();
        }
        self.depth -= 1;
    }

    fn arithmetic(&mut self) {
        let op = self.pick(&[
            "add.u32",
            "sub.s32",
            "mul.lo.u32",
            "and.b32",
            "or.b32",
            "xor.b32",
            "min.s32",
            "max.u32",
        ]);
        let (to, a, b) = (self.register(), self.register(), self.operand());
        self.line(format_args!("{op} {to}, {a}, {b};"));
    }

    fn predicated(&mut self) {
        let number = self.condition();
        let not = self.pick(&["", "!"]);
        let (to, a, b) = (self.register(), self.register(), self.operand());
        self.line(format_args!("@{not}%p{number} add.u32 {to}, {a}, {b};"));
    }

    fn load(&mut self) {
        let (to, at) = (self.register(), self.register());
        self.line(format_args!(
            "and.b32 %t8, {at}, 63; mul.wide.u32 %rd3, %t8, 4; add.u64 %rd3, %rd1, %rd3;"
        ));
        self.line(format_args!("ld.global.u32 {to}, [%rd3];"));
    }

    fn branch(&mut self) {
        let number = self.number();
        let condition = self.condition();
        self.line(format_args!("@%p{condition} bra else{number};"));
        self.statements();
        self.line(format_args!("bra join{number};\nelse{number}:"));
        if self.below(2) == 0 {
            self.statements();
        }
        self.line(format_args!("join{number}:"));
    }

    fn looping(&mut self) {
        let number = self.number();
        let bound = self.register();
        // The bound is fixed before the loop; its counter is the loop's own.
        let (counter, limit) = (self.number(), self.number());
        self.line(format_args!("mov.u32 %c{counter}, 0; and.b32 %c{limit}, {bound}, 3;"));
        self.line(format_args!("loop{number}:"));
        self.line(format_args!("setp.gt.u32 %p{number}, %c{counter}, %c{limit};"));
        self.line(format_args!("@%p{number} bra end{number};"));
        self.line(format_args!("add.u32 %c{counter}, %c{counter}, 1;"));
        self.loops.push(number);
        self.statements();
        self.loops.pop();
        self.line(format_args!("bra loop{number};\nend{number}:"));
    }

    /// `break` or `continue` of any loop around.
    fn leave_loop(&mut self) {
        let at = self.below(self.loops.len() as u64) as usize;
        let number = self.loops[at];
        let condition = self.condition();
        let to = self.pick(&["loop", "end"]);
        self.line(format_args!("@%p{condition} bra {to}{number};"));
    }

    /// Where all threads are: a shuffle, a vote, or a message through shared memory.
    fn talk(&mut self) {
        let (to, from, lane) = (self.register(), self.register(), self.register());
        match self.below(4) {
            // The last warp may have 8 lanes only.
            0 => {
                self.line(format_args!("and.b32 %t8, {from}, 7;"));
                self.line(format_args!("shfl.sync.idx.b32 {to}, {lane}, %t8, 31, 0xffffffff;"));
            }
            1 => self.line(format_args!("shfl.sync.bfly.b32 {to}, {from}, 5, 31, 0xffffffff;")),
            2 => {
                let condition = self.condition();
                self.line(format_args!("vote.sync.ballot.b32 {to}, %p{condition}, 0xffffffff;"));
            }
            _ => {
                self.line(format_args!("shl.b32 %t8, %t5, 2; mov.u32 %c0, mail; add.u32 %t8, %t8, %c0;"));
                self.line(format_args!("st.shared.u32 [%t8], {from}; bar.sync 0; xor.b32 %t8, %t5, 1;"));
                self.line(format_args!("shl.b32 %t8, %t8, 2; add.u32 %t8, %t8, %c0;"));
                self.line(format_args!("ld.shared.u32 {to}, [%t8]; bar.sync 0;"));
            }
        }
    }
}

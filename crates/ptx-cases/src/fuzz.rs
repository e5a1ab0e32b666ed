//! Random kernels from a seed, run on the interpreter and as compiled code, compared bit for bit.
//!
//! The kernels are valid and their results do not depend on the order in which threads run: control
//! flow is structured (so lanes meet again) but diverges, threads write only their own elements,
//! exchange values through shared memory between barriers, shuffle with full masks where all lanes
//! have met, and update common cells by commutative atomics. NaNs are made canonical where a
//! float's bits would show; approximate instructions are not used.

use std::fmt::Write;

use crate::content::{Random, to_bytes};
use crate::machine::{Arg, Launch, Program};
use sluice_ptx::Type;

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

/// What kernels call: one with ways of its own through it and an early return, one with parameters
/// in memory, two that call each other and themselves, with memory of their own.
const FUNCTIONS: &str = ".func (.reg .b32 y) steps(.reg .b32 x)
{
    .reg .pred p;
    .reg .b32 n;
    and.b32 n, x, 7;
    mov.b32 y, x;
    setp.eq.u32 p, n, 3;
    @p ret;
again:
    setp.eq.u32 p, n, 0;
    @p bra done;
    mad.lo.u32 y, y, 1664525, 1013904223;
    sub.u32 n, n, 1;
    setp.gt.s32 p, y, 0;
    @p bra again;
    xor.b32 y, y, n;
    bra again;
done:
    ret;
}

.func (.param .b64 y) pick(.param .align 8 .b8 pair[16], .param .b32 which)
{
    .reg .pred p;
    .reg .b32 n;
    .reg .b64 a, b;
    ld.param.b64 a, [pair];
    ld.param.b64 b, [pair+8];
    ld.param.b32 n, [which];
    setp.lt.s32 p, n, 0;
    selp.b64 a, a, b, p;
    st.param.b64 [y], a;
    ret;
}

.func (.reg .b32 y) leaf(.reg .b32 x, .reg .b32 depth);

.func (.param .b32 y) tree(.param .b32 x, .param .b32 depth)
{
    .reg .pred p, q;
    .reg .b32 r, s, t, n;
    .local .b32 kept[2];
    ld.param.b32 r, [x];
    ld.param.b32 n, [depth];
    mad.lo.u32 t, r, 3, 1;
    setp.eq.u32 p, n, 0;
    @p bra done;
    sub.u32 n, n, 1;
    setp.lt.s32 q, r, 0;
    st.local.b32 [kept], t;
    mov.u32 s, kept;
    @q add.u32 s, s, 4;
    st.local.b32 [s], n;
    {
    .param .b32 a, b, c;
    xor.b32 t, r, n;
    st.param.b32 [a], t;
    st.param.b32 [b], n;
    call (c), tree, (a, b);
    ld.param.b32 t, [c];
    }
    @q call (r), leaf, (t, n);
    ld.local.b32 s, [kept];
    mad.lo.u32 t, r, s, t;
    @!q add.u32 t, t, n;
done:
    st.param.b32 [y], t;
    ret;
}

.func (.reg .b32 y) leaf(.reg .b32 x, .reg .b32 depth)
{
    .reg .pred p;
    .reg .b32 r, n;
    shr.u32 y, x, 1;
    setp.eq.u32 p, depth, 0;
    @p ret;
    sub.u32 n, depth, 1;
again:
    {
    .param .b32 a, b, c;
    st.param.b32 [a], y;
    st.param.b32 [b], n;
    call (c), tree, (a, b);
    ld.param.b32 r, [c];
    }
    xor.b32 y, y, r;
    setp.eq.u32 p, n, 0;
    @p ret;
    sub.u32 n, n, 1;
    and.b32 r, r, 3;
    setp.ne.u32 p, r, 0;
    @p bra again;
    ret;
}

";

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

    // ---- Statements
    // ---------------------------------------------------------------------------------------

    fn statement(&mut self) {
        self.budget = self.budget.saturating_sub(1);
        match self.random.below(if self.depth == 0 && !self.some_ended { 26 } else { 22 }) {
            0..=5 => self.int(),
            6..=7 => self.long(),
            8..=10 => self.float(),
            11 => self.convert(),
            12..=13 => self.compare(),
            14 => self.narrow(),
            15 => self.local(),
            16 => self.atomic(),
            17..=18 if self.depth < 3 => self.branch(),
            19 if self.depth < 3 => self.repeat(),
            19 if self.depth < 5 => self.call(),
            20 if self.depth < 3 => self.switch(),
            20 => self.call(),
            21 => self.guarded(),
            22..=23 => self.exchange(),
            24..=25 => self.warp(),
            _ => self.int(),
        }
    }

    fn int(&mut self) {
        let (d, a, b, c) = (self.register("r"), self.register("r"), self.register("r"), self.register("r"));
        let immediate = self.random.value(Type::S32) as i32;
        let b = if self.random.below(4) == 0 { immediate.to_string() } else { b };
        let sign = self.pick(&["u", "s"]);
        let line = match self.random.below(14) {
            0..=2 => format!(
                "{}.{sign}32 {d}, {a}, {b};",
                self.pick(&["add", "sub", "min", "max", "mul.lo", "mul.hi"])
            ),
            3 => format!("{}.b32 {d}, {a}, {b};", self.pick(&["and", "or", "xor"])),
            4 => format!("{}.b32 {d}, {a};", self.pick(&["not", "brev", "popc", "clz", "cnot"])),
            5 => format!("{} {d}, {a}, {b};", self.pick(&["shl.b32", "shr.u32", "shr.s32"])),
            6 => format!("mad.lo.s32 {d}, {a}, {b}, {c};"),
            7 => format!("{}.{sign}32 {d}, {a}, {b};", self.pick(&["div", "rem"])),
            8 => format!("{}.{sign}32 {d}, {a}, {b}, {c};", self.pick(&["bfe", "sad", "mad.hi"])),
            9 => format!("{}.b32 {d}, {a}, {b}, {c};", self.pick(&["prmt", "shf.l.wrap", "shf.r.clamp"])),
            10 => format!("lop3.b32 {d}, {a}, {b}, {c}, {};", self.random.below(256)),
            11 => {
                let e = self.register("r");
                self.video(&[&d, &a, &c, &e])
            }
            12 => format!(
                "cvt.pack.sat.{}.s32.b32 {d}, {a}, {c}, {d};",
                self.pick(&["u8", "s8", "u4", "s4", "s2"])
            ),
            _ => format!("{}.s32 {d}, {a};", self.pick(&["abs", "neg", "bfind"])),
        };
        self.line(&line);
    }

    /// A video instruction on these registers.
    fn video(&mut self, [d, a, b, c]: &[&str; 4]) -> String {
        let types = [(); 3].map(|()| self.pick(&["u32", "s32"])).join(".");
        let part = |generator: &mut Self| generator.pick(&["", ".b0", ".b3", ".h0", ".h1"]);
        let (from, second) = (part(self), part(self));
        let sat = self.pick(&["", ".sat"]);
        match self.random.below(4) {
            0 => {
                let op = self.pick(&["vadd", "vsub", "vabsdiff", "vmin", "vmax"]);
                let then = self.pick(&["add", "min", "max"]);
                format!("{op}.{types}{sat}.{then} {d}, {a}{from}, {b}{second}, {c};")
            }
            1 => {
                let op = self.pick(&["vadd", "vsub", "vabsdiff", "vmin", "vmax"]);
                let into = self.pick(&["b1", "b2", "h0", "h1"]);
                format!("{op}.{types}{sat} {d}.{into}, {a}{from}, {b}{second}, {c};")
            }
            2 => {
                let op = self.pick(&["vadd4", "vsub4", "vavrg4", "vabsdiff4", "vmin4", "vmax4"]);
                let mask = self.pick(&["", ".b0", ".b210", ".b31"]);
                format!("{op}.{types}{sat} {d}{mask}, {a}.b7012, {b}, {c};")
            }
            _ => {
                let op = self.pick(&["vadd2", "vsub2", "vavrg2", "vabsdiff2", "vmin2", "vmax2"]);
                format!("{op}.{types}.add {d}, {a}.h03, {b}.h12, {c};")
            }
        }
    }

    /// A chain of instructions with a carry, each of any kind.
    fn carries(&mut self) -> String {
        let (class, ty) = if self.random.below(2) == 0 { ("r", "u32") } else { ("d", "u64") };
        let mut chain = String::new();
        let length = 1 + self.random.below(3);
        for place in 0..=length {
            let [d, a, b, c] = [(); 4].map(|()| self.register(class));
            let flag = if place == length { "" } else { ".cc" };
            let op = match place {
                0 => self.pick(&["add", "sub", "mad.lo", "mad.hi"]),
                _ => self.pick(&["addc", "subc", "madc.lo", "madc.hi"]),
            };
            let c = if op.starts_with("mad") { format!(", {c}") } else { String::new() };
            let _ = write!(chain, "{op}{flag}.{ty} {d}, {a}, {b}{c}; ");
        }
        chain
    }

    fn long(&mut self) {
        let (d, a, b) = (self.register("d"), self.register("d"), self.register("d"));
        let (r, s, p) = (self.register("r"), self.register("r"), self.register("p"));
        let line = match self.random.below(9) {
            0..=1 => {
                format!("{}.s64 {d}, {a}, {b};", self.pick(&["add", "sub", "min", "max", "mul.lo", "mul.hi"]))
            }
            2 => format!("{}.b64 {d}, {a}, {b};", self.pick(&["and", "or", "xor"])),
            3 => format!("{} {d}, {a}, {r};", self.pick(&["shl.b64", "shr.u64", "shr.s64"])),
            4 => format!("mad.wide.{} {d}, {r}, {s}, {a};", self.pick(&["u32", "s32"])),
            5 => format!("{}.u64 {d}, {a}, {b};", self.pick(&["div", "rem", "min", "mul.hi"])),
            6 => format!("mov.b64 {d}, {{{r}, {s}}};"),
            7 => format!("selp.b64 {d}, {a}, {b}, {p};"),
            _ => self.carries(),
        };
        self.line(&line);
    }

    fn float(&mut self) {
        let (class, ty) = if self.random.below(3) > 0 { ("f", "f32") } else { ("g", "f64") };
        let (d, a, b, c) =
            (self.register(class), self.register(class), self.register(class), self.register(class));
        let rounding = self.pick(&["rn", "rn", "rz", "rm", "rp"]);
        let ftz = if class == "f" { self.pick(&["", "", ".ftz"]) } else { "" };
        let line = match self.random.below(8) {
            0..=2 => format!("{}.{rounding}{ftz}.{ty} {d}, {a}, {b};", self.pick(&["add", "sub", "mul"])),
            3 => format!("fma.{rounding}{ftz}.{ty} {d}, {a}, {b}, {c};"),
            4 => format!("{}{ftz}.{ty} {d}, {a}, {b};", self.pick(&["min", "max"])),
            5 => format!("{}.{ty} {d}, {a};", self.pick(&["neg", "abs"])),
            6 => format!("div.{rounding}{ftz}.{ty} {d}, {a}, {b};"),
            _ => format!("{}.{rounding}{ftz}.{ty} {d}, {a};", self.pick(&["sqrt", "rcp"])),
        };
        self.line(&line);
        // Its payload must not reach integers, and signs of NaNs differ too.
        let index = d[1..].parse().unwrap_or(0);
        self.canonical(class, index);
    }

    fn convert(&mut self) {
        let (r, d, f, g) = (self.register("r"), self.register("d"), self.register("f"), self.register("g"));
        let to_int = self.pick(&["rni", "rzi", "rmi", "rpi"]);
        let rounding = self.pick(&["rn", "rz", "rm", "rp"]);
        let sign = self.pick(&["u", "s"]);
        let line = match self.random.below(12) {
            0 => format!("cvt.{to_int}.{sign}32.f32 {r}, {f};"),
            1 => format!("cvt.{to_int}.{sign}64.f64 {d}, {g};"),
            2 => format!("cvt.{to_int}.{sign}64.f32 {d}, {f};"),
            3 => format!("cvt.{rounding}.f32.{sign}32 {f}, {r};"),
            4 => format!("cvt.{rounding}.f64.{sign}64 {g}, {d};"),
            5 => format!("cvt.{rounding}.f32.{sign}64 {f}, {d};"),
            6 => format!("cvt.{rounding}.f32.f64 {f}, {g};"),
            7 => format!("cvt.f64.f32 {g}, {f};"),
            8 => format!("cvt.{sign}64.{sign}32 {d}, {r};"),
            9 => format!("cvt.u32.u64 {r}, {d};"),
            10 => format!(
                "cvt.{}.{} {r}, {r};",
                self.pick(&["s8", "u8", "s16", "u16", "sat.s8", "sat.u16"]),
                self.pick(&["s32", "u32"])
            ),
            _ => format!("mov.b32 {r}, {f};"),
        };
        self.line(&line);
        match &line {
            line if line.contains(".f32.f64") => self.canonical("f", f[1..].parse().unwrap_or(0)),
            line if line.contains(".f64.f32") => self.canonical("g", g[1..].parse().unwrap_or(0)),
            _ => {}
        }
    }

    fn compare(&mut self) {
        let (p, q) = (self.register("p"), self.register("p"));
        let class = self.pick(&["r", "r", "d", "f", "g"]);
        let (a, b, d) = (self.register(class), self.register(class), self.register(class));
        let (condition, ty) = match class {
            "r" => (self.pick(&["eq", "ne", "lt", "le", "gt", "ge"]), self.pick(&["u32", "s32"])),
            "d" => (self.pick(&["eq", "ne", "lt", "le", "gt", "ge"]), self.pick(&["u64", "s64"])),
            "f" => (self.pick(&["eq", "ltu", "le", "gtu", "ge", "num", "nan"]), "f32"),
            _ => (self.pick(&["ne", "lt", "leu", "gt", "geu", "neu"]), "f64"),
        };
        let line = match self.random.below(4) {
            0 => format!("setp.{condition}.{ty} {p}, {a}, {b};"),
            1 => format!("setp.{condition}.{}.{ty} {p}, {a}, {b}, {q};", self.pick(&["and", "or", "xor"])),
            2 => format!("selp.b{} {d}, {a}, {b}, {p};", if "rf".contains(class) { 32 } else { 64 }),
            _ => format!("{}.pred {p}, {p}, {q};", self.pick(&["and", "or", "xor"])),
        };
        self.line(&line);
    }

    fn narrow(&mut self) {
        let (d, a, b) = (self.register("h"), self.register("h"), self.register("h"));
        let r = self.register("r");
        let line = match self.random.below(9) {
            0 => {
                format!("{}.s16 {d}, {a}, {b};", self.pick(&["add", "sub", "mul.lo", "min", "max", "mul.hi"]))
            }
            1 => format!("{}.b16 {d}, {a}, {b};", self.pick(&["and", "or", "xor"])),
            2 => format!("{} {d}, {a}, {r};", self.pick(&["shl.b16", "shr.u16", "shr.s16"])),
            3 => format!(
                "cvt.{}.{} {r}, {a};",
                self.pick(&["u32", "s32"]),
                self.pick(&["u16", "s16", "u8", "s8"])
            ),
            4 => format!("mov.b32 {r}, {{{a}, {b}}};"),
            5 => {
                let ty = self.pick(&["e4m3x2", "e5m2x2", "e2m3x2", "e3m2x2"]);
                let (f, g) = (self.register("f"), self.register("f"));
                format!("cvt.rn.satfinite.{ty}.f32 {d}, {f}, {g};")
            }
            6 => format!("cvt.rn.f16x2.{} {r}, {a};", self.pick(&["e4m3x2", "e5m2x2", "e2m3x2", "e3m2x2"])),
            7 => format!("cvt.rn.satfinite.relu.{}.f16x2 {d}, {r};", self.pick(&["e4m3x2", "e5m2x2"])),
            _ => format!("mul.wide.{} {r}, {a}, {b};", self.pick(&["u16", "s16"])),
        };
        self.line(&line);
    }

    /// Memory of the thread's own, at an index that differs between lanes.
    fn local(&mut self) {
        let (r, d) = (self.register("r"), self.register("d"));
        self.line(&format!("and.b32 %t2, {r}, 7;"));
        self.line("shl.b32 %t2, %t2, 3;");
        self.line("mov.u32 %t3, own;");
        self.line("add.u32 %t3, %t3, %t2;");
        if self.random.below(2) == 0 {
            self.line(&format!("st.local.b64 [%t3], {d};"));
        } else {
            self.line(&format!("ld.local.b64 {d}, [%t3];"));
        }
    }

    /// Order does not matter, and nobody looks at old values.
    fn atomic(&mut self) {
        let r = self.register("r");
        let cell = self.random.below(8);
        // One operation per cell: two different ones do not commute.
        let op =
            ["add.u32", "min.u32", "max.s32", "and.b32", "or.b32", "xor.b32", "add.s32", "max.u32"][cell];
        self.line(&format!("red.global.{op} [%a5+{}], {r};", 4 * cell));
    }

    // ---- Control flow
    // -------------------------------------------------------------------------------------

    fn body(&mut self) {
        self.depth += 1;
        for _ in 0..1 + self.random.below(4) {
            if self.budget > 0 {
                self.statement();
            }
        }
        self.depth -= 1;
    }

    fn branch(&mut self) {
        let (otherwise, end) = (self.label(), self.label());
        let p = self.register("p");
        let not = self.pick(&["", "!"]);
        self.line(&format!("@{not}{p} bra {otherwise};"));
        self.body();
        if self.random.below(2) == 0 {
            self.line(&format!("bra {end};"));
            let _ = writeln!(self.text, "{otherwise}:");
            self.body();
            let _ = writeln!(self.text, "{end}:");
        } else {
            let _ = writeln!(self.text, "{otherwise}:");
        }
    }

    /// A loop with a count that differs between lanes or not, perhaps with a way out in its middle.
    fn repeat(&mut self) {
        let (head, end) = (self.label(), self.label());
        let counter = format!("%c{}", self.depth * 2);
        let limit = format!("%c{}", self.depth * 2 + 1);
        let r = self.register("r");
        match self.random.below(3) {
            0 => self.line(&format!("mov.u32 {limit}, {};", 1 + self.random.0 % 5)),
            _ => self.line(&format!("and.b32 {limit}, {r}, 7;")),
        }
        self.line(&format!("mov.u32 {counter}, 0;"));
        let _ = writeln!(self.text, "{head}:");
        self.line(&format!("setp.ge.u32 p4, {counter}, {limit};"));
        self.line(&format!("@p4 bra {end};"));
        self.line(&format!("add.u32 {counter}, {counter}, 1;"));
        self.body();
        match self.random.below(3) {
            0 => {
                let p = self.register("p");
                self.line(&format!("@{p} bra {end};"));
                self.body();
            }
            1 => {
                let p = self.register("p");
                self.line(&format!("@{p} bra {head};"));
                self.body();
            }
            _ => {}
        }
        self.line(&format!("bra {head};"));
        let _ = writeln!(self.text, "{end}:");
    }

    fn switch(&mut self) {
        let r = self.register("r");
        let ways: Vec<String> = (0..3).map(|_| self.label()).collect();
        let (table, end) = (self.label(), self.label());
        let _ = writeln!(self.text, "{table}: .branchtargets {}, {end};", ways.join(", "));
        self.line(&format!("and.b32 %t2, {r}, 3;"));
        self.line(&format!("brx.idx %t2, {table};"));
        for way in ways {
            let _ = writeln!(self.text, "{way}:");
            self.body();
            if self.random.below(3) > 0 {
                self.line(&format!("bra {end};"));
            }
        }
        let _ = writeln!(self.text, "{end}:");
    }

    /// Blocks with jumps anywhere, so that loops may have several entries. Each visit of a block
    /// costs fuel, which ends it.
    fn wild(&mut self) {
        let end = self.label();
        let labels: Vec<String> = (0..3 + self.random.below(6)).map(|_| self.label()).collect();
        match self.random.below(2) {
            0 => self.line("mov.u32 %t7, 30;"),
            _ => self.line("and.b32 %t7, %t0, 31;"),
        }
        self.depth += 3;
        for label in &labels {
            let _ = writeln!(self.text, "{label}:");
            self.line("setp.eq.u32 p4, %t7, 0;");
            self.line(&format!("@p4 bra {end};"));
            self.line("sub.u32 %t7, %t7, 1;");
            for _ in 0..self.random.below(4) {
                self.statement();
            }
            let p = self.register("p");
            let [to, other] = [0, 1].map(|_| labels[self.random.below(labels.len())].clone());
            match self.random.below(4) {
                0 => {}
                1 => self.line(&format!("bra {to};")),
                2 => self.line(&format!("@{p} bra {to};")),
                _ => {
                    self.line(&format!("@{p} bra {to};"));
                    self.line(&format!("bra {other};"));
                }
            }
        }
        self.depth -= 3;
        let _ = writeln!(self.text, "{end}:");
    }

    /// Some threads end; what they have is not written.
    fn leave(&mut self) {
        let p = self.register("p");
        self.line(&format!("@{p} exit;"));
        self.some_ended = true;
    }

    fn guarded(&mut self) {
        let (p, not) = (self.register("p"), self.pick(&["", "!"]));
        let class = self.pick(&["r", "d", "f"]);
        let (d, a, b) = (self.register(class), self.register(class), self.register(class));
        let op = match class {
            "r" => "xor.b32",
            "d" => "add.u64",
            _ => "min.f32",
        };
        self.line(&format!("@{not}{p} {op} {d}, {a}, {b};"));
    }

    fn call(&mut self) {
        let guard = match self.random.below(2) {
            0 => format!("@{} ", self.register("p")),
            _ => String::new(),
        };
        let (to, from) = (self.register("r"), self.register("r"));
        match self.random.below(4) {
            0 => return self.line(&format!("{guard}call ({to}), steps, ({from});")),
            1 => {
                let depth = self.register("r");
                self.line(&format!("and.b32 %t5, {depth}, 3;"));
                return self.line(&format!("{guard}call ({to}), leaf, ({from}, %t5);"));
            }
            _ => {}
        }
        let (to, a, b, which) =
            (self.register("d"), self.register("d"), self.register("d"), self.register("r"));
        self.line("{ .param .align 8 .b8 pair[16]; .param .b32 which; .param .b64 y;");
        self.line(&format!("st.param.b64 [pair], {a}; st.param.b64 [pair+8], {b};"));
        self.line(&format!("st.param.b32 [which], {which};"));
        self.line(&format!("call (y), pick, (pair, which); ld.param.b64 {to}, [y]; }}"));
    }

    // ---- Threads together, where all have met
    // -----------------------------------------------------------------

    /// Every thread leaves a value in shared memory and takes another thread's.
    fn exchange(&mut self) {
        let (d, r) = (self.register("d"), self.register("r"));
        self.line("shl.b32 %t2, %t0, 3;");
        self.line("mov.u32 %t3, room;");
        self.line("add.u32 %t2, %t2, %t3;");
        self.line(&format!("st.shared.b64 [%t2], {d};"));
        self.line("bar.sync 0;");
        self.line(&format!("and.b32 %t4, {r}, {};", THREADS - 1));
        self.line("shl.b32 %t4, %t4, 3;");
        self.line("add.u32 %t4, %t4, %t3;");
        let into = self.register("d");
        self.line(&format!("ld.shared.b64 {into}, [%t4];"));
        self.line("bar.sync 0;");
    }

    fn warp(&mut self) {
        let (d, a, b) = (self.register("r"), self.register("r"), self.register("r"));
        let (p, q) = (self.register("p"), self.register("p"));
        let line = match self.random.below(6) {
            0..=1 => {
                let mode = self.pick(&["up", "down", "bfly", "idx"]);
                let width = self.pick(&["31", "0", "0x1807", "0x1000"]);
                format!("shfl.sync.{mode}.b32 {d}|{p}, {a}, {b}, {width}, -1;")
            }
            2 => format!("vote.sync.ballot.b32 {d}, {p}, -1;"),
            3 => format!("vote.sync.{}.pred {p}, {q}, -1;", self.pick(&["all", "any", "uni"])),
            4 => format!(
                "redux.sync.{} {d}, {a}, -1;",
                self.pick(&["add.u32", "min.s32", "xor.b32", "max.u32"])
            ),
            _ => format!("match.any.sync.b32 {d}, {a}, -1;"),
        };
        self.line(&line);
    }
}

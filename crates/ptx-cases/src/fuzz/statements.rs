//! Statements that each lane executes by itself.

use std::fmt::Write;

use sluice_ptx::Type;

use super::Generator;

impl Generator {
    // ---- Statements
    // ---------------------------------------------------------------------------------------

    pub(super) fn statement(&mut self) {
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

    /// Order does not matter, and old values are not read.
    fn atomic(&mut self) {
        let r = self.register("r");
        let cell = self.random.below(8);
        // One operation per cell: two different ones do not commute.
        let op =
            ["add.u32", "min.u32", "max.s32", "and.b32", "or.b32", "xor.b32", "add.s32", "max.u32"][cell];
        self.line(&format!("red.global.{op} [%a5+{}], {r};", 4 * cell));
    }
}

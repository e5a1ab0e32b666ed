//! Control flow that diverges and meets again.

use std::fmt::Write;

use super::Generator;

impl Generator {
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

    pub(super) fn branch(&mut self) {
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
    pub(super) fn repeat(&mut self) {
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

    pub(super) fn switch(&mut self) {
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
    pub(super) fn wild(&mut self) {
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
    pub(super) fn leave(&mut self) {
        let p = self.register("p");
        self.line(&format!("@{p} exit;"));
        self.some_ended = true;
    }

    pub(super) fn guarded(&mut self) {
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

    pub(super) fn call(&mut self) {
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
}

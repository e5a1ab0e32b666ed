//! What the threads do together, where all have met.

use super::{Generator, THREADS};

impl Generator {
    // ---- Threads together, where all have met
    // -----------------------------------------------------------------

    /// Every thread leaves a value in shared memory and takes another thread's.
    pub(super) fn exchange(&mut self) {
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

    pub(super) fn warp(&mut self) {
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

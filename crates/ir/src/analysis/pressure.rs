//! How many registers a thread needs at most at one time: the values that are live together. A
//! processor with fewer spills.

use super::Cfg;
use crate::kernel::Kernel;
use crate::types::{BlockId, Value};

const NOWHERE: u32 = u32::MAX;

/// The most registers of 32 bits that values of a kernel take at one time. Constants are part of
/// the instructions that use them, and predicates (I1) have registers of their own.
pub fn pressure(kernel: &Kernel) -> u32 {
    let cfg = Cfg::new(kernel);
    let live_out = live_out(kernel, &cfg);
    let mut live = LiveSet { is_live: vec![false; kernel.values.len()], registers: 0 };
    cfg.order.iter().map(|&block| live.most_in(kernel, block, &live_out[block.index()])).max().unwrap_or(0)
}

fn registers_of(kernel: &Kernel, value: Value) -> u32 {
    if kernel.constant(value).is_some() {
        0
    } else {
        kernel.ty(value).bits() / 32 + u32::from(is_short(kernel, value))
    }
}

/// Whether a value is smaller than a register and takes one all the same.
fn is_short(kernel: &Kernel, value: Value) -> bool {
    (2..32).contains(&kernel.ty(value).bits())
}

/// By block: the values that are used behind it, without the arguments that it passes on.
fn live_out(kernel: &Kernel, cfg: &Cfg) -> Vec<Vec<Value>> {
    let mut definitions = vec![NOWHERE; kernel.values.len()];
    let mut uses: Vec<(Value, BlockId)> = Vec::new();
    for &block in &cfg.order {
        let body = kernel.block(block);
        let results = body.insts.iter().flat_map(|&inst| kernel.inst(inst).results());
        for value in body.params.iter().copied().chain(results) {
            definitions[value.index()] = block.0;
        }
        body.insts
            .iter()
            .for_each(|&inst| kernel.inst(inst).inst.for_each_arg(|value| uses.push((value, block))));
        body.terminator.for_each_arg(|value| uses.push((value, block)));
    }
    // Value by value, each is followed from its uses back to where it is defined.
    uses.sort_unstable_by_key(|&(value, block)| (value.0, block.0));
    let mut live_out = vec![Vec::new(); kernel.blocks.len()];
    let (mut live_in_of, mut live_out_of) =
        (vec![NOWHERE; kernel.blocks.len()], vec![NOWHERE; kernel.blocks.len()]);
    let mut reached = Vec::new();
    for (value, block) in uses {
        reached.push(block);
        while let Some(block) = reached.pop() {
            let is_defined_here = definitions[value.index()] == block.0;
            if is_defined_here || std::mem::replace(&mut live_in_of[block.index()], value.0) == value.0 {
                continue;
            }
            for &before in cfg.preds(block) {
                if std::mem::replace(&mut live_out_of[before.index()], value.0) != value.0 {
                    live_out[before.index()].push(value);
                }
                reached.push(before);
            }
        }
    }
    live_out
}

/// The values that are live at one place, and the registers that they take.
struct LiveSet {
    is_live: Vec<bool>,
    registers: u32,
}

impl LiveSet {
    fn add(&mut self, kernel: &Kernel, value: Value) {
        if !std::mem::replace(&mut self.is_live[value.index()], true) {
            self.registers += registers_of(kernel, value);
        }
    }

    fn remove(&mut self, kernel: &Kernel, value: Value) {
        if std::mem::replace(&mut self.is_live[value.index()], false) {
            self.registers -= registers_of(kernel, value);
        }
    }

    /// The most registers that are taken at one time in a block. The set is empty before and after.
    fn most_in(&mut self, kernel: &Kernel, block: BlockId, live_out: &[Value]) -> u32 {
        let mut touched = live_out.to_vec();
        live_out.iter().for_each(|&value| self.add(kernel, value));
        let body = kernel.block(block);
        body.terminator.for_each_arg(|value| {
            self.add(kernel, value);
            touched.push(value);
        });
        let mut most = self.registers;
        for &inst in body.insts.iter().rev() {
            let data = kernel.inst(inst);
            // Where a result is not used, it takes a register all the same.
            data.results().for_each(|value| self.add(kernel, value));
            most = most.max(self.registers);
            data.results().for_each(|value| self.remove(kernel, value));
            data.inst.for_each_arg(|value| {
                self.add(kernel, value);
                touched.push(value);
            });
            most = most.max(self.registers);
        }
        body.params.iter().for_each(|&value| self.add(kernel, value));
        most = most.max(self.registers);
        touched.extend(&body.params);
        touched.into_iter().for_each(|value| self.remove(kernel, value));
        most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pressure_of(body: &str) -> u32 {
        let text = format!(
            ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry k(.param .u64 p) {{ .reg .b64 %d<40>; .reg .b32 %r<40>; \
             .reg .pred %q<4>; ld.param.u64 %d1, [p]; {body} ret; }}\n"
        );
        let module = sluice_ptx::parse(text.as_bytes()).unwrap();
        let mut kernel = crate::lower::lower_kernel(&module, "k").unwrap();
        crate::passes::pipeline(&mut kernel);
        pressure(&kernel)
    }

    #[test]
    fn values_that_live_together_add_up() {
        let loads: String =
            (0..16).map(|i| format!("ld.volatile.global.u32 %r{i}, [%d1+{}]; ", 4 * i)).collect();
        let stores: String =
            (0..16).map(|i| format!("st.global.u32 [%d1+{}], %r{i}; ", 4 * (15 - i))).collect();
        let together = pressure_of(&format!("{loads}{stores}"));
        assert!((18..24).contains(&together), "sixteen words and an address: {together}");
        let one_by_one: String = (0..16)
            .map(|i| {
                format!(
                    "ld.volatile.global.u32 %r{i}, [%d1+{}]; st.global.u32 [%d1+{}], %r{i}; ",
                    4 * i,
                    4 * i + 64
                )
            })
            .collect();
        let apart = pressure_of(&one_by_one);
        assert!(apart < 8, "one word and an address: {apart}");
    }

    #[test]
    fn a_value_lives_through_a_loop_that_does_not_use_it() {
        let body = "ld.volatile.global.u64 %d2, [%d1]; ld.volatile.global.u64 %d3, [%d1]; ld.volatile.global.u32 %r1, [%d1]; \
                    L: ld.volatile.global.u32 %r2, [%d1]; setp.ne.u32 %q1, %r2, %r1; @%q1 bra L; \
                    st.global.u64 [%d1+8], %d2; st.global.u64 [%d1+16], %d3;";
        let found = pressure_of(body);
        assert!((8..12).contains(&found), "two longs, the address, and two words in the loop: {found}");
    }
}

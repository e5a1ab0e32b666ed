//! Counters of the threads that execute each line of the PTX text.
//!
//! A basic block has one counter, in front of its first instruction. They are put in here, before
//! any pass has run: later instructions have been merged or removed, and their lines with them.

use crate::inst::{Inst, RuntimeFunction};
use crate::lower::Lowering;
use crate::types::BlockId;

/// What was counted last.
#[derive(Debug, Default)]
pub(super) struct Counting {
    block: Option<BlockId>,
    line: u32,
}

impl Lowering<'_> {
    /// Has the threads counted that come to the current line.
    ///
    /// A line with several instructions, of which one ends a block, is counted at the first one.
    pub(super) fn count_line(&mut self) {
        let (block, line) = (self.here(), self.line);
        let Some(counting) = &mut self.counting else { return };
        if std::mem::replace(&mut counting.line, line) == line {
            return;
        }
        if counting.block.replace(block) != Some(block) {
            let counter = self.kernel.counters.len() as u32;
            self.kernel.counters.push(Vec::new());
            let mut build = self.build();
            let counter = build.i32(counter);
            let function = RuntimeFunction::CountThreads;
            build.push(Inst::CallRuntime { function, args: Box::new([counter]) });
        }
        // The last counter is that of the current block, as no block is filled in two parts.
        if let Some(lines) = self.kernel.counters.last_mut() {
            lines.push(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use sluice_ptx::ModuleIndex;

    use crate::lower::{lower_kernel, lower_kernel_with_counters};
    use crate::{Inst, Kernel, RuntimeFunction, passes, verify};

    const BRANCHES: &str = ".version 7.0
.target sm_75
.address_size 64
.func twice(.param .b32 p)
{
    .reg .b32 %r<2>;
    ld.param.u32 %r1, [p];
    ret;
}
.visible .entry k(.param .u32 n)
{
    .reg .pred %p<2>;
    .reg .b32 %r<4>;
    ld.param.u32 %r1, [n];
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra ZERO;
    mov.u32 %r2, 1; mov.u32 %r3, 2;
    bra END;
ZERO:
    mov.u32 %r2, 3;
    { .param .b32 a; st.param.b32 [a], %r2; call twice, (a); }
END:
    ret;
}
";

    fn lowered(text: &str) -> Kernel {
        let module = ModuleIndex::new(text.as_bytes()).unwrap().closure("k").unwrap();
        lower_kernel_with_counters(&module, "k").unwrap()
    }

    fn counted(kernel: &Kernel) -> Vec<u64> {
        let insts = kernel.blocks.iter().flat_map(|block| &block.insts);
        let mut counters: Vec<u64> = insts
            .filter_map(|&id| match &kernel.inst(id).inst {
                Inst::CallRuntime { function: RuntimeFunction::CountThreads, args } => {
                    kernel.constant(args[0])
                }
                _ => None,
            })
            .collect();
        counters.sort_unstable();
        counters
    }

    #[test]
    fn each_basic_block_has_a_counter_for_its_lines() {
        let kernel = lowered(BRANCHES);
        // The call has no block of its own: the function is lowered in its place.
        let want: [&[u32]; 4] = [&[14, 15, 16], &[17, 18], &[20, 21, 7, 8], &[23]];
        assert_eq!(kernel.counters, want);
        assert_eq!(counted(&kernel), [0, 1, 2, 3]);
    }

    #[test]
    fn passes_keep_the_counters_of_blocks_without_other_instructions() {
        for run in [passes::pipeline, passes::pipeline_with_checks] {
            let mut kernel = lowered(BRANCHES);
            run(&mut kernel);
            verify::verify_scheduled(&kernel).unwrap();
            assert_eq!(counted(&kernel), [0, 1, 2, 3]);
        }
    }

    #[test]
    fn a_line_is_counted_once_where_its_first_instruction_is() {
        let body = "mov.u32 %r2, 1; @%p1 bra END; mov.u32 %r2, 2;\nEND: ret;";
        let head = ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry k()\n";
        let text = format!("{head}{{ .reg .pred %p<2>; .reg .b32 %r<4>;\n{body}\n}}\n");
        assert_eq!(lowered(&text).counters, [vec![6], vec![7]]);
    }

    #[test]
    fn other_kernels_have_none() {
        let module = ModuleIndex::new(BRANCHES.as_bytes()).unwrap().closure("k").unwrap();
        let kernel = lower_kernel(&module, "k").unwrap();
        assert!(kernel.counters.is_empty() && counted(&kernel).is_empty());
    }
}

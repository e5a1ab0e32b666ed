//! Kernels that are large in one way or another: they compile, and what they would take too much
//! memory for is refused with the reason.

use std::fmt::Write;

use sluice_ir::lower::lower_kernel;
use sluice_ir::{Kernel, passes};
use sluice_jit::{CompileError, Compiler};
use sluice_ptx_cases::machine::{Arg, Launch, Program};

const HEADER: &str = ".version 8.8\n.target sm_120\n.address_size 64\n.visible .entry k(.param .u64 out)\n{\n\
    .reg .b64 d; .reg .b32 r, s; .reg .b32 %r<70000>; .reg .pred p;\n\
    ld.param.u64 d, [out]; mov.u32 r, %tid.x; mad.wide.u32 d, r, 4, d;\n";

/// A kernel of so many branches, each of which one thread takes.
fn branches(count: u32) -> String {
    let mut text = format!("{HEADER}mov.u32 s, 0;\n");
    for number in 0..count {
        let _ = writeln!(
            text,
            "setp.ne.u32 p, r, {}; @p bra L{number}; add.u32 s, s, {number}; st.volatile.u32 [d], s; L{number}:",
            number % 32
        );
    }
    text + "st.u32 [d], s; ret; }\n"
}

/// A kernel of one block in which every value is wanted again much later.
fn straight(count: u32) -> String {
    let mut text = format!("{HEADER}mov.u32 %r0, r;\n");
    for number in 1..count {
        let _ = writeln!(text, "mad.lo.u32 %r{number}, %r{}, 3, %r{};", number - 1, number * 7 / 11);
    }
    let _ = writeln!(text, "st.u32 [d], %r{}; ret; }}", count - 1);
    text
}

fn run(text: &str) -> Vec<u32> {
    let program = Program::new(text, "k").expect("a kernel");
    let launch = Launch {
        grid: [1; 3],
        block: [32, 1, 1],
        cluster: None,
        cooperative: false,
        shared_bytes: 0,
        stack_bytes: 0,
        args: vec![Arg::Buffer(vec![0; 128])],
    };
    let interpreted = program.interpret(&launch, 0).expect("no fault");
    let executed = program.execute(&launch, 1).expect("no fault");
    assert_eq!(executed.buffers, interpreted.buffers);
    let words = executed.buffers[0].chunks_exact(4);
    words.map(|word| u32::from_le_bytes(word.try_into().expect("four bytes"))).collect()
}

fn kernel(text: &str) -> Kernel {
    let module = sluice_ptx::parse(text).expect("PTX");
    let mut kernel = lower_kernel(&module, "k").expect("a kernel");
    passes::pipeline(&mut kernel);
    kernel
}

#[test]
fn thousands_of_blocks_run() {
    const BRANCHES: u32 = 2500;
    let text = branches(BRANCHES);
    assert!(kernel(&text).blocks.len() > 64 * 64, "more blocks than one level of ready masks has bits for");
    let of_thread = |thread: u32| (0..BRANCHES).filter(|number| number % 32 == thread).sum();
    assert_eq!(run(&text), (0..32).map(of_thread).collect::<Vec<u32>>());
}

#[test]
fn a_long_block_is_cut_and_does_the_same() {
    const VALUES: u32 = 4000;
    let text = straight(VALUES);
    assert!(kernel(&text).blocks.iter().all(|block| block.insts.len() <= 1024));
    let of_thread = |thread: u32| {
        let mut values = vec![thread];
        for number in 1..VALUES as usize {
            values.push(values[number - 1].wrapping_mul(3).wrapping_add(values[number * 7 / 11]));
        }
        values[VALUES as usize - 1]
    };
    assert_eq!(run(&text), (0..32).map(of_thread).collect::<Vec<u32>>());
}

#[test]
fn what_takes_too_much_memory_is_refused_before_it_is_taken() {
    let compiler = Compiler::new().expect("this processor");
    compiler.set_memory_max(8 << 20);
    let small = compiler.compile(&kernel(&branches(10)));
    assert!(small.is_ok());
    match compiler.compile(&kernel(&branches(500))).map(drop) {
        Err(CompileError::TooLarge { blocks: 1000.., max_mib: 8, .. }) => {}
        other => panic!("{other:?}"),
    }
}

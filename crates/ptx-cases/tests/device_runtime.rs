//! The grid's barrier of the device runtime, linked to a program that only declares it, as numba's
//! `grid.sync()` does.

use sluice_ptx::device_runtime;
use sluice_ptx::link::{Input, link};
use sluice_ptx_cases::machine::{Arg, Fault, Launch, Program};

const PROGRAM: &str = ".version 8.0
.target sm_80
.address_size 64
.extern .func (.param .b64 r) cudaCGGetIntrinsicHandle (.param .b32 a);
.extern .func (.param .b32 r) cudaCGSynchronize (.param .b64 h, .param .b32 f);

// Each round every thread takes what its neighbour, perhaps of another block, had in the round
// before.
.visible .entry k(.param .u64 out, .param .u32 count)
{
    .reg .pred p;
    .reg .b64 d, h, mine, next;
    .reg .b32 i, n, t, q, round, value;
    ld.param.u64 d, [out];
    ld.param.u32 n, [count];
    mov.u32 i, %ctaid.x;
    mov.u32 t, %ntid.x;
    mul.lo.u32 i, i, t;
    mov.u32 t, %tid.x;
    add.u32 i, i, t;
    mad.wide.u32 mine, i, 4, d;
    add.u32 t, i, 1;
    rem.u32 t, t, n;
    mad.wide.u32 next, t, 4, d;
    st.global.u32 [mine], i;
    { .param .b32 a; .param .b64 r; st.param.b32 [a], 1; call (r), cudaCGGetIntrinsicHandle, (a); ld.param.b64 h, [r]; }
    mov.u32 round, 0;
again:
    { .param .b64 a; .param .b32 b; .param .b32 r; st.param.b64 [a], h; st.param.b32 [b], 0;
      call (r), cudaCGSynchronize, (a, b); ld.param.b32 q, [r]; }
    setp.ne.u32 p, q, 0;
    @p trap;
    ld.volatile.global.u32 value, [next];
    { .param .b64 a; .param .b32 b; .param .b32 r; st.param.b64 [a], h; st.param.b32 [b], 0;
      call (r), cudaCGSynchronize, (a, b); ld.param.b32 q, [r]; }
    st.volatile.global.u32 [mine], value;
    add.u32 round, round, 1;
    setp.lt.u32 p, round, 5;
    @p bra again;
    ret;
}
";

fn outcome(cooperative: bool, blocks: u32) -> Result<Vec<u32>, Fault> {
    let runtime = device_runtime::missing(&[PROGRAM.as_bytes()]).expect("PTX").expect("it is wanted");
    let inputs = [
        Input { name: "program", text: PROGRAM.as_bytes() },
        Input { name: "the device runtime", text: runtime },
    ];
    let text = String::from_utf8(link(&inputs).expect("they fit")).expect("text");
    let program = Program::new(&text, "k").expect("a kernel");
    let threads = blocks * 40;
    let args = vec![Arg::Buffer(vec![0; threads as usize * 4]), Arg::Value(threads.to_le_bytes().to_vec())];
    let (grid, block) = ([blocks, 1, 1], [40, 1, 1]);
    let launch = Launch { grid, block, cluster: None, cooperative, shared_bytes: 0, stack_bytes: 0, args };
    let outcome = program.execute(&launch, 2)?;
    let words = outcome.buffers[0].chunks_exact(4);
    Ok(words.map(|word| u32::from_le_bytes(word.try_into().expect("four bytes"))).collect())
}

#[test]
fn blocks_of_a_cooperative_launch_meet() {
    for blocks in [1, 7] {
        let threads = blocks * 40;
        let expected: Vec<u32> = (0..threads).map(|thread| (thread + 5) % threads).collect();
        assert_eq!(outcome(true, blocks), Ok(expected), "{blocks} blocks");
    }
}

#[test]
fn the_barrier_of_another_launch_is_an_error_for_the_kernel() {
    assert_eq!(outcome(false, 2), Err(Fault::Trap));
}

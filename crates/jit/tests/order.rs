//! The order in which blocks run.

mod common;

use common::{Device, Params, compile};
use sluice_jit::{BlockOrder, LaunchConfig};

const BLOCKS: u32 = 100;

/// Each block takes a number and keeps it.
const TICKETS: &str = "
    .version 8.0
    .target sm_80
    .address_size 64
    .visible .entry tickets(.param .u64 next, .param .u64 out)
    {
        .reg .b32 %r<3>;
        .reg .b64 %rd<5>;
        ld.param.u64 %rd1, [next];
        ld.param.u64 %rd2, [out];
        atom.global.add.u32 %r1, [%rd1], 1;
        mov.u32 %r2, %ctaid.x;
        mul.wide.u32 %rd3, %r2, 4;
        add.u64 %rd4, %rd2, %rd3;
        st.global.u32 [%rd4], %r1;
        ret;
    }";

/// Each block waits for the one before it.
const CHAIN: &str = "
    .version 8.0
    .target sm_80
    .address_size 64
    .visible .entry chain(.param .u64 done)
    {
        .reg .pred %p<2>;
        .reg .b32 %r<4>;
        .reg .b64 %rd<2>;
        ld.param.u64 %rd1, [done];
        mov.u32 %r1, %ctaid.x;
    WAIT:
        ld.volatile.global.u32 %r2, [%rd1];
        setp.ne.u32 %p1, %r2, %r1;
        @%p1 bra WAIT;
        add.u32 %r3, %r1, 1;
        st.volatile.global.u32 [%rd1], %r3;
        ret;
    }";

fn tickets(order: BlockOrder, launch: u64) -> Vec<u32> {
    let mut device = Device::new(3);
    let (next, out) = (device.words(&[0]), device.words(&[0; BLOCKS as usize]));
    let params = Params::default().pointer(next).pointer(out);
    let grid = [BLOCKS, 1, 1];
    let config = LaunchConfig { grid, params: &params.0, order, grid_id: launch, ..LaunchConfig::default() };
    device.launch(&compile(TICKETS, "tickets"), &config).unwrap();
    let words = device.read(out, 4 * BLOCKS as usize);
    words.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

#[test]
fn a_fixed_order_is_that_of_indices() {
    assert_eq!(tickets(BlockOrder::Fixed, 1), (0..BLOCKS).collect::<Vec<_>>());
}

#[test]
fn a_random_order_runs_every_block_and_follows_from_its_seed() {
    let order = tickets(BlockOrder::Random(7), 1);
    assert_eq!(order, tickets(BlockOrder::Random(7), 1));
    assert_ne!(order, tickets(BlockOrder::Random(8), 1));
    assert_ne!(order, tickets(BlockOrder::Random(7), 2));
    let mut sorted = order;
    sorted.sort_unstable();
    assert_eq!(sorted, (0..BLOCKS).collect::<Vec<_>>());
}

#[test]
fn blocks_that_wait_for_those_before_them_end_in_any_order() {
    for order in [BlockOrder::Fixed, BlockOrder::Random(7)] {
        let mut device = Device::new(3);
        let done = device.words(&[0]);
        let params = Params::default().pointer(done);
        let grid = [BLOCKS, 1, 1];
        let config = LaunchConfig { grid, params: &params.0, order, ..LaunchConfig::default() };
        device.launch(&compile(CHAIN, "chain"), &config).unwrap();
        assert_eq!(device.read(done, 4), BLOCKS.to_le_bytes());
    }
}

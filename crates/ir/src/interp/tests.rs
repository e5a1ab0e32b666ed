//! Whole kernels on the interpreter.

use super::*;
use crate::*;

/// A kernel of one block of instructions that stores the I32 that `body` gives at `out[tid]`.
fn store_per_thread(body: impl FnOnce(&mut Builder<'_>, Value) -> Value) -> Kernel {
    let mut kernel = Kernel::default();
    let entry = kernel.add_block();
    let mut b = Builder::new(&mut kernel, entry);
    let tid = b.special(SpecialRegister::TidX);
    let value = body(&mut b, tid);
    let offset = b.resize(Type::I64, false, tid);
    let offset = b.binary_imm(BinaryOp::Shl, offset, 2);
    let base = b.i32(0);
    let out = b.load(Space::Param, Type::I64, base, 0);
    let address = b.binary(BinaryOp::Add, out, offset);
    b.store(Space::Global, address, 0, value);
    kernel
}

fn run_on(kernel: &Kernel, threads: u32) -> Result<Vec<u32>, InterpFault> {
    let mut memory = SparseMemory::default();
    memory.insert(4096, vec![0; threads as usize * 4]);
    let launch = Launch {
        kernel,
        grid: [1; 3],
        block: [threads, 1, 1],
        cluster: None,
        dynamic_shared_bytes: 0,
        stack_bytes: 1 << 10,
        params: &4096u64.to_le_bytes(),
        globals: &[],
        seed: 7,
        steps_max: 1_000_000,
    };
    run(&launch, &mut memory)?;
    let bytes = memory.get(4096).unwrap_or_default();
    Ok(bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}

#[test]
fn shuffle_takes_the_value_of_another_lane() {
    let kernel = store_per_thread(|b, tid| {
        let (one, clamp, mask) = (b.i32(1), b.i32(31), b.i32(u32::MAX));
        b.value(Inst::Shuffle { mode: ShuffleMode::Butterfly, value: tid, lane: one, clamp, mask })
    });
    let want: Vec<u32> = (0..64).map(|tid| tid ^ 1).collect();
    assert_eq!(run_on(&kernel, 64), Ok(want));
}

#[test]
fn a_barrier_orders_shared_memory() {
    let mut kernel = store_per_thread(|b, tid| {
        let at = b.binary_imm(BinaryOp::Shl, tid, 2);
        b.store(Space::Shared, at, 0, tid);
        let id = b.i32(0);
        b.push(Inst::Barrier { kind: BarrierKind::Sync, id, count: None, predicate: None });
        let last = b.i32(95 * 4);
        let mirrored = b.binary(BinaryOp::Sub, last, at);
        b.load(Space::Shared, Type::I32, mirrored, 0)
    });
    kernel.shared.static_bytes = 96 * 4;
    let want: Vec<u32> = (0..96).rev().collect();
    assert_eq!(run_on(&kernel, 96), Ok(want));
}

#[test]
fn an_access_outside_an_allocation_is_a_fault() {
    let kernel = store_per_thread(|_, tid| tid);
    let mut memory = SparseMemory::default();
    memory.insert(4096, vec![0; 32]);
    let launch = Launch {
        kernel: &kernel,
        grid: [1; 3],
        block: [9, 1, 1],
        cluster: None,
        dynamic_shared_bytes: 0,
        stack_bytes: 1 << 10,
        params: &4096u64.to_le_bytes(),
        globals: &[],
        seed: 1,
        steps_max: 1000,
    };
    assert_eq!(run(&launch, &mut memory), Err(InterpFault::IllegalAddress { address: 4096 + 32 }));
}

#[test]
fn an_endless_kernel_and_a_barrier_that_nobody_completes_end() {
    let mut kernel = Kernel::default();
    let entry = kernel.add_block();
    kernel.block_mut(entry).terminator = Terminator::Jump(Target::new(entry));
    assert_eq!(run_on(&kernel, 1), Err(InterpFault::Endless(1_000_000)));

    let waits = store_per_thread(|b, tid| {
        let (id, count) = (b.i32(1), b.i32(64));
        b.push(Inst::Barrier { kind: BarrierKind::Sync, id, count: Some(count), predicate: None });
        tid
    });
    assert_eq!(run_on(&waits, 32), Err(InterpFault::Deadlock));
}

#[test]
fn textures_are_read_from_global_memory() {
    use crate::texture::{self, Image, Sampler, Sampling, Texture};
    let sampler = Sampler {
        address_modes: [texture::AddressMode::Clamp; 3],
        is_linear: false,
        is_normalized: false,
        reads_integers: true,
        border: [0.0; 4],
        is_linear_between_levels: false,
        level_bias: 0.0,
        level_min: 0.0,
        level_max: 0.0,
    };
    // The words that the kernel writes: a thread reads its neighbour's, still zero, or beyond the
    // last one.
    let (size, channel) = ([4, 1, 1], texture::Channel::U32);
    let image = Image { base: 4096, pieces: None, pitch: 16, slice: 16, size, channel, channels: 1 };
    let object = texture::add_texture(Texture { levels: vec![image], sampler });
    let read = |object: u64, has_integer_coordinates| {
        let sampling = Sampling {
            geometry: texture::Geometry::D1,
            has_integer_coordinates,
            has_level: false,
            gathered: None,
        };
        let kernel = store_per_thread(|b, tid| {
            let (object, zero) = (b.i64(object), b.i32(0));
            let next = b.binary_imm(BinaryOp::Add, tid, 1);
            let place = [next, zero, zero];
            let sample = b.push(Inst::Sample { sampling, object, place, level: zero });
            let word = b.kernel.inst(sample).result(0);
            b.binary_imm(BinaryOp::Add, word, 5)
        });
        run_on(&kernel, 4)
    };
    let got = read(object, true).unwrap();
    assert!(got.iter().all(|word| word % 5 == 0 && (5..=20).contains(word)), "{got:?}");
    assert_eq!(got[3], 5);
    texture::remove(object);
    assert_eq!(read(object, true), Err(InterpFault::Trap));
}

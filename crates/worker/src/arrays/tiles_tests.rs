//! What the lease and the session's account are charged for memory that arrays have.

use sluice_cuda::*;
use sluice_wire::{
    ArrayId, ArrayMap, ArrayShape, LaterArray, LevelPart, MappedPart, PhysicalId, PhysicalPart, PhysicalProp,
    StreamId, commands, decode,
};

use crate::malformed::stage::Stage;
use crate::memory::host_memory_tests::say;

const ARRAY: ArrayId = ArrayId(1 << 32);
const POOL: u64 = 64 << 20;
/// Elements on a side of a tile of bytes.
const SIDE: u32 = 256;
/// Of the array: 512 tiles a row, and as many rows.
const WIDTH: u32 = 512 * SIDE;
/// Of a session's account, per tile.
const COST: u64 = 128;

fn create(stage: &Stage) {
    let shape = ArrayShape {
        width: WIDTH.into(),
        height: WIDTH.into(),
        depth: 0,
        format: CUarray_format::UNSIGNED_INT8,
        channels: 1,
        flags: CUDA_ARRAY3D_SPARSE,
    };
    say(stage, &commands::cuArray3DCreate_v2 { pHandle: ARRAY, shape }).unwrap();
}

fn pool(stage: &Stage, number: u64, usage: u16) -> PhysicalId {
    let handle = PhysicalId(number);
    let prop = PhysicalProp {
        kind: CUmemAllocationType::PINNED,
        handle_types: CUmemAllocationHandleType::NONE,
        location: CUmemLocation { kind: CUmemLocationType::DEVICE, id: 0 },
        compression_type: 0,
        gpu_direct_rdma: 0,
        usage,
    };
    say(stage, &commands::cuMemCreate { handle, size: POOL, prop, flags: 0 }).unwrap();
    handle
}

/// Maps whole rows of tiles, or takes their memory away.
fn rows(stage: &Stage, row: u32, count: u32, handle: Option<PhysicalId>) -> Result<(), CUresult> {
    let part = MappedPart::Level(LevelPart {
        level: 0,
        layer: 0,
        offset: [0, row * SIDE, 0],
        extent: [WIDTH, count * SIDE, 1],
    });
    let memory = handle.map(|handle| PhysicalPart { handle, offset: 0 });
    let maps = vec![ArrayMap { array: LaterArray::Array(ARRAY), part, memory }];
    say(stage, &commands::cuMemMapArrayAsync { maps, hStream: StreamId(1) }).map(drop)
}

fn used(stage: &Stage) -> u64 {
    let reply = say(stage, &commands::cuMemGetInfo_v2 {}).unwrap();
    let info: commands::cuMemGetInfo_v2Reply = decode(&reply).unwrap();
    info.total - info.free
}

#[test]
fn the_lease_pays_while_a_tile_has_the_memory() {
    let stage = Stage::new();
    let before = used(&stage);
    let is_charged = |pools: u64| assert_eq!(used(&stage) - before, pools * POOL);
    let synchronize = || say(&stage, &commands::cuStreamSynchronize { hStream: StreamId(1) }).unwrap();
    let release = |handle| say(&stage, &commands::cuMemRelease { handle }).unwrap();
    create(&stage);
    is_charged(0);
    let (first, second) = (pool(&stage, 1, CU_MEM_CREATE_USAGE_TILE_POOL), pool(&stage, 2, 0));
    assert_eq!(rows(&stage, 0, 1, Some(second)), Err(CUresult::INVALID_VALUE), "no pool of tiles");
    release(second);
    rows(&stage, 0, 2, Some(first)).unwrap();
    rows(&stage, 2, 2, Some(first)).unwrap();
    release(first);
    assert_eq!(rows(&stage, 4, 1, Some(first)), Err(CUresult::INVALID_HANDLE));
    is_charged(1);
    rows(&stage, 0, 3, None).unwrap();
    synchronize();
    release(pool(&stage, 3, 0));
    is_charged(1);
    // Half of what is named here has no memory; the last row that has some is in it.
    rows(&stage, 3, 2, None).unwrap();
    synchronize();
    release(pool(&stage, 4, 0));
    is_charged(0);

    let third = pool(&stage, 5, CU_MEM_CREATE_USAGE_TILE_POOL);
    rows(&stage, 0, 2, Some(third)).unwrap();
    // The same again: each tile lets go of what it had.
    rows(&stage, 1, 2, Some(third)).unwrap();
    release(third);
    is_charged(1);
    say(&stage, &commands::cuArrayDestroy { hArray: ARRAY }).unwrap();
    release(pool(&stage, 6, 0));
    is_charged(0);
}

#[test]
fn tiles_are_of_the_sessions_account() {
    // Six rows, and one as it is being mapped.
    let stage = Stage::with_host_memory(7 * 512 * COST);
    create(&stage);
    let memory = pool(&stage, 1, CU_MEM_CREATE_USAGE_TILE_POOL);
    for _ in 0..2 {
        let fit = (0..).take_while(|row| rows(&stage, *row, 1, Some(memory)).is_ok()).count();
        assert_eq!(fit, 7);
        assert_eq!(rows(&stage, 0, 1, Some(memory)), Err(CUresult::OUT_OF_MEMORY));
        rows(&stage, 0, 512, None).unwrap();
    }
    (0..7).for_each(|row| rows(&stage, row, 1, Some(memory)).unwrap());
    say(&stage, &commands::cuArrayDestroy { hArray: ARRAY }).unwrap();
    create(&stage);
    rows(&stage, 0, 2, Some(memory)).unwrap();
}

use std::ffi::c_void;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};

use sluice_cuda::{
    CUdeviceptr, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationType,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType, CUstream,
};
use sluice_wire::{DevicePtr, PhysicalId, PhysicalProp, commands};

use super::*;
use crate::malformed::stage::{RESERVATION, Stage};
use crate::memory::chunks::CHUNK;
use crate::memory::extent::EXTENT;
use crate::memory::host_memory_tests::say;

const LONG: Duration = Duration::from_secs(60);
const TERMS: Terms = Terms { patience: LONG, room: u64::MAX, file: None, poisons: true };
/// Commitments of one extent, and of two.
const RUNS: [(u64, u64); 2] = [(RESERVATION, CHUNK), (RESERVATION + 2 * CHUNK, EXTENT + 3 * CHUNK)];
const BYTES: u64 = EXTENT + 4 * CHUNK;
/// Contents are written and read in pieces of this size.
const PIECE: u64 = CHUNK;

fn commit(stage: &Stage, (address, bytes): (u64, u64)) {
    let command =
        commands::MemoryCommit { address: DevicePtr(address), bytes, on_host: false, by_all: false };
    say(stage, &command).unwrap();
}

fn contents(address: u64) -> Vec<u8> {
    (address ^ 0x0123_4567_89ab_cdef).to_le_bytes().repeat(PIECE as usize / 8)
}

fn write(stage: &Stage, (address, bytes): (u64, u64)) {
    stage.driver();
    let copy = hostile_driver::inner().cuMemcpyHtoD_v2.unwrap();
    for at in (address..address + bytes).step_by(PIECE as usize) {
        let bytes = contents(at);
        // SAFETY: the range is committed, and the source a vector.
        unsafe { copy(at, bytes.as_ptr().cast(), bytes.len()) }.ok().unwrap();
    }
}

fn check(stage: &Stage, (address, bytes): (u64, u64)) {
    stage.driver();
    let copy = hostile_driver::inner().cuMemcpyDtoH_v2.unwrap();
    let mut read = vec![0_u8; PIECE as usize];
    for at in (address..address + bytes).step_by(PIECE as usize) {
        // SAFETY: the range is committed, and the destination a vector.
        unsafe { copy(read.as_mut_ptr().cast(), at, read.len()) }.ok().unwrap();
        assert!(read == contents(at), "at {at:#x}");
    }
}

/// Free bytes of the GPU.
fn free(stage: &Stage) -> u64 {
    stage.driver();
    let (mut free, mut total) = (0, 0);
    // SAFETY: a context is current, and the driver writes two sizes to locals.
    unsafe { hostile_driver::inner().cuMemGetInfo_v2.unwrap()(&mut free, &mut total) }.ok().unwrap();
    free as u64
}

fn filled() -> Stage {
    let mut stage = Stage::new();
    // The hostile driver looks at every byte of what is copied, which takes it long.
    let table = &mut stage.session().table;
    table.cuMemcpyHtoDAsync_v2 = hostile_driver::inner().cuMemcpyHtoDAsync_v2;
    table.cuMemcpyDtoHAsync_v2 = hostile_driver::inner().cuMemcpyDtoHAsync_v2;
    RUNS.into_iter().for_each(|run| commit(&stage, run));
    RUNS.into_iter().for_each(|run| write(&stage, run));
    stage
}

#[test]
fn memory_leaves_the_gpu_and_comes_back_as_it_was() {
    let mut stage = filled();
    let before = free(&stage);
    let reserve = stage.session().budget.held(0);
    assert!(reserve > 0);
    for keeps in [true, true, false] {
        let out = move_out(stage.session(), TERMS).unwrap();
        assert_eq!(out, Out { moved: vec![BYTES], filed: vec![0], stays: vec![0], kept: Vec::new() });
        assert!(stage.session().presence.is_absent());
        assert_eq!(move_out(stage.session(), TERMS).unwrap().moved, [0], "nothing is left to move");
        assert_eq!(stage.session().budget.held(0), 0);
        let back = move_in(stage.session(), keeps).unwrap();
        let spare = stage.session().memory.lock().spare.len();
        assert_eq!((back.moved, back.emptied.is_empty(), spare > 0), (vec![BYTES], keeps, keeps));
        assert_eq!(move_in(stage.session(), keeps).unwrap().moved, [0]);
        RUNS.into_iter().for_each(|run| check(&stage, run));
        assert_eq!((free(&stage), stage.session().budget.held(0)), (before, reserve));
    }
    // What is kept is for memory that can leave.
    move_out(stage.session(), TERMS).unwrap();
    move_in(stage.session(), true).unwrap();
    let [one, several] = RUNS;
    let kept =
        |stage: &mut Stage| -> u64 { stage.session().memory.lock().spare.iter().map(HostPiece::bytes).sum() };
    assert_eq!(kept(&mut stage), BYTES);
    say(&stage, &commands::MemoryDecommit { address: DevicePtr(several.0), bytes: several.1 }).unwrap();
    assert!(kept(&mut stage) <= one.1);
    commit(&stage, several);
    let out = move_out(stage.session(), TERMS).unwrap();
    stage.session().presence.open();
    assert_eq!(free(&stage), before + out.moved[0] + reserve);
    move_out(stage.session(), TERMS).unwrap();
    move_in(stage.session(), false).unwrap();
}

/// An empty file without a name.
fn unnamed() -> File {
    let flags = libc::O_TMPFILE | libc::O_CLOEXEC;
    File::options().read(true).write(true).custom_flags(flags).mode(0o600).open(std::env::temp_dir()).unwrap()
}

#[test]
fn what_host_memory_has_no_room_for_goes_to_a_file_and_comes_back() {
    let mut stage = filled();
    let before = free(&stage);
    for (room, filed) in [(0, BYTES), (EXTENT, BYTES - EXTENT), (CHUNK, BYTES - CHUNK)] {
        let file = unnamed();
        let seen = file.try_clone().unwrap();
        let terms = Terms { room, file: Some((file, filed)), ..TERMS };
        let out = move_out(stage.session(), terms).unwrap();
        assert_eq!((out.moved, out.filed, out.stays), (vec![BYTES], vec![filed], vec![0]));
        assert!(seen.metadata().unwrap().len() >= filed);
        let mut sealed = vec![0; 1 << 20];
        seen.read_exact_at(&mut sealed, 0).unwrap();
        let readable = RUNS.map(|(address, _)| contents(address)[..8].to_vec());
        assert!(sealed.windows(8).all(|part| readable.iter().all(|word| word != part)));
        move_in(stage.session(), false).unwrap();
        RUNS.into_iter().for_each(|run| check(&stage, run));
        assert_eq!(free(&stage), before);
    }
}

#[test]
fn a_file_without_room_leaves_the_session_where_it_is() {
    let mut stage = filled();
    let small = Terms { room: CHUNK, file: Some((unnamed(), BYTES - CHUNK - 1)), ..TERMS };
    assert!(matches!(move_out(stage.session(), small), Err(NotMoved::Room { needed: BYTES, .. })));
    let not_writable = File::open("/proc/self/exe").unwrap();
    let unusable = Terms { room: 0, file: Some((not_writable, u64::MAX)), ..TERMS };
    let error = move_out(stage.session(), unusable).unwrap_err();
    assert!(error.to_string().starts_with("the swap file has no room on its disk"), "{error}");
    assert!(!stage.session().presence.is_absent());
    RUNS.into_iter().for_each(|run| check(&stage, run));
}

#[test]
fn a_file_that_cannot_be_written_leaves_the_session_where_it_is() {
    let mut stage = filled();
    let before = free(&stage);
    // SAFETY: the name is a literal, and the descriptor that comes back is ours alone.
    let file = unsafe {
        let fd = libc::memfd_create(c"swap".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        File::from_raw_fd(fd)
    };
    // SAFETY: plain numbers, and a descriptor that is open.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_WRITE) }, 0);
    let terms = Terms { room: CHUNK, file: Some((file, BYTES)), ..TERMS };
    assert!(matches!(move_out(stage.session(), terms), Err(NotMoved::File(_))));
    assert!(!stage.session().presence.is_absent());
    RUNS.into_iter().for_each(|run| check(&stage, run));
    assert_eq!(free(&stage), before);
}

#[test]
fn what_was_changed_in_the_file_never_reaches_the_program() {
    let mut stage = filled();
    let file = unnamed();
    let seen = file.try_clone().unwrap();
    move_out(stage.session(), Terms { room: CHUNK, file: Some((file, BYTES)), ..TERMS }).unwrap();
    let away = free(&stage);
    let mut byte = [0];
    seen.read_exact_at(&mut byte, 3 * CHUNK + 5).unwrap();
    seen.write_all_at(&[byte[0] ^ 1], 3 * CHUNK + 5).unwrap();
    for _ in 0..2 {
        let error = move_in(stage.session(), false).unwrap_err();
        assert!(matches!(error, NotMoved::Lost(Unread::Damaged)), "{error}");
        assert!(stage.session().presence.is_absent());
        assert_eq!(free(&stage), away, "nothing is left on the GPU");
    }
    seen.write_all_at(&byte, 3 * CHUNK + 5).unwrap();
    move_in(stage.session(), false).unwrap();
    RUNS.into_iter().for_each(|run| check(&stage, run));
}

/// Commitments come and go, and what there is leaves and returns by way of a new file each time,
/// with as much host memory as chance has it.
#[test]
fn memory_that_leaves_again_and_again_stays_as_it_was() {
    let mut stage = filled();
    let (mut held, mut seed) = (RUNS.map(|_| true), 1_u64);
    let mut chance = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for _ in 0..24 {
        let changed = chance(2) as usize;
        let (address, bytes) = RUNS[changed];
        if std::mem::replace(&mut held[changed], chance(3) > 0) != held[changed] {
            if held[changed] {
                commit(&stage, RUNS[changed]);
                write(&stage, RUNS[changed]);
            } else {
                say(&stage, &commands::MemoryDecommit { address: DevicePtr(address), bytes }).unwrap();
            }
        }
        let runs: Vec<_> = RUNS.into_iter().zip(held).filter(|(_, held)| *held).map(|(run, _)| run).collect();
        let bytes: u64 = runs.iter().map(|run| run.1).sum();
        let room = chance(BYTES / CHUNK + 1) * CHUNK;
        let terms = Terms { room, file: Some((unnamed(), BYTES)), ..TERMS };
        let out = move_out(stage.session(), terms).unwrap();
        assert_eq!(out.moved, [bytes]);
        assert!(bytes.saturating_sub(room) <= out.filed[0] && out.filed[0] <= bytes, "{out:?}, {room}");
        move_in(stage.session(), false).unwrap();
        runs.into_iter().for_each(|run| check(&stage, run));
    }
}

#[test]
fn what_others_have_too_stays_and_is_named() {
    let mut stage = filled();
    let [one, several] = RUNS;
    let exported = say(&stage, &commands::AllocationExport { address: DevicePtr(one.0) });
    assert!(exported.is_ok());
    let handle = PhysicalId(7);
    let prop = PhysicalProp {
        kind: CUmemAllocationType::PINNED,
        handle_types: CUmemAllocationHandleType::NONE,
        location: CUmemLocation { kind: CUmemLocationType::DEVICE, id: 0 },
        compression_type: 0,
        gpu_direct_rdma: 0,
        usage: 0,
    };
    say(&stage, &commands::cuMemCreate { handle, size: CHUNK, prop, flags: 0 }).unwrap();
    let mapped = RESERVATION + 2 * EXTENT + 64 * CHUNK;
    let map = commands::cuMemMap { ptr: DevicePtr(mapped), size: CHUNK, offset: 0, handle, flags: 0 };
    say(&stage, &map).unwrap();
    let out = move_out(stage.session(), TERMS).unwrap();
    assert_eq!((out.moved, out.stays), (vec![several.1], vec![CHUNK]), "what is shared is the lease's");
    let kept: Vec<_> = out.kept.iter().map(|kept| (kept.reason.as_str(), kept.bytes)).collect();
    assert_eq!(
        kept,
        [
            ("mapped by the program itself (cuMemMap)", CHUNK),
            ("shared with other processes of the lease", one.1)
        ]
    );
    move_in(stage.session(), false).unwrap();
    RUNS.into_iter().for_each(|run| check(&stage, run));
}

#[test]
fn memory_of_several_extents_is_shared_as_one() {
    let mut stage = filled();
    let [_, several] = RUNS;
    say(&stage, &commands::AllocationExport { address: DevicePtr(several.0 + CHUNK) }).unwrap();
    let memory = stage.session().memory.lock();
    let Some(Backing::Committed { extents, export: Some(_), .. }) = memory.chunks.run_at(several.0) else {
        panic!("it is shared")
    };
    assert_eq!(extents.iter().map(|extent| extent.bytes).collect::<Vec<_>>(), [several.1]);
    drop(memory);
    RUNS.into_iter().for_each(|run| check(&stage, run));
}

#[test]
fn without_room_or_rest_nothing_moves() {
    let mut stage = filled();
    let room = Terms { room: BYTES - 1, ..TERMS };
    assert!(matches!(move_out(stage.session(), room), Err(NotMoved::Room { needed: BYTES, .. })));
    assert!(!stage.session().presence.is_absent());
    let submission = stage.session().devices[0].gate.enter();
    let busy = Terms { patience: Duration::ZERO, ..TERMS };
    drop(submission);
    assert!(
        matches!(move_out(stage.session(), busy), Err(NotMoved::Busy(_))),
        "its work is not known to be over"
    );
    assert!(!stage.session().presence.is_absent());
    RUNS.into_iter().for_each(|run| check(&stage, run));
}

/// The call of a function that fails, counted from now; negative for none.
macro_rules! failing {
    ($($name:ident($($argument:ident: $type:ty),*))*) => {
        $(#[allow(non_snake_case)] mod $name {
            use super::*;
            pub(super) static LEFT: AtomicI64 = AtomicI64::new(-1);
            pub(super) unsafe extern "C" fn call($($argument: $type),*) -> CUresult {
                if LEFT.fetch_sub(1, SeqCst) == 0 {
                    return CUresult::OUT_OF_MEMORY;
                }
                // SAFETY: the caller's arguments.
                unsafe { hostile_driver::inner().$name.unwrap()($($argument),*) }
            }
        })*
        /// Has each function fail at each of its calls in turn, while `act` runs: until that needs
        /// no more calls.
        fn fail_each(stage: &mut Stage, mut act: impl FnMut(&mut Stage, &str, i64)) {
            $(
                stage.session().table.$name = Some($name::call);
                for nth in 0.. {
                    $name::LEFT.store(nth, SeqCst);
                    act(stage, stringify!($name), nth);
                    if $name::LEFT.swap(-1, SeqCst) >= 0 {
                        break;
                    }
                }
                stage.session().table.$name = hostile_driver::inner().$name;
            )*
        }
    };
}

failing! {
    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream)
    cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream)
    cuMemUnmap(address: CUdeviceptr, bytes: usize)
    cuMemCreate(handle: *mut CUmemGenericAllocationHandle, bytes: usize, prop: *const CUmemAllocationProp, flags: u64)
    cuMemMap(address: CUdeviceptr, bytes: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: u64)
    cuMemSetAccess(address: CUdeviceptr, bytes: usize, access: *const CUmemAccessDesc, count: usize)
    cuStreamSynchronize(stream: CUstream)
    cuStreamCreate(stream: *mut CUstream, flags: u32)
    cuMemsetD8Async(address: CUdeviceptr, value: u8, bytes: usize, stream: CUstream)
}

#[test]
fn a_step_that_fails_costs_no_byte() {
    each_step_fails(|| TERMS);
}

#[test]
fn a_step_that_fails_costs_no_byte_where_a_part_goes_to_a_file() {
    each_step_fails(|| Terms { room: EXTENT, file: Some((unnamed(), BYTES)), ..TERMS });
}

fn each_step_fails(terms: impl Fn() -> Terms) {
    let mut stage = filled();
    let before = free(&stage);
    let mut failures = 0;
    fail_each(&mut stage, |stage, function, nth| {
        let what = format!("{function}, call {nth}");
        match move_out(stage.session(), terms()) {
            Ok(_) => assert!(stage.session().presence.is_absent(), "{what}"),
            Err(error) => {
                failures += 1;
                assert!(!stage.session().presence.is_absent(), "{what}: {error}");
                RUNS.into_iter().for_each(|run| check(stage, run));
                return;
            }
        }
        // Part of it may have stayed. The way back fails once at most.
        if let Err(error) = move_in(stage.session(), false) {
            failures += 1;
            assert!(stage.session().presence.is_absent(), "{what}: {error}");
            move_in(stage.session(), false).unwrap_or_else(|error| panic!("{what}, again: {error}"));
        }
        RUNS.into_iter().for_each(|run| check(stage, run));
        assert_eq!(free(stage), before, "{what}");
    });
    assert!(failures > 15, "{failures}");
}

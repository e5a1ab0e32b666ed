//! Device memory that no call asks for by its size is charged to an account: every call that
//! allocates is made here, and what the device has less of afterwards is either what the call asked
//! for or what the account was charged.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_cuda::*;
use sluice_softgpu::DeviceMemoryAccount;

mod common;
use common::*;

const CHUNK: u64 = 2 << 20;

static TAKEN: AtomicU64 = AtomicU64::new(0);
static LIMIT: AtomicU64 = AtomicU64::new(u64::MAX);

struct Account;

impl DeviceMemoryAccount for Account {
    fn take(&self, ordinal: usize, bytes: u64) -> bool {
        assert_eq!(ordinal, 0);
        let after = |taken: u64| taken.checked_add(bytes).filter(|after| *after <= LIMIT.load(SeqCst));
        TAKEN.fetch_update(SeqCst, SeqCst, after).is_ok()
    }

    fn give_back(&self, ordinal: usize, bytes: u64) {
        assert_eq!(ordinal, 0);
        TAKEN.fetch_sub(bytes, SeqCst);
    }
}

/// There is one account in a process, and each test begins with an empty one of this limit.
fn account(limit: u64) -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    sluice_softgpu::set_device_memory_account(Box::new(Account));
    assert_eq!(TAKEN.load(SeqCst), 0);
    LIMIT.store(limit, SeqCst);
    alone
}

fn free_bytes() -> u64 {
    let (mut free, mut total) = (0, 0);
    ok!(cuMemGetInfo_v2(&mut free, &mut total));
    free as u64
}

fn variable(module: CUmodule, name: &std::ffi::CStr) -> (CUresult, CUdeviceptr) {
    let (mut address, mut bytes) = (0, 0);
    let result = result!(cuModuleGetGlobal_v2(&mut address, &mut bytes, module, name.as_ptr()));
    (result, address)
}

/// A kernel whose threads have so much local memory each, all of which may be used.
fn with_local(bytes: u64) -> String {
    format!(
        ".visible .entry k(.param .u64 to) {{
            .local .align 8 .b8 frame[{bytes}]; .reg .b64 %a<4>; .reg .b32 %v<2>;
            ld.param.u64 %a1, [to]; mov.u64 %a2, frame; cvta.local.u64 %a2, %a2; and.b64 %a3, %a1, {}; add.u64 %a2, %a2, %a3;
            mov.u32 %v1, %tid.x; st.u32 [%a2], %v1; ld.u32 %v1, [%a2]; st.global.u32 [%a1], %v1; ret;
        }}",
        (bytes - 1) & !7
    )
}

const MALLOC: &str = "
.extern .func (.param .b64 r) malloc(.param .b64 n);
.visible .entry k(.param .u64 to) {
    .reg .b64 %a<3>;
    { .param .b64 n; .param .b64 r; st.param.b64 [n], 64; call.uni (r), malloc, (n); ld.param.b64 %a1, [r]; }
    ld.param.u64 %a2, [to]; st.global.u64 [%a2], %a1; ret;
}";

const RECURSIVE: &str = "
.func (.param .b64 y) down(.param .b64 n) {
    .reg .pred %p; .reg .b64 %d<4>;
    ld.param.u64 %d1, [n]; setp.eq.u64 %p, %d1, 0; mov.u64 %d2, 0; @%p bra done;
    { .param .b64 a; .param .b64 r; sub.u64 %d3, %d1, 1; st.param.b64 [a], %d3;
      call.uni (r), down, (a); ld.param.b64 %d2, [r]; }
    add.u64 %d2, %d2, 1;
done:
    st.param.b64 [y], %d2; ret;
}
.visible .entry k(.param .u64 to) {
    .reg .b64 %a<4>;
    { .param .b64 a; .param .b64 r; mov.u64 %a2, 3; st.param.b64 [a], %a2;
      call.uni (r), down, (a); ld.param.b64 %a3, [r]; }
    ld.param.u64 %a1, [to]; st.global.u64 [%a1], %a3; ret;
}";

/// Makes what it says, and returns the bytes that it asked for.
type Allocating = (&'static str, fn() -> u64);

const ON_CARD: CUmemAllocationProp = CUmemAllocationProp {
    kind: CUmemAllocationType::PINNED,
    requestedHandleTypes: CUmemAllocationHandleType(0),
    location: CUmemLocation { kind: CUmemLocationType::DEVICE, id: 0 },
    win32HandleMetaData: null_mut(),
    compressionType: 0,
    gpuDirectRDMACapable: 0,
    usage: 0,
    reserved: [0; 4],
};

fn run(text: &str) -> u64 {
    let f = function(module(text), "k");
    let mut to = allocate(2 * CHUNK as usize);
    assert_eq!(launch(f, 4, 64, CUstream::NULL, &mut [arg(&mut to)]), CUresult::SUCCESS);
    ok!(cuCtxSynchronize());
    2 * CHUNK
}

const CALLS: [Allocating; 15] = [
    ("cuMemAlloc", || {
        allocate(3 * CHUNK as usize);
        3 * CHUNK
    }),
    ("cuMemAllocPitch", || {
        let (mut address, mut pitch) = (0, 0);
        ok!(cuMemAllocPitch_v2(&mut address, &mut pitch, 1 << 20, 4, 4));
        4 << 20
    }),
    ("cuMemAllocAsync", || {
        let mut address = 0;
        ok!(cuMemAllocAsync(&mut address, 4 * CHUNK as usize, CUstream::NULL));
        4 * CHUNK
    }),
    ("cuMemAllocHost", || {
        let mut address = null_mut();
        ok!(cuMemAllocHost_v2(&mut address, 5 * CHUNK as usize));
        0
    }),
    ("cuMemAllocManaged", || {
        let mut address = 0;
        ok!(cuMemAllocManaged(&mut address, CHUNK as usize, 1));
        0
    }),
    ("cuMemCreate", || {
        let mut handle = CUmemGenericAllocationHandle::NULL;
        ok!(cuMemCreate(&mut handle, CHUNK as usize, &ON_CARD, 0));
        CHUNK
    }),
    ("cuArray3DCreate", || {
        let mut array = CUarray::NULL;
        let shape = CUDA_ARRAY3D_DESCRIPTOR {
            Width: 1 << 10,
            Height: 1 << 10,
            Depth: 0,
            Format: CUarray_format::UNSIGNED_INT32,
            NumChannels: 1,
            Flags: 0,
        };
        ok!(cuArray3DCreate_v2(&mut array, &shape));
        4 << 20
    }),
    ("cuModuleGetGlobal, small", || {
        let (result, _) = variable(module(".visible .global .u32 x = 7;"), c"x");
        assert_eq!(result, CUresult::SUCCESS);
        0
    }),
    ("cuModuleGetGlobal, large", || {
        let (result, address) = variable(module(".visible .global .align 16 .b8 x[5000000];"), c"x");
        assert_eq!(result, CUresult::SUCCESS);
        assert_eq!(read::<u8>(address + 4_999_999, 1), [0]);
        0
    }),
    ("cuModuleGetGlobal, constant", || {
        let (result, _) = variable(module(".visible .const .align 4 .b8 c[65536];"), c"c");
        assert_eq!(result, CUresult::SUCCESS);
        0
    }),
    ("a variable that a kernel uses", || {
        run(".global .align 8 .b8 x[3000000];
             .visible .entry k(.param .u64 to) { .reg .b32 %v; mov.u32 %v, 1; st.global.u32 [x], %v; ret; }")
    }),
    ("a variable that another one points to", || {
        let text = ".global .align 8 .b8 x[3000000]; .visible .global .u64 p = x;";
        assert_eq!(variable(module(text), c"p").0, CUresult::SUCCESS);
        0
    }),
    ("local memory", || run(&with_local(64 << 10))),
    ("the stack of recursion", || {
        let before = TAKEN.load(SeqCst);
        ok!(cuCtxSetLimit(CUlimit::STACK_SIZE, 256 << 10));
        let asked = run(RECURSIVE);
        assert!(TAKEN.load(SeqCst) - before >= 64 * (256 << 10), "64 threads have a stack each");
        asked
    }),
    ("device-side malloc", || run(MALLOC)),
];

#[test]
fn what_a_device_has_less_of_was_asked_for_or_is_on_the_account() {
    let _alone = account(u64::MAX);
    for (name, allocate_something) in CALLS {
        let context = Context::new(0);
        let (free, taken) = (free_bytes(), TAKEN.load(SeqCst));
        let asked = allocate_something();
        assert_eq!(free - free_bytes(), asked + TAKEN.load(SeqCst) - taken, "{name}");
        drop(context);
        // What was allocated from a pool goes back with a wait.
        assert_eq!(TAKEN.load(SeqCst), 0, "{name} is given back with its context");
    }
}

#[test]
fn what_an_account_does_not_have_is_not_to_be_had() {
    let _alone = account(4 * CHUNK);
    let _context = Context::new(0);
    let of_kernel = ".visible .global .align 8 .b8 x[16000000];
         .visible .entry k(.param .u64 to) { .reg .b32 %v; mov.u32 %v, 1; st.global.u32 [x], %v; ret; }";
    let large = module(of_kernel);
    assert_eq!(variable(large, c"x").0, CUresult::OUT_OF_MEMORY);
    let mut to = allocate(64);
    let mut start = |f| launch(f, 4, 64, CUstream::NULL, &mut [arg(&mut to)]);
    let using = function(large, "k");
    assert_eq!(start(using), CUresult::OUT_OF_MEMORY);
    assert_eq!(start(function(module(&with_local(256 << 10)), "k")), CUresult::OUT_OF_MEMORY);
    ok!(cuCtxSetLimit(CUlimit::MALLOC_HEAP_SIZE, 5 * CHUNK as usize));
    assert_eq!(start(function(module(MALLOC), "k")), CUresult::OUT_OF_MEMORY);
    // A variable that has its place points to one that finds none.
    let pair = module(".visible .global .align 8 .b8 x[16000000]; .visible .global .u64 p = x;");
    assert_eq!(variable(pair, c"p").0, CUresult::OUT_OF_MEMORY);
    assert_eq!(TAKEN.load(SeqCst), 0, "what was refused costs nothing");

    LIMIT.store(u64::MAX, SeqCst);
    assert_eq!(start(using), CUresult::SUCCESS, "there is memory now");
    let ((result, p), (_, x)) = (variable(pair, c"p"), variable(pair, c"x"));
    assert_eq!(result, CUresult::SUCCESS);
    assert_eq!(read::<u64>(p, 1), [x]);
    ok!(cuCtxSynchronize());
}

#[test]
fn the_cards_memory_is_a_limit_of_what_the_driver_takes_as_well() {
    let _alone = account(u64::MAX);
    let _context = Context::new(0);
    let text = format!(".visible .global .align 8 .b8 x[{}];", MEMORY + 1);
    assert_eq!(variable(module(&text), c"x").0, CUresult::OUT_OF_MEMORY);
    let mut to = allocate(64);
    let f = function(module(&with_local(500 << 10)), "k");
    assert_eq!(launch(f, 4, 256, CUstream::NULL, &mut [arg(&mut to)]), CUresult::OUT_OF_MEMORY);
    assert_eq!(TAKEN.load(SeqCst), 0);
}

/// CUDA C++ Programming Guide, Technical Specifications per Compute Capability.
#[test]
fn a_thread_has_512_kib_of_local_memory_at_most() {
    let _alone = account(u64::MAX);
    let _context = Context::new(0);
    let mut to = allocate(64);
    let mut start = |bytes| {
        let f = function(module(&with_local(bytes)), "k");
        launch(f, 1, 1, CUstream::NULL, &mut [arg(&mut to)])
    };
    assert_eq!(start(512 << 10), CUresult::SUCCESS);
    assert_eq!(start((512 << 10) + 8), CUresult::INVALID_PTX);
    ok!(cuCtxSynchronize());
}

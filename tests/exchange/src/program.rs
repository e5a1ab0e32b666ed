//! What the calls need: handles and memory of their own, random values, and the comparison.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use libloading::Library;
use sluice_cuda::{CUcontext, CUdeviceptr, CUevent, CUfunction, CUmodule, CUresult, CUstream};

use crate::answer::Answer;

/// Addresses are drawn from this much memory; with the largest range that a call needs behind them.
const MEMORY: u64 = 8 << 20;
const RANGE_MAX: u64 = 4 << 20;
/// The largest number where a size follows from it.
const SMALL: u64 = 16;
/// Introduces a handle to the driver: the call that has this number plus n tells it of the n-th of its kind.
const MARK: u32 = 0x5eed_0000;
/// Of each kind that calls create themselves.
const HANDLES_MAX: usize = 64;

const PTX: &std::ffi::CStr = c".version 7.0\n.target sm_75\n.address_size 64\n\
    .visible .entry a(.param .u64 x) { ret; }\n.visible .entry b() { ret; }\n";

pub(crate) struct Program {
    library: Library,
    random: u64,
    memory: CUdeviceptr,
    /// By kind: handles with their number, and how many there have been.
    handles: BTreeMap<&'static str, Vec<(usize, u64)>>,
    minted: BTreeMap<&'static str, u64>,
    lines: String,
}

/// The bytes of a call's arguments, as the driver has to see them.
pub(crate) struct Sent {
    name: &'static str,
    bytes: Vec<u8>,
}

impl Sent {
    pub(crate) fn new(name: &'static str) -> Sent {
        Sent { name, bytes: Vec::new() }
    }

    pub(crate) fn value<T: Copy>(&mut self, value: T) {
        self.bytes.extend_from_slice(bytes_of(&value));
    }

    #[allow(dead_code, reason = "whether a function takes an array of numbers is up to the list")]
    pub(crate) fn values<T: Copy>(&mut self, values: &[T]) {
        values.iter().for_each(|value| self.value(*value));
    }
}

/// A number or plain structure as it lies in memory.
pub(crate) fn bytes_of<T: Copy>(value: &T) -> &[u8] {
    // SAFETY: the value's own bytes; the arguments of driver functions have no padding.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

impl Program {
    /// With a context, memory, and some handles of each kind that only other functions create.
    pub(crate) fn start(seed: u64) -> Program {
        // SAFETY: whichever CUDA driver it is, loading it is what programs do.
        let library = unsafe { Library::new("libcuda.so.1") }.expect("a CUDA driver");
        let (handles, minted) = (BTreeMap::new(), BTreeMap::new());
        let mut p = Program { library, random: seed, memory: 0, handles, minted, lines: String::new() };
        let mut context = CUcontext::NULL;
        // SAFETY: the prototypes are CUDA's, and every place is a local.
        unsafe {
            ok(p.symbol::<unsafe extern "C" fn(u32) -> CUresult>("cuInit")(0));
            ok(
                p.symbol::<unsafe extern "C" fn(*mut CUcontext, i32) -> CUresult>("cuDevicePrimaryCtxRetain")(
                    &mut context,
                    0,
                ),
            );
            ok(p.symbol::<unsafe extern "C" fn(CUcontext) -> CUresult>("cuCtxSetCurrent")(context));
            let allocate =
                p.symbol::<unsafe extern "C" fn(*mut CUdeviceptr, usize) -> CUresult>("cuMemAlloc_v2");
            ok(allocate(&mut p.memory, MEMORY as usize));
        }
        p.make_handles();
        p
    }

    fn make_handles(&mut self) {
        let mut module = CUmodule::NULL;
        // SAFETY: as above; the image is text that ends with NUL.
        unsafe {
            let load =
                self.symbol::<unsafe extern "C" fn(*mut CUmodule, *const i8) -> CUresult>("cuModuleLoadData");
            ok(load(&mut module, PTX.as_ptr().cast()));
        }
        self.minted("Module", module.0);
        for (number, name) in [(0, c"a"), (1, c"b")] {
            let (mut stream, mut event, mut function) = (CUstream::NULL, CUevent::NULL, CUfunction::NULL);
            // SAFETY: as above.
            unsafe {
                ok(self.symbol::<unsafe extern "C" fn(*mut CUstream, u32) -> CUresult>("cuStreamCreate")(
                    &mut stream,
                    1,
                ));
                ok(self.symbol::<unsafe extern "C" fn(*mut CUevent, u32) -> CUresult>("cuEventCreate")(
                    &mut event, 0,
                ));
                let get = self
                    .symbol::<unsafe extern "C" fn(*mut CUfunction, CUmodule, *const i8) -> CUresult>(
                        "cuModuleGetFunction",
                    );
                ok(get(&mut function, module, name.as_ptr().cast()));
                let write = self.symbol::<unsafe extern "C" fn(CUstream, CUdeviceptr, u32, u32) -> CUresult>(
                    "cuStreamWriteValue32",
                );
                ok(write(stream, self.memory, MARK + number, 0));
                let record = self.symbol::<unsafe extern "C" fn(CUevent, CUstream, u32) -> CUresult>(
                    "cuEventRecordWithFlags",
                );
                ok(record(event, stream, MARK + number));
                let ask = self.symbol::<unsafe extern "C" fn(*mut i32, CUfunction, i32, usize) -> CUresult>(
                    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
                );
                ok(ask(&mut 0, function, (MARK + number) as i32, 0));
            }
            self.minted("Stream", stream.0);
            self.minted("Event", event.0);
            self.minted("Function", function.0);
        }
    }

    /// A function of the driver.
    ///
    /// # Safety
    /// `F` is its prototype.
    pub(crate) unsafe fn symbol<F: Copy>(&self, name: &str) -> F {
        // SAFETY: by this function's contract.
        *unsafe { self.library.get::<F>(name.as_bytes()) }.unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Whether there is room for what a function makes, and there is what it needs: the driver may have refused to make it.
    pub(crate) fn can(&self, function: &str) -> bool {
        let graphs = self.handles.get("Graph").map_or(0, Vec::len);
        match function {
            "cuGraphCreate" => graphs < HANDLES_MAX,
            "cuGraphGetId" => graphs > 0,
            _ => true,
        }
    }

    /// Two numbers of a handle in use, noted for the driver.
    pub(crate) fn handle(&mut self, sent: &mut Sent, kind: &str) -> usize {
        let draw = self.next() as usize;
        let known = self.handles.get(kind).filter(|known| !known.is_empty());
        // An array of none is drawn from, too.
        let Some(known) = known else { panic!("{}: nothing makes a {kind}", sent.name) };
        let (handle, number) = known[draw % known.len()];
        sent.value(number);
        handle
    }

    /// Notes a handle that a call created.
    pub(crate) fn minted(&mut self, kind: &'static str, handle: usize) {
        let number = self.minted.entry(kind).or_default();
        let known = self.handles.entry(kind).or_default();
        known.push((handle, *number));
        *number += 1;
    }

    /// From the first to the last.
    pub(crate) fn within(&mut self, first: u64, last: u64) -> u64 {
        first + self.next() % (last - first + 1)
    }

    pub(crate) fn small(&mut self) -> u64 {
        1 + self.next() % SMALL
    }

    /// Any value of a plain type.
    pub(crate) fn value<T: Copy>(&mut self) -> T {
        let mut bytes = [0u64; 64];
        assert!(size_of::<T>() <= size_of_val(&bytes), "a large argument");
        bytes.iter_mut().take(size_of::<T>().div_ceil(8)).for_each(|word| *word = self.next());
        // SAFETY: the arguments of driver functions are numbers, for which any bytes are a value.
        unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
    }

    /// An address with so many bytes behind it.
    pub(crate) fn address(&mut self, sent: &mut Sent, bytes: u64) -> CUdeviceptr {
        assert!(bytes <= RANGE_MAX, "{}: {bytes} bytes", sent.name);
        let address = self.memory + self.next() % (MEMORY - RANGE_MAX) / 16 * 16;
        sent.value(address);
        address
    }

    /// Compares what came back; whether the call succeeded.
    pub(crate) fn check(&mut self, sent: Sent, waits: bool, result: CUresult, outputs: &[&[u8]]) -> bool {
        let mut hex = String::with_capacity(2 * sent.bytes.len());
        sent.bytes.iter().for_each(|byte| _ = write!(hex, "{byte:02x}"));
        let _ = writeln!(self.lines, "{} {hex}", sent.name);
        if sent.name == "cuCtxSynchronize" || sent.name == "cuStreamSynchronize" {
            assert_eq!(result, CUresult::SUCCESS, "{}", sent.name);
            return true;
        }
        let mut answer = Answer::to(sent.name, &sent.bytes, waits);
        assert_eq!(result, answer.result(), "{} with {hex}", sent.name);
        if !result.is_success() {
            return false;
        }
        for (index, output) in outputs.iter().enumerate() {
            assert_eq!(**output, answer.bytes(output.len()), "{} with {hex}: output {index}", sent.name);
        }
        true
    }

    pub(crate) fn synchronize(&self) {
        // SAFETY: CUDA's prototype.
        ok(unsafe { self.symbol::<unsafe extern "C" fn() -> CUresult>("cuCtxSynchronize")() });
    }

    /// All calls so far.
    pub(crate) fn lines(&self) -> &str {
        &self.lines
    }

    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}

fn ok(result: CUresult) {
    assert_eq!(result, CUresult::SUCCESS);
}

//! What the calls need: handles and memory of their own, random values, and the comparison.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;

use sluice_cuda::{
    CUcontext, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphNodeType, CUmodule, CUresult, CUstream,
    DriverTable, Fn,
};

use crate::answer::{self, Answer, DEFAULT_STREAM, MARK};
use crate::launches::Kernel;
use crate::memory::Memory;

/// Addresses are drawn from this much memory; with the largest range that a call needs behind them.
const MEMORY: u64 = 8 << 20;
const RANGE_MAX: u64 = 4 << 20;
/// The largest number where a size follows from it.
const SMALL: u64 = 16;
/// Streams beside the default one, and events.
const STREAMS: u32 = 2;
/// Of each kind that calls create themselves.
pub(crate) const HANDLES_MAX: usize = 64;
const NODES_MAX: usize = 500;

pub(crate) struct Program {
    /// The functions as the next call takes them.
    pub(crate) cuda: DriverTable,
    /// As they are, and with variants for which a null stream is the calling thread's own.
    tables: [DriverTable; 2],
    /// Whether the call is one of a variant.
    per_thread: bool,
    /// Whether it names the default stream by null, where it can.
    says_null: bool,
    /// The number of the calling thread's own stream.
    own_stream: u64,
    random: u64,
    pub(crate) context: CUcontext,
    memory: CUdeviceptr,
    /// What functions by hand copy.
    pub(crate) copied: Memory,
    pub(crate) kernels: Vec<Kernel>,
    /// By kind: handles with their number, and how many there have been.
    handles: BTreeMap<&'static str, Vec<(usize, u64)>>,
    minted: BTreeMap<&'static str, u64>,
    /// Of nodes of graphs, by their number.
    pub(crate) kinds: BTreeMap<u64, CUgraphNodeType>,
    /// The graphs that nodes are in, and those inside them, by the node's number.
    pub(crate) homes: BTreeMap<u64, CUgraph>,
    pub(crate) inside: BTreeMap<u64, CUgraph>,
    /// The numbers of graphs that have graphs inside.
    pub(crate) nested: BTreeSet<u64>,
    /// What functions were given, by their number and the attribute's.
    pub(crate) attributes: BTreeMap<(u64, u32), i32>,
    /// How many functions of this process each stream was to call, by its number.
    pub(crate) host_calls: BTreeMap<u64, u64>,
    /// Where what was sent is written; beside it there is room.
    pub(crate) file: PathBuf,
    lines: String,
}

/// The bytes of a call's arguments, as the driver has to see them.
#[derive(Clone)]
pub(crate) struct Sent {
    name: &'static str,
    bytes: Vec<u8>,
}

impl Sent {
    pub(crate) fn new(name: &'static str) -> Sent {
        Sent { name, bytes: Vec::new() }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What has to arrive.
    pub(crate) fn line(&self) -> String {
        let mut line = format!("{} ", self.name);
        self.bytes.iter().for_each(|byte| _ = write!(line, "{byte:02x}"));
        line
    }

    /// A handle, by its number.
    pub(crate) fn number(&mut self, number: u64) {
        self.value(number);
    }

    pub(crate) fn value<T: Copy>(&mut self, value: T) {
        self.bytes.extend_from_slice(bytes_of(&value));
    }

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
    pub(crate) fn start(seed: u64, file: PathBuf) -> Program {
        let cuda = DriverTable::load_as_program().expect("a CUDA driver");
        let variants = DriverTable::load_as_program_per_thread().expect("the same driver");
        let (mut context, mut memory) = (CUcontext::NULL, 0);
        // SAFETY: every place is a local.
        unsafe {
            ok(cuda.cuInit.expect("exported")(0));
            ok(cuda.cuDevicePrimaryCtxRetain.expect("exported")(&mut context, 0));
            ok(cuda.cuCtxSetCurrent.expect("exported")(context));
            ok(cuda.cuMemAlloc_v2.expect("exported")(&mut memory, MEMORY as usize));
        }
        let mut p = Program {
            cuda,
            tables: [cuda, variants],
            per_thread: false,
            says_null: false,
            own_stream: 0,
            random: seed,
            context,
            memory,
            copied: Memory::default(),
            kernels: Vec::new(),
            handles: BTreeMap::from([("Stream", vec![(CUstream::LEGACY.0, DEFAULT_STREAM)])]),
            minted: BTreeMap::new(),
            kinds: BTreeMap::new(),
            homes: BTreeMap::new(),
            inside: BTreeMap::new(),
            nested: BTreeSet::new(),
            attributes: BTreeMap::new(),
            host_calls: BTreeMap::new(),
            file,
            lines: String::new(),
        };
        p.make_handles();
        p.copied = Memory::new(&p);
        Kernel::load(&mut p);
        p
    }

    fn make_handles(&mut self) {
        self.own_stream = self.introduce_stream(CUstream::PER_THREAD);
        for _ in 0..STREAMS {
            let (mut stream, mut event) = (CUstream::NULL, CUevent::NULL);
            // SAFETY: every place is a local.
            unsafe {
                ok(self.cuda.cuStreamCreate.expect("exported")(&mut stream, 1));
                ok(self.cuda.cuEventCreate.expect("exported")(&mut event, 0));
            }
            self.introduce_stream(stream);
            self.introduce_event(event, stream);
        }
    }

    /// The next call is one of this function: which of its variants, and what it calls the default
    /// stream, are drawn.
    pub(crate) fn next_call(&mut self, function: &str) {
        let info = Fn::from_export(function).unwrap_or_else(|| panic!("{function} is no function")).0.info();
        self.per_thread = info.variant.is_some() && self.once_in(2);
        self.says_null = self.once_in(2);
        self.cuda = self.tables[usize::from(self.per_thread)];
    }

    /// What the call calls a stream.
    fn called(&self, stream: CUstream) -> CUstream {
        let null = if self.per_thread { CUstream::PER_THREAD } else { CUstream::LEGACY };
        if self.says_null && stream == null { CUstream::NULL } else { stream }
    }

    /// The number of the calling thread's own stream.
    pub(crate) fn own_stream(&self) -> u64 {
        self.own_stream
    }

    /// The number of the stream in which the call works if it has no parameter for one.
    pub(crate) fn default_stream(&self) -> u64 {
        if self.per_thread { self.own_stream } else { DEFAULT_STREAM }
    }

    /// Introduces a stream to the driver; its number.
    pub(crate) fn introduce_stream(&mut self, stream: CUstream) -> u64 {
        let number = self.count_of("Stream");
        let write = self.cuda.cuStreamWriteValue32.expect("exported");
        // SAFETY: a live stream, and memory for the value.
        ok(unsafe { write(stream, self.memory, MARK + number as u32, 0) });
        self.minted("Stream", stream.0);
        number
    }

    /// Introduces an event to the driver; its number.
    pub(crate) fn introduce_event(&mut self, event: CUevent, stream: CUstream) -> u64 {
        let number = self.count_of("Event");
        let record = self.cuda.cuEventRecordWithFlags.expect("exported");
        // SAFETY: live handles.
        ok(unsafe { record(event, stream, MARK + number as u32) });
        self.minted("Event", event.0);
        number
    }

    /// Notes a module.
    pub(crate) fn module(&mut self, module: CUmodule) {
        self.minted("Module", module.0);
    }

    /// Introduces a function to the driver; its number.
    pub(crate) fn function(&mut self, function: CUfunction) -> u64 {
        let number = self.handles.get("Function").map_or(0, Vec::len) as u64;
        let ask = self.cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor.expect("exported");
        // SAFETY: a live function, and a place for the answer.
        ok(unsafe { ask(&mut 0, function, (MARK as u64 + number) as i32, 0) });
        self.minted("Function", function.0);
        number
    }

    /// Any stream, as the call calls it, and its number.
    pub(crate) fn stream(&mut self) -> (CUstream, u64) {
        let streams = self.streams();
        let (stream, number) = streams[self.within(0, streams.len() as u64 - 1) as usize];
        (self.called(stream), number)
    }

    /// The stream of a region, as the call calls it.
    pub(crate) fn stream_of(&self, region: usize) -> CUstream {
        self.called(self.copied.regions[region].stream)
    }

    /// The streams, each with its number.
    pub(crate) fn streams(&self) -> Vec<(CUstream, u64)> {
        self.handles["Stream"].iter().map(|&(handle, number)| (CUstream(handle), number)).collect()
    }

    /// Whether there is room for what a function makes, and there is what it needs: the driver may
    /// have refused to make it.
    pub(crate) fn can(&self, function: &str) -> bool {
        let count = |kind| self.known(kind).len();
        match function {
            "cuGraphCreate" => count("Graph") < HANDLES_MAX,
            "cuGraphClone" => count("Graph") > 0 && count("Graph") < HANDLES_MAX,
            "cuGraphGetId" => count("Graph") > 0,
            _ if function.starts_with("cuGraphInstantiate") => count("Graph") > 0,
            _ if function.starts_with("cuGraphAdd") && !function.contains("Dependencies") => {
                count("Graph") > 0 && count("GraphNode") < NODES_MAX
            }
            "cuTexRefCreate" => count("TexRef") < HANDLES_MAX,
            // Some stay for the others.
            "cuTexRefDestroy" => count("TexRef") > 4,
            _ if function.starts_with("cuTexRef") || function == "cuParamSetTexRef" => count("TexRef") > 0,
            _ if function.starts_with("cuGraph") => {
                ["Graph", "GraphNode", "GraphExec"].into_iter().all(|kind| count(kind) > 0)
            }
            _ => true,
        }
    }

    /// The handles of a kind that live, each with its number.
    pub(crate) fn known(&self, kind: &str) -> &[(usize, u64)] {
        self.handles.get(kind).map_or(&[], Vec::as_slice)
    }

    /// The number of a handle.
    pub(crate) fn number(&self, kind: &str, handle: usize) -> u64 {
        let found = self.known(kind).iter().find(|(known, _)| *known == handle);
        found.unwrap_or_else(|| panic!("{handle:#x} is no {kind}")).1
    }

    /// Any handle of a kind, and its number.
    pub(crate) fn pick(&mut self, kind: &str) -> (usize, u64) {
        let draw = self.next() as usize;
        let known = self.known(kind);
        known[draw % known.len()]
    }

    /// How many there have been of a kind.
    pub(crate) fn count_of(&self, kind: &str) -> u64 {
        self.minted.get(kind).copied().unwrap_or(0)
    }

    pub(crate) fn forget_number(&mut self, kind: &str, number: u64) {
        if let Some(known) = self.handles.get_mut(kind) {
            known.retain(|(_, known)| *known != number);
        }
    }

    pub(crate) fn forget(&mut self, kind: &str, handle: usize) {
        if let Some(known) = self.handles.get_mut(kind) {
            known.retain(|(known, _)| *known != handle);
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
        if kind == "Stream" { self.called(CUstream(handle)).0 } else { handle }
    }

    /// Notes a handle that is not used again, whether the call succeeds or not.
    pub(crate) fn take(&mut self, sent: &mut Sent, kind: &str) -> usize {
        let handle = self.handle(sent, kind);
        self.forget(kind, handle);
        handle
    }

    /// Notes a handle that a call created.
    pub(crate) fn minted(&mut self, kind: &'static str, handle: usize) {
        let number = self.minted.entry(kind).or_default();
        let known = self.handles.entry(kind).or_default();
        known.push((handle, *number));
        *number += 1;
    }

    /// Notes a handle of which only the number was known.
    pub(crate) fn found(&mut self, kind: &'static str, handle: usize, number: u64) {
        self.handles.entry(kind).or_default().push((handle, number));
    }

    /// The number that the next handle of a kind has.
    pub(crate) fn reserve(&mut self, kind: &'static str) -> u64 {
        let number = self.minted.entry(kind).or_default();
        *number += 1;
        *number - 1
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
        // What introduces a handle is said on purpose only.
        if size_of::<T>() == 4 && bytes[0] as u32 & 0xffff_0000 == MARK {
            bytes[0] ^= 1 << 31;
        }
        // SAFETY: the arguments of driver functions are numbers, for which any bytes are a value.
        unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
    }

    /// An address with so many bytes behind it.
    pub(crate) fn address(&mut self, sent: &mut Sent, bytes: u64) -> CUdeviceptr {
        let address = self.range(bytes);
        sent.value(address);
        address
    }

    /// An address for a caller that notes it later.
    pub(crate) fn range(&mut self, bytes: u64) -> CUdeviceptr {
        assert!(bytes <= RANGE_MAX, "{bytes} bytes");
        self.memory + self.next() % (MEMORY - RANGE_MAX) / 16 * 16
    }

    /// Compares what came back; whether the call succeeded.
    pub(crate) fn check(&mut self, sent: Sent, waits: bool, result: CUresult, outputs: &[&[u8]]) -> bool {
        let line = sent.line();
        self.line(&line);
        if sent.name == "cuCtxSynchronize" || sent.name == "cuStreamSynchronize" {
            assert_eq!(result, CUresult::SUCCESS, "{}", sent.name);
            return true;
        }
        let mut answer = Answer::to(sent.name, &sent.bytes, waits);
        assert_eq!(result, answer.result(), "{line}");
        if !result.is_success() {
            return false;
        }
        for (index, output) in outputs.iter().enumerate() {
            assert_eq!(**output, answer.bytes(output.len()), "{line}: output {index}");
        }
        true
    }

    /// What has to arrive.
    pub(crate) fn line(&mut self, line: &str) {
        self.lines.push_str(line);
        self.lines.push('\n');
    }

    pub(crate) fn synchronize(&self) {
        // SAFETY: no arguments.
        ok(unsafe { self.cuda.cuCtxSynchronize.expect("exported")() });
    }

    /// All calls so far.
    pub(crate) fn lines(&self) -> &str {
        &self.lines
    }

    pub(crate) fn next(&mut self) -> u64 {
        answer::next(&mut self.random)
    }

    /// Whether something happens that does so once in `times`.
    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        self.next().is_multiple_of(times)
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        answer::random_bytes(self.next(), count)
    }
}

pub(crate) fn ok(result: CUresult) {
    assert_eq!(result, CUresult::SUCCESS);
}

//! Nodes of graphs: what each kind is said to do when it is added and changed, and what the driver
//! says that it does.

mod questions;

use std::ffi::c_void;
use std::ptr::null_mut;

use sluice_cuda::*;

use crate::answer::{Answer, Drawn};
use crate::launches::Launch;
use crate::program::{HANDLES_MAX, Program, Sent, bytes_of, ok};

use self::questions::{
    cuGraphBatchMemOpNodeGetParams, cuGraphChildGraphNodeGetGraph, cuGraphMemcpyNodeGetParams,
    cuGraphMemsetNodeGetParams, cuGraphNodeGetContainingGraph, cuGraphNodeGetType, get_event, get_kernel,
    inside,
};

pub(crate) const FUNCTIONS: crate::Calls = &[
    ("cuGraphAddKernelNode", |p| add(p, Kind::KERNEL, By::Old)),
    ("cuGraphAddKernelNode_v2", |p| add(p, Kind::KERNEL, By::Kind)),
    ("cuGraphAddMemcpyNode", |p| add(p, Kind::MEMCPY, By::Kind)),
    ("cuGraphAddMemsetNode", |p| add(p, Kind::MEMSET, By::Kind)),
    ("cuGraphAddBatchMemOpNode", |p| add(p, Kind::BATCH_MEM_OP, By::Kind)),
    ("cuGraphAddEmptyNode", |p| add(p, Kind::EMPTY, By::Kind)),
    ("cuGraphAddEventRecordNode", |p| add(p, Kind::EVENT_RECORD, By::Kind)),
    ("cuGraphAddEventWaitNode", |p| add(p, Kind::WAIT_EVENT, By::Kind)),
    ("cuGraphAddChildGraphNode", |p| add_child(p, By::Kind)),
    ("cuGraphAddNode", |p| add_any(p, By::Any)),
    ("cuGraphAddNode_v2", |p| add_any(p, By::AnyWithEdges)),
    ("cuGraphAddNode_v3", |p| add_any(p, By::Newest)),
    ("cuGraphKernelNodeSetParams", |p| set(p, Kind::KERNEL, By::Old)),
    ("cuGraphKernelNodeSetParams_v2", |p| set(p, Kind::KERNEL, By::Kind)),
    ("cuGraphMemcpyNodeSetParams", |p| set(p, Kind::MEMCPY, By::Kind)),
    ("cuGraphMemsetNodeSetParams", |p| set(p, Kind::MEMSET, By::Kind)),
    ("cuGraphBatchMemOpNodeSetParams", |p| set(p, Kind::BATCH_MEM_OP, By::Kind)),
    ("cuGraphNodeSetParams", |p| set_any(p, By::Any)),
    ("cuGraphNodeSetParams_v2", |p| set_any(p, By::Newest)),
    ("cuGraphExecKernelNodeSetParams", |p| set_in(p, Kind::KERNEL, By::Old)),
    ("cuGraphExecKernelNodeSetParams_v2", |p| set_in(p, Kind::KERNEL, By::Kind)),
    ("cuGraphExecMemcpyNodeSetParams", |p| set_in(p, Kind::MEMCPY, By::Kind)),
    ("cuGraphExecMemsetNodeSetParams", |p| set_in(p, Kind::MEMSET, By::Kind)),
    ("cuGraphExecBatchMemOpNodeSetParams", |p| set_in(p, Kind::BATCH_MEM_OP, By::Kind)),
    ("cuGraphExecChildGraphNodeSetParams", |p| set_in(p, Kind::GRAPH, By::Kind)),
    ("cuGraphExecNodeSetParams", |p| {
        let kind = any_of(p, CHANGEABLE);
        set_in(p, kind, By::Any);
    }),
    ("cuGraphKernelNodeGetParams", |p| get_kernel(p, By::Old)),
    ("cuGraphKernelNodeGetParams_v2", |p| get_kernel(p, By::Kind)),
    ("cuGraphMemcpyNodeGetParams", cuGraphMemcpyNodeGetParams),
    ("cuGraphMemsetNodeGetParams", cuGraphMemsetNodeGetParams),
    ("cuGraphBatchMemOpNodeGetParams", cuGraphBatchMemOpNodeGetParams),
    ("cuGraphEventRecordNodeGetEvent", |p| get_event(p, Kind::EVENT_RECORD)),
    ("cuGraphEventWaitNodeGetEvent", |p| get_event(p, Kind::WAIT_EVENT)),
    ("cuGraphChildGraphNodeGetGraph", cuGraphChildGraphNodeGetGraph),
    ("cuGraphNodeGetType", cuGraphNodeGetType),
    ("cuGraphNodeGetContainingGraph", cuGraphNodeGetContainingGraph),
];

use CUgraphNodeType as Kind;

const KINDS: &[Kind] = &[
    Kind::KERNEL,
    Kind::MEMCPY,
    Kind::MEMSET,
    Kind::BATCH_MEM_OP,
    Kind::EMPTY,
    Kind::EVENT_RECORD,
    Kind::WAIT_EVENT,
];
/// Those that one function changes for all kinds.
const CHANGEABLE: &[Kind] = &[Kind::KERNEL, Kind::MEMCPY, Kind::MEMSET, Kind::BATCH_MEM_OP];

/// Which of the functions that do the same is called.
#[derive(Clone, Copy, PartialEq)]
enum By {
    Kind,
    /// As CUDA 11 has it.
    Old,
    /// For nodes of all kinds.
    Any,
    AnyWithEdges,
    Newest,
}

fn any_of(p: &mut Program, kinds: &[Kind]) -> Kind {
    kinds[p.within(0, kinds.len() as u64 - 1) as usize]
}

fn add_any(p: &mut Program, by: By) {
    if p.once_in(8) {
        return add_child(p, by);
    }
    let kind = any_of(p, KINDS);
    add(p, kind, by);
}

fn set_any(p: &mut Program, by: By) {
    let kind = any_of(p, CHANGEABLE);
    set(p, kind, by);
}

/// `CUDA_BATCH_MEM_OP_NODE_PARAMS`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Operations {
    ctx: CUcontext,
    count: u32,
    list: *mut CUstreamBatchMemOpParams,
    flags: u32,
}

/// What a node does.
pub(crate) enum Work {
    Empty,
    Kernel(Box<Launch>),
    Fill(CUDA_MEMSET_NODE_PARAMS),
    Copy(Box<CUDA_MEMCPY3D>),
    Record(CUevent, u64),
    Await(CUevent, u64),
    Operations(Vec<CUstreamBatchMemOpParams>),
    Child(CUgraph, u64),
}

impl Work {
    fn draw(p: &mut Program, kind: Kind) -> Work {
        match kind {
            Kind::KERNEL => Work::Kernel(Box::new(Launch::draw(p, true))),
            Kind::MEMSET => Work::Fill(draw_fill(p)),
            Kind::MEMCPY => Work::Copy(Box::new(draw_copy(p))),
            Kind::BATCH_MEM_OP => Work::Operations(draw_operations(p)),
            Kind::EVENT_RECORD | Kind::WAIT_EVENT => {
                let (handle, number) = p.pick("Event");
                let of = if kind == Kind::EVENT_RECORD { Work::Record } else { Work::Await };
                of(CUevent(handle), number)
            }
            Kind::GRAPH => {
                let (handle, number) = p.plain_graph();
                Work::Child(CUgraph(handle), number)
            }
            _ => Work::Empty,
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        match self {
            Work::Empty => Kind::EMPTY,
            Work::Kernel(_) => Kind::KERNEL,
            Work::Fill(_) => Kind::MEMSET,
            Work::Copy(_) => Kind::MEMCPY,
            Work::Record(..) => Kind::EVENT_RECORD,
            Work::Await(..) => Kind::WAIT_EVENT,
            Work::Operations(_) => Kind::BATCH_MEM_OP,
            Work::Child(..) => Kind::GRAPH,
        }
    }

    /// What has to arrive.
    fn say(&self, sent: &mut Sent) {
        match self {
            Work::Empty => {}
            Work::Kernel(launch) => {
                sent.number(launch.kernel.number);
                sent.values(&launch.grid);
                sent.values(&launch.block);
                sent.value(launch.shared);
                let parameters = launch.block_of_parameters();
                sent.value(parameters.len());
                sent.values(&parameters);
            }
            Work::Fill(fill) => {
                let row = fill.width * fill.elementSize as usize;
                sent.value(CUDA_MEMSET_NODE_PARAMS { pitch: fill.pitch.max(row), ..*fill });
            }
            Work::Copy(it) => {
                let start = |device: u64, x: usize, y: usize, z: usize, pitch: usize, height: usize| {
                    device + ((z * height + y) * pitch + x) as u64
                };
                let dst = start(it.dstDevice, it.dstXInBytes, it.dstY, it.dstZ, it.dstPitch, it.dstHeight);
                let src = start(it.srcDevice, it.srcXInBytes, it.srcY, it.srcZ, it.srcPitch, it.srcHeight);
                for (at, distances) in
                    [(dst, [it.dstPitch, it.dstHeight]), (src, [it.srcPitch, it.srcHeight])]
                {
                    sent.value(CUmemorytype::DEVICE.0);
                    sent.value(at);
                    sent.values(&distances);
                }
                sent.values(&[it.WidthInBytes, it.Height, it.Depth]);
            }
            Work::Record(_, number) | Work::Await(_, number) | Work::Child(_, number) => sent.number(*number),
            Work::Operations(list) => {
                sent.value(list.len() as u32);
                sent.value(0u32);
                sent.values(list);
            }
        }
    }

    /// The functions of the driver that add such a node, change it, and change it in an executable
    /// graph.
    fn names(&self) -> [&'static str; 3] {
        match self {
            Work::Empty => ["cuGraphAddEmptyNode", "", ""],
            Work::Kernel(_) => [
                "cuGraphAddKernelNode_v2",
                "cuGraphKernelNodeSetParams_v2",
                "cuGraphExecKernelNodeSetParams_v2",
            ],
            Work::Fill(_) => {
                ["cuGraphAddMemsetNode", "cuGraphMemsetNodeSetParams", "cuGraphExecMemsetNodeSetParams"]
            }
            Work::Copy(_) => {
                ["cuGraphAddMemcpyNode", "cuGraphMemcpyNodeSetParams", "cuGraphExecMemcpyNodeSetParams"]
            }
            Work::Record(..) => ["cuGraphAddEventRecordNode", "", ""],
            Work::Await(..) => ["cuGraphAddEventWaitNode", "", ""],
            Work::Operations(_) => [
                "cuGraphAddBatchMemOpNode",
                "cuGraphBatchMemOpNodeSetParams",
                "cuGraphExecBatchMemOpNodeSetParams",
            ],
            Work::Child(..) => ["cuGraphAddChildGraphNode", "", "cuGraphExecChildGraphNodeSetParams"],
        }
    }

    /// Calls with the description of a kernel, as CUDA 12 has it.
    fn with_kernel<T>(&self, call: impl FnOnce(&CUDA_KERNEL_NODE_PARAMS) -> T) -> T {
        let Work::Kernel(launch) = self else { unreachable!("drawn as a kernel") };
        launch.with_parameters(|kernelParams, extra| {
            call(&CUDA_KERNEL_NODE_PARAMS {
                func: launch.kernel.function,
                gridDimX: launch.grid[0],
                gridDimY: launch.grid[1],
                gridDimZ: launch.grid[2],
                blockDimX: launch.block[0],
                blockDimY: launch.block[1],
                blockDimZ: launch.block[2],
                sharedMemBytes: launch.shared,
                kernelParams,
                extra,
                kern: CUkernel::NULL,
                ctx: CUcontext::NULL,
            })
        })
    }

    fn operations(&self) -> Operations {
        let Work::Operations(list) = self else { unreachable!("drawn as operations") };
        Operations {
            ctx: CUcontext::NULL,
            count: list.len() as u32,
            list: list.as_ptr().cast_mut(),
            flags: 0,
        }
    }

    /// Calls with the structure for all kinds.
    fn with_any<T>(&self, context: CUcontext, call: impl FnOnce(&mut CUgraphNodeParams) -> T) -> T {
        let mut params =
            CUgraphNodeParams { kind: self.kind(), reserved0: [0; 3], words: [0; 29], reserved2: 0 };
        match self {
            Work::Empty => {}
            Work::Kernel(_) => {
                return self.with_kernel(|kernel| {
                    put(&mut params.words, *kernel);
                    call(&mut params)
                });
            }
            Work::Fill(fill) => put(&mut params.words, *fill),
            Work::Copy(copy) => {
                // Flags come first, then the context.
                params.words[1] = context.0 as u64;
                put(&mut params.words[2..], **copy);
            }
            Work::Record(event, _) | Work::Await(event, _) => params.words[0] = event.0 as u64,
            Work::Operations(_) => put(&mut params.words, self.operations()),
            Work::Child(graph, _) => params.words[0] = graph.0 as u64,
        }
        call(&mut params)
    }
}

fn put<T: Copy>(words: &mut [u64], value: T) {
    assert!(size_of::<T>() <= size_of_val(words), "a large structure");
    // SAFETY: there is room for it.
    unsafe { words.as_mut_ptr().cast::<T>().write_unaligned(value) };
}

fn draw_fill(p: &mut Program) -> CUDA_MEMSET_NODE_PARAMS {
    let elementSize = 1 << p.within(0, 2);
    let (width, height) = (p.within(1, 300) as usize, p.within(1, 20) as usize);
    let padding = p.within(0, 50) as usize;
    let pitch = (width + padding) * elementSize as usize;
    let dst = p.range((pitch * height) as u64);
    CUDA_MEMSET_NODE_PARAMS { dst, pitch, value: p.value(), elementSize, width, height }
}

fn draw_copy(p: &mut Program) -> CUDA_MEMCPY3D {
    let size = [p.within(1, 300), p.within(1, 12), p.within(1, 4)].map(|n| n as usize);
    let mut side = || {
        let [x, y, z] = [p.within(0, 30), p.within(0, 4), p.within(0, 3)].map(|n| n as usize);
        let (pitch, height) = (x + size[0] + p.within(0, 20) as usize, y + size[1] + p.within(0, 3) as usize);
        let device = p.range((pitch * height * (z + size[2])) as u64);
        (device, [x, y, z, pitch, height])
    };
    let ((srcDevice, [srcXInBytes, srcY, srcZ, srcPitch, srcHeight]), (dstDevice, dst)) = (side(), side());
    let [dstXInBytes, dstY, dstZ, dstPitch, dstHeight] = dst;
    CUDA_MEMCPY3D {
        srcXInBytes,
        srcY,
        srcZ,
        srcLOD: 0,
        srcMemoryType: CUmemorytype::DEVICE,
        srcHost: null_mut(),
        srcDevice,
        srcArray: CUarray::NULL,
        reserved0: null_mut(),
        srcPitch,
        srcHeight,
        dstXInBytes,
        dstY,
        dstZ,
        dstLOD: 0,
        dstMemoryType: CUmemorytype::DEVICE,
        dstHost: null_mut(),
        dstDevice,
        dstArray: CUarray::NULL,
        reserved1: null_mut(),
        dstPitch,
        dstHeight,
        WidthInBytes: size[0],
        Height: size[1],
        Depth: size[2],
    }
}

pub(crate) fn draw_operations(p: &mut Program) -> Vec<CUstreamBatchMemOpParams> {
    use CUstreamBatchMemOpType as Op;
    let count = p.within(1, 8);
    let draw = |_| {
        let ops = [Op::WAIT_VALUE_32, Op::WRITE_VALUE_32, Op::WAIT_VALUE_64, Op::WRITE_VALUE_64];
        let op = ops[p.within(0, 3) as usize];
        let waits = op == Op::WAIT_VALUE_32 || op == Op::WAIT_VALUE_64;
        let flags = p.next() & if waits { 0x4000_0003 } else { 1 };
        let value = if op == Op::WAIT_VALUE_64 || op == Op::WRITE_VALUE_64 {
            p.next() >> 1
        } else {
            u64::from(p.value::<u32>() >> 1)
        };
        CUstreamBatchMemOpParams { words: [op.0.into(), p.range(8), value, flags, 0, 0] }
    };
    (0..count).map(draw).collect()
}

fn add(p: &mut Program, kind: Kind, by: By) {
    let work = Work::draw(p, kind);
    let mut sent = Sent::new(work.names()[0]);
    let (graph, before) = p.place_of_node(&mut sent);
    work.say(&mut sent);
    let mut made = CUgraphNode::NULL;
    let (to, dependencies, count) = (&mut made, before.as_ptr(), before.len());
    let (cuda, context) = (&p.cuda, p.context);
    let edges = vec![CUgraphEdgeData::default(); count];
    // SAFETY: live handles, as many nodes as it says, and descriptions that outlive the calls.
    let result = unsafe {
        match (by, &work) {
            (By::Any, _) => work.with_any(context, |params| {
                cuda.cuGraphAddNode.expect("exported")(to, graph, dependencies, count, params)
            }),
            (By::AnyWithEdges, _) => work.with_any(context, |params| {
                let call = cuda.cuGraphAddNode_v2.expect("exported");
                call(to, graph, dependencies, edges.as_ptr(), count, params)
            }),
            (By::Newest, _) => work.with_any(context, |params| {
                let call = cuda.cuGraphAddNode_v3.expect("exported");
                call(to, graph, dependencies, edges.as_ptr(), count, params)
            }),
            (By::Old, _) => work.with_kernel(|kernel| {
                let call = cuda.cuGraphAddKernelNode.expect("exported");
                call(to, graph, dependencies, count, &old(kernel))
            }),
            (_, Work::Kernel(_)) => work.with_kernel(|kernel| {
                cuda.cuGraphAddKernelNode_v2.expect("exported")(to, graph, dependencies, count, kernel)
            }),
            (_, Work::Empty) => cuda.cuGraphAddEmptyNode.expect("exported")(to, graph, dependencies, count),
            (_, Work::Fill(fill)) => {
                let call = cuda.cuGraphAddMemsetNode.expect("exported");
                call(to, graph, dependencies, count, fill, context)
            }
            (_, Work::Copy(copy)) => {
                let call = cuda.cuGraphAddMemcpyNode.expect("exported");
                call(to, graph, dependencies, count, &**copy, context)
            }
            (_, Work::Record(event, _)) => {
                cuda.cuGraphAddEventRecordNode.expect("exported")(to, graph, dependencies, count, *event)
            }
            (_, Work::Await(event, _)) => {
                cuda.cuGraphAddEventWaitNode.expect("exported")(to, graph, dependencies, count, *event)
            }
            (_, Work::Operations(_)) => {
                let params = work.operations();
                let call = cuda.cuGraphAddBatchMemOpNode.expect("exported");
                call(to, graph, dependencies, count, (&raw const params).cast())
            }
            (_, Work::Child(child, _)) => {
                cuda.cuGraphAddChildGraphNode.expect("exported")(to, graph, dependencies, count, *child)
            }
        }
    };
    if p.check(sent, true, result, &[]) {
        p.node_made(made, graph, &work);
        if kind == Kind::GRAPH {
            p.graph_inside(made, graph);
        }
    }
}

/// Each such node makes a graph.
fn add_child(p: &mut Program, by: By) {
    if p.known("Graph").len() < HANDLES_MAX {
        add(p, Kind::GRAPH, by);
    }
}

fn set(p: &mut Program, kind: Kind, by: By) {
    let Some((node, number)) = p.node_of(kind) else { return };
    let work = Work::draw(p, kind);
    let mut sent = Sent::new(work.names()[1]);
    sent.number(number);
    work.say(&mut sent);
    let (cuda, context) = (&p.cuda, p.context);
    // SAFETY: as for adding.
    let result = unsafe {
        match (by, &work) {
            (By::Any, _) => {
                work.with_any(context, |params| cuda.cuGraphNodeSetParams.expect("exported")(node, params))
            }
            (By::Newest, _) => {
                work.with_any(context, |params| cuda.cuGraphNodeSetParams_v2.expect("exported")(node, params))
            }
            (By::Old, _) => work
                .with_kernel(|kernel| cuda.cuGraphKernelNodeSetParams.expect("exported")(node, &old(kernel))),
            (_, Work::Kernel(_)) => {
                work.with_kernel(|kernel| cuda.cuGraphKernelNodeSetParams_v2.expect("exported")(node, kernel))
            }
            (_, Work::Fill(fill)) => cuda.cuGraphMemsetNodeSetParams.expect("exported")(node, fill),
            (_, Work::Copy(copy)) => cuda.cuGraphMemcpyNodeSetParams.expect("exported")(node, &**copy),
            (_, _) => {
                let params = work.operations();
                cuda.cuGraphBatchMemOpNodeSetParams.expect("exported")(node, (&raw const params).cast())
            }
        }
    };
    p.check(sent, true, result, &[]);
}

fn set_in(p: &mut Program, kind: Kind, by: By) {
    let Some((node, number)) = p.node_of(kind) else { return };
    let work = Work::draw(p, kind);
    let mut sent = Sent::new(work.names()[2]);
    let executable = p.executable(&mut sent);
    sent.number(number);
    work.say(&mut sent);
    let (cuda, context) = (&p.cuda, p.context);
    // SAFETY: as for adding.
    let result = unsafe {
        match (by, &work) {
            (By::Any, _) => work.with_any(context, |params| {
                cuda.cuGraphExecNodeSetParams.expect("exported")(executable, node, params)
            }),
            (By::Old, _) => work.with_kernel(|kernel| {
                let call = cuda.cuGraphExecKernelNodeSetParams.expect("exported");
                call(executable, node, &old(kernel))
            }),
            (_, Work::Kernel(_)) => work.with_kernel(|kernel| {
                cuda.cuGraphExecKernelNodeSetParams_v2.expect("exported")(executable, node, kernel)
            }),
            (_, Work::Fill(fill)) => {
                cuda.cuGraphExecMemsetNodeSetParams.expect("exported")(executable, node, fill, context)
            }
            (_, Work::Copy(copy)) => {
                cuda.cuGraphExecMemcpyNodeSetParams.expect("exported")(executable, node, &**copy, context)
            }
            (_, Work::Child(child, _)) => {
                cuda.cuGraphExecChildGraphNodeSetParams.expect("exported")(executable, node, *child)
            }
            (_, _) => {
                let params = work.operations();
                let call = cuda.cuGraphExecBatchMemOpNodeSetParams.expect("exported");
                call(executable, node, (&raw const params).cast())
            }
        }
    };
    p.check(sent, true, result, &[]);
}

/// The description as CUDA 11 has it.
fn old(it: &CUDA_KERNEL_NODE_PARAMS) -> CUDA_KERNEL_NODE_PARAMS_v1 {
    CUDA_KERNEL_NODE_PARAMS_v1 {
        func: it.func,
        gridDimX: it.gridDimX,
        gridDimY: it.gridDimY,
        gridDimZ: it.gridDimZ,
        blockDimX: it.blockDimX,
        blockDimY: it.blockDimY,
        blockDimZ: it.blockDimZ,
        sharedMemBytes: it.sharedMemBytes,
        kernelParams: it.kernelParams,
        extra: it.extra,
    }
}

impl Program {
    /// Any graph that has no graph inside: copies of copies would soon be too many nodes.
    fn plain_graph(&mut self) -> (usize, u64) {
        let is_plain = |(_, number): &&(usize, u64)| !self.nested.contains(number);
        let plain: Vec<_> = self.known("Graph").iter().filter(is_plain).copied().collect();
        let draw = self.next() as usize;
        plain[draw % plain.len()]
    }

    /// Any graph that is not inside a node: those are copies, which go with it, and take no
    /// capture.
    pub(crate) fn outer_graph(&mut self) -> (usize, u64) {
        let is_outer = |(graph, _): &&(usize, u64)| !self.inside.values().any(|inner| inner.0 == *graph);
        let outer: Vec<_> = self.known("Graph").iter().filter(is_outer).copied().collect();
        let draw = self.next() as usize;
        outer[draw % outer.len()]
    }

    /// Notes the graph inside a new node.
    fn graph_inside(&mut self, node: CUgraphNode, home: CUgraph) {
        let (result, graph) = inside(self, node);
        ok(result);
        let home = self.number("Graph", home.0);
        self.nested.insert(home);
        self.inside.insert(self.number("GraphNode", node.0), graph);
        self.minted("Graph", graph.0);
    }
}

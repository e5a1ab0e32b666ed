//! What nodes do: from the wire to the driver, and back where a client asks.

#![allow(non_snake_case)] // CUDA's names

use std::ffi::c_void;

use sluice_cuda::*;
use sluice_wire::{
    ArrayPlace, CopyNode, CopySide, DevicePtr, FillNode, FunctionId, GraphExecId, GraphId, GraphNodeId,
    KernelNode, MemoryOp, MemoryOpsNode, NodeWork, Pitched, commands, product, rows,
};

use super::weights::{OPERATIONS_BYTES, Weight, weigh_node};
use super::{Place, adopt, conditional, driver_nodes, inner_graph};
use crate::checks::{self, aligned};
use crate::custom::{described, packed};
use crate::elsewhere::Range;
use crate::execute::Execute;
use crate::session::Session;

/// How a wait compares, and whether it flushes remote writes (`CUstreamWaitValue_flags`).
const WAIT_FLAGS: u64 = 0x4000_0003;
/// Whether a write goes without a barrier (`CUstreamWriteValue_flags`).
const WRITE_FLAGS: u64 = 1;
/// CUDA takes at most this many memory operations at a time.
pub(super) const OPERATIONS_MAX: usize = 256;

/// Adds a node to a graph, or to what a stream captures.
pub(crate) fn add(session: &Session, command: commands::cuGraphAddNode_v2) -> Result<(), CUresult> {
    session.vacant(command.phGraphNode)?;
    let place = session.place(&command.place)?;
    conditional::check_inside(session, place.graph, &command.work)?;
    let weight = weight_of(session, &command.work)?;
    session.graphs.check_room(Some(place.graph), weight)?;
    let mut bodies = Vec::new();
    let node = match &command.work {
        NodeWork::Conditional(work) => {
            let (node, inside) = conditional::make(session, &place, work)?;
            bodies = inside;
            node
        }
        work => make(session, &place, work)?,
    };
    session.graphs.add_weight(place.graph.0, weight);
    place.go_on(&session.table, node)?;
    let work = kept(&command.work);
    session.enter_node(place.graph, node, command.phGraphNode, work)?;
    match command.work {
        NodeWork::Child(graph) => {
            let inner = inner_graph(&session.table, node)?;
            session.graphs.note_inner(place.graph, inner);
            adopt(session, session.find(graph)?, inner)
        }
        NodeWork::Conditional(work) => conditional::enter_bodies(session, place.graph, &bodies, &work.bodies),
        _ => Ok(()),
    }
}

/// What a node adds to its graph.
fn weight_of(session: &Session, work: &NodeWork) -> Result<Weight, CUresult> {
    Ok(match work {
        NodeWork::Child(graph) => {
            let graph = session.find(*graph)?;
            if session.graphs.is_conditional(graph) {
                return Err(CUresult::NOT_SUPPORTED);
            }
            Weight::of(1, 0).around(session.graphs.weight(graph))
        }
        NodeWork::Conditional(node) => Weight::of(1 + node.bodies.len() as u64, 1),
        // The pair that a copy to or from the client is made of, and the node around it.
        NodeWork::Copy(copy) if copy.is_across() => Weight::of(3, 1),
        NodeWork::Kernel(kernel) => Weight::holding(kernel.params.len() as u64),
        // As many as there may be: they may come to be more.
        NodeWork::MemoryOps(_) => Weight::holding(OPERATIONS_BYTES),
        _ => Weight::of(1, 0),
    })
}

/// What the driver will not be able to say about a node.
fn kept(work: &NodeWork) -> Option<NodeWork> {
    match work {
        NodeWork::HostCall(_) | NodeWork::Allocation(_) | NodeWork::Free(_) | NodeWork::Conditional(_) => {
            Some(work.clone())
        }
        NodeWork::Copy(copy) if copy.is_across() => Some(work.clone()),
        _ => None,
    }
}

fn make(session: &Session, place: &Place, work: &NodeWork) -> Result<CUgraphNode, CUresult> {
    let table = &session.table;
    let (graph, before, count) = (place.graph, place.dependencies.as_ptr(), place.dependencies.len());
    let mut node = CUgraphNode::NULL;
    let to = &mut node;
    /// The function, if the driver has it.
    macro_rules! with {
        ($name:ident) => {
            table.$name.ok_or(CUresult::NOT_SUPPORTED)?
        };
    }
    // SAFETY (all): graph, nodes and objects are live, memory was checked to be the session's, and
    // what is pointed to outlives the call; the driver writes one handle to a local.
    match work {
        // An allocation is the client's own; in the graph it is only a place.
        NodeWork::Empty(()) | NodeWork::Allocation(_) | NodeWork::Free(_) => {
            let add = with!(cuGraphAddEmptyNode);
            // SAFETY: as above.
            unsafe { add(to, graph, before, count) }.ok()?;
        }
        NodeWork::Kernel(kernel) => {
            let add = with!(cuGraphAddKernelNode_v2);
            // SAFETY: as above.
            session.with_kernel(kernel, |params| unsafe { add(to, graph, before, count, params) })?;
        }
        NodeWork::Fill(fill) => {
            let add = with!(cuGraphAddMemsetNode);
            let memory = fill_range(fill);
            let (fill, context) = (session.fill(fill)?, session.context_for(&[memory])?);
            // SAFETY: as above.
            unsafe { add(to, graph, before, count, &fill, context) }.ok()?;
        }
        NodeWork::Copy(copy) => return session.add_copy(place, copy),
        NodeWork::HostCall(ticket) => {
            let add = with!(cuGraphAddHostNode);
            let host = session.host_node(Some(graph), *ticket)?;
            // SAFETY: as above.
            unsafe { add(to, graph, before, count, &host) }.ok()?;
        }
        NodeWork::Child(child) => {
            let add = with!(cuGraphAddChildGraphNode);
            // SAFETY: as above.
            unsafe { add(to, graph, before, count, session.find(*child)?) }.ok()?;
        }
        NodeWork::Conditional(_) => return Err(CUresult::INVALID_VALUE),
        NodeWork::RecordEvent(event) => {
            let add = with!(cuGraphAddEventRecordNode);
            // SAFETY: as above.
            unsafe { add(to, graph, before, count, session.find(*event)?) }.ok()?;
        }
        NodeWork::AwaitEvent(event) => {
            let add = with!(cuGraphAddEventWaitNode);
            // SAFETY: as above.
            unsafe { add(to, graph, before, count, session.find(*event)?) }.ok()?;
        }
        NodeWork::MemoryOps(ops) => {
            let add = with!(cuGraphAddBatchMemOpNode);
            let mut words = session.memory_ops(ops)?;
            let params = batch(session.current_context()?, &mut words, ops.flags);
            // SAFETY: as above.
            unsafe { add(to, graph, before, count, std::ptr::from_ref(&params).cast()) }.ok()?;
        }
    }
    Ok(node)
}

/// Changes what a node of a graph does; it stays of its kind.
pub(crate) fn set(session: &Session, command: &commands::cuGraphNodeSetParams) -> Result<(), CUresult> {
    let node = session.find(command.hNode)?;
    let home = session.graphs.home(node).ok_or(CUresult::INVALID_VALUE)?;
    same_kind(session, node, &command.work)?;
    let set = || change(session, Target::Graph(home), node, &command.work);
    match &command.work {
        NodeWork::Kernel(_) => {
            let before = weigh_node(session, node)?.bytes;
            let after = weight_of(session, &command.work)?.bytes;
            session.graphs.replace_bytes(home, (before, after), set)?;
        }
        _ => set()?,
    }
    if let Some(work) = kept(&command.work) {
        session.graphs.lock().works.insert(node.0, work);
    }
    Ok(())
}

/// Changes what a node does in an executable graph.
pub(crate) fn set_in_executable(
    session: &Session,
    command: &commands::cuGraphExecNodeSetParams,
) -> Result<(), CUresult> {
    let node = session.find(command.hNode)?;
    same_kind(session, node, &command.work)?;
    let executable = session.find::<GraphExecId>(command.hGraphExec)?;
    let set = || change(session, Target::Executable(executable), node, &command.work);
    match &command.work {
        NodeWork::Kernel(_) | NodeWork::Child(_) => {
            let bytes = weight_of(session, &command.work)?.bytes;
            session.graphs.change_bytes((executable, node), bytes, set)
        }
        _ => set(),
    }
}

fn same_kind(session: &Session, node: CUgraphNode, work: &NodeWork) -> Result<(), CUresult> {
    let kind_of = session.table.cuGraphNodeGetType.ok_or(CUresult::NOT_SUPPORTED)?;
    let mut kind = CUgraphNodeType::EMPTY;
    match session.graphs.work(node) {
        Some(work) => kind = work.kind(),
        // SAFETY: the node is live, and the driver writes to a local.
        None => unsafe { kind_of(node, &mut kind) }.ok()?,
    }
    if kind == work.kind() { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
}

/// Where a node's work is changed.
#[derive(Clone, Copy)]
enum Target {
    Graph(CUgraph),
    Executable(CUgraphExec),
}

fn change(session: &Session, target: Target, node: CUgraphNode, work: &NodeWork) -> Result<(), CUresult> {
    let table = &session.table;
    /// The function for a graph or for an executable one, with what comes before the node.
    macro_rules! apply {
        ($in_graph:ident, $in_executable:ident, $($argument:expr),+) => {
            match target {
                Target::Graph(_) => {
                    let set = table.$in_graph.ok_or(CUresult::NOT_SUPPORTED)?;
                    // SAFETY: node and objects are live, memory was checked, what is pointed to
                    // outlives the call.
                    unsafe { set(node, $($argument),+) }.ok()
                }
                Target::Executable(executable) => {
                    let set = table.$in_executable.ok_or(CUresult::NOT_SUPPORTED)?;
                    // SAFETY: as above.
                    unsafe { set(executable, node, $($argument),+) }.ok()
                }
            }
        };
    }
    match work {
        NodeWork::Kernel(kernel) => session.with_kernel(kernel, |params| {
            let set = || apply!(cuGraphKernelNodeSetParams_v2, cuGraphExecKernelNodeSetParams_v2, params);
            set().map_or_else(|error| error, |()| CUresult::SUCCESS)
        }),
        NodeWork::Fill(fill) => {
            let memory = fill_range(fill);
            let (fill, context) = (session.fill(fill)?, session.context_for(&[memory])?);
            match target {
                Target::Graph(_) => {
                    let set = table.cuGraphMemsetNodeSetParams.ok_or(CUresult::NOT_SUPPORTED)?;
                    // SAFETY: as above.
                    unsafe { set(node, &fill) }.ok()
                }
                Target::Executable(executable) => {
                    let set = table.cuGraphExecMemsetNodeSetParams.ok_or(CUresult::NOT_SUPPORTED)?;
                    // SAFETY: as above.
                    unsafe { set(executable, node, &fill, context) }.ok()
                }
            }
        }
        NodeWork::Copy(copy) => session.change_copy(target, node, copy),
        NodeWork::HostCall(ticket) => {
            let host = session.host_node(target.graph(), *ticket)?;
            apply!(cuGraphHostNodeSetParams, cuGraphExecHostNodeSetParams, &host)
        }
        NodeWork::Child(child) => {
            let Target::Executable(executable) = target else { return Err(CUresult::INVALID_VALUE) };
            let set = table.cuGraphExecChildGraphNodeSetParams.ok_or(CUresult::NOT_SUPPORTED)?;
            // SAFETY: as above.
            unsafe { set(executable, node, session.find(*child)?) }.ok()
        }
        NodeWork::RecordEvent(event) => {
            apply!(cuGraphEventRecordNodeSetEvent, cuGraphExecEventRecordNodeSetEvent, session.find(*event)?)
        }
        NodeWork::AwaitEvent(event) => {
            apply!(cuGraphEventWaitNodeSetEvent, cuGraphExecEventWaitNodeSetEvent, session.find(*event)?)
        }
        NodeWork::MemoryOps(ops) => {
            let mut words = session.memory_ops(ops)?;
            let params = batch(session.current_context()?, &mut words, ops.flags);
            let params = std::ptr::from_ref(&params).cast();
            apply!(cuGraphBatchMemOpNodeSetParams, cuGraphExecBatchMemOpNodeSetParams, params)
        }
        NodeWork::Empty(()) | NodeWork::Allocation(_) | NodeWork::Free(_) | NodeWork::Conditional(_) => {
            Err(CUresult::INVALID_VALUE)
        }
    }
}

impl Target {
    fn graph(self) -> Option<CUgraph> {
        match self {
            Target::Graph(graph) => Some(graph),
            Target::Executable(_) => None,
        }
    }
}

/// What a node does.
pub(crate) fn get(session: &Session, node: GraphNodeId) -> Result<NodeWork, CUresult> {
    let node = session.find(node)?;
    if let Some(work) = session.graphs.work(node) {
        return Ok(work);
    }
    let table = &session.table;
    let kind_of = table.cuGraphNodeGetType.ok_or(CUresult::NOT_SUPPORTED)?;
    let mut kind = CUgraphNodeType::EMPTY;
    // SAFETY: the node is live, and the driver writes to a local.
    unsafe { kind_of(node, &mut kind) }.ok()?;
    match kind {
        CUgraphNodeType::EMPTY => Ok(NodeWork::Empty(())),
        CUgraphNodeType::KERNEL => session.get_kernel(node).map(NodeWork::Kernel),
        CUgraphNodeType::MEMSET => {
            let get = table.cuGraphMemsetNodeGetParams.ok_or(CUresult::NOT_SUPPORTED)?;
            let mut fill = CUDA_MEMSET_NODE_PARAMS::default();
            // SAFETY: as above.
            unsafe { get(node, &mut fill) }.ok()?;
            Ok(NodeWork::Fill(FillNode {
                dst: DevicePtr(fill.dst),
                pitch: fill.pitch as u64,
                value: fill.value,
                element_bytes: fill.elementSize,
                width: fill.width as u64,
                height: fill.height as u64,
            }))
        }
        CUgraphNodeType::MEMCPY => session.get_copy(node).map(NodeWork::Copy),
        // The client asks for the graph itself by another call.
        CUgraphNodeType::GRAPH => Ok(NodeWork::Child(GraphId(0))),
        CUgraphNodeType::EVENT_RECORD | CUgraphNodeType::WAIT_EVENT => {
            let records = kind == CUgraphNodeType::EVENT_RECORD;
            let get = if records {
                table.cuGraphEventRecordNodeGetEvent
            } else {
                table.cuGraphEventWaitNodeGetEvent
            };
            let mut event = CUevent::NULL;
            // SAFETY: as above.
            unsafe { get.ok_or(CUresult::NOT_SUPPORTED)?(node, &mut event) }.ok()?;
            let event = session.objects.number_of(event).ok_or(CUresult::NOT_SUPPORTED)?;
            Ok(if records { NodeWork::RecordEvent(event) } else { NodeWork::AwaitEvent(event) })
        }
        CUgraphNodeType::BATCH_MEM_OP => session.get_memory_ops(node).map(NodeWork::MemoryOps),
        _ => Err(CUresult::NOT_SUPPORTED),
    }
}

/// The memory that a node fills.
fn fill_range(fill: &FillNode) -> Range {
    let row = product(&[fill.width, fill.element_bytes.into()]);
    (fill.dst.0, rows(fill.height, row, fill.pitch))
}

/// The device memory on the sides of a copy.
pub(crate) fn copy_ranges(copy: &CopyNode) -> Result<Vec<Range>, CUresult> {
    let extent = [copy.width, copy.height, copy.depth];
    let range = |side: &CopySide| match side {
        CopySide::Device(place) => Some(checks::span(place, extent).map(|bytes| (place.start.0, bytes))),
        CopySide::Host(()) | CopySide::Array(_) => None,
    };
    [&copy.dst, &copy.src].into_iter().filter_map(range).collect()
}

/// Copies the parameters that an `extra` argument names, of which there may be more than the
/// function reads, or fewer.
///
/// # Safety
/// `extra` is a list of names and values that ends with `CU_LAUNCH_PARAM_END`, as `cuLaunchKernel`
/// takes it.
unsafe fn unpack(extra: *mut *mut c_void, params: &mut [u8]) -> Result<(), CUresult> {
    /// CUDA has two names: a list that continues has no end.
    const ENTRIES_MAX: usize = 8;
    let (mut start, mut bytes) = (std::ptr::null::<u8>(), None);
    for i in 0..ENTRIES_MAX {
        // SAFETY: the list has not ended yet.
        let name = unsafe { extra.add(2 * i).read_unaligned() } as usize;
        if name == CU_LAUNCH_PARAM_END {
            break;
        }
        // SAFETY: each name but the last has a value behind it.
        let value = unsafe { extra.add(2 * i + 1).read_unaligned() };
        match name {
            CU_LAUNCH_PARAM_BUFFER_POINTER => start = value.cast(),
            CU_LAUNCH_PARAM_BUFFER_SIZE if !value.is_null() => {
                // SAFETY: the value of this name is the address of a size.
                bytes = Some(unsafe { value.cast::<usize>().read_unaligned() });
            }
            _ => return Err(CUresult::NOT_SUPPORTED),
        }
    }
    let given = bytes.ok_or(CUresult::NOT_SUPPORTED)?.min(params.len());
    if start.is_null() && given > 0 {
        return Err(CUresult::NOT_SUPPORTED);
    }
    if given > 0 {
        // SAFETY: the driver's buffer has that many bytes, and so have the parameters.
        unsafe { std::ptr::copy_nonoverlapping(start, params.as_mut_ptr(), given) };
    }
    Ok(())
}

/// The parameters of a node of memory operations (CUDA Driver API,
/// `CUDA_BATCH_MEM_OP_NODE_PARAMS`).
#[repr(C)]
struct BatchParams {
    ctx: CUcontext,
    count: u32,
    paramArray: *mut CUstreamBatchMemOpParams,
    flags: u32,
}

fn batch(ctx: CUcontext, ops: &mut [CUstreamBatchMemOpParams], flags: u32) -> BatchParams {
    BatchParams { ctx, count: ops.len() as u32, paramArray: ops.as_mut_ptr(), flags }
}

impl Session {
    pub(crate) fn current_context(&self) -> Result<CUcontext, CUresult> {
        let current = self.table.cuCtxGetCurrent.ok_or(CUresult::NOT_SUPPORTED)?;
        let mut context = CUcontext::NULL;
        // SAFETY: the driver writes one handle to a local.
        unsafe { current(&mut context) }.ok()?;
        Ok(context)
    }

    /// Describes a kernel to `call`, with its parameters in one buffer.
    fn with_kernel(
        &self,
        kernel: &KernelNode,
        call: impl FnOnce(*const CUDA_KERNEL_NODE_PARAMS) -> CUresult,
    ) -> Result<(), CUresult> {
        self.modules.check_parameters(kernel.f, kernel.params.len())?;
        checks::shape(kernel.grid, kernel.block)?;
        let size = kernel.params.len();
        let mut extra = packed(&kernel.params, &size);
        let ([gridDimX, gridDimY, gridDimZ], [blockDimX, blockDimY, blockDimZ]) = (kernel.grid, kernel.block);
        call(&CUDA_KERNEL_NODE_PARAMS {
            func: self.find(kernel.f)?,
            gridDimX,
            gridDimY,
            gridDimZ,
            blockDimX,
            blockDimY,
            blockDimZ,
            sharedMemBytes: kernel.shared_bytes,
            kernelParams: std::ptr::null_mut(),
            extra: extra.as_mut_ptr(),
            kern: CUkernel::NULL,
            ctx: CUcontext::NULL,
        })
        .ok()
    }

    fn get_kernel(&self, node: CUgraphNode) -> Result<KernelNode, CUresult> {
        let get = self.table.cuGraphKernelNodeGetParams_v2.ok_or(CUresult::NOT_SUPPORTED)?;
        let mut of = std::mem::MaybeUninit::<CUDA_KERNEL_NODE_PARAMS>::zeroed();
        // SAFETY: the node is live, and the driver fills a local, for which zeros are valid too.
        let of = unsafe {
            get(node, of.as_mut_ptr()).ok()?;
            of.assume_init()
        };
        let f: FunctionId = self.objects.number_of(of.func).ok_or(CUresult::NOT_SUPPORTED)?;
        let layout = crate::modules::parameters(&self.table, of.func)?;
        let bytes = layout.iter().map(|p| p.offset.saturating_add(p.size) as usize).max().unwrap_or(0);
        let mut params = vec![0; bytes];
        if of.kernelParams.is_null() && !of.extra.is_null() {
            // SAFETY: the driver's own list, which the node keeps.
            unsafe { unpack(of.extra, &mut params)? };
        } else if of.kernelParams.is_null() && !layout.is_empty() {
            return Err(CUresult::NOT_SUPPORTED);
        }
        let values = if of.kernelParams.is_null() { &[][..] } else { &layout };
        for (index, parameter) in values.iter().enumerate() {
            let place = &mut params[parameter.offset as usize..][..parameter.size as usize];
            // SAFETY: the driver points to as many values as the function has, each of its
            // parameter's size.
            unsafe {
                let value = *of.kernelParams.add(index);
                std::ptr::copy_nonoverlapping(value.cast::<u8>(), place.as_mut_ptr(), place.len());
            }
        }
        Ok(KernelNode {
            f,
            grid: [of.gridDimX, of.gridDimY, of.gridDimZ],
            block: [of.blockDimX, of.blockDimY, of.blockDimZ],
            shared_bytes: of.sharedMemBytes,
            params,
        })
    }

    fn fill(&self, fill: &FillNode) -> Result<CUDA_MEMSET_NODE_PARAMS, CUresult> {
        checks::one_of(fill.element_bytes, &[1, 2, 4])?;
        if fill.width == 0 || fill.height == 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        let row = product(&[fill.width, fill.element_bytes.into()]);
        let dst = aligned(fill.dst, fill.element_bytes.into())?;
        Ok(CUDA_MEMSET_NODE_PARAMS {
            dst: self.range(dst, fill_range(fill).1)?,
            pitch: fill.pitch.max(row) as usize,
            value: fill.value,
            elementSize: fill.element_bytes,
            width: fill.width as usize,
            height: fill.height as usize,
        })
    }

    fn memory_ops(&self, node: &MemoryOpsNode) -> Result<Vec<CUstreamBatchMemOpParams>, CUresult> {
        checks::bits(node.flags.into(), 0)?;
        if node.ops.is_empty() || node.ops.len() > OPERATIONS_MAX {
            return Err(CUresult::INVALID_VALUE);
        }
        let words = |op: &MemoryOp| {
            use CUstreamBatchMemOpType as Kind;
            let known =
                [Kind::WAIT_VALUE_32, Kind::WRITE_VALUE_32, Kind::WAIT_VALUE_64, Kind::WRITE_VALUE_64];
            if !known.contains(&op.kind) {
                return Err(CUresult::NOT_SUPPORTED);
            }
            let is_wait = [Kind::WAIT_VALUE_32, Kind::WAIT_VALUE_64].contains(&op.kind);
            checks::bits(op.flags.into(), if is_wait { WAIT_FLAGS } else { WRITE_FLAGS })?;
            let address = self.range(aligned(op.address, op.width())?, op.width())?;
            let words = [op.kind.0.into(), address, op.value, op.flags.into(), 0, 0];
            Ok(CUstreamBatchMemOpParams { words })
        };
        node.ops.iter().map(words).collect()
    }

    fn get_memory_ops(&self, node: CUgraphNode) -> Result<MemoryOpsNode, CUresult> {
        let get = self.table.cuGraphBatchMemOpNodeGetParams.ok_or(CUresult::NOT_SUPPORTED)?;
        let mut params = batch(CUcontext::NULL, &mut [], 0);
        // SAFETY: the node is live, and the driver fills a local of its own structure; the
        // operations stay the driver's until the node changes.
        let ops = unsafe {
            get(node, std::ptr::from_mut(&mut params).cast()).ok()?;
            super::driver_list(params.paramArray.cast_const(), params.count as usize)
        };
        let op = |op: &CUstreamBatchMemOpParams| {
            let [kind, address, value, flags, ..] = op.words;
            let kind = CUstreamBatchMemOpType(kind as u32);
            MemoryOp { kind, address: DevicePtr(address), value, flags: flags as u32 }
        };
        Ok(MemoryOpsNode { ops: ops.iter().map(op).collect(), flags: params.flags })
    }

    fn add_copy(&self, place: &Place, copy: &CopyNode) -> Result<CUgraphNode, CUresult> {
        let (before, count) = (place.dependencies.as_ptr(), place.dependencies.len());
        let mut node = CUgraphNode::NULL;
        if let (CopySide::Host(()), CopySide::Host(())) = (&copy.dst, &copy.src) {
            let add = self.table.cuGraphAddHostNode.ok_or(CUresult::NOT_SUPPORTED)?;
            let host = self.host_node(Some(place.graph), copy.ticket)?;
            // SAFETY: graph and nodes are live, and the driver writes to a local.
            unsafe { add(&mut node, place.graph, before, count, &host) }.ok()?;
            return Ok(node);
        }
        if copy.is_across() {
            let add = self.table.cuGraphAddChildGraphNode.ok_or(CUresult::NOT_SUPPORTED)?;
            let pair = self.pair(Some(place.graph), copy)?;
            // SAFETY: as above; the driver copies the pair.
            let added = unsafe { add(&mut node, place.graph, before, count, pair) }.ok();
            self.destroy_pair(pair)?;
            return added.map(|()| node);
        }
        let add = self.table.cuGraphAddMemcpyNode.ok_or(CUresult::NOT_SUPPORTED)?;
        let context = self.context_for(&copy_ranges(copy)?)?;
        let copy = self.describe_copy(copy, std::ptr::null_mut())?;
        // SAFETY: as above; both sides are the session's memory.
        unsafe { add(&mut node, place.graph, before, count, &copy, context) }.ok()?;
        Ok(node)
    }

    fn change_copy(&self, target: Target, node: CUgraphNode, copy: &CopyNode) -> Result<(), CUresult> {
        let was = self.graphs.work(node);
        let was_across = was.is_some();
        // A copy that starts or stops being the client's would be another kind of node to the
        // driver.
        if was_across != copy.is_across() {
            return Err(CUresult::NOT_SUPPORTED);
        }
        let context = self.context_for(&copy_ranges(copy)?)?;
        match target {
            Target::Graph(_) if !was_across => {
                let set = self.table.cuGraphMemcpyNodeSetParams.ok_or(CUresult::NOT_SUPPORTED)?;
                // SAFETY: the node is live, and both sides are the session's memory.
                unsafe { set(node, &self.describe_copy(copy, std::ptr::null_mut())?) }.ok()
            }
            Target::Executable(executable) if !was_across => {
                let set = self.table.cuGraphExecMemcpyNodeSetParams.ok_or(CUresult::NOT_SUPPORTED)?;
                // SAFETY: as above.
                unsafe { set(executable, node, &self.describe_copy(copy, std::ptr::null_mut())?, context) }
                    .ok()
            }
            Target::Executable(executable) => {
                let set = self.table.cuGraphExecChildGraphNodeSetParams.ok_or(CUresult::NOT_SUPPORTED)?;
                let pair = self.pair(None, copy)?;
                // SAFETY: as above; the driver takes over what the pair's nodes do.
                let changed = unsafe { set(executable, node, pair) }.ok();
                self.destroy_pair(pair)?;
                changed
            }
            Target::Graph(graph) => {
                let inner = inner_graph(&self.table, node)?;
                self.change_pair(graph, inner, copy)
            }
        }
    }

    /// Gives the two nodes of a copy in a graph other parameters.
    fn change_pair(&self, graph: CUgraph, inner: CUgraph, copy: &CopyNode) -> Result<(), CUresult> {
        let set_copy = self.table.cuGraphMemcpyNodeSetParams.ok_or(CUresult::NOT_SUPPORTED)?;
        let set_host = self.table.cuGraphHostNodeSetParams.ok_or(CUresult::NOT_SUPPORTED)?;
        let get_copy = self.table.cuGraphMemcpyNodeGetParams.ok_or(CUresult::NOT_SUPPORTED)?;
        let get_host = self.table.cuGraphHostNodeGetParams.ok_or(CUresult::NOT_SUPPORTED)?;
        let kind_of = self.table.cuGraphNodeGetType.ok_or(CUresult::NOT_SUPPORTED)?;
        let pair = self.pair(Some(graph), copy)?;
        let change = || {
            for (from, to) in
                driver_nodes(&self.table, pair)?.into_iter().zip(driver_nodes(&self.table, inner)?)
            {
                let mut kind = CUgraphNodeType::EMPTY;
                // SAFETY: the nodes are live, of the same kind, since both pairs go the same way,
                // and what is read from one is written to the other.
                unsafe {
                    kind_of(from, &mut kind).ok()?;
                    if kind == CUgraphNodeType::MEMCPY {
                        let mut params = std::mem::MaybeUninit::zeroed();
                        get_copy(from, params.as_mut_ptr()).ok()?;
                        set_copy(to, params.as_ptr()).ok()?;
                    } else {
                        let mut params = CUDA_HOST_NODE_PARAMS { fn_: None, userData: std::ptr::null_mut() };
                        get_host(from, &mut params).ok()?;
                        set_host(to, &params).ok()?;
                    }
                }
            }
            Ok(())
        };
        let changed = change();
        self.destroy_pair(pair)?;
        changed
    }

    fn pair(&self, graph: Option<CUgraph>, copy: &CopyNode) -> Result<CUgraph, CUresult> {
        let bytes = copy.bytes().ok_or(CUresult::INVALID_VALUE)?;
        let to_device = matches!(copy.src, CopySide::Host(()));
        // Checked before anything is made.
        self.describe_copy(copy, std::ptr::null_mut())?;
        let context = self.context_for(&copy_ranges(copy)?)?;
        self.copy_across(graph, (copy.ticket, bytes), (to_device, context), |buffer| {
            self.describe_copy(copy, buffer)
        })
    }

    fn destroy_pair(&self, pair: CUgraph) -> Result<(), CUresult> {
        let destroy = self.table.cuGraphDestroy.ok_or(CUresult::NOT_SUPPORTED)?;
        // SAFETY: the graph was made for one call, and nobody knows it.
        unsafe { destroy(pair) }.ok()
    }

    /// A copy as the driver wants it described; a side of the client's is the buffer.
    pub(crate) fn describe_copy(
        &self,
        copy: &CopyNode,
        buffer: *mut std::ffi::c_void,
    ) -> Result<CUDA_MEMCPY3D, CUresult> {
        let extent = [copy.width, copy.height, copy.depth];
        if extent.contains(&0) {
            return Err(CUresult::INVALID_VALUE);
        }
        let side = |side: &CopySide| match side {
            CopySide::Device(place) => {
                self.range(place.start, checks::span(place, extent)?)?;
                Ok::<_, CUresult>(place.clone())
            }
            CopySide::Host(()) => {
                Ok(Pitched { start: DevicePtr(buffer as u64), pitch: copy.width, height: copy.height })
            }
            CopySide::Array(place) => {
                self.arrays.check(place, extent)?;
                Ok(Pitched { start: DevicePtr(0), pitch: 0, height: 0 })
            }
        };
        let mut params = described(&side(&copy.dst)?, &side(&copy.src)?, extent);
        if matches!(copy.dst, CopySide::Host(())) {
            params.dstMemoryType = CUmemorytype::HOST;
            params.dstHost = buffer;
        }
        if matches!(copy.src, CopySide::Host(())) {
            params.srcMemoryType = CUmemorytype::HOST;
            params.srcHost = buffer;
        }
        if let CopySide::Array(place) = &copy.dst {
            params.dstMemoryType = CUmemorytype::ARRAY;
            params.dstArray = self.find(place.array)?;
            [params.dstXInBytes, params.dstY, params.dstZ] =
                [place.x, place.y, place.z].map(|at| at as usize);
        }
        if let CopySide::Array(place) = &copy.src {
            params.srcMemoryType = CUmemorytype::ARRAY;
            params.srcArray = self.find(place.array)?;
            [params.srcXInBytes, params.srcY, params.srcZ] =
                [place.x, place.y, place.z].map(|at| at as usize);
        }
        Ok(params)
    }

    fn get_copy(&self, node: CUgraphNode) -> Result<CopyNode, CUresult> {
        let get = self.table.cuGraphMemcpyNodeGetParams.ok_or(CUresult::NOT_SUPPORTED)?;
        let mut of = std::mem::MaybeUninit::<CUDA_MEMCPY3D>::zeroed();
        // SAFETY: the node is live, and the driver fills a local, for which zeros are valid too.
        let of = unsafe {
            get(node, of.as_mut_ptr()).ok()?;
            of.assume_init()
        };
        let side = |kind, base: u64, array: CUarray, corner: [usize; 3], pitch: usize, height: usize| {
            let [x, y, z] = corner.map(|at| at as u64);
            match kind {
                CUmemorytype::DEVICE | CUmemorytype::UNIFIED => {
                    let row = z.wrapping_mul(height as u64).wrapping_add(y);
                    let start = base.wrapping_add(row.wrapping_mul(pitch as u64)).wrapping_add(x);
                    let (start, pitch, height) = (DevicePtr(start), pitch as u64, height as u64);
                    Ok(CopySide::Device(Pitched { start, pitch, height }))
                }
                CUmemorytype::ARRAY => {
                    let array = self.objects.number_of(array).ok_or(CUresult::NOT_SUPPORTED)?;
                    Ok(CopySide::Array(ArrayPlace { array, x, y, z }))
                }
                _ => Err(CUresult::NOT_SUPPORTED),
            }
        };
        let dst = side(
            of.dstMemoryType,
            of.dstDevice,
            of.dstArray,
            [of.dstXInBytes, of.dstY, of.dstZ],
            of.dstPitch,
            of.dstHeight,
        )?;
        let src = side(
            of.srcMemoryType,
            of.srcDevice,
            of.srcArray,
            [of.srcXInBytes, of.srcY, of.srcZ],
            of.srcPitch,
            of.srcHeight,
        )?;
        Ok(CopyNode {
            dst,
            src,
            width: of.WidthInBytes as u64,
            height: of.Height as u64,
            depth: of.Depth as u64,
            ticket: 0,
        })
    }
}

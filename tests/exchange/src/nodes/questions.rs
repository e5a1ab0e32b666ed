//! What the driver says that nodes do.

use super::*;

/// A question about a node of a kind: the node, and the answer that has to come.
fn question(p: &mut Program, kind: Kind, name: &'static str) -> Option<(CUgraphNode, Sent, Answer)> {
    let (node, number) = p.node_of(kind)?;
    let mut sent = Sent::new(name);
    sent.number(number);
    let answer = Answer::to(name, sent.bytes(), true);
    Some((node, sent, answer))
}

pub(super) fn get_kernel(p: &mut Program, by: By) {
    let name = "cuGraphKernelNodeGetParams_v2";
    let Some((node, sent, mut answer)) = question(p, Kind::KERNEL, name) else { return };
    // SAFETY: a live node, and a place for the description.
    let (result, it) = unsafe {
        if by == By::Old {
            let mut it = std::mem::MaybeUninit::<CUDA_KERNEL_NODE_PARAMS_v1>::zeroed();
            let result = p.cuda.cuGraphKernelNodeGetParams.expect("exported")(node, it.as_mut_ptr());
            (result, it.assume_init())
        } else {
            let mut it = std::mem::MaybeUninit::<CUDA_KERNEL_NODE_PARAMS>::zeroed();
            let result = p.cuda.cuGraphKernelNodeGetParams_v2.expect("exported")(node, it.as_mut_ptr());
            (result, old(&it.assume_init()))
        }
    };
    if !p.check(sent, true, result, &[]) {
        return;
    }
    let number = answer.below(p.known("Function").len()) as u64;
    assert_eq!(p.number("Function", it.func.0), number, "{name}: the function");
    let said =
        [it.gridDimX, it.gridDimY, it.gridDimZ, it.blockDimX, it.blockDimY, it.blockDimZ, it.sharedMemBytes];
    assert_eq!(said, answer.numbers(), "{name}");
    let kernel = p.kernels.iter().find(|kernel| kernel.number == number).expect("all are kernels of ours");
    for (index, &(_, size)) in kernel.places.iter().enumerate() {
        // SAFETY: as many pointers as the kernel has parameters, each to as many bytes.
        let value = unsafe { std::slice::from_raw_parts((*it.kernelParams.add(index)).cast::<u8>(), size) };
        assert_eq!(value, answer.bytes(size), "{name}: parameter {index}");
    }
}

pub(super) fn cuGraphMemsetNodeGetParams(p: &mut Program) {
    let Some((node, sent, _)) = question(p, Kind::MEMSET, "cuGraphMemsetNodeGetParams") else { return };
    let mut it = CUDA_MEMSET_NODE_PARAMS::default();
    // SAFETY: a live node, and a place.
    let result = unsafe { p.cuda.cuGraphMemsetNodeGetParams.expect("exported")(node, &mut it) };
    p.check(sent, true, result, &[bytes_of(&it)]);
}

pub(super) fn cuGraphMemcpyNodeGetParams(p: &mut Program) {
    let name = "cuGraphMemcpyNodeGetParams";
    let Some((node, sent, mut answer)) = question(p, Kind::MEMCPY, name) else { return };
    let mut it = std::mem::MaybeUninit::<CUDA_MEMCPY3D>::zeroed();
    // SAFETY: a live node, and a place, for which zeros are a value.
    let (result, it) = unsafe {
        let result = p.cuda.cuGraphMemcpyNodeGetParams.expect("exported")(node, it.as_mut_ptr());
        (result, it.assume_init())
    };
    if !p.check(sent, true, result, &[]) {
        return;
    }
    let said = answer.copy();
    let mut expected = Sent::new(name);
    Work::Copy(Box::new(said)).say(&mut expected);
    let mut got = Sent::new(name);
    Work::Copy(Box::new(it)).say(&mut got);
    assert_eq!(got.bytes(), expected.bytes(), "{name}");
}

pub(super) fn cuGraphBatchMemOpNodeGetParams(p: &mut Program) {
    let name = "cuGraphBatchMemOpNodeGetParams";
    let Some((node, sent, mut answer)) = question(p, Kind::BATCH_MEM_OP, name) else { return };
    let mut it = Operations { ctx: CUcontext::NULL, count: 0, list: null_mut(), flags: 0 };
    let to: *mut c_void = (&raw mut it).cast();
    // SAFETY: a live node, and a place.
    let result = unsafe { p.cuda.cuGraphBatchMemOpNodeGetParams.expect("exported")(node, to) };
    if !p.check(sent, true, result, &[]) {
        return;
    }
    let Drawn { flags, words } = answer.operations();
    // SAFETY: the driver's list, until the node changes.
    let list = unsafe { std::slice::from_raw_parts(it.list, it.count as usize) };
    let got: Vec<[u64; 6]> = list.iter().map(|operation| operation.words).collect();
    assert_eq!((it.flags, got), (flags, words), "{name}");
}

pub(super) fn get_event(p: &mut Program, kind: Kind) {
    let records = kind == Kind::EVENT_RECORD;
    let name = if records { "cuGraphEventRecordNodeGetEvent" } else { "cuGraphEventWaitNodeGetEvent" };
    let Some((node, sent, mut answer)) = question(p, kind, name) else { return };
    let mut event = CUevent::NULL;
    // SAFETY: a live node, and a place.
    let result = unsafe {
        if records {
            p.cuda.cuGraphEventRecordNodeGetEvent.expect("exported")(node, &mut event)
        } else {
            p.cuda.cuGraphEventWaitNodeGetEvent.expect("exported")(node, &mut event)
        }
    };
    if p.check(sent, true, result, &[]) {
        let number = answer.below(p.known("Event").len()) as u64;
        assert_eq!(p.number("Event", event.0), number, "{name}");
    }
}

pub(super) fn inside(p: &Program, node: CUgraphNode) -> (CUresult, CUgraph) {
    let mut graph = CUgraph::NULL;
    // SAFETY: a live node, and a place.
    let result = unsafe { p.cuda.cuGraphChildGraphNodeGetGraph.expect("exported")(node, &mut graph) };
    (result, graph)
}

pub(super) fn cuGraphChildGraphNodeGetGraph(p: &mut Program) {
    let Some((node, number)) = p.node_of(Kind::GRAPH) else { return };
    let mut sent = Sent::new("cuGraphChildGraphNodeGetGraph");
    sent.number(number);
    let (result, graph) = inside(p, node);
    p.check(sent, false, result, &[]);
    assert_eq!(graph, p.inside[&number], "the graph inside a node");
}

/// What the driver is asked for depends on the kind, and so does whether it refuses.
pub(super) fn cuGraphNodeGetType(p: &mut Program) {
    let (node, number) = p.pick("GraphNode");
    let known = p.kinds[&number];
    let asks = match known {
        Kind::KERNEL => "cuGraphKernelNodeGetParams_v2",
        Kind::MEMCPY => "cuGraphMemcpyNodeGetParams",
        Kind::MEMSET => "cuGraphMemsetNodeGetParams",
        Kind::BATCH_MEM_OP => "cuGraphBatchMemOpNodeGetParams",
        Kind::EVENT_RECORD => "cuGraphEventRecordNodeGetEvent",
        Kind::WAIT_EVENT => "cuGraphEventWaitNodeGetEvent",
        _ => "",
    };
    let mut sent = Sent::new(asks);
    sent.number(number);
    let mut kind = Kind::EMPTY;
    // SAFETY: a live node, and a place.
    let result = unsafe { p.cuda.cuGraphNodeGetType.expect("exported")(CUgraphNode(node), &mut kind) };
    if asks.is_empty() {
        ok(result);
    } else if !p.check(sent, true, result, &[]) {
        return;
    }
    assert_eq!(kind, known, "the kind of a node");
}

pub(super) fn cuGraphNodeGetContainingGraph(p: &mut Program) {
    let (node, number) = p.pick("GraphNode");
    let mut graph = CUgraph::NULL;
    // SAFETY: a live node, and a place.
    ok(unsafe { p.cuda.cuGraphNodeGetContainingGraph.expect("exported")(CUgraphNode(node), &mut graph) });
    assert_eq!(graph, p.homes[&number], "the graph that a node is in");
}

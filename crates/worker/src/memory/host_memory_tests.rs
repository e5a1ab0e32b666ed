//! A client that makes its worker keep as much as it can, in each way that there is.

use sluice_cuda::{CUresult, CUstreamCaptureMode};
use sluice_wire::{
    Command, CopyNode, CopySide, DevicePtr, Encode, FunctionId, GraphExecId, GraphId, GraphNodeId,
    GraphPlace, ImageHash, KernelNode, ModuleId, NodePlace, NodeWork, Pitched, StreamId, commands, decode,
};

use crate::malformed::stage::{RESERVATION, Stage};
use crate::memory::chunks::CHUNK;
use crate::session::execute::Refusal;

const MIB: usize = 1 << 20;
const LIMIT: usize = 16 * MIB;
/// Bytes of the kernel's parameters.
const PARAMETERS: usize = 4096;
const KERNEL: &str = ".version 7.0\n.target sm_75\n.address_size 64\n\
    .visible .entry entry(.param .align 4 .b8 a[4096]) { ret; }\n";
/// The first module, and its function.
const MODULE: ModuleId = ModuleId(1 << 32);
const FUNCTION: FunctionId = FunctionId(1);
const STREAM: StreamId = StreamId(1 << 20);

/// Sends a command; what it is refused with is an error of CUDA's.
pub(crate) fn say<C: Command + Encode>(stage: &Stage, command: &C) -> Result<Vec<u8>, CUresult> {
    let mut payload = Vec::new();
    command.encode(&mut payload);
    stage.send(C::OP, &payload).map_err(|refusal| match refusal {
        Refusal::Failed(result) => result,
        other => panic!("{other}"),
    })
}

/// How often something can be done before there is no room for it.
fn count(mut once: impl FnMut(u64) -> Result<(), CUresult>) -> u64 {
    let mut times = 0;
    loop {
        match once(times) {
            Ok(()) => times += 1,
            Err(error) => {
                assert_eq!(error, CUresult::OUT_OF_MEMORY, "after {times} times");
                return times;
            }
        }
    }
}

/// Loads a module of a mebibyte, unlike any with another number.
fn load(stage: &Stage, number: u64) -> Result<(), CUresult> {
    let mut text = format!("{KERNEL}// {number} ").into_bytes();
    text.resize(MIB, b'x');
    let image = ImageHash(*blake3::hash(&text).as_bytes());
    say(stage, &commands::ImageData { image, offset: 0, total: MIB as u64, bytes: &text })?;
    let module = ModuleId(MODULE.0 + number);
    let reply = say(stage, &commands::cuModuleLoadDataEx { module, image, options: Vec::new() })?;
    assert!(decode::<commands::cuModuleLoadDataExReply<'_>>(&reply).unwrap().known);
    Ok(())
}

fn unload(stage: &Stage, numbers: std::ops::Range<u64>) {
    for number in numbers {
        say(stage, &commands::cuModuleUnload { hmod: ModuleId(MODULE.0 + number) }).unwrap();
    }
}

fn add(stage: &Stage, graph: GraphId, number: u64, work: NodeWork) -> Result<(), CUresult> {
    let place = NodePlace::Graph(GraphPlace { graph, dependencies: Vec::new() });
    let node = GraphNodeId(graph.0 + 1 + number);
    say(stage, &commands::cuGraphAddNode_v2 { phGraphNode: node, place, work }).map(drop)
}

fn kernel() -> NodeWork {
    NodeWork::Kernel(KernelNode {
        f: FUNCTION,
        grid: [1, 1, 1],
        block: [32, 1, 1],
        shared_bytes: 0,
        params: vec![7; PARAMETERS],
    })
}

fn launch(stage: &Stage) -> Result<(), CUresult> {
    let command = commands::cuLaunchKernel {
        f: FUNCTION,
        grid: [1, 1, 1],
        block: [32, 1, 1],
        sharedMemBytes: 0,
        hStream: STREAM,
        params: &[7; PARAMETERS],
    };
    say(stage, &command).map(drop)
}

/// A graph of copies from the client's memory, of 2 MiB each.
fn copies(stage: &Stage, graph: GraphId) -> u64 {
    let start = DevicePtr(RESERVATION);
    let bytes = CHUNK.min(2 * MIB as u64);
    count(|number| {
        let to = CopySide::Device(Pitched { start, pitch: bytes, height: 1 });
        let (src, ticket) = (CopySide::Host(()), graph.0 + number);
        let copy = CopyNode { dst: to, src, width: bytes, height: 1, depth: 1, ticket };
        add(stage, graph, number, NodeWork::Copy(copy))
    })
}

#[test]
fn a_client_makes_its_worker_keep_what_it_may_and_no_more() {
    let stage = Stage::with_host_memory(LIMIT as u64);
    let graph = |number: u64| GraphId(number << 24);
    let create = |graph| say(&stage, &commands::cuGraphCreate { phGraph: graph, flags: 0 }).unwrap();
    let destroy = |graph| say(&stage, &commands::cuGraphDestroy { hGraph: graph }).unwrap();
    say(&stage, &commands::cuStreamCreateWithPriority { phStream: STREAM, flags: 1, priority: 0 }).unwrap();
    say(
        &stage,
        &commands::MemoryCommit {
            address: DevicePtr(RESERVATION),
            bytes: CHUNK,
            on_host: false,
            by_all: false,
        },
    )
    .unwrap();

    // Modules: each counts while it is loaded, and one image beside them while it is being loaded.
    let most = (LIMIT / MIB) as u64;
    let loaded = count(|number| load(&stage, number));
    assert!((most - 3..most).contains(&loaded), "{loaded} modules");
    assert_eq!(
        load(&stage, loaded),
        Err(CUresult::OUT_OF_MEMORY),
        "the session goes on, and there is no room"
    );
    unload(&stage, loaded - 1..loaded);
    load(&stage, loaded).unwrap();
    unload(&stage, loaded..loaded + 1);
    unload(&stage, 1..loaded - 1);
    say(&stage, &commands::cuModuleGetFunction { hfunc: FUNCTION, hmod: MODULE, name: c"entry" }).unwrap();

    // Nodes with parameters, beside the module and the image that is kept of it.
    create(graph(1));
    let nodes = count(|number| add(&stage, graph(1), number, kernel()));
    let each = LIMIT as u64 / (nodes + 1);
    assert!((PARAMETERS as u64..2 * PARAMETERS as u64).contains(&each), "{nodes} nodes");
    let executable = |number| commands::cuGraphInstantiateWithFlags {
        phGraphExec: GraphExecId(number),
        hGraph: graph(1),
        flags: 0,
    };
    assert_eq!(say(&stage, &executable(1)), Err(CUresult::OUT_OF_MEMORY));
    let clone = commands::cuGraphClone { phGraphClone: graph(2), originalGraph: graph(1) };
    assert_eq!(say(&stage, &clone), Err(CUresult::OUT_OF_MEMORY));
    say(&stage, &commands::cuGraphDestroyNode { hNode: GraphNodeId(graph(1).0 + 1) }).unwrap();
    add(&stage, graph(1), 0, kernel()).unwrap();
    destroy(graph(1));

    // The same, captured: half as many, so that there are executable graphs too.
    let mode = CUstreamCaptureMode::RELAXED;
    say(&stage, &commands::cuStreamBeginCapture_v2 { hStream: STREAM, mode }).unwrap();
    (0..nodes / 2).for_each(|_| launch(&stage).unwrap());
    say(&stage, &commands::cuStreamEndCapture { hStream: STREAM, phGraph: graph(1) }).unwrap();
    let executables = count(|number| say(&stage, &executable(number + 1)).map(drop));
    assert_eq!(executables, 1);
    say(&stage, &commands::cuGraphExecDestroy { hGraphExec: GraphExecId(1) }).unwrap();
    destroy(graph(1));

    // Memory that device code and the program use at the same time, beside the module and its
    // image.
    let place = |number: u64| DevicePtr(RESERVATION + number * CHUNK);
    let on_host = |address| {
        say(&stage, &commands::MemoryCommit { address, bytes: CHUNK, on_host: true, by_all: false })
    };
    let committed = count(|number| on_host(place(number + 1)).map(drop));
    assert!((most / 2 - 2..most / 2).contains(&committed), "{committed} chunks");
    for number in 0..committed {
        say(&stage, &commands::MemoryDecommit { address: place(number + 1), bytes: CHUNK }).unwrap();
    }

    // Buffers of copies in graphs, which go with their graph.
    for number in [1, 2] {
        create(graph(number));
        let made = copies(&stage, graph(number));
        assert!((most / 2 - 2..most / 2).contains(&made), "{made} copies");
        destroy(graph(number));
    }
}

//! What drivers do that are loaded, and ours do not.

use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use sluice_cuda::{
    CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END,
    CUDA_KERNEL_NODE_PARAMS, CUdeviceptr, CUfunction, CUfunction_attribute, CUgraphNode, CUmemAccessDesc,
    CUmemLocationType, CUmodule, CUresult, CUstreamCaptureMode,
};
use sluice_wire::{
    DevicePtr, FunctionId, GraphId, GraphNodeId, GraphPlace, ImageHash, KernelNode, ModuleId, NodePlace,
    NodeWork, StreamId, commands, decode,
};

use crate::malformed::stage::{RESERVATION, Stage};
use crate::memory::chunks::CHUNK;
use crate::memory::host_memory_tests::say;
use crate::session::Session;
use crate::session::device::Device;

const KERNEL: &str = ".version 7.0\n.target sm_75\n.address_size 64\n\
    .visible .entry entry(.param .align 4 .b8 a[8]) { ret; }\n\0";
const MODULE: ModuleId = ModuleId(1 << 32);
const FUNCTION: FunctionId = FunctionId(1);

/// What a node with one parameter of eight bytes says of it.
unsafe extern "C" fn values_in_extra(node: CUgraphNode, place: *mut CUDA_KERNEL_NODE_PARAMS) -> CUresult {
    let get = hostile_driver::inner().cuGraphKernelNodeGetParams_v2.unwrap();
    // SAFETY: the caller's arguments; the node has one parameter, whose value outlives the test.
    unsafe {
        let got = get(node, place);
        let values = (*place).kernelParams;
        (*place).kernelParams = std::ptr::null_mut();
        let tag = std::ptr::without_provenance_mut::<c_void>;
        let size = std::ptr::from_mut(Box::leak(Box::new(8_usize))).cast();
        let list = [
            tag(CU_LAUNCH_PARAM_BUFFER_SIZE),
            size,
            tag(CU_LAUNCH_PARAM_BUFFER_POINTER),
            *values,
            tag(CU_LAUNCH_PARAM_END),
        ];
        (*place).extra = Box::leak(Box::new(list)).as_mut_ptr();
        got
    }
}

#[test]
fn parameters_of_a_node_are_read_in_either_form() {
    let mut stage = Stage::new();
    let image = ImageHash(*blake3::hash(KERNEL.as_bytes()).as_bytes());
    let total = KERNEL.len() as u64;
    say(&stage, &commands::ImageData { image, offset: 0, total, bytes: KERNEL.as_bytes() }).unwrap();
    say(&stage, &commands::cuModuleLoadDataEx { module: MODULE, image, options: Vec::new() }).unwrap();
    say(&stage, &commands::cuModuleGetFunction { hfunc: FUNCTION, hmod: MODULE, name: c"entry" }).unwrap();
    let (graph, node) = (GraphId(1 << 24), GraphNodeId(1 << 25));
    say(&stage, &commands::cuGraphCreate { phGraph: graph, flags: 0 }).unwrap();
    let params = (1..=8).collect();
    let (grid, block) = ([2, 1, 1], [32, 1, 1]);
    let work = NodeWork::Kernel(KernelNode { f: FUNCTION, grid, block, shared_bytes: 0, params });
    let place = NodePlace::Graph(GraphPlace { graph, dependencies: Vec::new() });
    say(&stage, &commands::cuGraphAddNode_v2 { phGraphNode: node, place, work: work.clone() }).unwrap();
    let read = |stage: &Stage| {
        let reply = say(stage, &commands::cuGraphNodeGetParams { hNode: node }).unwrap();
        decode::<commands::cuGraphNodeGetParamsReply>(&reply).unwrap().work
    };
    assert_eq!(read(&stage), work);
    stage.session().table.cuGraphKernelNodeGetParams_v2 = Some(values_in_extra);
    assert_eq!(read(&stage), work);
}

static IS_LOADED: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn load_function(
    function: *mut CUfunction,
    module: CUmodule,
    name: *const c_char,
) -> CUresult {
    IS_LOADED.store(true, Relaxed);
    // SAFETY: the caller's arguments.
    unsafe { hostile_driver::inner().cuModuleGetFunction.unwrap()(function, module, name) }
}

/// As NVIDIA's driver 580 answers for a function that was enumerated and not loaded yet.
unsafe extern "C" fn attribute_of_loaded(
    value: *mut i32,
    attribute: CUfunction_attribute,
    function: CUfunction,
) -> CUresult {
    use CUfunction_attribute as A;
    let needs_code = [A::MAX_THREADS_PER_BLOCK, A::CONST_SIZE_BYTES, A::MAX_DYNAMIC_SHARED_SIZE_BYTES];
    if needs_code.contains(&attribute) && !IS_LOADED.load(Relaxed) {
        return CUresult::FUNCTION_NOT_LOADED;
    }
    // SAFETY: the caller's arguments.
    unsafe { hostile_driver::inner().cuFuncGetAttribute.unwrap()(value, attribute, function) }
}

/// Programs with cuBLAS or Triton ask for these attributes before the first launch.
#[test]
fn the_only_function_of_a_module_is_loaded_before_its_attributes_are_read() {
    let mut stage = Stage::new();
    stage.session().table.cuModuleGetFunction = Some(load_function);
    stage.session().table.cuFuncGetAttribute = Some(attribute_of_loaded);
    let image = ImageHash(*blake3::hash(KERNEL.as_bytes()).as_bytes());
    let total = KERNEL.len() as u64;
    say(&stage, &commands::ImageData { image, offset: 0, total, bytes: KERNEL.as_bytes() }).unwrap();
    let load = commands::cuModuleLoadDataEx { module: MODULE, image, options: Vec::new() };
    let reply = say(&stage, &load).unwrap();
    let reply = decode::<commands::cuModuleLoadDataExReply<'_>>(&reply).unwrap();
    let [function] = &reply.functions[..] else { panic!("one function is described: {reply:?}") };
    let described: Vec<u32> = function.info.attributes.iter().map(|(attribute, _)| attribute.0).collect();
    assert!((0..=9).all(|attribute| described.contains(&attribute)), "{described:?}");
}

/// A device that the next driver has not, on which access to memory is refused.
const APART: i32 = 1;

unsafe extern "C" fn refuse_apart(
    address: CUdeviceptr,
    size: usize,
    wanted: *const CUmemAccessDesc,
    count: usize,
) -> CUresult {
    // SAFETY: as whoever calls a driver promises.
    unsafe {
        if (*wanted).location.kind == CUmemLocationType::DEVICE && (*wanted).location.id == APART {
            return CUresult::INVALID_DEVICE;
        }
        hostile_driver::table().cuMemSetAccess.unwrap()(address, size, wanted, count)
    }
}

/// Two devices that do not reach each other's memory, nor one of them the host's at an address of
/// the program's choice.
#[test]
fn memory_for_all_gpus_is_one_gpus_where_there_is_no_way_to_it() {
    let mut stage = Stage::new();
    let commit = |number: u64, by_all| commands::MemoryCommit {
        address: DevicePtr(RESERVATION + number * CHUNK),
        bytes: CHUNK,
        on_host: false,
        by_all,
    };
    let reached = |session: &Session, number: u64| {
        [0, 1].map(|gpu| session.memory.is_reached((RESERVATION + number * CHUNK, CHUNK), gpu))
    };
    let first = &stage.session().devices[0];
    // Its own gate and streams are never asked.
    let second = Device {
        ordinal: first.ordinal,
        context: first.context,
        memory: first.memory.load(std::sync::atomic::Ordering::Relaxed).into(),
        gate: Arc::clone(&first.gate),
        streams: Arc::clone(&first.streams),
        launch_times: None,
        handle_types: first.handle_types,
    };
    stage.session().devices.push(second);
    say(&stage, &commit(0, true)).unwrap();
    say(&stage, &commit(1, false)).unwrap();
    assert_eq!([0, 1].map(|number| reached(stage.session(), number)), [[true, true], [true, false]]);
    stage.session().devices[1].ordinal = APART;
    stage.session().table.cuMemSetAccess = Some(refuse_apart);
    say(&stage, &commit(2, true)).unwrap();
    assert_eq!(reached(stage.session(), 2), [true, false]);
    assert_eq!(say(&stage, &commit(2, true)).map(drop), Err(CUresult::INVALID_VALUE), "it is taken");
    say(&stage, &commands::MemoryDecommit { address: DevicePtr(RESERVATION), bytes: 3 * CHUNK }).unwrap();
    stage.session().devices.pop();
}

#[test]
fn a_capture_takes_a_fill_of_memory_that_was_not_checked() {
    const STREAM: StreamId = StreamId(1 << 20);
    const GRAPH: GraphId = GraphId(1 << 24);
    let mut stage = Stage::new();
    let address = DevicePtr(RESERVATION);
    say(&stage, &commands::MemoryCommit { address, bytes: CHUNK, on_host: false, by_all: false }).unwrap();
    say(&stage, &commands::cuStreamCreateWithPriority { phStream: STREAM, flags: 1, priority: 0 }).unwrap();
    let fill = |stage: &Stage, element| {
        let fill =
            commands::FillCaptured { hStream: STREAM, address: RESERVATION, value: 7, element, count: 8 };
        say(stage, &fill).map(drop)
    };
    let capture = commands::cuStreamBeginCapture_v2 { hStream: STREAM, mode: CUstreamCaptureMode::RELAXED };
    stage.session().is_loaded = true;
    assert_eq!(fill(&stage, 1), Err(CUresult::INVALID_VALUE), "nothing is captured");
    say(&stage, &capture).unwrap();
    [1, 2, 4].into_iter().for_each(|element| fill(&stage, element).unwrap());
    stage.session().is_loaded = false;
    assert_eq!(fill(&stage, 1), Err(CUresult::INVALID_VALUE), "our own drivers fill memory of this process");
    say(&stage, &commands::cuStreamEndCapture { hStream: STREAM, phGraph: GRAPH }).unwrap();
    let reply = say(&stage, &commands::cuGraphGetNodes { hGraph: GRAPH }).unwrap();
    assert_eq!(decode::<commands::cuGraphGetNodesReply>(&reply).unwrap().nodes.len(), 3);
}

#[test]
fn no_more_memory_is_free_than_the_card_has() {
    let mut stage = Stage::new();
    let free = |stage: &Stage| {
        let reply = say(stage, &commands::cuMemGetInfo_v2 {}).unwrap();
        decode::<commands::cuMemGetInfo_v2Reply>(&reply).unwrap().free
    };
    let (mut on_card, mut total) = (0, 0);
    stage.driver();
    // SAFETY: a context is current, and the driver writes two sizes to locals.
    let asked = unsafe { hostile_driver::inner().cuMemGetInfo_v2.unwrap()(&mut on_card, &mut total) };
    assert!(asked.is_success());
    let held = stage.session().budget.held(0);
    assert!(held > 0, "what the client may use unasked is taken from the card, and still free to it");

    let of_lease = free(&stage);
    stage.session().is_loaded = true;
    assert_eq!(free(&stage), of_lease, "the card has more than the lease");
    stage.session().devices[0].memory = (u64::MAX / 2).into();
    assert_eq!(free(&stage), on_card as u64 + held);
    stage.session().overcommits = true;
    assert_eq!(free(&stage), u64::MAX / 2, "others leave an overcommitted card for it");
    stage.session().overcommits = false;
    stage.session().is_loaded = false;
    assert_eq!(free(&stage), u64::MAX / 2, "our own drivers have what they lend");
}

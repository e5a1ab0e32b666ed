//! What drivers do that are loaded, and ours do not.

use std::ffi::c_void;

use sluice_cuda::{
    CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END,
    CUDA_KERNEL_NODE_PARAMS, CUgraphNode, CUresult,
};
use sluice_wire::{
    FunctionId, GraphId, GraphNodeId, GraphPlace, ImageHash, KernelNode, ModuleId, NodePlace, NodeWork,
    commands, decode,
};

use crate::host_memory_tests::say;
use crate::malformed::stage::Stage;

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
    stage.session().devices[0].memory = u64::MAX / 2;
    assert_eq!(free(&stage), on_card as u64 + held);
    stage.session().is_loaded = false;
    assert_eq!(free(&stage), u64::MAX / 2, "our own drivers have what they lend");
}

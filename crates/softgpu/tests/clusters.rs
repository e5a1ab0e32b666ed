//! Clusters as a program asks for them: by a launch attribute, by the kernel, and in a graph; and
//! what is refused.

use std::ptr::{null, null_mut};

use sluice_cuda::*;

mod common;
use common::*;

/// Each block stores the size of its cluster, behind 100 times what it reads from the next block's
/// shared memory: that block's rank.
const BODY: &str = "
{
    .reg .b32 %r<6>; .reg .b64 %rd<4>;
    .shared .align 4 .b32 cell;
    mov.u32 %r1, %cluster_ctarank;
    mov.u32 %r2, %cluster_nctarank;
    st.shared.u32 [cell], %r1;
    barrier.cluster.arrive;
    barrier.cluster.wait;
    add.u32 %r1, %r1, 1;
    rem.u32 %r1, %r1, %r2;
    mov.u32 %r3, cell;
    mapa.shared::cluster.u32 %r3, %r3, %r1;
    ld.shared::cluster.u32 %r4, [%r3];
    mad.lo.u32 %r4, %r4, 100, %r2;
    ld.param.u64 %rd1, [x];
    mov.u32 %r5, %ctaid.x;
    mad.wide.u32 %rd1, %r5, 4, %rd1;
    st.global.u32 [%rd1], %r4;
    barrier.cluster.arrive;
    barrier.cluster.wait;
    ret;
}";

const NEXT_OF_TWO: [u32; 4] = [102, 2, 102, 2];
const ALONE: [u32; 4] = [1; 4];

fn kernels() -> CUmodule {
    let entry =
        |name: &str, directives: &str| format!(".visible .entry {name}(.param .u64 x) {directives} {BODY}\n");
    module(
        &[
            entry("plain", ""),
            entry("pairs", ".reqnctapercluster 2, 1, 1"),
            entry("explicit", ".explicitcluster"),
            entry("small", ".explicitcluster .maxclusterrank 2"),
        ]
        .concat(),
    )
}

fn attribute(cluster: [u32; 3]) -> CUlaunchAttribute {
    let mut value = CUlaunchAttributeValue::default();
    value.words[..3].copy_from_slice(&cluster);
    CUlaunchAttribute { id: CUlaunchAttributeID::CLUSTER_DIMENSION, value, ..Default::default() }
}

fn config(attributes: &mut [CUlaunchAttribute]) -> CUlaunchConfig {
    CUlaunchConfig {
        gridDimX: 4,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 1,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        hStream: CUstream::NULL,
        attrs: attributes.as_mut_ptr(),
        numAttrs: attributes.len() as u32,
    }
}

/// What four blocks of a kernel store, or why the launch is refused.
fn run(name: &str, cluster: Option<[u32; 3]>) -> Result<Vec<u32>, CUresult> {
    let mut x = allocate(16);
    let mut attributes: Vec<CUlaunchAttribute> = cluster.map(attribute).into_iter().collect();
    let config = config(&mut attributes);
    let f = function(kernels(), name);
    match result!(cuLaunchKernelEx(&config, f, [arg(&mut x)].as_mut_ptr(), null_mut())) {
        CUresult::SUCCESS => Ok(read(x, 4)),
        refused => Err(refused),
    }
}

#[test]
fn blocks_of_a_cluster_share_their_memory() {
    let _context = Context::new(0);
    assert_eq!(run("plain", None).unwrap(), ALONE);
    assert_eq!(run("plain", Some([1, 1, 1])).unwrap(), ALONE);
    assert_eq!(run("plain", Some([2, 1, 1])).unwrap(), NEXT_OF_TWO);
    assert_eq!(run("plain", Some([4, 1, 1])).unwrap(), [104, 204, 304, 4]);
    assert_eq!(run("pairs", None).unwrap(), NEXT_OF_TWO, "as the kernel requires");
    assert_eq!(run("pairs", Some([2, 1, 1])).unwrap(), NEXT_OF_TWO);
    assert_eq!(run("explicit", Some([2, 1, 1])).unwrap(), NEXT_OF_TWO);
    assert_eq!(run("small", Some([2, 1, 1])).unwrap(), NEXT_OF_TWO);
}

#[test]
fn clusters_that_do_not_suit_a_kernel_or_a_grid_are_refused() {
    let _context = Context::new(0);
    assert_eq!(run("pairs", Some([4, 1, 1])), Err(CUresult::INVALID_CLUSTER_SIZE));
    assert_eq!(run("pairs", Some([1, 1, 1])), Err(CUresult::INVALID_CLUSTER_SIZE));
    assert_eq!(run("explicit", None), Err(CUresult::INVALID_CLUSTER_SIZE), "has to be stated");
    assert_eq!(run("small", Some([4, 1, 1])), Err(CUresult::INVALID_CLUSTER_SIZE));
    assert_eq!(run("plain", Some([16, 1, 1])), Err(CUresult::INVALID_CLUSTER_SIZE), "not portable");
    assert_eq!(run("plain", Some([3, 1, 1])), Err(CUresult::INVALID_VALUE), "does not divide the grid");
}

#[test]
fn the_device_says_what_clusters_it_runs() {
    let _context = Context::new(0);
    let mut supported = 0;
    ok!(cuDeviceGetAttribute(&mut supported, CUdevice_attribute::CLUSTER_LAUNCH, 0));
    assert_eq!(supported, 1);
    let module = kernels();
    let mut attributes = [attribute([2, 1, 1])];
    let config = config(&mut attributes);
    let (mut size, mut count) = (0, 0);
    ok!(cuOccupancyMaxPotentialClusterSize(&mut size, function(module, "plain"), &config));
    assert_eq!(size, 8);
    ok!(cuOccupancyMaxPotentialClusterSize(&mut size, function(module, "small"), &config));
    assert_eq!(size, 2);
    ok!(cuOccupancyMaxActiveClusters(&mut count, function(module, "plain"), &config));
    assert!(count > 0);
    let mut width = 0;
    ok!(cuFuncGetAttribute(
        &mut width,
        CUfunction_attribute::REQUIRED_CLUSTER_WIDTH,
        function(module, "pairs")
    ));
    assert_eq!(width, 2);
}

#[test]
fn a_node_of_a_graph_keeps_its_clusters() {
    let _context = Context::new(0);
    let f = function(kernels(), "plain");
    let (mut x, mut other) = (allocate(16), allocate(16));
    let (mut graph, mut node, mut exec) = (CUgraph::NULL, CUgraphNode::NULL, CUgraphExec::NULL);
    ok!(cuGraphCreate(&mut graph, 0));
    let mut arguments = [arg(&mut x)];
    let mut params = CUDA_KERNEL_NODE_PARAMS {
        func: f,
        gridDimX: 4,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 1,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        kernelParams: arguments.as_mut_ptr(),
        extra: null_mut(),
        kern: CUkernel::NULL,
        ctx: CUcontext::NULL,
    };
    ok!(cuGraphAddKernelNode_v2(&mut node, graph, null(), 0, &params));
    let id = CUlaunchAttributeID::CLUSTER_DIMENSION.0;
    let [mut pairs, mut thirds] = [attribute([2, 1, 1]).value, attribute([3, 1, 1]).value];
    ok!(cuGraphKernelNodeSetAttribute(node, id, arg(&mut pairs)));
    assert_eq!(result!(cuGraphKernelNodeSetAttribute(node, id, arg(&mut thirds))), CUresult::INVALID_VALUE);
    let mut found = CUlaunchAttributeValue::default();
    ok!(cuGraphKernelNodeGetAttribute(node, id, arg(&mut found)));
    assert_eq!(found.dimension(), [2, 1, 1]);
    ok!(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    ok!(cuGraphLaunch(exec, CUstream::NULL));
    assert_eq!(read::<u32>(x, 4), NEXT_OF_TWO);
    // New parameters do not change the clusters.
    let mut arguments = [arg(&mut other)];
    params.kernelParams = arguments.as_mut_ptr();
    ok!(cuGraphExecKernelNodeSetParams_v2(exec, node, &params));
    ok!(cuGraphLaunch(exec, CUstream::NULL));
    assert_eq!(read::<u32>(other, 4), NEXT_OF_TWO);
    ok!(cuGraphExecDestroy(exec));
    ok!(cuGraphDestroy(graph));
}

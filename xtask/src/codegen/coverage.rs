//! Which functions the byte exchange shows, and what stands for the others.

use super::declaration::*;
use super::exchange::is_exchanged;

/// What shows that a function's bytes arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coverage {
    /// The byte exchange calls it.
    Exchanged,
    /// It is answered in the client; what it says came with the session or with other functions.
    InClient,
    /// Another end-to-end test calls it.
    Elsewhere(&'static str),
}

/// Functions by hand that the byte exchange calls (`tests/exchange`).
const BY_HAND: &[&str] = &[
    "cuArray3DCreate_v2",
    "cuArrayCreate_v2",
    "cuArrayDestroy",
    "cuArrayGetMemoryRequirements",
    "cuArrayGetSparseProperties",
    "cuCtxRecordEvent",
    "cuCtxSetLimit",
    "cuCtxWaitEvent",
    "cuEventCreate",
    "cuEventDestroy",
    "cuEventDestroy_v2",
    "cuFuncSetAttribute",
    "cuGraphAddBatchMemOpNode",
    "cuGraphAddChildGraphNode",
    "cuGraphAddDependencies_v2",
    "cuGraphAddEmptyNode",
    "cuGraphAddEventRecordNode",
    "cuGraphAddEventWaitNode",
    "cuGraphAddKernelNode",
    "cuGraphAddKernelNode_v2",
    "cuGraphAddMemcpyNode",
    "cuGraphAddMemsetNode",
    "cuGraphAddNode",
    "cuGraphAddNode_v2",
    "cuGraphAddNode_v3",
    "cuGraphBatchMemOpNodeGetParams",
    "cuGraphBatchMemOpNodeSetParams",
    "cuGraphChildGraphNodeGetGraph",
    "cuGraphClone",
    "cuGraphDestroy",
    "cuGraphDestroyNode",
    "cuGraphEventRecordNodeGetEvent",
    "cuGraphEventWaitNodeGetEvent",
    "cuGraphExecBatchMemOpNodeSetParams",
    "cuGraphExecChildGraphNodeSetParams",
    "cuGraphExecDestroy",
    "cuGraphExecKernelNodeSetParams",
    "cuGraphExecKernelNodeSetParams_v2",
    "cuGraphExecMemcpyNodeSetParams",
    "cuGraphExecMemsetNodeSetParams",
    "cuGraphExecNodeSetParams",
    "cuGraphExecUpdate",
    "cuGraphExecUpdate_v2",
    "cuGraphGetEdges",
    "cuGraphGetEdges_v2",
    "cuGraphGetNodes",
    "cuGraphGetRootNodes",
    "cuGraphInstantiate",
    "cuGraphInstantiateWithFlags",
    "cuGraphInstantiateWithParams",
    "cuGraphInstantiate_v2",
    "cuGraphKernelNodeGetAttribute",
    "cuGraphKernelNodeGetParams",
    "cuGraphKernelNodeGetParams_v2",
    "cuGraphKernelNodeSetAttribute",
    "cuGraphKernelNodeSetParams",
    "cuGraphKernelNodeSetParams_v2",
    "cuGraphMemcpyNodeGetParams",
    "cuGraphMemcpyNodeSetParams",
    "cuGraphMemsetNodeGetParams",
    "cuGraphMemsetNodeSetParams",
    "cuGraphNodeFindInClone",
    "cuGraphNodeGetContainingGraph",
    "cuGraphNodeGetDependencies",
    "cuGraphNodeGetDependencies_v2",
    "cuGraphNodeGetDependentNodes",
    "cuGraphNodeGetDependentNodes_v2",
    "cuGraphNodeGetType",
    "cuGraphNodeSetParams",
    "cuGraphNodeSetParams_v2",
    "cuGraphRemoveDependencies_v2",
    "cuLaunch",
    "cuLaunchCooperativeKernel",
    "cuLaunchGrid",
    "cuLaunchGridAsync",
    "cuLaunchHostFunc",
    "cuLaunchHostFunc_v2",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cuLibraryGetGlobal",
    "cuLibraryGetKernel",
    "cuLibraryLoadData",
    "cuLibraryLoadFromFile",
    "cuLibraryUnload",
    "cuMemAllocAsync",
    "cuMemAllocFromPoolAsync",
    "cuMemAllocPitch_v2",
    "cuMemAlloc_v2",
    "cuMemCreate",
    "cuMemFreeAsync",
    "cuMemFree_v2",
    "cuMemGetAllocationGranularity",
    "cuMemMap",
    "cuMemMapArrayAsync",
    "cuMemRelease",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemcpy",
    "cuMemcpy2DAsync_v2",
    "cuMemcpy2DUnaligned_v2",
    "cuMemcpy2D_v2",
    "cuMemcpy3DAsync_v2",
    "cuMemcpy3DBatchAsync",
    "cuMemcpy3DBatchAsync_v2",
    "cuMemcpy3DPeer",
    "cuMemcpy3DPeerAsync",
    "cuMemcpy3DWithAttributesAsync",
    "cuMemcpy3D_v2",
    "cuMemcpyAsync",
    "cuMemcpyAtoA_v2",
    "cuMemcpyAtoD_v2",
    "cuMemcpyAtoHAsync_v2",
    "cuMemcpyAtoH_v2",
    "cuMemcpyBatchAsync",
    "cuMemcpyBatchAsync_v2",
    "cuMemcpyDtoA_v2",
    "cuMemcpyDtoD_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyHtoAAsync_v2",
    "cuMemcpyHtoA_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyHtoD_v2",
    "cuMemcpyPeer",
    "cuMemcpyPeerAsync",
    "cuMemcpyWithAttributesAsync",
    "cuMemsetD16_v2",
    "cuMemsetD2D16_v2",
    "cuMemsetD2D32_v2",
    "cuMemsetD2D8_v2",
    "cuMemsetD32_v2",
    "cuMemsetD8_v2",
    "cuMipmappedArrayCreate",
    "cuMipmappedArrayDestroy",
    "cuMipmappedArrayGetLevel",
    "cuMipmappedArrayGetMemoryRequirements",
    "cuMipmappedArrayGetSparseProperties",
    "cuModuleGetFunction",
    "cuModuleGetGlobal_v2",
    "cuModuleGetSurfRef",
    "cuModuleGetTexRef",
    "cuModuleLoad",
    "cuModuleLoadData",
    "cuModuleLoadDataEx",
    "cuModuleUnload",
    "cuOccupancyMaxActiveClusters",
    "cuOccupancyMaxPotentialClusterSize",
    "cuStreamAddCallback",
    "cuStreamBatchMemOp",
    "cuStreamBatchMemOp_v2",
    "cuStreamBeginCaptureToGraph",
    "cuStreamBeginCapture_v2",
    "cuStreamCreate",
    "cuStreamCreateWithPriority",
    "cuStreamDestroy",
    "cuStreamDestroy_v2",
    "cuStreamEndCapture",
    "cuStreamGetAttribute",
    "cuStreamGetCaptureInfo_v2",
    "cuStreamGetCaptureInfo_v3",
    "cuStreamSetAttribute",
    "cuStreamUpdateCaptureDependencies",
    "cuStreamUpdateCaptureDependencies_v2",
    "cuSurfObjectCreate",
    "cuSurfObjectDestroy",
    "cuSurfRefGetArray",
    "cuSurfRefSetArray",
    "cuTexObjectCreate",
    "cuTexObjectDestroy",
    "cuTexRefGetArray",
    "cuTexRefGetBorderColor",
    "cuTexRefGetMipmappedArray",
    "cuTexRefSetAddress2D_v2",
    "cuTexRefSetAddress2D_v3",
    "cuTexRefSetArray",
    "cuTexRefSetMipmappedArray",
];

/// Functions answered in the client of which the byte exchange compares what they say: it follows
/// from what others have sent.
const IN_CLIENT: &[&str] = &[
    "cuFuncSetBlockShape",
    "cuFuncSetSharedSize",
    "cuParamSetSize",
    "cuParamSetf",
    "cuParamSeti",
    "cuParamSetv",
    "cuStreamGetCaptureInfo",
    "cuStreamIsCapturing",
    "cuSurfObjectGetResourceDesc",
    "cuTexObjectGetResourceDesc",
    "cuTexObjectGetResourceViewDesc",
    "cuTexObjectGetTextureDesc",
    "cuThreadExchangeStreamCaptureMode",
];

/// Functions that have no other answer than an error, which depends on what is asked: a test
/// expects each of these.
const REFUSING: &[&str] =
    &["cuCtxDisablePeerAccess", "cuCtxEnablePeerAccess", "cuCtxGetExecAffinity", "cuDeviceGetLuid"];
const REFUSING_TEST: &str = "driver functions";

/// Functions that other tests call, and why the exchange does not show them.
struct Others {
    test: &'static str,
    /// For who reads the list.
    _why: &'static str,
    functions: &'static [&'static str],
}

const fn others(test: &'static str, why: &'static str, functions: &'static [&'static str]) -> Others {
    Others { test, _why: why, functions }
}

const ELSEWHERE: &[Others] = &[
    others(
        "sharing between processes",
        "They name memory and events of other processes: what travels is a token of the node.",
        &[
            "cuMemPoolExportPointer",
            "cuMemPoolImportPointer",
            "cuMemExportToShareableHandle",
            "cuMemImportFromShareableHandle",
            "cuIpcCloseMemHandle",
            "cuIpcGetEventHandle",
            "cuIpcGetMemHandle",
            "cuIpcOpenEventHandle",
            "cuIpcOpenMemHandle",
            "cuIpcOpenMemHandle_v2",
        ],
    ),
    others(
        "green contexts",
        "What a driver says of multiprocessors decides what may be split, so that its answers cannot be drawn.",
        &[
            "cuCtxGetDevResource",
            "cuDevResourceGenerateDesc",
            "cuDevSmResourceSplit",
            "cuDevSmResourceSplitByCount",
            "cuDeviceGetDevResource",
            "cuGreenCtxCreate",
            "cuGreenCtxDestroy",
            "cuGreenCtxGetDevResource",
            "cuGreenCtxRecordEvent",
            "cuGreenCtxStreamCreate",
            "cuGreenCtxWaitEvent",
            "cuStreamGetDevResource",
        ],
    ),
    others(
        "conditional nodes",
        "The driver makes their bodies, and what runs in them is what is tested.",
        &["cuGraphConditionalHandleCreate"],
    ),
    others(
        "graphs",
        "What these nodes do is done in the client, as is what a graph keeps alive; the test asks for what it has made.",
        &[
            "cuGraphAddHostNode",
            "cuGraphAddMemAllocNode",
            "cuGraphAddMemFreeNode",
            "cuGraphDebugDotPrint",
            "cuGraphExecHostNodeSetParams",
            "cuGraphHostNodeGetParams",
            "cuGraphHostNodeSetParams",
            "cuGraphMemAllocNodeGetParams",
            "cuGraphMemFreeNodeGetParams",
            "cuGraphNodeGetParams",
            "cuGraphReleaseUserObject",
            "cuGraphRetainUserObject",
            "cuUserObjectCreate",
            "cuUserObjectRelease",
            "cuUserObjectRetain",
        ],
    ),
    others(
        "driver functions",
        "The client cuts memory into pieces of its own, and the node keeps the books of a lease: the driver sees neither the program's numbers nor its addresses.",
        &["cuMemGetInfo_v2", "cuMemHostGetDevicePointer_v2", "cuMemAllocManaged"],
    ),
    others(
        "managed variables",
        "What it finds is what cuModuleGetGlobal finds, which says that it is managed.",
        &["cuLibraryGetManaged"],
    ),
    others("sequence jax", "Containers of images, of which the driver gets one.", &["cuModuleLoadFatBinary"]),
    others(
        "driver functions",
        "The worker counts the functions first, and the driver of the exchange answers that at random.",
        &["cuModuleEnumerateFunctions", "cuLibraryEnumerateKernels", "cuLibraryGetKernelCount"],
    ),
    others(
        "driver functions",
        "It asks a function that the exchange covers for many sizes.",
        &["cuOccupancyMaxPotentialBlockSize", "cuOccupancyMaxPotentialBlockSizeWithFlags"],
    ),
    others(
        "driver functions",
        "Its parts travel as functions that the exchange covers, or as nothing.",
        &["cuCtxSynchronize_v2", "cuKernelSetAttribute"],
    ),
];

/// What is said of a function; `None` for one that is not built, or of which nothing is said.
pub(crate) fn of(function: &Function) -> Option<Coverage> {
    let name = function.name.as_str();
    let elsewhere = || ELSEWHERE.iter().find(|others| others.functions.contains(&name));
    match function.class {
        Class::Absent(_) => None,
        Class::Local if IN_CLIENT.contains(&name) => Some(Coverage::Exchanged),
        Class::Local => Some(Coverage::InClient),
        _ if is_exchanged(function) || BY_HAND.contains(&name) => Some(Coverage::Exchanged),
        _ => elsewhere().map(|others| Coverage::Elsewhere(others.test)),
    }
}

/// The test that expects the errors of a function that knows nothing else.
pub(crate) fn refuses(function: &str) -> Option<&'static str> {
    REFUSING.contains(&function).then_some(REFUSING_TEST)
}

/// The functions of the byte exchange.
pub fn exchanged() -> anyhow::Result<Vec<String>> {
    let api = super::declarations(crate::root())?;
    let names = api.functions.into_iter().filter(|f| of(f) == Some(Coverage::Exchanged)).map(|f| f.name);
    Ok(names.collect())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn built() -> Vec<Function> {
        let api = crate::codegen::declarations(crate::root()).unwrap();
        let is_absent = |f: &Function| matches!(f.class, Class::Absent(_));
        api.functions.into_iter().filter(|f| !is_absent(f)).collect()
    }

    #[test]
    fn something_is_said_of_every_function_that_is_built() {
        let silent: Vec<_> = built().into_iter().filter(|f| of(f).is_none()).map(|f| f.name).collect();
        assert!(silent.is_empty(), "neither in the byte exchange nor in the list of other tests: {silent:?}");
    }

    #[test]
    fn nothing_is_said_twice_or_of_what_is_not_there() {
        let built: HashMap<String, Function> = built().into_iter().map(|f| (f.name.clone(), f)).collect();
        let mut said: Vec<&str> = ELSEWHERE.iter().flat_map(|others| others.functions).copied().collect();
        said.extend(BY_HAND);
        for (index, name) in said.iter().enumerate() {
            assert!(!said[..index].contains(name), "{name} is in two lists");
            let function = built.get(*name).unwrap_or_else(|| panic!("{name} is not built"));
            assert!(function.class != Class::Local && !is_exchanged(function), "{name} needs no entry");
        }
    }

    #[test]
    fn what_is_answered_in_the_client_is_and_has_one_entry() {
        let local = |name: &str| built().iter().any(|f| f.name == name && f.class == Class::Local);
        assert!(IN_CLIENT.iter().chain(REFUSING).all(|name| local(name)));
        assert!(!IN_CLIENT.iter().any(|name| REFUSING.contains(name)));
    }

    #[test]
    fn errors_that_are_the_only_answer_are_expected() {
        let text = std::fs::read_to_string(crate::root().join("tests/programs/driver_functions.py")).unwrap();
        for name in REFUSING {
            assert!(text.contains(&format!(", \"{name}\"")), "{name} is not refused in the test");
        }
    }

    #[test]
    fn the_other_tests_are_there_and_call_what_is_said() {
        let read = |path: &std::path::Path| std::fs::read_to_string(path).unwrap();
        let folder = crate::root().join("tests/e2e/src");
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let files = files.chain([crate::root().join("xtask/harness/src/programs.rs")]);
        let tests: String = files.filter(|path| path.is_file()).map(|path| read(&path)).collect();
        let results = read(&crate::root().join("docs/cuda-support.results"));
        for others in ELSEWHERE {
            assert!(tests.contains(&format!("\"{}\"", others.test)), "no test {}", others.test);
            for function in others.functions {
                let row = format!("{function}\t");
                assert!(results.lines().any(|line| line.starts_with(&row)), "{function} was not called");
            }
        }
    }
}

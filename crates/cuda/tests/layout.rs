//! Our structures have the layout that the bindings of the crate `cudarc` (generated from CUDA 13's
//! headers) give them.

use cudarc::driver::sys as theirs;
use sluice_cuda as ours;

macro_rules! same_layout {
    ($($name:ident $(= $other:ident)?),* $(,)?) => {$(
        same_layout!(@one $name, $name $(, $other)?);
    )*};
    (@one $name:ident, $same:ident) => { check::<ours::$name, theirs::$same>(stringify!($name)); };
    (@one $name:ident, $same:ident, $other:ident) => { check::<ours::$name, theirs::$other>(stringify!($name)); };
}

fn check<A, B>(name: &str) {
    assert_eq!(size_of::<A>(), size_of::<B>(), "size of {name}");
    assert_eq!(align_of::<A>(), align_of::<B>(), "alignment of {name}");
}

#[test]
fn structures_have_cudas_layout() {
    same_layout! {
        CUuuid, CUdevprop, CUctxCreateParams, CUexecAffinityParam, CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUDA_MEMCPY3D_PEER,
        CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR, CUDA_ARRAY_SPARSE_PROPERTIES, CUDA_ARRAY_MEMORY_REQUIREMENTS, CUarrayMapInfo, CUlaunchAttributeValue, CUlaunchAttribute, CUlaunchConfig,
        CUmemLocation, CUmemAccessDesc, CUmemAllocationProp, CUmemPoolProps, CUmemcpyAttributes, CUipcMemHandle,
        CUipcEventHandle, CUmemPoolPtrExportData, CUDA_KERNEL_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS_v1,
        CUDA_MEMSET_NODE_PARAMS, CUDA_HOST_NODE_PARAMS, CUDA_MEM_ALLOC_NODE_PARAMS, CUDA_GRAPH_INSTANTIATE_PARAMS,
        CUgraphExecUpdateResultInfo, CUgraphEdgeData, CUgraphNodeParams, CUDA_RESOURCE_DESC, CUDA_TEXTURE_DESC,
        CUDA_RESOURCE_VIEW_DESC, CUstreamBatchMemOpParams, CUdevice, CUdeviceptr, CUstream,
        CUhostFn, CUmemGenericAllocationHandle, CUresult,
    }
    // CUDA 12 programs align it to 64 bytes, CUDA 13's to 128: assume the smaller.
    assert_eq!(size_of::<ours::CUtensorMap>(), size_of::<theirs::CUtensorMap>());
    // 13.1 took the link to a next resource from what was padding until then.
    assert_eq!(size_of::<ours::CUdevResource>(), size_of::<theirs::CUdevResource>());
}

#[test]
fn fields_are_where_cuda_has_them() {
    macro_rules! same_offsets {
        ($name:ident: $($field:ident)*) => {$(
            assert_eq!(
                std::mem::offset_of!(ours::$name, $field),
                std::mem::offset_of!(theirs::$name, $field),
                concat!(stringify!($name), ".", stringify!($field)),
            );
        )*};
    }
    same_offsets!(CUDA_MEMCPY3D: srcHost srcPitch srcHeight dstXInBytes dstLOD dstHost dstPitch WidthInBytes Depth);
    same_offsets!(CUlaunchConfig: sharedMemBytes hStream attrs numAttrs);
    same_offsets!(CUlaunchAttribute: id value);
    same_offsets!(CUmemPoolProps: location maxSize usage);
    same_offsets!(CUmemAllocationProp: location win32HandleMetaData);
    same_offsets!(CUDA_ARRAY_SPARSE_PROPERTIES: tileExtent miptailFirstLevel miptailSize flags reserved);
    same_offsets!(CUDA_ARRAY_MEMORY_REQUIREMENTS: size alignment reserved);
    same_offsets!(CUarrayMapInfo: resourceType resource subresourceType subresource memOperationType memHandleType);
    same_offsets!(CUarrayMapInfo: memHandle offset deviceBitMask flags reserved);
    same_offsets!(CUDA_TEXTURE_DESC: filterMode borderColor);
    same_offsets!(CUDA_RESOURCE_DESC: resType flags);
}

#[test]
fn result_codes_have_cudas_numbers() {
    use theirs::cudaError_enum as code;
    for (ours, theirs) in [
        (ours::CUresult::NO_BINARY_FOR_GPU, code::CUDA_ERROR_NO_BINARY_FOR_GPU),
        (ours::CUresult::LAUNCH_TIMEOUT, code::CUDA_ERROR_LAUNCH_TIMEOUT),
        (ours::CUresult::STREAM_CAPTURE_WRONG_THREAD, code::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD),
        (ours::CUresult::INVALID_RESOURCE_CONFIGURATION, code::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION),
    ] {
        assert_eq!(ours.0, theirs as i32);
        assert_eq!(ours.name().unwrap().to_str().unwrap(), format!("{theirs:?}"));
    }
}

#[test]
fn parts_of_arrays_are_where_cuda_has_them() {
    use ours::ArrayPart;
    use theirs::CUarraySparseSubresourceType as Type;
    let mut info = theirs::CUarrayMapInfo {
        resourceType: theirs::CUresourcetype::CU_RESOURCE_TYPE_ARRAY,
        resource: theirs::CUarrayMapInfo_st__bindgen_ty_1 { array: std::ptr::null_mut() },
        subresourceType: Type::CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL,
        // SAFETY: numbers, for all of which zero is a value.
        subresource: unsafe { std::mem::zeroed() },
        memOperationType: theirs::CUmemOperationType::CU_MEM_OPERATION_TYPE_MAP,
        memHandleType: theirs::CUmemHandleType::CU_MEM_HANDLE_TYPE_GENERIC,
        memHandle: theirs::CUarrayMapInfo_st__bindgen_ty_3 { memHandle: 0 },
        offset: 0,
        deviceBitMask: 1,
        flags: 0,
        reserved: [0; 2],
    };
    // SAFETY: the structures have the same layout, as the tests above say.
    let part =
        |info: &theirs::CUarrayMapInfo| unsafe { std::mem::transmute_copy::<_, ours::CUarrayMapInfo>(info) };
    info.subresource.sparseLevel = theirs::CUarrayMapInfo_st__bindgen_ty_2__bindgen_ty_1 {
        level: 1,
        layer: 2,
        offsetX: 3,
        offsetY: 4,
        offsetZ: 5,
        extentWidth: 6,
        extentHeight: 7,
        extentDepth: 8,
    };
    let level = ArrayPart::Level { level: 1, layer: 2, offset: [3, 4, 5], extent: [6, 7, 8] };
    assert_eq!(part(&info).part(), Some(level));
    info.subresourceType = Type::CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL;
    info.subresource.miptail =
        theirs::CUarrayMapInfo_st__bindgen_ty_2__bindgen_ty_2 { layer: 1, offset: 2, size: u64::MAX };
    let tail = ArrayPart::Tail { layer: 1, offset: 2, bytes: u64::MAX };
    assert_eq!(part(&info).part(), Some(tail));
    let mut mine = part(&info);
    for wanted in [level, tail] {
        mine.set_part(&wanted);
        assert_eq!(mine.part(), Some(wanted));
    }
}

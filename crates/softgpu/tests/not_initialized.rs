//! What the driver answers before `cuInit`. A process of its own: initialisation cannot be undone.

use std::ptr::null_mut;

use sluice_cuda::*;

mod common;

#[test]
fn nothing_but_facts_is_answered_before_init() {
    let mut version = 0;
    ok!(cuDriverGetVersion(&mut version));
    assert_eq!(version, sluice_softgpu::DRIVER_VERSION);
    let (mut number, mut context, mut address) = (0, CUcontext::NULL, 0);
    let early = CUresult::NOT_INITIALIZED;
    assert_eq!(result!(cuDeviceGetCount(&mut number)), early);
    assert_eq!(result!(cuCtxGetCurrent(&mut context)), early);
    assert_eq!(result!(cuMemAlloc_v2(&mut address, 16)), early);
    assert_eq!(result!(cuStreamSynchronize(CUstream::NULL)), early);
    assert_eq!(result!(cuCtxPopCurrent_v2(null_mut())), early);
    assert_eq!(result!(cuInit(1)), CUresult::INVALID_VALUE);

    common::init();
    assert_eq!(result!(cuMemAlloc_v2(&mut address, 16)), CUresult::INVALID_CONTEXT);
    assert_eq!(result!(cuCtxPopCurrent_v2(null_mut())), CUresult::INVALID_CONTEXT);
    assert_eq!(result!(cuDeviceGet(&mut number, 3)), CUresult::INVALID_DEVICE);
}

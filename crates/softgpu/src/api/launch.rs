//! Kernel launches (CUDA Driver API: Execution Control).

use std::ffi::c_void;
use std::sync::Arc;

use sluice_cuda::{
    CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END, CUfunction,
    CUlaunchAttribute, CUlaunchAttributeID, CUlaunchConfig, CUresult, CUstream,
};

use crate::base::status::{Result, Status, call, require};
use crate::device::machine::PARAMS_MAX;
use crate::device::machine::Shape;
use crate::module::function::Function;
use crate::module::launch::prepare;
use crate::module::library::function_in;
use crate::submit;
use crate::work::event::{Event, event};
use crate::work::op::Op;

/// The parameter buffer, gathered from `params` (one pointer per parameter) or from `extra` (the
/// buffer itself).
///
/// # Safety
/// Both are null or what `cuLaunchKernel` demands.
pub(super) unsafe fn gather(
    function: &Function,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result<Box<[u8]>> {
    let slots = &function.signature.params;
    let size = slots.iter().map(|&(offset, size)| offset + size).max().unwrap_or(0) as usize;
    if !extra.is_null() {
        // SAFETY: by this function's contract.
        return unsafe { gather_extra(extra, size) };
    }
    let mut buffer = vec![0u8; size].into_boxed_slice();
    if !slots.is_empty() {
        require(params)?;
    }
    for (index, &(offset, bytes)) in slots.iter().enumerate() {
        // SAFETY: one pointer per parameter by contract.
        let value = unsafe { params.add(index).read_unaligned() };
        require(value)?;
        let to = &mut buffer[offset as usize..][..bytes as usize];
        // SAFETY: it points to a value of the parameter's size by contract.
        unsafe { std::ptr::copy_nonoverlapping(value.cast::<u8>(), to.as_mut_ptr(), to.len()) };
    }
    Ok(buffer)
}

/// The buffer that `extra` names; it may be shorter or longer than the kernel's parameters.
///
/// # Safety
/// A list of names and values that ends with `CU_LAUNCH_PARAM_END`.
unsafe fn gather_extra(extra: *mut *mut c_void, size: usize) -> Result<Box<[u8]>> {
    let (mut given, mut length) = (std::ptr::null::<u8>(), None);
    // Two names exist; a list that continues has repeated them.
    for pair in 0..4 {
        // SAFETY: the list has not ended yet.
        let name = unsafe { extra.add(2 * pair).read_unaligned() } as usize;
        if name == CU_LAUNCH_PARAM_END {
            break;
        }
        // SAFETY: each name but the last is followed by a value.
        let value = unsafe { extra.add(2 * pair + 1).read_unaligned() };
        match name {
            CU_LAUNCH_PARAM_BUFFER_POINTER => given = value.cast(),
            CU_LAUNCH_PARAM_BUFFER_SIZE => {
                require(value)?;
                // SAFETY: the value of this name points to the size by contract.
                length = Some(unsafe { value.cast::<usize>().read_unaligned() });
            }
            _ => return Err(Status::INVALID_VALUE),
        }
    }
    let length = length.filter(|&length| length as u64 <= PARAMS_MAX).ok_or(Status::INVALID_VALUE)?;
    if length > 0 {
        require(given)?;
    }
    let mut buffer = vec![0u8; size].into_boxed_slice();
    let copied = length.min(size);
    if copied > 0 {
        // SAFETY: the program says that the buffer has `length` bytes.
        unsafe { std::ptr::copy_nonoverlapping(given, buffer.as_mut_ptr(), copied) };
    }
    Ok(buffer)
}

/// # Safety
/// `params` and `extra` as for [`gather`].
unsafe fn launch(
    handle: CUfunction,
    shape: Shape,
    s: CUstream,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
    completion: Option<Arc<Event>>,
) -> Result<()> {
    let target = submit::target(s)?;
    let function = function_in(handle, &target.context)?;
    if function.module.context != target.context.owner() {
        return Err(Status::INVALID_HANDLE);
    }
    // SAFETY: passed on.
    let params = unsafe { gather(&function, params, extra) }?;
    let multiprocessors = target.context.multiprocessors();
    target.submit(Op::Launch(prepare((handle, &function), shape, params, multiprocessors)?))?;
    match completion {
        Some(event) if target.stream.capture().is_some() => target.submit(Op::RecordEvent(event)),
        Some(event) => target.submit(Op::Record(event.issue_ticket())),
        None => Ok(()),
    }
}

pub(crate) unsafe extern "C" fn cuLaunchKernel(
    f: CUfunction,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    dynamic_shared: u32,
    s: CUstream,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CUresult {
    let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
    let shape = Shape { grid, block, cluster: None, dynamic_shared, cooperative: false };
    // SAFETY: passed on.
    call(|| unsafe { launch(f, shape, s, params, extra, None) })
}

pub(crate) unsafe extern "C" fn cuLaunchCooperativeKernel(
    f: CUfunction,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    dynamic_shared: u32,
    s: CUstream,
    params: *mut *mut c_void,
) -> CUresult {
    let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
    let shape = Shape { grid, block, cluster: None, dynamic_shared, cooperative: true };
    // SAFETY: passed on.
    call(|| unsafe { launch(f, shape, s, params, std::ptr::null_mut(), None) })
}

pub(crate) unsafe extern "C" fn cuLaunchKernelEx(
    config: *const CUlaunchConfig,
    f: CUfunction,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CUresult {
    call(|| {
        require(config)?;
        // SAFETY: an input structure by contract.
        let config = unsafe { config.read_unaligned() };
        let mut shape = Shape {
            grid: [config.gridDimX, config.gridDimY, config.gridDimZ],
            block: [config.blockDimX, config.blockDimY, config.blockDimZ],
            cluster: None,
            dynamic_shared: config.sharedMemBytes,
            cooperative: false,
        };
        let mut completion = None;
        if config.numAttrs > 0 {
            require(config.attrs)?;
        }
        for index in 0..config.numAttrs as usize {
            // SAFETY: an array of `numAttrs` elements by contract.
            apply(&unsafe { config.attrs.add(index).read_unaligned() }, &mut shape, &mut completion)?;
        }
        // SAFETY: passed on.
        unsafe { launch(f, shape, config.hStream, params, extra, completion) }
    })
}

/// What a launch attribute means here. Hints about caches, priorities and overlap change nothing:
/// one grid runs at a time, after everything before it. A preferred cluster size is one that a
/// device may take instead of the stated one.
fn apply(
    attribute: &CUlaunchAttribute,
    shape: &mut Shape,
    completion: &mut Option<Arc<Event>>,
) -> Result<()> {
    match attribute.id {
        CUlaunchAttributeID::IGNORE
        | CUlaunchAttributeID::ACCESS_POLICY_WINDOW
        | CUlaunchAttributeID::SYNCHRONIZATION_POLICY
        | CUlaunchAttributeID::CLUSTER_SCHEDULING_POLICY_PREFERENCE
        | CUlaunchAttributeID::PREFERRED_CLUSTER_DIMENSION
        | CUlaunchAttributeID::PROGRAMMATIC_STREAM_SERIALIZATION
        | CUlaunchAttributeID::PRIORITY
        | CUlaunchAttributeID::MEM_SYNC_DOMAIN_MAP
        | CUlaunchAttributeID::MEM_SYNC_DOMAIN
        | CUlaunchAttributeID::PREFERRED_SHARED_MEMORY_CARVEOUT => {}
        CUlaunchAttributeID::COOPERATIVE => shape.cooperative = attribute.value.number() != 0,
        CUlaunchAttributeID::CLUSTER_DIMENSION => {
            shape.cluster = Some(attribute.value.dimension().map(|blocks| blocks.max(1)));
        }
        CUlaunchAttributeID::PROGRAMMATIC_EVENT | CUlaunchAttributeID::LAUNCH_COMPLETION_EVENT => {
            *completion = Some(event(attribute.value.event())?);
        }
        id if id.name().is_some() => return Err(Status::NOT_SUPPORTED),
        _ => return Err(Status::INVALID_VALUE),
    }
    Ok(())
}

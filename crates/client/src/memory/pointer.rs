//! What an address is: answered from the client's own tables, never by asking the node.

use std::ffi::c_void;

use sluice_cuda::*;

use crate::abi::{ids, out};
use crate::host_memory::{blocks, mirror};
use crate::memory::addresses::Allocation;
use crate::memory::pool;
use crate::session;

/// What an address lies in, as far as CUDA knows.
enum PointerTarget {
    Device {
        allocation: Allocation,
        device: CUdevice,
        context: CUcontext,
        /// How other processes can have it: by `cuIpcGetMemHandle`, and by handles of these types.
        is_ipc: bool,
        handle_types: u32,
        /// The pool that it came out of; null for none.
        pool: CUmemoryPool,
    },
    Host(blocks::Block),
}

fn locate(address: u64) -> Result<Option<PointerTarget>, CUresult> {
    let session = session::get()?;
    let mapped = mirror::with_device_address(address, |it| (!it.is_managed).then_some(it.host));
    if let Some(host) = mapped.flatten() {
        return Ok(blocks::find(host).map(PointerTarget::Host));
    }
    if let Some((device, allocation)) = session.find_allocation(address) {
        let context = session.primary(device)?.context.handle;
        let pool = session.memory(device)?.pool_of(allocation.start).unwrap_or_default();
        let is_shareable = pool::is_shareable(pool);
        let handle_types = if is_shareable { CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR.0 } else { 0 };
        let is_ipc = session.device(device)?.mints_addresses;
        return Ok(Some(PointerTarget::Device { allocation, device, context, is_ipc, handle_types, pool }));
    }
    let variable = |it: &mirror::Mirror| (it.ordinal, it.device, it.bytes);
    let managed = mirror::with_device_address(address, variable);
    let of_module = |(module, start, bytes)| Some((ids::device(module)?, start, bytes));
    let variable = managed.or_else(|| session.find_global(address).and_then(of_module));
    if let Some((device, start, bytes)) = variable {
        let allocation = Allocation { start, bytes, reserved: bytes };
        let context = session.primary(device)?.context.handle;
        return Ok(Some(PointerTarget::Device {
            allocation,
            device,
            context,
            is_ipc: false,
            handle_types: 0,
            pool: CUmemoryPool::NULL,
        }));
    }
    let memory = session.virtual_memory();
    if let Some((start, mapping, physical)) = memory.find(address) {
        let (start, bytes) = memory.imported_at(address).unwrap_or((start, mapping.bytes));
        let allocation = Allocation { start, bytes, reserved: bytes };
        // Memory that a program has mapped itself belongs to no context.
        let (device, context) = (physical.prop.location.id, CUcontext::NULL);
        let handle_types = physical.prop.requestedHandleTypes.0;
        return Ok(Some(PointerTarget::Device {
            allocation,
            device,
            context,
            is_ipc: false,
            handle_types,
            pool: CUmemoryPool::NULL,
        }));
    }
    Ok(blocks::find(address).map(PointerTarget::Host))
}

/// An attribute's value, in the C type that the driver writes. What CUDA's documentation calls a
/// boolean takes the four bytes of an `unsigned int`.
enum Value {
    Word(u64),
    Int(u32),
    Bool(bool),
    P2pTokens,
}

impl Value {
    /// # Safety
    /// `to` is a place for the attribute's type.
    unsafe fn write(self, to: *mut c_void) -> Result<(), CUresult> {
        // SAFETY: the caller vouches for the place.
        unsafe {
            match self {
                Value::Word(word) => out::write(to.cast(), word),
                Value::Int(int) => out::write(to.cast(), int),
                Value::Bool(bit) => out::write(to.cast(), u32::from(bit)),
                Value::P2pTokens => Err(CUresult::NOT_SUPPORTED),
            }
        }
    }
}

fn value(place: &PointerTarget, attribute: CUpointer_attribute, address: u64) -> Result<Value, CUresult> {
    use CUpointer_attribute as A;
    let (context, device, kind) = match place {
        PointerTarget::Device { context, device, .. } => (*context, *device, CUmemorytype::DEVICE),
        PointerTarget::Host(block) => (block.context, 0, CUmemorytype::HOST),
    };
    let (start, bytes) = match place {
        PointerTarget::Device { allocation, .. } => (allocation.start, allocation.bytes),
        PointerTarget::Host(block) => (block.range.start, block.range.end - block.range.start),
    };
    let on_device = matches!(place, PointerTarget::Device { .. });
    Ok(match attribute {
        A::CONTEXT => Value::Word(context.0 as u64),
        A::MEMORY_TYPE => Value::Int(kind.0),
        A::DEVICE_POINTER if on_device => Value::Word(address),
        // The same for both, whether the device has memory there yet or not.
        A::DEVICE_POINTER if blocks::is_only_here(address) => Value::Word(address),
        // What is not mapped has none: kernels do not reach it.
        A::DEVICE_POINTER => Value::Word(mirror::on_device(address).ok_or(CUresult::INVALID_VALUE)?),
        A::HOST_POINTER if on_device => Value::Word(mirror::on_host(address).ok_or(CUresult::INVALID_VALUE)?),
        A::HOST_POINTER => Value::Word(mirror::on_host(address).unwrap_or(address)),
        A::P2P_TOKENS => Value::P2pTokens,
        A::SYNC_MEMOPS => Value::Bool(session::get()?.is_synchronous(address)),
        A::IS_MANAGED => Value::Bool(mirror::with_device_address(address, |it| it.is_managed) == Some(true)),
        A::BUFFER_ID | A::MEMORY_BLOCK_ID => Value::Word(start),
        A::DEVICE_ORDINAL => Value::Int(device as u32),
        A::IS_LEGACY_CUDA_IPC_CAPABLE => {
            Value::Bool(matches!(place, PointerTarget::Device { is_ipc: true, .. }))
        }
        A::IS_GPU_DIRECT_RDMA_CAPABLE | A::IS_HW_DECOMPRESS_CAPABLE => Value::Bool(false),
        A::RANGE_START_ADDR | A::MAPPING_BASE_ADDR => Value::Word(start),
        A::RANGE_SIZE | A::MAPPING_SIZE => Value::Word(bytes),
        A::MAPPED => Value::Bool(true),
        A::ALLOWED_HANDLE_TYPES => match place {
            PointerTarget::Device { handle_types, .. } => Value::Word((*handle_types).into()),
            PointerTarget::Host(_) => Value::Word(0),
        },
        A::ACCESS_FLAGS => Value::Int(CUmemAccess_flags::READWRITE.0),
        A::MEMPOOL_HANDLE => match place {
            PointerTarget::Device { pool, .. } => Value::Word(pool.0 as u64),
            PointerTarget::Host(_) => Value::Word(0),
        },
        _ => return Err(CUresult::INVALID_VALUE),
    })
}

/// What [`value`] would be for memory that CUDA does not know: `cuPointerGetAttributes` never fails
/// for it.
fn value_of_unknown(attribute: CUpointer_attribute) -> Value {
    use CUpointer_attribute as A;
    match attribute {
        A::DEVICE_ORDINAL => Value::Int(-2_i32 as u32),
        A::MEMORY_TYPE | A::ACCESS_FLAGS => Value::Int(0),
        A::SYNC_MEMOPS
        | A::IS_MANAGED
        | A::MAPPED
        | A::IS_LEGACY_CUDA_IPC_CAPABLE
        | A::IS_GPU_DIRECT_RDMA_CAPABLE
        | A::IS_HW_DECOMPRESS_CAPABLE => Value::Bool(false),
        _ => Value::Word(0),
    }
}

// The entry points. CUDA Driver API, section "Unified Addressing".

pub(crate) unsafe fn cuPointerGetAttribute(
    data: *mut c_void,
    attribute: CUpointer_attribute,
    ptr: CUdeviceptr,
) -> Result<(), CUresult> {
    let place = locate(ptr)?.ok_or(CUresult::INVALID_VALUE)?;
    // SAFETY: the program passes a place for the attribute.
    unsafe { value(&place, attribute, ptr)?.write(data) }
}

pub(crate) unsafe fn cuPointerGetAttributes(
    numAttributes: u32,
    attributes: *mut CUpointer_attribute,
    data: *mut *mut c_void,
    ptr: CUdeviceptr,
) -> Result<(), CUresult> {
    if attributes.is_null() || data.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let place = locate(ptr)?;
    for i in 0..numAttributes as usize {
        // SAFETY: the program passes arrays of `numAttributes` attributes and of places for them.
        unsafe {
            let attribute = attributes.add(i).read_unaligned();
            if attribute.name().is_none() {
                return Err(CUresult::INVALID_VALUE);
            }
            let value = match &place {
                Some(place) => value(place, attribute, ptr).unwrap_or_else(|_| value_of_unknown(attribute)),
                None => value_of_unknown(attribute),
            };
            value.write(data.add(i).read_unaligned())?;
        }
    }
    Ok(())
}

pub(crate) unsafe fn cuMemGetAddressRange_v2(
    pbase: *mut CUdeviceptr,
    psize: *mut usize,
    dptr: CUdeviceptr,
) -> Result<(), CUresult> {
    let (start, bytes) = match locate(dptr)?.ok_or(CUresult::NOT_FOUND)? {
        PointerTarget::Device { allocation, .. } => (allocation.start, allocation.bytes),
        PointerTarget::Host(block) => {
            let start = block.device_start().ok_or(CUresult::NOT_FOUND)?;
            (start, block.range.end - block.range.start)
        }
    };
    // SAFETY: the program passes null or places for base and size.
    unsafe {
        out::write_if_wanted(pbase, start);
        out::write_if_wanted(psize, bytes as usize);
    }
    Ok(())
}

/// The one attribute that can be set is `SYNC_MEMOPS`, of an allocation as a whole.
pub(crate) unsafe fn cuPointerSetAttribute(
    value: *const c_void,
    attribute: CUpointer_attribute,
    ptr: CUdeviceptr,
) -> Result<(), CUresult> {
    let session = session::get()?;
    if value.is_null() || attribute != CUpointer_attribute::SYNC_MEMOPS {
        return Err(CUresult::INVALID_VALUE);
    }
    let (device, allocation) = session.find_allocation(ptr).ok_or(CUresult::INVALID_VALUE)?;
    // SAFETY: not null, and the program passes an attribute's value: a C `unsigned int`.
    let always = unsafe { value.cast::<u32>().read_unaligned() } != 0;
    session.memory(device)?.set_synchronous(allocation.start, always);
    Ok(())
}

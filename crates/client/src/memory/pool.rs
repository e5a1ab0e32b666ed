//! Memory pools. All of them take from the device's one space; what a pool adds is its attributes,
//! its counts and its limit.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use sluice_cuda::*;

use crate::abi::ids::{self, Kind, Table};
use crate::abi::out;
use crate::device::Device;
use crate::memory;
use crate::session::{self, Session};

#[derive(Debug)]
pub(crate) struct Pool {
    device: CUdevice,
    default: bool,
    release_threshold: AtomicU64,
    /// The three reuse policies, by attribute number; all on, as CUDA starts.
    reuse: [AtomicU64; 3],
    sharing: Sharing,
    /// The most bytes that may be allocated of it at one time (`CUmemPoolProps.maxSize`).
    bytes_max: u64,
    used: AtomicU64,
    used_high: AtomicU64,
}

/// Who has a pool; shared ones by a number that this library has drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharing {
    Private,
    Exportable([u8; 32]),
    /// Another process's: memory comes out of it by import only.
    Imported([u8; 32]),
}

static POOLS: Table<Pool> = Table::new();

/// A device's own pool.
pub(crate) fn default_of(device: CUdevice) -> CUmemoryPool {
    create(device, true, Sharing::Private, 0)
}

/// A pool of another process.
pub(crate) fn import(device: CUdevice, number: [u8; 32]) -> CUmemoryPool {
    create(device, false, Sharing::Imported(number), 0)
}

/// Number and device of a pool that processes share.
pub(crate) fn shared(pool: CUmemoryPool) -> Result<([u8; 32], CUdevice), CUresult> {
    let pool = find(pool)?;
    match pool.sharing {
        Sharing::Private => Err(CUresult::INVALID_VALUE),
        Sharing::Exportable(number) | Sharing::Imported(number) => Ok((number, pool.device)),
    }
}

/// A pool that may use `bytes_max` bytes; 0 is as many as there are.
fn create(device: CUdevice, default: bool, sharing: Sharing, bytes_max: u64) -> CUmemoryPool {
    let handle = ids::mint_on(device, Kind::Pool);
    let pool = Pool {
        device,
        default,
        release_threshold: AtomicU64::new(0),
        reuse: std::array::from_fn(|_| AtomicU64::new(1)),
        sharing,
        bytes_max: if bytes_max == 0 { u64::MAX } else { bytes_max },
        used: AtomicU64::new(0),
        used_high: AtomicU64::new(0),
    };
    POOLS.insert(handle, pool);
    CUmemoryPool(handle as usize)
}

impl Pool {
    fn take(&self, bytes: u64) -> Result<(), CUresult> {
        let add = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.bytes_max);
        let before = self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, add);
        let before = before.map_err(|_| CUresult::OUT_OF_MEMORY)?;
        self.used_high.fetch_max(before + bytes, Ordering::AcqRel);
        Ok(())
    }
}

/// Counts an allocation towards a pool, if its limit allows that.
pub(crate) fn take(pool: CUmemoryPool, bytes: u64) -> Result<(), CUresult> {
    find(pool)?.take(bytes)
}

/// An allocation of a pool is free. The pool may have been destroyed before.
pub(crate) fn freed(pool: CUmemoryPool, bytes: u64) {
    if let Ok(pool) = find(pool) {
        pool.used.fetch_sub(bytes, Ordering::AcqRel);
    }
}

/// The pool that `cuMemAllocAsync` takes from on a device: the one that was set, or the device's
/// own.
pub(crate) fn current(device: &Device) -> CUmemoryPool {
    let set = device.pool.load(Ordering::Acquire);
    if POOLS.contains(set as u64) { CUmemoryPool(set) } else { device.default_pool }
}

/// Whether other processes can have memory of a pool.
pub(crate) fn is_shareable(pool: CUmemoryPool) -> bool {
    find(pool).is_ok_and(|pool| matches!(pool.sharing, Sharing::Exportable(_)))
}

fn find(pool: CUmemoryPool) -> Result<std::sync::Arc<Pool>, CUresult> {
    POOLS.get(pool.0 as u64).ok_or(CUresult::INVALID_VALUE)
}

/// Refuses what nothing can be allocated from.
pub(crate) fn check(pool: CUmemoryPool) -> Result<(), CUresult> {
    match find(pool)?.sharing {
        Sharing::Private | Sharing::Exportable(_) => Ok(()),
        Sharing::Imported(_) => Err(CUresult::INVALID_VALUE),
    }
}

/// Returns an unguessable number.
fn random() -> Result<[u8; 32], CUresult> {
    let mut number = [0_u8; 32];
    // By number: older C libraries have no such function.
    // SAFETY: the pointer and length describe `number`.
    let got = unsafe { libc::syscall(libc::SYS_getrandom, number.as_mut_ptr(), number.len(), 0) };
    if got == number.len() as i64 { Ok(number) } else { Err(CUresult::OPERATING_SYSTEM) }
}

impl Session {
    fn pool_count(&self, handle: CUmemoryPool, attribute: CUmemPool_attribute) -> Result<u64, CUresult> {
        let pool = find(handle)?;
        let (used, high) = (pool.used.load(Ordering::Acquire), pool.used_high.load(Ordering::Acquire));
        let reserved = used + self.memory(pool.device)?.kept_for(handle);
        Ok(match attribute {
            CUmemPool_attribute::USED_MEM_CURRENT => used,
            CUmemPool_attribute::USED_MEM_HIGH => high,
            CUmemPool_attribute::RESERVED_MEM_CURRENT => reserved,
            _ => reserved.max(high),
        })
    }
}

// The entry points. CUDA Driver API, section "Stream Ordered Memory Allocator".

pub(crate) unsafe fn cuDeviceGetDefaultMemPool(
    pool_out: *mut CUmemoryPool,
    dev: CUdevice,
) -> Result<(), CUresult> {
    let pool = session::device(dev)?.default_pool;
    // SAFETY: the program passes a place for the pool.
    unsafe { out::write(pool_out, pool) }
}

pub(crate) unsafe fn cuDeviceGetMemPool(pool: *mut CUmemoryPool, dev: CUdevice) -> Result<(), CUresult> {
    let current = current(session::device(dev)?);
    // SAFETY: the program passes a place for the pool.
    unsafe { out::write(pool, current) }
}

pub(crate) unsafe fn cuDeviceSetMemPool(dev: CUdevice, pool: CUmemoryPool) -> Result<(), CUresult> {
    let device = session::device(dev)?;
    if find(pool)?.device != dev {
        return Err(CUresult::INVALID_DEVICE);
    }
    check(pool)?;
    device.pool.store(pool.0, Ordering::Release);
    Ok(())
}

pub(crate) unsafe fn cuMemPoolCreate(
    pool: *mut CUmemoryPool,
    poolProps: *const CUmemPoolProps,
) -> Result<(), CUresult> {
    session::get()?;
    if pool.is_null() || poolProps.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: not null, and the program passes properties.
    let props = unsafe { poolProps.read_unaligned() };
    if props.location.kind != CUmemLocationType::DEVICE {
        return Err(CUresult::NOT_SUPPORTED);
    }
    let device = session::device(props.location.id)?;
    let types = device.attribute(CUdevice_attribute::MEMPOOL_SUPPORTED_HANDLE_TYPES).unwrap_or(0);
    let sharing = match props.handleTypes {
        CUmemAllocationHandleType::NONE => Sharing::Private,
        wanted if wanted.0 & !(types as u32) == 0 => Sharing::Exportable(random()?),
        _ => return Err(CUresult::NOT_SUPPORTED),
    };
    // SAFETY: not null, and the program passes a place for the pool.
    unsafe { out::write(pool, create(props.location.id, false, sharing, props.maxSize as u64)) }
}

pub(crate) unsafe fn cuMemPoolDestroy(pool: CUmemoryPool) -> Result<(), CUresult> {
    session::get()?;
    if find(pool)?.default {
        return Err(CUresult::INVALID_VALUE);
    }
    POOLS.remove(pool.0 as u64);
    Ok(())
}

pub(crate) unsafe fn cuMemPoolTrimTo(pool: CUmemoryPool, _: usize) -> Result<(), CUresult> {
    let session = session::get()?;
    memory::trim(session, find(pool)?.device)
}

pub(crate) unsafe fn cuMemPoolGetAttribute(
    pool: CUmemoryPool,
    attr: CUmemPool_attribute,
    value: *mut c_void,
) -> Result<(), CUresult> {
    use CUmemPool_attribute as A;
    let session = session::get()?;
    let handle = pool;
    let pool = find(handle)?;
    let word = match attr {
        A::RELEASE_THRESHOLD => pool.release_threshold.load(Ordering::Relaxed),
        A::USED_MEM_CURRENT | A::USED_MEM_HIGH | A::RESERVED_MEM_CURRENT | A::RESERVED_MEM_HIGH => {
            session.pool_count(handle, attr)?
        }
        A::REUSE_FOLLOW_EVENT_DEPENDENCIES
        | A::REUSE_ALLOW_OPPORTUNISTIC
        | A::REUSE_ALLOW_INTERNAL_DEPENDENCIES => {
            let int = pool.reuse[attr.0 as usize - 1].load(Ordering::Relaxed) as i32;
            // SAFETY: the program passes a place for this attribute's int.
            return unsafe { out::write(value.cast(), int) };
        }
        _ => return Err(CUresult::INVALID_VALUE),
    };
    // SAFETY: the program passes a place for this attribute's 64 bits.
    unsafe { out::write(value.cast(), word) }
}

pub(crate) unsafe fn cuMemPoolSetAttribute(
    pool: CUmemoryPool,
    attr: CUmemPool_attribute,
    value: *mut c_void,
) -> Result<(), CUresult> {
    use CUmemPool_attribute as A;
    session::get()?;
    let pool = find(pool)?;
    if value.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    match attr {
        A::REUSE_FOLLOW_EVENT_DEPENDENCIES
        | A::REUSE_ALLOW_OPPORTUNISTIC
        | A::REUSE_ALLOW_INTERNAL_DEPENDENCIES => {
            // SAFETY: not null, and this attribute's value is an int.
            let int = unsafe { value.cast::<i32>().read_unaligned() };
            pool.reuse[attr.0 as usize - 1].store(int as u64, Ordering::Relaxed);
        }
        A::RELEASE_THRESHOLD => {
            // SAFETY: not null, and this attribute's value has 64 bits.
            let bytes = unsafe { value.cast::<u64>().read_unaligned() };
            pool.release_threshold.store(bytes, Ordering::Relaxed);
        }
        // High-water marks can only be set back to what is in use.
        A::USED_MEM_HIGH | A::RESERVED_MEM_HIGH => {
            pool.used_high.store(pool.used.load(Ordering::Acquire), Ordering::Release);
        }
        _ => return Err(CUresult::INVALID_VALUE),
    }
    Ok(())
}

/// A pool's own device always has access; no other device can be given it here.
pub(crate) unsafe fn cuMemPoolSetAccess(
    pool: CUmemoryPool,
    map: *const CUmemAccessDesc,
    count: usize,
) -> Result<(), CUresult> {
    session::get()?;
    let pool = find(pool)?;
    for i in 0..count {
        if map.is_null() {
            return Err(CUresult::INVALID_VALUE);
        }
        // SAFETY: the program passes `count` descriptions.
        let access = unsafe { map.add(i).read_unaligned() };
        if access.location.kind != CUmemLocationType::DEVICE || access.location.id != pool.device {
            return Err(CUresult::NOT_SUPPORTED);
        }
    }
    Ok(())
}

pub(crate) unsafe fn cuMemPoolGetAccess(
    flags: *mut CUmemAccess_flags,
    memPool: CUmemoryPool,
    location: *mut CUmemLocation,
) -> Result<(), CUresult> {
    session::get()?;
    let pool = find(memPool)?;
    if location.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: not null, and the program passes a location.
    let location = unsafe { location.read_unaligned() };
    let own = location.kind == CUmemLocationType::DEVICE && location.id == pool.device;
    let access = if own { CUmemAccess_flags::READWRITE } else { CUmemAccess_flags::NONE };
    // SAFETY: the program passes a place for the flags.
    unsafe { out::write(flags, access) }
}

/// The device of a place; pools of the host's memory do not exist here.
///
/// # Safety
/// `location` is null or a location.
unsafe fn device_at(location: *const CUmemLocation, kind: CUmemAllocationType) -> Result<CUdevice, CUresult> {
    if location.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: not null, and the caller vouches for the rest.
    let location = unsafe { location.read_unaligned() };
    match (location.kind, kind) {
        (CUmemLocationType::DEVICE, CUmemAllocationType::PINNED) => Ok(location.id),
        (CUmemLocationType::INVALID, _) | (_, CUmemAllocationType::INVALID) => Err(CUresult::INVALID_VALUE),
        _ => Err(CUresult::NOT_SUPPORTED),
    }
}

pub(crate) unsafe fn cuMemGetDefaultMemPool(
    pool_out: *mut CUmemoryPool,
    location: *mut CUmemLocation,
    kind: CUmemAllocationType,
) -> Result<(), CUresult> {
    // SAFETY: the program passes a location and a place for the pool.
    unsafe { cuDeviceGetDefaultMemPool(pool_out, device_at(location, kind)?) }
}

pub(crate) unsafe fn cuMemGetMemPool(
    pool: *mut CUmemoryPool,
    location: *mut CUmemLocation,
    kind: CUmemAllocationType,
) -> Result<(), CUresult> {
    // SAFETY: the program passes a location and a place for the pool.
    unsafe { cuDeviceGetMemPool(pool, device_at(location, kind)?) }
}

pub(crate) unsafe fn cuMemSetMemPool(
    location: *mut CUmemLocation,
    kind: CUmemAllocationType,
    pool: CUmemoryPool,
) -> Result<(), CUresult> {
    // SAFETY: the program passes a location.
    unsafe { cuDeviceSetMemPool(device_at(location, kind)?, pool) }
}

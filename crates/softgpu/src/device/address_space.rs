//! The one range of virtual addresses that every device pointer of this process lies in.
//!
//! A device address is a host address in this range: the range is reserved without access rights
//! and pages get rights when an allocation covers them. Compiled kernels check every address
//! against the range's bounds, so they cannot reach anything else that the process has mapped; an
//! address in the range without an allocation faults. Shared, local and parameter memory of running
//! blocks lie in the range too, so a generic address needs no tag.
//!
//! The range comes into being with the first request that needs an address. If that is a
//! reservation at a fixed address (a worker that mirrors its client's reservation), the range is
//! built around it.

use std::sync::{Mutex, OnceLock};

use crate::base::status::{Result, Status};
use crate::device::ranges::FreeRanges;

/// Granularity of the range: reservations and the chunks behind allocations are multiples of it.
pub(crate) const CHUNK: u64 = 2 << 20;

/// Size of the range when nothing asks for more.
const DEFAULT_SIZE: u64 = 1 << 40;
/// Addresses kept beside a fixed reservation, for what the driver itself places: globals, pools,
/// local memory.
const BESIDE_RESERVATION: u64 = 1 << 38;
/// The smallest range worth having, where the system limits address space.
const SMALLEST_SIZE: u64 = 1 << 34;

pub(crate) struct AddressSpace {
    base: u64,
    size: u64,
    free: Mutex<FreeRanges>,
}

static SPACE: OnceLock<AddressSpace> = OnceLock::new();

/// The range, reserved now if this is the first use.
pub(crate) fn space() -> Result<&'static AddressSpace> {
    space_around(None)
}

/// The range, reserved around `hint` (address, bytes) if this is the first use.
pub(crate) fn space_around(hint: Option<(u64, u64)>) -> Result<&'static AddressSpace> {
    static CREATION: Mutex<()> = Mutex::new(());
    if let Some(space) = SPACE.get() {
        return Ok(space);
    }
    let _creation = CREATION.lock().map_err(|_| Status::UNKNOWN)?;
    if let Some(space) = SPACE.get() {
        return Ok(space);
    }
    let space = AddressSpace::reserve(hint).ok_or(Status::OUT_OF_MEMORY)?;
    Ok(SPACE.get_or_init(|| space))
}

/// Whether `address` lies in the range. False before the range exists: no device address does yet.
pub(crate) fn contains(address: u64) -> bool {
    SPACE.get().is_some_and(|space| address.wrapping_sub(space.base) < space.size)
}

impl AddressSpace {
    fn reserve(hint: Option<(u64, u64)>) -> Option<Self> {
        let around_hint = hint.and_then(|(address, size)| {
            let with_rest = size.checked_add(BESIDE_RESERVATION)?;
            // The driver's own part goes above the reservation, or below it where something is in
            // the way.
            reserve_at(address, with_rest)
                .or_else(|| reserve_at(address.checked_sub(BESIDE_RESERVATION)?, with_rest))
        });
        around_hint.or_else(|| {
            let sizes = std::iter::successors(Some(DEFAULT_SIZE), |size| Some(size / 2));
            sizes.take_while(|&size| size >= SMALLEST_SIZE).find_map(reserve_anywhere)
        })
    }

    fn new(base: u64, size: u64) -> Self {
        Self { base, size, free: Mutex::new(FreeRanges::new(base, size)) }
    }

    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// Bytes from [`Self::base`] on that belong to the range.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Takes addresses for `size` bytes, a multiple of [`CHUNK`], aligned to `align`. Nothing is
    /// mapped there yet.
    pub(crate) fn take(&self, size: u64, align: u64) -> Result<u64> {
        let mut free = self.free.lock().map_err(|_| Status::UNKNOWN)?;
        free.take(size, align.max(CHUNK)).ok_or(Status::OUT_OF_MEMORY)
    }

    /// As [`Self::take`] from the other end of the range, for what no program has an address of: a
    /// kernel that runs past its own memory does not get there.
    pub(crate) fn take_hidden(&self, size: u64) -> Result<u64> {
        let mut free = self.free.lock().map_err(|_| Status::UNKNOWN)?;
        free.take_high(size, CHUNK).ok_or(Status::OUT_OF_MEMORY)
    }

    /// Takes the addresses `[address, address + size)` if they are free.
    pub(crate) fn take_at(&self, address: u64, size: u64) -> bool {
        self.free.lock().is_ok_and(|mut free| free.take_at(address, size))
    }

    /// Gives addresses back; whatever was mapped there goes back to the system.
    pub(crate) fn give(&self, address: u64, size: u64) {
        self.unmap(address, size);
        if let Ok(mut free) = self.free.lock() {
            free.give(address, size);
        }
    }

    /// Puts zeroed, readable and writable private pages at taken addresses.
    pub(crate) fn map_private(&self, address: u64, size: u64) -> Result<()> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        self.map(address, size, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)?;
        // Huge pages make first touch some twenty times cheaper; where they are not to be had
        // nothing is lost. SAFETY: the pages were mapped just now and belong to this range.
        unsafe { libc::madvise(address as *mut libc::c_void, size as usize, libc::MADV_HUGEPAGE) };
        Ok(())
    }

    /// Maps `size` bytes of the memory file `fd` from `offset` on at taken addresses. A thread that
    /// reads there meanwhile finds what was there or what is in the file.
    pub(crate) fn map_file(&self, address: u64, size: u64, rights: i32, fd: i32, offset: u64) -> Result<()> {
        self.map(address, size, rights, libc::MAP_SHARED | libc::MAP_NORESERVE, fd, offset)
    }

    /// Maps `size` bytes of a memory file at taken addresses, as private pages: the file keeps its
    /// contents whatever is written there.
    pub(crate) fn map_file_privately(&self, address: u64, size: u64, rights: i32, fd: i32) -> Result<()> {
        self.map(address, size, rights, libc::MAP_PRIVATE | libc::MAP_NORESERVE, fd, 0)
    }

    /// Makes untouched taken addresses ready to hold private pages; they get rights by
    /// [`Self::protect`].
    pub(crate) fn prepare_private(&self, address: u64, size: u64) -> Result<()> {
        self.check(address, size)?;
        // SAFETY: the pages lie inside the range; see `map_private` for why.
        unsafe { libc::madvise(address as *mut libc::c_void, size as usize, libc::MADV_HUGEPAGE) };
        Ok(())
    }

    /// Moves private pages to other taken addresses, where they have no rights at first.
    pub(crate) fn move_private(&self, from: u64, to: u64, size: u64) -> Result<()> {
        self.check(from, size)?;
        self.check(to, size)?;
        // The old addresses stay mapped, so that nothing else of the process can get in between.
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        let (old, new) = (from as *mut libc::c_void, to as *mut libc::c_void);
        // SAFETY: both places lie inside the range, which nothing but this driver and kernels use,
        // and the caller says that no kernel uses these.
        let moved = unsafe { libc::mremap(old, size as usize, size as usize, flags, new) };
        if moved == libc::MAP_FAILED {
            return Err(Status::OUT_OF_MEMORY);
        }
        self.unmap(from, size);
        self.protect(to, size, libc::PROT_NONE)
    }

    /// Takes all rights away and the memory with them; the addresses stay taken.
    pub(crate) fn unmap(&self, address: u64, size: u64) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // It can fail only when the kernel is out of memory for its own tables; the pages then stay
        // until exit.
        let _ = self.map(address, size, libc::PROT_NONE, flags, -1, 0);
    }

    /// Sets the access rights of mapped pages.
    pub(crate) fn protect(&self, address: u64, size: u64, rights: i32) -> Result<()> {
        self.check(address, size)?;
        // SAFETY: the pages lie inside the range, which nothing but this driver and kernels use.
        let rc = unsafe { libc::mprotect(address as *mut libc::c_void, size as usize, rights) };
        if rc == 0 { Ok(()) } else { Err(Status::OUT_OF_MEMORY) }
    }

    fn map(&self, address: u64, size: u64, rights: i32, flags: i32, fd: i32, offset: u64) -> Result<()> {
        self.check(address, size)?;
        // SAFETY: the pages replaced lie inside the range, which nothing but this driver and
        // kernels use.
        let mapped = unsafe {
            libc::mmap(
                address as *mut libc::c_void,
                size as usize,
                rights,
                flags | libc::MAP_FIXED,
                fd,
                offset as libc::off_t,
            )
        };
        if mapped == libc::MAP_FAILED { Err(Status::OUT_OF_MEMORY) } else { Ok(()) }
    }

    fn check(&self, address: u64, size: u64) -> Result<()> {
        let offset = address.wrapping_sub(self.base);
        let inside = offset < self.size && size <= self.size - offset;
        if inside { Ok(()) } else { Err(Status::INVALID_VALUE) }
    }
}

fn reserve_at(address: u64, size: u64) -> Option<AddressSpace> {
    if address == 0 || !address.is_multiple_of(CHUNK) {
        return None;
    }
    let got = reserve_pages(address, size, libc::MAP_FIXED_NOREPLACE)?;
    if got == address {
        return Some(AddressSpace::new(address, size));
    }
    // A kernel older than 4.17 takes the address as a hint only.
    // SAFETY: the pages were reserved just now and are not known elsewhere.
    unsafe { libc::munmap(got as *mut libc::c_void, size as usize) };
    None
}

fn reserve_anywhere(size: u64) -> Option<AddressSpace> {
    let got = reserve_pages(0, size, 0)?;
    // The ends that are not whole chunks stay reserved and unused.
    let base = got.next_multiple_of(CHUNK);
    Some(AddressSpace::new(base, (got + size - base) / CHUNK * CHUNK))
}

fn reserve_pages(address: u64, size: u64, extra_flags: i32) -> Option<u64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | extra_flags;
    // SAFETY: without MAP_FIXED no existing mapping is replaced, and without rights the pages cost
    // nothing.
    let got = unsafe {
        libc::mmap(address as *mut libc::c_void, usize::try_from(size).ok()?, libc::PROT_NONE, flags, -1, 0)
    };
    (got != libc::MAP_FAILED).then_some(got as u64)
}

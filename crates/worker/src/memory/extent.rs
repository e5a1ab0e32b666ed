//! The pieces of physical memory that a commitment consists of.
//!
//! A driver maps and unmaps physical memory whole (CUDA Driver API, `cuMemUnmap`), so pieces of a
//! bounded size are what lets memory be moved while other pieces are copied, and found room for
//! wherever there is some. The addresses of a commitment never change.

use sluice_cuda::{CUmemGenericAllocationHandle, CUmemLocation, CUresult, DriverTable};

use super::calls::{on_device, physical, unback};
use super::file::FilePiece;
use super::host::HostPiece;
use crate::memory::chunks::CHUNK;
use crate::session::device::Device;

/// Most bytes of an extent. Creating, mapping and releasing one of this size takes a tenth of the
/// time of copying it. Tests move less memory.
pub(crate) const EXTENT: u64 = if cfg!(test) { 4 << 20 } else { 64 << 20 };

/// One piece, at its place in the commitment.
#[derive(Debug)]
pub(crate) struct Extent {
    pub(crate) bytes: u64,
    pub(crate) place: Location,
}

/// Where its bytes are.
#[derive(Debug)]
pub(crate) enum Location {
    /// On the device, and mapped.
    Device(CUmemGenericAllocationHandle),
    /// In host memory or a file, and nothing is mapped at its address.
    Parked(Piece),
}

/// The bytes of an extent that is parked.
#[derive(Debug)]
pub(crate) enum Piece {
    Host(HostPiece),
    File(FilePiece),
}

impl Extent {
    pub(crate) fn is_on_device(&self) -> bool {
        matches!(self.place, Location::Device(_))
    }
}

/// The sizes of the extents of a commitment of this size.
pub(crate) fn sizes(bytes: u64) -> impl Iterator<Item = u64> {
    let whole = (0..bytes / EXTENT).map(|_| EXTENT);
    whole.chain(Some(bytes % EXTENT).filter(|&rest| rest > 0))
}

/// The extents with the addresses at which they begin.
pub(crate) fn placed(start: u64, extents: &[Extent]) -> impl Iterator<Item = (u64, &Extent)> {
    extents.iter().scan(start, |next, extent| {
        let address = *next;
        *next += extent.bytes;
        Some((address, extent))
    })
}

/// Physical memory of a device at these addresses, in extents of the given sizes, accessible there
/// to `users`; all of it or nothing.
pub(super) fn make(
    table: &DriverTable,
    (device, users): (&Device, &[Device]),
    address: u64,
    sizes: impl Iterator<Item = u64>,
) -> Result<Vec<Extent>, CUresult> {
    let (mut extents, mut next) = (Vec::new(), address);
    let mut made = Ok(());
    for bytes in sizes {
        match map_new(table, device, next, bytes) {
            Ok(handle) => extents.push(Extent { bytes, place: Location::Device(handle) }),
            Err(result) => {
                made = Err(result);
                break;
            }
        }
        next += bytes;
    }
    let made = made.and_then(|()| give_access(table, users, address, next - address));
    if let Err(result) = made {
        // What cannot be undone is gone with the process; the first error says more.
        let _ = unmake(table, address, &extents);
        return Err(result);
    }
    Ok(extents)
}

/// New physical memory of the device, mapped without access.
pub(super) fn map_new(
    table: &DriverTable,
    device: &Device,
    address: u64,
    bytes: u64,
) -> Result<CUmemGenericAllocationHandle, CUresult> {
    let map = table.cuMemMap.ok_or(CUresult::NOT_SUPPORTED)?;
    let release = table.cuMemRelease.ok_or(CUresult::NOT_SUPPORTED)?;
    let size = usize::try_from(bytes).map_err(|_| CUresult::OUT_OF_MEMORY)?;
    let handle = physical(table, (device.ordinal, device.handle_types), bytes)?;
    // SAFETY: the range is vacant and inside the session's own reservation.
    if let Err(result) = unsafe { map(address, size, 0, handle, 0) }.ok() {
        // SAFETY: the handle was created just now, and this is its only release.
        let _ = unsafe { release(handle) };
        return Err(result);
    }
    Ok(handle)
}

/// Lets devices read and write a range that is mapped whole.
pub(super) fn give_access(
    table: &DriverTable,
    users: &[Device],
    address: u64,
    bytes: u64,
) -> Result<(), CUresult> {
    let locations: Vec<CUmemLocation> = users.iter().map(|user| on_device(user.ordinal)).collect();
    super::calls::give_access(table, &locations, address, bytes)
}

/// Takes away what is on the device, and forgets what is not. The first error is returned once all
/// has been tried.
pub(super) fn unmake(table: &DriverTable, start: u64, extents: &[Extent]) -> Result<(), CUresult> {
    let mut result = Ok(());
    for (address, extent) in placed(start, extents) {
        if let Location::Device(handle) = extent.place {
            result = result.and(unback(table, address, extent.bytes, handle));
        }
    }
    result
}

/// Whether a device's memory can be mapped at this address of a reservation; yes where only the
/// room is missing.
pub(crate) fn can_be_mapped(table: &DriverTable, device: &Device, address: u64) -> bool {
    match make(table, (device, std::slice::from_ref(device)), address, std::iter::once(CHUNK)) {
        Ok(extents) => unmake(table, address, &extents).is_ok(),
        Err(result) => result == CUresult::OUT_OF_MEMORY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commitment_is_cut_into_extents_and_a_rest() {
        let sizes_of = |bytes| sizes(bytes).collect::<Vec<_>>();
        assert_eq!(sizes_of(2 << 20), [2 << 20]);
        assert_eq!(sizes_of(EXTENT), [EXTENT]);
        assert_eq!(sizes_of(2 * EXTENT + (2 << 20)), [EXTENT, EXTENT, 2 << 20]);
        assert_eq!(sizes(60 << 30).sum::<u64>(), 60 << 30);
    }
}

//! Which devices may use memory.

use crate::base::status::{Result, Status};
use crate::device::pool::POOLS;
use crate::memory::allocation::{Kind, find};
use crate::vmm;

/// Refuses memory that a device may not use. What is mapped or of a pool is its own device's alone,
/// unless the program has given others access; all other memory can be copied and filled by any
/// device.
pub(crate) fn check(mut address: u64, size: u64, device: usize) -> Result<()> {
    let end = address.checked_add(size).ok_or(Status::INVALID_VALUE)?;
    while address < end {
        let allocation = find(address).ok_or(Status::INVALID_VALUE)?;
        let is_reached = match allocation.kind {
            Kind::Mapped(_) => vmm::reaches(device, allocation.base),
            Kind::Pool(pool) => POOLS.get(pool).is_none_or(|pool| pool.is_reached_by(device)),
            _ => true,
        };
        if !is_reached {
            return Err(Status::INVALID_VALUE);
        }
        address = allocation.base + allocation.size;
    }
    Ok(())
}

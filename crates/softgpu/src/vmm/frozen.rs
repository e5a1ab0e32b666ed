//! Memory of which other processes get copies, page by page when one of them writes.
//!
//! The contents are a file that is written no more, and each process maps it privately. Memory that
//! is a file from its beginning on ([`keep_in_files`]) need not even be copied for the first time;
//! what was written since is copied into another file.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::{Backing, Mapping, Physical, mapped};
use crate::base::memory_file::{SEALS, check_sealed};
use crate::base::status::{Result, Status};
use crate::device::address_space::space;
use crate::work::engine;

/// Whether memory that is mapped whole is a file at once.
static IN_FILES: AtomicBool = AtomicBool::new(false);

/// Has memory that is mapped from now on be kept in files, since it will be frozen. Its first touch
/// is slower.
pub fn keep_in_files() {
    IN_FILES.store(true, Relaxed);
}

pub(super) fn are_kept_in_files() -> bool {
    IN_FILES.load(Relaxed)
}

/// The contents of the memory that is mapped whole, and once, at `address`, for [`lay_over`] in
/// another process. `is_unwritten`: nothing has written there since the last time. No work runs.
pub fn freeze(address: u64, is_unwritten: bool) -> Result<OwnedFd> {
    let mapped = mapped();
    let (mapping, rights) = only_mapping(&mapped, address)?;
    mapping.physical.freeze((address, rights), is_unwritten)
}

/// Gives the memory that is mapped whole, and once, at `address` the contents of a frozen file,
/// which has its size. Each page is copied when it is written. No work runs.
pub fn lay_over(address: u64, file: OwnedFd) -> Result<()> {
    let mapped = mapped();
    let (mapping, rights) = only_mapping(&mapped, address)?;
    check_sealed(&file, mapping.size)?;
    let physical = &mapping.physical;
    physical.lay_over(&mut physical.backing(), (address, rights), file.into())
}

/// The mapping at an address, which is of all of its memory and the only one of that, and what may
/// be done there.
fn only_mapping(mapped: &BTreeMap<u64, Mapping>, address: u64) -> Result<(&Mapping, i32)> {
    let mapping = mapped.get(&address).ok_or(Status::INVALID_VALUE)?;
    let is_of_it = |other: &&Mapping| Arc::ptr_eq(&other.physical, &mapping.physical);
    let is_only = mapped.values().filter(is_of_it).count() == 1;
    if mapping.size == mapping.physical.size && is_only {
        Ok((mapping, mapping.rights()))
    } else {
        Err(Status::NOT_SUPPORTED)
    }
}

impl Physical {
    fn freeze(&self, (address, rights): (u64, i32), is_unwritten: bool) -> Result<OwnedFd> {
        // Arrays would still write to the file.
        if self.view().is_some() {
            return Err(Status::NOT_SUPPORTED);
        }
        let mut backing = self.backing();
        let is_frozen = matches!(*backing, Backing::Frozen(..)) && is_unwritten;
        if !is_frozen && !matches!(*backing, Backing::File(_)) {
            self.make_file(&mut backing, rights)?;
        }
        if let Backing::File(file) = &*backing {
            let file = file.try_clone().map_err(|_| Status::OUT_OF_MEMORY)?;
            self.lay_over(&mut backing, (address, rights), file)?;
        }
        let Backing::Frozen(file, _) = &*backing else { return Err(Status::UNKNOWN) };
        // SAFETY: seals a descriptor that is open. From here on nothing writes to the file; where
        // another process still could, this fails.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS | libc::F_SEAL_WRITE) } < 0 {
            return Err(Status::NOT_SUPPORTED);
        }
        file.as_fd().try_clone_to_owned().map_err(|_| Status::OUT_OF_MEMORY)
    }

    /// Has the mapping at `address` be private pages over a file.
    fn lay_over(&self, backing: &mut Backing, (address, rights): (u64, i32), file: File) -> Result<()> {
        let space = space()?;
        engine::at_rest(|| space.map_file_privately(address, self.size, rights, file.as_raw_fd()))?;
        *backing = Backing::Frozen(file, address);
        Ok(())
    }
}

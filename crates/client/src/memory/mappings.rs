//! The addresses, physical memory and mappings that a program manages itself.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sluice_cuda::*;
use sluice_wire::{ExportToken, PhysicalProp};

use crate::memory::addresses::CHUNK;

/// What a session's programs have reserved, made and mapped.
#[derive(Debug, Default)]
pub(crate) struct VirtualMemory {
    /// Start to size and the device whose addresses they are.
    pub(super) reserved: BTreeMap<u64, (u64, CUdevice)>,
    /// By address; mappings never overlap.
    pub(super) mapped: BTreeMap<u64, Mapping>,
    /// By handle.
    pub(crate) physical: HashMap<u64, Physical>,
    /// Other processes' memory, by the address of the allocation.
    pub(crate) imported: BTreeMap<u64, Imported>,
}

#[derive(Clone, Debug)]
pub(crate) struct Mapping {
    pub(crate) bytes: u64,
    pub(super) handle: u64,
    pub(crate) access: CUmemAccess_flags,
    /// Of host memory, what the device has there.
    pub(super) device_side: Option<u64>,
}

/// Physical memory. It is released once it is neither held nor mapped: until then
/// `cuMemRetainAllocationHandle` can bring its handle back.
#[derive(Clone, Debug)]
pub(crate) struct Physical {
    pub(crate) prop: CUmemAllocationProp,
    pub(super) bytes: u64,
    /// By `cuMemCreate` and each `cuMemRetainAllocationHandle`.
    pub(super) held: u32,
    pub(super) mappings: u32,
    /// Of host memory, what is in it.
    pub(super) file: Option<Arc<OwnedFd>>,
}

impl Physical {
    /// What another process made on this device; its handle is held once.
    pub(crate) fn imported(device: CUdevice, bytes: u64) -> Physical {
        let prop = PhysicalProp {
            kind: CUmemAllocationType::PINNED,
            handle_types: CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR,
            location: CUmemLocation { kind: CUmemLocationType::DEVICE, id: device },
            compression_type: 0,
            gpu_direct_rdma: 0,
            usage: 0,
        };
        Physical { prop: prop.to_c(), bytes, held: 1, mappings: 0, file: None }
    }
}

// SAFETY: the one pointer in `prop` is for Windows; it is never followed.
unsafe impl Send for Physical {}

impl VirtualMemory {
    pub(super) fn held(&mut self, handle: u64) -> Result<&mut Physical, CUresult> {
        self.physical.get_mut(&handle).filter(|physical| physical.held > 0).ok_or(CUresult::INVALID_VALUE)
    }

    /// Whether there is host memory of `cuMemCreate`.
    pub(crate) fn has_host_memory(&self) -> bool {
        self.physical.values().any(|physical| physical.file.is_some())
    }

    pub(crate) fn is_held(&self, handle: u64) -> bool {
        self.physical.get(&handle).is_some_and(|physical| physical.held > 0)
    }

    /// Device and bytes of physical memory.
    pub(crate) fn size_of(&self, handle: u64) -> Result<(CUdevice, u64), CUresult> {
        let physical = self.physical.get(&handle).ok_or(CUresult::INVALID_VALUE)?;
        Ok((physical.prop.location.id, physical.bytes))
    }

    /// Whether memory was made for other processes, too.
    pub(crate) fn is_shareable(&mut self, handle: u64) -> Result<bool, CUresult> {
        let types = self.held(handle)?.prop.requestedHandleTypes;
        Ok(types.0 & CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR.0 != 0)
    }

    /// Enters addresses that were taken out of a device's space.
    pub(crate) fn reserve(&mut self, start: u64, bytes: u64, device: CUdevice) {
        self.reserved.insert(start, (bytes, device));
    }

    /// Removes physical memory that no handle names any more; says whether it did.
    pub(super) fn remove_unused(&mut self, handle: u64) -> bool {
        let unused = self.physical.get(&handle).is_some_and(|it| it.held == 0 && it.mappings == 0);
        if unused {
            self.physical.remove(&handle);
        }
        unused
    }

    /// The reservation that `[address, address + bytes)` lies in.
    pub(super) fn is_reserved(&self, address: u64, bytes: u64) -> bool {
        self.reserved
            .range(..=address)
            .next_back()
            .is_some_and(|(&start, &(size, _))| within(start, size, address, bytes))
    }

    pub(super) fn is_vacant(&self, range: &Range<u64>) -> bool {
        let before = self.mapped.range(..range.end).next_back();
        before.is_none_or(|(&start, mapping)| start + mapping.bytes <= range.start)
    }

    pub(crate) fn map(&mut self, address: u64, bytes: u64, handle: u64) -> Result<(), CUresult> {
        check_granular(address)?;
        check_granular(bytes)?;
        if !self.is_reserved(address, bytes) || !self.is_vacant(&(address..address + bytes)) {
            return Err(CUresult::INVALID_VALUE);
        }
        let physical = self.held(handle)?;
        if bytes > physical.bytes {
            return Err(CUresult::INVALID_VALUE);
        }
        if physical.file.is_some() && physical.mappings > 0 {
            crate::say_once!("host memory of cuMemCreate can be mapped at one address at a time");
            return Err(CUresult::NOT_SUPPORTED);
        }
        physical.mappings += 1;
        self.mapped
            .insert(address, Mapping { bytes, handle, access: CUmemAccess_flags::NONE, device_side: None });
        Ok(())
    }

    /// The starts of the mappings that a range consists of exactly.
    pub(super) fn whole_mappings(&self, address: u64, bytes: u64) -> Result<Vec<u64>, CUresult> {
        let end = address.checked_add(bytes).filter(|_| bytes > 0).ok_or(CUresult::INVALID_VALUE)?;
        let (mut at, mut starts) = (address, Vec::new());
        while at < end {
            let mapping = self.mapped.get(&at).ok_or(CUresult::INVALID_VALUE)?;
            starts.push(at);
            at += mapping.bytes;
        }
        if at == end { Ok(starts) } else { Err(CUresult::INVALID_VALUE) }
    }

    /// Takes mappings away; the node's physical memory that went with the last of them.
    pub(super) fn unmap(&mut self, address: u64, bytes: u64) -> Result<Vec<u64>, CUresult> {
        let mut unused = Vec::new();
        for start in self.whole_mappings(address, bytes)? {
            let Some(Mapping { handle, device_side, .. }) = self.mapped.remove(&start) else { continue };
            if let Some(physical) = self.physical.get_mut(&handle) {
                physical.mappings -= 1;
            }
            let is_unused = self.remove_unused(handle);
            unused.extend(device_side.or(is_unused.then_some(handle)));
        }
        Ok(unused)
    }

    /// The file behind host memory, which the node does not have.
    pub(super) fn file_of(&self, handle: u64) -> Option<Arc<OwnedFd>> {
        self.physical.get(&handle)?.file.clone()
    }

    /// The starts of the mappings of host memory that a range consists of.
    pub(super) fn host_mappings(&self, address: u64, bytes: u64) -> Result<Vec<u64>, CUresult> {
        let starts = self.whole_mappings(address, bytes)?.into_iter();
        Ok(starts.filter(|start| self.mapped[start].device_side.is_some()).collect())
    }

    /// The mapping that `address` lies in, its start, and what it maps.
    pub(crate) fn find(&self, address: u64) -> Option<(u64, &Mapping, &Physical)> {
        let (&start, mapping) = self.mapped.range(..=address).next_back()?;
        let physical = self.physical.get(&mapping.handle)?;
        (address - start < mapping.bytes).then_some((start, mapping, physical))
    }

    /// Start and bytes of the imported allocation that `address` lies in.
    pub(crate) fn imported_at(&self, address: u64) -> Option<(u64, u64)> {
        let (&start, imported) = self.imported.range(..=address).next_back()?;
        (address - start < imported.bytes).then_some((start, imported.bytes))
    }

    /// Whether a copy may use all of a range; neighbouring mappings are one range to a program.
    pub(crate) fn is_accessible(&self, address: u64, bytes: u64) -> bool {
        let Some(end) = address.checked_add(bytes) else { return false };
        let mut at = address;
        while at < end {
            match self.find(at) {
                Some((start, mapping, _)) if mapping.access != CUmemAccess_flags::NONE => {
                    at = start + mapping.bytes
                }
                _ => return false,
            }
        }
        true
    }
}

fn within(start: u64, size: u64, address: u64, bytes: u64) -> bool {
    address.checked_sub(start).is_some_and(|offset| offset < size && bytes <= size - offset)
}

pub(super) fn check_granular(value: u64) -> Result<(), CUresult> {
    if value != 0 && value.is_multiple_of(CHUNK) { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
}

/// Memory of another process at an address of this one.
#[derive(Clone, Debug)]
pub(crate) struct Imported {
    pub(super) name: ExportToken,
    /// Where the allocation begins in what was exported.
    pub(super) offset: u64,
    /// Bytes of the allocation.
    pub(crate) bytes: u64,
    pub(super) device: CUdevice,
    /// All that was exported: where it is mapped, and how large it is.
    pub(super) mapping: (u64, u64),
    /// Whether it came out of a pool: then it is freed, not closed.
    pub(super) from_pool: bool,
    pub(super) opened: u32,
}

/// Whether other processes may have memory of this one, or this one theirs.
static SOME_SHARED: AtomicBool = AtomicBool::new(false);

/// Says whether memory is shared with other processes.
pub(crate) fn some_shared() -> bool {
    SOME_SHARED.load(Ordering::Acquire)
}

/// Notes that memory is shared with other processes; says whether it was before.
pub(super) fn set_some_shared() -> bool {
    SOME_SHARED.swap(true, Ordering::AcqRel)
}

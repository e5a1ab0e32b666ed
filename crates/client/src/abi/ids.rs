//! Handles: opaque numbers that the client mints, and the tables of what they stand for.
//!
//! A handle is the same number in the program and on the wire. It names its kind, so that a stream
//! passed as an event is refused, and it is never used twice, so that a destroyed one is refused
//! too. It also names the device for which it was made, and with it the node where the object
//! lives. Programs never follow it.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use sluice_cuda::CUdevice;

/// Above every address a user process can have, yet below 2^56: a handle that a program does follow
/// faults.
const KIND_SHIFT: u32 = 48;
/// Below the kind, the device: seven bits. The bit between tells nodes that a worker has named
/// ([`of_worker`]).
const DEVICE_SHIFT: u32 = 40;
/// Most devices of a process.
pub(crate) const DEVICES_MAX: usize = 128;
const DEVICE_BITS: u64 = (DEVICES_MAX as u64 - 1) << DEVICE_SHIFT;
const _: () = assert!(sluice_wire::WORKER_NODES & DEVICE_BITS == 0);
/// Handles look like aligned pointers, as some programs keep flags in the low bits.
const STEP: u64 = 16;

static NEXT: AtomicU64 = AtomicU64::new(1);

/// What a handle is a handle of; part of its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Context = 1,
    Stream,
    Event,
    /// Libraries too: a library is a module that its device loads at once.
    Module,
    Function,
    Graph,
    GraphExec,
    GraphNode,
    Pool,
    LinkState,
    Physical,
    UserObject,
    Array,
    MipmappedArray,
    GreenCtx,
    ResourceDesc,
    TexRef,
    SurfRef,
    /// The function of a library's module, under the number that it has as a function. Programs
    /// pass kernels where functions are asked for, and graphs answer with what they were given.
    Kernel,
}

/// The kernel that is this function.
pub(crate) fn kernel_of(function: u64) -> u64 {
    as_kind(function, Kind::Kernel)
}

/// The function that a handle of a function or of a kernel stands for.
pub(crate) fn function_of(handle: u64) -> u64 {
    if is_of(Kind::Kernel, handle) { as_kind(handle, Kind::Function) } else { handle }
}

fn as_kind(handle: u64, kind: Kind) -> u64 {
    (u64::from(kind as u8) << KIND_SHIFT) | handle & ((1 << KIND_SHIFT) - 1)
}

/// A new handle of an object on this device.
pub(crate) fn mint_on(device: CUdevice, kind: Kind) -> u64 {
    let device = (device as u64) << DEVICE_SHIFT & DEVICE_BITS;
    let sequence = (NEXT.fetch_add(1, Ordering::Relaxed) * STEP) & ((1 << DEVICE_SHIFT) - 1);
    (u64::from(kind as u8) << KIND_SHIFT) | device | sequence
}

/// The device for which a handle was made; `None` for what is none: null, or a default stream.
pub(crate) fn device(handle: u64) -> Option<CUdevice> {
    (handle >> KIND_SHIFT != 0).then_some(((handle & DEVICE_BITS) >> DEVICE_SHIFT) as CUdevice)
}

/// The handle on a device of a graph's node that its worker has named.
pub(crate) fn of_worker_on(device: CUdevice, name: u64) -> u64 {
    name | (device as u64) << DEVICE_SHIFT & DEVICE_BITS
}

/// What the worker knows a node by.
pub(crate) fn for_worker(handle: u64) -> u64 {
    if handle & sluice_wire::WORKER_NODES == sluice_wire::WORKER_NODES {
        handle & !DEVICE_BITS
    } else {
        handle
    }
}

/// Whether a handle says that it is of this kind.
pub(crate) fn is_of(kind: Kind, handle: u64) -> bool {
    handle >> KIND_SHIFT == u64::from(kind as u8)
}

/// What a handle says that it is of.
pub(crate) fn kind(handle: u64) -> Option<Kind> {
    const KINDS: [Kind; 19] = [
        Kind::Context,
        Kind::Stream,
        Kind::Event,
        Kind::Module,
        Kind::Function,
        Kind::Graph,
        Kind::GraphExec,
        Kind::GraphNode,
        Kind::Pool,
        Kind::LinkState,
        Kind::Physical,
        Kind::UserObject,
        Kind::Array,
        Kind::MipmappedArray,
        Kind::GreenCtx,
        Kind::ResourceDesc,
        Kind::TexRef,
        Kind::SurfRef,
        Kind::Kernel,
    ];
    KINDS.into_iter().find(|&kind| is_of(kind, handle))
}

/// A handle's own number in this process, from 1.
pub(crate) fn sequence(handle: u64) -> u64 {
    (handle & ((1 << DEVICE_SHIFT) - 1)) / STEP
}

/// The live objects of one kind, by handle.
#[derive(Debug)]
pub(crate) struct Table<T> {
    objects: RwLock<HashMap<u64, Arc<T>, BuildHasherDefault<HandleHasher>>>,
}

impl<T> Table<T> {
    pub(crate) const fn new() -> Self {
        Table { objects: RwLock::new(HashMap::with_hasher(BuildHasherDefault::new())) }
    }

    pub(crate) fn insert(&self, handle: u64, object: T) -> Arc<T> {
        let object = Arc::new(object);
        self.write().insert(handle, Arc::clone(&object));
        object
    }

    pub(crate) fn get(&self, handle: u64) -> Option<Arc<T>> {
        self.read().get(&handle).cloned()
    }

    pub(crate) fn contains(&self, handle: u64) -> bool {
        self.read().contains_key(&handle)
    }

    pub(crate) fn remove(&self, handle: u64) -> Option<Arc<T>> {
        self.write().remove(&handle)
    }

    /// Removes every object that `belongs` holds for.
    pub(crate) fn remove_where(&self, belongs: impl Fn(&T) -> bool) {
        self.write().retain(|_, object| !belongs(object));
    }

    pub(crate) fn clear(&self) {
        self.write().clear();
    }

    /// The handles of every object that `belongs` holds for, oldest first.
    pub(crate) fn find(&self, belongs: impl Fn(&T) -> bool) -> Vec<u64> {
        let objects = self.read();
        let mut handles: Vec<u64> =
            objects.iter().filter(|(_, object)| belongs(object)).map(|(&handle, _)| handle).collect();
        handles.sort_unstable();
        handles
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, HashMap<u64, Arc<T>, BuildHasherDefault<HandleHasher>>> {
        self.objects.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(
        &self,
    ) -> std::sync::RwLockWriteGuard<'_, HashMap<u64, Arc<T>, BuildHasherDefault<HandleHasher>>> {
        self.objects.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Handles are counters, so one multiplication spreads them well enough, and a launch looks up two.
#[derive(Default)]
pub(crate) struct HandleHasher(u64);

impl Hasher for HandleHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(20);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_unique_and_name_their_kind() {
        let (first, second) = (mint_on(0, Kind::Event), mint_on(0, Kind::Event));
        assert!(sequence(first) < sequence(second));
        assert_ne!(first, second);
        assert_eq!(first >> KIND_SHIFT, Kind::Event as u64);
        assert_eq!(first % STEP, 0);
    }

    #[test]
    fn a_handle_names_its_device() {
        let handle = mint_on(127, Kind::MipmappedArray);
        assert_eq!((device(handle), handle >> KIND_SHIFT), (Some(127), Kind::MipmappedArray as u64));
        assert!(sequence(mint_on(127, Kind::Event)) > sequence(handle));
        assert_eq!([0, 1, 2].map(device), [None; 3]);
    }

    #[test]
    fn a_name_of_a_worker_comes_back_to_it() {
        let name = sluice_wire::WORKER_NODES + 7 * STEP;
        let handle = name | 5 << DEVICE_SHIFT;
        assert_eq!((device(handle), for_worker(handle)), (Some(5), name));
        assert!(is_of(Kind::GraphNode, handle));
        let own = mint_on(5, Kind::GraphNode);
        assert_eq!(for_worker(own), own);
    }

    #[test]
    fn a_kernel_is_told_from_its_function() {
        let function = mint_on(3, Kind::Function);
        let kernel = kernel_of(function);
        assert_ne!(kernel, function);
        assert_eq!((function_of(kernel), function_of(function)), (function, function));
        assert_eq!((kind(kernel), device(kernel)), (Some(Kind::Kernel), Some(3)));
    }

    #[test]
    fn a_removed_object_is_gone() {
        let table = Table::new();
        let handle = mint_on(0, Kind::Graph);
        table.insert(handle, "object");
        assert_eq!(table.get(handle).as_deref(), Some(&"object"));
        assert!(table.remove(handle).is_some() && table.get(handle).is_none());
    }
}

//! Live objects by handle.
//!
//! A handle is a number that this driver minted, never an address that it would follow: what a
//! program passes is looked up, so a destroyed, foreign or made-up handle is an error and nothing
//! worse. Numbers are not used twice.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

pub(crate) struct Table<T> {
    kind: usize,
    minted: AtomicUsize,
    live: RwLock<BTreeMap<usize, Arc<T>>>,
}

impl<T> Table<T> {
    /// A table whose handles carry `kind` (nonzero) in their upper half, so that one kind never
    /// passes for another.
    pub(crate) const fn new(kind: usize) -> Self {
        Self { kind, minted: AtomicUsize::new(1), live: RwLock::new(BTreeMap::new()) }
    }

    /// Mints a handle without an object yet.
    pub(crate) fn mint(&self) -> usize {
        // Multiples of 16, as pointers would be: some programs keep flags in the low bits.
        self.kind << 32 | self.minted.fetch_add(1, Ordering::Relaxed) << 4
    }

    /// Adds the object that `make` builds around its handle.
    pub(crate) fn insert(&self, make: impl FnOnce(usize) -> T) -> Arc<T> {
        let handle = self.mint();
        let object = Arc::new(make(handle));
        self.insert_at(handle, Arc::clone(&object));
        object
    }

    /// Puts an object under a handle minted earlier.
    pub(crate) fn insert_at(&self, handle: usize, object: Arc<T>) {
        self.live.write().unwrap_or_else(PoisonError::into_inner).insert(handle, object);
    }

    pub(crate) fn get(&self, handle: usize) -> Option<Arc<T>> {
        self.live.read().unwrap_or_else(PoisonError::into_inner).get(&handle).cloned()
    }

    pub(crate) fn remove(&self, handle: usize) -> Option<Arc<T>> {
        self.live.write().unwrap_or_else(PoisonError::into_inner).remove(&handle)
    }

    /// Removes and returns every object that `which` picks.
    pub(crate) fn remove_all(&self, which: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut live = self.live.write().unwrap_or_else(PoisonError::into_inner);
        let picked: Vec<usize> =
            live.iter().filter(|(_, object)| which(object)).map(|(&handle, _)| handle).collect();
        picked.iter().filter_map(|handle| live.remove(handle)).collect()
    }

    /// Every live object.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.live.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}

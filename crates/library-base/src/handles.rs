//! The state behind the handles that a library gives out.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The objects of one kind, by the numbers that callers know them by. A number is not the address
/// of anything, so a wrong one is recognised.
pub struct Handles<T> {
    inner: Mutex<Inner<T>>,
}

struct Inner<T> {
    by_id: Option<HashMap<usize, Arc<Mutex<T>>>>,
    next: usize,
}

impl<T> Handles<T> {
    /// An empty table whose numbers begin behind `first`.
    pub const fn new(first: usize) -> Handles<T> {
        Handles { inner: Mutex::new(Inner { by_id: None, next: first }) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an object in and returns its number, which no other object gets later.
    pub fn insert(&self, object: T) -> usize {
        let mut inner = self.lock();
        inner.next += 1;
        let id = inner.next;
        inner.by_id.get_or_insert_default().insert(id, Arc::new(Mutex::new(object)));
        id
    }

    pub fn get(&self, id: usize) -> Option<Arc<Mutex<T>>> {
        self.lock().by_id.get_or_insert_default().get(&id).cloned()
    }

    pub fn remove(&self, id: usize) -> Option<Arc<Mutex<T>>> {
        self.lock().by_id.get_or_insert_default().remove(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_known_until_its_object_is_removed() {
        let handles = Handles::new(0x1000);
        let (a, b) = (handles.insert("a"), handles.insert("b"));
        assert_ne!(a, b);
        assert_eq!(*handles.get(b).expect("there").lock().expect("free"), "b");
        assert!(handles.remove(a).is_some());
        assert!(handles.get(a).is_none());
        assert!(handles.remove(a).is_none());
        assert_ne!(handles.insert("c"), a, "numbers are not used again");
    }
}

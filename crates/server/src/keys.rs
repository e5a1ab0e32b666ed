//! Idempotency keys of requests that are being answered: a repetition waits for the first.

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::store::KeyUse;

tokio::task_local! {
    /// The key of the request that is being carried out, until something is written for it.
    static IN_HAND: Cell<Option<KeyUse>>;
}

/// Carries out a request that came under a key, and gives the key back if nothing was written with
/// it.
pub(crate) async fn carry<T>(key: KeyUse, request: impl Future<Output = T>) -> (T, Option<KeyUse>) {
    let carried = async move { (request.await, take()) };
    IN_HAND.scope(Cell::new(Some(key)), carried).await
}

/// The key of the request that is being carried out: it belongs to what is written for it, which
/// takes it.
pub(crate) fn take() -> Option<KeyUse> {
    IN_HAND.try_with(Cell::take).ok().flatten()
}

/// The id of a token, and the key that came under it.
type Key = (String, String);

#[derive(Default)]
pub(crate) struct KeysInUse {
    keys: Mutex<HashSet<Key>>,
    freed: Notify,
}

/// The key is this request's until this is dropped.
pub(crate) struct KeyHeld<'a> {
    all: &'a KeysInUse,
    key: Key,
}

impl KeysInUse {
    pub(crate) async fn hold(&self, token: &str, key: &str) -> KeyHeld<'_> {
        let key = (token.to_owned(), key.to_owned());
        loop {
            let freed = self.freed.notified();
            if self.lock().insert(key.clone()) {
                return KeyHeld { all: self, key };
            }
            freed.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<Key>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for KeyHeld<'_> {
    fn drop(&mut self) {
        self.all.lock().remove(&self.key);
        self.all.freed.notify_waiters();
    }
}

//! Whether the database finds room for what is written.
//!
//! A full disk ends nothing: what is in the database is read, nothing else becomes true, and
//! requests that would change something are refused before they begin, so that each does not cost a
//! failed transaction and reading everything again. The leader's own word, once a second, finds out
//! when there is room again.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sluice_api::problem::{Kind, Problem};

use crate::store::StoreError;

/// Where a little room comes and goes, the log says so no more often.
const SAY_EVERY: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(crate) struct Disk(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    full: bool,
    /// When the log said last that it is full.
    said: Option<Instant>,
    /// The last word in the log is that it is full.
    said_full: bool,
}

impl Disk {
    /// Notes what became of a transaction, before any request learns of it.
    pub(crate) fn note<T>(&self, written: &Result<T, StoreError>) {
        let mut state = self.lock();
        match written {
            Ok(_) => {
                state.full = false;
                if std::mem::take(&mut state.said_full) {
                    tracing::info!("there is room for the database again");
                }
            }
            Err(error @ StoreError::DiskFull(_)) => {
                state.full = true;
                if state.said.is_none_or(|at| at.elapsed() >= SAY_EVERY) {
                    tracing::error!(
                        "{error}. Nothing is written until there is room; what runs continues, and what is there is \
                         read"
                    );
                    (state.said, state.said_full) = (Some(Instant::now()), true);
                }
            }
            // Nothing is known of the disk.
            Err(_) => {}
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.lock().full
    }

    /// Why something is not done: the disk, if it is full, and else what the caller knows.
    pub(crate) fn problem_or(&self, detail: &str) -> Problem {
        if self.is_full() { full() } else { Problem::new(Kind::Unavailable, detail) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn full() -> Problem {
    let detail = "the disk of the server's database is full, so nothing was done; programs that run continue. Make room there and ask \
                  again: the server continues by itself";
    Problem::new(Kind::DiskFull, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_full_until_something_is_written() {
        let disk = Disk::default();
        assert!(disk.problem_or("no leader").is(Kind::Unavailable));
        disk.note::<()>(&Err(StoreError::DiskFull(sqlx::Error::PoolClosed)));
        assert!(disk.is_full() && disk.problem_or("no leader").is(Kind::DiskFull));
        disk.note::<()>(&Err(StoreError::Fenced));
        assert!(disk.is_full(), "that says nothing of the disk");
        disk.note(&Ok(()));
        assert!(!disk.is_full());
    }
}

//! Which command an answer belongs to.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

/// A command of this process: the lane of the thread that sent it, and its number in that lane.
pub(crate) type CommandId = (u32, u64);

static NEXT_LANE: AtomicU32 = AtomicU32::new(1);

thread_local! {
    /// The id of the last command that this thread has sent; lane 0 before the first.
    static LAST: Cell<CommandId> = const { Cell::new((0, 0)) };
}

/// Returns the id of this thread's next command.
pub(super) fn next() -> CommandId {
    let next = |last: &Cell<CommandId>| {
        let (lane, sequence) = match last.get() {
            (0, _) => (NEXT_LANE.fetch_add(1, Ordering::Relaxed), 0),
            (lane, sequence) => (lane, sequence + 1),
        };
        last.set((lane, sequence));
        (lane, sequence)
    };
    // A thread whose locals have been destroyed sends each of its last commands in a new lane.
    LAST.try_with(next).unwrap_or_else(|_| (NEXT_LANE.fetch_add(1, Ordering::Relaxed), 0))
}

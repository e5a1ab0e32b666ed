//! Pieces of work that streams order: what they are and how each is done.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use sluice_cuda::{CUhostFn, CUstream, CUstreamCallback};
use sluice_jit::Working;

use crate::base::status::{Result, Status};
use crate::base::ticket::Ticket;
use crate::context::Context;
use crate::memory;
use crate::memory::allocation;
use crate::memory::copy::{Copy, Fill};
use crate::memory::tiles::Change;
use crate::module::launch::Launch;
use crate::work::conditional::Variable;
use crate::work::event::Event;
use crate::work::steps::Branches;
use crate::work::user_object::Kept;

/// One piece of work. Clones are the same work: a graph keeps one and submits it with each launch.
#[derive(Clone)]
pub(crate) enum Op {
    /// Nothing; a place in the order.
    Empty,
    Launch(Arc<Launch>),
    Copy(Arc<Copy>),
    Fill(Fill),
    HostCall(HostCall),
    Callback(Callback),
    /// Tells those who wait for the ticket.
    Record(Arc<Ticket>),
    /// In a graph: gives the event a new ticket with each launch of the graph.
    RecordEvent(Arc<Event>),
    /// Waits for the ticket.
    Await(Arc<Ticket>),
    /// In a graph: waits for what the event stands for when the graph is launched.
    AwaitEvent(Arc<Event>),
    /// Frees the pool allocation at this address.
    Free(u64),
    WriteValue(Value),
    /// A launch of a graph begins: the variable has its first value.
    Assign(Arc<Variable>),
    /// A conditional node.
    Branch(Arc<Branches>),
    AwaitValue(Value, Comparison),
    /// Maps memory to arrays, or takes it away.
    MapTiles(Arc<Vec<Change>>),
    /// A launch of a graph is over: what it has kept alive may go.
    LetGo(Arc<Kept>),
}

/// A host function (`cuLaunchHostFunc`).
#[derive(Clone, Copy)]
pub(crate) struct HostCall {
    pub(crate) function: CUhostFn,
    pub(crate) data: *mut c_void,
}

// SAFETY: the program asked for the function to be called with this pointer on a thread of the
// driver.
unsafe impl Send for HostCall {}
// SAFETY: as above; the pointer is never followed here.
unsafe impl Sync for HostCall {}

/// A stream callback (`cuStreamAddCallback`).
#[derive(Clone, Copy)]
pub(crate) struct Callback {
    pub(crate) function: CUstreamCallback,
    pub(crate) stream: CUstream,
    pub(crate) data: *mut c_void,
}

// SAFETY: as for `HostCall`.
unsafe impl Send for Callback {}
// SAFETY: as for `HostCall`.
unsafe impl Sync for Callback {}

/// A word of device memory with a value to write or to compare with (CUDA Driver API, Stream Memory
/// Operations).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Value {
    /// Checked when the work was submitted: in an allocation and a multiple of the width.
    pub(crate) address: u64,
    pub(crate) value: u64,
    pub(crate) is_64_bit: bool,
}

/// When a waited-for word is right (`CUstreamWaitValue_flags`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    /// The word minus the value, as a signed number, is not negative.
    GreaterOrEqual,
    Equal,
    And,
    Nor,
}

impl Op {
    /// Whether it can run now, its turn in the stream given.
    pub(crate) fn is_ready(&self) -> bool {
        match self {
            Op::Await(ticket) => ticket.is_done(),
            Op::AwaitValue(value, comparison) => value.satisfies(*comparison),
            _ => true,
        }
    }

    /// Bytes of host memory that it holds while it is queued, about: its place in the queue, and
    /// what is kept for it alone.
    pub(crate) fn bytes(&self) -> usize {
        /// With the tickets, boxes and counts behind it.
        const PLACE: usize = 256;
        PLACE
            + match self {
                Op::Launch(launch) => launch.parameter_bytes(),
                Op::Copy(copy) => copy.staged_bytes(),
                Op::MapTiles(changes) => changes.len() * size_of::<Change>(),
                _ => 0,
            }
    }

    /// Whether it becomes ready by a change of memory, perhaps of another process, which is not
    /// announced.
    pub(crate) fn waits_for_memory(&self) -> bool {
        match self {
            Op::AwaitValue(..) => true,
            Op::Await(ticket) => ticket.is_shared(),
            _ => false,
        }
    }

    /// Whether it is a function of the program.
    pub(crate) fn is_function(&self) -> bool {
        matches!(self, Op::HostCall(_) | Op::Callback(_))
    }

    /// Whose time it takes.
    pub(crate) fn effort(&self) -> Effort {
        match self {
            Op::Launch(_) | Op::Copy(_) | Op::Fill(_) | Op::Branch(_) => Effort::Device,
            Op::HostCall(_) | Op::Callback(_) | Op::Free(_) | Op::MapTiles(_) | Op::LetGo(_) => Effort::Host,
            Op::Empty | Op::Await(_) | Op::AwaitValue(..) | Op::AwaitEvent(_) => Effort::None,
            Op::RecordEvent(_) | Op::Record(_) | Op::WriteValue(_) | Op::Assign(_) => Effort::None,
        }
    }

    /// Does it. An error is a failure of the context.
    pub(crate) fn run(&self, context: &Context) -> Result<()> {
        match self {
            Op::Empty | Op::Await(_) | Op::AwaitValue(..) | Op::AwaitEvent(_) | Op::RecordEvent(_) => {}
            Op::Launch(launch) => return launch.run(context),
            Op::Copy(copy) => {
                let _working = begin(context);
                return copy.run();
            }
            Op::Fill(fill) => {
                let _working = begin(context);
                return fill.run();
            }
            Op::HostCall(HostCall { function, data }) => {
                if let Some(function) = function {
                    // SAFETY: the program gave function and argument for this call.
                    unsafe { function(*data) }
                }
            }
            Op::Callback(callback) => callback.run(Status::SUCCESS),
            Op::Record(ticket) => ticket.complete(),
            Op::Free(address) => memory::free_from_pool(*address),
            Op::WriteValue(value) => return value.write(),
            Op::Assign(variable) => variable.assign(),
            Op::Branch(branches) => return branches.run(context),
            Op::MapTiles(changes) => changes.iter().for_each(Change::make),
            Op::LetGo(kept) => kept.let_go(),
        }
        Ok(())
    }

    /// Passes over it after a failure of the context, which is `status`.
    pub(crate) fn skip(&self, status: Status) {
        match self {
            Op::Record(ticket) => ticket.complete(),
            Op::Callback(callback) => callback.run(status),
            Op::Free(address) => memory::free_from_pool(*address),
            Op::LetGo(kept) => kept.let_go(),
            _ => {}
        }
    }
}

/// Whose time a piece of work takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// The device's, which counts.
    Device,
    /// That of the driver or of the program, which does not.
    Host,
    /// Next to none.
    None,
}

/// Waits while the device is paused; what comes then is its work, or a part of that.
fn begin(context: &Context) -> Working<'static> {
    let control = &context.device.control;
    control.wait_resumed();
    control.work()
}

impl Callback {
    fn run(&self, status: Status) {
        if let Some(function) = self.function {
            // SAFETY: the program gave function and argument for this call.
            unsafe { function(self.stream, status, self.data) }
        }
    }
}

impl Value {
    fn write(&self) -> Result<()> {
        allocation::check_at_turn(self.address, if self.is_64_bit { 8 } else { 4 })?;
        if self.is_64_bit {
            // SAFETY: a mapped and aligned word, which device code may change at the same time:
            // atomic.
            unsafe { AtomicU64::from_ptr(self.address as *mut u64) }.store(self.value, Ordering::Release);
        } else {
            // SAFETY: as above.
            unsafe { AtomicU32::from_ptr(self.address as *mut u32) }
                .store(self.value as u32, Ordering::Release);
        }
        Ok(())
    }

    fn satisfies(&self, comparison: Comparison) -> bool {
        let (word, difference) = if self.is_64_bit {
            // SAFETY: a mapped and aligned word, which device code may change at the same time:
            // atomic.
            let word = unsafe { AtomicU64::from_ptr(self.address as *mut u64) }.load(Ordering::Acquire);
            (word, word.wrapping_sub(self.value) as i64)
        } else {
            // SAFETY: as above.
            let word = unsafe { AtomicU32::from_ptr(self.address as *mut u32) }.load(Ordering::Acquire);
            (u64::from(word), i64::from(word.wrapping_sub(self.value as u32) as i32))
        };
        let mask = if self.is_64_bit { u64::MAX } else { u64::from(u32::MAX) };
        match comparison {
            Comparison::GreaterOrEqual => difference >= 0,
            Comparison::Equal => difference == 0,
            Comparison::And => word & self.value != 0,
            Comparison::Nor => !(word | self.value) & mask != 0,
        }
    }
}

//! How a launch fails.

use std::fmt;

use thiserror::Error;

/// Why a launch did not complete.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum LaunchError {
    /// Device code failed, or was cancelled. Memory is in the state in which it was left.
    #[error("{0}")]
    Fault(Fault),
    #[error("a grid dimension is zero or the grid has more than 2^63 blocks")]
    GridShape,
    #[error("a block of {threads} threads: 1 to {max} are possible")]
    BlockShape { threads: u64, max: u32 },
    #[error("clusters of {cluster:?} blocks: 1 to {max} are possible, and they have to divide the grid")]
    ClusterShape { cluster: [u32; 3], max: u32 },
    #[error("{given} bytes of parameters, the kernel takes {expected}")]
    Params { given: usize, expected: usize },
    #[error("{given} addresses of module variables, the kernel uses {expected}")]
    Globals { given: usize, expected: usize },
    #[error("{given} counters, the kernel has {expected}")]
    Counters { given: usize, expected: usize },
    #[error("the arena has {given} bytes, this launch needs {needed}")]
    Arena { given: u64, needed: u64 },
    #[error("the arena is outside of the device address range or not 256-byte aligned")]
    ArenaPlace,
    /// The kernel was compiled on first use for this block shape and that failed.
    #[error("{0}")]
    Compile(#[from] crate::CompileError),
}

/// A failure of device code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub kind: FaultKind,
    /// Index of the block in which it happened; `None` when cancelled between blocks.
    pub block: Option<[u32; 3]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// A global or generic access outside of the device address range, or to an unmapped page.
    IllegalAddress { address: u64 },
    /// A shared or local access outside of its window; the address is the one in the window.
    OutOfWindow { address: u64 },
    /// An address that is not a multiple of the access size where the instruction demands it.
    MisalignedAddress { address: u64 },
    /// `trap`, or an abort of device code.
    Trap,
    /// `assert` failed; the message went to the launch's output.
    Assert,
    /// An instruction that no machine executes: `brx` out of range, a null function.
    IllegalInstruction,
    /// What the compiler could not do was reached; [`crate::CompiledKernel::missing`] says what it
    /// is.
    Missing { what: u32 },
    /// The calls of a thread need more stack than the launch gives.
    StackOverflow,
    /// Every thread of the block waits and none can continue.
    Deadlock,
    /// [`crate::Control::cancel`] or [`crate::LaunchControl::cancel`].
    Cancelled,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            FaultKind::IllegalAddress { address } => write!(f, "illegal address {address:#x}")?,
            FaultKind::OutOfWindow { address } => {
                write!(f, "address {address:#x} outside of its state space")?
            }
            FaultKind::MisalignedAddress { address } => write!(f, "misaligned address {address:#x}")?,
            FaultKind::Trap => write!(f, "trap")?,
            FaultKind::Assert => write!(f, "device assertion failed")?,
            FaultKind::IllegalInstruction => write!(f, "illegal instruction")?,
            FaultKind::Missing { .. } => write!(f, "illegal instruction")?,
            FaultKind::StackOverflow => {
                write!(f, "stack overflow (cuCtxSetLimit sets the size of the stack)")?
            }
            FaultKind::Deadlock => write!(f, "every thread of the block waits")?,
            FaultKind::Cancelled => write!(f, "cancelled")?,
        }
        match self.block {
            Some([x, y, z]) => write!(f, " in block ({x}, {y}, {z})"),
            None => Ok(()),
        }
    }
}

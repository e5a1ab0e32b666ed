//! What was found, as reports show it.

use serde::{Deserialize, Serialize};

/// An error of a kernel or of the program, with the first place where it was seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub kind: Kind,
    /// The kernel's name in the module. Errors of the program's own calls have none.
    pub kernel: Option<String>,
    pub access: Option<AccessText>,
    /// Line of the PTX text, from 1; 0 for none.
    pub ptx_line: u32,
    /// Where the module has line information.
    pub source: Option<Source>,
    /// Index of the block.
    pub block: Option<[u32; 3]>,
    /// Index of the thread in its block.
    pub thread: Option<[u32; 3]>,
    /// In global memory an address, in shared and local memory an offset.
    pub address: Option<u64>,
    /// The allocation that the address is in, or the nearest one.
    pub region: Option<Region>,
    /// The access that a race is with.
    pub other: Option<Other>,
    /// What else there is to say.
    pub detail: Option<String>,
    /// How often it was seen.
    pub count: u64,
}

/// Kinds of errors; suppressions and reports name them in kebab case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// An access outside of every allocation, or of its state space.
    OutOfBounds,
    /// An access to memory that was freed.
    UseAfterFree,
    /// An address that is not a multiple of the access's size.
    Misaligned,
    /// A copy or fill by the program of memory that is not allocated.
    InvalidCopy,
    /// A read of memory that was never written.
    UninitializedRead,
    /// Accesses of threads of one block that nothing orders.
    Race,
    /// Accesses of several blocks to global memory that nothing orders.
    RaceBetweenBlocks,
    /// A lane executes a collective instruction whose member mask does not name it.
    InvalidMask,
    /// Lanes wait for others that their member mask names, which never come.
    MissingLanes,
    /// Threads of one warp meet at a barrier of whole warps from different instructions.
    DivergentBarrier,
    /// Threads have exited when the others of their block come to a barrier of all threads.
    ExitedAtBarrier,
    /// Threads wait at a barrier to which the others never come.
    BarrierDeadlock,
    /// Device memory that was not freed.
    Leak,
}

impl Kind {
    /// The name in reports and suppressions.
    pub fn name(self) -> &'static str {
        match self {
            Kind::OutOfBounds => "out-of-bounds",
            Kind::UseAfterFree => "use-after-free",
            Kind::Misaligned => "misaligned",
            Kind::InvalidCopy => "invalid-copy",
            Kind::UninitializedRead => "uninitialized-read",
            Kind::Race => "race",
            Kind::RaceBetweenBlocks => "race-between-blocks",
            Kind::InvalidMask => "invalid-mask",
            Kind::MissingLanes => "missing-lanes",
            Kind::DivergentBarrier => "divergent-barrier",
            Kind::ExitedAtBarrier => "exited-at-barrier",
            Kind::BarrierDeadlock => "barrier-deadlock",
            Kind::Leak => "leak",
        }
    }
}

/// What a thread did to memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessText {
    /// `read`, `write` or `atomic`.
    pub what: String,
    /// `global`, `shared`, `local` or `constant`.
    pub space: String,
    pub bytes: u32,
}

/// A line of the program's source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    pub file: String,
    pub line: u32,
}

/// An allocation near an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// What it is, such as "device memory".
    pub label: String,
    pub base: u64,
    pub bytes: u64,
    /// Number of the allocation in its process, from 1.
    pub number: u64,
    /// Of the address from the allocation's start, in bytes.
    pub offset: i64,
    pub is_freed: bool,
}

/// The earlier one of two accesses that race.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Other {
    /// `read` or `write`.
    pub what: String,
    pub ptx_line: u32,
    pub source: Option<Source>,
    /// Index of the thread in its block.
    pub thread: [u32; 3],
    /// Whether it is of the same block.
    pub is_same_block: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_their_names_in_json() {
        for kind in [Kind::OutOfBounds, Kind::RaceBetweenBlocks, Kind::Leak, Kind::ExitedAtBarrier] {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }
}

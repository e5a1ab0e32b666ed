//! What the generated dispatch needs of a session, and why a command is not executed.

use sluice_cuda::{CUdeviceptr, CUresult, CUstream, DriverTable};
use sluice_wire::{DevicePtr, Id, Op, WireError};

/// Checked to be the session's: an address, and bytes from there on.
pub(crate) type Range = (u64, u64);

/// The session as the generated dispatch sees it: every handle and address argument goes through
/// here, so that no number from the wire reaches the driver unchecked.
pub(crate) trait Execute {
    fn table(&self) -> &DriverTable;

    /// The driver's handle of a live object.
    fn find<I: Id>(&self, id: I) -> Result<I::Handle, CUresult>;

    /// Returns the driver's handle of a live object, and frees the id.
    fn remove<I: Id>(&self, id: I) -> Result<I::Handle, CUresult>;

    /// Refuses an id that is taken, or one too many; called before the driver makes anything.
    fn vacant<I: Id>(&self, id: I) -> Result<(), CUresult>;

    fn insert<I: Id>(&self, id: I, handle: I::Handle) -> Result<(), CUresult>;

    /// The address, if all `bytes` from it on are the session's own.
    fn range(&self, address: DevicePtr, bytes: u64) -> Result<CUdeviceptr, CUresult>;

    /// Has `act` give a stream work on memory of the session: this stream, or one that has its
    /// place, of the GPU that the memory is for.
    fn near(
        &self,
        memory: Range,
        stream: CUstream,
        act: impl FnOnce(CUstream) -> Result<(), CUresult>,
    ) -> Result<(), CUresult>;
}

/// Why a command was not executed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// The driver or a check of ours answered this.
    #[error("{0:?}")]
    Failed(CUresult),
    /// The client does not keep to the protocol: the session ends.
    #[error("{0}")]
    Malformed(#[from] WireError),
    #[error("unknown operation {0:?}")]
    UnknownOp(Op),
}

impl From<CUresult> for Refusal {
    fn from(result: CUresult) -> Refusal {
        Refusal::Failed(result)
    }
}

/// The driver's answer as a result.
pub(crate) fn finished(result: CUresult) -> Result<(), CUresult> {
    result.ok()
}

//! Streams that capture, and copies of this process's memory, which no capture may contain.

use sluice_cuda::{CUresult, CUstream, CUstreamCaptureStatus};

use crate::copies::host_copies::HostCopy;
use crate::session::Session;

impl Session {
    /// Begins a copy to or from memory of this process, which is refused in a stream that captures.
    pub(crate) fn host_copy(&self, stream: CUstream) -> Result<HostCopy<'_>, CUresult> {
        self.host_copies.begin(stream, || self.refuse_capture(stream))
    }

    /// Has `begin` make a stream capture, unless it is in the middle of such a copy.
    pub(crate) fn capture(&self, stream: CUstream, begin: impl FnOnce() -> CUresult) -> Result<(), CUresult> {
        self.host_copies.capture(stream, || {
            self.device()?.1.streams.capture(begin).ok()?;
            self.graphs.capture_begins(stream);
            Ok(())
        })
    }

    /// Refuses what a graph cannot repeat: clients add nodes for that.
    pub(crate) fn refuse_capture(&self, stream: CUstream) -> Result<(), CUresult> {
        let Some(ask) = self.table.cuStreamIsCapturing else { return Ok(()) };
        let mut status = CUstreamCaptureStatus::NONE;
        // SAFETY: the stream is live, and the driver writes to a local.
        unsafe { ask(stream, &mut status) }.ok()?;
        match status {
            CUstreamCaptureStatus::NONE => Ok(()),
            _ => Err(CUresult::STREAM_CAPTURE_UNSUPPORTED),
        }
    }
}

//! Copies to and from memory of this process: payloads, answers, staging. In a capture they would
//! become nodes that keep the address, and that read and write there at each launch, long after the
//! memory has other uses. Clients add nodes for such copies; so a stream either captures or is
//! in the middle of one.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_cuda::{CUresult, CUstream, CUstreamCaptureStatus};

use crate::session::Session;

/// How many such copies each stream is in the middle of, by the driver's handle.
#[derive(Debug, Default)]
pub(crate) struct HostCopies {
    busy: Mutex<HashMap<usize, u32>>,
}

/// One of them; over when it is dropped.
pub(crate) struct HostCopy<'a> {
    copies: &'a HostCopies,
    stream: CUstream,
}

impl HostCopies {
    fn lock(&self) -> MutexGuard<'_, HashMap<usize, u32>> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    /// Begins such a copy, which is refused in a stream that captures.
    pub(crate) fn host_copy(&self, stream: CUstream) -> Result<HostCopy<'_>, CUresult> {
        let copies = &self.host_copies;
        let mut busy = copies.lock();
        self.refuse_capture(stream)?;
        *busy.entry(stream.0).or_default() += 1;
        Ok(HostCopy { copies, stream })
    }

    /// Has `begin` make a stream capture, unless it is in the middle of such a copy.
    pub(crate) fn capture(&self, stream: CUstream, begin: impl FnOnce() -> CUresult) -> Result<(), CUresult> {
        let busy = self.host_copies.lock();
        if busy.contains_key(&stream.0) {
            return Err(CUresult::STREAM_CAPTURE_UNSUPPORTED);
        }
        self.device()?.1.streams.capture(begin).ok()?;
        self.graphs.capture_begins(stream);
        Ok(())
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

impl Drop for HostCopy<'_> {
    fn drop(&mut self) {
        let mut busy = self.copies.lock();
        if let Some(count) = busy.get_mut(&self.stream.0) {
            *count -= 1;
            if *count == 0 {
                busy.remove(&self.stream.0);
            }
        }
    }
}

//! Copies to and from memory of this process: payloads, answers, staging. In a capture they would
//! become nodes that keep the address, and that read and write there at each launch, long after the
//! memory has other uses. Clients add nodes for such copies; so a stream either captures or is
//! in the middle of one.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_cuda::{CUresult, CUstream};

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
    /// Begins one in a stream, unless `check` refuses: the stream may capture.
    pub(crate) fn begin(
        &self,
        stream: CUstream,
        check: impl FnOnce() -> Result<(), CUresult>,
    ) -> Result<HostCopy<'_>, CUresult> {
        let mut busy = self.lock();
        check()?;
        *busy.entry(stream.0).or_default() += 1;
        Ok(HostCopy { copies: self, stream })
    }

    /// Has `capture` make a stream capture, unless it is in the middle of such a copy.
    pub(crate) fn capture(
        &self,
        stream: CUstream,
        capture: impl FnOnce() -> Result<(), CUresult>,
    ) -> Result<(), CUresult> {
        let busy = self.lock();
        match busy.contains_key(&stream.0) {
            true => Err(CUresult::STREAM_CAPTURE_UNSUPPORTED),
            false => capture(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<usize, u32>> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
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

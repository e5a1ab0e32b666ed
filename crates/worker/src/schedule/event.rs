//! Events that are the worker's own.

use sluice_cuda::{
    CU_EVENT_BLOCKING_SYNC, CU_EVENT_DISABLE_TIMING, CUevent, CUresult, CUstream, DriverTable,
};

/// One of them, of the context that was current when it was made; destroyed when the last holder is
/// gone.
pub(crate) struct Event {
    table: DriverTable,
    handle: CUevent,
}

impl Event {
    pub(crate) fn new(table: &DriverTable) -> Result<Event, CUresult> {
        let create = table.cuEventCreate.ok_or(CUresult::NOT_SUPPORTED)?;
        let mut handle = CUevent::NULL;
        // SAFETY: the driver writes one handle to a local. Who waits for it sleeps.
        unsafe { create(&mut handle, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING) }.ok()?;
        Ok(Event { table: *table, handle })
    }

    #[cfg(test)]
    pub(crate) fn number(&self) -> usize {
        self.handle.0
    }

    /// In a live stream of the event's context, which does not capture.
    pub(crate) fn record(&self, stream: CUstream) -> Result<(), CUresult> {
        let record = self.table.cuEventRecord.ok_or(CUresult::NOT_SUPPORTED)?;
        // SAFETY: the event is live, and the caller vouches for the stream.
        unsafe { record(self.handle, stream) }.ok()
    }

    /// Has a live stream of any context wait for the last record.
    pub(crate) fn hold(&self, stream: CUstream) -> Result<(), CUresult> {
        let wait = self.table.cuStreamWaitEvent.ok_or(CUresult::NOT_SUPPORTED)?;
        // SAFETY: the event is live, and the caller vouches for the stream.
        unsafe { wait(stream, self.handle, 0) }.ok()
    }

    /// Whether the stream has come to the last record, or never will.
    pub(crate) fn is_reached(&self) -> bool {
        // SAFETY: the event is live.
        self.table.cuEventQuery.is_some_and(|ask| unsafe { ask(self.handle) } != CUresult::NOT_READY)
    }

    pub(crate) fn wait(&self) -> Result<(), CUresult> {
        let wait = self.table.cuEventSynchronize.ok_or(CUresult::NOT_SUPPORTED)?;
        // SAFETY: the event is live.
        unsafe { wait(self.handle) }.ok()
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Some(destroy) = self.table.cuEventDestroy_v2 {
            // SAFETY: it is ours, and has no holder any more.
            let _ = unsafe { destroy(self.handle) };
        }
    }
}

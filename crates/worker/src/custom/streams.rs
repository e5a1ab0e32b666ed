//! The commands that set limits of a context, make and capture streams, and make, record and await
//! events.

use std::sync::atomic::Ordering::Relaxed;

use sluice_cuda::*;
use sluice_wire::commands;

use crate::session::Session;
use crate::session::checks::{self, bits};
use crate::session::execute::Execute;
use crate::sharing;

impl Session {
    pub(crate) fn stream_wait_event(&self, command: commands::cuStreamWaitEvent) -> Result<(), CUresult> {
        let wait = self.table.cuStreamWaitEvent.ok_or(CUresult::NOT_SUPPORTED)?;
        let (stream, event) = (self.find(command.hStream)?, self.find(command.hEvent)?);
        // SAFETY: stream and event are live.
        let wait = || unsafe { wait(stream, event, command.Flags) };
        match self.graphs.is_capturing() {
            // It may join the capture.
            true => self.device()?.1.streams.capture(wait).ok(),
            false => wait().ok(),
        }
    }

    pub(crate) fn set_limit(&self, command: commands::cuCtxSetLimit) -> Result<(), CUresult> {
        let set = self.table.cuCtxSetLimit.ok_or(CUresult::NOT_SUPPORTED)?;
        let (_, device) = self.device()?;
        checks::limit(command.limit)?;
        // Heap and buffers of device code come out of the GPU's memory, not out of the lease's
        // account.
        if command.value > device.memory.load(Relaxed) {
            return Err(CUresult::INVALID_VALUE);
        }
        // SAFETY: two numbers.
        unsafe { set(command.limit, command.value as usize) }.ok()
    }

    pub(crate) fn create_stream(
        &self,
        command: commands::cuStreamCreateWithPriority,
    ) -> Result<(), CUresult> {
        self.vacant(command.phStream)?;
        let create = self.table.cuStreamCreateWithPriority.ok_or(CUresult::NOT_SUPPORTED)?;
        bits(command.flags.into(), CU_STREAM_NON_BLOCKING.into())?;
        let mut stream = CUstream::NULL;
        // SAFETY: the driver writes one handle to a local.
        unsafe { create(&mut stream, command.flags, command.priority) }.ok()?;
        self.insert(command.phStream, stream)?;
        if let Some(green) = self.green()? {
            self.green.note_stream(&self.objects, command.phStream, green.id);
        }
        Ok(())
    }

    pub(crate) fn begin_capture(&self, command: commands::cuStreamBeginCapture_v2) -> Result<(), CUresult> {
        let begin = self.table.cuStreamBeginCapture_v2.ok_or(CUresult::NOT_SUPPORTED)?;
        // The client has applied its mode to its own calls; ours on other threads must not break
        // the capture.
        let mode = CUstreamCaptureMode::RELAXED;
        let stream = self.find(command.hStream)?;
        // SAFETY: the stream is live.
        self.capture(stream, || unsafe { begin(stream, mode) })
    }

    pub(crate) fn create_event(&self, command: commands::cuEventCreate) -> Result<(), CUresult> {
        self.vacant(command.phEvent)?;
        let create = self.table.cuEventCreate.ok_or(CUresult::NOT_SUPPORTED)?;
        let flags = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
        bits(command.Flags.into(), flags.into())?;
        // What several processes record has no times.
        if command.Flags & (CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING) == CU_EVENT_INTERPROCESS {
            return Err(CUresult::INVALID_VALUE);
        }
        let mut event = CUevent::NULL;
        // SAFETY: the driver writes one handle to a local.
        unsafe { create(&mut event, command.Flags) }.ok()?;
        self.insert(command.phEvent, event)
    }

    pub(crate) fn destroy_event(&self, command: commands::cuEventDestroy_v2) -> Result<(), CUresult> {
        let destroy = self.table.cuEventDestroy_v2.ok_or(CUresult::NOT_SUPPORTED)?;
        sharing::forget_event(self, command.hEvent);
        self.watches.forget(command.hEvent);
        // SAFETY: the event was live until now, and our table names it no more.
        unsafe { destroy(self.remove(command.hEvent)?) }.ok()
    }

    pub(crate) fn record_context(&self, command: commands::cuCtxRecordEvent) -> Result<(), CUresult> {
        let record = self.table.cuCtxRecordEvent.ok_or(CUresult::NOT_SUPPORTED)?;
        let device = self.devices.get(command.device as usize).ok_or(CUresult::INVALID_DEVICE)?;
        // SAFETY: the context is retained until this process ends, and the event is live.
        unsafe { record(device.context, self.find(command.hEvent)?) }.ok()
    }

    pub(crate) fn wait_context(&self, command: commands::cuCtxWaitEvent) -> Result<(), CUresult> {
        let wait = self.table.cuCtxWaitEvent.ok_or(CUresult::NOT_SUPPORTED)?;
        let device = self.devices.get(command.device as usize).ok_or(CUresult::INVALID_DEVICE)?;
        // SAFETY: as for the record.
        unsafe { wait(device.context, self.find(command.hEvent)?) }.ok()
    }
}

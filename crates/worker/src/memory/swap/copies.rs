//! Copies between extents and host memory.

use std::collections::BTreeMap;

use sluice_cuda::{CU_STREAM_NON_BLOCKING, CUresult, CUstream};

use super::{NotMoved, POISON};
use crate::memory::host::HostPiece;
use crate::session::Session;
use crate::session::current::make_current;
use crate::session::device::Device;

/// Copies of extents in one direction, on a stream of its own for each GPU.
pub(super) struct Copies<'a> {
    pub(super) session: &'a Session,
    streams: BTreeMap<u32, CUstream>,
}

impl<'a> Copies<'a> {
    pub(super) fn new(session: &'a Session) -> Copies<'a> {
        Copies { session, streams: BTreeMap::new() }
    }

    pub(super) fn device(&self, gpu: u32) -> Result<&'a Device, NotMoved> {
        let step = "device table";
        let result = CUresult::INVALID_DEVICE;
        self.session.devices.get(gpu as usize).ok_or(NotMoved::Driver { step, result })
    }

    /// The stream of a GPU, whose context is current from now on.
    pub(super) fn stream(&mut self, gpu: u32) -> Result<CUstream, NotMoved> {
        let table = &self.session.table;
        make_current(table, self.device(gpu)?.context).map_err(NotMoved::driver("cuCtxSetCurrent"))?;
        if let Some(&stream) = self.streams.get(&gpu) {
            return Ok(stream);
        }
        let step = "cuStreamCreate";
        let create = required(table.cuStreamCreate, step)?;
        let mut stream = CUstream::NULL;
        // SAFETY: the driver writes one handle to a local.
        unsafe { create(&mut stream, CU_STREAM_NON_BLOCKING) }.ok().map_err(NotMoved::driver(step))?;
        self.streams.insert(gpu, stream);
        Ok(stream)
    }

    pub(super) fn copy_out(
        &mut self,
        gpu: u32,
        piece: &HostPiece,
        address: u64,
        bytes: u64,
    ) -> Result<(), NotMoved> {
        let (stream, step) = (self.stream(gpu)?, "cuMemcpyDtoHAsync");
        let copy = required(self.session.table.cuMemcpyDtoHAsync_v2, step)?;
        // SAFETY: the extent is mapped there, the piece has as many bytes and outlives the copy,
        // since `finish` waits for it.
        let done = unsafe { copy(piece.address(), address, bytes as usize, stream) };
        done.ok().map_err(NotMoved::driver(step))
    }

    pub(super) fn copy_in(
        &mut self,
        gpu: u32,
        address: u64,
        piece: &HostPiece,
        bytes: u64,
    ) -> Result<(), NotMoved> {
        let (stream, step) = (self.stream(gpu)?, "cuMemcpyHtoDAsync");
        let copy = required(self.session.table.cuMemcpyHtoDAsync_v2, step)?;
        // SAFETY: as in `copy_out`.
        let done = unsafe { copy(address, piece.address(), bytes as usize, stream) };
        done.ok().map_err(NotMoved::driver(step))
    }

    pub(super) fn poison(&mut self, gpu: u32, address: u64, bytes: u64) -> Result<(), NotMoved> {
        let (stream, step) = (self.stream(gpu)?, "cuMemsetD8Async");
        let fill = required(self.session.table.cuMemsetD8Async, step)?;
        // SAFETY: the extent is mapped there.
        unsafe { fill(address, POISON, bytes as usize, stream) }.ok().map_err(NotMoved::driver(step))
    }

    /// Waits for all copies so far.
    pub(super) fn finish(&mut self) -> Result<(), NotMoved> {
        let (step, mut done) = ("cuStreamSynchronize", Ok(()));
        let wait = required(self.session.table.cuStreamSynchronize, step)?;
        let gpus: Vec<u32> = self.streams.keys().copied().collect();
        for gpu in gpus {
            let stream = self.stream(gpu)?;
            // SAFETY: the stream is ours and live.
            done = done.and(unsafe { wait(stream) }.ok());
        }
        done.map_err(NotMoved::driver(step))
    }
}

impl Drop for Copies<'_> {
    fn drop(&mut self) {
        // The memory of copies goes after this, so none may be left, also after an error.
        let _ = self.finish();
        let Some(destroy) = self.session.table.cuStreamDestroy_v2 else { return };
        for &stream in self.streams.values() {
            // SAFETY: made here, nothing is left in it, and forgotten now.
            let _ = unsafe { destroy(stream) };
        }
    }
}

fn required<F>(function: Option<F>, step: &'static str) -> Result<F, NotMoved> {
    function.ok_or(NotMoved::Driver { step, result: CUresult::NOT_SUPPORTED })
}

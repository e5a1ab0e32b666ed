//! Work on memory that is not the current GPU's.
//!
//! What `cuMemCreate` made can be used by the GPUs that were given access: its own alone, unless
//! the program says otherwise. NVIDIA's driver refuses to have any other one copy or fill it, as it
//! would what `cuMemAlloc` made. Between two such GPUs `cuMemcpyPeerAsync` copies. All else is done
//! by the memory's own GPU, where its stream has come to it:
//!
//! ```text
//!   stream         ---- event --------------------------- waits -->
//!                            \                          /
//!   of that GPU               waits --- the work --- event
//! ```

use sluice_cuda::{CU_STREAM_NON_BLOCKING, CUDA_MEMCPY3D, CUDA_MEMCPY3D_PEER, CUcontext, CUresult, CUstream};

use crate::schedule::event::Event;
use crate::session::Session;
use crate::session::current::make_current;
use crate::session::execute::Range;

impl Session {
    /// Whether the current GPU and the stream's can both use all of this memory.
    pub(crate) fn is_near(&self, memory: &[Range], stream: CUstream) -> Result<bool, CUresult> {
        if self.devices.len() == 1 {
            return Ok(true);
        }
        let (here, _) = self.device()?;
        let stream = self.context_of(stream)?;
        let of_stream = self.devices.iter().position(|device| device.context == stream);
        // A green context's is the current one.
        let of_stream = of_stream.map_or(here, |gpu| gpu as u32);
        let reach = |gpu| memory.iter().all(|range| self.memory.is_reached(*range, gpu));
        Ok(reach(here) && reach(of_stream))
    }

    /// Has `act` give work to a stream of the GPU that memory is for, in the place of this one.
    pub(crate) fn elsewhere(
        &self,
        memory: Range,
        stream: CUstream,
        act: impl FnOnce(CUstream) -> Result<(), CUresult>,
    ) -> Result<(), CUresult> {
        let there = self.home(memory)?;
        // What joins a capture would have to stay in it.
        let _copy = self.host_copy(stream).map_err(|_| CUresult::NOT_SUPPORTED)?;
        let here = self.current_context()?;
        let done = self.in_place_of(stream, here, there, act);
        make_current(&self.table, here)?;
        done
    }

    /// Leaves any of the contexts current.
    fn in_place_of(
        &self,
        stream: CUstream,
        here: CUcontext,
        there: CUcontext,
        act: impl FnOnce(CUstream) -> Result<(), CUresult>,
    ) -> Result<(), CUresult> {
        let create = self.table.cuStreamCreate.ok_or(CUresult::NOT_SUPPORTED)?;
        let destroy = self.table.cuStreamDestroy_v2.ok_or(CUresult::NOT_SUPPORTED)?;
        let before = self.event_behind(stream)?;
        make_current(&self.table, there)?;
        let after = Event::new(&self.table)?;
        let mut beside = CUstream::NULL;
        // SAFETY: the driver writes one handle to a local.
        unsafe { create(&mut beside, CU_STREAM_NON_BLOCKING) }.ok()?;
        let done = before.hold(beside).and_then(|()| act(beside));
        let recorded = after.record(beside);
        // SAFETY: made here, and not known elsewhere; what it was given is still done
        // (`cuStreamDestroy`).
        unsafe { destroy(beside) }.ok()?;
        make_current(&self.table, here)?;
        recorded.and_then(|()| after.hold(stream))?;
        done
    }

    /// An event behind what a live stream was given, which does not capture.
    pub(crate) fn event_behind(&self, stream: CUstream) -> Result<Event, CUresult> {
        let record = || {
            let event = Event::new(&self.table)?;
            event.record(stream)?;
            Ok(event)
        };
        if self.devices.len() == 1 {
            return record();
        }
        // Streams take events of their own context alone.
        let here = self.current_context()?;
        make_current(&self.table, self.context_of(stream)?)?;
        let event = record();
        make_current(&self.table, here)?;
        event
    }

    /// Copies on the GPU, or between two.
    ///
    /// # Safety
    /// Both ranges are the session's.
    pub(crate) unsafe fn copy_on_device(
        &self,
        to: u64,
        from: u64,
        bytes: u64,
        stream: CUstream,
    ) -> Result<(), CUresult> {
        let count = bytes as usize;
        if self.is_near(&[(to, bytes), (from, bytes)], stream)? {
            let copy = self.table.cuMemcpyDtoDAsync_v2.ok_or(CUresult::NOT_SUPPORTED)?;
            // SAFETY: the caller vouches for the ranges, and the stream is live.
            return unsafe { copy(to, from, count, stream) }.ok();
        }
        let copy = self.table.cuMemcpyPeerAsync.ok_or(CUresult::NOT_SUPPORTED)?;
        let (at_to, at_from) = (self.home((to, bytes))?, self.home((from, bytes))?);
        // SAFETY: as above.
        unsafe { copy(to, at_to, from, at_from, count, stream) }.ok()
    }

    /// Copies boxes in these ranges.
    ///
    /// # Safety
    /// The boxes lie in the ranges, which are the session's.
    pub(crate) unsafe fn copy_box_on_device(
        &self,
        copy: &CUDA_MEMCPY3D,
        to: Range,
        from: Range,
        stream: CUstream,
    ) -> Result<(), CUresult> {
        if self.is_near(&[to, from], stream)? {
            let submit = self.table.cuMemcpy3DAsync_v2.ok_or(CUresult::NOT_SUPPORTED)?;
            // SAFETY: the caller vouches for the boxes, the stream is live, and the driver reads
            // one description.
            return unsafe { submit(copy, stream) }.ok();
        }
        let submit = self.table.cuMemcpy3DPeerAsync.ok_or(CUresult::NOT_SUPPORTED)?;
        let copy = between(copy, self.home(to)?, self.home(from)?);
        // SAFETY: as above.
        unsafe { submit(&copy, stream) }.ok()
    }

    /// The context for a node of a graph that works on this memory. A node that copies has one, so
    /// that copies between two GPUs are not to be had.
    pub(crate) fn context_for(&self, memory: &[Range]) -> Result<CUcontext, CUresult> {
        if self.is_near(memory, CUstream::NULL)? {
            return self.current_context();
        }
        let reaches = |gpu| memory.iter().all(|range| self.memory.is_reached(*range, gpu));
        let found = self.devices.iter().enumerate().find(|(gpu, _)| reaches(*gpu as u32));
        found.map(|(_, device)| device.context).ok_or(CUresult::NOT_SUPPORTED)
    }

    /// The context of a GPU that the memory is for.
    fn home(&self, memory: Range) -> Result<CUcontext, CUresult> {
        let device = match self.memory.home(memory.0) {
            Some(gpu) => self.devices.get(gpu as usize).ok_or(CUresult::INVALID_DEVICE)?,
            None => self.device()?.1,
        };
        Ok(device.context)
    }

    /// The context of a live stream.
    fn context_of(&self, stream: CUstream) -> Result<CUcontext, CUresult> {
        let is_of_current = [CUstream::NULL, CUstream::LEGACY].contains(&stream);
        let Some(ask) = self.table.cuStreamGetCtx.filter(|_| !is_of_current) else {
            return self.current_context();
        };
        let mut context = CUcontext::NULL;
        // SAFETY: the stream is live, and the driver writes one handle to a local. Of a green
        // context's stream some drivers do not say.
        match unsafe { ask(stream, &mut context) }.is_success() && !context.is_null() {
            true => Ok(context),
            false => self.current_context(),
        }
    }
}

/// Converts a copy to one between the memory of two contexts.
fn between(copy: &CUDA_MEMCPY3D, to: CUcontext, from: CUcontext) -> CUDA_MEMCPY3D_PEER {
    CUDA_MEMCPY3D_PEER {
        srcXInBytes: copy.srcXInBytes,
        srcY: copy.srcY,
        srcZ: copy.srcZ,
        srcLOD: copy.srcLOD,
        srcMemoryType: copy.srcMemoryType,
        srcHost: copy.srcHost,
        srcDevice: copy.srcDevice,
        srcArray: copy.srcArray,
        srcContext: from,
        srcPitch: copy.srcPitch,
        srcHeight: copy.srcHeight,
        dstXInBytes: copy.dstXInBytes,
        dstY: copy.dstY,
        dstZ: copy.dstZ,
        dstLOD: copy.dstLOD,
        dstMemoryType: copy.dstMemoryType,
        dstHost: copy.dstHost,
        dstDevice: copy.dstDevice,
        dstArray: copy.dstArray,
        dstContext: to,
        dstPitch: copy.dstPitch,
        dstHeight: copy.dstHeight,
        WidthInBytes: copy.WidthInBytes,
        Height: copy.Height,
        Depth: copy.Depth,
    }
}

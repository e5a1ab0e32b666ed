//! Waiting for everything that a device was given.

use sluice_cuda::*;
use sluice_wire::Op;

use crate::device::Device;
use crate::host_memory::mirror;
use crate::session::Session;

impl Device {
    /// Waits until the device has done everything sent so far; makes no round trip if that has been
    /// waited for already.
    pub(crate) fn wait(&self, session: &Session) -> Result<(), CUresult> {
        if self.work.is_pending() { self.synchronize(session) } else { Ok(()) }
    }

    /// `cuCtxSynchronize` for this device, whichever is the calling thread's.
    pub(crate) fn synchronize(&self, session: &Session) -> Result<(), CUresult> {
        let covered = self.work.so_far();
        session.link.call(self.place, Op::of(Fn::cuCtxSynchronize), |_| ())?.result.ok()?;
        // What was written has to be here before another thread sees the wait as done.
        mirror::fetch(session)?;
        self.work.waited_for(covered);
        Ok(())
    }

    /// Waits for everything that a green context has been given.
    pub(crate) fn synchronize_green(&self, session: &Session, place: u8) -> Result<(), CUresult> {
        session.link.call(place, Op::of(Fn::cuCtxSynchronize), |_| ())?.result.ok()?;
        mirror::fetch(session)
    }
}

//! Waiting for everything that a device was given.

use std::time::Instant;

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

    /// Waits until all devices of a session have done everything sent so far; false if they have
    /// not by `deadline`, or up to a few seconds after it.
    pub(crate) fn synchronize_all<'a>(session: &'a Session, deadline: Instant) -> Result<bool, CUresult> {
        let ask = |device: &'a Device| {
            let covered = device.work.so_far();
            let place = session.link.ask(device.place, Op::of(Fn::cuCtxSynchronize), |_| ())?;
            Ok((device, covered, place))
        };
        let asked = session.devices.iter().map(ask).collect::<Result<Vec<_>, CUresult>>()?;
        let mut are_done = true;
        for &(.., place) in &asked {
            // After the deadline each is looked at once, and forgotten.
            match session.link.take_by(place, deadline)? {
                Some(answer) => answer.result.ok()?,
                None => are_done = false,
            }
        }
        if are_done {
            mirror::fetch(session)?;
            asked.iter().for_each(|(device, covered, _)| device.work.waited_for(*covered));
        }
        Ok(are_done)
    }

    /// Waits for everything that a green context has been given.
    pub(crate) fn synchronize_green(&self, session: &Session, place: u8) -> Result<(), CUresult> {
        session.link.call(place, Op::of(Fn::cuCtxSynchronize), |_| ())?.result.ok()?;
        mirror::fetch(session)
    }
}

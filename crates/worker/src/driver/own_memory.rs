//! Device memory that a driver of this process takes for itself, as the lease is charged for it.

use std::sync::Arc;

use sluice_cuda::CUresult;
use sluice_softgpu::DeviceMemoryAccount;

use crate::session::Session;

/// The lease of a session, for the drivers that are linked into the worker.
pub(crate) struct LeaseAccount(Arc<Session>);

impl LeaseAccount {
    pub(crate) fn new(session: Arc<Session>) -> LeaseAccount {
        LeaseAccount(session)
    }

    /// The place in the lease of the driver's device.
    fn gpu(&self, ordinal: usize) -> Option<u32> {
        let is_it = |ordinal_of: i32| usize::try_from(ordinal_of) == Ok(ordinal);
        let place = self.0.devices.iter().position(|device| is_it(device.ordinal))?;
        u32::try_from(place).ok()
    }
}

impl DeviceMemoryAccount for LeaseAccount {
    fn take(&self, ordinal: usize, bytes: u64) -> bool {
        let taken = self.gpu(ordinal).ok_or(CUresult::INVALID_DEVICE);
        taken.and_then(|gpu| self.0.budget.take_for_driver(gpu, bytes)).is_ok()
    }

    fn give_back(&self, ordinal: usize, bytes: u64) {
        if let Some(gpu) = self.gpu(ordinal) {
            self.0.budget.give_back(gpu, bytes);
        }
    }
}

//! How each driver is held back between turns.

use sluice_cuda::{CUcontext, DriverTable};

use crate::gate::Brake;
use crate::link::Driver;
use crate::session::make_current;

/// The brake of a device of this driver.
pub(crate) fn of(driver: &Driver, table: DriverTable, context: CUcontext) -> Box<dyn Brake> {
    let drain = Drain { table, context };
    match driver {
        Driver::Software { .. } => Box::new(drain),
        Driver::Library { .. } => Box::new(drain),
    }
}

/// A driver that finishes what it has begun.
struct Drain {
    table: DriverTable,
    context: CUcontext,
}

impl Brake for Drain {
    fn can_pause(&self) -> bool {
        false
    }

    fn pause(&self) {}

    fn resume(&self) {}

    fn drain(&self) {
        let Some(synchronize) = self.table.cuCtxSynchronize else { return };
        if make_current(&self.table, self.context).is_ok() {
            // SAFETY: the context is current. Errors are the session's to find, by its own calls.
            let _ = unsafe { synchronize() };
        }
    }
}

//! How each driver is held back between turns.

use sluice_cuda::{CUcontext, DriverTable};

use crate::gate::Brake;
use crate::link::Driver;
use crate::session::make_current;
use crate::software::SafepointBrake;

/// The brake of a device of this driver; `None` where there is no such device.
pub(crate) fn of(
    driver: &Driver,
    table: DriverTable,
    context: CUcontext,
    ordinal: usize,
) -> Option<Box<dyn Brake>> {
    Some(match driver {
        Driver::Software { .. } => Box::new(SafepointBrake::new(table, context, ordinal)?),
        Driver::Recording { .. } | Driver::Library { .. } => Box::new(Drain::new(table, context)),
    })
}

/// A driver that finishes what it has begun.
pub(crate) struct Drain {
    table: DriverTable,
    context: CUcontext,
}

impl Drain {
    pub(crate) fn new(table: DriverTable, context: CUcontext) -> Drain {
        Drain { table, context }
    }
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

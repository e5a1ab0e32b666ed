//! How each driver is held back between turns.

use std::sync::Arc;

use crate::driver::software::SafepointBrake;
use crate::link::Driver;
use crate::schedule::gate::Brake;
use crate::schedule::streams::Streams;

/// The brake of a device of this driver; `None` where there is no such device.
pub(crate) fn of(driver: &Driver, streams: Arc<Streams>, ordinal: usize) -> Option<Box<dyn Brake>> {
    Some(match driver {
        Driver::Software { .. } => Box::new(SafepointBrake::new(streams, ordinal)?),
        Driver::Recording { .. } | Driver::Library { .. } => Box::new(Drain(streams)),
    })
}

/// A driver that finishes what it has begun.
struct Drain(Arc<Streams>);

impl Brake for Drain {
    fn can_pause(&self) -> bool {
        false
    }

    fn pause(&self) {}

    fn resume(&self) {}

    fn submitted(&self) {
        self.0.submitted();
    }

    fn drain(&self) {
        self.0.drain();
    }
}

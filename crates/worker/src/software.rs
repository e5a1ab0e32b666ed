//! The software GPU that is linked into the worker: its cards, its brake, its watchdog.

use std::time::{Duration, Instant};

use sluice_cuda::{CUcontext, DriverTable};
use sluice_softgpu::{Config, Control, SoftDevice};

use crate::brake::Drain;
use crate::gate::Brake;

/// Its table, with a card of each of these sizes in bytes.
pub(crate) fn table(memory: &[u64]) -> DriverTable {
    let devices = memory.iter().map(|&bytes| SoftDevice::with_memory(bytes)).collect();
    sluice_softgpu::configure(Config { devices, same_process: false, ..Config::default() });
    sluice_softgpu::table()
}

/// Stops device code of one card at its safepoints.
pub(crate) struct SafepointBrake {
    drain: Drain,
    control: &'static Control,
}

impl SafepointBrake {
    /// `None` where there is no such card.
    pub(crate) fn new(table: DriverTable, context: CUcontext, ordinal: usize) -> Option<SafepointBrake> {
        let control = sluice_softgpu::control(ordinal)?;
        Some(SafepointBrake { drain: Drain::new(table, context), control })
    }
}

impl Brake for SafepointBrake {
    fn can_pause(&self) -> bool {
        true
    }

    fn pause(&self) {
        self.control.pause();
    }

    fn resume(&self) {
        self.control.resume();
    }

    fn drain(&self) {
        self.drain.drain();
    }
}

/// Ends kernels of one card that run too long. What they wait for their turn does not count.
pub(crate) struct Watchdog {
    ordinal: usize,
    limit: Duration,
    looked: Instant,
    ran: Duration,
}

impl Watchdog {
    pub(crate) fn new(ordinal: usize, limit: Duration) -> Watchdog {
        Watchdog { ordinal, limit, looked: Instant::now(), ran: Duration::ZERO }
    }

    /// Called often enough that the time between two calls does not matter.
    pub(crate) fn look(&mut self, has_turn: bool) {
        let passed = self.looked.elapsed();
        self.looked = Instant::now();
        let Some(age) = sluice_softgpu::longest_running(self.ordinal) else {
            self.ran = Duration::ZERO;
            return;
        };
        if has_turn {
            self.ran += passed;
        }
        // A kernel younger than that is another one than at the last look.
        self.ran = self.ran.min(age);
        if self.ran >= self.limit {
            sluice_softgpu::cancel_running(self.ordinal);
        }
    }
}

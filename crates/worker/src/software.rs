//! The software GPU that is linked into the worker: its cards, its brake, its watchdog.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use sluice_cuda::{CUcontext, DriverTable};
use sluice_softgpu::{Config, SoftDevice};

use crate::brake::Drain;
use crate::gate::Brake;

/// Its table, with a card of each of these sizes in bytes.
pub(crate) fn table(memory: &[u64]) -> DriverTable {
    let devices = memory.iter().map(|&bytes| SoftDevice::with_memory(bytes)).collect();
    sluice_softgpu::configure(Config { devices, same_process: false, ..Config::default() });
    sluice_softgpu::table()
}

/// How many GPUs of the lease have the turn. Device code of all cards stops and goes together, so it goes while any
/// of them has.
static TURNS: AtomicUsize = AtomicUsize::new(0);

/// Stops device code at its safepoints.
pub(crate) struct SafepointBrake {
    drain: Drain,
    goes: std::sync::atomic::AtomicBool,
}

impl SafepointBrake {
    pub(crate) fn new(table: DriverTable, context: CUcontext) -> SafepointBrake {
        SafepointBrake { drain: Drain::new(table, context), goes: false.into() }
    }
}

impl Brake for SafepointBrake {
    fn can_pause(&self) -> bool {
        true
    }

    fn pause(&self) {
        if self.goes.swap(false, SeqCst) {
            TURNS.fetch_sub(1, SeqCst);
        }
        if TURNS.load(SeqCst) == 0 {
            sluice_softgpu::control().pause();
        }
    }

    fn resume(&self) {
        if !self.goes.swap(true, SeqCst) {
            TURNS.fetch_add(1, SeqCst);
        }
        sluice_softgpu::control().resume();
    }

    fn drain(&self) {
        self.drain.drain();
    }
}

/// Ends kernels that run too long. What they wait for their turn does not count.
pub(crate) struct Watchdog {
    limit: Duration,
    looked: Instant,
    ran: Duration,
}

impl Watchdog {
    pub(crate) fn new(limit: Duration) -> Watchdog {
        Watchdog { limit, looked: Instant::now(), ran: Duration::ZERO }
    }

    /// Called often enough that the time between two calls does not matter.
    pub(crate) fn look(&mut self) {
        let passed = self.looked.elapsed();
        self.looked = Instant::now();
        let Some(age) = sluice_softgpu::longest_running() else {
            self.ran = Duration::ZERO;
            return;
        };
        if TURNS.load(SeqCst) > 0 {
            self.ran += passed;
        }
        // A kernel younger than that is another one than at the last look.
        self.ran = self.ran.min(age);
        if self.ran >= self.limit {
            sluice_softgpu::cancel_running();
        }
    }
}

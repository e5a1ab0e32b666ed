//! The software GPU that is linked into the worker: its devices, its brake, its watchdog.

use std::sync::Arc;
use std::time::Duration;

use sluice_cuda::DriverTable;
use sluice_softgpu::{Config, Control, SoftDevice};

use crate::schedule::gate::Brake;
use crate::schedule::streams::Streams;

/// Its table, with a device of each of these sizes in bytes.
pub(crate) fn table(memory: &[u64]) -> DriverTable {
    let devices = memory.iter().map(|&bytes| SoftDevice::with_memory(bytes)).collect();
    sluice_softgpu::configure(Config { devices, same_process: false, ..Config::default() });
    sluice_softgpu::table()
}

/// Stops device code of one device at its safepoints.
pub(crate) struct SafepointBrake {
    streams: Arc<Streams>,
    control: &'static Control,
    threads: u32,
}

impl SafepointBrake {
    /// `None` where there is no such device.
    pub(crate) fn new(streams: Arc<Streams>, ordinal: usize) -> Option<SafepointBrake> {
        let control = sluice_softgpu::control(ordinal)?;
        let threads = u32::try_from(sluice_softgpu::threads()?).ok()?;
        Some(SafepointBrake { streams, control, threads: threads.max(1) })
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

    fn late(&self) -> Duration {
        self.control.late() / self.threads
    }

    /// Of the threads that run the device's blocks, those that are not busy count as free.
    fn used(&self) -> Option<Duration> {
        Some(self.control.worked() / self.threads)
    }

    fn submitted(&self) {
        self.streams.submitted();
    }

    fn drain(&self) {
        self.streams.drain();
    }
}

//! The state of the leases, asked from their nodes.
//!
//! One connection to each is kept from `nvmlInit` to the last `nvmlShutdown`; a program that polls
//! thousands of properties a second gets answers that are at most [`FRESH`] old. After `fork` a
//! child asks over a connection of its own.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sluice_control::{Cause, Connection, Failure, driver_version, joined, uuid_text};
use sluice_wire::address::Endpoint;
use sluice_wire::control::{Control, Devices, DevicesRequest};
use sluice_wire::handshake::LeaseToken;

use crate::abi::Return;

/// For this long an answer serves all questions: one look of a program at a GPU is some twenty
/// calls.
const FRESH: Duration = Duration::from_millis(20);

/// The leased GPUs at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    /// As `cuDriverGetVersion`.
    pub(crate) cuda_version: u32,
    /// As NVIDIA writes versions of its drivers.
    pub(crate) driver_version: String,
    pub(crate) gpus: Vec<Gpu>,
}

#[derive(Clone, Debug)]
pub(crate) struct Gpu {
    pub(crate) name: String,
    /// `GPU-` and the usual groups of digits.
    pub(crate) uuid: String,
    /// Of the lease, in bytes.
    pub(crate) memory: u64,
    pub(crate) used_memory: u64,
    pub(crate) compute_capability: (i32, i32),
    /// Domain, bus, device.
    pub(crate) pci: (u32, u32, u32),
    /// Between the last two answers.
    pub(crate) busy_percent: u32,
    pub(crate) processes: Vec<Process>,
}

/// A client process with a session under the lease.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) used_memory: u64,
}

impl Gpu {
    /// As NVML writes it, with a domain of eight digits.
    pub(crate) fn bus_id(&self) -> String {
        let (domain, bus, device) = self.pci;
        format!("{domain:08X}:{bus:02X}:{device:02X}.0")
    }
}

/// What `nvmlInit` made.
struct Attached {
    /// How many `nvmlShutdown` are owed.
    users: u32,
    nodes: Vec<Node>,
    /// The process that opened the connections.
    process: u32,
    last: Option<(Instant, Snapshot)>,
    /// When, and the GPU time of the lease's sessions on each GPU in microseconds: where
    /// utilisation is counted from.
    busy: Option<(Instant, Vec<u64>)>,
}

/// A node, and the lease on it.
struct Node {
    address: Endpoint,
    token: LeaseToken,
    connection: Option<Connection>,
}

static ATTACHED: Mutex<Option<Attached>> = Mutex::new(None);

/// `nvmlInit`: finds the lease in the environment and asks its node once, so that a dead node shows
/// here.
pub(crate) fn attach() -> Result<(), Return> {
    let mut attached = ATTACHED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(attached) = attached.as_mut() {
        attached.users += 1;
        return Ok(());
    }
    let node = |(address, token)| Node { address, token, connection: None };
    let nodes: Vec<Node> = sluice_control::own_leases().into_iter().map(node).collect();
    if nodes.is_empty() {
        return Err(Return::DRIVER_NOT_LOADED);
    }
    let mut fresh = Attached { users: 1, nodes, process: std::process::id(), last: None, busy: None };
    fresh.refresh()?;
    *attached = Some(fresh);
    Ok(())
}

/// `nvmlShutdown`.
pub(crate) fn detach() -> Result<(), Return> {
    let mut attached = ATTACHED.lock().unwrap_or_else(PoisonError::into_inner);
    let users = &mut attached.as_mut().ok_or(Return::UNINITIALIZED)?.users;
    *users -= 1;
    if *users == 0 {
        *attached = None;
    }
    Ok(())
}

/// The lease as it is now.
pub(crate) fn snapshot() -> Result<Snapshot, Return> {
    let mut attached = ATTACHED.lock().unwrap_or_else(PoisonError::into_inner);
    let attached = attached.as_mut().ok_or(Return::UNINITIALIZED)?;
    if let Some((taken, snapshot)) = &attached.last
        && taken.elapsed() < FRESH
    {
        return Ok(snapshot.clone());
    }
    attached.refresh()
}

impl Node {
    /// A connection that was idle for long may be gone; one more try on a new one.
    fn devices(&mut self) -> Result<Devices, Failure> {
        match self.ask() {
            Err(Failure { cause: Cause::Connection(_), .. }) => {
                self.connection = None;
                self.ask()
            }
            answered => answered,
        }
    }

    fn ask(&mut self) -> Result<Devices, Failure> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            None => self.connection.insert(Connection::open(&self.address)?),
        };
        match connection.ask(DevicesRequest { token: self.token })? {
            Control::Devices(devices) => Ok(devices),
            _ => Err(connection.unexpected()),
        }
    }
}

impl Attached {
    fn refresh(&mut self) -> Result<Snapshot, Return> {
        if self.process != std::process::id() {
            // The parent's connections: dropping our copies closes nothing of the parent's.
            self.nodes.iter_mut().for_each(|node| node.connection = None);
            self.process = std::process::id();
        }
        let devices: Result<Vec<Devices>, Failure> = self.nodes.iter_mut().map(Node::devices).collect();
        let devices = joined(devices.map_err(|_| Return::GPU_IS_LOST)?);
        let snapshot = self.snapshot_of(&devices);
        self.last = Some((Instant::now(), snapshot.clone()));
        Ok(snapshot)
    }

    fn snapshot_of(&mut self, devices: &Devices) -> Snapshot {
        let cuda_version = devices.devices.first().map_or(0, |device| device.driver_version);
        let busy_percent = self.busy_percent(devices);
        let gpus = devices.devices.iter().zip(0..).map(|(device, index)| {
            let processes: Vec<Process> = devices
                .sessions
                .iter()
                .filter(|session| session.gpu == index)
                .map(|session| Process { pid: session.process, used_memory: session.memory_used })
                .collect();
            Gpu {
                name: device.name.clone(),
                uuid: uuid_text(device.uuid),
                memory: device.memory,
                used_memory: processes.iter().map(|process| process.used_memory).sum(),
                compute_capability: device.compute_capability(),
                pci: (0, index + 1, 0),
                busy_percent: busy_percent.get(index as usize).copied().unwrap_or(0),
                processes,
            }
        });
        Snapshot { cuda_version, driver_version: driver_version(cuda_version), gpus: gpus.collect() }
    }

    /// Utilisation of each GPU since it was last counted; over less than a tenth of a second it
    /// says nothing.
    fn busy_percent(&mut self, devices: &Devices) -> Vec<u32> {
        const COUNTED_OVER: Duration = Duration::from_millis(100);
        let mut now = vec![0u64; devices.devices.len()];
        for session in &devices.sessions {
            if let Some(busy_us) = now.get_mut(session.gpu as usize) {
                *busy_us += session.busy_us;
            }
        }
        let percents = |since: &[u64], elapsed: Duration| -> Vec<u32> {
            let elapsed_us = elapsed.as_micros().max(1) as u64;
            let spent = now.iter().zip(since).map(|(now, since)| now.saturating_sub(*since));
            spent.map(|spent_us| (spent_us.saturating_mul(100) / elapsed_us).min(100) as u32).collect()
        };
        match &self.busy {
            Some((counted, _)) if counted.elapsed() < COUNTED_OVER => match &self.last {
                Some((_, last)) => last.gpus.iter().map(|gpu| gpu.busy_percent).collect(),
                None => Vec::new(),
            },
            Some((counted, since)) => {
                let percents = percents(since, counted.elapsed());
                self.busy = Some((Instant::now(), now));
                percents
            }
            None => {
                // The first look: over the life of the sessions.
                let age = devices.sessions.iter().map(|session| session.age_ms).max().unwrap_or(0);
                let percents = percents(&vec![0; now.len()], Duration::from_millis(age));
                self.busy = Some((Instant::now(), now));
                percents
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_lease_there_is_no_driver() {
        if std::env::var_os(sluice_wire::address::SESSION_VARIABLE).is_none() {
            assert_eq!(attach(), Err(Return::DRIVER_NOT_LOADED));
            assert_eq!(snapshot().err(), Some(Return::UNINITIALIZED));
        }
    }
}

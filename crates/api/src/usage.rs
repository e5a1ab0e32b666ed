//! Usage records: what a lease used on a node between two moments.
//!
//! A record's id follows from what it is about ([`UsageRecord::id_of`]), so the same record counts
//! once however often it arrives. A lease's records tile the time in which it was held: each begins
//! where the one before ended, by a clock that no clock step moves. All meters are integers and add
//! up exactly, however the time was cut:
//!
//! - `reserved` = [`UsageRecord::reserved_ppm_ms`]: share x GPUs x time held, while the lease is
//!   not suspended;
//! - `suspended` = [`UsageRecord::suspended_ppm_ms`]: the same while it is;
//! - `used` = `used_ppm_ms`: device time x the part of the device that was occupied, in the same
//!   unit. A node knows the part of its software GPUs, whose threads say what CPU time they took;
//!   of another GPU it knows the time of turns, and takes the whole device for occupied.

use serde::{Deserialize, Serialize};

use crate::lease::LeaseId;
use crate::node::{Attempt, NodeId};
use crate::pool::{Promised, Tier, WAIT_US_MAX};
use crate::tenant::TenantPath;

/// One GPU for one hour, in the unit of both meters.
pub const GPU_HOUR_PPM_MS: u64 = crate::GPU_PPM as u64 * HOUR_MS;
/// One GiB for one hour, in the unit of the memory meter.
pub const GIB_HOUR_MIB_MS: u64 = 1024 * HOUR_MS;
const HOUR_MS: u64 = 3_600_000;

/// Version 1 of the schema; nodes and server of one release agree on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UsageRecord {
    /// [`UsageRecord::id_of`] the five fields below.
    pub id: String,
    pub node: NodeId,
    pub lease: LeaseId,
    pub attempt: u32,
    /// Which of the lease's tasks, from 0.
    #[serde(default)]
    pub task: u32,
    /// Counts the records of this task in this attempt, from 1.
    pub sequence: u32,
    pub tenant: TenantPath,
    #[serde(default)]
    pub tier: Tier,
    #[serde(default)]
    pub pool: String,
    /// Of its GPUs, as the driver names it.
    #[serde(default)]
    pub model: String,
    /// Of each of its GPUs, as [`crate::node::Gpu::gflops`].
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub gflops: u64,
    pub from_ms: u64,
    pub until_ms: u64,
    pub share_ppm: u32,
    /// The lease got no GPU time, and its share was others'.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspended: bool,
    pub gpus: u32,
    /// Held on all GPUs together, in MiB, rounded up.
    pub memory_mib: u64,
    /// Device time x occupied part.
    pub used_ppm_ms: u64,
    pub kernels: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// The most that its sessions had taken so far, in bytes.
    pub memory_peak: u64,
    /// What its grant promised, where it did, and the waits for GPUs meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promised: Option<Promised>,
    /// Whether the lease ended with it.
    pub last: bool,
}

/// Why a record cannot be one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UsageError {
    #[error("usage record {0}: its id does not follow from its node, lease, attempt, task and sequence")]
    Id(String),
    #[error("usage record {0}: it ends before it begins, or spans more than {max} h", max = SPAN_MAX_MS / HOUR_MS)]
    Span(String),
    #[error("usage record {0}: no lease has such an amount")]
    Amount(String),
}

/// More than any GPU has.
pub const GFLOPS_MAX: u64 = 1_000_000_000;
/// More than any link moves while a record is open, in each direction: 70 TB. What servers of a
/// release before this took is cut to it by their database's migration (`0015_transfer`).
pub const BYTES_MAX: u64 = 1 << 46;
/// More than any GPU begins meanwhile.
pub const KERNELS_MAX: u64 = 1 << 46;
/// The longest that a record spans. Nodes write one every few seconds; this bounds what a wrong
/// clock can cost.
pub const SPAN_MAX_MS: u64 = 24 * HOUR_MS;

impl UsageRecord {
    /// 32 hexadecimal digits that depend on nothing else.
    pub fn id_of(node: NodeId, Attempt { lease, attempt, task }: Attempt, sequence: u32) -> String {
        let name = match task {
            0 => format!("sluice usage 1/{node}/{lease}/{attempt}/{sequence}"),
            task => format!("sluice usage 1/{node}/{lease}/{attempt}/{sequence}/task {task}"),
        };
        blake3::hash(name.as_bytes()).to_hex()[..32].to_owned()
    }

    /// What it is about.
    pub fn attempt_of(&self) -> Attempt {
        Attempt { lease: self.lease, attempt: self.attempt, task: self.task }
    }

    /// What it adds to the meter `reserved`: millionths of a GPU x milliseconds.
    pub fn reserved_ppm_ms(&self) -> u64 {
        if self.suspended { 0 } else { self.share_ppm_ms() }
    }

    /// What it adds to the meter `suspended`, in the same unit.
    pub fn suspended_ppm_ms(&self) -> u64 {
        if self.suspended { self.share_ppm_ms() } else { 0 }
    }

    fn share_ppm_ms(&self) -> u64 {
        u64::from(self.share_ppm) * u64::from(self.gpus) * self.held_ms()
    }

    /// What it adds to the memory meter: MiB x milliseconds.
    pub fn memory_mib_ms(&self) -> u64 {
        self.memory_mib * self.held_ms()
    }

    /// What it adds to the transfer meter.
    pub fn transfer_bytes(&self) -> u64 {
        self.bytes_in + self.bytes_out
    }

    pub fn held_ms(&self) -> u64 {
        self.until_ms.saturating_sub(self.from_ms)
    }

    /// Bounds everything that arithmetic is done with, so that sums of a period are far from an
    /// overflow.
    pub fn check(&self) -> Result<(), UsageError> {
        let id = || self.id.chars().take(64).collect::<String>();
        if self.id != UsageRecord::id_of(self.node, self.attempt_of(), self.sequence) {
            return Err(UsageError::Id(id()));
        }
        if self.until_ms < self.from_ms || self.held_ms() > SPAN_MAX_MS {
            return Err(UsageError::Span(id()));
        }
        let possible = self.share_ppm <= crate::GPU_PPM
            && self.gpus <= 1024
            && self.memory_mib <= 1 << 30
            && self.used_ppm_ms <= 2 * 1024 * GPU_HOUR_PPM_MS
            && self.pool.len() <= 255
            && self.model.len() <= 255
            && self.gflops <= GFLOPS_MAX
            && [self.bytes_in, self.bytes_out].iter().all(|&bytes| bytes <= BYTES_MAX)
            && self.kernels <= KERNELS_MAX
            && self.memory_peak < 1 << 62
            && self.promised.is_none_or(|promised| is_possible(&promised));
        if possible { Ok(()) } else { Err(UsageError::Amount(id())) }
    }
}

/// Bounds a promise and its waits as [`UsageRecord::check`] bounds the other amounts.
fn is_possible(promised: &Promised) -> bool {
    let Promised { promise, waits, within } = promised;
    (1..=WAIT_US_MAX).contains(&promise.wait_us)
        && [promise.attained_ppm, promise.credit_ppm].iter().all(|&ppm| ppm <= crate::GPU_PPM)
        && *waits <= KERNELS_MAX
        && within <= waits
}

/// What the usage records that begin in one hour add up to in one pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UsageHour {
    /// When the hour begins, in milliseconds since 1970.
    pub from_ms: u64,
    pub pool: String,
    /// Millionths of a GPU that were held x milliseconds.
    pub reserved_ppm_ms: u64,
    /// Millionths of a GPU that worked x milliseconds.
    pub used_ppm_ms: u64,
}

/// A usage record that cannot be true as it is, by the grant, the node's GPUs or the clock. It is
/// on no bill until an operator accepts it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AsideRecord {
    pub record: UsageRecord,
    /// The reason why it was set aside.
    pub reason: String,
    pub received_at_ms: u64,
}

/// A decision about records that were set aside.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AsideDecision {
    /// The ids of the records.
    pub ids: Vec<String>,
    /// Whether they count from now on. Otherwise they are discarded.
    pub accept: bool,
}

/// The result of a decision.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AsideDecided {
    pub records: u32,
}

/// A record as a line of a node's journal: `CHECKSUM JSON`, the checksum being 16 hexadecimal
/// digits of the JSON's BLAKE3.
pub fn journal_line(record: &UsageRecord) -> String {
    // A struct of numbers and strings always has a JSON form.
    let json = serde_json::to_string(record).unwrap_or_default();
    format!("{} {json}\n", checksum(&json))
}

/// The record of a whole line; none if the line is torn or has been changed.
pub fn read_journal_line(line: &[u8]) -> Option<UsageRecord> {
    let text = std::str::from_utf8(line).ok()?.strip_suffix('\n')?;
    let (sum, json) = text.split_once(' ')?;
    if sum != checksum(json) {
        return None;
    }
    serde_json::from_str(json).ok()
}

fn checksum(json: &str) -> String {
    blake3::hash(json.as_bytes()).to_hex()[..16].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Promise;

    pub(crate) fn record(sequence: u32, from_ms: u64, until_ms: u64) -> UsageRecord {
        UsageRecord {
            id: UsageRecord::id_of(1, Attempt { lease: 2, attempt: 1, task: 0 }, sequence),
            node: 1,
            lease: 2,
            attempt: 1,
            task: 0,
            sequence,
            tenant: "acme".parse().unwrap(),
            tier: Tier::Standard,
            pool: String::new(),
            model: String::new(),
            gflops: 0,
            from_ms,
            until_ms,
            share_ppm: 250_000,
            suspended: false,
            gpus: 1,
            memory_mib: 1024,
            used_ppm_ms: 0,
            kernels: 0,
            bytes_in: 0,
            bytes_out: 0,
            memory_peak: 0,
            promised: None,
            last: false,
        }
    }

    #[test]
    fn an_id_is_the_same_everywhere_and_for_ever() {
        let id = |lease, attempt, task| UsageRecord::id_of(1, Attempt { lease, attempt, task }, 3);
        assert_eq!(id(2, 1, 0), "2c3cb1bed8e6d891f396b0dc9dadb729");
        assert_ne!(id(21, 1, 0), id(2, 11, 0));
        assert_ne!(id(2, 1, 1), id(2, 1, 0));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert_eq!(record(1, 0, 1000).check(), Ok(()));
        let suspended = UsageRecord { suspended: true, ..record(1, 0, 1000) };
        assert_eq!((suspended.reserved_ppm_ms(), suspended.suspended_ppm_ms()), (0, 250_000_000));
        assert_eq!(
            (record(1, 0, 1000).reserved_ppm_ms(), record(1, 0, 1000).suspended_ppm_ms()),
            (250_000_000, 0)
        );
        let forged = UsageRecord { sequence: 2, ..record(1, 0, 1000) };
        assert!(matches!(forged.check(), Err(UsageError::Id(_))));
        assert!(matches!(record(1, 1000, 0).check(), Err(UsageError::Span(_))));
        assert!(matches!(record(1, 0, u64::MAX).check(), Err(UsageError::Span(_))));
        let huge = UsageRecord { memory_mib: u64::MAX, ..record(1, 0, 1000) };
        assert!(matches!(huge.check(), Err(UsageError::Amount(_))));
        let moved = |bytes_in, kernels| UsageRecord { bytes_in, kernels, ..record(1, 0, 1000) }.check();
        assert_eq!(moved(BYTES_MAX, KERNELS_MAX), Ok(()));
        let waited = |wait_us, waits, within| {
            let promise = Promise { wait_us, attained_ppm: 990_000, credit_ppm: 0 };
            let promised = Some(Promised { promise, waits, within });
            UsageRecord { promised, ..record(1, 0, 1000) }.check()
        };
        assert_eq!(waited(20_000, KERNELS_MAX, 7), Ok(()));
        for beyond in [waited(0, 1, 1), waited(20_000, 6, 7), waited(20_000, KERNELS_MAX + 1, 7)] {
            assert!(matches!(beyond, Err(UsageError::Amount(_))));
        }
        for beyond in [moved(BYTES_MAX + 1, 0), moved(0, KERNELS_MAX + 1)] {
            assert!(matches!(beyond, Err(UsageError::Amount(_))));
        }
    }
}

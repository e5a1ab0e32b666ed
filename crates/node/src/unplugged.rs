//! A joined node without sockets, threads and programs: for simulations, which bring time, messages
//! and faults.
//!
//! Accounts, grants, metering, journal and reports are those of every node; what is missing is the
//! daemon that drives them. A lease has no sessions here, so what its programs would use is stated
//! with [`Unplugged::work`].

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sluice_api::node::{Attempt, Join, Joined, Report, ReportAnswer};
use sluice_api::problem::Problem;
use sluice_cuda::{CUdevice_attribute, Presence};
use sluice_transport::opening::Attempts;
use sluice_wire::control::DeviceSnapshot;
use sluice_worker_link::counters::Counts;
use sluice_worker_link::link::Driver;

pub use crate::clock::Clock;
use crate::config::{NodeConfig, WorkerCommand};
use crate::inventory::Inventory;
use crate::join::{self, JoinError, Journal, Outgoing, Reporter};
use crate::lease::Card;
use crate::registry::Registry;
use crate::spawn::Spawner;

/// What is on a node that is about to join.
#[derive(Clone, Debug)]
pub struct NodeShape {
    pub name: String,
    pub gpus: u32,
    /// Bytes of each GPU.
    pub memory: u64,
}

/// A node that has joined.
#[derive(Debug)]
pub struct Unplugged {
    registry: Registry,
    reporter: Reporter,
}

/// A report in flight, to be shown again with its answer.
#[derive(Clone, Debug)]
pub struct Sent(Outgoing);

impl Sent {
    /// Behind `/api/v1`.
    pub fn path(&self) -> &str {
        &self.0.path
    }

    pub fn report(&self) -> &Report {
        &self.0.report
    }
}

impl NodeShape {
    /// What it says to join.
    pub fn join(&self) -> Join {
        Join {
            name: self.name.clone(),
            address: format!("{}:7583", self.name),
            gpus: join::gpus(&self.snapshots(), &[], &[], None),
            labels: Default::default(),
            release: env!("CARGO_PKG_VERSION").into(),
        }
    }

    fn snapshots(&self) -> Vec<DeviceSnapshot> {
        let snapshot = |gpu: u32| DeviceSnapshot {
            name: "unplugged GPU".into(),
            uuid: blake3::hash(format!("{} {gpu}", self.name).as_bytes()).as_bytes()[..16]
                .try_into()
                .unwrap_or_default(),
            memory: self.memory,
            driver_version: 13000,
            attributes: vec![
                (CUdevice_attribute::COMPUTE_CAPABILITY_MAJOR, 9),
                (CUdevice_attribute::COMPUTE_CAPABILITY_MINOR, 0),
            ],
            limits: Vec::new(),
            stream_priorities: (0, 0),
            is_software: true,
            functions: Presence::default(),
            chunk: 2 << 20,
            build: 0,
        };
        (0..self.gpus).map(snapshot).collect()
    }
}

impl Unplugged {
    /// A node that starts, or starts again, with what its folder holds.
    pub fn start(
        machine: &NodeShape,
        joined: &Joined,
        folder: &Path,
        clock: Arc<dyn Clock>,
    ) -> Result<Unplugged, JoinError> {
        let unusable = |source| JoinError::Journal { folder: folder.display().to_string(), source };
        let journal = Journal::open(folder).map_err(unusable)?;
        let reporter = Reporter::new("a simulation", machine.join(), joined, journal, String::new())?;
        let snapshots = machine.snapshots();
        let card = |snapshot: &DeviceSnapshot| Card { name: snapshot.name.clone(), memory: snapshot.memory };
        let inventory = Inventory {
            driver: Driver::Software { memory: vec![machine.memory; machine.gpus as usize] },
            cards: snapshots.iter().map(card).collect(),
            snapshots,
        };
        let spawner = Spawner::start(WorkerCommand::default(), true).map_err(unusable)?;
        let membership = Arc::clone(&reporter.membership);
        let config = NodeConfig { cache: None, linger: Duration::ZERO, ..NodeConfig::default() };
        let registry = Registry::new(
            &config,
            inventory,
            (spawner, crate::swap_space::SwapSpace::open(0, None).unwrap()),
            Some(membership),
            clock,
        );
        Ok(Unplugged { registry, reporter })
    }

    /// Whether something has happened since this was asked last that the server should learn of at
    /// once.
    pub fn take_news(&self) -> bool {
        self.reporter.membership.take_news()
    }

    /// The rhythm that the server wants.
    pub fn reports_every(&self) -> Duration {
        self.reporter.every
    }

    pub fn report(&mut self) -> Sent {
        Sent(self.reporter.next(&self.registry))
    }

    pub fn answered(&mut self, sent: &Sent, answer: ReportAnswer) {
        self.reporter.answered(&self.registry, &sent.0, answer);
        // It has no sessions that could move.
        self.registry.refuse_moves("an unplugged node has no programs");
    }

    /// Whether a report that was refused so means that the node has to join again.
    pub fn has_to_join(problem: &Problem) -> bool {
        Reporter::has_to_join(problem)
    }

    /// Whether the server still takes it for the same node.
    pub fn joined_again(&self, joined: &Joined) -> bool {
        self.reporter.joined_again(joined)
    }

    /// A program brings a grant; the answer is the number of its lease here, or why it gets none.
    pub fn claim(&self, grant: &str) -> Result<u64, String> {
        let attempts = Attempts::new().map_err(|error| error.to_string())?;
        let claimed = self.registry.claim(attempts.once(), grant, 0, String::new(), None);
        claimed.map(|(granted, _)| granted.lease).map_err(|refusal| refusal.to_string())
    }

    /// Notes that a program has kept its GPUs busy for this time.
    pub fn work(&self, lease: u64, gpu_ns: u64) {
        self.registry.count(lease, Counts { gpu_ns, used_ns: gpu_ns, kernels: 1, ..Counts::default() });
    }

    /// A program ends, and its lease with it.
    pub fn end(&self, lease: u64) {
        self.registry.end_lease(lease);
    }

    /// The server's leases that are here, and which of this node's they are.
    pub fn held(&self) -> Vec<(Attempt, u64)> {
        self.registry.attempts()
    }

    /// Writes down what leases have used so far; nodes do so every ten seconds.
    pub fn record_usage(&self) {
        self.registry.record_usage();
    }

    /// Records that the server has not confirmed.
    pub fn undelivered(&self) -> usize {
        self.reporter.membership.undelivered()
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU64, Ordering};

    use sluice_api::GPU_PPM;
    use sluice_api::grant::{Grant, Signer};
    use sluice_api::usage::{UsageRecord, read_journal_line};

    use super::*;

    /// In milliseconds.
    #[derive(Debug, Default)]
    struct Hand(AtomicU64);

    impl Clock for Hand {
        fn wall_ms(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }

        fn running(&self) -> Duration {
            Duration::from_millis(self.wall_ms())
        }
    }

    struct Started {
        node: Unplugged,
        signer: Signer,
        clock: Arc<Hand>,
        folder: PathBuf,
    }

    /// With one GPU of 1 GiB.
    fn start(name: &str) -> Started {
        let folder = std::env::temp_dir().join(format!("sluice-unplugged-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder); // it may not be there yet
        let signer = Signer::new([7; 32]);
        let joined = Joined {
            node: 1,
            token: String::new(),
            grant_key: signer.verifier().to_text(),
            report_every_ms: 1000,
        };
        let machine = NodeShape { name: "n".into(), gpus: 1, memory: 1 << 30 };
        let clock = Arc::new(Hand::default());
        let node = Unplugged::start(&machine, &joined, &folder, clock.clone()).unwrap();
        Started { node, signer, clock, folder }
    }

    fn grant(lease: u64, share_ppm: u32) -> Grant {
        Grant {
            lease,
            attempt: 1,
            task: 0,
            node: 1,
            tenant: "acme".parse().unwrap(),
            tier: Default::default(),
            pool: "default".into(),
            gpus: vec![0],
            share_ppm,
            promised_ppm: GPU_PPM,
            memory: 1 << 20,
            hard_cap: false,
            limit_ppm: None,
            suspended: false,
            version: 0,
            moves: 0,
            promise: None,
            expires_at_ms: 100,
        }
    }

    #[test]
    fn a_gpu_is_leased_as_often_as_the_grants_say() {
        let Started { node, signer, folder, .. } = start("overcommit");
        let claim = |grant: Grant| node.claim(&signer.sign(&grant));
        let of_150 = |lease, share_ppm| Grant { promised_ppm: 1_500_000, ..grant(lease, share_ppm) };
        claim(of_150(1, 750_000)).unwrap();
        let refusal = claim(grant(2, 750_000)).unwrap_err();
        assert!(refusal.contains("25 % and"), "its own pool promises a GPU once: {refusal}");
        let second = claim(of_150(3, 750_000)).unwrap();
        let refusal = claim(of_150(4, 1)).unwrap_err();
        assert!(refusal.contains("0 % and"), "{refusal}");
        let status = node.registry.status();
        assert_eq!((status.gpus[0].share_leased_ppm, node.held().len()), (1_500_000, 2));
        node.end(second);
        claim(of_150(5, 750_000)).unwrap();
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_lease_is_charged_for_what_it_has_at_each_time() {
        let Started { node, signer, clock, folder } = start("resize");
        let at = |ms: u64| clock.0.store(ms, Ordering::Relaxed);
        let of = |version, share_ppm, memory| {
            signer.sign(&Grant { version, memory, expires_at_ms: 1_000_000, ..grant(5, share_ppm) })
        };
        let lease = node.claim(&of(0, 500_000, 1 << 20)).unwrap();
        at(1001);
        node.work(lease, 700_000_000);
        let (number, size) = node.registry.regrant(&of(1, 750_000, 3 << 20)).unwrap();
        assert_eq!((number, size.share_ppm, size.memory), (lease, 750_000, 3 << 20));
        at(3004);
        node.registry.regrant(&of(1, 750_000, 3 << 20)).unwrap();
        assert!(node.registry.regrant(&of(0, 1, 1)).is_err(), "an earlier one is of no use");
        // There is no room for this one: it is refused for good, and all stays as it is.
        let refused = node.registry.regrant(&of(2, 750_000, 2 << 30)).unwrap_err().to_string();
        assert!(refused.contains("GPU 0 has no room for that"), "{refused}");
        assert_eq!(node.registry.regrant(&of(2, 750_000, 2 << 30)).unwrap_err().to_string(), refused);
        let resized = node.registry.report().resized;
        assert_eq!((resized.len(), resized[0].version, resized[0].refused.clone()), (1, 2, Some(refused)));
        at(6010);
        node.registry.regrant(&of(3, 1000, 1 << 20)).unwrap();
        assert_eq!(node.registry.report().resized[0].refused, None);
        at(10_020);
        node.end(lease);
        assert!(node.registry.regrant(&of(4, 1, 1)).is_err(), "it is over");
        let text = std::fs::read(folder.join("usage.journal")).unwrap();
        let lines = text.split_inclusive(|&byte| byte == b'\n').map(|line| read_journal_line(line).unwrap());
        let records: Vec<UsageRecord> = lines.collect();
        let seen = |r: &UsageRecord| (r.held_ms(), r.share_ppm, r.memory_mib, r.used_ppm_ms, r.last);
        assert_eq!(
            records.iter().map(seen).collect::<Vec<_>>(),
            [(1001, 500_000, 1, 700_000_000, false), (5009, 750_000, 3, 0, false), (4010, 1000, 1, 0, true),]
        );
        assert!(records.windows(2).all(|pair| pair[0].until_ms == pair[1].from_ms));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_leases_use_while_the_journal_is_full_can_be_billed() {
        const HOUR_MS: u64 = 3_600_000;
        let Started { node, signer, clock, folder } = start("full");
        let grant = grant(5, 500_000);
        let lease = node.claim(&signer.sign(&grant)).unwrap();
        node.reporter.membership.fill_up();
        let waiting = || node.undelivered();
        let full = waiting();
        assert!(node.registry.report().closed);
        let pass = |ms: u64| {
            clock.0.fetch_add(ms, Ordering::Relaxed);
            node.record_usage();
        };
        pass(HOUR_MS - 1);
        assert_eq!(waiting(), full, "it waits");
        pass(1);
        pass(10);
        assert_eq!(waiting(), full + 1, "it waits no longer than that");
        node.work(lease, 1_000_000_000);
        pass(30 * HOUR_MS);
        clock.0.fetch_add(30 * HOUR_MS, Ordering::Relaxed);
        node.end(lease);
        node.reporter.membership.make_room();
        let text = std::fs::read(folder.join("usage.journal")).unwrap();
        let lines = text.split_inclusive(|&byte| byte == b'\n').map(|line| read_journal_line(line).unwrap());
        let records: Vec<UsageRecord> = lines.filter(|record| record.lease == 5).collect();
        records.iter().for_each(|record| record.check().unwrap());
        assert!(records.windows(2).all(|pair| pair[0].until_ms == pair[1].from_ms));
        assert_eq!(records.iter().map(UsageRecord::held_ms).sum::<u64>(), 61 * HOUR_MS + 10);
        assert_eq!(records.iter().map(|record| record.used_ppm_ms).sum::<u64>(), 1000 * 1_000_000);
        assert_eq!(records.iter().map(|record| record.kernels).sum::<u64>(), 1);
        assert!(records.last().unwrap().last);
        std::fs::remove_dir_all(folder).unwrap();
    }
}

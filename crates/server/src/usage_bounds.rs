//! What a node can have measured: bounds by the grant of the lease, by the node's GPUs and by time.
//!
//! A record beyond them is set aside, which bills nothing and loses nothing: an operator
//! looks at it and accepts or discards it.

use sluice_api::GPU_PPM;
use sluice_api::usage::UsageRecord;

use crate::fleet::{LeaseRecord, Node};

/// Clocks of nodes and servers that differ by more than this are wrong.
const CLOCKS_MS: u64 = 60 * 60_000;
/// GPU time is counted when work ends, so a record may have some of the time before it.
const COUNTED_LATE_MS: u64 = 10 * 60_000;
/// A turn on a GPU takes at least ten microseconds.
const WAITS_PER_MS_MAX: u64 = 100;
const MIB: u64 = 1 << 20;

/// Says why a record cannot be true. `lease` is the lease that it names, if there is one.
pub(crate) fn implausible(
    record: &UsageRecord,
    lease: Option<&LeaseRecord>,
    node: &Node,
    now_ms: u64,
) -> Option<String> {
    let Some(lease) = lease else { return Some(format!("there is no lease {}", record.lease)) };
    by_grant(record, lease, node)
        .or_else(|| by_capacity(record, node))
        .or_else(|| by_time(record, lease, now_ms))
}

fn by_grant(record: &UsageRecord, lease: &LeaseRecord, node: &Node) -> Option<String> {
    let id = lease.id;
    if lease.tenant != record.tenant {
        return Some(format!("lease {id} is of {}, not of {}", lease.tenant, record.tenant));
    }
    if record.gpus > lease.ask.gpus {
        return Some(format!("lease {id} has {} GPUs, not {}", lease.ask.gpus, record.gpus));
    }
    // The places of earlier attempts are not kept.
    if record.attempt < lease.attempt {
        return None;
    }
    let seat = lease.seats.get(record.task as usize).filter(|_| record.attempt == lease.attempt);
    let Some(seat) = seat else {
        return Some(format!(
            "task {} of attempt {} of lease {id} was never granted",
            record.task, record.attempt
        ));
    };
    let moves_to = seat.target().is_some_and(|(target, _)| target == node.id);
    if seat.node != node.id && !moves_to && !seat.earlier.contains(&node.id) {
        return Some(format!("lease {id} was granted to another node"));
    }
    if record.promised.is_some_and(|of| seat.promise != Some(of.promise)) {
        return Some(format!("lease {id} was not promised that"));
    }
    // A lease that was resized had other sizes, which are not kept.
    let (share_ppm, memory) = (lease.share_ppm(seat), seat.memory.div_ceil(MIB) * u64::from(record.gpus));
    if seat.version == 0
        && seat.resizing.is_none()
        && (record.share_ppm > share_ppm || record.memory_mib > memory)
    {
        return Some(format!("lease {id} was granted less than that"));
    }
    None
}

fn by_capacity(record: &UsageRecord, node: &Node) -> Option<String> {
    let gpus = node.gpus.len() as u64;
    if u64::from(record.gpus) > gpus {
        return Some(format!("the node has {gpus} GPUs, not {}", record.gpus));
    }
    let memory: u64 = node.gpus.iter().map(|gpu| gpu.memory.div_ceil(MIB)).sum();
    if record.memory_mib > memory {
        return Some(format!("the GPUs of the node have {memory} MiB, not {}", record.memory_mib));
    }
    let device_ms = u64::from(record.gpus) * (record.held_ms() + COUNTED_LATE_MS);
    if record.used_ppm_ms > device_ms.saturating_mul(GPU_PPM.into()) {
        return Some("it has more GPU time than passed on its GPUs".to_owned());
    }
    let waits_max = device_ms.saturating_mul(WAITS_PER_MS_MAX);
    record
        .promised
        .is_some_and(|of| of.waits > waits_max)
        .then(|| "it has more waits for the GPU than fit into its time".to_owned())
}

fn by_time(record: &UsageRecord, lease: &LeaseRecord, now_ms: u64) -> Option<String> {
    if record.until_ms > now_ms.saturating_add(CLOCKS_MS) {
        return Some("it ends in the future: is the clock of the node right?".into());
    }
    (record.from_ms.saturating_add(CLOCKS_MS) < lease.created_at_ms).then(|| {
        format!("it begins before lease {} was requested: is the clock of the node right?", lease.id)
    })
}

#[cfg(test)]
mod tests {
    use sluice_api::lease::NewLease;
    use sluice_api::node::{Attempt, Gpu};
    use sluice_api::pool::{Promise, Promised};
    use sluice_api::usage::GPU_HOUR_PPM_MS;

    use super::*;
    use crate::fleet::{Seat, SeatMove};

    const HOUR_MS: u64 = 3_600_000;
    const NOW_MS: u64 = 100 * HOUR_MS;

    fn node() -> Node {
        let gpu = Gpu { memory: 16 << 30, ..Gpu::default() };
        Node::new(1, "one".into(), "h:1".into(), vec![gpu; 2])
    }

    fn lease() -> LeaseRecord {
        let ask: NewLease = serde_json::from_str(r#"{"share_ppm": 250000, "gpus": 1}"#).unwrap();
        let asked_ms = NOW_MS - 2 * HOUR_MS;
        let lease = LeaseRecord::requested(7, "acme".parse().unwrap(), ask, String::new(), asked_ms);
        LeaseRecord { seats: vec![Seat::new(1, vec![0], 4 << 30)], ..lease }
    }

    fn record() -> UsageRecord {
        UsageRecord {
            id: UsageRecord::id_of(1, Attempt { lease: 7, attempt: 1, task: 0 }, 1),
            node: 1,
            lease: 7,
            attempt: 1,
            task: 0,
            sequence: 1,
            tenant: "acme".parse().unwrap(),
            tier: Default::default(),
            pool: "default".into(),
            model: String::new(),
            gflops: 0,
            from_ms: NOW_MS - HOUR_MS,
            until_ms: NOW_MS,
            share_ppm: 250_000,
            suspended: false,
            gpus: 1,
            memory_mib: 4096,
            used_ppm_ms: GPU_HOUR_PPM_MS,
            kernels: 1,
            bytes_in: 1,
            bytes_out: 1,
            memory_peak: 1,
            promised: None,
            last: false,
        }
    }

    fn check(change: impl FnOnce(&mut UsageRecord, &mut LeaseRecord), expect: Option<&str>) {
        let (mut record, mut lease) = (record(), lease());
        change(&mut record, &mut lease);
        let found = implausible(&record, Some(&lease), &node(), NOW_MS);
        match expect {
            None => assert_eq!(found, None),
            Some(part) => {
                assert!(found.as_ref().is_some_and(|found| found.contains(part)), "{part}: {found:?}")
            }
        }
    }

    const PROMISE: Promise = Promise { wait_us: 20_000, attained_ppm: 990_000, credit_ppm: 100_000 };

    /// The lease was promised [`PROMISE`], and the record is of this one.
    fn promise(record: &mut UsageRecord, lease: &mut LeaseRecord, promise: Promise) {
        lease.seats[0].promise = Some(PROMISE);
        record.promised = Some(Promised { promise, waits: 2, within: 1 });
    }

    #[test]
    fn usage_within_the_grant_counts() {
        check(|_, _| {}, None);
        check(|record, _| record.used_ppm_ms += GPU_HOUR_PPM_MS / 10, None);
        check(|record, lease| promise(record, lease, PROMISE), None);
        // It has moved on since, or comes from another node that has not reported that yet.
        check(|_, lease| (lease.seats[0].node, lease.seats[0].earlier) = (2, vec![1]), None);
        let comes = SeatMove::Sent { node: 1, gpus: vec![0], has_left: false, cause: None };
        check(|_, lease| (lease.seats[0].node, lease.seats[0].moving) = (2, Some(comes)), None);
        // Earlier attempts, and leases that were resized, had places and sizes that are not kept.
        check(|_, lease| (lease.attempt, lease.seats) = (2, Vec::new()), None);
        check(
            |record, lease| {
                (record.share_ppm, record.memory_mib) = (1_000_000, 16 << 10);
                lease.seats[0].version = 1;
            },
            None,
        );
    }

    #[test]
    fn usage_beyond_the_grant_the_gpus_or_the_time_does_not() {
        check(|record, _| record.tenant = "globex".parse().unwrap(), Some("is of acme"));
        check(|record, _| record.gpus = 2, Some("has 1 GPUs"));
        check(|record, _| record.attempt = 2, Some("never granted"));
        check(|record, _| record.task = 1, Some("never granted"));
        check(|_, lease| lease.seats[0].node = 2, Some("another node"));
        check(|record, _| record.share_ppm = 260_000, Some("granted less"));
        check(|record, _| record.memory_mib = 4097, Some("granted less"));
        let dearer = Promise { credit_ppm: 1_000_000, ..PROMISE };
        check(|record, lease| promise(record, lease, dearer), Some("was not promised that"));
        check(
            |record, lease| {
                (record.gpus, lease.ask.gpus, lease.seats) = (4096, 4096, Vec::new());
                lease.attempt = 2;
            },
            Some("the node has 2 GPUs"),
        );
        check(|record, _| record.used_ppm_ms = 2 * GPU_HOUR_PPM_MS, Some("more GPU time than passed"));
        check(
            |record, lease| {
                promise(record, lease, PROMISE);
                let waits = 1 << 46;
                record.promised = Some(Promised { promise: PROMISE, waits, within: waits });
            },
            Some("more waits for the GPU"),
        );
        check(|record, _| record.until_ms += 2 * HOUR_MS, Some("in the future"));
        check(|record, _| record.from_ms -= 24 * HOUR_MS, Some("before lease 7"));
        let unknown = implausible(&record(), None, &node(), NOW_MS);
        assert_eq!(unknown.as_deref(), Some("there is no lease 7"));
    }
}

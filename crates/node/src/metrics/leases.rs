//! The leases: what each has, gets and has used of the GPUs that it shares with others.
//!
//! The counters are the meters that usage records, and so bills, are made of; `docs/metrics.md`
//! says which is which.

use std::fmt;

use sluice_metrics::{Histogram, Metric, Page};

use crate::arbiter::{WAIT_BOUNDS_NS, Waits};
use crate::registry::readings::{LeaseNow, LeaseReading};

const USED: Metric = Metric::counter(
    "sluice_lease_gpu",
    "GPU time x the part of the GPU that was occupied: the meter `used` of bills",
)
.of("seconds");
const RESERVED: Metric =
    Metric::counter("sluice_lease_reserved_gpu", "Share x time that was held: the meter `reserved` of bills")
        .of("seconds");
const BUSY: Metric =
    Metric::counter("sluice_lease_busy", "Time slices on GPUs that the sessions of the lease had")
        .of("seconds");
const THROTTLED: Metric = Metric::counter(
    "sluice_lease_throttled",
    "Time for which sessions of the lease had work and waited for a GPU, added up over sessions and GPUs",
)
.of("seconds");
const TURN_WAITS: Metric = Metric::histogram(
    "sluice_lease_turn_wait",
    "From when a session of the lease had work to when it had a GPU, for each turn",
)
.of("seconds");
const PROMISED_WAITS: Metric = Metric::counter(
    "sluice_lease_promised_waits",
    "Waits for a GPU that the promise of the lease's tier is about: the meter of credits on bills",
);
const PROMISED_WAITS_WITHIN: Metric =
    Metric::counter("sluice_lease_promised_waits_within", "Those of them that were no longer than promised");
const GUARANTEED: Metric =
    Metric::gauge("sluice_lease_share_guaranteed_ratio", "Share of each GPU that the lease is guaranteed");
const RECEIVED: Metric = Metric::gauge(
    "sluice_lease_share_received_ratio",
    "Part of its GPUs' time that the lease had in the last second; it wants less while its sessions have no work",
);
const GPUS: Metric = Metric::gauge("sluice_lease_gpus", "GPUs of the lease on this node");
const MEMORY: Metric =
    Metric::gauge("sluice_lease_memory", "Memory that the lease may use, on all its GPUs here").of("bytes");
const MEMORY_USED: Metric = Metric::gauge(
    "sluice_lease_memory_used",
    "Memory that its sessions have allocated, on all its GPUs here",
)
.of("bytes");
const MEMORY_SWAPPED: Metric = Metric::gauge(
    "sluice_lease_memory_swapped",
    "Memory of its sessions that is with the node instead of on a GPU",
)
.of("bytes");
const MEMORY_IN_FILE: Metric = Metric::gauge(
    "sluice_lease_memory_in_file",
    "Memory of its sessions that is in the node's swap file, part of what is swapped",
)
.of("bytes");
const MEMORY_MOVES: Metric = Metric::counter(
    "sluice_lease_memory_moves",
    "Times that the memory of a session of the lease left its GPUs",
);
const MEMORY_MOVING: Metric = Metric::counter(
    "sluice_lease_memory_moving",
    "Time for which memory of its sessions was moved off the GPUs and back",
)
.of("seconds");
const SESSIONS: Metric = Metric::gauge("sluice_lease_sessions", "Sessions of the lease");
const STARTED: Metric = Metric::counter("sluice_lease_sessions_started", "Sessions of the lease so far");
const KERNELS: Metric = Metric::counter("sluice_lease_kernels", "Kernels that its sessions have launched");
const LINK: Metric = Metric::counter(
    "sluice_lease_link",
    "Bytes between the node and the lease's programs: received by the node, or sent",
)
.of("bytes");
const ROUND_TRIP: Metric = Metric::gauge(
    "sluice_lease_rtt",
    "Round-trip time to the farthest program of the lease, as TCP has measured it",
)
.of("seconds");
const FAULTS: Metric = Metric::counter(
    "sluice_lease_faults",
    "Sessions of the lease that ended because their worker crashed or their driver hung",
);

type Labels = Vec<(&'static str, String)>;

pub(super) fn write(page: &mut Page<'_>, leases: &[LeaseReading]) -> fmt::Result {
    let labels: Vec<Labels> = leases.iter().map(labels).collect();
    let mut counter = |metric: &Metric, value: &dyn Fn(&LeaseReading) -> f64| {
        page.family(
            metric,
            labels.iter().zip(leases).map(|(labels, lease)| (labels.as_slice(), value(lease))),
        )
    };
    counter(&USED, &|lease| seconds(lease.used_ns))?;
    counter(&RESERVED, &|lease| seconds(lease.reserved_ns))?;
    counter(&BUSY, &|lease| seconds(lease.busy_ns))?;
    counter(&THROTTLED, &|lease| seconds(lease.waits.total_ns))?;
    counter(&PROMISED_WAITS, &|lease| lease.waits.promised.waits as f64)?;
    counter(&PROMISED_WAITS_WITHIN, &|lease| lease.waits.promised.within as f64)?;
    counter(&STARTED, &|lease| lease.sessions_total as f64)?;
    counter(&KERNELS, &|lease| lease.kernels as f64)?;
    counter(&MEMORY_MOVES, &|lease| lease.memory_moves as f64)?;
    counter(&MEMORY_MOVING, &|lease| lease.memory_moving_us as f64 / 1e6)?;
    counter(&FAULTS, &|lease| lease.failures as f64)?;
    let mut gauge = |metric: &Metric, value: &dyn Fn(&LeaseNow) -> f64| {
        let with_value = labels
            .iter()
            .zip(leases)
            .filter_map(|(labels, lease)| lease.now.as_ref().map(|now| (labels.as_slice(), value(now))));
        page.family(metric, with_value)
    };
    gauge(&GUARANTEED, &|now| ratio(now.share_ppm))?;
    gauge(&RECEIVED, &|now| ratio(now.received_ppm))?;
    gauge(&GPUS, &|now| f64::from(now.gpus))?;
    gauge(&MEMORY, &|now| now.memory as f64)?;
    gauge(&MEMORY_USED, &|now| now.memory_used as f64)?;
    gauge(&MEMORY_SWAPPED, &|now| now.memory_swapped as f64)?;
    gauge(&MEMORY_IN_FILE, &|now| now.memory_in_file as f64)?;
    gauge(&SESSIONS, &|now| f64::from(now.sessions))?;
    let round_trips = labels.iter().zip(leases).filter_map(|(labels, lease)| {
        let us = lease.now.as_ref().map(|now| now.round_trip_us).filter(|&us| us > 0)?;
        Some((labels.as_slice(), us as f64 / 1e6))
    });
    page.family(&ROUND_TRIP, round_trips)?;
    let link = labels.iter().zip(leases).flat_map(|(labels, lease)| {
        [("received", lease.bytes_in), ("sent", lease.bytes_out)].map(|(direction, bytes)| {
            let direction = ("direction", direction.to_owned());
            (labels.iter().cloned().chain([direction]).collect::<Labels>(), bytes as f64)
        })
    });
    page.family(&LINK, link)?;
    let waits = labels.iter().zip(leases);
    page.histogram(&TURN_WAITS, waits.map(|(labels, lease)| (labels.as_slice(), histogram(&lease.waits))))
}

fn histogram(waits: &Waits) -> Histogram {
    let [within @ .., beyond] = waits.counts;
    let bounds = WAIT_BOUNDS_NS.into_iter().map(seconds);
    Histogram { sum: seconds(waits.turns_ns), buckets: bounds.zip(within).collect(), beyond }
}

/// Labels without a value are left out: a node without a server knows no tenants.
fn labels(lease: &LeaseReading) -> Labels {
    let name = &lease.name;
    let mut labels = vec![("lease", name.lease.to_string())];
    if name.attempt > 0 {
        labels.push(("attempt", name.attempt.to_string()));
        labels.push(("task", name.task.to_string()));
    }
    let of = [("tenant", name.tenant.clone()), ("tier", name.tier.clone()), ("pool", name.pool.clone())];
    labels.extend(of.into_iter().filter(|(_, value)| !value.is_empty()));
    labels
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn ratio(ppm: u32) -> f64 {
    f64::from(ppm) / 1e6
}

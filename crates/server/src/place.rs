//! What happens to the queue now: one pure function.

use sluice_api::GPU_PPM;
use sluice_api::lease::LeaseId;

use crate::fleet::{Fleet, LeaseRecord, Node, Seat};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Grant { lease: LeaseId, seat: Seat },
    Wait { lease: LeaseId, reason: String },
}

/// The first decision that can be taken about each waiting lease, in the order of the queue. A lease that is granted
/// takes its room, so the caller carries out a grant before it asks again.
pub(crate) fn decide(fleet: &Fleet, now_ms: u64) -> Vec<Decision> {
    let mut decisions = Vec::new();
    for lease in fleet.queue() {
        let decision = match over_quota(fleet, lease) {
            Some(reason) => Decision::Wait { lease: lease.id, reason },
            None => match first_fit(fleet, lease, now_ms) {
                Ok(seat) => {
                    decisions.push(Decision::Grant { lease: lease.id, seat });
                    return decisions;
                }
                Err(reason) => Decision::Wait { lease: lease.id, reason },
            },
        };
        decisions.push(decision);
    }
    decisions
}

/// The first quota, from the tenant upwards, that the lease would pass.
fn over_quota(fleet: &Fleet, lease: &LeaseRecord) -> Option<String> {
    for tenant in lease.tenant.lineage() {
        let Some(quota) = fleet.tenants.get(&tenant) else { continue };
        let holding = fleet.holding(&tenant);
        let ppm = holding.ppm + lease.total_ppm();
        let over = |limit_milli: u32| ppm > u64::from(limit_milli) * 1000;
        if let Some(limit) = quota.limit_milli.filter(|&limit| over(limit)) {
            return Some(format!(
                "{tenant} holds {} of the {} GPUs that are its limit, and this asks for {}",
                gpus_text(holding.ppm),
                gpus_text(u64::from(limit) * 1000),
                gpus_text(lease.total_ppm())
            ));
        }
        if !lease.ask.preemptible && over(quota.guaranteed_milli) {
            return Some(format!(
                "what may not be preempted gets guaranteed GPUs only, and {tenant} holds {} of its {}",
                gpus_text(holding.ppm),
                gpus_text(u64::from(quota.guaranteed_milli) * 1000)
            ));
        }
        if quota.leases_limit.is_some_and(|limit| holding.leases >= limit) {
            return Some(format!("{tenant} has {} leases, which is its limit", holding.leases));
        }
        let memory_mib = (holding.memory + lease.ask.memory * u64::from(lease.ask.gpus)) >> 20;
        if let Some(limit) = quota.memory_limit_mib.filter(|&limit| memory_mib > limit) {
            return Some(format!(
                "{tenant} holds {} of the {limit} MiB of memory that are its limit",
                holding.memory >> 20
            ));
        }
    }
    None
}

fn first_fit(fleet: &Fleet, lease: &LeaseRecord, now_ms: u64) -> Result<Seat, String> {
    let online: Vec<&Node> = fleet.nodes.values().filter(|node| node.is_online(now_ms)).collect();
    if online.is_empty() {
        return Err("no node is there; `sluice node --join` lends one".into());
    }
    let mut most = 0;
    for node in online {
        let mut gpus = Vec::new();
        let mut memory = u64::MAX;
        for (index, gpu) in (0..).zip(&node.gpus) {
            let (leased_ppm, leased_memory, _) = fleet.leased(node.id, index);
            let free_ppm = u64::from(GPU_PPM).saturating_sub(leased_ppm);
            most = most.max(free_ppm);
            let wanted = memory_on(gpu.memory, lease);
            if free_ppm >= u64::from(lease.ask.share_ppm) && leased_memory + wanted <= gpu.memory {
                gpus.push(index);
                memory = memory.min(wanted);
            }
        }
        if gpus.len() >= lease.ask.gpus as usize {
            gpus.truncate(lease.ask.gpus as usize);
            return Ok(Seat { node: node.id, gpus, memory });
        }
    }
    let percent = |ppm: u64| format!("{} %", ppm / 10_000);
    let share = percent(u64::from(lease.ask.share_ppm));
    Err(match lease.ask.gpus {
        1 => format!("needs {share} of a GPU; the most that is free on any is {}", percent(most)),
        count => format!("needs {share} of {count} GPUs of one node; no node has that free"),
    })
}

/// Bytes that the lease takes of a GPU of this size.
fn memory_on(gpu_memory: u64, lease: &LeaseRecord) -> u64 {
    match lease.ask.memory {
        0 => (u128::from(gpu_memory) * u128::from(lease.ask.share_ppm) / u128::from(GPU_PPM)) as u64,
        bytes => bytes,
    }
}

/// `0.25`, `2`: GPUs as people write them.
fn gpus_text(ppm: u64) -> String {
    let text = format!("{:.3}", ppm as f64 / f64::from(GPU_PPM));
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

//! Which of the places that were decided can be taken.

use std::collections::HashMap;

use sluice_api::GPU_PPM;
use sluice_api::node::NodeId;

use crate::fleet::{Fleet, LeaseRecord, Seat};

/// Which places of a lease can be taken now.
pub(super) struct Clearance {
    /// With the scheduler's numbers of their tasks.
    pub(super) places: Vec<(u32, Seat)>,
    /// Why the first of the others cannot be taken yet.
    pub(super) in_the_way: Option<String>,
}

impl Clearance {
    pub(super) fn of(fleet: &Fleet, lease: &LeaseRecord, places: Vec<(u32, Seat)>) -> Clearance {
        // What the places before it take of each GPU.
        let mut wanted: HashMap<(NodeId, u32), (u64, u64)> = HashMap::new();
        let mut clearance = Clearance { places: Vec::new(), in_the_way: None };
        for (task, seat) in places {
            let share_ppm = lease.share_ppm(&seat);
            let sums = seat.gpus.iter().map(|&gpu| {
                let (ppm, memory) = wanted.get(&(seat.node, gpu)).copied().unwrap_or_default();
                (gpu, (ppm + u64::from(share_ppm), memory + seat.memory))
            });
            let sums: Vec<(u32, (u64, u64))> = sums.collect();
            let other =
                sums.iter().find_map(|&(gpu, more)| in_the_way(fleet, lease, &seat, gpu, (share_ppm, more)));
            if let Some(other) = other {
                clearance.in_the_way.get_or_insert(other);
                continue;
            }
            wanted.extend(sums.into_iter().map(|(gpu, sum)| ((seat.node, gpu), sum)));
            clearance.places.push((task, seat));
        }
        clearance
    }
}

/// Why this amount of compute and memory of a GPU cannot be taken yet in such shares, if so. A
/// whole GPU has no other lease.
fn in_the_way(
    fleet: &Fleet,
    lease: &LeaseRecord,
    seat: &Seat,
    gpu: u32,
    (share_ppm, (ppm, memory)): (u32, (u64, u64)),
) -> Option<String> {
    let id = seat.node;
    let Some(node) = fleet.nodes().get(&id) else { return Some("its node is gone".into()) };
    let taken = fleet.taken(id, gpu);
    let free = fleet.free_memory(node, gpu, &taken, lease.is_fixed_at(seat));
    let one_alone = share_ppm == GPU_PPM || taken.whole > 0;
    let promised_ppm = if one_alone { GPU_PPM } else { fleet.promised_ppm(node, gpu) };
    if taken.ppm + ppm <= u64::from(promised_ppm) && free.holds(memory, seat.memory) {
        return None;
    }
    let is_noticed = |lease: &LeaseRecord| {
        let leaves = |seat: &Seat| lease.preempt_at_ms.is_some() || seat.leave_at_ms.is_some();
        lease.held().any(|(_, seat)| seat.node == id && seat.gpus.contains(&gpu) && leaves(seat))
    };
    let moves = |lease: &LeaseRecord| {
        lease.held().any(|(_, seat)| {
            seat.node == id && seat.gpus.contains(&gpu) && seat.target().is_some_and(|(to, _)| to != id)
        })
    };
    let such = |such: &dyn Fn(&LeaseRecord) -> bool| {
        fleet.on_node(id).into_iter().find(|&other| fleet.lease(other).is_some_and(such))
    };
    let cleared = format!("its place on {} is being cleared", node.name);
    Some(match (such(&is_noticed), such(&moves)) {
        (Some(other), _) => format!("{cleared}: lease {other} has been given notice"),
        (None, Some(other)) => format!("{cleared}: lease {other} moves to another node"),
        (None, None) => cleared,
    })
}

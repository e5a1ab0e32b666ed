//! What fenced GPUs mean for work that waits.

use sluice_api::lease::NewLease;
use sluice_api::tenant::TenantPath;

use super::Plan;
use crate::fleet::{Fleet, Seat};

/// GPUs that a reason names; the others are counted.
const NAMED_MAX: usize = 3;

impl Plan {
    /// Has what was bound to a GPU that is fenced now, or to a node that takes nothing new, find
    /// another place. What was to move there, or for a lease that is gone, is decided anew.
    pub(super) fn leave_fenced(&mut self, fleet: &Fleet) {
        if self.is_due_to_closed(fleet) || self.is_due_for_gone(fleet) {
            return self.begin_anew(fleet);
        }
        for id in self.bound.iter().copied().collect::<Vec<_>>() {
            let is_fenced = |seat: &Seat| {
                fleet.nodes().get(&seat.node).is_some_and(|node| !node.takes_work())
                    || seat.gpus.iter().any(|&gpu| fleet.is_fenced(seat.node, gpu))
            };
            if self.unseated(id).iter().any(|(_, seat)| is_fenced(seat)) {
                self.bound.remove(&id);
                self.lose_unseated(id);
            }
        }
    }

    /// The fenced GPUs, and the drained nodes, that the request would otherwise accept, in words.
    pub(super) fn fenced(&self, fleet: &Fleet, tenant: &TenantPath, ask: &NewLease) -> Option<String> {
        let models = self.request(fleet, tenant, ask).ok()?.models;
        let mut fenced = Vec::new();
        for (node, sites) in
            fleet.nodes().values().filter_map(|node| Some((node, self.on_node.get(&node.id)?)))
        {
            let accepted = |site: &&sluice_sched::NodeId| {
                models.contains(self.scheduler.cluster().node(**site).spec().model)
            };
            if node.drain.is_some() && sites.iter().any(|site| accepted(&site)) {
                fenced.push(format!("{} (drained)", node.name));
                continue;
            }
            let gpus = sites.iter().filter(accepted).flat_map(|site| &self.sites[site.index()].gpus);
            for &gpu in gpus.filter(|&&gpu| fleet.is_fenced(node.id, gpu)) {
                let why = fleet.fence_of(node.id, gpu).map_or("", |fence| &fence.why);
                fenced.push(format!("{}/{gpu} ({why})", node.name));
            }
        }
        let named = fenced.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
        match fenced.len() {
            0 => None,
            1..=NAMED_MAX => Some(format!("fenced: {named}")),
            more => Some(format!("fenced: {named} and {} more", more - NAMED_MAX)),
        }
    }
}

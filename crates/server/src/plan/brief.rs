//! One short sentence on why a lease waits, for people who want to know little. [`Plan::why`] has
//! everything.

use sluice_sched::queues::Blocked;

use super::{Plan, domain_name, queues};
use crate::fleet::{Fleet, LeaseRecord};

impl Plan {
    /// Describes what keeps a waiting lease from starting, in one sentence without its full stop.
    pub(crate) fn brief(&self, fleet: &Fleet, lease: &LeaseRecord) -> Option<String> {
        if self.broken.is_some() {
            return Some("the tenants' quotas contradict each other".into());
        }
        if let Some(reason) = self.held_back.get(&lease.id) {
            return Some(match fleet.budgets().spent(&lease.tenant) {
                Some((tenant, _)) => format!("{tenant} has spent its budget"),
                None => clause(reason),
            });
        }
        if self.bound.contains(&lease.id) {
            return Some("other programs are leaving its place".into());
        }
        if !fleet.nodes().values().any(|node| node.takes_work()) {
            return Some("no node takes new leases".into());
        }
        let why = self.scheduler.why(self.work.get(&lease.id)?.job)?;
        Some(match &why.blocked {
            None => "other leases are served first".into(),
            Some(blocked) => blocked_text(blocked, lease),
        })
    }

    /// Whether a waiting lease lacks nothing but a place on a node.
    pub(crate) fn lacks_room(&self, fleet: &Fleet, lease: &LeaseRecord) -> bool {
        if self.broken.is_some() || self.held_back.contains_key(&lease.id) || self.bound.contains(&lease.id) {
            return false;
        }
        if !fleet.nodes().values().any(|node| node.takes_work()) {
            return true;
        }
        let why = self.work.get(&lease.id).and_then(|work| self.scheduler.why(work.job));
        why.is_some_and(|why| matches!(why.blocked, Some(Blocked::Room { .. } | Blocked::Topology { .. })))
    }
}

fn blocked_text(blocked: &Blocked, lease: &LeaseRecord) -> String {
    let tenant =
        |queue: &String| queues::tenant_of(queue).map_or_else(|| queue.clone(), |tenant| tenant.to_string());
    match blocked {
        Blocked::Limit { queue, limit, used } => {
            format!("{} uses {used} of its limit of {limit}", tenant(queue))
        }
        Blocked::Quota { queue, deserved, used } => {
            let tenant = tenant(queue);
            format!("{tenant} uses {used} of the {deserved} that it is guaranteed, without preemption")
        }
        Blocked::Room { needs: 1, .. } if lease.ask.gpus == 1 => "no GPU has room for it".into(),
        Blocked::Room { needs: 1, .. } => format!("no node has room on {} GPUs", lease.ask.gpus),
        Blocked::Room { needs, fit, .. } => format!("there is room for {fit} of its {needs} tasks"),
        Blocked::Topology { within: Some(level), needs, fit, .. } => {
            let domain = domain_name(*level);
            format!("no {domain} has room for its {needs} tasks, the best for {fit}")
        }
        Blocked::Topology { needs, fit, .. } => format!("there is room apart for {fit} of its {needs} tasks"),
    }
}

/// The first clause of a reason, without the word that names its kind.
fn clause(reason: &str) -> String {
    let first = reason.split(';').next().unwrap_or(reason);
    let kinds = ["limit: ", "quota: ", "room: ", "budget: ", "topology: "];
    let bare = kinds.iter().find_map(|kind| first.strip_prefix(kind)).unwrap_or(first);
    bare.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clause_has_no_kind_and_no_details() {
        assert_eq!(clause("limit: acme has 3 leases, and may have 3"), "acme has 3 leases, and may have 3");
        assert_eq!(clause("no pool serves acme now; default from 18:00 on"), "no pool serves acme now");
    }
}

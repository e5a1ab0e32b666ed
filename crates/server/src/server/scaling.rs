//! Events for what scales nodes: leases that no node can take, and nodes without leases.
//!
//! Both are entries of the audit log, and so events for webhooks of `/`. Each is said once: what
//! is wanted again when more of it is, after a while; a node when it has become idle once more.
//! What was said is not stored, so a server that comes to lead may say it again.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};
use sluice_api::lease::NewLease;
use sluice_api::node::NodeId;
use sluice_api::tenant::TenantPath;

use super::Books;
use crate::fleet::{Fleet, Node};
use crate::plan::Plan;

/// It is looked this often.
const LOOK_EVERY_MS: u64 = 1000;
/// A lease that only waits for others does so for this time before nodes are wanted for it.
const PATIENCE_MS: u64 = 30_000;
/// What was wanted is not wanted again within this time.
const AGAIN_MS: u64 = 300_000;
/// What one look says, and remembers.
const WANTED_MAX: usize = 1000;

/// What leases that are alike ask of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Wanted {
    /// None for any.
    pool: Option<String>,
    models: Vec<String>,
    /// Of each task, on one node.
    gpus: u32,
    share_ppm: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    units_milli: Option<u64>,
    /// Bytes on each GPU; 0 for the share's part.
    memory: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu_memory_min: Option<u64>,
    labels: BTreeMap<String, String>,
}

impl Wanted {
    fn of(ask: &NewLease) -> Wanted {
        Wanted {
            pool: ask.pool.clone(),
            models: ask.models.clone(),
            gpus: ask.gpus,
            share_ppm: ask.share_ppm,
            units_milli: ask.units_milli,
            memory: ask.memory,
            gpu_memory_min: ask.gpu_memory_min,
            labels: ask.labels.clone(),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Count {
    leases: u32,
    tasks: u32,
}

/// An entry of the audit log: what happened, to what, with which details.
pub(super) type News = (&'static str, String, Value);

/// What was said.
#[derive(Debug, Default)]
pub(super) struct Scaling {
    /// With the moment.
    wanted: BTreeMap<Wanted, (u64, Count)>,
    nodes: BTreeMap<NodeId, IdleNode>,
    looked_at_ms: u64,
}

#[derive(Debug)]
struct IdleNode {
    since_ms: u64,
    is_told: bool,
}

impl Books {
    /// Looks what is to be said now. `idle_after_ms` is after which time a node without leases is
    /// an event, if it is.
    pub(super) fn scaling_news(&mut self, idle_after_ms: Option<u64>, now_ms: u64) -> Vec<News> {
        let Books { fleet, plan, scaling, .. } = self;
        if now_ms.abs_diff(scaling.looked_at_ms) < LOOK_EVERY_MS {
            return Vec::new();
        }
        scaling.looked_at_ms = now_ms;
        let wanted = plan.as_ref().map(|plan| wanted(fleet, plan, now_ms)).unwrap_or_default();
        let mut news = scaling.want(wanted, now_ms);
        if let Some(after_ms) = idle_after_ms {
            let nodes = fleet.nodes().values().filter(|node| fleet.is_online(node, now_ms));
            let nodes: Vec<(&Node, bool)> =
                nodes.map(|node| (node, fleet.on_node(node.id).is_empty())).collect();
            news.extend(scaling.idle(&nodes, fleet, after_ms, now_ms));
        }
        news
    }
}

/// What leases wait for that no node has.
fn wanted(fleet: &Fleet, plan: &Plan, now_ms: u64) -> BTreeMap<Wanted, Count> {
    let mut wanted: BTreeMap<Wanted, Count> = BTreeMap::new();
    let has_nodes = fleet.nodes().values().any(Node::takes_work);
    // What is known of requests that are alike.
    let mut in_vain: BTreeMap<(TenantPath, Wanted), bool> = BTreeMap::new();
    for lease in fleet.queue().filter(|lease| plan.lacks_room(fleet, lease)) {
        let key = Wanted::of(&lease.ask);
        if wanted.len() >= WANTED_MAX && !wanted.contains_key(&key) {
            continue;
        }
        let has_waited = now_ms.saturating_sub(lease.queued_at_ms) >= PATIENCE_MS;
        let mut is_in_vain = || {
            let same = in_vain.entry((lease.tenant.clone(), key.clone()));
            *same.or_insert_with(|| plan.over_capacity(fleet, &lease.tenant, &lease.ask).is_some())
        };
        if has_nodes && !has_waited && !is_in_vain() {
            continue;
        }
        let count = wanted.entry(key).or_default();
        count.leases += 1;
        count.tasks += lease.ask.tasks;
    }
    wanted
}

impl Scaling {
    fn want(&mut self, wanted: BTreeMap<Wanted, Count>, now_ms: u64) -> Vec<News> {
        self.wanted
            .retain(|key, (at_ms, _)| wanted.contains_key(key) || now_ms.saturating_sub(*at_ms) < AGAIN_MS);
        let mut news = Vec::new();
        for (key, count) in wanted {
            let is_new = match self.wanted.get(&key) {
                None => self.wanted.len() < WANTED_MAX,
                Some((at_ms, told)) => count.tasks > told.tasks && now_ms.saturating_sub(*at_ms) >= AGAIN_MS,
            };
            if is_new {
                let subject = key.pool.clone().unwrap_or_else(|| "any".to_owned());
                let mut detail = json!(key);
                detail["leases"] = count.leases.into();
                detail["tasks"] = count.tasks.into();
                news.push(("node.wanted", subject, detail));
                self.wanted.insert(key, (now_ms, count));
            }
        }
        news
    }

    fn idle(&mut self, nodes: &[(&Node, bool)], fleet: &Fleet, after_ms: u64, now_ms: u64) -> Vec<News> {
        let idle: BTreeMap<NodeId, &Node> =
            nodes.iter().filter(|(_, is_idle)| *is_idle).map(|(node, _)| (node.id, *node)).collect();
        self.nodes.retain(|id, _| idle.contains_key(id));
        let mut news = Vec::new();
        for (id, node) in idle {
            let known = self.nodes.entry(id).or_insert(IdleNode { since_ms: now_ms, is_told: false });
            let idle_ms = now_ms.saturating_sub(known.since_ms);
            if known.is_told || idle_ms < after_ms {
                continue;
            }
            known.is_told = true;
            let pools = (0..node.gpus.len() as u32).map(|gpu| fleet.pool_of(node, gpu).to_owned());
            let pools: std::collections::BTreeSet<String> = pools.collect();
            let detail = json!({
                "since_ms": known.since_ms, "idle_ms": idle_ms, "gpus": node.gpus.len(), "pools": pools,
                "drained": node.drain.is_some(),
            });
            news.push(("node.idle", node.name.clone(), detail));
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(count: u32) -> BTreeMap<Wanted, Count> {
        let mut ask = NewLease::whole(2);
        ask.pool = Some("training".into());
        BTreeMap::from([(Wanted::of(&ask), Count { leases: count, tasks: count })])
    }

    #[test]
    fn the_same_is_wanted_once_and_again_when_more_of_it_is() {
        let mut scaling = Scaling::default();
        let said = scaling.want(wanted(1), 1_000);
        let [(action, subject, detail)] = &said[..] else { panic!("{said:?}") };
        assert_eq!((*action, subject.as_str()), ("node.wanted", "training"));
        assert_eq!(
            (&detail["gpus"], &detail["leases"], &detail["share_ppm"]),
            (&json!(2), &json!(1), &json!(1_000_000))
        );
        assert!(scaling.want(wanted(1), 2_000).is_empty());
        assert!(scaling.want(wanted(3), 3_000).is_empty(), "too soon");
        assert!(scaling.want(BTreeMap::new(), 4_000).is_empty());
        assert!(scaling.want(wanted(1), 5_000).is_empty(), "it comes and goes");
        assert_eq!(scaling.want(wanted(3), 1_000 + AGAIN_MS).len(), 1);
        assert!(scaling.want(wanted(3), 9 * AGAIN_MS).is_empty(), "no more of it");
        scaling.want(BTreeMap::new(), 9 * AGAIN_MS + 1);
        assert_eq!(scaling.want(wanted(1), 9 * AGAIN_MS + 2).len(), 1, "it is wanted anew");
    }

    #[test]
    fn a_node_is_idle_once_until_it_has_had_a_lease() {
        let fleet = Fleet::new(Vec::new(), Vec::new(), Vec::new(), Vec::new(), 0, 0, 0);
        let node = Node::new(7, "gpu7".into(), "h:1".into(), vec![Default::default()]);
        let mut scaling = Scaling::default();
        let mut at = |is_idle: bool, now_ms| scaling.idle(&[(&node, is_idle)], &fleet, 60_000, now_ms);
        assert!(at(true, 0).is_empty() && at(true, 59_999).is_empty());
        let said = at(true, 60_000);
        let [("node.idle", name, detail)] = &said[..] else { panic!("{said:?}") };
        assert_eq!(
            (name.as_str(), &detail["pools"], &detail["gpus"]),
            ("gpu7", &json!(["default"]), &json!(1))
        );
        assert!(at(true, 900_000).is_empty());
        assert!(at(false, 900_001).is_empty() && at(true, 900_002).is_empty());
        assert_eq!(at(true, 960_002).len(), 1);
    }
}

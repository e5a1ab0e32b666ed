//! `kubectl sluice top`: what pods use, from two readings of the server.

use std::collections::HashMap;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;
use sluice_api::client::Client;
use sluice_api::lease::{Lease, LeaseId};
use sluice_api::node::{GpuStatus, SessionStatus};

use super::pod::Pod;
use super::{Cluster, Scope, namespace_column};
use crate::cli::{AtServer, Output};
use crate::quantity::{Memory, Period};
use crate::run::{compute_text, share_text};
use crate::server::client;
use crate::server::lists::show;
use crate::table::Align::{Left, Right};

#[derive(Debug, Args)]
pub(super) struct TopArgs {
    #[command(flatten)]
    scope: Scope,

    #[command(flatten)]
    at: AtServer,

    /// Measure over this time
    #[arg(long, value_name = "DURATION", default_value = "1s")]
    over: Period,

    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

/// What the programs of a pod use together. Memory is in bytes, compute in millionths of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Use {
    namespace: String,
    pod: String,
    lease: LeaseId,
    place: Option<String>,
    /// The GPU's model, where the account may see it.
    model: Option<String>,
    share_ppm: u32,
    limit_ppm: u32,
    /// The part of the time in which its kernels ran; of several GPUs the sum.
    busy_ppm: u64,
    memory: u64,
    memory_used: u64,
    programs: usize,
    suspended: bool,
}

pub(super) fn run(cluster: &Cluster, arguments: &TopArgs) -> Result<()> {
    let TopArgs { scope, at, over, output } = arguments;
    let client = client(at).context(
        "what programs use is asked of Sluice's server, as the user of `sluice login URL`, or with SLUICE_SERVER and \
         SLUICE_TOKEN",
    )?;
    let pods = cluster.pods(scope)?;
    let begin = Instant::now();
    let before = sessions(&client)?;
    std::thread::sleep(over.duration());
    let after = sessions(&client)?;
    let elapsed_us = u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX).max(1);

    let models: HashMap<(String, u32), String> = client
        .list::<GpuStatus>("/gpus")?
        .into_iter()
        .map(|gpu| ((gpu.node, gpu.index), gpu.gpu.name))
        .collect();
    let mut leases: HashMap<LeaseId, Lease> = HashMap::new();
    client.each("/leases?state=open", |lease: Lease| _ = leases.insert(lease.id, lease))?;

    let waiting = pods.iter().filter(|pod| pod.lease.is_none()).count();
    let uses: Vec<Use> = pods
        .iter()
        .filter_map(|pod| {
            let lease = leases.get(&pod.lease?).filter(|lease| belongs(lease, pod))?;
            let busy_us = busy_us(lease.id, &before, &after);
            let busy_ppm = busy_us.saturating_mul(1_000_000) / elapsed_us;
            Some(used(pod, lease, busy_ppm, &after, &models))
        })
        .collect();
    let hidden = pods.len() - waiting - uses.len();
    let mut columns = namespace_column(scope).to_vec();
    columns.extend([
        ("POD", Left),
        ("LEASE", Right),
        ("GPU", Left),
        ("MODEL", Left),
        ("SHARE", Right),
        ("BUSY", Right),
        ("MEMORY", Right),
        ("USED", Right),
        ("PROGRAMS", Right),
    ]);
    show(&uses, *output, &scope.none(), &columns, |used| used.cells(scope.all_namespaces))?;
    if waiting > 0 {
        eprintln!("waiting for a lease: {waiting} (`kubectl sluice why POD` says why)");
    }
    if hidden > 0 {
        eprintln!("with a lease that has ended, or that this account of the server cannot see: {hidden}");
    }
    Ok(())
}

fn sessions(client: &Client) -> Result<Vec<SessionStatus>> {
    Ok(client.list("/sessions")?)
}

/// Whether the server has the lease for this pod: another server counts its leases by itself.
fn belongs(lease: &Lease, pod: &Pod) -> bool {
    lease.name.split_once(' ').is_some_and(|(_, owner)| owner.split('@').next() == Some(&pod.uid))
}

/// The time that kernels of a lease ran between two readings, over all its sessions.
fn busy_us(lease: LeaseId, before: &[SessionStatus], after: &[SessionStatus]) -> u64 {
    let of_lease = |status: &&SessionStatus| status.session.lease == lease;
    let ran = |status: &SessionStatus| {
        let is_same = |other: &&SessionStatus| {
            (&other.node, other.session.session) == (&status.node, status.session.session)
        };
        let earlier = before.iter().find(is_same).map_or(0, |earlier| earlier.session.busy_us);
        status.session.busy_us.saturating_sub(earlier)
    };
    after.iter().filter(of_lease).map(ran).sum()
}

fn used(
    pod: &Pod,
    lease: &Lease,
    busy_ppm: u64,
    sessions: &[SessionStatus],
    models: &HashMap<(String, u32), String>,
) -> Use {
    let of_lease: Vec<_> = sessions.iter().filter(|status| status.session.lease == lease.id).collect();
    let mut gpus =
        lease.places.iter().flat_map(|place| place.gpus.iter().map(|gpu| (place.node.clone(), *gpu)));
    Use {
        namespace: pod.namespace.clone(),
        pod: pod.pod.clone(),
        lease: lease.id,
        place: pod.place.clone(),
        model: gpus.find_map(|gpu| models.get(&gpu).cloned()),
        share_ppm: lease.share_ppm,
        limit_ppm: lease.limit_ppm,
        busy_ppm,
        memory: lease.memory,
        memory_used: of_lease.iter().map(|status| status.session.memory_used).sum(),
        programs: of_lease.len(),
        suspended: lease.suspended,
    }
}

impl Use {
    fn cells(&self, has_namespace: bool) -> Vec<String> {
        let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        let memory = |bytes| Memory::from_bytes(bytes).to_string();
        let busy = u32::try_from(self.busy_ppm / 10_000 * 10_000).unwrap_or(u32::MAX);
        let mut cells = if has_namespace { vec![self.namespace.clone()] } else { Vec::new() };
        cells.extend([
            format!("{}{}", self.pod, if self.suspended { " (suspended)" } else { "" }),
            self.lease.to_string(),
            or_dash(&self.place),
            or_dash(&self.model),
            compute_text(self.share_ppm, self.limit_ppm),
            share_text(busy),
            memory(self.memory),
            memory(self.memory_used),
            self.programs.to_string(),
        ]);
        cells
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn session(node: &str, session: u64, lease: LeaseId, busy_us: u64) -> SessionStatus {
        let status = json!({
            "node": node, "tenant": "red", "session": session, "lease": lease, "name": "n", "process": 1,
            "peer": "p", "gpu": 0, "share_ppm": 250_000, "hard_cap": false, "memory": 100, "memory_used": 10,
            "kernels": 1, "bytes_in": 0, "bytes_out": 0, "busy_us": busy_us, "age_ms": 1, "parted": false,
        });
        serde_json::from_value(status).unwrap()
    }

    #[test]
    fn busy_time_is_that_between_the_readings() {
        let before = [session("a", 1, 7, 100), session("b", 1, 7, 5), session("a", 2, 8, 1)];
        let after =
            [session("a", 1, 7, 160), session("b", 1, 7, 5), session("a", 3, 7, 20), session("a", 2, 8, 9)];
        assert_eq!(
            [busy_us(7, &before, &after), busy_us(8, &before, &after), busy_us(9, &before, &after)],
            [80, 8, 0]
        );
    }

    #[test]
    fn a_lease_of_another_cluster_is_not_the_pods() {
        let pod = json!({ "metadata": { "namespace": "red", "name": "a", "uid": "u" } });
        let pod = Pod::of(&pod).unwrap();
        let lease = |name: &str| {
            let lease = json!({
                "id": 7, "tenant": "red", "name": name, "gpus": 1, "tasks": 1, "share_ppm": 250_000, "memory": 0,
                "priority": 100, "tier": "standard", "preemptible": true, "state": "running", "attempt": 1,
                "created_at_ms": 0, "revision": 1,
            });
            serde_json::from_value::<Lease>(lease).unwrap()
        };
        assert!(belongs(&lease("red/a u@cluster"), &pod));
        assert!(!belongs(&lease("red/a v@cluster"), &pod) && !belongs(&lease("python3"), &pod));
    }
}

//! Sums over all GPUs, for whom a list of them would be too long.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use sluice_api::GPU_PPM;
use sluice_api::node::{Gpu, GpuSums};
use sluice_api::tenant::TenantPath;

use super::answer::Answer;
use crate::auth::Principal;
use crate::fleet::{Fleet, Node};
use crate::policy::Action;
use crate::server::Server;

/// Sums over all GPUs
///
/// Those of a large fleet are up to four seconds old.
#[utoipa::path(get, path = "/gpus/sums", tag = "nodes", responses((status = 200, body = GpuSums)))]
pub(super) async fn gpu_sums(State(server): State<Arc<Server>>, principal: Principal) -> Answer<GpuSums> {
    principal.need(Action::SeeFleet, &TenantPath::root())?;
    if let Some(kept) = server.kept.gpus.get() {
        return Ok(Json(kept));
    }
    let round = server.kept.gpus.round();
    let sums = server.read(|books, now_ms| sums(&books.fleet, now_ms)).await?;
    server.kept.gpus.keep(&sums, sums.gpus, round);
    Ok(Json(sums))
}

fn sums(fleet: &Fleet, now_ms: u64) -> GpuSums {
    let mut sums = GpuSums { nodes: fleet.nodes().len() as u64, ..GpuSums::default() };
    let mut busy_ppm = 0;
    for node in fleet.nodes().values() {
        let online = fleet.is_online(node, now_ms);
        for (index, gpu) in (0..).zip(&node.gpus) {
            add(&mut sums, fleet, node, (index, gpu));
            if online && !fleet.is_fenced(node.id, index) {
                let leased_ppm = fleet.taken(node.id, index).ppm;
                sums.usable += 1;
                sums.free_ppm += u64::from(GPU_PPM).saturating_sub(leased_ppm);
                busy_ppm += node.report.gpus.get(index as usize).map_or(0, |now| u64::from(now.busy_ppm));
            }
        }
    }
    sums.busy_ppm = busy_ppm.checked_div(sums.usable).unwrap_or(0) as u32;
    sums
}

fn add(sums: &mut GpuSums, fleet: &Fleet, node: &Node, (index, gpu): (u32, &Gpu)) {
    let taken = fleet.taken(node.id, index);
    sums.gpus += 1;
    sums.software += u64::from(gpu.software);
    sums.leased_ppm += taken.ppm;
    sums.memory += gpu.memory;
    sums.memory_leased += taken.memory;
}

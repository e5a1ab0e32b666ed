//! Sums over all GPUs, for whom a list of them would be too long.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use sluice_api::GPU_PPM;
use sluice_api::health::FenceState;
use sluice_api::node::{GpuStatus, GpuSums};
use sluice_api::tenant::TenantPath;

use super::answer::Answer;
use super::nodes::gpu_status;
use crate::auth::Principal;
use crate::fleet::Fleet;
use crate::policy::Action;
use crate::server::Server;

/// Sums over all GPUs
#[utoipa::path(get, path = "/gpus/sums", tag = "nodes", responses((status = 200, body = GpuSums)))]
pub(super) async fn gpu_sums(State(server): State<Arc<Server>>, principal: Principal) -> Answer<GpuSums> {
    principal.need(Action::SeeFleet, &TenantPath::root())?;
    Ok(Json(server.read(|books, now_ms| sums(&books.fleet, now_ms)).await?))
}

fn sums(fleet: &Fleet, now_ms: u64) -> GpuSums {
    let mut sums = GpuSums { nodes: fleet.nodes().len() as u64, ..GpuSums::default() };
    let mut busy_ppm = 0;
    let of_node = |node| (0u32..).map_while(move |gpu| gpu_status(fleet, node, gpu, now_ms));
    for gpu in fleet.nodes().values().flat_map(of_node) {
        let leased_ppm = u64::from(gpu.share_leased_ppm);
        sums.gpus += 1;
        sums.software += u64::from(gpu.gpu.software);
        sums.leased_ppm += leased_ppm;
        sums.memory += gpu.gpu.memory;
        sums.memory_leased += gpu.memory_leased;
        if is_usable(&gpu) {
            sums.usable += 1;
            sums.free_ppm += u64::from(GPU_PPM).saturating_sub(leased_ppm);
            busy_ppm += u64::from(gpu.busy_ppm);
        }
    }
    sums.busy_ppm = busy_ppm.checked_div(sums.usable).unwrap_or(0) as u32;
    sums
}

fn is_usable(gpu: &GpuStatus) -> bool {
    gpu.online && gpu.fence.as_ref().is_none_or(|fence| fence.state != FenceState::Fenced)
}

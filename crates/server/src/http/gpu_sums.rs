//! Sums over all GPUs, for whom a list of them would be too long.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

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

/// Sums are kept for this time for each GPU, of which adding one up takes a small part: hundreds of
/// open overviews of a large fleet cost little, and the sums of a small fleet are current.
const KEPT_FOR_EACH: Duration = Duration::from_micros(400);
/// Pages ask again after five seconds.
const KEPT_FOR_MAX: Duration = Duration::from_secs(4);

/// Sums over all GPUs
///
/// Those of a large fleet are up to four seconds old.
#[utoipa::path(get, path = "/gpus/sums", tag = "nodes", responses((status = 200, body = GpuSums)))]
pub(super) async fn gpu_sums(State(server): State<Arc<Server>>, principal: Principal) -> Answer<GpuSums> {
    principal.need(Action::SeeFleet, &TenantPath::root())?;
    if let Some(kept) = server.gpu_sums.get() {
        return Ok(Json(kept));
    }
    let sums = server.read(|books, now_ms| sums(&books.fleet, now_ms)).await?;
    server.gpu_sums.keep(&sums);
    Ok(Json(sums))
}

/// The sums that were added up last, for as long as they count as current.
#[derive(Debug, Default)]
pub(crate) struct KeptSums(Mutex<Option<(Instant, GpuSums)>>);

impl KeptSums {
    fn get(&self) -> Option<GpuSums> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.as_ref().filter(|(until, _)| Instant::now() < *until).map(|(_, sums)| sums.clone())
    }

    fn keep(&self, sums: &GpuSums) {
        let gpus = u32::try_from(sums.gpus).unwrap_or(u32::MAX);
        let until = Instant::now() + KEPT_FOR_EACH.saturating_mul(gpus).min(KEPT_FOR_MAX);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((until, sums.clone()));
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_a_large_fleet_are_kept_and_those_of_a_small_one_are_not() {
        let kept = KeptSums::default();
        assert_eq!(kept.get(), None);
        kept.keep(&GpuSums::default());
        assert_eq!(kept.get(), None, "no GPU takes no time to add up");
        let large = GpuSums { gpus: u64::MAX, ..GpuSums::default() };
        kept.keep(&large);
        let until = kept.0.lock().unwrap().as_ref().unwrap().0;
        assert!(until <= Instant::now() + KEPT_FOR_MAX);
        assert_eq!(kept.get(), Some(large));
    }
}

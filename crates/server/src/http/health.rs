//! Fences: operators take GPUs out of use, and back.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use sluice_api::Page;
use sluice_api::health::{FenceState, GpuFence, GpuName, NewFence, Unfence};
use sluice_api::node::{GpuStatus, NodeId};
use sluice_api::problem::{Kind, Problem};
use sluice_api::tenant::TenantPath;

use super::answer::Answer;
use super::extract::Body;
use super::nodes::gpu_status;
use crate::auth::Principal;
use crate::fleet::{Fleet, WHY_MAX, printable};
use crate::policy::Action;
use crate::server::{Books, Server};

/// Of one request.
const GPUS_MAX: usize = 1000;

/// Fence GPUs
///
/// They take nothing new. Sessions on them finish, have the grace time, or end within seconds; what
/// has to go waits in the queue again. The answer is these GPUs. If one of them is not there,
/// nothing is done.
#[utoipa::path(post, path = "/gpus/fences", tag = "nodes", request_body = NewFence,
    responses((status = 200, body = Page<GpuStatus>)))]
pub(super) async fn fence(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Body(new): Body<NewFence>,
) -> Answer<Page<GpuStatus>> {
    principal.need(Action::Fence, &TenantPath::root())?;
    let why: String = new.why.trim().chars().take(WHY_MAX).map(printable).collect();
    if why.is_empty() {
        return Err(Problem::new(Kind::Invalid, "say why: others will find the GPU fenced").at("why").into());
    }
    let mut change = server.change().await?;
    let found = match find(change.fleet(), &new.gpus) {
        Ok(found) => found,
        Err(problem) => {
            change.leave();
            return Err(problem.into());
        }
    };
    for (name, gpu) in new.gpus.iter().zip(found) {
        let fence = GpuFence {
            state: FenceState::Fenced,
            why: why.clone(),
            by: principal.name(),
            since_ms: change.now_ms,
            sessions: new.sessions,
            lasting: true,
        };
        let detail = serde_json::json!(fence);
        let leases = change.fleet().fence(gpu, fence, server.grace_ms);
        let detail = serde_json::json!({ "fence": detail, "leases": leases });
        change.audit(&principal, "gpu.fenced", &name.to_string(), detail);
    }
    change.is_by_hand();
    change.wake();
    change.commit().await?;
    status_of(&server, &new.gpus).await
}

/// Use fenced or suspected GPUs again
///
/// The answer is these GPUs. If one of them is not there, nothing is done.
#[utoipa::path(post, path = "/gpus/unfences", tag = "nodes", request_body = Unfence,
    responses((status = 200, body = Page<GpuStatus>)))]
pub(super) async fn unfence(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Body(unfence): Body<Unfence>,
) -> Answer<Page<GpuStatus>> {
    principal.need(Action::Fence, &TenantPath::root())?;
    let mut change = server.change().await?;
    let found = match find(change.fleet(), &unfence.gpus) {
        Ok(found) => found,
        Err(problem) => {
            change.leave();
            return Err(problem.into());
        }
    };
    let why: String = unfence.why.chars().take(WHY_MAX).map(printable).collect();
    for (name, gpu) in unfence.gpus.iter().zip(found) {
        if change.fleet().unfence(gpu) {
            change.audit(&principal, "gpu.unfenced", &name.to_string(), serde_json::json!({ "why": why }));
        }
    }
    change.is_by_hand();
    change.wake();
    change.commit().await?;
    status_of(&server, &unfence.gpus).await
}

fn find(fleet: &Fleet, names: &[GpuName]) -> Result<Vec<(NodeId, u32)>, Problem> {
    if !(1..=GPUS_MAX).contains(&names.len()) {
        return Err(Problem::new(Kind::Invalid, format!("1 to {GPUS_MAX} GPUs")).at("gpus"));
    }
    let find = |name: &GpuName| {
        let detail = || format!("there is no GPU {name}; `sluice gpus` lists those that are");
        fleet.find_gpu(name).ok_or_else(|| Problem::new(Kind::NotFound, detail()).at("gpus"))
    };
    names.iter().map(find).collect()
}

async fn status_of(server: &Server, names: &[GpuName]) -> Answer<Page<GpuStatus>> {
    let named = |books: &Books, now_ms| {
        let fleet = &books.fleet;
        let status = |name: &GpuName| gpu_status(fleet, fleet.node_named(&name.node)?, name.gpu, now_ms);
        names.iter().filter_map(status).collect()
    };
    Ok(Json(Page { items: server.read(named).await?, next: None }))
}

//! Running leases that move to other nodes.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use sluice_api::lease::{Lease, LeaseId};
use sluice_api::moving::NewMove;
use sluice_api::node::NodeId;
use sluice_api::problem::{Kind, Problem};

use super::answer::Answer;
use super::extract::{Body, Name};
use super::leases::{unchanged, view};
use crate::auth::Principal;
use crate::fleet::Fleet;
use crate::policy::Action;
use crate::server::{Change, Server};

/// Move a running lease to another node
///
/// Its program continues there and notices a pause; the server chooses the GPU, one of the same
/// kind, unless the request names it. The answer's `moving` says that the move has begun; watch the
/// lease with `GET /leases/{id}` for the result. Whatever fails, the program continues where it
/// was, and `moving` has the reason.
#[utoipa::path(post, path = "/leases/{id}/moves", tag = "leases", params(("id" = u64, Path)),
    request_body = NewMove, responses((status = 200, body = Lease)))]
pub(super) async fn move_lease(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Name(id): Name<LeaseId>,
    headers: HeaderMap,
    Body(new): Body<NewMove>,
) -> Answer<Lease> {
    let Json(lease) = view(&server, &principal, id).await?;
    principal.need(Action::Preempt, &lease.tenant)?;
    let mut change = server.change().await?;
    let started = unchanged(&mut change, &headers, id).and_then(|()| start(&mut change, id, &new));
    if let Err(problem) = started {
        change.leave();
        return Err(problem.into());
    }
    change.is_by_hand();
    change.audit_leases(&principal);
    change.commit().await?;
    view(&server, &principal, id).await
}

fn start(change: &mut Change<'_>, id: LeaseId, new: &NewMove) -> Result<(), Problem> {
    let now_ms = change.now_ms;
    let node = new.node.as_ref().map(|name| target(change.fleet(), name, now_ms)).transpose()?;
    change.move_lease(id, (node, new.gpu)).map_err(|reason| Problem::new(Kind::Conflict, reason))
}

/// The node of this name, if it takes leases.
fn target(fleet: &Fleet, name: &str, now_ms: u64) -> Result<NodeId, Problem> {
    let node = fleet.node_named(name).ok_or_else(|| {
        let detail = format!("there is no node {name}; `sluice node list` lists those that are");
        Problem::new(Kind::Conflict, detail)
    })?;
    let reason = match node {
        node if !fleet.is_online(node, now_ms) => "does not report now",
        node if node.drain.is_some() => "is drained",
        node if node.is_closed() => "takes no new leases: make room on its disk",
        _ => return Ok(node.id),
    };
    Err(Problem::new(Kind::Conflict, format!("node {name} {reason}")))
}

//! Running leases that move to other nodes.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use serde::Deserialize;
use sluice_api::lease::{Lease, LeaseId};
use sluice_api::moving::{MovePlan, NewMove};
use sluice_api::node::NodeId;
use sluice_api::problem::{Kind, Problem};

use super::answer::Answer;
use super::extract::{Body, Name, Options};
use super::leases::{unchanged, view};
use crate::auth::Principal;
use crate::fleet::Fleet;
use crate::policy::Action;
use crate::server::{Books, Change, Server};

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

/// Where a lease would move to.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Target {
    /// The name of the node; any with a free GPU of the same kind unless said.
    #[serde(default)]
    node: Option<String>,
    /// The index of that node's GPU; any unless said.
    #[serde(default)]
    gpu: Option<u32>,
}

/// What a move of a lease would do
///
/// Nothing is moved. The answer says where the lease would go, how much would be copied and for how
/// long its program would stand still, as far as is known, and what keeps it where it is.
#[utoipa::path(get, path = "/leases/{id}/moves/plan", tag = "leases",
    params(("id" = u64, Path), Target), responses((status = 200, body = MovePlan)))]
pub(super) async fn plan_move(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Name(id): Name<LeaseId>,
    Options(to): Options<Target>,
) -> Answer<MovePlan> {
    let Json(lease) = view(&server, &principal, id).await?;
    principal.need(Action::Preempt, &lease.tenant)?;
    let plan = |books: &mut Books, now_ms: u64| {
        let node = to.node.as_ref().map(|name| target(&books.fleet, name, now_ms)).transpose()?;
        Ok(books.plan_move(id, (node, to.gpu)))
    };
    let planned: Result<MovePlan, Problem> = server.hear(plan).await?;
    Ok(Json(planned?))
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

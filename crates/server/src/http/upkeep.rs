//! Nodes as operators see them: listed, drained, used again, and forgotten.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use sluice_api::Page;
use sluice_api::node::{Drain, NewDrain, NodeId, NodeStatus};
use sluice_api::problem::{Kind, Problem};
use sluice_api::tenant::TenantPath;

use super::answer::Answer;
use super::extract::{Body, Name, Options, PageOptions, cut};
use super::{named, tags};
use crate::auth::Principal;
use crate::fleet::{Fleet, LeaseRecord, Node, WHY_MAX, printable};
use crate::policy::Action;
use crate::server::{Books, Change, Server};
use crate::store::Write;

/// A day.
const GRACE_MS_MAX: u64 = 24 * 3_600_000;

/// All nodes
#[utoipa::path(get, path = "/nodes", tag = "nodes", params(PageOptions),
    responses((status = 200, body = Page<NodeStatus>)))]
pub(super) async fn nodes(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Options(options): Options<PageOptions>,
) -> Answer<Page<NodeStatus>> {
    principal.need(Action::SeeFleet, &TenantPath::root())?;
    let (limit, after) = (options.limit()?, options.cursor(|text| text.parse::<NodeId>().ok())?);
    let seen = |books: &Books, now_ms: u64| {
        let nodes = books.fleet.nodes().iter().map(|(id, node)| (*id, node));
        let Page { items, next } = cut(nodes, after.as_ref(), limit, NodeId::to_string);
        Page { items: items.into_iter().map(|node| status(&books.fleet, node, now_ms)).collect(), next }
    };
    Ok(Json(server.read(seen).await?))
}

/// A node
#[utoipa::path(get, path = "/nodes/{name}", tag = "nodes", params(("name" = String, Path)),
    responses((status = 200, body = NodeStatus)))]
pub(super) async fn node(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Name(name): Name<String>,
) -> Answer<NodeStatus> {
    principal.need(Action::SeeFleet, &TenantPath::root())?;
    let one = |books: &Books, now_ms| Some(status(&books.fleet, books.fleet.node_named(&name)?, now_ms));
    Ok(Json(server.read(one).await?.ok_or_else(|| no_node(&name))?))
}

/// Drain a node
///
/// Nothing new is placed there. What is there continues to its end, or moves to other nodes while
/// it runs (`migrate`), or has a grace time and then waits in the queue again. The answer's
/// `moving` lists the leases that are to move, and those that cannot with the reason. A node stays
/// drained until that is undone, also when it joins again.
#[utoipa::path(post, path = "/nodes/{name}/drain", tag = "nodes", params(("name" = String, Path)),
    request_body = NewDrain, responses((status = 200, body = NodeStatus)))]
pub(super) async fn drain(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Name(name): Name<String>,
    Body(new): Body<NewDrain>,
) -> Answer<NodeStatus> {
    principal.need(Action::Fence, &TenantPath::root())?;
    if new.grace_ms.is_some_and(|grace_ms| grace_ms > GRACE_MS_MAX) {
        return Err(Problem::new(Kind::Invalid, format!("up to {GRACE_MS_MAX} (a day)"))
            .at("grace_ms")
            .into());
    }
    if new.migrate && new.grace_ms.is_some() {
        let detail = "not together with `migrate`: what has stayed can get a grace time by a second request";
        return Err(Problem::new(Kind::Invalid, detail).at("grace_ms").into());
    }
    let mut change = server.change().await?;
    let Some(known) = change.fleet().node_named(&name).cloned() else {
        change.leave();
        return Err(no_node(&name).into());
    };
    let why: String = new.why.trim().chars().take(WHY_MAX).map(printable).collect();
    let since_ms = known.drain.as_ref().map_or(change.now_ms, |before| before.since_ms);
    let ends_at_ms = known.drain.and_then(|before| before.ends_at_ms);
    let drain = Drain { since_ms, by: principal.name(), why, ends_at_ms };
    let end_at_ms = new.grace_ms.map(|grace_ms| change.now_ms + grace_ms);
    let mut detail = serde_json::json!({ "why": drain.why, "grace_ms": new.grace_ms });
    if new.migrate {
        detail["migrate"] = true.into();
    }
    change.audit(&principal, "node.drained", &name, detail);
    change.fleet().set_drain(known.id, Some(drain), end_at_ms);
    if new.migrate {
        move_all(&mut change, known.id);
    }
    change.audit_leases(&principal);
    store_drain(&mut change, known.id);
    change.wake();
    change.is_by_hand();
    change.commit().await?;
    node(State(server), principal, Name(name)).await
}

/// Has each lease of a node that is not moving already move to another one. One that stays keeps
/// no other from moving.
fn move_all(change: &mut Change<'_>, node: NodeId) {
    for id in change.fleet().on_node(node) {
        let moves = |lease: &LeaseRecord| lease.held().any(|(_, seat)| seat.target().is_some());
        if change.fleet().lease(id).is_some_and(moves) {
            continue;
        }
        if let Err(reason) = change.move_lease(id, (None, None)) {
            let now_ms = change.now_ms;
            change.fleet().refuse_move(id, &reason, now_ms);
        }
    }
}

/// Use a drained node again
#[utoipa::path(delete, path = "/nodes/{name}/drain", tag = "nodes", params(("name" = String, Path)),
    responses((status = 200, body = NodeStatus)))]
pub(super) async fn undrain(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Name(name): Name<String>,
    headers: HeaderMap,
) -> Answer<NodeStatus> {
    principal.need(Action::Fence, &TenantPath::root())?;
    let mut change = server.change().await?;
    let now_ms = change.now_ms;
    let known = change.fleet().node_named(&name).cloned().ok_or_else(|| no_node(&name));
    let seen = known
        .and_then(|node| tags::check_read(&headers, &status(change.fleet(), &node, now_ms)).map(|()| node));
    let known = match seen {
        Ok(known) => known,
        Err(problem) => {
            change.leave();
            return Err(problem.into());
        }
    };
    if known.drain.is_some() {
        change.audit(&principal, "node.used_again", &name, serde_json::json!({}));
        change.fleet().set_drain(known.id, None, None);
        store_drain(&mut change, known.id);
        change.wake();
    }
    change.is_by_hand();
    change.commit().await?;
    node(State(server), principal, Name(name)).await
}

/// Forget a node that is gone for good
///
/// It has to be silent, hold no leases and have no fenced GPUs. Its token holds no more. What it
/// was used for stays on the bills; should it join again, it is the same node.
#[utoipa::path(delete, path = "/nodes/{name}", tag = "nodes", params(("name" = String, Path)),
    responses((status = 200, body = NodeStatus)))]
pub(super) async fn forget(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Name(name): Name<String>,
    headers: HeaderMap,
) -> Answer<NodeStatus> {
    principal.need(Action::Fence, &TenantPath::root())?;
    let mut change = server.change().await?;
    let now_ms = change.now_ms;
    let (id, seen) = match may_be_forgotten(change.fleet(), &name, &headers, now_ms) {
        Ok(found) => found,
        Err(problem) => {
            change.leave();
            return Err(problem.into());
        }
    };
    change.see_all_written().await?;
    for token in server.store.tokens_of_node(id).await? {
        change.write(Write::Revoke(token));
    }
    change.fleet().forget_node(id);
    change.audit(&principal, "node.forgotten", &name, serde_json::json!(seen));
    change.write(Write::ForgetNode(id));
    change.wake();
    change.commit().await?;
    Ok(Json(seen))
}

fn may_be_forgotten(
    fleet: &Fleet,
    name: &str,
    headers: &HeaderMap,
    now_ms: u64,
) -> Result<(NodeId, NodeStatus), Problem> {
    let node = fleet.node_named(name).ok_or_else(|| no_node(name))?;
    let seen = status(fleet, node, now_ms);
    tags::check_read(headers, &seen)?;
    if !fleet.is_silent(node, now_ms) {
        let detail = format!("node {name} reports, or may do so yet: stop it, and wait until it is silent");
        return Err(Problem::new(Kind::Conflict, detail));
    }
    let leases: Vec<String> = fleet.on_node(node.id).iter().map(u64::to_string).collect();
    if !leases.is_empty() {
        let detail = format!(
            "node {name} holds leases: {}; they leave a lost node after a while, or end them",
            named(&leases)
        );
        return Err(Problem::new(Kind::Conflict, detail));
    }
    let coming: Vec<String> = fleet.moving_to(node.id).iter().map(u64::to_string).collect();
    if !coming.is_empty() {
        let detail = format!("leases are moving to node {name}: {}; try again", named(&coming));
        return Err(Problem::new(Kind::Conflict, detail));
    }
    // Its GPUs would be lent again if it came back.
    let fenced = (0..node.gpus.len() as u32).filter(|&gpu| fleet.fence_of(node.id, gpu).is_some());
    let fenced: Vec<String> = fenced.map(|gpu| format!("{name}/{gpu}")).collect();
    if !fenced.is_empty() {
        let detail =
            format!("GPUs of node {name} are fenced: {0}; `sluice gpu unfence {0}` first", fenced.join(" "));
        return Err(Problem::new(Kind::Conflict, detail));
    }
    Ok((node.id, seen))
}

fn store_drain(change: &mut Change<'_>, id: NodeId) {
    if let Some(node) = change.fleet().nodes().get(&id).cloned() {
        change.write(Write::Drain(node));
    }
}

fn status(fleet: &Fleet, node: &Node, now_ms: u64) -> NodeStatus {
    NodeStatus {
        name: node.name.clone(),
        address: node.address.clone(),
        online: fleet.is_online(node, now_ms),
        closed: node.report.closed,
        drain: node.drain.clone(),
        labels: node.labels.clone(),
        release: Some(node.report.release.clone()).filter(|release| !release.is_empty()),
        gpus: node.gpus.len() as u32,
        leases: (fleet.on_node(node.id).len() + fleet.moving_to(node.id).len()) as u32,
        moving: fleet.moving_from(node.id),
    }
}

fn no_node(name: &str) -> Problem {
    Problem::new(Kind::NotFound, format!("there is no node {name}; `sluice node list` lists those that are"))
}

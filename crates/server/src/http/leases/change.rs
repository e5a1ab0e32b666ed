//! Changes of a lease: its end, another size, a refusal by a node, a notice.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use serde::Deserialize;
use sluice_api::lease::{Lease, LeaseId, LeaseState, Refused, ResizeLease};
use sluice_api::problem::{Kind, Problem};
use sluice_api::text::is_deceptive;

use super::{unchanged, view};
use crate::auth::Principal;
use crate::fleet::{LeaseRecord, NoResize};
use crate::http::answer::Answer;
use crate::http::extract::{Body, ForLease, Name, Options};
use crate::policy::Action;
use crate::server::{Books, Server};

/// End a lease
///
/// Its node ends the program, if it still runs. Ending one that has ended changes nothing.
#[utoipa::path(delete, path = "/leases/{id}", tag = "leases", params(("id" = u64, Path), Ending),
    responses((status = 200, body = Lease)))]
pub(in crate::http) async fn end(
    State(server): State<Arc<Server>>,
    ForLease(principal, id): ForLease,
    Options(Ending { finished }): Options<Ending>,
    headers: HeaderMap,
) -> Answer<Lease> {
    let Json(lease) = view(&server, &principal, id).await?;
    principal.need(Action::Lease, &lease.tenant)?;
    let mut change = server.change().await?;
    let now_ms = change.now_ms;
    if let Err(problem) = unchanged(&mut change, &headers, id) {
        change.leave();
        return Err(problem.into());
    }
    if let Some(is_owner) = change.fleet().lease(id).map(|lease| lease.token == principal.token.id) {
        let reason = match (finished, is_owner) {
            (true, true) => "its program ended",
            (false, true) => "ended by its owner",
            (_, false) => {
                change.is_by_hand();
                "ended by another user"
            }
        };
        change.fleet().end(id, reason, now_ms);
        change.audit_leases(&principal);
    }
    change.commit().await?;
    view(&server, &principal, id).await
}

/// Why a lease ends.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(in crate::http) struct Ending {
    /// Its program has ended by itself. The lease's reason says so then.
    #[serde(default)]
    finished: bool,
}

/// Give a running lease more or less
///
/// Its share, its limit of compute or its memory changes while its programs run, as soon as its
/// nodes know of it: by the answer to their next report, or by the grants in `places[].resize` of
/// this answer, which a client may hand to them. `resizing` says how far that is. What the lease
/// has is charged for as of the moment in which a node takes it. Memory that its programs hold
/// stays theirs: a node refuses less. Its owner and administrators may do so.
#[utoipa::path(patch, path = "/leases/{id}", tag = "leases", params(("id" = u64, Path)),
    request_body = ResizeLease, responses((status = 200, body = Lease)))]
pub(in crate::http) async fn resize(
    State(server): State<Arc<Server>>,
    ForLease(principal, id): ForLease,
    headers: HeaderMap,
    Body(resize): Body<ResizeLease>,
) -> Answer<Lease> {
    let Json(lease) = view(&server, &principal, id).await?;
    let mut change = server.change().await?;
    let is_own = change.fleet().lease(id).is_some_and(|lease| lease.token == principal.token.id);
    let allowed = match is_own {
        true => principal.need(Action::Lease, &lease.tenant),
        false => principal.need(Action::Preempt, &lease.tenant),
    };
    let checked = allowed.and_then(|()| unchanged(&mut change, &headers, id)).and_then(|()| {
        change.resize(id, &resize).map_err(|refusal| {
            let (NoResize::NoRoom(reason) | NoResize::Never(reason)) = refusal;
            Problem::new(Kind::Conflict, reason)
        })
    });
    if let Err(problem) = checked {
        change.leave();
        return Err(problem.into());
    }
    if !is_own {
        change.is_by_hand();
    }
    if resize.share_ppm.is_some() || resize.memory.is_some() || resize.limit_ppm.is_some() {
        change.fleet().resized_by_hand(id);
    }
    if resize.suspended.is_some() {
        // What a person suspends stays so whatever its programs call, and what a person resumes is
        // as good as active.
        change.fleet().note_idle(id, None);
    }
    change.audit_leases(&principal);
    change.commit().await?;
    let Json(mut lease) = view(&server, &principal, id).await?;
    let grants = |books: &Books, now_ms| {
        let record = books.fleet.lease(id);
        record.map_or_else(Vec::new, |record| books.fleet.resizing_grants_of(record, now_ms))
    };
    for grant in server.read(grants).await? {
        if let Some(place) = lease.places.iter_mut().find(|place| place.task == grant.task) {
            place.resize = Some(server.signer.sign(&grant));
        }
    }
    Ok(Json(lease))
}

/// A node refused a grant
///
/// The lease goes back into the queue, and is not placed on its nodes before they report again. A
/// lease that runs already continues without the task that was refused.
#[utoipa::path(post, path = "/leases/{id}/refusals", tag = "leases", params(("id" = u64, Path)),
    request_body = Refused, responses((status = 200, body = Lease)))]
pub(in crate::http) async fn refused(
    State(server): State<Arc<Server>>,
    ForLease(principal, id): ForLease,
    Body(refused): Body<Refused>,
) -> Answer<Lease> {
    let Json(lease) = view(&server, &principal, id).await?;
    principal.need(Action::Lease, &lease.tenant)?;
    let mut change = server.change().await?;
    let now_ms = change.now_ms;
    let is_it = |lease: &LeaseRecord| {
        let is_unclaimed = !lease.seats.iter().any(|seat| seat.claimed);
        // Also one that has got notice meanwhile: its program says that nothing runs.
        let waits =
            lease.state == LeaseState::Granted || lease.state == LeaseState::Preempting && is_unclaimed;
        lease.attempt == refused.attempt && waits
    };
    if let Some(task) = refused.task {
        let runs =
            |lease: &LeaseRecord| lease.attempt == refused.attempt && lease.state == LeaseState::Running;
        if change.fleet().lease(id).is_some_and(runs) {
            change.fleet().refuse_task(id, task, now_ms);
        }
    } else if change.fleet().lease(id).is_some_and(is_it) {
        let reason: String = refused.reason.chars().filter(|c| !is_deceptive(*c)).take(400).collect();
        change.fleet().refuse(id, &reason, now_ms);
    }
    change.audit_leases(&principal);
    change.commit().await?;
    view(&server, &principal, id).await
}

/// Which part of a lease has to make room.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(in crate::http) struct Part {
    /// The number of one task, of an elastic lease that has enough others; all of it unless said.
    #[serde(default)]
    task: Option<u32>,
}

/// Give notice to a running lease, or to one of its tasks
///
/// Its program is notified, has a grace time, is ended, and waits in the queue again. One task of
/// an elastic lease is preempted while the others continue; another one takes its place once there
/// is room to which no other lease is entitled.
#[utoipa::path(post, path = "/leases/{id}/preemptions", tag = "leases", params(("id" = u64, Path), Part),
    responses((status = 200, body = Lease)))]
pub(in crate::http) async fn preempt(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Name(id): Name<LeaseId>,
    Options(part): Options<Part>,
    headers: HeaderMap,
) -> Answer<Lease> {
    let Json(lease) = view(&server, &principal, id).await?;
    principal.need(Action::Preempt, &lease.tenant)?;
    let mut change = server.change().await?;
    let now_ms = change.now_ms;
    if let Err(problem) = unchanged(&mut change, &headers, id) {
        change.leave();
        return Err(problem.into());
    }
    let state = change.fleet().lease(id).map(|lease| lease.state);
    if state != Some(LeaseState::Running) {
        change.leave();
        let detail = format!("lease {id} does not run; only a running lease can be preempted");
        return Err(Problem::new(Kind::Conflict, detail).into());
    }
    let (reason, at_ms) = ("an administrator wants its place for others", now_ms + server.grace_ms);
    match part.task {
        Some(task) => {
            if let Err(detail) = goes_on_without(change.fleet().lease(id), task) {
                change.leave();
                return Err(Problem::new(Kind::Conflict, detail).into());
            }
            change.fleet().ask_back(id, &[task], reason.into(), at_ms);
        }
        None => {
            change.fleet().preempt(id, reason.into(), at_ms);
            // Others go first now.
            change.fleet().go_last(id, now_ms);
        }
    }
    change.is_by_hand();
    change.audit_leases(&principal);
    change.commit().await?;
    view(&server, &principal, id).await
}

/// Whether one task of a lease can leave while the others continue; the error says why not.
fn goes_on_without(lease: Option<&LeaseRecord>, task: u32) -> Result<(), String> {
    let Some(lease) = lease else { return Err("it has ended".into()) };
    if !lease.held().any(|(held, seat)| held == task && seat.stays()) {
        return Err(format!(
            "no task {task} of lease {} runs; `sluice lease list -o json` has their numbers",
            lease.id
        ));
    }
    lease.does_without(&[task]).then_some(()).ok_or_else(|| {
        format!(
            "without task {task} lease {} would have fewer tasks than it needs; preempt all of it",
            lease.id
        )
    })
}

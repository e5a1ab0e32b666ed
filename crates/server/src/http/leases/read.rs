//! Leases as they are: one that may be watched, all of them, the queue, and what became of one.

use std::cmp::Reverse;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::header::ETAG;
use axum::http::{HeaderName, HeaderValue};
use serde::Deserialize;
use sluice_api::Page;
use sluice_api::audit::Entry;
use sluice_api::lease::{Lease, LeaseEvent, LeaseHistory, LeaseId, LeaseState, StateFilter};
use sluice_api::tenant::TenantPath;

use super::no_lease;
use crate::auth::Principal;
use crate::concern::shown_to;
use crate::fleet::{LeaseRecord, LinePlace};
use crate::http::answer::{Answer, Refusal};
use crate::http::extract::{ByUser, ForLease, OfTenant, Options, PageOptions, cut, page, wait};
use crate::http::tags;
use crate::policy::Action;
use crate::server::{Books, Server};

/// How long an answer waits for a change unless said, in milliseconds.
const WAIT_MS: u64 = 20_000;

/// A lease
///
/// With `revision`, the answer waits until the lease has changed since that revision, or until the
/// time is up. The holder of the token that asked for the lease, or of its key, gets the grants of
/// its tasks while they wait to be claimed. The answer's ETag is the revision; requests that change
/// the lease take it in If-Match.
#[utoipa::path(get, path = "/leases/{id}", tag = "leases",
    params(("id" = u64, Path), Watch), responses((status = 200, body = Lease)))]
pub(in crate::http) async fn get(
    State(server): State<Arc<Server>>,
    ForLease(principal, id): ForLease,
    Options(watch): Options<Watch>,
) -> Result<([(HeaderName, HeaderValue); 1], Json<Lease>), Refusal> {
    let Json(lease) = watched(&server, &principal, id, &watch).await?;
    Ok(([(ETAG, tags::of_revision(lease.revision))], Json(lease)))
}

async fn watched(server: &Server, principal: &Principal, id: LeaseId, watch: &Watch) -> Answer<Lease> {
    let Some(seen) = watch.revision else { return view(server, principal, id).await };
    let deadline = tokio::time::Instant::now() + wait(watch.wait_ms.unwrap_or(WAIT_MS))?;
    let changes = server.watches.of(id);
    loop {
        let changed = changes.changed();
        let lease = view(server, principal, id).await?;
        if lease.revision != seen || lease.state == LeaseState::Ended {
            return Ok(lease);
        }
        if tokio::time::timeout_at(deadline, changed).await.is_err() {
            // Who has waited until now has been asking for it until now.
            return view(server, principal, id).await;
        }
    }
}

/// What to wait for.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(in crate::http) struct Watch {
    /// The revision that is known.
    #[serde(default)]
    revision: Option<u64>,
    /// How long to wait for another: 20,000 unless said, which is the most.
    #[serde(default)]
    #[param(maximum = 20_000)]
    wait_ms: Option<u64>,
}

/// The lease, with its grant if it is theirs; one of a foreign tenant does not exist for them.
pub(in crate::http) async fn view(server: &Server, principal: &Principal, id: LeaseId) -> Answer<Lease> {
    let look = |books: &mut Books, now_ms| {
        let (lease, owner) =
            books.fleet.lease(id).map(|lease| with_grants(server, principal, books, lease))?;
        if owner {
            books.fleet.hear(id, now_ms);
        }
        Some(lease)
    };
    let lease = match server.hear(look).await? {
        Some(lease) => lease,
        None => match server.store.lease(id).await? {
            Some(record) => server.read(|books, _| books.view(&record)).await?,
            None => return Err(no_lease(id)),
        },
    };
    if !principal.may(Action::See, &lease.tenant) {
        return Err(no_lease(id));
    }
    Ok(Json(lease))
}

fn with_grants(server: &Server, principal: &Principal, books: &Books, lease: &LeaseRecord) -> (Lease, bool) {
    let mut view = books.view(lease);
    let owner = lease.token == principal.token.id;
    if owner {
        for grant in books.fleet.grants_of(lease) {
            if let Some(place) = view.places.iter_mut().find(|place| place.task == grant.task) {
                place.grant = Some(server.signer.sign(&grant));
            }
        }
    }
    (view, owner)
}

/// Which leases.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(in crate::http) struct Which {
    /// In this state; in any unless said.
    #[serde(default)]
    state: Option<StateFilter>,
}

/// All leases that the token may see, the latest first
#[utoipa::path(get, path = "/leases", tag = "leases", params(Which, OfTenant, ByUser, PageOptions),
    responses((status = 200, body = Page<Lease>)))]
pub(in crate::http) async fn list(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Options(which): Options<Which>,
    Options(of): Options<OfTenant>,
    Options(by): Options<ByUser>,
    Options(options): Options<PageOptions>,
) -> Answer<Page<Lease>> {
    let limit = options.limit()?;
    let before = options.cursor(|text| text.parse().ok())?.unwrap_or(i64::MAX as u64);
    let Some(tenant) = principal.sees(Action::See, of.tenant.as_ref()) else {
        return Ok(Json(Page { items: Vec::new(), next: None }));
    };
    let states = which.state.map_or(&[][..], StateFilter::states);
    let records = server.store.leases_of(&tenant, states, by.user.as_deref(), before, limit).await?;
    let records = page(records, limit, |lease| lease.id.to_string());
    let view = |books: &Books, _| records.items.iter().map(|lease| books.view(lease)).collect();
    Ok(Json(Page { items: server.read(view).await?, next: records.next }))
}

/// What became of a lease
///
/// With what was asked for and what it has used, as far as its nodes have sent that. The entries
/// are those of the audit log about it.
#[utoipa::path(get, path = "/leases/{id}/history", tag = "leases", params(("id" = u64, Path), PageOptions),
    responses((status = 200, body = LeaseHistory)))]
pub(in crate::http) async fn history(
    State(server): State<Arc<Server>>,
    ForLease(principal, id): ForLease,
    Options(options): Options<PageOptions>,
) -> Answer<LeaseHistory> {
    let limit = options.limit()?;
    let after = options.cursor(|text| text.parse().ok())?.unwrap_or(0);
    let seen = |lease: &LeaseRecord| principal.may(Action::See, &lease.tenant);
    let lease = server.lease(id).await?.filter(seen).ok_or_else(|| no_lease(id))?;
    let (used, promised) = (server.store.use_of(id).await?, server.store.promised(id).await?);
    let Page { items, next } =
        page(server.store.audit_of(id, after, limit).await?, limit, |entry| entry.sequence.to_string());
    let event = |entry| {
        let Entry { sequence, at_ms, actor, action, detail, .. } = shown_to(&principal, entry);
        let detail = serde_json::from_str(&detail).unwrap_or(serde_json::Value::String(detail));
        LeaseEvent { sequence, at_ms, actor, action, detail }
    };
    let items = items.into_iter().map(event).collect();
    Ok(Json(LeaseHistory { asked: lease.ask, used, promised, items, next }))
}

/// The queue, tenant by tenant, each in the order of its line
///
/// Only the leases that the token may see are listed.
#[utoipa::path(get, path = "/queue", tag = "leases", params(OfTenant, ByUser, PageOptions),
    responses((status = 200, body = Page<Lease>)))]
pub(in crate::http) async fn queue(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Options(of): Options<OfTenant>,
    Options(by): Options<ByUser>,
    Options(options): Options<PageOptions>,
) -> Answer<Page<Lease>> {
    let (limit, after) = (options.limit()?, options.cursor(place_in_queue)?);
    let Some(scope) = principal.sees(Action::See, of.tenant.as_ref()) else {
        return Ok(Json(Page { items: Vec::new(), next: None }));
    };
    let view = |books: &Books, _| {
        let seen =
            books.fleet.queue().filter(|lease| scope.contains(&lease.tenant) && by.wants(&lease.person));
        let seen = seen.map(|lease| ((lease.tenant.clone(), lease.line_place()), lease));
        let cursor = |(tenant, (Reverse(priority), queued_at_ms, id)): &(TenantPath, LinePlace)| {
            format!("{tenant},{priority},{queued_at_ms},{id}")
        };
        let Page { items, next } = cut(seen, after.as_ref(), limit, cursor);
        Page { items: items.into_iter().map(|lease| books.view(lease)).collect(), next }
    };
    Ok(Json(server.read(view).await?))
}

/// A cursor of the queue: who has moved meanwhile may be listed twice or not at all.
fn place_in_queue(text: &str) -> Option<(TenantPath, LinePlace)> {
    let mut parts = text.split(',');
    let tenant = parts.next()?.parse().ok()?;
    let place =
        (Reverse(parts.next()?.parse().ok()?), parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    parts.next().is_none().then_some((tenant, place))
}

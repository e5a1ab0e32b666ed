//! Leases: asked for, waited for, ended.

use std::cmp::Reverse;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::header::ETAG;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;
use sluice_api::audit::Entry;
use sluice_api::autonomy::{AutomaticKind, AutomaticSize};
use sluice_api::lease::{
    HOLD_MS_MAX, HOLD_MS_MIN, Lease, LeaseEvent, LeaseHistory, LeaseId, LeaseState, NewLease, PRIORITY_MAX,
    Refused, ResizeLease, StateFilter, TASKS_MAX,
};
use sluice_api::problem::{Kind, Problem};
use sluice_api::tenant::TenantPath;
use sluice_api::text::is_deceptive;
use sluice_api::usage::GFLOPS_MAX;
use sluice_api::{GPU_PPM, Page};

use super::answer::{Answer, Refusal};
use super::estimates::{self, Asked, DryRun};
use super::extract::{Body, ByUser, ForLease, Name, OfTenant, Options, PageOptions, cut, page, wait};
use super::{once, tags};
use crate::auth::Principal;
use crate::fleet::{LeaseRecord, LinePlace, NoResize};
use crate::lease_key;
use crate::policy::Action;
use crate::server::{Books, Change, Server};
use crate::store::{KeyUse, Write};

/// Most GPUs of one task: more than any node has.
const GPUS_MAX: u32 = 64;
/// Bytes that a lease can ask of a GPU: more than any has.
const MEMORY_MAX: u64 = 1 << 44;
/// Models or labels that a request can name.
const WORDS_MAX: usize = 16;
const DURATION_MS_MAX: u64 = 10 * 366 * 24 * 3_600_000;
/// Characters of a program's name.
const NAME_MAX: usize = 256;
/// How long an answer waits for a change unless said, in milliseconds.
const WAIT_MS: u64 = 20_000;

/// Ask for a lease
///
/// If there is room the answer is a lease that is granted already. Else it waits in the queue;
/// watch it with `GET /leases/{id}`. A lease that nobody watches for 20 s leaves the queue. The
/// answer has the lease's key, which can be used in place of the token for this lease: to see and
/// watch it, to end it, and to say that a node refused it. It holds until the lease has ended, also
/// when the token has expired or was revoked. The same request under the same `Idempotency-Key` is
/// answered with the lease that it led to the first time.
///
/// With `dry_run` nothing is requested. The answer estimates what the request would lead to:
/// places, start, price and the GPUs that it accepts.
#[utoipa::path(post, path = "/leases", tag = "leases", params(DryRun), request_body = NewLease,
    responses((status = 200, body = Asked)))]
pub(super) async fn create(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Options(DryRun { dry_run }): Options<DryRun>,
    headers: HeaderMap,
    Body(mut ask): Body<NewLease>,
) -> Answer<Asked> {
    let request = serde_json::to_string(&ask).unwrap_or_default();
    let tenant = ask.tenant.take().unwrap_or_else(|| principal.token.tenant.clone());
    principal.need(Action::Lease, &tenant)?;
    let mut automatic = None;
    if ask.use_default && ask.units_milli.is_none() {
        let key = (tenant.clone(), ask.name.clone());
        let default = server.read(|books: &Books, _| books.run_defaults.get(&key).cloned()).await?;
        if let Some(default) = default {
            (ask.share_ppm, ask.memory) = (default.share_ppm, default.memory);
        } else {
            // A person's word counts before what the server has found.
            automatic = size_automatically(&server, &tenant, &mut ask).await?;
        }
    }
    check(&mut ask, server.now_ms())?;
    if dry_run {
        let estimate = estimates::estimate(&server, &tenant, &ask).await?;
        return Ok(Json(Asked::Estimate(Box::new(estimate))));
    }
    let key = once::key_of(&headers)?;

    let _held = match key {
        Some(key) => Some(server.keys.hold(&principal.token.id, key).await),
        None => None,
    };
    if let Some(key) = key
        && let Some(before) = server.store.idempotent(&principal.token.id, key).await?
    {
        let Json(lease) = repeated(&server, &principal, &request, &before).await?;
        return Ok(Json(Asked::Lease(Box::new(lease))));
    }
    let mut change = server.change().await?;
    if let Err(problem) = estimates::is_for_tenant(change.fleet(), &tenant) {
        change.leave();
        return Err(problem.into());
    }
    if let Some(reason) = change.books().never(&tenant, &ask) {
        change.leave();
        return Err(Problem::new(Kind::NeverFits, reason).into());
    }
    let (token, now_ms) = (principal.token.id.clone(), change.now_ms);
    let id = change.fleet().request(tenant.clone(), ask, token.clone(), now_ms);
    change.fleet().set_person(id, principal.person());
    let requested = change.fleet().lease(id).map(|lease| lease.ask.clone());
    let detail = serde_json::json!({ "tenant": tenant, "asked": requested });
    change.audit(&principal, "lease.requested", &id.to_string(), detail);
    if let Some(size) = automatic {
        change.fleet().note_automatic_size(id, size);
    }
    if let Some(key) = key {
        let name = key.to_owned();
        change.write(Write::Key(KeyUse {
            token,
            name,
            request,
            lease: id,
            at_ms: now_ms,
            answer: String::new(),
        }));
    }
    let lease = change.fleet().lease(id);
    let key = lease.map(|lease| lease_key::of(&server.signer, lease));
    change.commit_and_look().await?;
    let Json(lease) = view(&server, &principal, id).await?;
    Ok(Json(Asked::Lease(Box::new(Lease { key, ..lease }))))
}

/// Gives a request that states no size what earlier runs of the program needed, if its tenant has
/// consented to that.
async fn size_automatically(
    server: &Server,
    tenant: &TenantPath,
    ask: &mut NewLease,
) -> Result<Option<AutomaticSize>, Problem> {
    let found = |books: &Books, now_ms| {
        let (share_ppm, size) = books.autonomy.size_for(&books.fleet, tenant, ask)?;
        let sized = NewLease { share_ppm, memory: size.live.memory, ..ask.clone() };
        // The memory of one GPU may be more than another has.
        if books.never(tenant, &sized).is_some() {
            return None;
        }
        let automatic = AutomaticSize {
            kind: AutomaticKind::NextRun,
            asked_share_ppm: ask.share_ppm,
            asked_memory: ask.memory,
            at_ms: now_ms,
            why: size.why.clone(),
        };
        Some((sized, automatic))
    };
    let Some((sized, automatic)) = server.read(found).await? else { return Ok(None) };
    *ask = sized;
    Ok(Some(automatic))
}

fn check(ask: &mut NewLease, now_ms: u64) -> Result<(), Problem> {
    let wrong = |field, detail: String| Err(Problem::new(Kind::Invalid, detail).at(field));
    if !(1..=GPUS_MAX).contains(&ask.gpus) {
        return wrong("gpus", format!("1 to {GPUS_MAX}, not {}", ask.gpus));
    }
    if !(1..=GPU_PPM).contains(&ask.share_ppm) {
        return wrong("share_ppm", format!("1 to {GPU_PPM} (a whole GPU), not {}", ask.share_ppm));
    }
    if ask.limit_ppm.is_some_and(|limit| !(ask.share_ppm..=GPU_PPM).contains(&limit)) {
        return wrong("limit_ppm", format!("not below the share ({}), and at most {GPU_PPM}", ask.share_ppm));
    }
    if ask.limit_ppm.is_some() && (ask.hard_cap || ask.units_milli.is_some()) {
        let detail = "`hard_cap` says that the limit is the share, and with `units_milli` the share is not known: leave one out";
        return wrong("limit_ppm", detail.into());
    }
    if ask.units_milli.is_some_and(|units| !(1..=GFLOPS_MAX).contains(&units)) {
        return wrong("units_milli", format!("1 to {GFLOPS_MAX} thousandths of a unit"));
    }
    if ask.units_milli.is_some() && ask.share_ppm != GPU_PPM {
        return wrong("share_ppm", "the share follows from `units_milli`: leave one of them out".into());
    }
    if !(1..=TASKS_MAX).contains(&ask.tasks) {
        return wrong("tasks", format!("1 to {TASKS_MAX}, not {}", ask.tasks));
    }
    if ask.tasks_max.is_some_and(|most| !(ask.tasks..=TASKS_MAX).contains(&most)) {
        return wrong("tasks_max", format!("not below tasks, and at most {TASKS_MAX}"));
    }
    if ask.same.zip(ask.near).is_some_and(|(same, near)| near < same) {
        return wrong("near", "wider than `same`; prefer something narrower".into());
    }
    if ask.linked.is_some() && ask.gpus < 2 {
        return wrong("linked", "one GPU is linked to no other; `gpus` says how many".into());
    }
    let together = ask.same.max(ask.near);
    if ask.spread.zip(together).is_some_and(|(spread, together)| spread <= together) {
        let detail = "tasks in one place of this kind cannot be in different ones; spread them over something narrower than `same` and `near`";
        return wrong("spread", detail.into());
    }
    let words = |word: &String| (1..=NAME_MAX).contains(&word.len());
    if ask.models.len() > WORDS_MAX || !ask.models.iter().all(words) {
        return wrong("models", format!("up to {WORDS_MAX} names of 1 to {NAME_MAX} bytes"));
    }
    if ask.labels.len() > WORDS_MAX || !ask.labels.iter().all(|(name, value)| words(name) && words(value)) {
        return wrong("labels", format!("up to {WORDS_MAX} names and values of 1 to {NAME_MAX} bytes"));
    }
    if ask.duration_ms.is_some_and(|duration| duration > DURATION_MS_MAX) {
        return wrong("duration_ms", format!("up to {DURATION_MS_MAX} (ten years)"));
    }
    if ask.hold_ms.is_some_and(|hold| !(HOLD_MS_MIN..=HOLD_MS_MAX).contains(&hold)) {
        return wrong("hold_ms", format!("{HOLD_MS_MIN} (a second) to {HOLD_MS_MAX} (an hour)"));
    }
    if ask.start_until_ms().is_some_and(|until| until < now_ms) {
        return wrong("deadline_ms", "it could not end by then, if it started now".into());
    }
    if !(1..=PRIORITY_MAX).contains(&ask.priority) {
        return wrong("priority", format!("1 to {PRIORITY_MAX}, not {}", ask.priority));
    }
    if ask.memory > MEMORY_MAX {
        return wrong("memory", format!("no GPU has {} bytes", ask.memory));
    }
    ask.name = ask.name.chars().filter(|c| !is_deceptive(*c)).take(NAME_MAX).collect();
    Ok(())
}

async fn repeated(server: &Server, principal: &Principal, request: &str, before: &KeyUse) -> Answer<Lease> {
    if request != before.request {
        return Err(once::reused().into());
    }
    let key = server.lease(before.lease).await?.map(|lease| lease_key::of(&server.signer, &lease));
    let Json(lease) = view(server, principal, before.lease).await?;
    Ok(Json(Lease { key, ..lease }))
}

/// A lease
///
/// With `revision`, the answer waits until the lease has changed since that revision, or until the
/// time is up. Whoever asked for the lease, or has its key, gets the grants of its tasks while they
/// wait to be claimed. The answer's ETag is the revision; requests that change the lease take it in
/// If-Match.
#[utoipa::path(get, path = "/leases/{id}", tag = "leases",
    params(("id" = u64, Path), Watch), responses((status = 200, body = Lease)))]
pub(super) async fn get(
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
pub(super) struct Watch {
    /// The revision that is known.
    #[serde(default)]
    revision: Option<u64>,
    /// How long to wait for another: 20,000 unless said, which is the most.
    #[serde(default)]
    #[param(maximum = 20_000)]
    wait_ms: Option<u64>,
}

/// The lease, with its grant if it is theirs; one of a foreign tenant does not exist for them.
pub(super) async fn view(server: &Server, principal: &Principal, id: LeaseId) -> Answer<Lease> {
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

/// What the header If-Match asks for.
pub(super) fn unchanged(change: &mut Change<'_>, headers: &HeaderMap, id: LeaseId) -> Result<(), Problem> {
    let revision = change.fleet().lease(id).map(|lease| lease.revision);
    tags::check(headers, revision.unwrap_or(0))
}

pub(super) fn no_lease(id: LeaseId) -> Refusal {
    Problem::new(Kind::NotFound, format!("there is no lease {id}")).into()
}

/// Which leases.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Which {
    /// In this state; in any unless said.
    #[serde(default)]
    state: Option<StateFilter>,
}

/// All leases that the token may see, the latest first
#[utoipa::path(get, path = "/leases", tag = "leases", params(Which, OfTenant, ByUser, PageOptions),
    responses((status = 200, body = Page<Lease>)))]
pub(super) async fn list(
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
pub(super) async fn history(
    State(server): State<Arc<Server>>,
    ForLease(principal, id): ForLease,
    Options(options): Options<PageOptions>,
) -> Answer<LeaseHistory> {
    let limit = options.limit()?;
    let after = options.cursor(|text| text.parse().ok())?.unwrap_or(0);
    let seen = |lease: &LeaseRecord| principal.may(Action::See, &lease.tenant);
    let lease = server.lease(id).await?.filter(seen).ok_or_else(|| no_lease(id))?;
    let used = server.store.use_of(id).await?;
    let Page { items, next } =
        page(server.store.audit_of(id, after, limit).await?, limit, |entry| entry.sequence.to_string());
    let event = |Entry { sequence, at_ms, actor, action, detail, .. }| {
        let detail = serde_json::from_str(&detail).unwrap_or(serde_json::Value::String(detail));
        LeaseEvent { sequence, at_ms, actor, action, detail }
    };
    Ok(Json(LeaseHistory { asked: lease.ask, used, items: items.into_iter().map(event).collect(), next }))
}

/// The queue, tenant by tenant, each in the order of its line
///
/// Only the leases that the token may see are listed.
#[utoipa::path(get, path = "/queue", tag = "leases", params(OfTenant, ByUser, PageOptions),
    responses((status = 200, body = Page<Lease>)))]
pub(super) async fn queue(
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

/// End a lease
///
/// Its node ends the program, if it still runs. Ending one that has ended changes nothing.
#[utoipa::path(delete, path = "/leases/{id}", tag = "leases", params(("id" = u64, Path), Ending),
    responses((status = 200, body = Lease)))]
pub(super) async fn end(
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
pub(super) struct Ending {
    /// Its program has ended by itself. The lease's reason says so then.
    #[serde(default)]
    finished: bool,
}

/// Give a running lease more or less
///
/// Its share, its limit of compute or its memory changes while its programs run, as soon as its
/// nodes have heard of it: those are told with their next report, and by whoever hands them the
/// grants in `places[].resize` of the answer. `resizing` says how far that is. What the lease has
/// is charged for as of the moment in which a node takes it. Memory that its programs hold stays
/// theirs: a node refuses less. Its owner and administrators may do so.
#[utoipa::path(patch, path = "/leases/{id}", tag = "leases", params(("id" = u64, Path)),
    request_body = ResizeLease, responses((status = 200, body = Lease)))]
pub(super) async fn resize(
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
pub(super) async fn refused(
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
pub(super) struct Part {
    /// The number of one task, of an elastic lease that has enough others; all of it unless said.
    #[serde(default)]
    task: Option<u32>,
}

/// Give notice to a running lease, or to one of its tasks
///
/// Its program is told, has a grace time, is ended, and waits in the queue again. One task of an
/// elastic lease makes room while the others continue; another one comes in its place once there is
/// room that nobody else is due to.
#[utoipa::path(post, path = "/leases/{id}/preemptions", tag = "leases", params(("id" = u64, Path), Part),
    responses((status = 200, body = Lease)))]
pub(super) async fn preempt(
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

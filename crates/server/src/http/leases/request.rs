//! Requests for a lease: checked, given a size, and put into the queue.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use sluice_api::GPU_PPM;
use sluice_api::autonomy::{AutomaticKind, AutomaticSize};
use sluice_api::lease::{HOLD_MS_MAX, HOLD_MS_MIN, Lease, NewLease, PRIORITY_MAX, TASKS_MAX};
use sluice_api::problem::{Kind, Problem};
use sluice_api::tenant::TenantPath;
use sluice_api::text::is_deceptive;
use sluice_api::usage::GFLOPS_MAX;

use super::view;
use crate::auth::Principal;
use crate::http::answer::Answer;
use crate::http::estimates::{Asked, DryRun};
use crate::http::extract::{Body, Options};
use crate::http::{estimates, once};
use crate::lease_key;
use crate::policy::Action;
use crate::server::{Books, Server};
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

/// Ask for a lease
///
/// If there is room the answer is a lease that is granted already. Else it waits in the queue;
/// watch it with `GET /leases/{id}`. A lease that is not watched for 20 s leaves the queue. The
/// answer has the lease's key, which can be used in place of the token for this lease: to see and
/// watch it, to end it, and to say that a node refused it. It holds until the lease has ended, also
/// when the token has expired or was revoked. The same request under the same `Idempotency-Key` is
/// answered with the lease that it led to the first time.
///
/// With `dry_run` nothing is requested. The answer estimates what the request would lead to:
/// places, start, price and the GPUs that it accepts.
#[utoipa::path(post, path = "/leases", tag = "leases", params(DryRun), request_body = NewLease,
    responses((status = 200, body = Asked)))]
pub(in crate::http) async fn create(
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

pub(super) fn check(ask: &mut NewLease, now_ms: u64) -> Result<(), Problem> {
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

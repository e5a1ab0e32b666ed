//! The REST API of webhooks and their deliveries.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use sluice_api::Page;
use sluice_api::problem::{Kind, Problem};
use sluice_api::text::is_deceptive;
use sluice_api::webhook::{Delivery, DeliveryState, EventKind, MadeWebhook, NewWebhook, Webhook};

use super::answer::{Answer, Refusal};
use super::extract::{Body, Name, OfTenant, Options, PageOptions, page};
use super::tags;
use crate::auth::{Principal, random};
use crate::policy::Action;
use crate::server::{Change, Server};
use crate::webhooks::secret;

/// Webhooks of one tenant.
const WEBHOOKS_MAX: usize = 20;
const NAME_LENGTH_MAX: usize = 100;

/// Webhooks of the tenants that the token may administer
#[utoipa::path(get, path = "/webhooks", tag = "webhooks", params(OfTenant, PageOptions),
    responses((status = 200, body = Page<Webhook>)))]
pub(super) async fn webhooks(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Options(of): Options<OfTenant>,
    Options(options): Options<PageOptions>,
) -> Answer<Page<Webhook>> {
    let (limit, after) = (options.limit()?, options.cursor(|text| Some(text.to_owned()))?);
    principal.need(Action::Webhook, &principal.token.tenant)?;
    let Some(scope) = principal.sees(Action::Webhook, of.tenant.as_ref()) else {
        return Ok(Json(Page { items: Vec::new(), next: None }));
    };
    let found = server.store.webhooks_within(&scope, &after.unwrap_or_default(), limit).await?;
    Ok(Json(page(found, limit, |webhook| webhook.id.clone())))
}

/// Make a webhook
///
/// The answer is the only place where its secret stands. Addresses that are not on the public
/// Internet, and mail to domains other than the operator's, are refused unless the operator of the
/// server allows them, here or when an event is sent.
#[utoipa::path(post, path = "/webhooks", tag = "webhooks", request_body = NewWebhook,
    responses((status = 200, body = MadeWebhook)))]
pub(super) async fn make_webhook(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Body(new): Body<NewWebhook>,
) -> Answer<MadeWebhook> {
    principal.need(Action::Webhook, &new.tenant)?;
    let wrong = |field, detail: String| Problem::new(Kind::Invalid, detail).at(field);
    let format = server.outgoing.check(&new).map_err(|(field, why)| wrong(field, why))?;
    if new.events.contains(&EventKind::WebhookTest) {
        let detail = "a test is sent when it is asked for; leave it out".to_owned();
        return Err(wrong("events", detail).into());
    }
    let mut events = new.events;
    events.sort_unstable();
    events.dedup();
    let id = random::<12>()
        .map_err(|error| Problem::new(Kind::Internal, format!("no random numbers: {error}")))?;
    let mut change = server.change().await?;
    if let Some(problem) = in_the_way(&mut change, &new.tenant) {
        change.leave();
        return Err(problem.into());
    }
    let webhook = Webhook {
        id: format!("wh_{}", BASE64.encode(id).replace(['-', '_'], "x")),
        tenant: new.tenant,
        url: new.url,
        format,
        events,
        name: new.name.chars().filter(|c| !is_deceptive(*c)).take(NAME_LENGTH_MAX).collect(),
        created_at_ms: change.now_ms,
        failing_since_ms: None,
        disabled: None,
        discarded: 0,
    };
    // The URL is left out: that of a chat is a secret, and auditors read the log.
    let detail = serde_json::json!({
        "tenant": webhook.tenant, "name": webhook.name, "format": webhook.format, "events": webhook.events,
    });
    change.audit(&principal, "webhook.made", &webhook.id, detail);
    change.set_webhook(webhook.clone());
    change.commit().await?;
    Ok(Json(MadeWebhook { secret: secret(&server.signer, &webhook), webhook }))
}

/// Returns why a tenant cannot have a further webhook.
fn in_the_way(change: &mut Change<'_>, tenant: &sluice_api::tenant::TenantPath) -> Option<Problem> {
    if !tenant.is_root() && !change.fleet().tenants().contains(tenant) {
        let detail = format!("there is no tenant {tenant}; `sluice apply -f` creates tenants");
        return Some(Problem::new(Kind::Invalid, detail).at("tenant"));
    }
    let count = change.books().webhooks.values().filter(|webhook| webhook.tenant == *tenant).count();
    (count >= WEBHOOKS_MAX).then(|| {
        let detail = format!("{tenant} has {count} webhooks, which is the most; remove one first");
        Problem::new(Kind::Conflict, detail)
    })
}

/// A webhook
#[utoipa::path(get, path = "/webhooks/{id}", tag = "webhooks", params(("id" = String, Path)),
    responses((status = 200, body = Webhook)))]
pub(super) async fn webhook(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Name(id): Name<String>,
) -> Answer<Webhook> {
    Ok(Json(seen(&server, &principal, &id).await?))
}

/// Returns a webhook that the token may administer. The answer is the same for other tenants'
/// webhooks as for unknown ids.
async fn seen(server: &Server, principal: &Principal, id: &str) -> Result<Webhook, Refusal> {
    let found = server.store.webhook(id).await?;
    let own = found.filter(|webhook| principal.may(Action::Webhook, &webhook.tenant));
    own.ok_or_else(|| Problem::new(Kind::NotFound, format!("there is no webhook {id} for this token")).into())
}

/// Remove a webhook with its deliveries
#[utoipa::path(delete, path = "/webhooks/{id}", tag = "webhooks", params(("id" = String, Path)),
    responses((status = 200, body = Webhook)))]
pub(super) async fn remove_webhook(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Name(id): Name<String>,
    headers: HeaderMap,
) -> Answer<Webhook> {
    let webhook = seen(&server, &principal, &id).await?;
    tags::check_read(&headers, &webhook)?;
    let mut change = server.change().await?;
    change.audit(&principal, "webhook.removed", &id, serde_json::json!({ "tenant": webhook.tenant }));
    change.remove_webhook(&id);
    change.commit().await?;
    Ok(Json(webhook))
}

/// Enable a webhook that was disabled
///
/// Pending deliveries are sent again when their time has come.
#[utoipa::path(post, path = "/webhooks/{id}/enable", tag = "webhooks", params(("id" = String, Path)),
    responses((status = 200, body = Webhook)))]
pub(super) async fn enable(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Name(id): Name<String>,
) -> Answer<Webhook> {
    let webhook = seen(&server, &principal, &id).await?;
    let mut change = server.change().await?;
    let enabled = Webhook { disabled: None, failing_since_ms: None, ..webhook };
    change.audit(&principal, "webhook.enabled", &id, serde_json::json!({ "tenant": enabled.tenant }));
    change.set_webhook(enabled.clone());
    change.commit().await?;
    Ok(Json(enabled))
}

/// Send a test event to a webhook
///
/// The answer is the delivery, which is sent at once. The list of deliveries says what became of
/// it.
#[utoipa::path(post, path = "/webhooks/{id}/tests", tag = "webhooks", params(("id" = String, Path)),
    responses((status = 200, body = Delivery)))]
pub(super) async fn test_webhook(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Name(id): Name<String>,
) -> Answer<Delivery> {
    let webhook = seen(&server, &principal, &id).await?;
    if let Some(why) = webhook.disabled {
        let detail = format!("webhook {id} is disabled: {why}; enable it first");
        return Err(Problem::new(Kind::Conflict, detail).into());
    }
    let mut change = server.change().await?;
    let now_ms = change.now_ms;
    let event = change.test_webhook(&principal, &webhook);
    change.commit().await?;
    Ok(Json(Delivery {
        webhook: id,
        id: event,
        event: EventKind::WebhookTest,
        created_at_ms: now_ms,
        state: DeliveryState::Pending,
        attempts: 0,
        next_at_ms: Some(now_ms),
        last_at_ms: None,
        status: None,
        error: None,
    }))
}

/// Deliveries of a webhook, the latest first
///
/// Those that are over are kept for a week.
#[utoipa::path(get, path = "/webhooks/{id}/deliveries", tag = "webhooks", params(("id" = String, Path), PageOptions),
    responses((status = 200, body = Page<Delivery>)))]
pub(super) async fn deliveries(
    State(server): State<Arc<Server>>,
    principal: Principal,
    Name(id): Name<String>,
    Options(options): Options<PageOptions>,
) -> Answer<Page<Delivery>> {
    let limit = options.limit()?;
    let parse = |text: &str| {
        let (at_ms, event) = text.split_once('.')?;
        Some((at_ms.parse::<u64>().ok()?, event.to_owned()))
    };
    let (before_ms, event) = options.cursor(parse)?.unwrap_or((i64::MAX as u64, String::new()));
    seen(&server, &principal, &id).await?;
    let found = server.store.deliveries(&id, (before_ms, &event), limit).await?;
    Ok(Json(page(found, limit, |delivery| format!("{}.{}", delivery.created_at_ms, delivery.id))))
}

//! The REST API under `/api/v1`, and its OpenAPI document, which is made from the same declarations
//! as the routes.

mod answer;
mod document;
mod earnings;
mod expiry;
mod extract;
mod forward;
mod limits;
mod listen;
mod once;
mod page;
mod people;
mod places;
mod session;
mod tags;

mod admin;
mod apply;
mod aside;
mod audit;
mod autonomy;
mod declared;
mod estimates;
mod gpu_sums;
mod health;
mod identity;
mod invoices;
mod leases;
mod ledger;
mod metrics;
mod moves;
mod nodes;
mod plans;
mod provider;
mod recommendations;
mod reports;
mod request_id;
mod servers;
mod upkeep;
mod watch;
mod web;
mod webhooks;

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, Request};
use axum::middleware::{self, Next};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use sluice_api::problem::{Kind, Problem};
use tracing::Instrument;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::server::Server;
use answer::Refusal;
use document::Declared;
pub(crate) use forward::{LeaderClient, Network};
pub(crate) use limits::Limits;
pub(crate) use listen::{bind, serve};
pub(crate) use places::Places;
pub(crate) use watch::Streams;

/// Bytes of a request's body; the largest are reports of nodes.
const BODY_SIZE_MAX: usize = 4 << 20;

fn declared() -> OpenApiRouter<Arc<Server>> {
    let api = OpenApiRouter::new()
        .routes(routes!(leases::read::list, leases::request::create))
        .routes(routes!(leases::read::get, leases::change::end, leases::change::resize))
        .routes(routes!(moves::move_lease))
        .routes(routes!(moves::plan_move))
        .routes(routes!(leases::read::history))
        .routes(routes!(ledger::lease_bill))
        .routes(routes!(leases::change::refused))
        .routes(routes!(leases::change::preempt))
        .routes(routes!(leases::read::queue))
        .routes(routes!(watch::watch))
        .routes(routes!(upkeep::nodes, nodes::join))
        .routes(routes!(upkeep::node, upkeep::forget))
        .routes(routes!(upkeep::drain, upkeep::undrain))
        .routes(routes!(nodes::report))
        .routes(routes!(nodes::gpus))
        .routes(routes!(gpu_sums::gpu_sums))
        .routes(routes!(earnings::card_earnings))
        .routes(routes!(health::fence))
        .routes(routes!(health::unfence))
        .routes(routes!(nodes::sessions))
        .routes(routes!(nodes::drift))
        .routes(routes!(servers::servers))
        .routes(routes!(admin::tenants))
        .routes(routes!(apply::apply))
        .routes(routes!(declared::declaration))
        .routes(routes!(declared::tenant, declared::remove_tenant))
        .routes(routes!(admin::pools))
        .routes(routes!(declared::pool, declared::remove_pool))
        .routes(routes!(identity::login))
        .routes(routes!(identity::identity, identity::forget_identity))
        .routes(routes!(session::sign_in, session::session, session::sign_out))
        .routes(routes!(session::sign_in_link))
        .routes(routes!(provider::to_provider))
        .routes(routes!(provider::from_provider))
        .routes(routes!(admin::whoami))
        .routes(routes!(admin::tokens, admin::make_token))
        .routes(routes!(admin::token, admin::revoke_token))
        .routes(routes!(people::people))
        .routes(routes!(ledger::prices))
        .routes(routes!(ledger::usage))
        .routes(routes!(ledger::usage_hours))
        .routes(routes!(plans::plans))
        .routes(routes!(aside::aside, aside::decide))
        .routes(routes!(ledger::bill))
        .routes(routes!(ledger::bill_days))
        .routes(routes!(ledger::correct))
        .routes(routes!(ledger::charges))
        .routes(routes!(invoices::invoices, invoices::issue))
        .routes(routes!(invoices::run_invoices))
        .routes(routes!(invoices::invoice))
        .routes(routes!(invoices::invoice_document))
        .routes(routes!(invoices::pay))
        .routes(routes!(invoices::credit))
        .routes(routes!(invoices::drafts))
        .routes(routes!(invoices::draft, invoices::discard))
        .routes(routes!(invoices::draft_document))
        .routes(routes!(invoices::issue_draft))
        .routes(routes!(reports::tenant_report))
        .routes(routes!(recommendations::recommendations))
        .routes(routes!(
            recommendations::run_defaults,
            recommendations::set_run_default,
            recommendations::remove_run_default
        ))
        .routes(routes!(autonomy::autonomy, autonomy::consent))
        .routes(routes!(autonomy::undo))
        .routes(routes!(autonomy::allow))
        .routes(routes!(webhooks::webhooks, webhooks::make_webhook))
        .routes(routes!(webhooks::webhook, webhooks::remove_webhook))
        .routes(routes!(webhooks::enable))
        .routes(routes!(webhooks::test_webhook))
        .routes(routes!(webhooks::deliveries))
        .routes(routes!(audit::audit))
        .routes(routes!(audit::audit_latest));
    OpenApiRouter::with_openapi(Declared::openapi()).nest("/api/v1", api)
}

/// The OpenAPI 3.1 document as it is checked in and served.
pub fn document() -> String {
    let (_, document) = declared().split_for_parts();
    // A document of maps, lists and texts always has a JSON form.
    let mut text = serde_json::to_string_pretty(&document::complete(&document)).unwrap_or_default();
    text.push('\n');
    text
}

pub(crate) fn router(server: Arc<Server>, limits: Limits) -> Router {
    let (router, document) = declared().split_for_parts();
    let document = document::complete(&document);
    let page = page::html(&document);
    router
        .route("/api/v1/openapi.json", get(async move || Json(document)))
        .route("/api/v1", get(async move || Html(page)))
        .route("/healthz", get(async || "ok\n"))
        .route("/metrics", get(metrics::metrics))
        .fallback(web::file)
        .method_not_allowed_fallback(async || {
            let detail = "/api/v1/openapi.json lists what the path takes";
            Refusal(Problem::new(Kind::MethodNotAllowed, detail))
        })
        .layer(DefaultBodyLimit::max(BODY_SIZE_MAX))
        .layer(middleware::from_fn_with_state(Arc::clone(&server), once::once))
        .layer(middleware::from_fn_with_state(Arc::clone(&server), forward::to_the_leader))
        .layer(middleware::from_fn(tags::tag))
        .layer(middleware::from_fn_with_state(Arc::clone(&server), expiry::announce))
        .layer(middleware::from_fn_with_state(Arc::new(limits), limits::limit))
        .layer(middleware::from_fn_with_state(Arc::clone(&server), session::from_cookie))
        .layer(middleware::from_fn(to_its_end))
        .layer(middleware::from_fn_with_state(Arc::clone(&server), metrics::count))
        .layer(middleware::from_fn(request_id::name))
        .with_state(server)
}

/// Things that stand in the way, by their names; of many the first.
fn named(names: &[String]) -> String {
    const NAMED_MAX: usize = 10;
    let first = names[..names.len().min(NAMED_MAX)].join(", ");
    if names.len() > NAMED_MAX { format!("{first} and {} more", names.len() - NAMED_MAX) } else { first }
}

/// A request whose client goes away is carried out all the same, and one that panics is answered:
/// nothing leaves a change half made.
async fn to_its_end(request: Request, next: Next) -> Response {
    let asked = format!("{} {}", request.method(), request.uri().path());
    match tokio::spawn(next.run(request).in_current_span()).await {
        Ok(response) => response,
        Err(error) => {
            tracing::error!("{asked} failed: {error}");
            Refusal(Problem::new(Kind::Internal, "the server's log says what happened")).into_response()
        }
    }
}

//! Metrics under the API's own address, for operators, and counting of the API's requests.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, Method, header};
use axum::middleware::Next;
use axum::response::Response;
use sluice_api::problem::{Kind, Problem};
use sluice_api::tenant::TenantPath;
use sluice_metrics::Format;

use super::answer::Refusal;
use crate::auth::Principal;
use crate::metrics;
use crate::policy::Action;
use crate::server::Server;

/// `GET /metrics`, for tokens that see the whole installation. Each server answers for itself.
pub(super) async fn metrics(
    State(server): State<Arc<Server>>,
    principal: Principal,
    headers: HeaderMap,
) -> Result<([(HeaderName, &'static str); 1], String), Refusal> {
    principal.need(Action::SeeMetrics, &TenantPath::root())?;
    let format = Format::accepted(headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()));
    let page = format.encode(&metrics::registry(&server).await);
    let page = page.map_err(|_| Problem::new(Kind::Internal, "the metrics could not be written"))?;
    Ok(([(header::CONTENT_TYPE, format.content_type())], page))
}

/// Counts a request under the route that it matched, so that no client makes up new series.
pub(super) async fn count(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let method = known(request.method());
    let route = request.extensions().get::<MatchedPath>().cloned();
    let response = next.run(request).await;
    let route = route.as_ref().map_or("none", MatchedPath::as_str);
    server.counters.answered(method, route, response.status().as_u16(), begun.elapsed());
    response
}

/// The methods that routes take; clients may send any word.
fn known(method: &Method) -> &'static str {
    let known = [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
    let names = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];
    known.iter().position(|known| known == method).map_or("other", |at| names[at])
}

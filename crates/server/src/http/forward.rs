//! What a follower does not answer itself goes to the leader.
//!
//! A follower reads the database and knows the fleet as far as it is stored. Whatever changes
//! something, and what only the leader has received (reports of nodes, programs that wait), it
//! hands on, with the caller's own token, and hands back the answer.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, Method, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::future::BoxFuture;
use sluice_api::client::{EXPIRY_HEADER, NoUrl, ServerUrl};
use sluice_api::problem::{Kind, Problem};

use super::answer::Refusal;
use super::extract::{bearer, note_principal, whole};
use super::{BODY_SIZE_MAX, request_id};
use crate::auth::{self, Principal};
use crate::leader::Role;
use crate::lease_key;
use crate::server::Server;

/// Says that a replica has handed the request on: it is not handed on again.
const FORWARDED: HeaderName = HeaderName::from_static("sluice-forwarded");
/// The leader is in the same building, or it is away.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(2);
/// Bytes of a body whose token this follower does not know.
const UNAUTHENTICATED_BODY_MAX: usize = 64 << 10;
/// More than any answer waits for something to happen.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);
/// What of a request and of its answer means something to the other side.
const REQUEST_HEADERS: [HeaderName; 6] = [
    header::AUTHORIZATION,
    header::CONTENT_TYPE,
    header::IF_MATCH,
    header::IF_NONE_MATCH,
    HeaderName::from_static("idempotency-key"),
    request_id::HEADER,
];
const ANSWER_HEADERS: [HeaderName; 7] = [
    header::CONTENT_TYPE,
    header::ETAG,
    header::RETRY_AFTER,
    header::WWW_AUTHENTICATE,
    header::LOCATION,
    HeaderName::from_static(EXPIRY_HEADER),
    header::SET_COOKIE,
];

pub(super) async fn to_the_leader(
    State(server): State<Arc<Server>>,
    request: Request,
    next: Next,
) -> Response {
    let role = server.role.borrow().clone();
    let Role::Follower { leader } = role else { return next.run(request).await };
    let reads = request.method() == Method::GET || request.method() == Method::HEAD;
    match leader {
        _ if reads && !only_leader_knows(request.uri().path()) => next.run(request).await,
        Some(leader) if !request.headers().contains_key(FORWARDED) => {
            let answer = forward(&server, &leader, request).await;
            answer.unwrap_or_else(IntoResponse::into_response)
        }
        // What is stored is better than nothing.
        _ if reads => next.run(request).await,
        _ => {
            let detail =
                "no server leads at the moment; another will in a few seconds. Nothing was done, ask again";
            Refusal(server.disk.problem_or(detail)).into_response()
        }
    }
}

/// Reading it tells the leader that a program waits, or shows what nodes have reported or the
/// scheduler has decided last.
fn only_leader_knows(path: &str) -> bool {
    let path = path.strip_prefix("/api/v1").unwrap_or_default();
    // A lease, or what a move of it would lead to.
    let lease = path.strip_prefix("/leases/").map(|rest| rest.strip_suffix("/moves/plan").unwrap_or(rest));
    let one_lease = lease.is_some_and(|id| id.parse::<u64>().is_ok());
    let one_node = path.strip_prefix("/nodes/").is_some_and(|name| !name.is_empty());
    one_lease || one_node || ["/gpus", "/nodes", "/sessions", "/tenants"].contains(&path)
}

async fn forward(server: &Arc<Server>, leader: &str, request: Request) -> Result<Response, Refusal> {
    let (parts, body) = request.into_parts();
    let size_max = match recognise(server, &parts).await {
        Some(principal) => {
            note_principal(&parts.extensions, &principal);
            BODY_SIZE_MAX
        }
        // The leader says what is wrong with the token, or knows it already.
        None => UNAUTHENTICATED_BODY_MAX,
    };
    let body = whole(body, size_max).await?;
    let changes = parts.method != Method::GET && !parts.uri.path().ends_with("/reports");
    let mut request = Request::new(body);
    *request.method_mut() = parts.method;
    *request.uri_mut() = parts.uri;
    copy(&parts.headers, request.headers_mut(), &REQUEST_HEADERS);
    request.headers_mut().insert(FORWARDED, header::HeaderValue::from_static("1"));
    let answer = server.surroundings.link.ask(leader, request).await?;
    if changes && answer.status().is_success() {
        // Who asks here next sees it; a token may have been revoked.
        server.recognised.forget_all();
        server.look_at_leader().await.map_err(|error| Refusal(crate::server::unwell(error)))?;
    }
    Ok(answer)
}

/// The token's principal, as far as this follower knows the token.
async fn recognise(server: &Server, parts: &Parts) -> Option<Principal> {
    let (token, now_ms) = (bearer(&parts.headers).ok()?, server.now_ms());
    match lease_key::lease_of(token) {
        Some(lease) => auth::recognise_for(server, token, lease, now_ms).await.ok(),
        None => auth::recognise(server, token, now_ms).await.ok(),
    }
}

/// How a server asks the one that leads.
pub(crate) trait LeaderClient: Send + Sync {
    /// `leader` is its URL; the error says that it is not known whether it was done.
    fn ask<'a>(
        &'a self,
        leader: &'a str,
        request: Request<Bytes>,
    ) -> BoxFuture<'a, Result<Response, Problem>>;
}

impl LeaderClient for Network {
    fn ask<'a>(
        &'a self,
        leader: &'a str,
        mut request: Request<Bytes>,
    ) -> BoxFuture<'a, Result<Response, Problem>> {
        Box::pin(async move {
            let (agent, base) = self.of(leader)?;
            let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
            let url = format!("{base}{path}").parse::<Uri>();
            *request.uri_mut() =
                url.map_err(|error| Problem::new(Kind::Unavailable, format!("{base}: {error}")))?;
            let asked = tokio::task::spawn_blocking(move || ask(&agent, request));
            let answer = asked.await.map_err(|error| Problem::new(Kind::Internal, error.to_string()))?;
            answer.map_err(no_answer)
        })
    }
}

fn no_answer(cause: impl std::fmt::Display) -> Problem {
    let detail = format!(
        "the leader did not answer ({cause}); whether it was done is not known. Ask again; under an Idempotency-Key \
         nothing is done twice"
    );
    Problem::new(Kind::Unavailable, detail)
}

/// Blocks.
fn ask(agent: &ureq::Agent, request: Request<Bytes>) -> Result<Response, ureq::Error> {
    let (parts, body) = request.into_parts();
    let mut answer = agent.run(ureq::http::Request::from_parts(parts, &body[..]))?;
    let bytes = answer.body_mut().with_config().limit(u64::MAX).read_to_vec()?;
    let mut response = Response::new(Body::from(bytes));
    *response.status_mut() = answer.status();
    copy(answer.headers(), response.headers_mut(), &ANSWER_HEADERS);
    Ok(response)
}

fn copy(from: &HeaderMap, to: &mut HeaderMap, names: &[HeaderName]) {
    for name in names {
        if let Some(value) = from.get(name) {
            to.insert(name, value.clone());
        }
    }
}

/// The network, and what requests are handed on with: of the leader that was there last.
#[derive(Default)]
pub(crate) struct Network(Mutex<Option<(String, ureq::Agent)>>);

impl Network {
    /// An agent for this leader, and what paths are written behind.
    fn of(&self, leader: &str) -> Result<(ureq::Agent, String), Problem> {
        let wrong = |cause: &str| {
            let detail =
                format!("the leader's URL {leader} cannot be asked: {cause}; see --advertise of that server");
            Problem::new(Kind::Unavailable, detail)
        };
        let url: ServerUrl = leader.parse().map_err(|NoUrl| wrong("it is none"))?;
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, agent)) = &*last
            && known == leader
        {
            return Ok((agent.clone(), url.base));
        }
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .allow_non_standard_methods(true)
            .timeout_connect(Some(CONNECT_TIME_MAX))
            .timeout_global(Some(ANSWER_TIME_MAX))
            .max_redirects(0)
            .build();
        let agent = url.agent(config).map_err(|cause| wrong(&cause))?;
        *last = Some((leader.to_owned(), agent.clone()));
        Ok((agent, url.base))
    }
}

//! Signing in to the web view: a session in a cookie, and the check that keeps other sites from
//! using it.

use std::sync::Arc;

use axum::Json;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, COOKIE, HeaderName, SET_COOKIE};
use axum::http::{Extensions, HeaderMap, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sluice_api::problem::{Kind, Problem};
use sluice_api::session::{CSRF_HEADER, Session, SignIn, SignInLink};
use sluice_api::token::{Role, Token};

use super::answer::{Answer, Refusal};
use super::extract::{Body, bearer};
use super::listen::Peer;
use crate::auth::{self, Principal};
use crate::identity::Provider;
use crate::server::{Server, unwell};
use crate::sessions::Claimed;

/// Bytes of a session that a browser keeps; one of a cookie's 4096 are for its name and attributes
/// (RFC 6265, section 6.1).
const SESSION_SIZE_MAX: usize = 3800;

/// Carries a session from its cookie to where tokens are read.
///
/// A request with a token of its own is left as it is. Everything else in this server sees the
/// session as a bearer token.
pub(super) async fn from_cookie(
    State(server): State<Arc<Server>>,
    mut request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    if headers.contains_key(AUTHORIZATION) || !request.uri().path().starts_with("/api/") {
        return next.run(request).await;
    }
    let Some(session) = session_of(headers, &server.sessions.cookie) else {
        return next.run(request).await;
    };
    // Who signs in anew does so whatever the cookie of before is.
    let signs_in = request.uri().path() == "/api/v1/session" && request.method() == axum::http::Method::POST;
    if signs_in {
        return next.run(request).await;
    }
    if !request.method().is_safe() && !repeats(headers, &server.sessions.csrf(&session)) {
        let detail = format!(
            "a session changes nothing without its value in the header {CSRF_HEADER}, which `GET /api/v1/session` says"
        );
        return Refusal(Problem::new(Kind::Forbidden, detail)).into_response();
    }
    if let Ok(value) = HeaderValue::from_str(&format!("Bearer {session}")) {
        request.headers_mut().insert(AUTHORIZATION, value);
    }
    next.run(request).await
}

pub(super) fn session_of(headers: &HeaderMap, name: &str) -> Option<String> {
    let lines = headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
    let mut cookies =
        lines.flat_map(|line| line.split(';')).filter_map(|cookie| cookie.trim().split_once('='));
    cookies.find(|(key, value)| *key == name && !value.is_empty()).map(|(_, value)| value.to_owned())
}

fn repeats(headers: &HeaderMap, expected: &blake3::Hash) -> bool {
    let said = headers.get(CSRF_HEADER).and_then(|value| value.to_str().ok());
    // Hashes are compared in constant time.
    said.and_then(|text| blake3::Hash::from_hex(text).ok()).is_some_and(|said| said == *expected)
}

type WithCookie = ([(HeaderName, HeaderValue); 1], Json<Session>);

/// Sign in to the web view
///
/// Needs no token but the one in the body, or the code of a sign-in link. The answer sets a cookie
/// with the session, which scripts cannot read and which other sites' pages do not send. The
/// session ends after twelve hours, with its token, or with `DELETE /session`. A request under a
/// session that changes something needs the header `Sluice-CSRF` with the value that this answer
/// has.
#[utoipa::path(post, path = "/session", tag = "tokens", security(()), request_body = SignIn,
    responses((status = 200, body = Session)))]
pub(super) async fn sign_in(
    State(server): State<Arc<Server>>,
    headers: HeaderMap,
    extensions: Extensions,
    Body(how): Body<SignIn>,
) -> Result<WithCookie, Refusal> {
    // A form of another site cannot send this type, so no user is signed in as another one
    // unawares.
    let is_json = |kind: &HeaderValue| kind.to_str().is_ok_and(|kind| kind.starts_with("application/json"));
    if !headers.get(CONTENT_TYPE).is_some_and(is_json) {
        let detail = "the body of this request is of type application/json";
        return Err(Problem::new(Kind::Malformed, detail).into());
    }
    let text = match how {
        SignIn::Token(token) => begin(&server, token.trim()).await?,
        SignIn::Code(code) => server.sessions.redeem(&code, server.now_ms()).ok_or_else(|| {
            let detail =
                "this link has been used, or its ten minutes are over; `sluice web` makes another one";
            Problem::new(Kind::Unauthenticated, detail)
        })?,
    };
    let principal = auth::recognise(&server, &text, server.now_ms()).await?;
    let session = view(&server, &text, principal.token);
    let rest_s = session.until_ms.saturating_sub(server.now_ms()) / 1000;
    Ok(([(SET_COOKIE, cookie(&server, &text, rest_s, is_encrypted(&headers, &extensions))?)], Json(session)))
}

/// The session that this request is made under
///
/// With the value that requests under it need in the header `Sluice-CSRF`.
#[utoipa::path(get, path = "/session", tag = "tokens", responses((status = 200, body = Session)))]
pub(super) async fn session(
    State(server): State<Arc<Server>>,
    principal: Principal,
    headers: HeaderMap,
) -> Answer<Session> {
    Ok(Json(view(&server, bearer(&headers)?, principal.token)))
}

/// Sign out of the web view
///
/// The answer takes the cookie away. The token that the session was begun with stays valid.
#[utoipa::path(delete, path = "/session", tag = "tokens", responses((status = 200, body = Token)))]
pub(super) async fn sign_out(
    State(server): State<Arc<Server>>,
    principal: Principal,
    headers: HeaderMap,
    extensions: Extensions,
) -> Result<([(HeaderName, HeaderValue); 1], Json<Token>), Refusal> {
    let gone = cookie(&server, "", 0, is_encrypted(&headers, &extensions))?;
    Ok(([(SET_COOKIE, gone)], Json(principal.token)))
}

/// Make a link that signs in to the web view
///
/// The browser that opens it is signed in as the holder of this token, once, within ten minutes. A
/// session makes no links: it would never end.
#[utoipa::path(post, path = "/sign-in-links", tag = "tokens", responses((status = 200, body = SignInLink)))]
pub(super) async fn sign_in_link(
    State(server): State<Arc<Server>>,
    _: Principal,
    headers: HeaderMap,
) -> Answer<SignInLink> {
    let text = begin(&server, bearer(&headers)?).await?;
    let made = server.sessions.link(text, server.now_ms()).map_err(no_random)?;
    let (code, until_ms) = made.ok_or_else(|| {
        Problem::new(
            Kind::TooMany,
            "too many sign-in links wait to be used; each ends ten minutes after it was made",
        )
    })?;
    Ok(Json(SignInLink { path: SignInLink::path_of(&code), until_ms }))
}

/// The text of a session of a token's holder.
pub(super) async fn begin(server: &Server, token: &str) -> Result<String, Problem> {
    if Claimed::read(token).is_some() {
        return Err(Problem::new(Kind::Forbidden, "a session begins with a token, not with another session"));
    }
    let principal = auth::recognise(server, token, server.now_ms()).await?;
    if principal.token.role == Role::Node {
        let detail = "this is the token of a node; sign in with one of a person (`sluice token create`)";
        return Err(Problem::new(Kind::Forbidden, detail));
    }
    if Provider::may_know(token) {
        if token.len() > SESSION_SIZE_MAX {
            let detail = format!(
                "the provider's ID token has {} bytes, and browsers keep {SESSION_SIZE_MAX}: have it put fewer claims in",
                token.len()
            );
            return Err(Problem::new(Kind::TooLarge, detail));
        }
        return Ok(token.to_owned());
    }
    let stored = server.store.token(&principal.token.id).await.map_err(unwell)?;
    let stored = stored.ok_or_else(|| Problem::new(Kind::Unauthenticated, "the token is gone"))?;
    server.sessions.begin(&stored, server.now_ms()).map_err(no_random)
}

fn no_random(error: std::io::Error) -> Problem {
    Problem::new(Kind::Internal, format!("there are no random numbers: {error}"))
}

fn view(server: &Server, text: &str, token: Token) -> Session {
    let until_ms = Claimed::read(text).map_or(token.expires_at_ms, |claimed| claimed.until_ms);
    Session { csrf: server.sessions.csrf(text).to_hex().to_string(), until_ms, token }
}

/// The cookie of a session for this number of seconds; 0 takes it away.
pub(super) fn cookie(
    server: &Server,
    text: &str,
    seconds: u64,
    encrypted: bool,
) -> Result<HeaderValue, Problem> {
    let name = &server.sessions.cookie;
    let secure = if encrypted { "; Secure" } else { "" };
    let line = format!("{name}={text}; Path=/api; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}");
    HeaderValue::from_str(&line).map_err(|_| Problem::new(Kind::Unauthenticated, "this is no token"))
}

/// Whether the browser's connection is encrypted: by this server, or by a proxy that says so.
pub(super) fn is_encrypted(headers: &HeaderMap, extensions: &Extensions) -> bool {
    let by_proxy = headers.get("x-forwarded-proto").is_some_and(|scheme| scheme == "https");
    by_proxy || extensions.get::<ConnectInfo<Peer>>().is_some_and(|info| info.0.encrypted)
}

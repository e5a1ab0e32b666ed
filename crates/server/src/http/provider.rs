//! Signing in to the web view at the identity provider.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header::{CONTENT_SECURITY_POLICY, HOST, LOCATION, SET_COOKIE};
use axum::http::{Extensions, HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::{AppendHeaders, Html, IntoResponse, Response};
use serde::Deserialize;
use sluice_api::problem::{Kind, Problem};

use super::answer::Refusal;
use super::extract::Options;
use super::session::{begin, cookie, is_encrypted, session_of};
use super::web::wants_page;
use crate::auth;
use crate::identity::{Attempt, Provider};
use crate::server::Server;

/// The provider sends the browser back to here.
const BACK: &str = "/api/v1/session/callback";
/// Seconds within which a person signs in.
const ATTEMPT_S: u64 = 600;
const WORDS_MAX: usize = 300;

/// Sign in to the web view at the identity provider
///
/// Needs no token. The answer sends the browser to the provider, which sends it back to
/// `/session/callback` of the host that the request names; the provider has to know that URL as
/// one of the client's.
#[utoipa::path(get, path = "/session/provider", tag = "tokens", security(()),
    responses((status = 303, description = "To the provider")))]
pub(super) async fn to_provider(
    State(server): State<Arc<Server>>,
    headers: HeaderMap,
    uri: Uri,
    extensions: Extensions,
) -> Result<Response, Refusal> {
    let encrypted = is_encrypted(&headers, &extensions);
    let (url, attempt) = provider(&server)?.attempt(&back(&headers, &uri, encrypted)?).await?;
    Ok(to(&url, [kept(&server, &attempt.text(), ATTEMPT_S, encrypted)?]))
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Brought {
    #[serde(default)]
    code: String,
    #[serde(default)]
    state: String,
    /// Why there is no code.
    #[serde(default)]
    error: String,
    #[serde(default)]
    error_description: String,
}

/// What the identity provider sends a browser back with
///
/// The answer sets the session's cookie and sends the browser to the web view. It is a problem
/// where that fails; a client that accepts `text/html` gets a page that says so.
#[utoipa::path(get, path = "/session/callback", tag = "tokens", security(()), params(Brought),
    responses((status = 303, description = "To the web view, signed in")))]
pub(super) async fn from_provider(
    State(server): State<Arc<Server>>,
    headers: HeaderMap,
    uri: Uri,
    extensions: Extensions,
    Options(brought): Options<Brought>,
) -> Result<Response, Refusal> {
    let encrypted = is_encrypted(&headers, &extensions);
    let gone = kept(&server, "", 0, encrypted)?;
    let back = back(&headers, &uri, encrypted)?;
    match session(&server, &headers, &back, brought).await {
        Ok((text, rest_s)) => Ok(to("/", [cookie(&server, &text, rest_s, encrypted)?, gone])),
        Err(problem) if wants_page(&headers) => Ok(page(&problem, gone)),
        Err(problem) => Err(problem.into()),
    }
}

/// The text of the session that an answer of the provider begins, and its seconds.
async fn session(
    server: &Server,
    headers: &HeaderMap,
    back: &str,
    brought: Brought,
) -> Result<(String, u64), Problem> {
    let refused = |detail: String| Problem::new(Kind::Unauthenticated, detail);
    let attempt = session_of(headers, &attempt_cookie(server)).and_then(|text| Attempt::read(&text));
    let attempt = attempt.filter(|attempt| attempt.is_answered_by(&brought.state)).ok_or_else(|| {
        refused("this browser did not begin to sign in within the last ten minutes; begin again".into())
    })?;
    if !brought.error.is_empty() {
        let why =
            if brought.error_description.is_empty() { brought.error } else { brought.error_description };
        let why: String = why.chars().filter(|c| !c.is_control()).take(WORDS_MAX).collect();
        return Err(refused(format!("the identity provider says: {why}")));
    }
    let token = provider(server)?.token_for(back, attempt, brought.code).await?;
    let text = begin(server, &token).await?;
    let principal = auth::recognise(server, &text, server.now_ms()).await?;
    Ok((text, principal.token.expires_at_ms.saturating_sub(server.now_ms()) / 1000))
}

fn provider(server: &Server) -> Result<Arc<Provider>, Problem> {
    let none = || Problem::new(Kind::NotFound, "no identity provider is declared; sign in with a token");
    server.identity.get().ok_or_else(none)
}

/// The URL to which the provider sends the browser back, as the browser knows this server.
fn back(headers: &HeaderMap, uri: &Uri, encrypted: bool) -> Result<String, Problem> {
    let named = headers.get(HOST).and_then(|host| host.to_str().ok());
    let host = named.or_else(|| uri.authority().map(|authority| authority.as_str()));
    let host = host.ok_or_else(|| Problem::new(Kind::Malformed, "the request names no host"))?;
    Ok(format!("{}://{host}{BACK}", if encrypted { "https" } else { "http" }))
}

fn attempt_cookie(server: &Server) -> String {
    format!("{}-attempt", server.sessions.cookie)
}

/// The cookie of an attempt for this number of seconds; 0 takes it away. It comes along when the
/// provider sends the browser back, which a strict one would not.
fn kept(server: &Server, text: &str, seconds: u64, encrypted: bool) -> Result<HeaderValue, Problem> {
    let name = attempt_cookie(server);
    let secure = if encrypted { "; Secure" } else { "" };
    let line =
        format!("{name}={text}; Path=/api/v1/session; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}");
    HeaderValue::from_str(&line).map_err(|error| Problem::new(Kind::Internal, error.to_string()))
}

fn to<const N: usize>(url: &str, cookies: [HeaderValue; N]) -> Response {
    let Ok(url) = HeaderValue::from_str(url) else {
        let detail = "the identity provider's URL is none that a browser can be sent to";
        return Refusal(Problem::new(Kind::Internal, detail)).into_response();
    };
    let cookies = AppendHeaders(cookies.map(|cookie| (SET_COOKIE, cookie)));
    (StatusCode::SEE_OTHER, [(LOCATION, url)], cookies).into_response()
}

/// A page without scripts or styles.
fn page(problem: &Problem, gone: HeaderValue) -> Response {
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::UNAUTHORIZED);
    let text = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Not signed in · Sluice</title>\
         <h1>Not signed in</h1><p>{}.</p><p><a href=\"/\">Back to Sluice</a></p></html>\n",
        escaped(&problem.detail)
    );
    let headers = [
        (CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'")),
        (SET_COOKIE, gone),
    ];
    (status, headers, Html(text)).into_response()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_shown_as_text() {
        let problem = Problem::new(Kind::Unauthenticated, "<script>alert(1)</script> & \"more\"");
        let response = page(&problem, HeaderValue::from_static("a=; Max-Age=0"));
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
        assert_eq!(escaped(&problem.detail), "&lt;script&gt;alert(1)&lt;/script&gt; &amp; &quot;more&quot;");
    }

    #[test]
    fn the_way_back_is_the_host_that_the_browser_asked() {
        let mut headers = HeaderMap::new();
        let uri = Uri::from_static("/api/v1/session/provider");
        assert!(back(&headers, &uri, true).is_err());
        headers.insert(HOST, HeaderValue::from_static("gpus.example:7580"));
        assert_eq!(back(&headers, &uri, true).unwrap(), "https://gpus.example:7580/api/v1/session/callback");
        let other = Uri::from_static("http://[::1]:80/api/v1/session/provider");
        assert_eq!(
            back(&HeaderMap::new(), &other, false).unwrap(),
            "http://[::1]:80/api/v1/session/callback"
        );
    }
}

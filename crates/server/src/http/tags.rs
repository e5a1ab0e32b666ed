//! Entity tags (RFC 9110, section 8.8.3): what a reader knows already is not sent again.

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use sluice_api::problem::{Kind, Problem};

use super::answer::Refusal;

/// Gives every answer to a GET the tag of its content, and leaves out the content if the reader
/// names that tag. What continues has none.
pub(super) async fn tag(request: Request, next: Next) -> Response {
    let reads = request.method() == Method::GET;
    let known = request.headers().get(header::IF_NONE_MATCH).cloned();
    let response = next.run(request).await;
    if !reads || response.status() != StatusCode::OK || goes_on(&response) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let Ok(bytes) = to_bytes(body, usize::MAX).await else {
        return Refusal(Problem::new(Kind::Internal, "the answer broke off")).into_response();
    };
    let tag = match parts.headers.get(header::ETAG) {
        Some(tag) => tag.clone(),
        None => of_content(&bytes),
    };
    let is_known = known.is_some_and(|known| lists(&known, &tag));
    parts.headers.insert(header::ETAG, tag);
    if is_known {
        parts.status = StatusCode::NOT_MODIFIED;
        parts.headers.remove(header::CONTENT_LENGTH);
        return Response::from_parts(parts, Body::empty());
    }
    Response::from_parts(parts, Body::from(bytes))
}

fn goes_on(response: &Response) -> bool {
    response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream")
}

fn of_content(bytes: &[u8]) -> HeaderValue {
    let hash = blake3::hash(bytes).to_hex();
    HeaderValue::from_str(&format!("\"{}\"", &hash[..32])).unwrap_or(HeaderValue::from_static("\"\""))
}

/// Whether a list of tags, as the headers If-Match and If-None-Match have it, holds this one.
fn lists(list: &HeaderValue, tag: &HeaderValue) -> bool {
    let (Ok(list), Ok(tag)) = (list.to_str(), tag.to_str()) else { return false };
    list.split(',').map(|one| one.trim().trim_start_matches("W/")).any(|one| one == "*" || one == tag)
}

/// The tag of something that counts its changes.
pub(super) fn of_revision(revision: u64) -> HeaderValue {
    HeaderValue::from_str(&format!("\"{revision}\"")).unwrap_or(HeaderValue::from_static("\"\""))
}

/// The condition of a request that changes something: the header If-Match.
pub(super) fn check(headers: &HeaderMap, revision: u64) -> Result<(), Problem> {
    match headers.get(header::IF_MATCH) {
        Some(list) if !lists(list, &of_revision(revision)) => {
            let detail = format!("it has changed: its tag is \"{revision}\" now; read it again");
            Err(Problem::new(Kind::HasChanged, detail).at("If-Match"))
        }
        _ => Ok(()),
    }
}

/// The tag of what a GET answers in JSON.
pub(super) fn of(content: &impl Serialize) -> HeaderValue {
    // As `Json` writes it; what has no JSON form has not been read.
    of_content(&serde_json::to_vec(content).unwrap_or_default())
}

/// Checks `If-Match` where the tag is that of the content, as a GET at the same path shows it.
pub(super) fn check_read(headers: &HeaderMap, content: &impl Serialize) -> Result<(), Problem> {
    let Some(list) = headers.get(header::IF_MATCH) else { return Ok(()) };
    if lists(list, &of(content)) {
        return Ok(());
    }
    Err(Problem::new(Kind::HasChanged, "it has changed; read it again").at("If-Match"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_lists_of_tags() {
        let check = |text: &'static str| lists(&HeaderValue::from_static(text), &of_revision(7));
        for text in ["\"7\"", "*", "\"6\", \"7\"", "W/\"7\""] {
            assert!(check(text), "{text}");
        }
        for text in ["7", "\"77\"", ""] {
            assert!(!check(text), "{text}");
        }
    }
}

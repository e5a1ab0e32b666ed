//! A name for each request, in the answer and in the lines of the log that are about it.

use std::time::Instant;

use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use sluice_api::client::REQUEST_ID_HEADER;
use tracing::Instrument;

pub(super) const HEADER: HeaderName = HeaderName::from_static(REQUEST_ID_HEADER);
const LENGTH_MAX: usize = 64;

/// Names a request by its header `x-request-id`, such as a proxy or another server sets it, or at
/// random.
pub(super) async fn name(mut request: Request, next: Next) -> Response {
    let id = given(&request).unwrap_or_else(random);
    request.headers_mut().insert(HEADER, id.clone());
    // Of the highest level, so that it is there whatever level is logged.
    let span = tracing::error_span!("request", request = %id.to_str().unwrap_or_default());
    // Not the path, in which someone may have put a secret by mistake.
    let route = request.extensions().get::<MatchedPath>().map(|route| route.as_str().to_owned());
    let (method, route) = (request.method().clone(), route.unwrap_or_else(|| "no route".into()));
    let answer = async move {
        let begun = Instant::now();
        let mut response = next.run(request).await;
        let (status, took_ms) = (response.status().as_u16(), begun.elapsed().as_millis());
        tracing::debug!(status, "{method} {route}: {status} after {took_ms} ms");
        response.headers_mut().insert(HEADER, id);
        response
    };
    answer.instrument(span).await
}

/// The name that the request came with, if a log can hold it as it is.
fn given(request: &Request) -> Option<HeaderValue> {
    let id = request.headers().get(HEADER)?;
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    ((1..=LENGTH_MAX).contains(&id.len()) && id.as_bytes().iter().all(is_plain)).then(|| id.clone())
}

/// Requests are distinguished by it, and nothing is kept secret by it.
fn random() -> HeaderValue {
    let id = format!("{:016x}", fastrand::u64(..));
    HeaderValue::from_str(&id).unwrap_or(HeaderValue::from_static("unnamed"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    #[test]
    fn a_name_that_a_log_cannot_hold_is_not_taken() {
        let named = |id: &[u8]| {
            let request = Request::builder().header(HEADER, HeaderValue::from_bytes(id).unwrap());
            given(&request.body(Body::empty()).unwrap()).is_some()
        };
        assert!(named(b"4f-a_b.9") && named(&[b'a'; LENGTH_MAX]));
        assert!(!named(b"") && !named(b"a b") && !named(&[b'a'; LENGTH_MAX + 1]) && !named(b"a\xff"));
        assert_ne!(random(), random());
    }
}

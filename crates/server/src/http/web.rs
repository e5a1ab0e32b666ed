//! The web view: a page with its scripts and styles, built from `web/` and embedded in the program.
//!
//! The page itself holds no user's data; it reads the API with the session of the user who signs
//! in. Paths that are no files of it are its own: they show the same page, which looks at the path.

use std::io::Write;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{
    ACCEPT, ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE,
    HeaderName, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, Method, Response};
use axum::response::IntoResponse;
use flate2::Compression;
use flate2::write::GzEncoder;
use rust_embed::{EmbeddedFile, RustEmbed};
use sluice_api::problem::{Kind, Problem};

use super::answer::Refusal;

/// What `cargo xtask web` built. A debug build reads the files when it is asked for them.
#[derive(RustEmbed)]
#[folder = "../../web/dist"]
struct Files;

const PAGE: &str = "index.html";
/// Files whose names have a hash of their content.
const ASSETS: &str = "assets/";
/// Scripts and styles of this server alone, none of them inline; nothing from elsewhere, and no
/// site frames the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A file of the web view, the page for a browser that goes anywhere else, or a refusal.
pub(super) async fn file(request: Request) -> axum::response::Response {
    let path = request.uri().path();
    let reads = request.method() == Method::GET || request.method() == Method::HEAD;
    if reads && !path.starts_with("/api/") {
        let name = path.trim_start_matches('/');
        if let Some(file) = Files::get(name) {
            return answer(name, &file, request.headers());
        }
        if (name.is_empty() || wants_page(request.headers()))
            && !name.starts_with(ASSETS)
            && let Some(page) = Files::get(PAGE)
        {
            return answer(PAGE, &page, request.headers());
        }
    }
    Refusal(Problem::new(Kind::NotFound, "there is nothing at this path")).into_response()
}

pub(super) fn wants_page(headers: &HeaderMap) -> bool {
    headers.get(ACCEPT).is_some_and(|kinds| kinds.to_str().is_ok_and(|kinds| kinds.contains("text/html")))
}

fn answer(name: &str, file: &EmbeddedFile, headers: &HeaderMap) -> axum::response::Response {
    let kind = kind(name);
    let caching = if name.starts_with(ASSETS) { "public, max-age=31536000, immutable" } else { "no-cache" };
    let accepts = headers.get(ACCEPT_ENCODING).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let packed = (accepts.contains("gzip") && is_text(kind)).then(|| gzip(&file.data)).flatten();
    let is_packed = packed.is_some();
    let mut response = Response::new(Body::from(packed.unwrap_or_else(|| file.data.to_vec())));
    let mut set =
        |name: HeaderName, value| response.headers_mut().insert(name, HeaderValue::from_static(value));
    set(CONTENT_TYPE, kind);
    set(CACHE_CONTROL, caching);
    set(CONTENT_SECURITY_POLICY, POLICY);
    set(X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(X_FRAME_OPTIONS, "DENY");
    set(REFERRER_POLICY, "no-referrer");
    set(HeaderName::from_static("cross-origin-opener-policy"), "same-origin");
    set(VARY, "Accept-Encoding");
    if is_packed {
        set(CONTENT_ENCODING, "gzip");
    }
    response
}

/// Browsers keep what they have read, so each file is compressed once for a browser and release.
fn gzip(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).ok()?;
    encoder.finish().ok()
}

fn is_text(kind: &str) -> bool {
    kind.starts_with("text/") || kind == "image/svg+xml"
}

fn kind(name: &str) -> &'static str {
    match name.rsplit_once('.').map_or("", |(_, extension)| extension) {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        "txt" => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;

    use super::*;

    async fn get(path: &str, accept: &str) -> (u16, HeaderMap, Vec<u8>) {
        let request = Request::get(path).header(ACCEPT, accept).body(Body::empty()).unwrap();
        let response = file(request).await;
        let (parts, body) = response.into_parts();
        (parts.status.as_u16(), parts.headers, to_bytes(body, usize::MAX).await.unwrap().to_vec())
    }

    #[tokio::test]
    async fn browsers_get_the_page_at_its_paths_and_programs_a_problem() {
        for (path, accept, status) in [
            ("/", "*/*", 200),
            ("/index.html", "*/*", 200),
            ("/leases/7", "text/html,*/*", 200),
            ("/leases/7", "application/json", 404),
            ("/assets/none.js", "text/html,*/*", 404),
            ("/api/v1/none", "text/html,*/*", 404),
            ("/../Cargo.toml", "*/*", 404),
        ] {
            assert_eq!(get(path, accept).await.0, status, "{path} {accept}");
        }
    }

    #[tokio::test]
    async fn the_page_runs_scripts_of_this_server_alone() {
        let (_, headers, body) = get("/", "text/html").await;
        let policy = headers[CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        let page = String::from_utf8(body).unwrap();
        for inline in ["<script>", "<style", "style=", "onload=", "http://", "https://"] {
            assert!(!page.contains(inline), "{inline} in {page}");
        }
    }

    #[tokio::test]
    async fn scripts_are_within_their_budget() {
        const SCRIPTS_MAX: usize = 250_000;
        let scripts = Files::iter().filter(|name| name.ends_with(".js"));
        let sizes = scripts.map(|name| gzip(&Files::get(&name).unwrap().data).unwrap().len());
        let all: usize = sizes.sum();
        assert!((1..=SCRIPTS_MAX).contains(&all), "{all} bytes of compressed scripts");
    }
}

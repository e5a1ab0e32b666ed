//! Idempotency keys (the header Idempotency-Key of a POST): a request that is repeated under its
//! key is done once, and answered as it was the first time.
//!
//! The key is written in the transaction of what was asked for ([`keys::take`]), and the answer
//! right after it. It may hold a secret, so it is sealed with what only who asks has: their token,
//! of which the database knows a hash.
//!
//! `POST /leases` keeps its keys itself, with the lease that came of each: its answer is what that
//! lease is now.

use std::sync::Arc;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use sluice_api::problem::{Kind, Problem};

use super::BODY_SIZE_MAX;
use super::answer::Refusal;
use super::extract::{bearer, note_principal, whole};
use crate::auth;
use crate::keys;
use crate::server::Server;
use crate::store::{KeyUse, Write};

/// Bytes of an idempotency key.
const KEY_MAX: usize = 255;
const PURPOSE: &str = "sluice 2026-11 answers under idempotency keys";

/// The key of a request, if it has one.
pub(super) fn key_of(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    match value.to_str() {
        Ok(key) if (1..=KEY_MAX).contains(&key.len()) => Ok(Some(key)),
        _ => {
            Err(Problem::new(Kind::Invalid, format!("1 to {KEY_MAX} visible characters"))
                .at("Idempotency-Key"))
        }
    }
}

/// The refusal of a key that came again with another request.
pub(super) fn reused() -> Problem {
    let detail = "something else was asked for under this key; take a new key for a new request";
    Problem::new(Kind::KeyReused, detail).at("Idempotency-Key")
}

pub(super) async fn once(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    let path = request.uri().path().trim_end_matches('/');
    // What signs in is used once as it is, and its answer is for this client alone.
    let keeps_its_own = ["/leases", "/session", "/sign-in-links"].iter().any(|end| path.ends_with(end));
    if request.method() != Method::POST || keeps_its_own {
        return next.run(request).await;
    }
    let (key, token) = match (key_of(request.headers()), bearer(request.headers())) {
        (Err(problem), _) => return Refusal(problem).into_response(),
        (Ok(Some(key)), Ok(token)) => (key.to_owned(), token.to_owned()),
        // Without a key it is done as often as it comes; without a token not at all.
        _ => return next.run(request).await,
    };
    let Ok(principal) = auth::recognise(&server, &token, server.now_ms()).await else {
        return next.run(request).await;
    };
    note_principal(request.extensions(), &principal);
    let asks = Asks { token: principal.token.id, key, secret: token };
    asks.once(&server, request, next).await.unwrap_or_else(|problem| Refusal(problem).into_response())
}

/// Who asks, and under which key.
struct Asks {
    /// The id of the token.
    token: String,
    key: String,
    /// The token itself.
    secret: String,
}

impl Asks {
    async fn once(&self, server: &Server, request: Request, next: Next) -> Result<Response, Problem> {
        let (parts, body) = request.into_parts();
        let body = whole(body, BODY_SIZE_MAX).await?;
        let fingerprint = fingerprint(parts.uri.path_and_query().map_or("", |path| path.as_str()), &body);
        let _held = server.keys.hold(&self.token, &self.key).await;
        let known = server.store.idempotent(&self.token, &self.key).await.map_err(crate::server::unwell)?;
        if let Some(known) = known {
            return if known.request == fingerprint { self.again(&known) } else { Err(reused()) };
        }
        let used = KeyUse {
            token: self.token.clone(),
            name: self.key.clone(),
            request: fingerprint,
            lease: 0,
            at_ms: server.now_ms(),
            answer: String::new(),
        };
        let request = Request::from_parts(parts, Body::from(body));
        let (response, left) = keys::carry(used.clone(), next.run(request)).await;
        if response.status() != StatusCode::OK {
            return Ok(response);
        }
        let (parts, body) = response.into_parts();
        let body = to_bytes(body, usize::MAX)
            .await
            .map_err(|error| Problem::new(Kind::Internal, format!("the answer broke off: {error}")))?;
        // If it cannot be kept, what was asked for is done all the same.
        if let Err(problem) = self.keep(server, used, left.is_some(), &body).await {
            tracing::warn!("an answer cannot be given again: {problem}");
        }
        Ok(Response::from_parts(parts, Body::from(body)))
    }

    /// The answer that it got the first time.
    fn again(&self, known: &KeyUse) -> Result<Response, Problem> {
        let Some(answer) = self.open(&known.answer) else {
            let detail =
                "this was done before, and its answer is not known any more; look at what there is now";
            return Err(Problem::new(Kind::Conflict, detail).at("Idempotency-Key"));
        };
        let json = HeaderValue::from_static("application/json");
        Ok(([(header::CONTENT_TYPE, json)], answer).into_response())
    }

    /// With the key itself, if nothing was written with which it could be.
    async fn keep(&self, server: &Server, used: KeyUse, alone: bool, body: &[u8]) -> Result<(), Problem> {
        let answer =
            self.seal(body).ok_or_else(|| Problem::new(Kind::Internal, "there are no random numbers"))?;
        let mut change = server.change().await?;
        let (token, name) = (used.token.clone(), used.name.clone());
        if alone {
            change.write(Write::Key(used));
        }
        change.write(Write::Answer { token, name, answer });
        change.commit().await
    }

    fn cipher(&self) -> Option<LessSafeKey> {
        let material = format!("{}\n{}", self.secret, self.key);
        let key = UnboundKey::new(&CHACHA20_POLY1305, &blake3::derive_key(PURPOSE, material.as_bytes()));
        key.ok().map(LessSafeKey::new)
    }

    fn seal(&self, answer: &[u8]) -> Option<String> {
        let nonce = auth::random::<NONCE_LEN>().ok()?;
        let mut bytes = answer.to_vec();
        let sealed = Nonce::assume_unique_for_key(nonce);
        self.cipher()?.seal_in_place_append_tag(sealed, Aad::empty(), &mut bytes).ok()?;
        Some(BASE64.encode([&nonce[..], &bytes].concat()))
    }

    fn open(&self, sealed: &str) -> Option<Vec<u8>> {
        let mut bytes = BASE64.decode(sealed).ok()?;
        let (nonce, sealed) = bytes.split_at_mut_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let answer = self.cipher()?.open_in_place(nonce, Aad::empty(), sealed).ok()?;
        Some(answer.to_vec())
    }
}

/// What is the same for the same request, and for no other.
fn fingerprint(path: &str, body: &Bytes) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(path.as_bytes());
    hasher.update(b"\n");
    hasher.update(body);
    format!("POST {}", hasher.finalize().to_hex())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_for_who_asked_alone() {
        let asks =
            |secret: &str, key: &str| Asks { token: "t".into(), key: key.into(), secret: secret.into() };
        let sealed = asks("slc_t_x", "a").seal(b"{\"secret\":1}").unwrap();
        assert_eq!(asks("slc_t_x", "a").open(&sealed).unwrap(), b"{\"secret\":1}");
        assert_ne!(asks("slc_t_x", "a").seal(b"{\"secret\":1}").unwrap(), sealed);
        for (secret, key, text) in [
            ("slc_t_y", "a", sealed.as_str()),
            ("slc_t_x", "b", &sealed),
            ("slc_t_x", "a", ""),
            ("slc_t_x", "a", "AAAA"),
        ] {
            assert_eq!(asks(secret, key).open(text), None, "{secret} {key}");
        }
    }
}

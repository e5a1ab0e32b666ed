//! Tokens that expire soon: each answer to a request with one says when, so that its user gets a
//! new one in time.

use std::sync::{Arc, OnceLock};

use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use sluice_api::client::EXPIRY_HEADER;
use sluice_api::token::Token;

use crate::server::Server;

/// A token says so for its last week, or for the last quarter of its life where that is shorter.
const WARNING_MS_MAX: u64 = 7 * 24 * 3_600_000;

/// The token of a request, once it is recognised.
#[derive(Clone, Default)]
pub(super) struct Expiry(Arc<OnceLock<(u64, u64)>>);

impl Expiry {
    pub(super) fn note(&self, token: &Token) {
        // A provider's tokens are short-lived, and renewed by `sluice` itself.
        if token.expires_at_ms < u64::MAX && !token.is_of_provider() {
            let _ = self.0.set((token.created_at_ms, token.expires_at_ms));
        }
    }
}

pub(super) async fn announce(
    State(server): State<Arc<Server>>,
    mut request: Request,
    next: Next,
) -> Response {
    let expiry = Expiry::default();
    request.extensions_mut().insert(expiry.clone());
    let mut response = next.run(request).await;
    if let Some(&(created_at_ms, expires_at_ms)) = expiry.0.get()
        && is_soon(created_at_ms, expires_at_ms, server.now_ms())
    {
        response
            .headers_mut()
            .insert(HeaderName::from_static(EXPIRY_HEADER), HeaderValue::from(expires_at_ms));
    }
    response
}

fn is_soon(created_at_ms: u64, expires_at_ms: u64, now_ms: u64) -> bool {
    let life_ms = expires_at_ms.saturating_sub(created_at_ms);
    expires_at_ms.saturating_sub(now_ms) < WARNING_MS_MAX.min(life_ms / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_announced_for_its_last_week_or_quarter() {
        const DAY_MS: u64 = 24 * 3_600_000;
        for (life_ms, left_ms, expect) in [
            (30 * DAY_MS, 7 * DAY_MS, false),
            (30 * DAY_MS, 7 * DAY_MS - 1, true),
            (366 * DAY_MS, 8 * DAY_MS, false),
            (DAY_MS / 2, DAY_MS / 4, false),
            (DAY_MS / 2, DAY_MS / 9, true),
        ] {
            assert_eq!(is_soon(5, 5 + life_ms, 5 + life_ms - left_ms), expect, "{life_ms} {left_ms}");
        }
    }
}

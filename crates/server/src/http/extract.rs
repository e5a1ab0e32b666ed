//! What handlers take from a request. A request that cannot be read is answered with a problem that
//! says why.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{ConnectInfo, FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::{Extensions, HeaderMap};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use sluice_api::Page;
use sluice_api::lease::LeaseId;
use sluice_api::problem::{Kind, Problem};
use sluice_api::tenant::TenantPath;

use super::answer::Refusal;
use super::expiry::Expiry;
use super::listen::Peer;
use crate::auth::{self, Principal};
use crate::server::Server;

impl FromRequestParts<Arc<Server>> for Principal {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, server: &Arc<Server>) -> Result<Principal, Refusal> {
        let token = bearer(&parts.headers)?;
        let principal = auth::recognise(server, token, server.now_ms()).await?;
        note_principal(&parts.extensions, &principal);
        Ok(principal)
    }
}

pub(super) fn bearer(headers: &HeaderMap) -> Result<&str, Problem> {
    let header = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = header.and_then(|value| value.strip_prefix("Bearer ")).map(str::trim);
    let missing = "the header Authorization: Bearer TOKEN is missing";
    token.ok_or_else(|| Problem::new(Kind::Unauthenticated, missing))
}

/// Gives the connection of a request a place among the authenticated ones, and notes when the token
/// expires. Requests of tests have no connection.
pub(super) fn note_principal(extensions: &Extensions, principal: &Principal) {
    if let Some(ConnectInfo(peer)) = extensions.get::<ConnectInfo<Peer>>() {
        peer.place.authenticate(&principal.token.id);
    }
    if let Some(expiry) = extensions.get::<Expiry>() {
        expiry.note(&principal.token);
    }
}

/// The lease that the path names, and who asks about it: with a token, or with the key of that
/// lease.
pub(super) struct ForLease(pub(super) Principal, pub(super) LeaseId);

impl FromRequestParts<Arc<Server>> for ForLease {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, server: &Arc<Server>) -> Result<ForLease, Refusal> {
        let lease = Name::<LeaseId>::from_request_parts(parts, server).await;
        let (token, now_ms) = (bearer(&parts.headers)?, server.now_ms());
        match lease {
            Ok(Name(id)) => {
                let principal = auth::recognise_for(server, token, id, now_ms).await?;
                note_principal(&parts.extensions, &principal);
                Ok(ForLease(principal, id))
            }
            // A caller without a valid token gets that answer first.
            Err(absent) => {
                auth::recognise(server, token, now_ms).await.map_or_else(|no| Err(no.into()), |_| Err(absent))
            }
        }
    }
}

/// A JSON body.
pub(super) struct Body<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Body<T>, Refusal> {
        let bytes = raw(request, state).await?;
        // What is read as an object would be read from a list as well, member by member.
        if bytes.iter().find(|byte| !byte.is_ascii_whitespace()).is_some_and(|first| *first != b'{') {
            let detail = "the body is not the JSON that is expected: an object";
            return Err(Problem::new(Kind::Malformed, detail).into());
        }
        let wrong = |error: serde_json::Error| {
            let kind = if error.is_data() { Kind::Invalid } else { Kind::Malformed };
            Problem::new(kind, format!("the body is not the JSON that is expected: {error}"))
        };
        Ok(Body(serde_json::from_slice(&bytes).map_err(wrong)?))
    }
}

/// A body in YAML, of which JSON is a part.
pub(super) struct Yaml<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Yaml<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Yaml<T>, Refusal> {
        let bytes = raw(request, state).await?;
        let wrong = |error: String| Problem::new(Kind::Invalid, format!("the declaration: {error}"));
        if bytes.is_empty() {
            return Err(wrong("the body is empty".into()).into());
        }
        let text = std::str::from_utf8(&bytes).map_err(|error| wrong(error.to_string()))?;
        Ok(Yaml(serde_saphyr::from_str(text).map_err(|error| wrong(error.to_string()))?))
    }
}

async fn raw<S: Send + Sync>(request: Request, state: &S) -> Result<Bytes, Refusal> {
    let bytes = within_body_time(Bytes::from_request(request, state)).await?;
    bytes.map_err(|error| {
        let kind = if error.status().as_u16() == 413 { Kind::TooLarge } else { Kind::Malformed };
        Refusal(Problem::new(kind, error.body_text()))
    })
}

/// A whole body of up to `size_max` bytes.
pub(super) async fn whole(body: axum::body::Body, size_max: usize) -> Result<Bytes, Problem> {
    let read = within_body_time(axum::body::to_bytes(body, size_max)).await?;
    read.map_err(|error| Problem::new(Kind::TooLarge, format!("the body cannot be read: {error}")))
}

/// The largest body comes within this time over a link of half a megabit per second.
const BODY_TIME_MAX: Duration = Duration::from_secs(60);

async fn within_body_time<T>(read: impl Future<Output = T>) -> Result<T, Problem> {
    let late = || format!("the body did not arrive within {} s", BODY_TIME_MAX.as_secs());
    tokio::time::timeout(BODY_TIME_MAX, read).await.map_err(|_| Problem::new(Kind::TooSlow, late()))
}

/// A part of the path.
pub(super) struct Name<T>(pub(super) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Name<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Name<T>, Refusal> {
        let found = Path::<T>::from_request_parts(parts, state).await;
        let absent = |_| Refusal(Problem::new(Kind::NotFound, "there is nothing at this path"));
        found.map(|Path(name)| Name(name)).map_err(absent)
    }
}

/// The part of the URL after `?`.
pub(super) struct Options<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Options<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Options<T>, Refusal> {
        let found = Query::<T>::from_request_parts(parts, state).await;
        let wrong = |error: axum::extract::rejection::QueryRejection| {
            Refusal(Problem::new(Kind::Invalid, error.body_text()))
        };
        found.map(|Query(options)| Options(options)).map_err(wrong)
    }
}

/// Which page of a list.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct PageOptions {
    /// `next` of the page before.
    #[serde(default)]
    cursor: Option<String>,
    /// Items of a page.
    #[serde(default)]
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

/// The longest that an answer waits for a change, in milliseconds.
const WAIT_MS_MAX: u64 = 20_000;

/// How long an answer may wait for a change.
pub(super) fn wait(wait_ms: u64) -> Result<Duration, Problem> {
    match wait_ms {
        0..=WAIT_MS_MAX => Ok(Duration::from_millis(wait_ms)),
        _ => Err(Problem::new(Kind::Invalid, format!("up to {WAIT_MS_MAX}")).at("wait_ms")),
    }
}

const PAGE_LENGTH: u32 = 100;
const PAGE_LENGTH_MAX: u32 = 1000;

impl PageOptions {
    pub(super) fn limit(&self) -> Result<u32, Problem> {
        match self.limit.unwrap_or(PAGE_LENGTH) {
            limit @ 1..=PAGE_LENGTH_MAX => Ok(limit),
            _ => Err(Problem::new(Kind::Invalid, format!("1 to {PAGE_LENGTH_MAX}")).at("limit")),
        }
    }

    /// The cursor, read by `parse`.
    pub(super) fn cursor<T>(&self, parse: impl Fn(&str) -> Option<T>) -> Result<Option<T>, Problem> {
        let wrong = || Problem::new(Kind::Invalid, "this is no cursor of this list").at("cursor");
        self.cursor.as_deref().map(|text| parse(text).ok_or_else(wrong)).transpose()
    }
}

/// A page of what was read; another follows if it is full.
pub(super) fn page<T>(items: Vec<T>, limit: u32, cursor: impl Fn(&T) -> String) -> Page<T> {
    let next = items.last().filter(|_| items.len() == limit as usize).map(cursor);
    Page { items, next }
}

/// A page of a list that is in memory, in the order of its keys, of which a cursor is the last one
/// that was seen.
pub(super) fn cut<K: Ord, T>(
    items: impl Iterator<Item = (K, T)>,
    after: Option<&K>,
    limit: u32,
    cursor: impl Fn(&K) -> String,
) -> Page<T> {
    let mut rest = items.filter(|(key, _)| after.is_none_or(|after| key > after));
    let taken: Vec<(K, T)> = rest.by_ref().take(limit as usize).collect();
    let next = taken.last().filter(|_| rest.next().is_some()).map(|(key, _)| cursor(key));
    Page { items: taken.into_iter().map(|(_, item)| item).collect(), next }
}

/// Two numbers with a point between.
pub(super) fn two_numbers(text: &str) -> Option<(u64, u64)> {
    let (first, second) = text.split_once('.')?;
    Some((first.parse().ok()?, second.parse().ok()?))
}

/// Whose.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct OfTenant {
    /// Of this tenant and all below it; of all that the token may see unless said.
    #[serde(default)]
    #[param(value_type = Option<TenantPath>)]
    pub(super) tenant: Option<TenantPath>,
}

/// A restriction to one user.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ByUser {
    /// Only those of this user, as the field `user` of leases names them.
    #[serde(default)]
    pub(super) user: Option<String>,
}

impl ByUser {
    /// Returns whether a lease of this user is wanted.
    pub(super) fn wants(&self, user: &str) -> bool {
        self.user.as_ref().is_none_or(|wanted| wanted == user)
    }
}

/// Where.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct OnNode {
    /// On the node of this name; on any unless said.
    #[serde(default)]
    pub(super) node: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_arrive_is_not_waited_for() {
        let never = futures_util::stream::pending::<Result<Bytes, std::io::Error>>();
        let problem = whole(axum::body::Body::from_stream(never), 1000).await.unwrap_err();
        assert!(problem.is(Kind::TooSlow), "{problem}");
    }

    #[test]
    fn pages_follow_each_other_without_gaps_and_the_last_says_so() {
        for limit in 1..8 {
            let (mut seen, mut after) = (Vec::new(), None);
            loop {
                let items = (0..6_u64).map(|key| (key, key));
                let page = cut(items, after.as_ref(), limit, u64::to_string);
                assert!(page.items.len() <= limit as usize);
                seen.extend(page.items);
                match page.next {
                    Some(next) => after = next.parse().ok(),
                    None => break,
                }
            }
            assert_eq!(seen, [0, 1, 2, 3, 4, 5], "{limit}");
        }
        let none: Page<u64> = cut(std::iter::empty(), Some(&3), 2, u64::to_string);
        assert!(none.items.is_empty() && none.next.is_none());
    }
}

//! How often a client may ask: a bucket for each token, and one for each address that comes with
//! tokens that are none.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sluice_api::problem::{Kind, Problem};

use super::answer::Refusal;
use super::listen::Peer;

/// A bucket holds this many seconds' worth.
const BURST_S: f64 = 5.0;
/// Buckets that are kept; if there are more, the full ones are forgotten.
const BUCKETS_MAX: usize = 100_000;

/// Requests that are still free.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    free: f64,
    at: Instant,
}

/// Buckets that fill with `per_s` requests a second.
#[derive(Debug)]
struct Buckets<K> {
    per_s: f64,
    buckets: HashMap<K, Bucket>,
}

impl<K: Eq + Hash> Buckets<K> {
    fn new(per_s: f64) -> Buckets<K> {
        Buckets { per_s, buckets: HashMap::new() }
    }

    fn filled(&self, bucket: Bucket, now: Instant) -> f64 {
        let since = now.saturating_duration_since(bucket.at).as_secs_f64();
        (bucket.free + since * self.per_s).min(self.per_s * BURST_S)
    }

    /// How many are free now.
    fn free(&self, key: &K, now: Instant) -> f64 {
        self.buckets.get(key).map_or(self.per_s * BURST_S, |bucket| self.filled(*bucket, now))
    }

    /// Takes one if there is one.
    fn take(&mut self, key: K, now: Instant) -> bool {
        let free = self.free(&key, now);
        if free < 1.0 {
            return false;
        }
        if self.buckets.len() >= BUCKETS_MAX {
            let full = self.per_s * BURST_S;
            let buckets = std::mem::take(&mut self.buckets);
            let kept = buckets.into_iter().filter(|(_, bucket)| self.filled(*bucket, now) < full);
            self.buckets = kept.collect();
        }
        self.buckets.insert(key, Bucket { free: free - 1.0, at: now });
        true
    }
}

#[derive(Debug)]
pub(crate) struct Limits {
    /// By the hash of the token.
    requests: Option<Mutex<Buckets<[u8; 32]>>>,
    failures: Option<Mutex<Buckets<IpAddr>>>,
}

impl Limits {
    /// Requests per second and token, and refused tokens per second and address; 0 for any number.
    /// Five times as many at once.
    pub(crate) fn new(requests_per_s: u32, failures_per_s: u32) -> Limits {
        Limits { requests: buckets(requests_per_s), failures: buckets(failures_per_s) }
    }
}

fn buckets<K: Eq + Hash>(per_s: u32) -> Option<Mutex<Buckets<K>>> {
    (per_s > 0).then(|| Mutex::new(Buckets::new(f64::from(per_s))))
}

pub(super) async fn limit(State(limits): State<Arc<Limits>>, request: Request, next: Next) -> Response {
    let address = request.extensions().get::<ConnectInfo<Peer>>().map(|info| info.0.address.ip());
    let now = Instant::now();
    let token = request.headers().get(header::AUTHORIZATION).map(|value| blake3::hash(value.as_bytes()));
    if let (Some(requests), Some(token)) = (&limits.requests, token)
        && !lock(requests).take(token.into(), now)
    {
        return too_many("too many requests came with this token");
    }
    let response = next.run(request).await;
    if response.status() == StatusCode::UNAUTHORIZED
        && let (Some(failures), Some(address)) = (&limits.failures, address)
        && !lock(failures).take(address, now)
    {
        // A client with a valid token is served, whichever others are behind the same address.
        return too_many("too many requests from this address came without a valid token");
    }
    response
}

fn too_many(what: &str) -> Response {
    let detail = format!("{what}; the header Retry-After says in how many seconds to ask again");
    Refusal(Problem::new(Kind::TooMany, detail)).into_response()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_bucket_fills_with_time_and_no_further() {
        let mut buckets = Buckets::new(2.0);
        let begin = Instant::now();
        let taken = |buckets: &mut Buckets<u8>, at| (0..100).filter(|_| buckets.take(1, at)).count();
        assert_eq!(taken(&mut buckets, begin), 10);
        assert_eq!(taken(&mut buckets, begin + Duration::from_secs(1)), 2);
        assert_eq!(taken(&mut buckets, begin + Duration::from_secs(1000)), 10);
        assert!(buckets.take(2, begin), "everybody has their own");
    }
}

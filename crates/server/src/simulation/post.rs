//! What every party of a simulation sends with, decides by, and writes its history to.

use std::collections::VecDeque;

use axum::body::Bytes;
use axum::extract::Request;
use axum::http::Method;
use fastrand::Rng;

use super::network::{Message, Network, Party, Payload, Weather};

/// Lines of history that a failure shows.
const LINES_MAX: usize = 60;

pub(super) struct Post {
    pub(super) now_ms: u64,
    pub(super) rng: Rng,
    pub(super) network: Network,
    pub(super) weather: Weather,
    exchanges: u64,
    lines: VecDeque<String>,
    shows: bool,
}

/// A request whose answer is waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) exchange: u64,
    pub(super) until_ms: u64,
}

/// To the API of a server.
#[derive(Clone, Debug)]
pub(super) struct Call<'a> {
    pub(super) method: Method,
    /// Behind `/api/v1`.
    pub(super) path: String,
    pub(super) token: &'a str,
    pub(super) key: Option<&'a str>,
    pub(super) body: Vec<u8>,
}

impl<'a> Call<'a> {
    pub(super) fn get(path: String, token: &'a str) -> Call<'a> {
        Call { method: Method::GET, path, token, key: None, body: Vec::new() }
    }

    pub(super) fn delete(path: String, token: &'a str) -> Call<'a> {
        Call { method: Method::DELETE, ..Call::get(path, token) }
    }

    pub(super) fn post(path: String, token: &'a str, body: &impl serde::Serialize) -> Call<'a> {
        let body = serde_json::to_vec(body).unwrap();
        Call { method: Method::POST, body, ..Call::get(path, token) }
    }

    pub(super) fn request(self) -> Request<Bytes> {
        let request = axum::http::Request::builder()
            .method(self.method)
            .uri(format!("/api/v1{}", self.path))
            .header("authorization", format!("Bearer {}", self.token))
            .header("content-type", "application/json");
        let request = match self.key {
            Some(key) => request.header("idempotency-key", key),
            None => request,
        };
        request.body(self.body.into()).unwrap()
    }
}

impl Post {
    pub(super) fn new(seed: u64, weather: Weather) -> Post {
        Post {
            now_ms: 0,
            rng: Rng::with_seed(seed),
            network: Network::default(),
            weather,
            exchanges: 0,
            lines: VecDeque::new(),
            shows: std::env::var_os("TRACE").is_some(),
        }
    }

    /// Something that happened.
    pub(super) fn note(&mut self, line: &str) {
        let line = format!("{:>7}.{:03} {line}", self.now_ms / 1000, self.now_ms % 1000);
        if self.shows {
            println!("{line}");
        }
        if self.lines.len() == LINES_MAX {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// The last of what happened.
    pub(super) fn lines(&self) -> String {
        self.lines.iter().cloned().collect::<Vec<_>>().join("\n")
    }

    /// True with a chance of `of_thousand` in a thousand.
    pub(super) fn chance(&mut self, of_thousand: u32) -> bool {
        self.rng.u32(..1000) < of_thousand
    }

    /// Sends a request; the answer bears the number that this gives.
    pub(super) fn ask(&mut self, from: Party, server: usize, call: Call<'_>) -> u64 {
        self.forward(from, server, call.request())
    }

    pub(super) fn forward(&mut self, from: Party, server: usize, request: Request<Bytes>) -> u64 {
        self.exchanges += 1;
        let payload = Payload::Request(std::sync::Arc::new(request));
        self.send(Message { from, to: Party::Server(server), exchange: self.exchanges, payload });
        self.exchanges
    }

    pub(super) fn send(&mut self, message: Message) {
        self.network.send(message, self.now_ms, self.weather, &mut self.rng);
    }
}

/// Whether the sender of a request may try another server, or the same again.
pub(super) fn is_temporary(status: u16) -> bool {
    status == UNREACHABLE || status == 503
}

/// The answer of a machine where no server listens.
pub(super) const UNREACHABLE: u16 = 0;

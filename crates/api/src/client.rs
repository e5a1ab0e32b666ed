//! A blocking client of the REST API, for `sluice` and for nodes.

mod settings;

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Page;
use crate::problem::Problem;

pub use settings::{ADMIN_FILE, NODE_FILE, SERVER_VARIABLE, Settings, SettingsError, canonical, data_folder};

/// Where `/api/v1` begins.
const PREFIX: &str = "/api/v1";
/// A connection is there within this time or not at all.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
/// An answer that waits for nothing.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);
/// Bytes of an answer.
const ANSWER_SIZE_MAX: u64 = 64 << 20;

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The server said no, and why.
    #[error("{0}")]
    Refused(Problem),
    #[error("{server}: {cause}; is the server up? `sluice up` or `sluice server` starts one")]
    Unreachable { server: String, cause: String },
    #[error("{server}: the answer makes no sense ({cause}); is it a Sluice server of this release?")]
    Answer { server: String, cause: String },
}

/// Speaks to one server with one token.
#[derive(Clone)]
pub struct Client {
    agent: ureq::Agent,
    server: String,
    token: String,
}

impl fmt::Debug for Client {
    /// Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({})", self.server)
    }
}

impl Client {
    pub fn new(server: &str, token: &str) -> Client {
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT_TIME_MAX))
            .timeout_global(Some(ANSWER_TIME_MAX))
            .max_redirects(0)
            .user_agent(concat!("sluice/", env!("CARGO_PKG_VERSION")))
            .build()
            .new_agent();
        Client { agent, server: server.trim_end_matches('/').to_owned(), token: token.to_owned() }
    }

    /// The server's URL.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// The same server with another token.
    pub fn with_token(&self, token: &str) -> Client {
        Client { token: token.to_owned(), ..self.clone() }
    }

    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.finish(self.authorised(self.agent.get(self.url(path))).call())
    }

    pub fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, Failure> {
        self.finish(self.authorised(self.agent.post(self.url(path))).send(json(body)))
    }

    /// As `post`; the server answers a repetition under the same key with the first answer.
    pub fn post_once<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        key: &str,
    ) -> Result<T, Failure> {
        let request = self.authorised(self.agent.post(self.url(path))).header("Idempotency-Key", key);
        self.finish(request.send(json(body)))
    }

    /// A text in another format than JSON.
    pub fn post_text<T: DeserializeOwned>(&self, path: &str, kind: &str, body: &str) -> Result<T, Failure> {
        let request = self.authorised(self.agent.post(self.url(path)));
        self.finish(request.header("Content-Type", kind).send(body.as_bytes()))
    }

    pub fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.finish(self.authorised(self.agent.delete(self.url(path))).call())
    }

    /// All items of a list, page by page.
    pub fn list<T: DeserializeOwned>(&self, path: &str) -> Result<Vec<T>, Failure> {
        let mut items = Vec::new();
        self.each(path, |item| items.push(item))?;
        Ok(items)
    }

    /// Hands every item of a list to `take`, page by page.
    pub fn each<T: DeserializeOwned>(&self, path: &str, mut take: impl FnMut(T)) -> Result<(), Failure> {
        let separator = if path.contains('?') { '&' } else { '?' };
        let mut page: Page<T> = self.get(path)?;
        loop {
            page.items.into_iter().for_each(&mut take);
            let Some(next) = page.next else { return Ok(()) };
            page = self.get(&format!("{path}{separator}cursor={next}"))?;
        }
    }

    fn url(&self, path: &str) -> String {
        format!("{}{PREFIX}{path}", self.server)
    }

    fn authorised<B>(&self, request: ureq::RequestBuilder<B>) -> ureq::RequestBuilder<B> {
        request
            .header("Authorization", format!("Bearer {}", self.token))
            .header("Content-Type", "application/json")
    }

    fn finish<T: DeserializeOwned>(
        &self,
        answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<T, Failure> {
        let unreachable = |error: ureq::Error| Failure::Unreachable {
            server: self.server.clone(),
            cause: error.to_string(),
        };
        let makes_no_sense = |cause: String| Failure::Answer { server: self.server.clone(), cause };
        let mut answer = answer.map_err(unreachable)?;
        let status = answer.status();
        let bytes =
            answer.body_mut().with_config().limit(ANSWER_SIZE_MAX).read_to_vec().map_err(unreachable)?;
        if status.is_success() {
            return serde_json::from_slice(&bytes).map_err(|error| makes_no_sense(error.to_string()));
        }
        match serde_json::from_slice::<Problem>(&bytes) {
            Ok(problem) => Err(Failure::Refused(problem)),
            Err(_) => Err(makes_no_sense(format!("HTTP status {status}"))),
        }
    }
}

fn json(body: &impl Serialize) -> Vec<u8> {
    // The types of this crate always have a JSON form.
    serde_json::to_vec(body).unwrap_or_default()
}

impl Failure {
    /// Whether asking again later may help.
    pub fn is_temporary(&self) -> bool {
        match self {
            Failure::Unreachable { .. } => true,
            Failure::Refused(problem) => problem.status >= 500,
            Failure::Answer { .. } => false,
        }
    }
}

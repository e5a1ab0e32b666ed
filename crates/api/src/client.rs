//! A blocking client of the REST API, for `sluice` and for nodes.

mod https;
mod settings;
mod watch;

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Page;
use crate::problem::{Kind, Problem};

pub use https::{CA_VARIABLE, CheckAddress, NoUrl, ServerUrl, Web};
pub use settings::{
    ADMIN_FILE, Kept, NODE_FILE, SERVER_VARIABLE, Settings, SettingsError, canonical, data_folder, user_file,
};

/// Where `/api/v1` begins.
const PREFIX: &str = "/api/v1";
/// A connection is there within this time or not at all.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
/// An answer that waits for nothing.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);
/// Items of a page of a list that is read whole: the most.
const PAGE_LENGTH: u32 = 1000;
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
    /// It is not what the URL says, or cannot be known to be.
    #[error("{server}: {cause}")]
    Untrusted { server: String, cause: String },
    #[error("{server}: the answer makes no sense ({cause}); is it a Sluice server of this release?")]
    Answer { server: String, cause: String },
}

/// Speaks to one control plane with one token. It may have several servers: if one is away, another
/// is asked.
#[derive(Clone)]
pub struct Client {
    servers: Arc<Servers>,
    token: Arc<Bearer>,
    on_expiry: Option<OnExpiry>,
}

/// Is called with the moment at which the token expires, in milliseconds since 1970, for each
/// answer that says so.
type OnExpiry = Arc<dyn Fn(u64) + Send + Sync>;

/// The header of an answer to a token that expires soon: when, in milliseconds since 1970.
pub const EXPIRY_HEADER: &str = "sluice-token-expires-ms";

/// The name of a request, which the lines of the server's log have that are about it.
pub const REQUEST_ID_HEADER: &str = "x-request-id";

/// Gets a new token; none where there is none to be had.
type Renew = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// A token, and how to get another when it holds no more.
struct Bearer {
    text: Mutex<String>,
    renew: Option<Renew>,
}

impl Bearer {
    fn text(&self) -> String {
        self.text.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// True if there is another now than the one that was refused.
    fn renew(&self, refused: &str) -> bool {
        let Some(renew) = &self.renew else { return false };
        let mut text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        if *text == refused {
            let Some(new) = renew() else { return false };
            *text = new;
        }
        *text != refused
    }
}

/// URLs, and which of them answered last.
struct Servers {
    text: String,
    each: Vec<Server>,
    current: AtomicUsize,
}

struct Server {
    url: String,
    /// What paths are written behind.
    base: String,
    /// The connections to it, or the reason why there can be none.
    agent: Result<ureq::Agent, String>,
}

/// Whether a request may be sent again when it is not known what became of it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Repeat {
    Freely,
    /// Only if it was not sent, or the server says that nothing was done.
    UnlessSent,
}

type Answer = Result<ureq::http::Response<ureq::Body>, ureq::Error>;

impl fmt::Debug for Client {
    /// Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({})", self.servers.text)
    }
}

impl Client {
    /// `server` is one URL, or several with commas between.
    pub fn new(server: &str, token: &str) -> Client {
        let each = server.split(',').map(|url| Server::new(url.trim().trim_end_matches('/'))).collect();
        let servers = Servers { text: server.to_owned(), each, current: AtomicUsize::new(0) };
        Client { servers: Arc::new(servers), token: bearer(token, None), on_expiry: None }
    }

    /// The URL of the server that is asked first.
    pub fn server(&self) -> &str {
        &self.servers.at(self.servers.current.load(Ordering::Relaxed)).url
    }

    /// Returns a client of the same servers with another token.
    pub fn with_token(&self, token: &str) -> Client {
        Client { token: bearer(token, None), ..self.clone() }
    }

    /// Gets another token with `renew` when the server refuses the one that it has.
    pub fn renewing(self, renew: impl Fn() -> Option<String> + Send + Sync + 'static) -> Client {
        Client { token: bearer(&self.token.text(), Some(Box::new(renew))), ..self }
    }

    /// Has `told` called with the moment at which the token expires when the server says that this
    /// is soon.
    pub fn on_expiry(self, told: impl Fn(u64) + Send + Sync + 'static) -> Client {
        Client { on_expiry: Some(Arc::new(told)), ..self }
    }

    /// Passes on what an answer says of the token's end.
    fn note_expiry(&self, answer: &Answer) {
        let header = answer.as_ref().ok().and_then(|answer| answer.headers().get(EXPIRY_HEADER));
        let at_ms = header.and_then(|value| value.to_str().ok()).and_then(|text| text.parse().ok());
        if let Some((told, at_ms)) = self.on_expiry.as_ref().zip(at_ms) {
            told(at_ms);
        }
    }

    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.ask(path, Repeat::Freely, |agent, url| self.authorised(agent.get(url)).call())
    }

    /// What is no JSON, such as a document.
    pub fn get_bytes(&self, path: &str) -> Result<Vec<u8>, Failure> {
        let send = |agent: &ureq::Agent, url: String| self.authorised(agent.get(url)).call();
        self.ask_for(path, Repeat::Freely, finish_bytes, send)
    }

    pub fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, Failure> {
        let body = json(body);
        self.ask(path, Repeat::UnlessSent, |agent, url| self.authorised(agent.post(url)).send(&body))
    }

    pub fn patch<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, Failure> {
        let body = json(body);
        self.ask(path, Repeat::UnlessSent, |agent, url| self.authorised(agent.patch(url)).send(&body))
    }

    /// As `post`; the server answers a repetition under the same key with the first answer.
    pub fn post_once<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        key: &str,
    ) -> Result<T, Failure> {
        let body = json(body);
        self.ask(path, Repeat::Freely, |agent, url| {
            self.authorised(agent.post(url)).header("Idempotency-Key", key).send(&body)
        })
    }

    /// A text in another format than JSON.
    pub fn post_text<T: DeserializeOwned>(&self, path: &str, kind: &str, body: &str) -> Result<T, Failure> {
        self.ask(path, Repeat::UnlessSent, |agent, url| {
            self.authorised(agent.post(url)).header("Content-Type", kind).send(body.as_bytes())
        })
    }

    pub fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.ask(path, Repeat::Freely, |agent, url| self.authorised(agent.delete(url)).call())
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
        let path = match path.contains("limit=") {
            true => path.to_owned(),
            false => format!("{path}{separator}limit={PAGE_LENGTH}"),
        };
        let mut page: Page<T> = self.get(&path)?;
        loop {
            page.items.into_iter().for_each(&mut take);
            let Some(next) = page.next else { return Ok(()) };
            page = self.get(&format!("{path}&cursor={}", segment(&next)))?;
        }
    }

    /// Asks with the token, and once more with another if it holds no more.
    fn ask<T: DeserializeOwned>(
        &self,
        path: &str,
        repeat: Repeat,
        send: impl Fn(&ureq::Agent, String) -> Answer,
    ) -> Result<T, Failure> {
        self.ask_for(path, repeat, finish, send)
    }

    /// The same; `finish` makes of an answer of the server at a URL what is asked for.
    fn ask_for<T>(
        &self,
        path: &str,
        repeat: Repeat,
        finish: impl Fn(&str, Answer) -> Result<T, Failure>,
        send: impl Fn(&ureq::Agent, String) -> Answer,
    ) -> Result<T, Failure> {
        let token = self.token.text();
        let answer = self.ask_each(path, repeat, &finish, &send);
        match &answer {
            Err(Failure::Refused(problem)) if problem.status == 401 && self.token.renew(&token) => {
                self.ask_each(path, repeat, &finish, &send)
            }
            _ => answer,
        }
    }

    /// Asks one server after the other until one does not refuse for being unable.
    fn ask_each<T>(
        &self,
        path: &str,
        repeat: Repeat,
        finish: impl Fn(&str, Answer) -> Result<T, Failure>,
        send: impl Fn(&ureq::Agent, String) -> Answer,
    ) -> Result<T, Failure> {
        let mut tries = self.servers.each.len();
        loop {
            let current = self.servers.current.load(Ordering::Relaxed);
            let server = self.servers.at(current);
            tries -= 1;
            match &server.agent {
                Ok(agent) => {
                    let answer = send(agent, format!("{}{PREFIX}{path}", server.base));
                    self.note_expiry(&answer);
                    if tries == 0 || !elsewhere(&answer, repeat) {
                        return finish(&server.url, answer);
                    }
                }
                Err(cause) if tries == 0 => {
                    return Err(Failure::Untrusted { server: server.url.clone(), cause: cause.clone() });
                }
                Err(_) => {}
            }
            self.servers.current.store(current + 1, Ordering::Relaxed);
        }
    }

    fn authorised<B>(&self, request: ureq::RequestBuilder<B>) -> ureq::RequestBuilder<B> {
        request
            .header("Authorization", format!("Bearer {}", self.token.text()))
            .header("Content-Type", "application/json")
    }
}

/// A name as one part of a path, whatever signs it has.
pub fn segment(name: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    name.bytes().map(encode).collect()
}

fn bearer(token: &str, renew: Option<Renew>) -> Arc<Bearer> {
    Arc::new(Bearer { text: Mutex::new(token.to_owned()), renew })
}

impl Servers {
    fn at(&self, index: usize) -> &Server {
        &self.each[index % self.each.len()]
    }
}

impl Server {
    fn new(url: &str) -> Server {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT_TIME_MAX))
            .timeout_global(Some(ANSWER_TIME_MAX))
            .max_redirects(0)
            .user_agent(concat!("sluice/", env!("CARGO_PKG_VERSION")))
            .build();
        let (base, agent) = match url.parse::<ServerUrl>() {
            Ok(parsed) => (parsed.base.clone(), parsed.agent(config)),
            Err(NoUrl) => {
                (url.to_owned(), Err("it is no URL of a server, such as https://control:7580".to_owned()))
            }
        };
        Server { url: url.to_owned(), base, agent }
    }
}

/// Whether another server should be asked.
fn elsewhere(answer: &Answer, repeat: Repeat) -> bool {
    match answer {
        Ok(answer) => answer.status() == 503,
        Err(_) if repeat == Repeat::Freely => true,
        Err(error) if https::explained(error).is_some() => true,
        Err(ureq::Error::Io(error)) => error.kind() == std::io::ErrorKind::ConnectionRefused,
        Err(error) => matches!(
            error,
            ureq::Error::HostNotFound
                | ureq::Error::ConnectionFailed
                | ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve)
        ),
    }
}

/// What the server answered with: a success, whose body is still to be read.
fn success(server: &str, answer: Answer) -> Result<ureq::Body, Failure> {
    let mut answer = answer.map_err(|error| unreachable(server, &error))?;
    if answer.status().is_success() {
        return Ok(answer.into_body());
    }
    let bytes = read(server, answer.body_mut())?;
    match serde_json::from_slice::<Problem>(&bytes) {
        // Its operators look for the cause in the log.
        Ok(mut problem) if problem.is(Kind::Internal) => {
            let id = answer.headers().get(REQUEST_ID_HEADER).and_then(|id| id.to_str().ok());
            id.iter().for_each(|id| problem.detail += &format!(" (request {id} in the server's log)"));
            Err(Failure::Refused(problem))
        }
        Ok(problem) => Err(Failure::Refused(problem)),
        Err(_) => Err(makes_no_sense(server, format!("HTTP status {}", answer.status()))),
    }
}

fn finish<T: DeserializeOwned>(server: &str, answer: Answer) -> Result<T, Failure> {
    let bytes = read(server, &mut success(server, answer)?)?;
    serde_json::from_slice(&bytes).map_err(|error| makes_no_sense(server, error.to_string()))
}

fn finish_bytes(server: &str, answer: Answer) -> Result<Vec<u8>, Failure> {
    read(server, &mut success(server, answer)?)
}

fn read(server: &str, body: &mut ureq::Body) -> Result<Vec<u8>, Failure> {
    let bytes = body.with_config().limit(ANSWER_SIZE_MAX).read_to_vec();
    bytes.map_err(|error| unreachable(server, &error))
}

fn unreachable(server: &str, error: &ureq::Error) -> Failure {
    match https::explained(error) {
        Some(cause) => Failure::Untrusted { server: server.to_owned(), cause },
        None => Failure::Unreachable { server: server.to_owned(), cause: in_words(error) },
    }
}

/// Why there is no answer, for people.
fn in_words(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => {
            format!("no connection within {} s", CONNECT_TIME_MAX.as_secs())
        }
        // Streams of events have another limit than requests.
        ureq::Error::Timeout(_) => "no answer in time".to_owned(),
        _ => error.to_string(),
    }
}

fn makes_no_sense(server: &str, cause: String) -> Failure {
    Failure::Answer { server: server.to_owned(), cause }
}

fn json(body: &impl Serialize) -> Vec<u8> {
    // The types of this crate always have a JSON form.
    serde_json::to_vec(body).unwrap_or_default()
}

impl Failure {
    /// Whether asking again later may help: the server was away, unable, or asked too often.
    pub fn is_temporary(&self) -> bool {
        match self {
            Failure::Unreachable { .. } => true,
            Failure::Refused(problem) => problem.status >= 500 || self.is_too_many(),
            Failure::Untrusted { .. } | Failure::Answer { .. } => false,
        }
    }

    /// Whether too many requests have come, be it with this token or from an address whose tokens
    /// hold no more.
    pub fn is_too_many(&self) -> bool {
        matches!(self, Failure::Refused(problem) if problem.is(Kind::TooMany))
    }
}

//! The API server of the cluster: a few requests, and a watch.
//!
//! Only a dozen kinds of request are made, so this is the HTTP client of `sluice-api` and JSON
//! instead of a Kubernetes client library with all resource types.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use sluice_api::client::ServerUrl;

/// The folder in which a pod finds the token and the authority of its cluster.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// An answer that waits for nothing.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);
/// The API server ends a watch after this time, and a new one continues.
pub(crate) const WATCH_S: u64 = 30;
/// A watch that the server has not ended by then is on a broken connection.
const WATCH_TIME_MAX: Duration = Duration::from_secs(WATCH_S + 15);
/// Bytes of an answer: a list of many pods.
const ANSWER_SIZE_MAX: u64 = 256 << 20;

/// How a patch is written.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patch {
    Merge,
    StrategicMerge,
    /// Server-side apply: of lists it replaces the items that were applied before.
    Apply,
}

/// The reason why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    #[error("the API server refused {path}: {message} (HTTP status {status})")]
    Refused { path: String, status: u16, message: String, missing: Option<String> },
    #[error("the API server did not answer {path}: {cause}")]
    Unreachable { path: String, cause: String },
}

impl ApiError {
    pub(crate) fn has_status(&self, wanted: u16) -> bool {
        matches!(self, ApiError::Refused { status, .. } if *status == wanted)
    }

    /// Says whether the API server itself answered that it has no object of this name. Anything
    /// between it and this process, and a server without the resource, may answer 404, too.
    pub(crate) fn is_missing(&self, name: &str) -> bool {
        matches!(self, ApiError::Refused { missing: Some(missing), .. } if missing == name)
    }
}

/// Asks the API server as a service account.
#[derive(Clone)]
pub(crate) struct Api {
    base: String,
    agent: ureq::Agent,
    /// Read for each request: the kubelet replaces the token before it expires.
    token_file: PathBuf,
}

impl Api {
    /// The cluster in which this process runs as a pod.
    pub(crate) fn in_cluster() -> Result<Api, String> {
        let variable =
            |name: &str| std::env::var(name).map_err(|_| format!("{name} is not set: is this a pod?"));
        let (host, port) = (variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?);
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        let folder = Path::new(SERVICE_ACCOUNT);
        Api::new(&format!("https://{host}:{port}"), &folder.join("ca.crt"), &folder.join("token"))
    }

    pub(crate) fn new(url: &str, authorities: &Path, token_file: &Path) -> Result<Api, String> {
        let parsed: ServerUrl =
            url.parse().map_err(|_| format!("{url:?} is not the URL of an API server"))?;
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(ANSWER_TIME_MAX))
            .max_redirects(0)
            .user_agent(concat!("sluice-kubernetes/", env!("CARGO_PKG_VERSION")))
            .build();
        let agent = parsed.agent_of_authorities(config, authorities)?;
        Ok(Api { base: parsed.base, agent, token_file: token_file.to_owned() })
    }

    pub(crate) fn get(&self, path: &str) -> Result<Value, ApiError> {
        let request = self.authorised(path, self.agent.get(self.url(path)))?;
        answer(path, request.call())
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Result<Value, ApiError> {
        let request = self.authorised(path, self.agent.post(self.url(path)))?;
        let request = request.header("Content-Type", "application/json");
        answer(path, request.send(body.to_string().as_bytes()))
    }

    pub(crate) fn patch(&self, path: &str, kind: Patch, body: &Value) -> Result<Value, ApiError> {
        let kind = match kind {
            Patch::Merge => "application/merge-patch+json",
            Patch::StrategicMerge => "application/strategic-merge-patch+json",
            Patch::Apply => "application/apply-patch+yaml",
        };
        let options = if kind.ends_with("yaml") { "?fieldManager=sluice&force=true" } else { "" };
        let request = self.authorised(path, self.agent.patch(format!("{}{options}", self.url(path))))?;
        answer(path, request.header("Content-Type", kind).send(body.to_string().as_bytes()))
    }

    pub(crate) fn delete(&self, path: &str) -> Result<Value, ApiError> {
        let request = self.authorised(path, self.agent.delete(self.url(path)))?;
        answer(path, request.call())
    }

    /// The events of a watch, one JSON object on each line, until the API server ends it.
    pub(crate) fn watch(
        &self,
        path: &str,
    ) -> Result<impl Iterator<Item = std::io::Result<String>>, ApiError> {
        let request = self.authorised(path, self.agent.get(self.url(path)))?;
        let request = request.config().timeout_global(Some(WATCH_TIME_MAX)).build();
        let response = succeeded(path, request.call())?;
        Ok(BufReader::new(response.into_with_config().limit(u64::MAX).reader()).lines())
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    fn authorised<B>(
        &self,
        path: &str,
        request: ureq::RequestBuilder<B>,
    ) -> Result<ureq::RequestBuilder<B>, ApiError> {
        let token = std::fs::read_to_string(&self.token_file).map_err(|error| ApiError::Unreachable {
            path: path.to_owned(),
            cause: format!("{}: {error}", self.token_file.display()),
        })?;
        Ok(request.header("Authorization", format!("Bearer {}", token.trim())))
    }
}

type Answer = Result<ureq::http::Response<ureq::Body>, ureq::Error>;

fn succeeded(path: &str, answer: Answer) -> Result<ureq::Body, ApiError> {
    let response = answer.map_err(|error| unreachable(path, error.to_string()))?;
    let status = response.status();
    if status.is_success() {
        return Ok(response.into_body());
    }
    let read = response.into_body().into_with_config().limit(1 << 20).read_to_vec();
    let problem: Value = read.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
    let message = problem["message"].as_str().unwrap_or("no reason given").to_owned();
    let is_missing = status == 404 && problem["kind"] == "Status" && problem["reason"] == "NotFound";
    let missing = problem["details"]["name"].as_str().filter(|_| is_missing).map(str::to_owned);
    Err(ApiError::Refused { path: path.to_owned(), status: status.as_u16(), message, missing })
}

fn answer(path: &str, answer: Answer) -> Result<Value, ApiError> {
    let body = succeeded(path, answer)?;
    let bytes = body.into_with_config().limit(ANSWER_SIZE_MAX).read_to_vec();
    let bytes = bytes.map_err(|error| unreachable(path, error.to_string()))?;
    serde_json::from_slice(&bytes).map_err(|error| unreachable(path, error.to_string()))
}

fn unreachable(path: &str, cause: String) -> ApiError {
    ApiError::Unreachable { path: path.to_owned(), cause }
}

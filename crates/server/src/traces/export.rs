//! Sends traces by OTLP 1 over HTTP, in JSON (opentelemetry.io, "OTLP Specification", "OTLP/HTTP";
//! the messages are those of `opentelemetry/proto/trace/v1/trace.proto`).

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use axum::http::{Request, Uri};
use serde_json::{Value, json};
use sluice_api::client::Web;

use super::Trace;

/// Traces that wait to be sent.
const WAITING_MAX: usize = 4096;
/// Traces of one request.
const BATCH_MAX: usize = 256;
/// A trace waits this long for others to be sent with it.
const GATHERED_FOR: Duration = Duration::from_secs(1);
/// A collector that refuses is mentioned this often.
const SAY_EVERY: Duration = Duration::from_secs(60);
/// `SPAN_KIND_INTERNAL` and `STATUS_CODE_ERROR` of the protocol.
const KIND_INTERNAL: u32 = 1;
const STATUS_ERROR: u32 = 2;

/// Starts a thread that sends what it gets until the sender is dropped.
pub(super) fn start(collector: &str) -> Result<SyncSender<Trace>, String> {
    let wrong = |why: &str| format!("--otlp {collector}: {why}, such as http://127.0.0.1:4318");
    let uri: Uri = collector.parse().map_err(|_| wrong("it is no URL of a collector"))?;
    let has_host = uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
    if !matches!(uri.scheme_str(), Some("http" | "https")) || !has_host {
        return Err(wrong("it is no URL of a collector that takes OTLP over HTTP"));
    }
    let url = format!("{}/v1/traces", collector.trim_end_matches('/'));
    let web = Web::new()?;
    let (sender, waiting) = sync_channel(WAITING_MAX);
    let run = move || send_all(&web, &url, &waiting);
    std::thread::Builder::new().name("traces".into()).spawn(run).map_err(|error| error.to_string())?;
    Ok(sender)
}

fn send_all(web: &Web, url: &str, waiting: &Receiver<Trace>) {
    let mut said: Option<Instant> = None;
    while let Ok(first) = waiting.recv() {
        let mut batch = vec![first];
        let deadline = Instant::now() + GATHERED_FOR;
        let is_last = loop {
            if batch.len() >= BATCH_MAX {
                break false;
            }
            match waiting.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(trace) => batch.push(trace),
                Err(RecvTimeoutError::Timeout) => break false,
                Err(RecvTimeoutError::Disconnected) => break true,
            }
        };
        if let Err(why) = send(web, url, &batch)
            && said.is_none_or(|said| said.elapsed() > SAY_EVERY)
        {
            said = Some(Instant::now());
            tracing::warn!("the collector at {url} does not take traces: {why}");
        }
        if is_last {
            return;
        }
    }
}

fn send(web: &Web, url: &str, batch: &[Trace]) -> Result<(), String> {
    let request = Request::post(url).header("content-type", "application/json");
    let request = request.body(body(batch).to_string().into_bytes()).map_err(|error| error.to_string())?;
    match web.status_of(request)? {
        200..300 => Ok(()),
        status => Err(format!("it answered with status {status}")),
    }
}

fn body(batch: &[Trace]) -> Value {
    let resource =
        [text("service.name", "sluice-server"), text("service.version", env!("CARGO_PKG_VERSION"))];
    let spans: Vec<Value> = batch.iter().flat_map(spans).collect();
    json!({ "resourceSpans": [{
        "resource": { "attributes": resource },
        "scopeSpans": [{ "scope": { "name": "sluice.lease" }, "spans": spans }],
    }] })
}

/// Returns the span of a lease, and the spans of what it did as far as that is known.
fn spans(trace: &Trace) -> Vec<Value> {
    let id = format!("{:032x}", super::id_of(trace.lease, trace.requested_ms));
    let root = format!("{:016x}", fastrand::u64(1..));
    let span = |name: &str, own: String, parent: &str, from_ms: u64, until_ms: u64| {
        json!({
            "traceId": id, "spanId": own, "parentSpanId": parent, "name": name, "kind": KIND_INTERNAL,
            "startTimeUnixNano": nanos(from_ms), "endTimeUnixNano": nanos(until_ms),
        })
    };
    let child = |name: &str, from_ms: u64, until_ms: u64| {
        span(name, format!("{:016x}", fastrand::u64(1..)), &root, from_ms, until_ms)
    };
    let mut whole = span("lease", root.clone(), "", trace.requested_ms, trace.end_ms());
    whole["attributes"] = json!([
        { "key": "sluice.lease", "value": { "intValue": trace.lease.to_string() } },
        text("sluice.tenant", &trace.tenant),
        text("sluice.tier", &trace.tier),
        text("sluice.pool", &trace.pool),
    ]);
    if trace.ended_ms.is_some() {
        whole["status"] = json!({ "code": STATUS_ERROR, "message": "it ended without a kernel" });
    }
    let mut all = vec![whole, child("queue", trace.requested_ms, trace.granted_ms)];
    if let Some(running_ms) = trace.running_ms {
        all.push(child("claim", trace.granted_ms, running_ms));
        all.extend(trace.kernel_ms.map(|kernel_ms| child("start", running_ms, kernel_ms)));
    }
    all
}

fn text(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

/// Nanoseconds since 1970, as text: the JSON mapping writes 64-bit numbers so.
fn nanos(ms: u64) -> String {
    (u128::from(ms) * 1_000_000).to_string()
}

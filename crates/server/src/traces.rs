//! Traces of leases, from the request to the first kernel, for a collector of OpenTelemetry.
//!
//! ```text
//!  lease ─┬─ queue   from the request to the grant
//!         ├─ claim   until a program has the lease on its node
//!         └─ start   until the node reports a kernel of it
//! ```
//! The times are those of the server's clock: the last span ends when the report arrives, up to one
//! report later than the kernel. A trace is sent when it is complete, or when its lease ends
//! without a kernel. Nothing waits for the collector, and what it does not take is dropped.

mod export;

use std::collections::BTreeMap;
use std::sync::mpsc::SyncSender;
use std::sync::{Mutex, PoisonError};

use sluice_api::lease::{LeaseId, LeaseState};
use sluice_api::node::SessionReport;

use crate::fleet::LeaseRecord;
use crate::store::Write;

/// Leases without a kernel whose traces are kept. Further ones have no trace.
const OPEN_MAX: usize = 100_000;

/// The id of a lease's trace: everything that knows when the lease was requested finds its trace.
pub(crate) fn id_of(lease: LeaseId, requested_ms: u64) -> u128 {
    let hash = blake3::hash(format!("trace of lease {lease}, requested at {requested_ms}").as_bytes());
    // All zeros are no trace's id (W3C Trace Context).
    hash.as_bytes()[..16].iter().fold(0, |id, &byte| id << 8 | u128::from(byte)).max(1)
}

/// Collects traces and hands them to a thread that sends them.
pub(crate) struct Traces {
    open: Mutex<BTreeMap<LeaseId, Trace>>,
    complete: SyncSender<Trace>,
}

/// What is known of one lease.
#[derive(Clone, Debug, Default, PartialEq)]
struct Trace {
    lease: LeaseId,
    tenant: String,
    tier: String,
    pool: String,
    requested_ms: u64,
    granted_ms: u64,
    running_ms: Option<u64>,
    /// When a report had a kernel of it.
    kernel_ms: Option<u64>,
    /// When it ended, if it did so without a kernel.
    ended_ms: Option<u64>,
}

impl Traces {
    /// Starts the thread that sends traces to the collector at `http://HOST:PORT`.
    pub(crate) fn to(collector: &str) -> Result<Traces, String> {
        let complete = export::start(collector)?;
        Ok(Traces { open: Mutex::default(), complete })
    }

    /// Copies what a transaction writes of first attempts, before it is written.
    pub(crate) fn of_writes(writes: &[Write]) -> Vec<LeaseRecord> {
        let of_first = |write: &Write| match write {
            Write::Lease(lease) if lease.attempt == 1 => Some((**lease).clone()),
            _ => None,
        };
        writes.iter().filter_map(of_first).collect()
    }

    /// Notes what was written of leases.
    pub(crate) fn written(&self, leases: Vec<LeaseRecord>, now_ms: u64) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        for lease in leases {
            match lease.state {
                LeaseState::Granted | LeaseState::Running if !open.contains_key(&lease.id) => {
                    // One that runs was granted before this server led: its trace would have a gap.
                    if lease.state == LeaseState::Granted && open.len() < OPEN_MAX {
                        open.insert(lease.id, Trace::of(&lease, now_ms));
                    }
                }
                LeaseState::Running => {
                    if let Some(trace) = open.get_mut(&lease.id) {
                        trace.running_ms.get_or_insert(now_ms);
                    }
                }
                LeaseState::Ended => {
                    if let Some(trace) = open.remove(&lease.id) {
                        self.send(Trace { ended_ms: Some(lease.ended_at_ms.unwrap_or(now_ms)), ..trace });
                    }
                }
                LeaseState::Queued | LeaseState::Granted | LeaseState::Preempting => {}
            }
        }
    }

    /// Notes the leases whose sessions have launched kernels by a node's report.
    pub(crate) fn reported(&self, sessions: &[SessionReport], now_ms: u64) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        for session in sessions.iter().filter(|session| session.kernels > 0) {
            if let Some(trace) = open.remove(&session.lease) {
                self.send(Trace { kernel_ms: Some(now_ms), ..trace });
            }
        }
    }

    /// A trace that finds no room is dropped: the collector is slower than leases start.
    fn send(&self, trace: Trace) {
        let _ = self.complete.try_send(trace);
    }
}

impl Trace {
    fn of(lease: &LeaseRecord, now_ms: u64) -> Trace {
        Trace {
            lease: lease.id,
            tenant: lease.tenant.to_string(),
            tier: lease.ask.tier.name().to_owned(),
            pool: lease.ask.pool.clone().unwrap_or_default(),
            requested_ms: lease.created_at_ms,
            granted_ms: lease.granted_at_ms.unwrap_or(now_ms),
            ..Trace::default()
        }
    }

    /// The moment up to which something is known.
    fn end_ms(&self) -> u64 {
        self.kernel_ms.or(self.ended_ms).or(self.running_ms).unwrap_or(self.granted_ms)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write as _};
    use std::net::TcpListener;

    use serde_json::{Value, json};
    use sluice_api::lease::NewLease;

    use super::*;

    /// A collector that takes one request and returns its body.
    fn collector() -> (String, std::thread::JoinHandle<Value>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let taken = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream);
            let (mut line, mut length, mut first) = (String::new(), 0, String::new());
            while reader.read_line(&mut line).unwrap() > 2 {
                if first.is_empty() {
                    first = line.trim().to_owned();
                }
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                line.clear();
            }
            assert_eq!(first, "POST /v1/traces HTTP/1.1");
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
            reader.get_mut().write_all(answer.as_bytes()).unwrap();
            serde_json::from_slice(&body).unwrap()
        });
        (url, taken)
    }

    fn lease(state: LeaseState) -> LeaseRecord {
        let mut lease =
            LeaseRecord::requested(7, "acme".parse().unwrap(), NewLease::whole(1), String::new(), 1_000);
        (lease.attempt, lease.state, lease.granted_at_ms) = (1, state, Some(3_000));
        lease
    }

    fn session(kernels: u64) -> SessionReport {
        serde_json::from_value(json!({
            "session": 1, "lease": 7, "name": "train.py", "process": 1, "peer": "", "gpu": 0, "share_ppm": 1,
            "hard_cap": false, "memory": 1, "memory_used": 0, "kernels": kernels, "bytes_in": 0, "bytes_out": 0,
            "busy_us": 0, "age_ms": 0,
        }))
        .unwrap()
    }

    #[test]
    fn a_lease_is_a_trace_from_its_request_to_its_first_kernel() {
        let (url, taken) = collector();
        let traces = Traces::to(&url).unwrap();
        traces.written(vec![lease(LeaseState::Granted)], 3_000);
        traces.written(vec![lease(LeaseState::Running)], 4_000);
        traces.reported(&[session(0)], 4_500);
        traces.reported(&[session(3)], 5_000);
        let sent = taken.join().unwrap();
        let spans = sent["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap();
        let times = |name: &str| {
            let span = spans.iter().find(|span| span["name"] == name).unwrap();
            ["startTimeUnixNano", "endTimeUnixNano"].map(|time| span[time].as_str().unwrap().to_owned())
        };
        assert_eq!(times("lease"), ["1000000000", "5000000000"]);
        assert_eq!(times("queue"), ["1000000000", "3000000000"]);
        assert_eq!(times("claim"), ["3000000000", "4000000000"]);
        assert_eq!(times("start"), ["4000000000", "5000000000"]);
        let root = spans.iter().find(|span| span["name"] == "lease").unwrap();
        let is_child =
            |span: &&Value| span["parentSpanId"] == root["spanId"] && span["traceId"] == root["traceId"];
        assert_eq!((spans.len(), spans.iter().filter(is_child).count()), (4, 3));
        assert!(!sent.to_string().contains("train.py"), "the name of a program is its tenant's");
        assert!(traces.open.lock().unwrap().is_empty());
    }

    #[test]
    fn a_lease_that_ends_without_a_kernel_is_a_trace_with_an_error() {
        let (url, taken) = collector();
        let traces = Traces::to(&url).unwrap();
        traces.written(vec![lease(LeaseState::Granted)], 3_000);
        traces.written(vec![LeaseRecord { ended_at_ms: Some(9_000), ..lease(LeaseState::Ended) }], 9_000);
        let sent = taken.join().unwrap();
        let spans = sent["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap();
        let root = spans.iter().find(|span| span["name"] == "lease").unwrap();
        assert_eq!((&root["endTimeUnixNano"], &root["status"]["code"]), (&json!("9000000000"), &json!(2)));
    }

    #[test]
    fn a_collector_is_an_http_url() {
        for wrong in ["collector:4318", "grpc://collector:4317", "http://", "http://user:pw@collector"] {
            assert!(Traces::to(wrong).is_err(), "{wrong}");
        }
    }
}

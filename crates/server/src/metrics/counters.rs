//! What has happened since this server was started. Of leases it is counted when it is in the
//! database, from what was written there.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::exemplar::HistogramWithExemplars;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use sluice_api::lease::LeaseId;

use crate::fleet::LeaseRecord;
use crate::store::Write;
use crate::traces;

/// Tenants, pools and tiers whose waits are counted separately. Those of all others are counted
/// together, as [`OTHERS`].
const WAITS_MAX: usize = 1_000;
/// No tenant has this name: it begins with a parenthesis.
const OTHERS: &str = "(others)";
/// The pool of requests that name none.
const ANY_POOL: &str = "(any)";

/// Upper bounds of waits, in seconds: from a grant at once to a day.
const WAIT_BUCKETS: [f64; 12] =
    [0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 10_800.0, 21_600.0, 43_200.0, 86_400.0];
/// Upper bounds of what one look at the queue, or one request, takes.
const WORK_BUCKETS: [f64; 11] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Waited {
    tenant: String,
    pool: String,
    tier: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Happened {
    event: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Requested {
    method: &'static str,
    route: String,
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Routed {
    route: String,
}

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// The lease that was counted last in a bucket: its number, and the id of its trace if there are
/// traces.
type Exemplar = Vec<(&'static str, String)>;
type WaitHistogram = HistogramWithExemplars<Exemplar>;

/// The counters of one server; a clone counts into the same ones.
#[derive(Debug)]
pub(crate) struct Counters {
    waits: Family<Waited, WaitHistogram, fn() -> WaitHistogram>,
    /// Those that have a histogram of their own.
    waited: Mutex<HashSet<Waited>>,
    estimate_errors: Histogram,
    decisions: Histogram,
    events: Family<Happened, Counter>,
    requests: Family<Requested, Counter>,
    request_times: Histograms<Routed>,
}

impl Default for Counters {
    fn default() -> Counters {
        let of_waits: fn() -> Histogram = || Histogram::new(WAIT_BUCKETS);
        let of_work: fn() -> Histogram = || Histogram::new(WORK_BUCKETS);
        Counters {
            waits: Family::new_with_constructor(|| WaitHistogram::new(WAIT_BUCKETS.into_iter())),
            waited: Mutex::default(),
            estimate_errors: of_waits(),
            decisions: of_work(),
            events: Family::default(),
            requests: Family::default(),
            request_times: Family::new_with_constructor(of_work),
        }
    }
}

impl Counters {
    pub(super) fn register(&self, registry: &mut Registry) {
        let help = "Time from the request for a lease to its first grant";
        registry.register_with_unit("sluice_lease_wait", help, Unit::Seconds, self.waits.clone());
        let help = "How far off the first estimate of a lease's start was";
        registry.register_with_unit(
            "sluice_estimate_error",
            help,
            Unit::Seconds,
            self.estimate_errors.clone(),
        );
        let help = "Time that the scheduler takes to decide about the queue once";
        registry.register_with_unit("sluice_decision", help, Unit::Seconds, self.decisions.clone());
        let help = "Time until the answer to a request begins, by route";
        registry.register_with_unit("sluice_http_request", help, Unit::Seconds, self.request_times.clone());
        let help = "What became of leases: requested, granted, grown, preempted, requeued, ended";
        registry.register("sluice_lease_events", help, self.events.clone());
        let help = "Requests that were answered, by route and status";
        registry.register("sluice_http_requests", help, self.requests.clone());
    }

    pub(crate) fn decided(&self, took: Duration) {
        self.decisions.observe(took.as_secs_f64());
    }

    pub(crate) fn answered(&self, method: &'static str, route: &str, status: u16, took: Duration) {
        self.requests.get_or_create(&Requested { method, route: route.to_owned(), status }).inc();
        self.request_times.get_or_create(&Routed { route: route.to_owned() }).observe(took.as_secs_f64());
    }

    /// Notes what a transaction says of leases; the answer is to be counted once it is in the
    /// database. With `traced`, leases have traces.
    pub(crate) fn of_batch(&self, writes: &[Write], traced: bool) -> Batch {
        let leases: BTreeMap<LeaseId, &LeaseRecord> = writes
            .iter()
            .filter_map(|write| match write {
                Write::Lease(lease) => Some((lease.id, &**lease)),
                _ => None,
            })
            .collect();
        let mut batch = Batch::default();
        for write in writes {
            match write {
                Write::EstimateError(error) => batch.errors_ms.push(error.error_ms),
                Write::Audit(entry, _) => {
                    let Some(event) = entry.action.strip_prefix("lease.") else { continue };
                    batch.events.push(event.to_owned());
                    let lease = entry.subject.parse().ok().and_then(|id: LeaseId| leases.get(&id));
                    // Of a later attempt it is not known since when it waits.
                    let first = lease.filter(|lease| event == "granted" && lease.attempt == 1);
                    if let Some((lease, granted_at_ms)) =
                        first.and_then(|lease| Some((lease, lease.granted_at_ms?)))
                    {
                        let waited = Waited {
                            tenant: lease.tenant.to_string(),
                            pool: lease.ask.pool.clone().unwrap_or_else(|| ANY_POOL.into()),
                            tier: lease.ask.tier.name().to_owned(),
                        };
                        let mut exemplar = vec![("lease", lease.id.to_string())];
                        if traced {
                            let id = traces::id_of(lease.id, lease.created_at_ms);
                            exemplar.push(("trace_id", format!("{id:032x}")));
                        }
                        let waited_ms = granted_at_ms.saturating_sub(lease.created_at_ms);
                        batch.waits_ms.push((waited, waited_ms, exemplar));
                    }
                }
                _ => {}
            }
        }
        batch
    }

    pub(crate) fn written(&self, batch: Batch) {
        for error_ms in batch.errors_ms {
            self.estimate_errors.observe(seconds(error_ms));
        }
        for event in batch.events {
            self.events.get_or_create(&Happened { event }).inc();
        }
        for (waited, ms, exemplar) in batch.waits_ms {
            let histogram = self.waits.get_or_create_owned(&self.told_apart(waited));
            histogram.observe(seconds(ms), Some(exemplar), Some(SystemTime::now()));
        }
    }

    /// These labels, or those of all others once there are too many.
    fn told_apart(&self, waited: Waited) -> Waited {
        let mut known = self.waited.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() < WAITS_MAX || known.contains(&waited) {
            known.insert(waited.clone());
            return waited;
        }
        Waited { tenant: OTHERS.into(), pool: OTHERS.into(), tier: waited.tier }
    }
}

/// What one transaction says of leases.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    waits_ms: Vec<(Waited, u64, Exemplar)>,
    errors_ms: Vec<u64>,
    events: Vec<String>,
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_tenants_share_the_last_series() {
        let counters = Counters::default();
        let waited =
            |tenant: usize| Waited { tenant: tenant.to_string(), pool: "p".into(), tier: "basic".into() };
        for tenant in 0..2 * WAITS_MAX {
            let waits_ms = vec![(waited(tenant), 1_000, vec![("lease", tenant.to_string())])];
            counters.written(Batch { waits_ms, ..Batch::default() });
        }
        let mut registry = Registry::default();
        counters.register(&mut registry);
        let page = sluice_metrics::Format::Prometheus.encode(&registry).unwrap();
        let series = page.lines().filter(|line| line.starts_with("sluice_lease_wait_seconds_count{")).count();
        assert_eq!(series, WAITS_MAX + 1);
        assert!(!page.contains("# {"), "the older format has no exemplars");
        let page = sluice_metrics::Format::OpenMetrics.encode(&registry).unwrap();
        let of_first =
            page.lines().find(|line| line.contains("tenant=\"0\"") && line.contains("# {")).unwrap();
        assert!(of_first.contains("le=\"1.0\"") && of_first.contains("# {lease=\"0\"} 1.0 "), "{of_first}");
        assert_eq!(counters.told_apart(waited(0)), waited(0), "who has a series keeps it");
        assert_eq!(counters.told_apart(waited(WAITS_MAX)).tenant, OTHERS);
    }
}

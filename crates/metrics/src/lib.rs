//! Metrics in the OpenMetrics text format: how a daemon declares, encodes and serves them.
//!
//! ```text
//!  Prometheus ── GET /metrics ──▶ Exporter ──▶ Source::registry ──▶ Format::encode ──▶ text
//! ```
//! A daemon keeps no copy of what it already counts elsewhere. At each scrape its [`Source`] takes
//! a snapshot, and a [`Collector`](prometheus_client::collector::Collector) writes that down with a
//! [`Page`]: there is one set of numbers, and a lease that has ended leaves no series behind.

mod certificate;
mod exporter;
mod format;
mod page;

pub use certificate::expiry_s;
pub use exporter::{Exporter, ExporterConfig, Source};
pub use format::Format;
pub use page::{Histogram, Metric, Page};

//! What a node serves at `/metrics`: its GPUs ([`cards`]), its leases ([`leases`]) and itself.
//!
//! Every number is one that the node counts anyway. A scrape copies them under the registry's lock,
//! for as long as `sluice sessions` takes, and writes the text without it.

mod cards;
mod leases;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry as Metrics;
use sluice_metrics::{Metric, Page, Source, expiry_s};
use sluice_transport::tls::ServerIdentity;
use sluice_worker_link::health::Figures;

use crate::admission::Places;
use crate::config::NodeConfig;
use crate::registry::Registry;
use crate::registry::readings::Readings;

const BUILD: Metric = Metric::gauge("sluice_build_info", "The release that serves this page: 1");
const CONNECTIONS: Metric =
    Metric::gauge("sluice_node_connections", "Connections to the node, of programs and of leases");
const UNDELIVERED: Metric = Metric::gauge(
    "sluice_node_journal_undelivered_records",
    "Usage records that the server has not confirmed",
);
const CLOSED: Metric = Metric::gauge(
    "sluice_node_journal_full",
    "1 while the disk takes no usage records and the node takes no leases",
);
const CERTIFICATE: Metric = Metric::gauge(
    "sluice_certificate_expiry_timestamp",
    "When the certificate that is shown to programs ends, since 1970",
)
.of("seconds");
const OMITTED: Metric = Metric::gauge(
    "sluice_node_leases_omitted",
    "Leases without series on this page, because there are too many for one scrape",
);

/// The name under which a node's series are known: as the server knows the node, or else the
/// machine's.
pub(crate) fn name_of(config: &NodeConfig) -> String {
    let host = || std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
    config.join.as_ref().map_or_else(host, |join| join.name.clone())
}

/// Answers scrapes of a node.
#[derive(Debug)]
pub(crate) struct NodeMetrics {
    node: String,
    registry: Arc<Registry>,
    places: Arc<Places>,
    identities: Vec<ServerIdentity>,
}

impl NodeMetrics {
    pub(crate) fn new(
        node: String,
        registry: Arc<Registry>,
        places: Arc<Places>,
        identities: Vec<ServerIdentity>,
    ) -> NodeMetrics {
        NodeMetrics { node, registry, places, identities }
    }

    fn snapshot(&self) -> Snapshot {
        let faults = &self.registry.faults;
        Snapshot {
            node: self.node.clone(),
            readings: self.registry.readings(),
            figures: faults.figures(),
            faults: faults.found(),
            connections: self.places.connections(),
            journal: self.registry.journal(),
            certificate_ends_s: self.identities.iter().filter_map(expiry_s).min(),
        }
    }
}

impl Source for NodeMetrics {
    fn registry(&self) -> Metrics {
        let mut metrics = Metrics::default();
        metrics.register_collector(Box::new(self.snapshot()));
        metrics
    }
}

/// A node at the moment of a scrape.
#[derive(Clone, Debug, Default)]
struct Snapshot {
    node: String,
    readings: Readings,
    figures: BTreeMap<u32, Figures>,
    faults: BTreeMap<u32, u64>,
    connections: usize,
    /// Records that the server has not confirmed, and whether the disk takes none; nothing without
    /// a server.
    journal: Option<(usize, bool)>,
    certificate_ends_s: Option<i64>,
}

impl Collector for Snapshot {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page::new(encoder);
        cards::write(&mut page, self)?;
        leases::write(&mut page, &self.readings.leases)?;
        page.family(&BUILD, [([("version", env!("CARGO_PKG_VERSION"))], 1.0)])?;
        page.single(&CONNECTIONS, self.connections as f64)?;
        page.single(&UNDELIVERED, self.journal.map(|(records, _)| records as f64))?;
        page.single(&CLOSED, self.journal.map(|(_, full)| f64::from(u8::from(full))))?;
        page.single(&CERTIFICATE, self.certificate_ends_s.map(|ends_s| ends_s as f64))?;
        page.single(&OMITTED, self.readings.omitted as f64)
    }
}

#[cfg(test)]
mod tests;

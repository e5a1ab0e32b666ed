//! What a server serves of itself for Prometheus, at an address of its own (`--metrics`) or at
//! `/metrics` for operators.
//!
//! ```text
//!  write_batch ──▶ Counters (what has become true, counted once it is in the database)
//!  fleet       ──▶ Picture  (what is true now, copied at each scrape, fleet locked) ──▶ page
//! ```
//! What leases use is counted by their nodes, and shown by these: no number comes from two places.
//! A server that does not lead shows what it knows of itself, and nothing of the fleet, so that a
//! sum over servers counts nothing twice.

mod counters;
mod page;
mod picture;

use std::sync::Arc;

use prometheus_client::registry::Registry;
use sluice_metrics::Source;
use tokio::runtime::Handle;

use crate::server::Server;

pub(crate) use counters::Counters;
pub(crate) use picture::{FleetPicture, Picture};

/// Answers scrapes of a server.
pub(crate) struct ServerMetrics {
    server: Arc<Server>,
    runtime: Handle,
}

impl ServerMetrics {
    /// Has to be made within the server's runtime.
    pub(crate) fn new(server: Arc<Server>) -> ServerMetrics {
        ServerMetrics { server, runtime: Handle::current() }
    }
}

impl Source for ServerMetrics {
    fn registry(&self) -> Registry {
        self.runtime.block_on(registry(&self.server))
    }
}

/// All that a server counts, and what is true now.
pub(crate) async fn registry(server: &Server) -> Registry {
    let picture = server.picture().await;
    let mut registry = Registry::default();
    server.counters.register(&mut registry);
    registry.register_collector(Box::new(picture));
    registry
}

#[cfg(test)]
mod tests;

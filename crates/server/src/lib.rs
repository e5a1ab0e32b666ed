//! The control plane: tenants, quotas, the queue, leases, the ledger and the audit log, behind a
//! REST API.
//!
//! ```text
//!  sluice run ── REST ─▶ http ──▶ server (fleet in memory, database behind it) ◀─ reports ── nodes
//!                                    │ plan: what happens to the queue, by the scheduler library
//!                                    ▼
//!                               a grant, signed; the program takes it to its node
//! ```
//! Nodes decide nothing here and need nothing from here to continue: they check grants alone, keep
//! their sessions running and their usage on disk while the server is away.

pub mod config;

mod http;
mod leader;
mod lease_key;
mod metrics;
mod server;

mod auth;
mod autonomy;
mod backup;
mod billing;
mod commits;
mod concern;
mod disk;
mod fleet;
mod history;
mod identity;
mod kept;
mod keys;
mod plan;
mod policy;
mod printed;
mod recommendations;
mod reports;
mod sessions;
mod store;
mod traces;
mod usage_bounds;
mod usage_spans;
mod watches;
mod webhooks;

#[cfg(test)]
mod simulation;

pub use backup::{Watcher, back_up, restore};
pub use config::{Certificate, Config, GPU_QUIET_S, GRACE_S, Running, ServeError, serve};
pub use http::document;
pub use ipnet::IpNet;
pub use store::Database;
pub use webhooks::MailConfig;

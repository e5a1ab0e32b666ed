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

// The API, and who may do what by it.
mod auth;
mod concern;
mod http;
mod identity;
mod kept;
mod keys;
mod last_uses;
mod lease_key;
mod policy;
mod sessions;
mod watches;

// The state, what is decided about it, and what changes it.
mod autonomy;
mod fleet;
mod history;
mod plan;
mod recommendations;
mod server;

// The database, and which of several servers writes it.
mod backup;
mod commits;
mod disk;
mod leader;
mod store;

// Usage and money.
mod billing;
mod printed;
mod reports;
mod usage_bounds;
mod usage_spans;

// What others are sent or collect.
mod metrics;
mod traces;
mod webhooks;

#[cfg(test)]
mod simulation;

pub use backup::{Watcher, back_up, restore};
pub use config::{Certificate, Config, GPU_QUIET_S, GRACE_S, Running, ServeError, serve};
pub use http::document;
pub use ipnet::IpNet;
pub use store::Database;
pub use webhooks::MailConfig;

//! The node: a daemon that divides the GPUs of one machine among sessions.
//!
//! ```no_run
//! let node = sluice_node::Node::bind(&sluice_node::NodeConfig::default())?;
//! println!("listening on {}", node.addresses().join(", "));
//! node.run()?;
//! # Ok::<(), sluice_node::NodeError>(())
//! ```
//!
//! A connection is for control or for a session ([`connection`]). A control connection holds at
//! most one lease, which the pure accounts admit ([`lease`]); a session gets a worker process of
//! its own and is then not on this process's data path ([`registry`], [`spawn`]). A node that has
//! joined a server takes that server's grants instead ([`join`]). Who computes when is decided by
//! the pure [`arbiter`], carried out by [`turns`].

mod certificate;
mod config;
mod daemon;

mod admission;
mod connection;
mod echo;
mod exports;
mod facts;
mod health;
mod measure;
mod metrics;
mod output;
mod registry;
mod silent;
mod strangers;
mod swap_space;

pub mod lease;

pub mod arbiter;
mod residency;
mod turns;

mod join;

mod peering;

mod inventory;
mod spawn;

mod clock;
pub mod unplugged;
mod upgrade;

pub use certificate::own_certificate;
pub use config::{
    CHECK_STATE, GpuSelection, JoinConfig, Listen, NextProgram, NodeConfig, SwapFileConfig, TAKE_OVER,
    WorkerCommand, user_cache,
};
pub use daemon::{Node, NodeError, READY, Stopper, Upgrader};
pub use inventory::{Inventory, InventoryError};
pub use join::JoinError;
pub use peering::{PeerAddresses, Peering};
pub use upgrade::{HandedOver, RestoreError, StateError};

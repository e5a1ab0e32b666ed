//! A lease for `sluice run`, and for commands that use a GPU by themselves.

use std::io::IsTerminal;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use sluice_api::client::Client;
use sluice_api::lease::NewLease;
use sluice_control::{Connection, PATIENCE, open_lease};
use sluice_wire::address::Endpoint;
use sluice_wire::control::{Control, LeaseGranted, LeaseRequest, SHARE_WHOLE_PPM};
use sluice_wire::handshake::Once;

use crate::child::EarlyEnd;
use crate::run::say_cut;
use crate::server::lease::{Claimed, ServerLease, Talk};

/// Whole GPUs of one node.
pub(crate) struct Wanted<'a> {
    pub(crate) gpus: u32,
    /// Bytes on each.
    pub(crate) memory: u64,
    /// As `sluice sessions` shows it.
    pub(crate) name: &'a str,
}

/// A lease for as long as this lives. A process that is asked to end meanwhile gives it back first.
pub(crate) struct LeaseGuard {
    // Before the lease: a thread that is ending this process is waited for.
    early_end: EarlyEnd,
    held: Arc<Mutex<Option<LeaseHolder>>>,
    pub(crate) granted: LeaseGranted,
    /// The node, for people to read, and where it is.
    pub(crate) node: String,
    pub(crate) address: Endpoint,
}

/// What holds a lease.
struct LeaseHolder {
    connection: Connection,
    /// The server's side of it, which ends after the node's.
    server: Option<ServerLease>,
}

impl LeaseHolder {
    /// What it held is free when this returns.
    fn close(self) {
        self.connection.close();
        drop(self.server);
    }
}

fn take(held: &Mutex<Option<LeaseHolder>>) -> Option<LeaseHolder> {
    held.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// A lease from the node itself, on the connection that holds it.
pub(crate) fn ask_node(
    node: &Endpoint,
    request: impl Fn(Once) -> LeaseRequest,
) -> Result<(Connection, LeaseGranted)> {
    let (connection, answer) = open_lease(node, PATIENCE, request, say_cut)?;
    match answer {
        Control::LeaseGranted(granted) => Ok((connection, granted)),
        Control::LeaseRefused(refused) => bail!("{}", refused.reason),
        _ => Err(connection.unexpected().into()),
    }
}

impl LeaseGuard {
    fn new(
        connection: Connection,
        granted: LeaseGranted,
        node: String,
        server: Option<ServerLease>,
    ) -> Result<LeaseGuard> {
        let address = connection.node().clone();
        let held = Arc::new(Mutex::new(Some(LeaseHolder { connection, server })));
        let ended = Arc::clone(&held);
        let early_end = EarlyEnd::heed(move |signal| {
            take(&ended).into_iter().for_each(LeaseHolder::close);
            if std::io::stderr().is_terminal() {
                eprintln!();
            }
            std::process::exit(128 + signal)
        });
        Ok(LeaseGuard { early_end: early_end.context("signals")?, held, granted, node, address })
    }

    pub(crate) fn from_node(node: &Endpoint, wanted: &Wanted) -> Result<LeaseGuard> {
        let request = |once| LeaseRequest {
            once,
            share_ppm: SHARE_WHOLE_PPM,
            memory: wanted.memory,
            gpus: wanted.gpus,
            limit_ppm: SHARE_WHOLE_PPM,
            kernel_timeout_ms: 0,
            name: wanted.name.to_owned(),
        };
        let (connection, granted) = ask_node(node, request)?;
        LeaseGuard::new(connection, granted, node.place(), None)
    }

    /// Waits in the queue for it.
    pub(crate) fn from_server(client: Client, tenant: Option<&str>, wanted: &Wanted) -> Result<LeaseGuard> {
        let tenant = tenant.map(str::parse).transpose();
        let ask = NewLease {
            tenant: tenant.map_err(|error| anyhow::anyhow!("--tenant: {error}"))?,
            memory: wanted.memory,
            name: wanted.name.to_owned(),
            ..NewLease::whole(wanted.gpus)
        };
        let mut lease = ServerLease::ask(client, &ask, Talk::Brief)?;
        let claimed = lease.claim(0, wanted.name)?;
        // One task was asked for.
        let Some(Claimed { node, connection, granted, .. }) = claimed.into_iter().next() else {
            bail!("the server granted nothing")
        };
        LeaseGuard::new(connection, granted, node, Some(lease))
    }

    /// Gives it back: what it held is free when this returns.
    pub(crate) fn close(self) {
        drop(self.early_end);
        take(&self.held).into_iter().for_each(LeaseHolder::close);
    }
}

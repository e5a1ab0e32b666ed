//! What `sluice` does with a server: leases for `run`, lists, set-up, and starting one.

pub(crate) mod admin;
pub(crate) mod aside;
pub(crate) mod bills;
mod consent;
mod earnings;
pub(crate) mod estimate;
pub(crate) mod invoices;
pub(crate) mod iq;
pub(crate) mod join;
pub(crate) mod lease;
pub(crate) mod lists;
pub(crate) mod moves;
pub(crate) mod nodes;
pub(crate) mod plan;
#[cfg(feature = "full")]
pub(crate) mod process;
pub(crate) mod reconcile;
pub(crate) mod reports;
pub(crate) mod resize;
pub(crate) mod servers;
pub(crate) mod usage;
pub(crate) mod web;
pub(crate) mod webhooks;

mod focus;
mod leases;
mod login;
mod watch;

#[cfg(not(feature = "full"))]
pub(crate) use crate::absent::process;

use std::sync::Once;

use anyhow::{Result, bail};
use sluice_api::client::{Client, Settings};

use crate::cli::AtServer;
use crate::moment::Moment;

/// The server that the command line, the environment or `sluice login` names, if any.
pub(crate) fn named(server: Option<&str>) -> Result<Option<Client>> {
    Ok(Settings::find(server)?.map(login::client).map(|client| client.on_expiry(warn_of_expiry)))
}

/// Says once when the token expires.
fn warn_of_expiry(at_ms: u64) {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        let at = Moment::from_ms(at_ms);
        eprintln!("sluice: the token expires at {at}; ask for a new one (`sluice token create` makes one)");
    });
}

/// Returns a client for a command that cannot work without a server.
pub(crate) fn client(at: &AtServer) -> Result<Client> {
    match named(at.server.as_deref())? {
        Some(client) => Ok(client),
        None => bail!(
            "which server? Set SLUICE_SERVER to https://HOST:PORT[/FINGERPRINT] or http://HOST:PORT; `sluice up` starts one here"
        ),
    }
}

//! What `sluice` does with a server: leases for `run`, lists, set-up, and starting one.

pub(crate) mod admin;
pub(crate) mod bills;
pub(crate) mod lease;
pub(crate) mod lists;
pub(crate) mod nodes;
pub(crate) mod process;
pub(crate) mod reconcile;

mod focus;
mod leases;
mod login;
mod watch;

use anyhow::{Result, bail};
use sluice_api::client::{Client, Settings};

use crate::cli::AtServer;

/// The server that the command line, the environment or `sluice login` names, if any.
pub(crate) fn named(server: Option<&str>) -> Result<Option<Client>> {
    Ok(Settings::find(server)?.map(login::client))
}

/// The same where nothing works without one.
pub(crate) fn client(at: &AtServer) -> Result<Client> {
    match named(at.server.as_deref())? {
        Some(client) => Ok(client),
        None => bail!(
            "which server? Set SLUICE_SERVER to https://HOST:PORT[/FINGERPRINT] or http://HOST:PORT; `sluice up` starts one here"
        ),
    }
}

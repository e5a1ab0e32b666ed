//! How a node of this process joins a server.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use sluice_api::client::data_folder;
use sluice_node::JoinConfig;

use crate::cli::{MembershipArgs, NodeArgs};
use crate::quantity::Units;

/// How `sluice node` joins, if it does.
pub(crate) fn joining(arguments: &NodeArgs) -> Result<Option<JoinConfig>> {
    let Some(server) = &arguments.join else { return Ok(None) };
    let server = sluice_api::client::canonical(server)?;
    let token = match &arguments.token_file {
        Some(path) => std::fs::read_to_string(path).with_context(|| path.display().to_string())?,
        None => std::env::var("SLUICE_TOKEN").ok().context(
            "no token to join with: set SLUICE_TOKEN or --token-file (`sluice token create --role node --tenant /` \
             makes one)",
        )?,
    };
    membership(&arguments.membership, &server, token.trim().to_owned(), &data(None)?).map(Some)
}

/// How a node joins this server.
pub(super) fn membership(
    arguments: &MembershipArgs,
    server: &str,
    token: String,
    folder: &Path,
) -> Result<JoinConfig> {
    let name = match &arguments.name {
        Some(name) => name.clone(),
        None => host_name()?,
    };
    if name.contains('/') || name.starts_with('.') || name.is_empty() {
        bail!("--name {name:?}: a node's name has no / and does not begin with a point");
    }
    let journal = arguments.journal.clone().unwrap_or_else(|| folder.join("node").join(&name));
    Ok(JoinConfig {
        server: server.to_owned(),
        token,
        name,
        address: arguments.advertise.clone(),
        gflops: arguments.tflops.map(Units::milli),
        labels: arguments.labels.iter().cloned().collect(),
        folder: journal,
    })
}

/// The folder that holds a server's or a node's data, as named or in the user's home.
pub(super) fn data(named: Option<&Path>) -> Result<PathBuf> {
    let folder = named.map(Path::to_owned).or_else(data_folder);
    folder.context("no data folder: neither XDG_DATA_HOME nor HOME is set")
}

fn host_name() -> Result<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").context("the host's name; say --name")?;
    Ok(name.trim().to_owned())
}

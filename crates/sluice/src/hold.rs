//! `sluice hold`: claims a lease and holds it for programs that other processes start.
//!
//! In a pod it is a sidecar: the other containers find the client libraries and the session in
//! volumes that it shares with them.
//!
//! ```text
//!  folder with server, lease, key ──▶ claim on the node ──▶ session file ──▶ hold
//!  session file of an earlier process ──▶ resume on the node ─────────────────┤
//!                                                   SIGTERM: give back ◀──────┘
//! ```

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use sluice_api::client::Client;
use sluice_api::lease::{LeaseId, LeaseState};
use sluice_control::Keeper;
use sluice_wire::address::SessionAddress;

use crate::child::EarlyEnd;
use crate::cli::HoldArgs;
use crate::server::lease::{Claimed, ServerLease, Talk};
use crate::surroundings::Libraries;
use crate::tasks::Event;
use crate::used::give_back;

/// How long a node is asked for the lease of a process that was restarted: its linger time.
const RESUME_PATIENCE: Duration = Duration::from_secs(90);

pub(crate) fn run(arguments: &HoldArgs) -> Result<ExitCode> {
    let file = &arguments.session_file;
    if arguments.is_ready {
        return Ok(if file.is_file() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    if let Some(folder) = &arguments.install {
        let libraries = Libraries::find().map_err(anyhow::Error::msg)?;
        libraries.install(folder).with_context(|| folder.display().to_string())?;
    }
    let from = arguments.from.as_deref().context("--from names the folder that describes the lease")?;
    let (client, id) = described(from)?;
    let (keeper, lease) = match fs::read_to_string(file) {
        Ok(text) => resume(client, id, &text, file)?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => claim(client, id, file)?,
        Err(error) => return Err(error).with_context(|| file.display().to_string()),
    };
    hold(keeper, lease)
}

/// Reads whose lease is held.
fn described(folder: &Path) -> Result<(Client, LeaseId)> {
    let read = |name: &str| {
        let path = folder.join(name);
        fs::read_to_string(&path)
            .map(|text| text.trim().to_owned())
            .with_context(|| path.display().to_string())
    };
    let id = read("lease")?;
    let id = id.parse().with_context(|| format!("{id:?} is no number of a lease"))?;
    Ok((Client::new(&read("server")?, &read("key")?), id))
}

/// Claims a granted lease on its node, and writes the session file.
fn claim(client: Client, id: LeaseId, file: &Path) -> Result<(Keeper, ServerLease)> {
    let mut lease = ServerLease::take_up(client, id, Talk::Brief)?;
    let name = lease.name().to_owned();
    let claimed = lease.claim(0, &name)?;
    let [Claimed { node, address, connection, granted, .. }] = <[Claimed; 1]>::try_from(claimed)
        .map_err(|claimed| anyhow::anyhow!("lease {id} has {} tasks; one can be held", claimed.len()))?;
    let keeper = Keeper::start(connection, &granted)?;
    let session = SessionAddress { node: address, token: granted.token };
    write_whole(file, &session.to_string()).with_context(|| file.display().to_string())?;
    eprintln!("sluice: holding lease {id} on node {node}");
    Ok((keeper, lease))
}

/// Takes the lease over that an earlier run of this process has claimed, and writes the session
/// file anew, by which the process that started this one knows.
fn resume(client: Client, id: LeaseId, session: &str, file: &Path) -> Result<(Keeper, ServerLease)> {
    let SessionAddress { node, token } = session.trim().parse()?;
    let keeper = Keeper::resume(&node, token, RESUME_PATIENCE)
        .with_context(|| format!("lease {id} was claimed before, and cannot be resumed"))?;
    let lease = ServerLease::take_over(client, id)?;
    write_whole(file, session).with_context(|| file.display().to_string())?;
    eprintln!("sluice: holding lease {id} again");
    Ok((keeper, lease))
}

/// Readers see all of the file or none of it.
fn write_whole(file: &Path, text: &str) -> std::io::Result<()> {
    let unfinished = file.with_extension("unfinished");
    fs::write(&unfinished, text)?;
    fs::rename(unfinished, file)
}

/// Holds the lease until this process is asked to end, or until the lease is over.
fn hold(keeper: Keeper, lease: ServerLease) -> Result<ExitCode> {
    let (events, receiver) = channel();
    lease.watch(events);
    let (id, attempt) = (lease.id(), lease.attempt());
    let held = Arc::new(Mutex::new(Some((keeper, lease))));
    let at_end = Arc::clone(&held);
    let _early_end = EarlyEnd::heed(move |_| {
        if let Some((keeper, mut lease)) = at_end.lock().unwrap_or_else(PoisonError::into_inner).take() {
            lease.finish();
            let _ = give_back(keeper, String::new(), false, None);
        }
        std::process::exit(0)
    })
    .context("signals")?;
    for event in receiver {
        let Event::Lease(lease) = event else { continue };
        let reason = lease.reason.as_deref().unwrap_or("no reason given");
        match lease.state {
            LeaseState::Ended => bail!("lease {id} ended: {reason}"),
            _ if lease.attempt != attempt => bail!("lease {id} was preempted: {reason}"),
            LeaseState::Preempting => eprintln!("sluice: lease {id} is being preempted: {reason}"),
            _ => {}
        }
    }
    bail!("lease {id} is watched no more")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_described_by_three_files() {
        let folder = tempfile::tempdir().unwrap();
        let missing = format!("{:#}", described(folder.path()).unwrap_err());
        assert!(missing.contains("lease"), "{missing}");
        for (name, text) in [("server", "http://127.0.0.1:1\n"), ("lease", "7\n"), ("key", "slk_7_x")] {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let (client, id) = described(folder.path()).unwrap();
        assert_eq!((client.server(), id), ("http://127.0.0.1:1", 7));
    }
}

//! `sluice suspend` and `sluice resume`: programs that leave their GPUs for a while.

use std::process::ExitCode;

use anyhow::{Result, bail};
use sluice_api::lease::ResizeLease;
use sluice_control::Connection;
use sluice_wire::address::Endpoint;
use sluice_wire::control::{Control, LeaseName, Suspend};

use crate::cli::SuspendArgs;
use crate::place::Provider;
use crate::quantity::Memory;
use crate::server::resize as server;

pub(crate) fn run(arguments: &SuspendArgs, suspended: bool) -> Result<ExitCode> {
    match Provider::choose(arguments.server.as_deref(), arguments.node.as_deref())? {
        Provider::Server(client) => {
            let change =
                ResizeLease { suspended: Some(suspended), wait: arguments.wait, ..ResizeLease::default() };
            server::resize(&client, arguments.number, &change)?;
        }
        Provider::Node(_) if arguments.wait => bail!("--wait is for leases of a server: a node has no queue"),
        Provider::Node(node) => {
            let said = suspend_on(&node, arguments.number, suspended)?;
            said.iter().for_each(|line| eprintln!("sluice: {line}"));
        }
        Provider::Private => bail!("which node? Say --node HOST:PORT, or set SLUICE_NODE or SLUICE_SERVER"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Suspends or resumes a session or a lease of a node. The answer says what was done, in lines.
pub(crate) fn suspend_on(node: &Endpoint, number: u64, suspended: bool) -> Result<Vec<String>> {
    let mut connection = Connection::open(node)?;
    let suspend = Suspend { lease: LeaseName::Numbered(number), suspended };
    let Control::Suspended(answer) = connection.ask(suspend)? else {
        return Err(connection.unexpected().into());
    };
    let sessions: Vec<String> = answer.sessions.iter().map(u64::to_string).collect();
    let done = if suspended { "suspended" } else { "resumed" };
    let mut said = vec![match sessions.as_slice() {
        [] => format!("lease {number} is {done}; no program runs under it"),
        [session] => format!("session {session} is {done}"),
        sessions => format!("sessions {} are {done}", sessions.join(", ")),
    }];
    if answer.swapped > 0 {
        said.push(format!("{} of their memory are with the node", Memory::from_bytes(answer.swapped)));
    }
    said.extend(answer.notes);
    Ok(said)
}

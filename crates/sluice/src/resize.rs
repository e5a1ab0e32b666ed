//! `sluice resize`: another share, limit or amount of memory for a lease whose programs run.

use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use sluice_api::lease::ResizeLease;
use sluice_control::{Connection, own_leases};
use sluice_wire::address::Endpoint;
use sluice_wire::control::{Control, LeaseName, LeaseResize, LeaseResized};

use crate::cli::ResizeArgs;
use crate::place::Provider;
use crate::quantity::Memory;
use crate::run::compute_text;
use crate::server::resize as server;

pub(crate) fn run(arguments: &ResizeArgs) -> Result<ExitCode> {
    ensure!(
        arguments.share.is_some() || arguments.memory.is_some() || arguments.limit_ppm().is_some(),
        "what is to change? Say -p SHARE, --memory SIZE, --limit SHARE or --cap KIND"
    );
    let Some(number) = arguments.number else { return resize_own(arguments) };
    match Provider::choose(arguments.server.as_deref(), arguments.node.as_deref())? {
        Provider::Server(client) => {
            let resize = ResizeLease {
                share_ppm: arguments.share.map(|share| share.ppm()),
                memory: arguments.memory.map(Memory::bytes),
                limit_ppm: arguments.limit_ppm(),
                wait: arguments.wait,
                ..ResizeLease::default()
            };
            server::resize(&client, number, &resize)?;
        }
        Provider::Node(node) => {
            ensure!(!arguments.wait, "--wait is for leases of a server: a node has no queue");
            say(&resize_on(&node, wanted(LeaseName::Numbered(number), arguments))?);
        }
        Provider::Private => bail!("which node? Say --node HOST:PORT, or set SLUICE_NODE or SLUICE_SERVER"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Those of the program that this runs in: one on each of its nodes.
fn resize_own(arguments: &ResizeArgs) -> Result<ExitCode> {
    let leases = own_leases();
    ensure!(
        !leases.is_empty(),
        "which lease? Name its number (`sluice sessions` lists them), or say this inside of `sluice run`"
    );
    for (node, token) in leases {
        say(&resize_on(&node, wanted(LeaseName::Own(token), arguments))?);
    }
    Ok(ExitCode::SUCCESS)
}

fn wanted(lease: LeaseName, arguments: &ResizeArgs) -> LeaseResize {
    LeaseResize {
        lease,
        share_ppm: arguments.share.map(|share| share.ppm()),
        memory: arguments.memory.map(Memory::bytes),
        limit_ppm: arguments.limit_ppm(),
    }
}

/// Changes what a lease of a node has.
pub(crate) fn resize_on(node: &Endpoint, resize: LeaseResize) -> Result<LeaseResized> {
    let mut connection = Connection::open(node)?;
    match connection.ask(resize)? {
        Control::LeaseResized(resized) => Ok(resized),
        _ => Err(connection.unexpected().into()),
    }
}

fn say(resized: &LeaseResized) {
    eprintln!("sluice: {}", resized_text(resized));
}

pub(crate) fn resized_text(resized: &LeaseResized) -> String {
    let &LeaseResized { lease, share_ppm, limit_ppm, memory } = resized;
    format!("lease {lease} has {}", size_text(share_ppm, limit_ppm, memory))
}

/// `25% to 50% of each GPU and 8.0 GiB of its memory`
pub(crate) fn size_text(share_ppm: u32, limit_ppm: u32, memory: u64) -> String {
    let compute = compute_text(share_ppm, limit_ppm);
    format!("{compute} of each GPU and {} of its memory", Memory::from_bytes(memory))
}

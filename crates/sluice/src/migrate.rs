//! `sluice migrate`: running programs continue on another GPU, of their node or of another.

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use sluice_api::client::Client;
use sluice_api::moving::NewMove;
use sluice_control::{Cause, Connection, Failure};
use sluice_wire::address::Endpoint;
use sluice_wire::control::{Control, LeaseName, Migrate, Migrated, MovePlanned, StatusRequest};

use crate::cli::MigrateArgs;
use crate::place::Provider;
use crate::progress::Waiting;
use crate::quantity::Memory;
use crate::server::moves as server;

pub(crate) fn run(arguments: &MigrateArgs) -> Result<ExitCode> {
    let node = match Provider::choose(arguments.server.as_deref(), arguments.node.as_deref())? {
        Provider::Node(node) => node,
        Provider::Server(client) => return at_server(&client, arguments),
        Provider::Private => bail!("which node? Say --node HOST:PORT, or set SLUICE_NODE or SLUICE_SERVER"),
    };
    let to = arguments.to.as_deref().map(str::parse::<Endpoint>).transpose().context("--to")?;
    let moving = Moving { node, to, gpu: arguments.gpu, dry_run: arguments.dry_run };
    match arguments.number {
        Some(lease) => moving.one(lease).map(|()| ExitCode::SUCCESS),
        None => moving.all(),
    }
}

fn at_server(client: &Client, arguments: &MigrateArgs) -> Result<ExitCode> {
    let Some(lease) = arguments.number else {
        bail!("a server moves all programs of a node with `sluice node drain NODE`");
    };
    ensure!(
        arguments.gpu.is_none() || arguments.to.is_some(),
        "a lease of a server moves to another node: say --to NODE, of which this is the GPU"
    );
    let to = NewMove { node: arguments.to.clone(), gpu: arguments.gpu };
    match arguments.dry_run {
        true => server::plan(client, lease, &to)?,
        false => server::migrate(client, lease, &to)?,
    }
    Ok(ExitCode::SUCCESS)
}

struct Moving {
    node: Endpoint,
    to: Option<Endpoint>,
    gpu: Option<u32>,
    dry_run: bool,
}

impl Moving {
    fn one(&self, lease: u64) -> Result<()> {
        let mut connection = Connection::open(&self.node)?;
        let asked = Migrate {
            lease: LeaseName::Numbered(lease),
            gpu: self.gpu,
            node: self.to.as_ref().map(Endpoint::to_string),
            dry_run: self.dry_run,
        };
        let waiting = Waiting::new(format!("lease {lease} is moving"));
        let answer = connection.ask(asked)?;
        drop(waiting);
        match answer {
            Control::Migrated(moved) => self.say_moved(&moved),
            Control::MovePlanned(planned) => return say_planned(&planned),
            _ => return Err(connection.unexpected().into()),
        }
        Ok(())
    }

    fn say_moved(&self, moved: &Migrated) {
        let place = self.to.as_ref().map_or_else(String::new, |node| format!(" of {}", node.place()));
        eprintln!(
            "sluice: session {} is on GPU {}{place}; {} were copied, and it stood still for {:.2} s",
            moved.session,
            moved.gpu,
            Memory::from_bytes(moved.bytes),
            moved.stall_us as f64 / 1e6
        );
    }

    /// Each lease of the node. One that stays keeps no other from moving.
    fn all(&self) -> Result<ExitCode> {
        let mut connection = Connection::open(&self.node)?;
        let Control::Status(status) = connection.ask(StatusRequest {})? else {
            return Err(connection.unexpected().into());
        };
        let leases: BTreeSet<u64> = status.sessions.iter().map(|session| session.lease).collect();
        let mut stay = 0;
        for &lease in &leases {
            let Err(error) = self.one(lease) else { continue };
            let reason = reason(&error);
            // One that has ended meanwhile is gone, too.
            stay += usize::from(!reason.starts_with("no program runs"));
            eprintln!("sluice: lease {lease}: {reason}");
        }
        let (count, went) = (leases.len(), leases.len() - stay);
        let verb = if self.dry_run { "would move" } else { "moved" };
        eprintln!("sluice: {went} of {count} leases {verb}");
        Ok(if stay == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// What the node said, without its name before it: all are of the same node.
fn reason(error: &anyhow::Error) -> String {
    match error.downcast_ref::<Failure>() {
        Some(Failure { cause: Cause::Refused(reason), .. }) => reason.clone(),
        _ => format!("{error:#}"),
    }
}

fn say_planned(planned: &MovePlanned) -> Result<()> {
    let MovePlanned { session, bytes, reasons } = planned;
    if !reasons.is_empty() {
        bail!("session {session} would stay: {}", reasons.join("; "));
    }
    let bytes = Memory::from_bytes(*bytes);
    eprintln!("sluice: session {session} would move, and stand still while {bytes} are copied");
    Ok(())
}

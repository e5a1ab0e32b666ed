//! The teams with their database in PostgreSQL, and with two nodes in network namespaces of their
//! own, which server and programs reach over virtual cables alone.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::{Account, Installation, Process, TENANTS};
use crate::Skipped;
use crate::node::sluice;
use crate::process;
use crate::token_in;
use private_postgres::Postgres;

#[path = "../../../../crates/server/tests/support/postgres.rs"]
#[expect(dead_code, reason = "the server's tests use more of it")]
mod private_postgres;

const NODES: [&str; 2] = ["one", "two"];

pub(super) fn teams() -> Result<()> {
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return Err(Skipped("needs root".into()).into());
    }
    let Some(postgres) = Postgres::start() else {
        return Err(Skipped("PostgreSQL is not installed".into()).into());
    };
    let networks = Networks::new()?;
    let installation = install(&networks, &postgres.database("teams"))?;
    installation.learn_why_one_waits()?;
    installation.preempt_and_run_again()?;
    installation.the_bill_adds_up()?;
    installation.no_log_holds_a_secret()
}

fn install(networks: &Networks, database: &str) -> Result<Installation> {
    let folder = crate::target_folder().join("networks");
    let _ = std::fs::remove_dir_all(&folder); // it may not be there yet
    std::fs::create_dir_all(&folder)?;
    let data = folder.join("data");
    let mut command = sluice_in(&networks.control);
    command.args(["server", "--listen", "0.0.0.0:0", "--grace", "30", "--data"]).arg(&data);
    let mut up = Process::start("networks server", command.env("SLUICE_DATABASE", database))?;
    let server = up.listening()?;
    let token = token_in(&data.join("admin.json"))?;
    let admin = Account { server: server.clone(), token, network: Some(networks.control.clone()) };
    let mut installation = Installation::begin(folder.clone(), admin, String::new(), up, TENANTS)?;
    for (number, name) in NODES.into_iter().enumerate() {
        let mut command = networks.node(number, &folder.join(format!("data of {name}")));
        command.args(["--join", &server.replace("127.0.0.1", &address(number, 1))]);
        installation.join(name, &mut command)?;
    }
    installation.wait_for_gpus(NODES.len())?;
    Ok(installation)
}

/// `sluice` in a network namespace.
pub(super) fn sluice_in(network: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", network]).arg(sluice());
    command
}

/// Of the cable to a node: the server's end is 1, the node's 2.
fn address(node: usize, end: u8) -> String {
    format!("10.83.{}.{end}", 76 + node)
}

/// One for the server and the programs, and one for each node; gone when dropped.
struct Networks {
    control: String,
    nodes: Vec<String>,
}

impl Networks {
    fn new() -> Result<Networks> {
        let id = std::process::id();
        let nodes = NODES.iter().map(|name| format!("sluice-{name}-{id}")).collect();
        let networks = Networks { control: format!("sluice-control-{id}"), nodes };
        for network in networks.all() {
            ip(&["netns", "add", network])?;
            ip(&["-n", network, "link", "set", "lo", "up"])?;
        }
        for (number, node) in networks.nodes.iter().enumerate() {
            networks.lay_cable(number, node)?;
        }
        Ok(networks)
    }

    fn lay_cable(&self, number: usize, node: &str) -> Result<()> {
        let (near, control) = (format!("node{number}"), self.control.as_str());
        ip(&["-n", control, "link", "add", &near, "type", "veth", "peer", "name", "eth0", "netns", node])?;
        for (network, device, end) in [(control, near.as_str(), 1), (node, "eth0", 2)] {
            let address = format!("{}/24", address(number, end));
            ip(&["-n", network, "address", "add", &address, "dev", device])?;
            ip(&["-n", network, "link", "set", device, "up"])?;
        }
        Ok(())
    }

    /// `sluice node` in its network, with a certificate of its own in this folder, to be completed.
    fn node(&self, number: usize, data: &Path) -> Command {
        let mut command = sluice_in(&self.nodes[number]);
        command.args(["node", "--listen", &format!("{}:0", address(number, 2))]).env("XDG_DATA_HOME", data);
        command
    }

    fn all(&self) -> impl Iterator<Item = &String> {
        self.nodes.iter().chain([&self.control])
    }
}

impl Drop for Networks {
    fn drop(&mut self) {
        for network in self.all() {
            // An error means that it was not made.
            let _ = ip(&["netns", "delete", network]);
        }
    }
}

fn ip(words: &[&str]) -> Result<()> {
    process::output_of(Command::new("ip").args(words)).map(drop)
}

//! Programs that move between two nodes in network namespaces, over a link of some rate.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::Figures;
use super::elastic::{MOVED, Program, stall_ms};
use crate::node::{self, Node};
use crate::process;

const ADDRESSES: [&str; 2] = ["10.73.0.1", "10.73.0.2"];

/// Two network namespaces and the link between them; dropped, they are gone.
struct TwoNetworks {
    networks: [String; 2],
}

impl TwoNetworks {
    /// The rate is as `tc-tbf(8)` has it.
    fn new(rate: &str) -> Result<TwoNetworks> {
        // SAFETY: geteuid has no preconditions.
        ensure!(unsafe { libc::geteuid() } == 0, "needs root, for network namespaces");
        let link = TwoNetworks {
            networks: ["a", "b"].map(|end| format!("sluice-bench-{end}-{}", std::process::id())),
        };
        let [a, b] = &link.networks;
        for network in [a, b] {
            run("ip", &["netns", "add", network])?;
        }
        run("ip", &["link", "add", "far", "netns", a, "type", "veth", "peer", "name", "far", "netns", b])?;
        for (network, address) in link.networks.iter().zip(ADDRESSES) {
            run("ip", &["-n", network, "address", "add", &format!("{address}/24"), "dev", "far"])?;
            run("ip", &["-n", network, "link", "set", "far", "up"])?;
            run("ip", &["-n", network, "link", "set", "lo", "up"])?;
            let shape = [
                "qdisc", "add", "dev", "far", "root", "tbf", "rate", rate, "burst", "4mb", "latency", "50ms",
            ];
            run("tc", &[&["-n", network][..], &shape].concat())?;
        }
        Ok(link)
    }

    fn sluice(&self, end: usize) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.networks[end]]).arg(node::sluice());
        command
    }

    fn node(&self, end: usize) -> Result<Node> {
        let mut command = self.sluice(end);
        let listen = format!("plain-text:{}:0", ADDRESSES[end]);
        command.args(["node", "--listen", &listen, "--gpus", "software:1,1GiB"]);
        let mut node = Node::start_command(&mut command)?;
        node.seen_from = Some(self.networks[end].clone());
        Ok(node)
    }
}

impl Drop for TwoNetworks {
    fn drop(&mut self) {
        for network in &self.networks {
            let _ = run("ip", &["netns", "delete", network]);
        }
    }
}

fn run(program: &str, words: &[&str]) -> Result<()> {
    process::output_of(Command::new(program).args(words)).map(drop)
}

/// How long a program stands still that moves from one node to the other, and how long its bytes
/// take on the link.
pub(super) fn migration(rate: &str, bits_per_s: f64) -> Result<Figures> {
    let link = TwoNetworks::new(rate)?;
    let [from, to] = [link.node(0)?, link.node(1)?];
    let mut command = link.sluice(0);
    command.args(["run", "-q", "-p", "0.3", "--memory", "600MiB", "--node", &from.address, "--"]);
    let mut program = Program::of(&mut command, MOVED, 1)?;
    program.hears("ready")?;
    program.says("compute")?;
    program.hears("computed")?;
    let mut command = link.sluice(0);
    command.args(["migrate", "1", "--to", &to.address, "--node", &from.address]);
    let moved = command.stderr(Stdio::piped()).output().context("sluice migrate")?;
    let text = String::from_utf8_lossy(&moved.stderr).into_owned();
    ensure!(moved.status.success(), "{text}");
    program.says("check")?;
    program.hears("right")?;
    program.ends()?;
    let link_ms = 8e3 * MOVED as f64 / bits_per_s;
    Ok([("stall_ms".to_owned(), stall_ms(&text)?), ("link_ms".to_owned(), link_ms)].into_iter().collect())
}

//! Cuts while a lease and a session are being opened: the program begins all the same, and the node
//! has one of each.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::node::{self, Node};
use crate::relay::{End, Fate, Relay};
use crate::silence::Told;
use crate::tls::{split, start_protected};
use crate::{Test, start_node};

pub(crate) const TESTS: &[Test] = &[
    ("cuts while a session is opened", || in_the_clear(&[0, 26, 40, 60, 97, 112, 150, 300, 1000])),
    // Within the client's first record, the node's answer to it, the client's last word, and the
    // session's first ones.
    ("cuts while a session is opened over TLS", || over_tls(&[0, 40, 290, 301, 700, 1101, 1400, 1801])),
];

/// Only with `--all`.
pub(crate) const LONG_TESTS: &[Test] = &[
    ("cuts at each byte while a session is opened", || in_the_clear(&each_byte(400))),
    ("cuts at many bytes while a session is opened over TLS", || over_tls(&each_seventh_byte(2000))),
];

/// All up to there; what follows is one long answer.
fn each_byte(last: u64) -> Vec<u64> {
    (0..=last).chain((last..6000).step_by(100)).collect()
}

/// Within a handshake each attempt takes its time.
fn each_seventh_byte(last: u64) -> Vec<u64> {
    (0..last).step_by(7).collect()
}

fn in_the_clear(places: &[u64]) -> Result<()> {
    let node = start_node()?;
    begin_at(&node, places)
}

fn over_tls(places: &[u64]) -> Result<()> {
    let node = start_protected()?;
    begin_at(&node, places)
}

fn begin_at(node: &Node, places: &[u64]) -> Result<()> {
    let mut cuts = 0;
    for &bytes in places {
        cuts += begin(node, bytes)?;
    }
    eprintln!("   {cuts} cuts");
    ensure!(cuts as usize > places.len(), "only {cuts} cuts at {} places", places.len());
    Ok(())
}

/// The first connection, which asks for the lease, is cut after so many bytes, counted in both
/// directions together; so is the third. Where the second has to ask for the lease again that is
/// the session's.
fn begin(node: &Node, bytes: u64) -> Result<u32> {
    let (address, fingerprint) = match split(&node.address) {
        Ok((address, fingerprint)) => (address, format!("/{fingerprint}")),
        Err(_) => (node.address.as_str(), String::new()),
    };
    let relay = Relay::start(address, move |_, number| {
        let end = if bytes.is_multiple_of(2) { End::Reset } else { End::Close };
        Fate { bytes: (number == 1 || number == 3).then_some(bytes), end, ..Fate::GOOD }
    })?;
    let mut command = Command::new(node::sluice());
    let through = format!("{}{fingerprint}", relay.address);
    command.args(["run", "-p", "0.5", "--memory", "512MiB", "--node", &through, "--"]);
    let what = || format!("cuts after {bytes} bytes");
    let mut told = Told::start(&mut command, "cuts while a session is opened").with_context(what)?;
    let workers = node.workers();
    ensure!(workers.len() == 1, "{}: one session has the workers {workers:?}", what());
    told.does("count").with_context(what)?;
    told.ends_well().with_context(what)?;
    node.wait_until_free().with_context(what)?;
    Ok(relay.cuts())
}

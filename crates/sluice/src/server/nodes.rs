//! The nodes of a server: listed, drained, used again, and forgotten.

use std::process::ExitCode;

use anyhow::Result;
use sluice_api::client::{Client, segment};
use sluice_api::moving::LeaseMoving;
use sluice_api::node::{NewDrain, NodeStatus};

use super::lists::{show, since};
use super::{client, moves};
use crate::cli::{ListArgs, NodeCommand};
use crate::quantity::Period;
use crate::table::Align::{Left, Right};

pub(crate) fn command(command: &NodeCommand) -> Result<ExitCode> {
    match command {
        NodeCommand::List(arguments) => return list(arguments),
        NodeCommand::Drain { at, name, undo: true, .. } => {
            let node: NodeStatus = client(at)?.delete(&format!("/nodes/{}/drain", segment(name)))?;
            eprintln!("sluice: node {} is used again", node.name);
        }
        NodeCommand::Drain { at, name, grace, no_move, why, undo: false } => {
            let drain = Drain { client: client(at)?, path: format!("/nodes/{}/drain", segment(name)), why };
            if !no_move {
                drain.move_away()?;
            }
            drain.finish(*grace, *no_move)?;
        }
        NodeCommand::Forget { at, name } => {
            let node: NodeStatus = client(at)?.delete(&format!("/nodes/{}", segment(name)))?;
            eprintln!("sluice: node {} is forgotten", node.name);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A node that is to be emptied.
struct Drain<'a> {
    client: Client,
    path: String,
    why: &'a str,
}

impl Drain<'_> {
    fn ask(&self, more: NewDrain) -> Result<NodeStatus> {
        Ok(self.client.post(&self.path, &NewDrain { why: self.why.to_owned(), ..more })?)
    }

    /// Has the programs of the node move, and says what becomes of each.
    fn move_away(&self) -> Result<()> {
        let node = self.ask(NewDrain { migrate: true, ..NewDrain::default() })?;
        for LeaseMoving { lease, .. } in &node.moving {
            let lease = self.client.get(&format!("/leases/{lease}"))?;
            match moves::result(&self.client, lease) {
                Ok(moved) => eprintln!("sluice: {moved}"),
                Err(stays) => eprintln!("sluice: {stays:#}"),
            }
        }
        Ok(())
    }

    /// Gives what is still there its grace time, if it has one, and says what that is.
    fn finish(&self, grace: Option<Period>, no_move: bool) -> Result<()> {
        let grace_ms = grace.map(|grace| grace.duration().as_millis() as u64);
        let node = match (grace_ms, no_move) {
            (None, false) => self.client.get(self.path.trim_end_matches("/drain"))?,
            _ => self.ask(NewDrain { grace_ms, ..NewDrain::default() })?,
        };
        let NodeStatus { name, leases, .. } = node;
        let leases = match (leases, grace) {
            (0, _) => "nothing is on it".to_owned(),
            (count, None) => format!("leases that stay there: {count}"),
            (count, Some(grace)) => format!("leases that have {grace} to leave it: {count}"),
        };
        eprintln!("sluice: node {name} is drained; {leases}");
        Ok(())
    }
}

pub(crate) fn list(arguments: &ListArgs) -> Result<ExitCode> {
    let nodes: Vec<NodeStatus> = client(&arguments.at)?.list("/nodes")?;
    let columns = &[
        ("NODE", Left),
        ("ADDRESS", Left),
        ("LABELS", Left),
        ("RELEASE", Left),
        ("GPUS", Right),
        ("LEASES", Right),
        ("STATE", Left),
    ];
    let cells = |node: &NodeStatus| {
        let labels: Vec<String> = node.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
        vec![
            node.name.clone(),
            node.address.clone(),
            if labels.is_empty() { "-".into() } else { labels.join(", ") },
            node.release.clone().unwrap_or_else(|| "-".into()),
            node.gpus.to_string(),
            node.leases.to_string(),
            state(node),
        ]
    };
    show(
        &nodes,
        arguments.output,
        "no node has joined; `sluice node --join` lends its GPUs",
        columns,
        cells,
    )?;
    Ok(ExitCode::SUCCESS)
}

/// `online`; `silent`; `online, drained 5 min ago by t1 (ops): new fans`
fn state(node: &NodeStatus) -> String {
    let mut words = vec![if node.online { "online" } else { "silent" }.to_owned()];
    words.extend(node.closed.then(|| "has no room on its disk".to_owned()));
    words.extend(node.drain.as_ref().map(|drain| {
        let why = if drain.why.is_empty() { String::new() } else { format!(": {}", drain.why) };
        format!("drained {} ago by {}{why}", since(drain.since_ms), drain.by)
    }));
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_nodes_state_says_who_has_drained_it_and_why() {
        let node = |more: serde_json::Value| -> NodeStatus {
            let mut node = json!({
                "name": "one", "address": "h:1", "online": true, "closed": false, "labels": {}, "gpus": 1, "leases": 0,
            });
            node.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            serde_json::from_value(node).unwrap()
        };
        assert_eq!(state(&node(json!({}))), "online");
        assert_eq!(state(&node(json!({ "online": false }))), "silent");
        let drained = state(&node(
            json!({ "drain": { "since_ms": super::super::lists::now_ms(), "by": "t (ops)", "why": "fans" } }),
        ));
        assert!(
            drained.starts_with("online, drained ") && drained.ends_with(" by t (ops): fans"),
            "{drained}"
        );
    }
}

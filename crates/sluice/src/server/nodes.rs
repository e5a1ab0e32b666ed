//! The nodes of a server: listed, drained, used again, and forgotten.

use std::process::ExitCode;

use anyhow::Result;
use sluice_api::client::segment;
use sluice_api::node::{NewDrain, NodeStatus};

use super::client;
use super::lists::{show, since};
use crate::cli::{ListArgs, NodeCommand};
use crate::table::Align::{Left, Right};

pub(crate) fn command(command: &NodeCommand) -> Result<ExitCode> {
    match command {
        NodeCommand::List(arguments) => return list(arguments),
        NodeCommand::Drain { at, name, undo: true, .. } => {
            let node: NodeStatus = client(at)?.delete(&format!("/nodes/{}/drain", segment(name)))?;
            eprintln!("sluice: node {} is used again", node.name);
        }
        NodeCommand::Drain { at, name, grace, why, undo: false } => {
            let grace_ms = grace.map(|grace| grace.duration().as_millis() as u64);
            let drain = NewDrain { grace_ms, why: why.clone() };
            let node: NodeStatus = client(at)?.post(&format!("/nodes/{}/drain", segment(name)), &drain)?;
            let leases = match (node.leases, grace) {
                (0, _) => "nothing is on it".to_owned(),
                (count, None) => format!("leases that go on there: {count}"),
                (count, Some(grace)) => format!("leases that have {grace} to leave it: {count}"),
            };
            eprintln!("sluice: node {} is drained; {leases}", node.name);
        }
        NodeCommand::Forget { at, name } => {
            let node: NodeStatus = client(at)?.delete(&format!("/nodes/{}", segment(name)))?;
            eprintln!("sluice: node {} is forgotten", node.name);
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn list(arguments: &ListArgs) -> Result<ExitCode> {
    let nodes: Vec<NodeStatus> = client(&arguments.at)?.list("/nodes")?;
    let columns = &[
        ("NODE", Left),
        ("ADDRESS", Left),
        ("LABELS", Left),
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

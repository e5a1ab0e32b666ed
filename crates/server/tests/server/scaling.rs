//! Events for tools that add and remove nodes.

use std::time::Instant;

use serde_json::{Value, json};
use sluice_api::lease::{Lease, LeaseState, NewLease};
use sluice_api::token::Role;

use crate::{PATIENCE, ScriptedNode, Server, ServerProcess, ask, request, settings, wait_for_state};

/// The entries of the audit log of an action, once there are so many; a node reports meanwhile.
fn entries(server: &Server, mut node: Option<&mut ScriptedNode>, action: &str, count: usize) -> Vec<Value> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut all: Vec<Value> = server.admin.list("/audit").unwrap();
        all.retain(|entry| entry["action"] == action);
        if all.len() >= count {
            return all;
        }
        assert!(Instant::now() < deadline, "{action}: {all:?}");
        if let Some(node) = &mut node {
            node.say();
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

fn detail(entry: &Value) -> Value {
    serde_json::from_str(entry["detail"].as_str().unwrap()).unwrap()
}

#[test]
fn nodes_are_wanted_once_for_leases_that_none_could_take() {
    let (_folder, server) = Server::with_tenants();
    let member = server.token("acme/research", Role::Member);
    let wanted = || NewLease { memory: 8 << 30, models: vec!["H100".into()], ..ask(500_000) };
    let first = request(&member, &wanted());
    let said = entries(&server, None, "node.wanted", 1);
    let what = detail(&said[0]);
    assert_eq!((&said[0]["subject"], &what["models"]), (&json!("any"), &json!(["H100"])));
    assert_eq!((&what["share_ppm"], &what["memory"]), (&json!(500_000), &json!(8_u64 << 30)));
    assert_eq!((&what["leases"], &what["tasks"], &what["pool"]), (&json!(1), &json!(1), &Value::Null));
    // More of the same says nothing new for a while; something else does.
    let second = request(&member, &wanted());
    request(&member, &NewLease { gpus: 2, ..wanted() });
    let said = entries(&server, None, "node.wanted", 2);
    assert_eq!((said.len(), &detail(&said[1])["gpus"]), (2, &json!(2)));
    for lease in [first, second] {
        let _: Lease = member.delete(&format!("/leases/{}", lease.id)).unwrap();
    }
}

#[test]
fn a_node_without_leases_is_told_of_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = ServerProcess::command(folder.path(), None);
    let process = ServerProcess::spawn(command.args(["--node-idle-ms", "1000"]));
    let server = Server { _process: process, _leader: None, admin: settings(folder.path()).client() };
    server.apply(crate::TENANTS).unwrap();
    let mut node = ScriptedNode::join(&server, "one", 1);
    let said = entries(&server, Some(&mut node), "node.idle", 1);
    assert_eq!((&said[0]["subject"], &detail(&said[0])["gpus"]), (&json!("one"), &json!(1)));
    let member = server.token("acme/research", Role::Member);
    let lease = request(&member, &ask(250_000));
    node.claim(&wait_for_state(&member, lease.id, LeaseState::Granted));
    wait_for_state(&member, lease.id, LeaseState::Running);
    // What waits for other nodes is looked at together with the nodes, so the lease was seen there.
    let _: Value = server.admin.post("/nodes/one/drain", &json!({})).unwrap();
    request(&member, &ask(250_000));
    entries(&server, Some(&mut node), "node.wanted", 1);
    // Once its lease has ended it is idle again: nothing was said in between.
    let _: Lease = member.delete(&format!("/leases/{}", lease.id)).unwrap();
    node.report.leases.clear();
    let said = entries(&server, Some(&mut node), "node.idle", 2);
    assert_eq!(said.len(), 2, "a node with a lease is not idle: {said:?}");
    let ended = &entries(&server, None, "lease.ended", 1)[0]["at_ms"];
    let since = &detail(&said[1])["since_ms"];
    assert!(since.as_u64() >= ended.as_u64(), "while its lease ran it was not idle: {said:?}");
}

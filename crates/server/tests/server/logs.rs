//! The log on standard error.

use serde_json::Value;
use sluice_api::lease::{Lease, LeaseState};
use sluice_api::token::{MadeToken, NewToken, Role};

use crate::{ScriptedNode, Server, ServerProcess, ask, request, settings, wait_for_state};

#[test]
fn what_becomes_of_a_lease_is_in_the_log_by_its_number() {
    let folder = tempfile::tempdir().unwrap();
    let database = crate::postgres::database_for(folder.path());
    let mut command = ServerProcess::command(folder.path(), database.as_deref());
    let log = folder.path().join("log");
    command.args(["--log-format", "json"]).stderr(std::fs::File::create(&log).unwrap());
    let process = ServerProcess::spawn(&mut command);
    let admin = settings(folder.path()).client();
    let server = Server { _process: process, _leader: None, admin };
    server.apply(crate::TENANTS).unwrap();
    let new = NewToken {
        tenant: "acme".parse().unwrap(),
        role: Role::Member,
        name: "x".into(),
        lifetime_s: 60,
        node: None,
    };
    let made: MadeToken = server.admin.post("/tokens", &new).unwrap();
    let member = server.admin.with_token(&made.secret);
    let mut node = ScriptedNode::join(&server, "one", 1);
    let lease = request(&member, &ask(1000)).id;
    node.claim(&wait_for_state(&member, lease, LeaseState::Granted));
    let _: Lease = member.delete(&format!("/leases/{lease}")).unwrap();
    drop(server);

    let text = std::fs::read_to_string(&log).unwrap();
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let complete = |event: &Value| {
        ["timestamp", "level", "target", "message"].iter().all(|field| event[field].is_string())
    };
    assert!(events.iter().all(complete), "{text}");
    let of_lease: Vec<&Value> = events.iter().filter(|event| event["lease"] == lease).collect();
    let messages: Vec<_> = of_lease.iter().filter_map(|event| event["message"].as_str()).collect();
    let granted = format!("lease {lease} of acme: granted on one");
    let ended = format!("lease {lease} of acme: ended: ended by its owner");
    assert_eq!(messages, [granted, ended]);
    assert!(of_lease.iter().all(|event| event["tenant"] == "acme" && event["level"] == "INFO"), "{text}");
    assert_eq!(of_lease[0]["node"], "one");
}

//! What was declared, or has joined, and goes again.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluice_api::bill::{Bill, Charge, Correction};
use sluice_api::lease::{Lease, LeaseState, NewLease, Place};
use sluice_api::node::{GpuStatus, Join, Joined, NodeStatus};
use sluice_api::problem::{Kind, Problem};
use sluice_api::tenant::{DeclaredTenant, TenantStatus};
use sluice_api::token::{MadeToken, Role, Token};

use crate::ledger::record;
use crate::{PATIENCE, ScriptedNode, Server, ask, problem, request, wait_for, wait_for_state};

fn conflict(refused: Result<Value, sluice_api::client::Failure>, words: &str) {
    let refused = problem(refused);
    assert!(refused.is(Kind::Conflict) && refused.detail.contains(words), "{words}: {refused:?}");
}

#[test]
fn a_tenant_goes_when_nothing_needs_it_and_its_bill_stays() {
    let (folder, server) = Server::with_tenants();
    let mut node = ScriptedNode::join(&server, "one", 1);
    let new = json!({ "tenant": "acme/sales", "role": "member", "lifetime_s": 600 });
    let made: MadeToken = server.admin.post("/tokens", &new).unwrap();
    let member = server.admin.with_token(&made.secret);
    let lease = request(&member, &ask(1000)).id;
    node.report.usage = vec![record(node.joined.node, lease, 1, "acme/sales", (0, 3_600_000))];
    node.say();
    server.apply("pools: [{name: dear, nodes: [two], access: {private: {tenants: [acme/sales]}}}]").unwrap();
    let rule = json!({ "claim": "groups", "is": "staff", "tenant": "acme/sales", "role": "member" });
    let identity =
        json!({ "identity": { "issuer": "https://id.example", "client_id": "sluice", "rules": [rule] } });
    let _: Value = server.admin.post("/apply", &identity).unwrap();
    let remove = |path: &str| server.admin.delete::<Value>(&format!("/tenants/{path}"));
    let sales = "acme%2Fsales";

    conflict(remove("acme"), "acme has tenants below it, acme/research, acme/sales");
    conflict(remove(sales), &format!("acme/sales has leases, {lease}"));
    let _: Lease = member.delete(&format!("/leases/{lease}")).unwrap();
    conflict(remove(sales), "named by pools, dear");
    server.apply("pools: [{name: dear, nodes: [two]}]").unwrap();
    conflict(remove(sales), "rules of the identity provider, for groups");
    let _: Value = server.admin.delete("/identity").unwrap();
    let own = server.token("acme/sales", Role::TenantAdmin).delete::<Value>(&format!("/tenants/{sales}"));
    assert!(problem(own).is(Kind::Forbidden), "nobody takes their own away");
    let declared: DeclaredTenant = server.admin.get(&format!("/tenants/{sales}")).unwrap();
    assert_eq!(declared.quota.unwrap().limit_milli, Some(500));
    let of_acme = server.token("acme", Role::TenantAdmin);
    let _: DeclaredTenant = of_acme.delete(&format!("/tenants/{sales}")).unwrap();
    assert!(problem(remove(sales)).is(Kind::NotFound));
    assert!(problem(member.get::<Token>("/whoami")).is(Kind::Unauthenticated), "its tokens hold no more");

    drop(server);
    let server = Server::start(folder.path());
    let tenants: Vec<TenantStatus> = server.admin.list("/tenants").unwrap();
    assert!(tenants.iter().all(|tenant| tenant.path.as_str() != "acme/sales"));
    let bill: Bill = server.admin.get("/bill?tenant=acme/sales").unwrap();
    assert_eq!(bill.records, 1);
    assert!(problem(server.admin.get::<Bill>("/bill?tenant=acme/nobody")).is(Kind::Invalid));
    let correct = |tenant: &str| {
        let new = json!({ "tenant": tenant, "micro": -7, "at_ms": 1, "reason": "it was slow" });
        server.admin.post::<Correction>("/corrections", &new)
    };
    let correction = correct("acme/sales").unwrap();
    let corrected: Bill = server.admin.get("/bill?tenant=acme/sales").unwrap();
    assert_eq!((corrected.total_micro, corrected.corrections), (bill.total_micro - 7, vec![correction]));
    assert_eq!(problem(correct("acme/nobody")).field.as_deref(), Some("tenant"));
    assert_eq!(server.apply("tenants: [{path: acme/sales}]").unwrap().changes, ["tenant acme/sales created"]);
    let member = server.admin.with_token(&made.secret);
    assert!(problem(member.get::<Token>("/whoami")).is(Kind::Unauthenticated));
    let again = request(&server.token("acme/sales", Role::Member), &ask(1000));
    assert_eq!(again.state, LeaseState::Queued);
}

#[test]
fn a_pool_goes_when_no_lease_asks_for_it() {
    let (folder, server) = Server::with_tenants();
    server.apply("pools: [{name: 'b/ b', nodes: [one]}]").unwrap_err();
    server.apply("pools: [{name: b/b, nodes: [one]}]").unwrap();
    let member = server.token("acme", Role::Member);
    let lease: Lease = member.post("/leases", &json!({ "share_ppm": 1000, "pool": "b/b" })).unwrap();
    let remove = || server.admin.delete::<Value>("/pools/b%2Fb");
    conflict(remove(), &format!("leases ask for pool b/b: {}", lease.id));
    let _: Lease = member.delete(&format!("/leases/{}", lease.id)).unwrap();
    assert!(problem(member.delete::<Value>("/pools/b%2Fb")).is(Kind::Forbidden));
    assert_eq!(server.admin.get::<Value>("/pools/b%2Fb").unwrap()["name"], "b/b");
    remove().unwrap();
    assert!(problem(remove()).is(Kind::NotFound));
    drop(server);
    let server = Server::start(folder.path());
    assert_eq!(server.admin.list::<Value>("/pools").unwrap(), [] as [Value; 0]);
}

#[test]
fn a_drained_node_gets_nothing_new_until_it_is_used_again() {
    let (folder, server) = Server::with_tenants();
    let mut node = ScriptedNode::join(&server, "one", 1);
    let member = server.token("acme", Role::Member);
    let runs = request(&member, &ask(250_000)).id;
    node.claim(&wait_for_state(&member, runs, LeaseState::Granted));
    assert!(problem(member.post::<Value>("/nodes/one/drain", &json!({}))).is(Kind::Forbidden));
    let drain = |server: &Server, body: Value| server.admin.post::<NodeStatus>("/nodes/one/drain", &body);
    assert!(problem(drain(&server, json!({ "grace_ms": 86_400_001 }))).is(Kind::Invalid));
    let drained = drain(&server, json!({ "why": "new fans" })).unwrap();
    assert_eq!((drained.leases, drained.online, drained.drain.unwrap().why.as_str()), (1, true, "new fans"));
    let waits = request(&member, &ask(250_000)).id;
    let reason = wait_for(&member, waits, |lease| lease.reason.is_some()).reason.unwrap();
    assert_eq!(reason, "node one is drained, and no other takes new leases");
    let state = |server: &Server, id: u64| server.admin.get::<Lease>(&format!("/leases/{id}")).unwrap().state;
    assert_eq!(state(&server, runs), LeaseState::Running, "what runs goes on");

    // It stays so, whoever starts again.
    drop(server);
    let server = Server::start(folder.path());
    let member = server.token("acme", Role::Member);
    node.joined = join_again(&server, "one");
    node.client = server.admin.with_token(&node.joined.token);
    node.say();
    let nodes: Vec<NodeStatus> = member.list("/nodes").unwrap();
    assert!(nodes.len() == 1 && nodes[0].drain.is_some() && nodes[0].gpus == 1, "{nodes:?}");

    // With a grace time what is there leaves, and goes elsewhere.
    let mut other = ScriptedNode::join(&server, "two", 1);
    drain(&server, json!({ "grace_ms": 0 })).unwrap();
    let told = wait_for_state(&member, runs, LeaseState::Preempting);
    assert_eq!(told.reason.as_deref(), Some("its node one is being drained"));
    node.report.leases.clear();
    node.say();
    let elsewhere = wait_for_state(&member, runs, LeaseState::Granted);
    assert_eq!((elsewhere.attempt, elsewhere.places[0].node.as_str()), (2, "two"));
    other.claim(&elsewhere);

    // Only the drained one has room for a whole one.
    let whole = request(&member, &ask(1_000_000)).id;
    let reason = wait_for(&member, whole, |lease| lease.reason.is_some()).reason.unwrap();
    assert!(reason.contains("fenced: one (drained)"), "{reason}");
    let used: NodeStatus = server.admin.delete("/nodes/one/drain").unwrap();
    assert!(used.drain.is_none());
    assert_eq!(wait_for_state(&member, whole, LeaseState::Granted).places[0].node, "one");
    let entries: Vec<Value> = server.admin.list("/audit").unwrap();
    let of_nodes = entries.iter().filter_map(|entry| entry["action"].as_str());
    // Whether nodes were wanted meanwhile depends on when it was looked.
    let is_meant = |action: &&str| action.starts_with("node.") && *action != "node.wanted";
    let of_nodes: Vec<&str> = of_nodes.filter(is_meant).collect();
    let joined = "node.joined";
    assert_eq!(of_nodes, [joined, "node.drained", joined, joined, "node.drained", "node.used_again"]);
}

#[test]
fn the_tasks_of_an_elastic_lease_leave_a_drained_node_and_the_others_go_on() {
    let (_folder, server) = Server::with_tenants();
    let mut nodes = ["one", "two"].map(|name| ScriptedNode::join(&server, name, 1));
    let member = server.token("globex", Role::Member);
    let gang = NewLease { tasks: 1, tasks_max: Some(2), ..ask(1_000_000) };
    let gang = request(&member, &gang).id;
    let both = wait_for(&member, gang, |lease| lease.places.len() == 2);
    for (node, name) in nodes.iter_mut().zip(["one", "two"]) {
        let of_node = |place: &&Place| place.node == name;
        let places: Vec<Place> = both.places.iter().filter(of_node).cloned().collect();
        assert_eq!(places.len(), 1, "a task on each");
        node.claim(&Lease { places, ..both.clone() });
    }
    wait_for_state(&member, gang, LeaseState::Running);
    let drained: NodeStatus = server.admin.post("/nodes/one/drain", &json!({ "grace_ms": 0 })).unwrap();
    assert_eq!(drained.leases, 1);
    let told: Lease = member.get(&format!("/leases/{gang}")).unwrap();
    let leaves = |lease: &Lease| -> Vec<(String, bool)> {
        lease.places.iter().map(|place| (place.node.clone(), place.leave_at_ms.is_some())).collect()
    };
    let mut seen = leaves(&told);
    seen.sort();
    assert_eq!((told.state, told.attempt), (LeaseState::Running, 1));
    assert_eq!(seen, [("one".into(), true), ("two".into(), false)]);
    let ends = nodes[0].say().end;
    assert_eq!(ends.iter().map(|attempt| attempt.lease).collect::<Vec<_>>(), [gang]);
    nodes[0].report.leases.clear();
    nodes[0].say();
    let left = wait_for(&member, gang, |lease| lease.places.len() == 1);
    assert_eq!((left.state, leaves(&left)), (LeaseState::Running, vec![("two".into(), false)]));
    assert_eq!(nodes[1].say().end, []);
    // One that cannot do without its tasks there leaves as a whole.
    let drained: NodeStatus = server.admin.post("/nodes/two/drain", &json!({ "grace_ms": 0 })).unwrap();
    assert_eq!(drained.leases, 1);
    assert_eq!(wait_for_state(&member, gang, LeaseState::Preempting).id, gang);
}

#[test]
fn a_node_that_is_silent_can_be_forgotten() {
    let (folder, server) = Server::with_tenants();
    let mut stays = ScriptedNode::join(&server, "stays", 1);
    let mut sold = ScriptedNode::join(&server, "sold", 1);
    let forget = |server: &Server, name: &str| server.admin.delete::<Value>(&format!("/nodes/{name}"));
    assert!(problem(forget(&server, "none")).is(Kind::NotFound));
    assert!(problem(server.token("acme", Role::Member).delete::<Value>("/nodes/sold")).is(Kind::Forbidden));
    conflict(forget(&server, "sold"), "node sold reports");
    let member = server.token("acme", Role::Member);
    let lease = request(&member, &ask(1_000_000)).id;
    let granted = wait_for_state(&member, lease, LeaseState::Granted);
    let (holder, other) = match granted.places[0].node.as_str() {
        "sold" => (&mut sold, &mut stays),
        _ => (&mut stays, &mut sold),
    };
    let id = holder.joined.node;
    holder.report.usage = vec![record(id, lease, 1, "acme", (0, 3_600_000))];
    holder.claim(&granted);
    let name = granted.places[0].node.clone();
    // The other one continues reporting.
    let deadline = Instant::now() + PATIENCE;
    let refused = |detail: &str| loop {
        other.say();
        let refused: Problem = problem(forget(&server, &name));
        if refused.detail.contains(detail) {
            break;
        }
        assert!(Instant::now() < deadline, "{refused:?}");
        // Without a pause a quick machine asks more often than a token may.
        std::thread::sleep(Duration::from_millis(100));
    };
    let mut refused = refused;
    refused(&format!("holds leases: {lease}"));
    let _: Lease = member.delete(&format!("/leases/{lease}")).unwrap();
    let gpu = json!({ "gpus": [{ "node": name, "gpu": 0 }], "why": "its fan rattles" });
    let _: Value = server.admin.post("/gpus/fences", &gpu).unwrap();
    refused(&format!("are fenced: {name}/0; `sluice gpu unfence {name}/0` first"));
    let _: Value = server.admin.post("/gpus/unfences", &gpu).unwrap();
    // A server that had stood still would give the silent one more time.
    let deadline = Instant::now() + PATIENCE;
    while let Err(failure) = forget(&server, &name) {
        let refused = failure.to_string();
        assert!(refused.contains("reports") && Instant::now() < deadline, "{refused}");
        other.say();
        std::thread::sleep(Duration::from_millis(100));
    }
    let gpus: Vec<GpuStatus> = member.list("/gpus").unwrap();
    assert!(gpus.len() == 1 && gpus[0].node != name);
    let ended: Lease = member.get(&format!("/leases/{lease}")).unwrap();
    assert_eq!(ended.places[0].node, name, "its name is remembered");
    let charged = |server: &Server| -> Vec<String> {
        let charges: Vec<Charge> = server.admin.list("/charges?tenant=acme").unwrap();
        charges.into_iter().map(|charge| charge.node).collect()
    };
    assert_eq!(charged(&server), vec![name.clone(); 2], "reserved and used");
    let path = format!("/nodes/{}/reports", holder.joined.node);
    assert!(problem(holder.client.post::<Value>(&path, &holder.report)).is(Kind::Unauthenticated));

    // A new one does not get its number, and it is itself when it comes back.
    drop(server);
    let server = Server::start(folder.path());
    assert_eq!(charged(&server), vec![name.clone(); 2]);
    let new = ScriptedNode::join(&server, "new", 1).joined.node;
    assert!(![holder.joined.node, other.joined.node].contains(&new));
    assert_eq!(join_again(&server, &name).node, holder.joined.node);
}

fn join_again(server: &Server, name: &str) -> Joined {
    let new = json!({ "tenant": "/", "role": "node", "lifetime_s": 60 });
    let made: MadeToken = server.admin.post("/tokens", &new).unwrap();
    let join = Join {
        name: name.into(),
        address: "10.0.0.7:7583".into(),
        gpus: vec![ScriptedNode::gpu()],
        labels: Default::default(),
        release: env!("CARGO_PKG_VERSION").into(),
    };
    server.admin.with_token(&made.secret).post("/nodes", &join).unwrap()
}

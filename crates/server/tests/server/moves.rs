//! Running leases that move from node to node.

use serde_json::json;
use sluice_api::client::{Client, Failure};
use sluice_api::grant::{Grant, Verifier};
use sluice_api::lease::{Lease, LeaseHistory, LeaseState, NewLease};
use sluice_api::moving::{MoveOrder, MovePlan, MoveResult, MoveState};
use sluice_api::node::{Attempt, GpuStatus, NodeStatus, SessionReport};
use sluice_api::problem::Kind;
use sluice_api::tenant::TenantStatus;
use sluice_api::token::Role;
use sluice_api::usage::{AsideRecord, UsageRecord};
use tempfile::TempDir;

use crate::{ScriptedNode, Server, ask, problem, request, wait_for, wait_for_state};

const GIB: u64 = 1 << 30;

struct Started {
    folder: TempDir,
    /// Except while it is started again.
    server: Option<Server>,
    /// With one GPU each.
    nodes: [ScriptedNode; 2],
    member: Client,
}

/// A server and two nodes with a GPU of 16 GiB each.
fn start() -> Started {
    let (folder, server) = Server::with_tenants();
    let nodes = ["one", "two"].map(|name| ScriptedNode::join(&server, name, 1));
    let member = server.token("acme/research", Role::Member);
    Started { folder, server: Some(server), nodes, member }
}

impl Started {
    fn admin(&self) -> &Client {
        &self.server.as_ref().unwrap().admin
    }

    fn restart_server(&mut self) {
        self.server = None;
        let server = Server::start(self.folder.path());
        for node in &mut self.nodes {
            node.client = server.admin.with_token(&node.joined.token);
        }
        self.member = server.token("acme/research", Role::Member);
        self.server = Some(server);
    }

    /// A lease whose program runs on node one.
    fn running(&mut self, ask: &NewLease) -> Lease {
        self.running_on(0, ask)
    }

    /// A lease whose program runs on this node of the two.
    fn running_on(&mut self, node: usize, ask: &NewLease) -> Lease {
        let path = ["/nodes/two/drain", "/nodes/one/drain"][node];
        let _: NodeStatus = self.admin().post(path, &json!({})).unwrap();
        let lease = request(&self.member, ask);
        self.nodes[node].claim(&wait_for_state(&self.member, lease.id, LeaseState::Granted));
        let _: NodeStatus = self.admin().delete(path).unwrap();
        wait_for_state(&self.member, lease.id, LeaseState::Running)
    }

    fn migrate(&self, lease: &Lease, body: serde_json::Value) -> Result<Lease, Failure> {
        self.admin().post(&format!("/leases/{}/moves", lease.id), &body)
    }

    /// What node one is to do.
    fn order(&mut self) -> MoveOrder {
        let [order] = &self.nodes[0].say().moves[..] else { panic!("one order") };
        order.clone()
    }

    /// Node one says what became of an order.
    fn answer(&mut self, order: &MoveOrder, refused: Option<&str>) {
        self.answer_from(0, order, refused);
    }

    /// This node of the two says what became of an order.
    fn answer_from(&mut self, node: usize, order: &MoveOrder, refused: Option<&str>) {
        let (attempt, number) = (order.attempt, order.number);
        let node = &mut self.nodes[node];
        if refused.is_none() {
            node.report.leases.retain(|other| *other != attempt);
        }
        let refused = refused.map(str::to_owned);
        node.report.moved = vec![MoveResult { attempt, number, refused, bytes: GIB, stall_us: 7 }];
        node.say();
        node.report.moved.clear();
    }

    /// A lease on each node, and one that fits only if that of node one moves.
    fn in_the_way(&mut self) -> [Lease; 3] {
        let ask = NewLease { memory: GIB, ..ask(250_000) };
        let (on_one, on_two) = (self.running(&ask), self.running_on(1, &ask));
        let whole = request(&self.member, &crate::ask(1_000_000));
        wait_for(&self.member, on_one.id, |lease| lease.moving.is_some());
        [on_one, on_two, whole]
    }

    /// What became of a lease, without what comes before a move, and why.
    fn events(&self, id: u64) -> Vec<(String, String)> {
        let history: LeaseHistory = self.member.get(&format!("/leases/{id}/history")).unwrap();
        let events = history.items.into_iter().skip_while(|event| event.action != "lease.moving");
        let reason = |detail: &serde_json::Value| detail["reason"].as_str().unwrap_or_default().to_owned();
        events.map(|event| (event.action["lease.".len()..].to_owned(), reason(&event.detail))).collect()
    }

    fn leased(&self) -> [(u32, u64); 2] {
        let gpus: Vec<GpuStatus> = self.admin().list("/gpus").unwrap();
        [0, 1].map(|node: usize| (gpus[node].share_leased_ppm, gpus[node].memory_leased))
    }

    fn lease(&self, id: u64) -> Lease {
        self.member.get(&format!("/leases/{id}")).unwrap()
    }

    fn node(&self, name: &str) -> NodeStatus {
        self.admin().get(&format!("/nodes/{name}")).unwrap()
    }
}

fn four_gib() -> NewLease {
    NewLease { memory: 4 * GIB, ..ask(250_000) }
}

fn attempt_of(lease: &Lease) -> Attempt {
    Attempt { lease: lease.id, attempt: lease.attempt, task: 0 }
}

#[test]
fn a_moved_lease_that_its_new_node_never_lists_is_over() {
    let mut all = start();
    let lease = all.running(&four_gib());
    all.migrate(&lease, json!({})).unwrap();
    let order = all.order();
    all.answer(&order, None);
    let states: Vec<LeaseState> = (0..3)
        .map(|_| {
            all.nodes[1].say();
            all.lease(lease.id).state
        })
        .collect();
    assert_eq!(states, [LeaseState::Running, LeaseState::Running, LeaseState::Ended]);
}

#[test]
fn a_lease_moves_and_counts_once() {
    let mut all = start();
    let lease = all.running(&four_gib());
    let held = |all: &Started| {
        let tenants: Vec<TenantStatus> = all.admin().list("/tenants").unwrap();
        let tenant = tenants.iter().find(|tenant| tenant.path.as_str() == "acme/research").unwrap();
        (tenant.held_milli, tenant.held_memory_mib, tenant.leases)
    };
    let before = held(&all);
    let sent = all.migrate(&lease, json!({})).unwrap();
    let moving = sent.moving.unwrap();
    assert_eq!((moving.state, moving.node.as_deref(), moving.gpu), (MoveState::Sent, Some("two"), Some(0)));
    assert_eq!(sent.places[0].node, "one", "it is where it was");
    assert_eq!(all.leased(), [(250_000, 4 * GIB); 2], "both places are held");
    assert_eq!(held(&all), before, "and count once towards quotas");
    let (order, again) = (all.order(), all.order());
    assert_eq!((order.attempt, order.number), (attempt_of(&lease), 1));
    assert_eq!(order.number, again.number, "until there is a result");
    let verifier = Verifier::from_text(&all.nodes[1].joined.grant_key).unwrap();
    let grant: Grant = verifier.check(&order.grant, all.nodes[1].joined.node, 0).unwrap();
    assert_eq!((grant.lease, grant.attempt, grant.moves), (lease.id, lease.attempt, 1));
    assert_eq!((grant.share_ppm, grant.memory, &grant.gpus[..]), (250_000, 4 * GIB, &[0][..]));
    let twice = problem(all.migrate(&lease, json!({})));
    assert!(twice.is(Kind::Conflict) && twice.detail.contains("is moving already"), "{twice:?}");
    let resize: Result<Lease, Failure> =
        all.member.patch(&format!("/leases/{}", lease.id), &json!({ "share_ppm": 500_000 }));
    assert!(problem(resize).detail.contains("is moving to another node"));

    // It is on its way: the other node has it, and may lose it again.
    all.nodes[1].report.arriving = vec![attempt_of(&lease)];
    assert!(all.nodes[1].say().end.is_empty());
    all.answer(&order, None);
    // Its reports may be older than what node one has said.
    assert!(all.nodes[1].say().end.is_empty());
    all.nodes[1].report.arriving.clear();
    assert!(all.nodes[1].say().end.is_empty());
    assert_eq!(all.lease(lease.id).state, LeaseState::Running);
    all.nodes[1].report.leases = vec![attempt_of(&lease)];
    assert!(all.nodes[1].say().end.is_empty());
    let moved = wait_for(&all.member, lease.id, |lease| lease.places[0].node == "two");
    assert_eq!((moved.state, moved.attempt), (LeaseState::Running, 1));
    let moving = moved.moving.unwrap();
    assert_eq!((moving.state, moving.bytes, moving.stall_us), (MoveState::Moved, Some(GIB), Some(7)));
    assert_eq!(all.leased(), [(0, 0), (250_000, 4 * GIB)]);
    assert_eq!(held(&all), before);
    assert!(all.nodes[0].say().moves.is_empty() && all.nodes[1].say().moves.is_empty());

    let history: LeaseHistory = all.member.get(&format!("/leases/{}/history", lease.id)).unwrap();
    let actions: Vec<&str> = history.items.iter().map(|event| event.action.as_str()).collect();
    assert_eq!(actions, ["requested", "granted", "moving", "moved"].map(|action| format!("lease.{action}")));
    // And ends there.
    all.nodes[1].report.leases.clear();
    all.nodes[1].say();
    wait_for_state(&all.member, lease.id, LeaseState::Ended);
    assert_eq!(all.leased(), [(0, 0); 2]);
}

#[test]
fn usage_of_both_nodes_counts() {
    let mut all = start();
    let lease = all.running(&four_gib());
    let record = |all: &Started, node: usize, sequence, ago_ms: u64| {
        let id = all.nodes[node].joined.node;
        let now_ms =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
        let from_ms = now_ms - ago_ms;
        let record = crate::ledger::record(id, lease.id, sequence, "acme/research", (0, 0));
        UsageRecord { from_ms, until_ms: from_ms + 500, share_ppm: 250_000, memory_mib: 4096, ..record }
    };
    let says = |all: &mut Started, node: usize, record| {
        all.nodes[node].report.usage = vec![record];
        all.nodes[node].say_only();
        all.nodes[node].report.usage.clear();
        let aside: Vec<AsideRecord> = all.admin().list("/usage/aside").unwrap();
        aside.into_iter().map(|aside| aside.reason).collect::<Vec<_>>()
    };
    let early = record(&all, 1, 1, 1000);
    let reasons = says(&mut all, 1, early);
    assert!(reasons.len() == 1 && reasons[0].contains("granted to another node"), "{reasons:?}");
    all.migrate(&lease, json!({})).unwrap();
    let order = all.order();
    // The other node is heard of first.
    let there = record(&all, 1, 2, 1000);
    assert_eq!(says(&mut all, 1, there).len(), 1);
    all.answer(&order, None);
    let late = record(&all, 0, 1, 1500);
    assert_eq!(says(&mut all, 0, late).len(), 1);
    let there = record(&all, 1, 3, 500);
    assert_eq!(says(&mut all, 1, there).len(), 1);
    let history: LeaseHistory = all.member.get(&format!("/leases/{}/history", lease.id)).unwrap();
    assert_eq!(history.used.reserved_ppm_ms, 3 * 500 * 250_000);
}

#[test]
fn a_refused_move_leaves_everything_as_it_was() {
    let mut all = start();
    let lease = all.running(&four_gib());
    all.migrate(&lease, json!({ "node": "two", "gpu": 0 })).unwrap();
    let order = all.order();
    all.answer(&order, Some("it holds graphs"));
    let stays = all.lease(lease.id);
    let moving = stays.moving.unwrap();
    assert_eq!((moving.state, moving.reason.as_deref()), (MoveState::Refused, Some("it holds graphs")));
    assert_eq!((stays.state, &*stays.places[0].node), (LeaseState::Running, "one"));
    assert_eq!(all.leased(), [(250_000, 4 * GIB), (0, 0)]);
    // The other node does not know yet that it stays.
    all.nodes[1].report.arriving = vec![attempt_of(&lease)];
    assert_eq!(all.nodes[1].say().end, [attempt_of(&lease)]);
    all.nodes[1].report.arriving.clear();
    // It keeps its place, and what was held for it elsewhere is free.
    let whole = request(&all.member, &ask(1_000_000));
    let granted = wait_for_state(&all.member, whole.id, LeaseState::Granted);
    assert_eq!(granted.places[0].node, "two");
    let full = problem(all.migrate(&lease, json!({ "node": "two" })));
    assert!(full.detail.contains("node two has no room for it now"), "{full:?}");
    let full = problem(all.migrate(&lease, json!({})));
    assert!(full.detail.contains("no GPU of the same kind on another node has room"), "{full:?}");
    // An earlier result is none of a later order.
    let _: Lease = all.member.delete(&format!("/leases/{}", whole.id)).unwrap();
    all.nodes[1].say();
    wait_for_state(&all.member, whole.id, LeaseState::Ended);
    crate::insist(|| all.migrate(&lease, json!({})));
    all.answer(&order, None);
    all.nodes[0].report.leases = vec![attempt_of(&lease)];
    assert_eq!(all.lease(lease.id).moving.unwrap().state, MoveState::Sent);
}

#[test]
fn a_node_that_has_forgotten_a_move_is_not_believed_to_have_ended_it() {
    let mut all = start();
    for is_there in [true, false] {
        let lease = all.running(&four_gib());
        all.migrate(&lease, json!({})).unwrap();
        all.nodes[1].report.arriving = vec![attempt_of(&lease)];
        all.nodes[1].say();
        // It was started again.
        all.nodes[0].report.leases.clear();
        all.nodes[0].say();
        all.nodes[1].say();
        assert_eq!(all.lease(lease.id).state, LeaseState::Running, "the other node may get it yet");
        all.nodes[1].report.arriving.clear();
        all.nodes[1].report.leases.extend(is_there.then(|| attempt_of(&lease)));
        assert!(all.nodes[1].say().end.is_empty());
        let expect = if is_there { LeaseState::Running } else { LeaseState::Ended };
        let lease = wait_for_state(&all.member, lease.id, expect);
        assert!(!is_there || lease.places[0].node == "two", "{lease:?}");
        let _: Lease = all.member.delete(&format!("/leases/{}", lease.id)).unwrap();
        all.nodes[1].report.leases.clear();
        all.nodes[1].say();
        assert_eq!(all.leased(), [(0, 0); 2]);
    }
}

#[test]
fn a_server_that_starts_again_goes_on_with_a_move() {
    let mut all = start();
    let lease = all.running(&four_gib());
    all.migrate(&lease, json!({})).unwrap();
    let order = all.order();
    all.restart_server();
    all.nodes[1].say();
    assert_eq!(all.lease(lease.id).moving.unwrap().state, MoveState::Sent);
    let again = all.order();
    assert_eq!((again.attempt, again.number), (order.attempt, order.number));
    assert_eq!(all.leased(), [(250_000, 4 * GIB); 2]);
    // What is free beside it is found beside both places.
    let whole = request(&all.member, &ask(1_000_000));
    wait_for(&all.member, whole.id, |lease| lease.reason.is_some());
    let half = request(&all.member, &ask(500_000));
    wait_for_state(&all.member, half.id, LeaseState::Granted);
    all.answer(&order, None);
    let moved = wait_for(&all.member, lease.id, |lease| lease.places[0].node == "two");
    assert_eq!(moved.state, LeaseState::Running);
}

#[test]
fn what_cannot_move_is_named_with_the_reason() {
    let mut all = start();
    let lease = all.running(&four_gib());
    let check = |all: &Started, lease: &Lease, body: serde_json::Value, words: &str| {
        let problem = problem(all.migrate(lease, body));
        assert!(problem.is(Kind::Conflict) && problem.detail.contains(words), "{words}: {problem:?}");
    };
    check(&all, &lease, json!({ "node": "six" }), "no node six");
    check(&all, &lease, json!({ "node": "one" }), "on that node already");
    check(&all, &lease, json!({ "node": "two", "gpu": 1 }), "GPU 1 of node two has no room");
    let other = ScriptedNode::gpu();
    let larger = sluice_api::node::Gpu { memory: 32 << 30, ..other };
    ScriptedNode::join_with(all.admin(), "large", vec![larger]).unwrap();
    check(
        &all,
        &lease,
        json!({ "node": "large" }),
        "has a GPU of the same kind (scripted GPU, 16384 MiB, pool default)",
    );
    let _: NodeStatus = all.admin().post("/nodes/two/drain", &json!({})).unwrap();
    check(&all, &lease, json!({ "node": "two" }), "is drained");
    check(&all, &lease, json!({}), "no GPU of the same kind on another node has room");
    let suspended: Lease =
        all.member.patch(&format!("/leases/{}", lease.id), &json!({ "suspended": true })).unwrap();
    check(&all, &suspended, json!({}), "is being resized");
    let waits = request(&all.member, &ask(1_000_000));
    check(&all, &waits, json!({}), "only a lease whose program runs can move");
}

#[test]
fn a_drain_moves_what_can_move() {
    let mut all = start();
    let leases = [all.running(&four_gib()), all.running(&four_gib())];
    let large = all.running(&NewLease { memory: 2 * GIB, ..ask(500_000) });
    // Node two has room for two of them.
    let beside = request(&all.member, &NewLease { memory: GIB, ..ask(400_000) });
    let beside = wait_for_state(&all.member, beside.id, LeaseState::Granted);
    assert_eq!(beside.places[0].node, "two");
    all.nodes[1].claim(&beside);
    let both: Result<NodeStatus, Failure> =
        all.admin().post("/nodes/one/drain", &json!({ "migrate": true, "grace_ms": 1 }));
    assert!(problem(both).is(Kind::Invalid));
    let drained: NodeStatus = all.admin().post("/nodes/one/drain", &json!({ "migrate": true })).unwrap();
    let found: Vec<(u64, MoveState)> =
        drained.moving.iter().map(|moving| (moving.lease, moving.moving.state)).collect();
    assert_eq!(
        found,
        [(leases[0].id, MoveState::Sent), (leases[1].id, MoveState::Sent), (large.id, MoveState::Refused)]
    );
    assert!(drained.moving[2].moving.reason.as_ref().is_some_and(|reason| reason.contains("has room")));
    let orders = all.nodes[0].say().moves;
    assert_eq!(orders.len(), 2);
    all.nodes[1].report.leases.extend(orders.iter().map(|order| order.attempt));
    orders.iter().for_each(|order| all.answer(order, None));
    assert!(all.nodes[1].say().end.is_empty());
    let node = all.node("one");
    assert_eq!((node.leases, node.moving.len()), (1, 1));
    assert_eq!(all.lease(large.id).state, LeaseState::Running, "it continues to its end");
    // A grace time is for what has stayed.
    let _: NodeStatus = all.admin().post("/nodes/one/drain", &json!({ "grace_ms": 60_000 })).unwrap();
    wait_for_state(&all.member, large.id, LeaseState::Preempting);
    assert!(leases.iter().all(|lease| all.lease(lease.id).state == LeaseState::Running));
}

#[test]
fn a_lease_moves_so_that_another_one_fits() {
    let mut all = start();
    let [on_one, on_two, whole] = all.in_the_way();
    let waits = all.lease(whole.id);
    let reason = waits.reason.unwrap();
    let moves = format!("its place on one is being cleared: lease {} moves to another node", on_one.id);
    assert!(waits.state == LeaseState::Queued && reason == moves, "{reason}");
    let order = all.order();
    assert_eq!((order.attempt, order.number), (attempt_of(&on_one), 1));
    assert_eq!(all.leased(), [(250_000, GIB), (500_000, 2 * GIB)], "the room is held at both places");
    all.answer(&order, None);
    all.nodes[1].report.leases.push(attempt_of(&on_one));
    all.nodes[1].say();
    let granted = wait_for_state(&all.member, whole.id, LeaseState::Granted);
    assert_eq!(granted.places[0].node, "one");
    let moved = all.lease(on_one.id);
    assert_eq!((moved.state, moved.attempt, &*moved.places[0].node), (LeaseState::Running, 1, "two"));
    assert_eq!(all.lease(on_two.id).moving, None);
    let why = format!("so that lease {} of acme/research fits in its place", whole.id);
    let pairs = [("moving".to_owned(), why), ("moved".to_owned(), String::new())];
    assert_eq!(all.events(on_one.id), pairs);
}

#[test]
fn a_lease_that_its_node_does_not_move_starts_again_so_that_another_one_fits() {
    let mut all = start();
    let [on_one, on_two, whole] = all.in_the_way();
    let order = all.order();
    all.answer(&order, Some("it holds graphs"));
    // The other one might move as well.
    wait_for(&all.member, on_two.id, |lease| lease.moving.is_some());
    let [order] = &all.nodes[1].say().moves[..] else { panic!("one order") };
    all.answer_from(1, &order.clone(), Some("it holds arrays"));
    wait_for_state(&all.member, on_one.id, LeaseState::Preempting);
    let events = all.events(on_one.id);
    let why = "it does not move there while it runs: it holds graphs";
    let [moving, refused, preempted] = &events[..] else { panic!("{events:?}") };
    assert_eq!((&*moving.0, &*refused.0, &*preempted.0), ("moving", "move_refused", "preempted"));
    assert!(refused.1 == "it holds graphs" && preempted.1.ends_with(why), "{events:?}");
    // Its program ends.
    all.nodes[0].report.leases.clear();
    all.nodes[0].say();
    let granted = wait_for_state(&all.member, whole.id, LeaseState::Granted);
    let again = wait_for_state(&all.member, on_one.id, LeaseState::Granted);
    assert_eq!((&*granted.places[0].node, &*again.places[0].node, again.attempt), ("one", "two", 2));
    assert!(all.nodes[0].say().moves.is_empty());
}

#[test]
fn a_server_that_starts_again_grants_the_place_of_what_moves_when_it_has_left() {
    let mut all = start();
    let [on_one, _, whole] = all.in_the_way();
    let order = all.order();
    all.restart_server();
    all.nodes[1].say();
    let again = all.order();
    assert_eq!((again.attempt, again.number), (order.attempt, order.number));
    wait_for(&all.member, whole.id, |lease| {
        lease.reason.as_ref().is_some_and(|reason| reason.contains("moves to another node"))
    });
    assert_eq!(all.lease(whole.id).state, LeaseState::Queued);
    all.answer(&order, None);
    all.nodes[1].report.leases.push(attempt_of(&on_one));
    all.nodes[1].say();
    assert_eq!(wait_for_state(&all.member, whole.id, LeaseState::Granted).places[0].node, "one");
    assert_eq!(all.lease(on_one.id).attempt, 1);
}

#[test]
fn a_lease_that_ends_while_it_moves_makes_room_all_the_same() {
    let mut all = start();
    let [on_one, _, whole] = all.in_the_way();
    all.order();
    let _: Lease = all.member.delete(&format!("/leases/{}", on_one.id)).unwrap();
    assert_eq!(all.nodes[0].say().end, [attempt_of(&on_one)]);
    all.nodes[1].report.arriving = vec![attempt_of(&on_one)];
    assert_eq!(all.nodes[1].say().end, [attempt_of(&on_one)]);
    all.nodes[0].report.leases.clear();
    all.nodes[1].report.arriving.clear();
    all.nodes[0].say();
    all.nodes[1].say();
    assert_eq!(wait_for_state(&all.member, whole.id, LeaseState::Granted).places[0].node, "one");
    assert_eq!(all.leased()[1], (250_000, GIB));
}

/// A program of a lease, as its node reports it.
fn program(lease: &Lease, unmovable: Option<&[&str]>) -> SessionReport {
    let unmovable = unmovable.map(|reasons| reasons.iter().map(|&reason| reason.to_owned()).collect());
    SessionReport { unmovable, memory_used: GIB, ..crate::leases::session(lease.id) }
}

#[test]
fn a_plan_of_a_move_says_what_is_known_and_moves_nothing() {
    let mut all = start();
    let lease = all.running(&four_gib());
    let path = format!("/leases/{}/moves/plan", lease.id);
    let plan =
        |all: &Started, options: &str| -> MovePlan { all.admin().get(&format!("{path}{options}")).unwrap() };
    let says = |all: &mut Started, unmovable| {
        all.nodes[0].report.sessions = vec![program(&lease, unmovable)];
        all.nodes[0].say();
        plan(all, "")
    };
    // On a busy machine the nodes may have been silent for too long by now, and nothing is planned.
    let known = (0..1000).find_map(|_| {
        all.nodes.iter_mut().for_each(|node| _ = node.say());
        let planned = plan(&all, "");
        (planned.reasons.len() == 1).then_some(planned)
    });
    assert_eq!(known.unwrap().reasons, ["no program of it has used its GPU yet"]);
    let unknown = says(&mut all, None);
    assert!(unknown.reasons.is_empty() && !unknown.is_asked, "{unknown:?}");
    let (node, gpu) = (Some("two".to_owned()), Some(0));
    let expect = MovePlan { node, gpu, bytes: Some(GIB), is_asked: true, ..MovePlan::default() };
    assert_eq!(says(&mut all, Some(&[])), expect);
    assert_eq!(plan(&all, "?node=two&gpu=0"), expect);
    let kept = says(&mut all, Some(&["it holds graphs", "it has device resources"]));
    assert_eq!(kept.reasons, ["it holds graphs", "it has device resources"]);
    let here = plan(&all, "?node=one");
    assert!(here.reasons.last().unwrap().contains("on that node already"), "{here:?}");
    let nowhere = problem(all.admin().get::<MovePlan>(&format!("{path}?node=nine")));
    assert!(nowhere.is(Kind::Conflict) && nowhere.detail.contains("there is no node nine"), "{nowhere:?}");
    assert!(all.nodes[0].say().moves.is_empty() && all.lease(lease.id).moving.is_none());

    // What the last move took says what the next one takes.
    says(&mut all, Some(&[]));
    all.migrate(&lease, json!({})).unwrap();
    let order = all.order();
    all.answer(&order, None);
    let moved = plan(&all, "");
    assert!(moved.reasons[0].contains("has only just moved"), "{moved:?}");
    all.nodes[0].report.sessions.clear();
    all.nodes[1].report.leases = vec![attempt_of(&lease)];
    all.nodes[1].report.sessions = vec![program(&lease, Some(&[]))];
    all.nodes[0].say();
    all.nodes[1].say();
    let back = plan(&all, "");
    assert_eq!((back.node.as_deref(), back.stall_us, &back.reasons[..]), (Some("one"), Some(7), &[][..]));
}

#[test]
fn what_its_node_says_cannot_move_is_not_moved_so_that_another_fits() {
    let mut all = start();
    let ask = NewLease { memory: GIB, ..ask(250_000) };
    let (on_one, on_two) = (all.running(&ask), all.running_on(1, &ask));
    all.nodes[0].report.sessions = vec![program(&on_one, Some(&["it holds graphs"]))];
    all.nodes[1].report.sessions = vec![program(&on_two, Some(&[]))];
    all.nodes[0].say();
    all.nodes[1].say();
    request(&all.member, &crate::ask(1_000_000));
    let moving = wait_for(&all.member, on_two.id, |lease| lease.moving.is_some());
    assert_eq!(moving.moving.unwrap().node.as_deref(), Some("one"));
    assert_eq!(all.lease(on_one.id).moving, None);
}

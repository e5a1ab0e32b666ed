//! Running leases that get more and less.

use serde_json::json;
use sluice_api::client::{Client, Failure};
use sluice_api::grant::{Grant, Verifier};
use sluice_api::lease::{Lease, LeaseHistory, LeaseState, NewLease, ResizeState};
use sluice_api::node::{GpuStatus, Resized, VacatedLease};
use sluice_api::problem::Kind;
use sluice_api::tenant::TenantStatus;
use sluice_api::token::Role;
use tempfile::TempDir;

use crate::{ScriptedNode, Server, ask, problem, request, wait_for, wait_for_state};

const GIB: u64 = 1 << 30;

/// A server, a node with one GPU of 16 GiB, and a member of acme/research.
fn start() -> (TempDir, Server, ScriptedNode, Client) {
    let (folder, server) = Server::with_tenants();
    let node = ScriptedNode::join(&server, "one", 1);
    let member = server.token("acme/research", Role::Member);
    (folder, server, node, member)
}

/// A lease whose program runs.
fn running(node: &mut ScriptedNode, client: &Client, ask: &NewLease) -> Lease {
    let lease = request(client, ask);
    node.claim(&wait_for_state(client, lease.id, LeaseState::Granted));
    wait_for_state(client, lease.id, LeaseState::Running)
}

fn resize(client: &Client, id: u64, body: serde_json::Value) -> Result<Lease, Failure> {
    client.patch(&format!("/leases/{id}"), &body)
}

/// What the server has the node do, as the node reads it.
fn grants(node: &ScriptedNode, texts: &[String]) -> Vec<Grant> {
    let verifier = Verifier::from_text(&node.joined.grant_key).unwrap();
    texts.iter().map(|text| verifier.check(text, node.joined.node, 0).unwrap()).collect()
}

/// The node says what became of the resize of the lease.
fn answer(node: &mut ScriptedNode, lease: &Lease, version: u32, refused: Option<&str>) {
    let attempt = *node.report.leases.iter().find(|attempt| attempt.lease == lease.id).unwrap();
    let resized = Resized { attempt, version, refused: refused.map(str::to_owned) };
    node.report.resized.retain(|other| other.attempt != attempt);
    node.report.resized.push(resized);
    node.say();
}

fn leased(server: &Server) -> (u32, u64) {
    let gpus: Vec<GpuStatus> = server.admin.list("/gpus").unwrap();
    (gpus[0].share_leased_ppm, gpus[0].memory_leased)
}

#[test]
fn a_running_lease_counts_as_the_larger_size_until_its_node_has_the_new_one() {
    let (_folder, server, mut node, member) = start();
    let lease = running(&mut node, &member, &ask(250_000));
    assert!(node.say().resize.is_empty());

    let sent = resize(&member, lease.id, json!({ "share_ppm": 500_000, "memory": 6 * GIB })).unwrap();
    let resizing = sent.resizing.unwrap();
    assert_eq!((resizing.state, resizing.share_ppm, resizing.memory), (ResizeState::Sent, 500_000, 6 * GIB));
    assert_eq!((sent.share_ppm, sent.memory), (250_000, 4 * GIB), "it has what it had");
    assert_eq!(leased(&server), (500_000, 6 * GIB));
    let handed: Vec<String> = sent.places.iter().filter_map(|place| place.resize.clone()).collect();
    let (first, again) = (node.say().resize, node.say().resize);
    for texts in [handed, first, again] {
        let [grant] = &grants(&node, &texts)[..] else { panic!("one grant, not {texts:?}") };
        assert_eq!(
            (grant.lease, grant.version, grant.share_ppm, grant.memory),
            (lease.id, 1, 500_000, 6 * GIB)
        );
    }
    let again = resize(&member, lease.id, json!({ "share_ppm": 100_000 }));
    assert!(problem(again).detail.contains("being resized already"));
    answer(&mut node, &lease, 1, None);
    let grown = wait_for(&member, lease.id, |lease| lease.resizing.is_none());
    assert_eq!((grown.share_ppm, grown.memory, grown.limit_ppm), (500_000, 6 * GIB, 1_000_000));
    assert!(node.say().resize.is_empty(), "it is said no more");

    // What it gives back is nobody's before its node has taken it away.
    resize(&member, lease.id, json!({ "share_ppm": 100_000, "memory": GIB })).unwrap();
    let other = request(&member, &ask(900_000));
    wait_for(&member, other.id, |lease| lease.reason.is_some());
    assert_eq!(leased(&server), (500_000, 6 * GIB));
    answer(&mut node, &lease, 2, None);
    wait_for_state(&member, other.id, LeaseState::Granted);
    assert_eq!(leased(&server).0, 1_000_000);

    let history: LeaseHistory = member.get(&format!("/leases/{}/history", lease.id)).unwrap();
    let actions: Vec<&str> = history.items.iter().map(|event| event.action.as_str()).collect();
    let expect = ["requested", "granted", "resizing", "resized", "resizing", "resized"];
    assert_eq!(actions, expect.map(|action| format!("lease.{action}")), "{history:?}");
    let by = |at: usize| history.items[at].actor.contains("(itself)");
    assert!(!by(2) && by(3), "{history:?}");
    assert_eq!(history.asked.share_ppm, 100_000, "queued again it asks for what it has");
}

#[test]
fn a_refused_resize_leaves_the_lease_as_it_was() {
    let (_folder, server, mut node, member) = start();
    let lease = running(&mut node, &member, &NewLease { memory: 4 * GIB, hard_cap: true, ..ask(250_000) });
    resize(&member, lease.id, json!({ "memory": GIB, "share_ppm": 500_000 })).unwrap();
    answer(&mut node, &lease, 1, Some("its programs hold 3.0 GiB"));
    let refused = wait_for(&member, lease.id, |lease| {
        lease.resizing.as_ref().is_some_and(|resizing| resizing.state == ResizeState::Refused)
    });
    assert_eq!(refused.resizing.unwrap().reason.as_deref(), Some("its programs hold 3.0 GiB"));
    assert_eq!((refused.share_ppm, refused.limit_ppm, refused.memory), (250_000, 250_000, 4 * GIB));
    assert_eq!(leased(&server), (250_000, 4 * GIB));
    assert!(node.say().resize.is_empty());
    let history: LeaseHistory = member.get(&format!("/leases/{}/history", lease.id)).unwrap();
    assert_eq!(history.items.last().unwrap().action, "lease.resize_refused");
    assert_eq!((history.asked.share_ppm, history.asked.hard_cap), (250_000, true));
    // A word about an earlier change changes nothing.
    resize(&member, lease.id, json!({ "memory": 2 * GIB })).unwrap();
    answer(&mut node, &lease, 1, None);
    let lease: Lease = member.get(&format!("/leases/{}", lease.id)).unwrap();
    assert_eq!(lease.resizing.unwrap().state, ResizeState::Sent);
}

#[test]
fn what_has_no_room_or_quota_is_refused_with_the_reason_or_waits() {
    let (_folder, server, mut node, member) = start();
    let lease = running(&mut node, &member, &NewLease { memory: 4 * GIB, ..ask(250_000) });
    let sales = server.token("acme/sales", Role::Member);
    let other = running(&mut node, &sales, &NewLease { memory: 8 * GIB, ..ask(500_000) });
    let check = |body: serde_json::Value, words: &str| {
        let problem = problem(resize(&member, lease.id, body.clone()));
        assert!(problem.is(Kind::Conflict) && problem.detail.contains(words), "{body}: {problem:?}");
    };
    check(json!({ "share_ppm": 500_001 }), "up to 50 % of the compute and 8192 MiB");
    check(json!({ "memory": 8 * GIB + 1 }), "up to 50 % of the compute and 8192 MiB");
    check(json!({ "memory": 17 * GIB }), "has 16384 MiB of memory");
    check(json!({ "share_ppm": 0 }), "a share is 1 to");
    check(json!({ "limit_ppm": 249_999 }), "not below the share (25 %)");
    check(json!({ "limit_ppm": 1_000_001 }), "100.0001 %");
    let over = problem(resize(&sales, other.id, json!({ "share_ppm": 500_001 })));
    assert!(over.detail.contains("acme/sales would hold 0.500001 GPUs, and it may hold 0.5"), "{over:?}");
    server.apply("tenants: [{path: acme/research, quota: {memory_limit_mib: 5120}}]").unwrap();
    check(json!({ "memory": 6 * GIB }), "would hold 6144 MiB of GPU memory, and it may hold 5120 MiB");
    assert_eq!(leased(&server), (750_000, 12 * GIB), "nothing has changed");
    let misspelt = problem(resize(&member, lease.id, json!({ "share": 1 })));
    assert!(misspelt.is(Kind::Invalid), "{misspelt:?}");

    let waiting = resize(&member, lease.id, json!({ "share_ppm": 750_000, "wait": true })).unwrap();
    let resizing = waiting.resizing.unwrap();
    assert_eq!(resizing.state, ResizeState::Waiting);
    assert!(resizing.reason.unwrap().contains("up to 50 %"));
    assert_eq!(leased(&server).0, 750_000, "it holds nothing for that");
    node.report.leases.retain(|attempt| attempt.lease != other.id);
    node.say();
    wait_for(&member, lease.id, |lease| {
        lease.resizing.as_ref().is_some_and(|resizing| resizing.state == ResizeState::Sent)
    });
    answer(&mut node, &lease, 1, None);
    assert_eq!(wait_for(&member, lease.id, |lease| lease.resizing.is_none()).share_ppm, 750_000);
}

#[test]
fn owners_and_administrators_resize_and_nobody_else() {
    let (_folder, server, mut node, member) = start();
    let lease = running(&mut node, &member, &ask(250_000));
    let body = || json!({ "share_ppm": 100_000 });
    let colleague = server.token("acme/research", Role::Member);
    assert!(problem(resize(&colleague, lease.id, body())).is(Kind::Forbidden));
    let viewer = server.token("acme", Role::Viewer);
    assert!(problem(resize(&viewer, lease.id, body())).is(Kind::Forbidden));
    let stranger = server.token("globex", Role::TenantAdmin);
    assert!(problem(resize(&stranger, lease.id, body())).is(Kind::NotFound));
    assert!(problem(resize(&server.admin, 999, body())).is(Kind::NotFound));
    for (version, client) in (1..).zip([&server.token("acme", Role::TenantAdmin), &server.admin, &member]) {
        resize(client, lease.id, json!({ "share_ppm": 100_000 * version })).unwrap();
        answer(&mut node, &lease, version, None);
        wait_for(&member, lease.id, |lease| lease.resizing.is_none());
    }
    let waits = request(&member, &ask(1_000_000));
    let refusal = problem(resize(&member, waits.id, body()));
    assert!(refusal.detail.contains("is queued; only a lease whose programs run"), "{refusal:?}");
}

#[test]
fn guaranteed_work_grows_within_what_is_guaranteed() {
    let (_folder, server, mut node, _) = start();
    server.apply("tenants: [{path: globex, quota: {guaranteed_milli: 500}}]").unwrap();
    let globex = server.token("globex", Role::Member);
    let lease = running(&mut node, &globex, &NewLease { preemptible: false, ..ask(250_000) });
    let refusal = problem(resize(&globex, lease.id, json!({ "share_ppm": 500_001 })));
    assert!(refusal.detail.contains("guaranteed GPUs only"), "{refusal:?}");
    resize(&globex, lease.id, json!({ "share_ppm": 500_000 })).unwrap();
}

#[test]
fn a_resize_survives_the_server() {
    let (folder, server, mut node, member) = start();
    let lease = running(&mut node, &member, &ask(250_000));
    resize(&member, lease.id, json!({ "share_ppm": 500_000, "limit_ppm": 750_000 })).unwrap();
    drop(server);
    let server = Server::start(folder.path());
    node.client = server.admin.with_token(&node.joined.token);
    let said = node.say().resize;
    let [grant] = &grants(&node, &said)[..] else { panic!("it is said again") };
    assert_eq!((grant.version, grant.share_ppm, grant.limit_ppm()), (1, 500_000, 750_000));
    answer(&mut node, &lease, 1, None);
    wait_for(&server.admin, lease.id, |lease| lease.resizing.is_none());
    drop(server);
    let server = Server::start(folder.path());
    node.client = server.admin.with_token(&node.joined.token);
    assert!(node.say().resize.is_empty());
    let kept: Lease = server.admin.get(&format!("/leases/{}", lease.id)).unwrap();
    assert_eq!((kept.share_ppm, kept.limit_ppm, kept.state), (500_000, 750_000, LeaseState::Running));
    assert_eq!(leased(&server).0, 500_000);
}

#[test]
fn a_suspended_lease_gives_its_compute_to_others_and_waits_for_it() {
    let (_folder, server, mut node, member) = start();
    let lease = running(&mut node, &member, &NewLease { memory: 4 * GIB, ..ask(750_000) });
    let suspended = resize(&member, lease.id, json!({ "suspended": true })).unwrap();
    assert!(suspended.resizing.unwrap().suspended && !suspended.suspended);
    assert_eq!(leased(&server), (750_000, 4 * GIB), "its node does not know it yet");
    let said = node.say().resize;
    let [grant] = &grants(&node, &said)[..] else { panic!("one grant, not {said:?}") };
    assert_eq!((grant.suspended, grant.share_ppm, grant.memory), (true, 750_000, 4 * GIB));
    answer(&mut node, &lease, 1, None);
    let suspended = wait_for(&member, lease.id, |lease| lease.resizing.is_none());
    assert_eq!((suspended.suspended, suspended.share_ppm), (true, 750_000));
    assert_eq!(leased(&server), (0, 4 * GIB));
    let tenants: Vec<TenantStatus> = server.admin.list("/tenants").unwrap();
    assert_eq!((tenants[0].held_milli, tenants[0].held_memory_mib, tenants[0].leases), (0, 4096, 1));

    let whole = running(&mut node, &member, &NewLease { memory: 4 * GIB, ..ask(1_000_000) });
    let refusal = problem(resize(&member, lease.id, json!({ "suspended": false })));
    assert!(refusal.detail.contains("up to 0 % of the compute"), "{refusal:?}");
    let waits = resize(&member, lease.id, json!({ "suspended": false, "wait": true })).unwrap();
    assert_eq!(waits.resizing.unwrap().state, ResizeState::Waiting);
    node.report.leases.retain(|attempt| attempt.lease != whole.id);
    node.say();
    wait_for(&member, lease.id, |lease| {
        lease.resizing.as_ref().is_some_and(|resizing| resizing.state == ResizeState::Sent)
    });
    assert_eq!(leased(&server), (750_000, 4 * GIB));
    answer(&mut node, &lease, 2, None);
    let resumed = wait_for(&member, lease.id, |lease| lease.resizing.is_none());
    assert_eq!((resumed.suspended, resumed.share_ppm, resumed.state), (false, 750_000, LeaseState::Running));
}

#[test]
fn the_memory_of_a_suspended_lease_is_lent_once_it_has_left_and_awaited_again() {
    let (_folder, server, mut node, member) = start();
    let lease = running(&mut node, &member, &NewLease { memory: 12 * GIB, ..ask(500_000) });
    resize(&member, lease.id, json!({ "suspended": true })).unwrap();
    let attempt = node.report.leases[0];
    // A word about a lease that is not known to be suspended yet.
    node.report.vacated = vec![VacatedLease { attempt, stays: GIB / 2 }];
    node.say();
    assert_eq!(leased(&server), (500_000, 12 * GIB));
    node.report.vacated.clear();
    answer(&mut node, &lease, 1, None);
    wait_for(&member, lease.id, |lease| lease.resizing.is_none());
    assert_eq!(leased(&server), (0, 12 * GIB), "nothing has left yet");
    node.report.vacated = vec![VacatedLease { attempt, stays: GIB / 2 }];
    node.say();
    assert_eq!(leased(&server), (0, GIB / 2));
    let tenants: Vec<TenantStatus> = server.admin.list("/tenants").unwrap();
    assert_eq!(tenants[0].held_memory_mib, 512);
    let state: Lease = member.get(&format!("/leases/{}", lease.id)).unwrap();
    assert_eq!((state.memory, state.suspended), (12 * GIB, true), "it is still its own when it is back");

    let other = running(&mut node, &member, &NewLease { memory: 15 * GIB, ..ask(500_000) });
    assert_eq!(leased(&server), (500_000, 15 * GIB + GIB / 2));
    let third = request(&member, &NewLease { memory: GIB, ..ask(100_000) });
    wait_for(&member, third.id, |lease| lease.reason.is_some());
    let _: Lease = member.delete(&format!("/leases/{}", third.id)).unwrap();
    let refusal = problem(resize(&member, lease.id, json!({ "suspended": false })));
    assert!(refusal.detail.contains("up to 50 % of the compute and 1024 MiB"), "{refusal:?}");
    let waits = resize(&member, lease.id, json!({ "suspended": false, "wait": true })).unwrap();
    assert_eq!(waits.resizing.unwrap().state, ResizeState::Waiting);

    node.report.leases.retain(|attempt| attempt.lease != other.id);
    node.say();
    wait_for(&member, lease.id, |lease| {
        lease.resizing.as_ref().is_some_and(|resizing| resizing.state == ResizeState::Sent)
    });
    node.say();
    assert_eq!(leased(&server), (500_000, 12 * GIB), "what the node said before it knew does not count");
    node.report.vacated.clear();
    answer(&mut node, &lease, 2, None);
    let resumed = wait_for(&member, lease.id, |lease| lease.resizing.is_none());
    assert_eq!((resumed.suspended, resumed.memory), (false, 12 * GIB));
    assert_eq!(leased(&server), (500_000, 12 * GIB));
}

#[test]
fn a_suspended_lease_that_changes_its_size_holds_no_more_than_stays() {
    let (_folder, server, mut node, member) = start();
    let lease = running(&mut node, &member, &NewLease { memory: 8 * GIB, ..ask(500_000) });
    resize(&member, lease.id, json!({ "suspended": true })).unwrap();
    answer(&mut node, &lease, 1, None);
    node.report.vacated = vec![VacatedLease { attempt: node.report.leases[0], stays: GIB }];
    node.say();
    running(&mut node, &member, &NewLease { memory: 12 * GIB, ..ask(500_000) });
    let grown = resize(&member, lease.id, json!({ "memory": 14 * GIB })).unwrap();
    assert_eq!(grown.resizing.unwrap().state, ResizeState::Sent);
    node.say();
    assert_eq!(leased(&server), (500_000, 13 * GIB), "also where the node has not answered yet");
    answer(&mut node, &lease, 2, None);
    let grown = wait_for(&member, lease.id, |lease| lease.resizing.is_none());
    assert_eq!((grown.memory, grown.suspended), (14 * GIB, true));
    assert_eq!(leased(&server), (500_000, 13 * GIB));
    let beyond = problem(resize(&member, lease.id, json!({ "memory": 17 * GIB })));
    assert!(beyond.detail.contains("has 16384 MiB of memory"), "{beyond:?}");
    let back = resize(&member, lease.id, json!({ "suspended": false, "memory": 4 * GIB })).unwrap();
    assert_eq!(back.resizing.unwrap().state, ResizeState::Sent);
    assert_eq!(leased(&server), (1_000_000, 16 * GIB), "what it had before it left does not count");
    node.say();
    assert_eq!(leased(&server), (1_000_000, 16 * GIB));
    answer(&mut node, &lease, 3, Some("4 GiB are not free"));
    node.say();
    let stays = wait_for(&member, lease.id, |lease| lease.suspended);
    assert_eq!((stays.memory, leased(&server)), (14 * GIB, (500_000, 13 * GIB)));
}

#[test]
fn a_limit_of_a_tier_does_not_become_the_leases_own() {
    let (_folder, server) = Server::with_tenants();
    let pool = "pools: [{name: p, nodes: [one], tiers: [{name: standard, limit: 50%}]}]";
    server.apply(pool).unwrap();
    let mut node = ScriptedNode::join(&server, "one", 1);
    let member = server.token("acme/research", Role::Member);
    let lease = running(&mut node, &member, &ask(300_000));
    assert_eq!(lease.limit_ppm, 500_000);
    // A share above the limit is worth what it says; below it, the tier's limit counts again.
    for (version, share_ppm, limit_ppm) in
        [(1, 600_000, 600_000), (2, 500_000, 500_000), (3, 200_000, 500_000)]
    {
        resize(&member, lease.id, json!({ "share_ppm": share_ppm })).unwrap();
        answer(&mut node, &lease, version, None);
        let resized = wait_for(&member, lease.id, |lease| lease.resizing.is_none());
        assert_eq!((resized.share_ppm, resized.limit_ppm), (share_ppm, limit_ppm));
    }
    let beyond = problem(resize(&member, lease.id, json!({ "limit_ppm": 600_000 })));
    assert!(beyond.detail.contains("the tier standard has no more than 50 % of a GPU"), "{beyond:?}");
    resize(&member, lease.id, json!({ "limit_ppm": 300_000 })).unwrap();
    answer(&mut node, &lease, 4, None);
    let own = wait_for(&member, lease.id, |lease| lease.resizing.is_none());
    assert_eq!((own.share_ppm, own.limit_ppm), (200_000, 300_000));
}

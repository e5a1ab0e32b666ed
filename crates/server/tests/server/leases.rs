mod elastic;
mod lists;

use sluice_api::GPU_PPM;
use sluice_api::grant::Verifier;
use sluice_api::lease::{Lease, LeaseState, NewLease, Refused};
use sluice_api::node::{GpuStatus, SessionReport, SessionStatus};
use sluice_api::pool::PoolStatus;
use sluice_api::problem::Kind;
use sluice_api::tenant::TenantStatus;
use sluice_api::token::{MadeToken, RevokedToken, Role};

use crate::{ScriptedNode, Server, ask, problem, request, settings, wait_for, wait_for_state};

#[test]
fn a_lease_is_granted_claimed_used_and_ended() {
    let (_folder, server) = Server::with_tenants();
    let member = server.token("acme/research", Role::Member);
    let lease = request(&member, &ask(250_000));
    let waits = wait_for(&member, lease.id, |lease| lease.reason.is_some());
    assert!(waits.reason.as_ref().unwrap().contains("no node"), "{waits:?}");
    assert_eq!(waits.position, Some(1));

    let mut node = ScriptedNode::join(&server, "one", 1);
    let granted = wait_for_state(&member, lease.id, LeaseState::Granted);
    assert_eq!(granted.memory, 4 << 30, "the same part of the memory as of the compute");
    assert_eq!(granted.places[0].address, "10.0.0.7:7583");
    node.claim(&granted);
    let running = wait_for_state(&member, lease.id, LeaseState::Running);
    assert_eq!(running.places[0].grant, None, "a grant is shown while it can be claimed");

    node.report.sessions = vec![session(lease.id)];
    node.say();
    let sessions: Vec<SessionStatus> = member.list("/sessions").unwrap();
    assert_eq!(sessions[0].tenant.as_str(), "acme/research");
    let gpus: Vec<GpuStatus> = member.list("/gpus").unwrap();
    assert_eq!((gpus[0].share_leased_ppm, gpus[0].memory_leased, gpus[0].leases), (250_000, 4 << 30, 1));
    let tenants: Vec<TenantStatus> = server.admin.list("/tenants").unwrap();
    assert_eq!((tenants[0].path.as_str(), tenants[0].held_milli, tenants[0].leases), ("acme", 250, 1));
    let shares: Vec<Option<u64>> = tenants.iter().map(|tenant| tenant.fair_share_milli).collect();
    assert_eq!(shares, [Some(250), Some(250), None, None], "tenants that ask for nothing have none");

    let ended: Lease = member.delete(&format!("/leases/{}", lease.id)).unwrap();
    assert_eq!(ended.state, LeaseState::Ended);
    let answer = node.say();
    assert_eq!(answer.end, node.report.leases, "the node is told to end it");
    let again: Lease = member.delete(&format!("/leases/{}", lease.id)).unwrap();
    assert_eq!(again.state, LeaseState::Ended);
}

pub(crate) fn session(lease: u64) -> SessionReport {
    SessionReport {
        session: 1,
        lease,
        unmovable: None,
        name: "a program".into(),
        process: 1,
        peer: "10.0.0.8:1".into(),
        gpu: 0,
        share_ppm: 250_000,
        hard_cap: false,
        limit_ppm: GPU_PPM,
        memory: 4 << 30,
        memory_used: 0,
        memory_swapped: 0,
        memory_in_file: 0,
        memory_pinned: 0,
        memory_state: String::new(),
        memory_moves: 0,
        memory_moving_us: 0,
        kernels: 0,
        bytes_in: 0,
        bytes_out: 0,
        busy_us: 0,
        suspended: false,
        age_ms: 0,
    }
}

#[test]
fn units_are_granted_as_the_share_that_gives_them() {
    let (_folder, server) = Server::with_tenants();
    let member = server.token("acme", Role::Member);
    let units = |milli: u64| -> NewLease {
        serde_json::from_value(serde_json::json!({ "units_milli": milli, "name": "a program" })).unwrap()
    };
    let lease = request(&member, &units(5000));
    assert_eq!((lease.units_milli, lease.share_ppm), (Some(5000), 0), "no place is known yet");
    let mut gpu = ScriptedNode::gpu();
    gpu.gflops = 19_491;
    let mut node = ScriptedNode::join_with(&server.admin, "one", vec![gpu]).unwrap();
    let granted = wait_for_state(&member, lease.id, LeaseState::Granted);
    assert_eq!((granted.units_milli, granted.share_ppm), (Some(5000), 256_529), "5 / 19.491");
    node.claim(&granted);
    wait_for_state(&member, lease.id, LeaseState::Running);
    let gpus: Vec<GpuStatus> = member.list("/gpus").unwrap();
    assert_eq!((gpus[0].share_leased_ppm, gpus[0].leases), (256_529, 1));
    let never = problem(member.post::<Lease>("/leases", &units(19_492)));
    assert!(never.is(Kind::NeverFits) && never.detail.contains("19.491"), "{never:?}");
}

#[test]
fn a_limit_in_units_is_kept_and_named_on_whichever_card() {
    let (folder, mut server) = Server::with_tenants();
    let yaml = "tenants: [{path: acme/sales, quota: {units_limit_milli: 12000}}]";
    assert_eq!(
        server.apply(yaml).unwrap().changes,
        ["tenant acme/sales changed: limit removed (was 0.5), units_limit 12"]
    );
    assert_eq!(server.apply(yaml).unwrap().changes, [] as [String; 0]);
    let card = |gflops| sluice_api::node::Gpu { gflops, ..ScriptedNode::gpu() };
    let fast = ScriptedNode::join_with(&server.admin, "fast", vec![card(20_000)]).unwrap();
    let member = server.token("acme/sales", Role::Member);
    let whole = problem(member.post::<Lease>("/leases", &ask(1_000_000)));
    assert!(whole.detail.contains("20 units") && whole.detail.contains("12 at most"), "{whole:?}");
    let half = request(&member, &ask(500_000));
    wait_for_state(&member, half.id, LeaseState::Granted);
    let more = request(&member, &ask(200_000));
    let waits = wait_for(&member, more.id, |lease| lease.reason.is_some());
    let reason = waits.reason.unwrap();
    assert!(reason.contains("acme/sales") && reason.contains("12 units"), "{reason}");
    let _: Lease = member.delete(&format!("/leases/{}", half.id)).unwrap();
    wait_for_state(&member, more.id, LeaseState::Granted);
    let _: Lease = member.delete(&format!("/leases/{}", more.id)).unwrap();
    // A whole GPU is within the limit where it is a slow one.
    let slow = ScriptedNode::join_with(&server.admin, "slow", vec![card(10_000)]).unwrap();
    let whole = request(&member, &ask(1_000_000));
    let granted = wait_for_state(&member, whole.id, LeaseState::Granted);
    assert_eq!(granted.places[0].node, "slow");
    let tenants = |server: &Server| -> Vec<TenantStatus> { server.admin.list("/tenants").unwrap() };
    let held = |tenants: Vec<TenantStatus>| -> Vec<(String, u64, Option<u64>)> {
        let seen = |tenant: &TenantStatus| {
            (tenant.path.to_string(), tenant.held_units_milli, tenant.quota.units_limit_milli)
        };
        tenants.iter().map(seen).filter(|(_, held, _)| *held > 0).collect()
    };
    let expect = [("acme".to_owned(), 10_000, None), ("acme/sales".to_owned(), 10_000, Some(12_000))];
    assert_eq!(held(tenants(&server)), expect);
    drop((fast, slow, server));
    server = Server::start(folder.path());
    assert_eq!(held(tenants(&server)), expect, "they are in the database");
}

#[test]
fn a_limit_is_kept_and_named() {
    let (_folder, server) = Server::with_tenants();
    let _node = ScriptedNode::join(&server, "one", 4);
    let member = server.token("acme/sales", Role::Member);
    let first = request(&member, &ask(400_000));
    wait_for_state(&member, first.id, LeaseState::Granted);
    let second = request(&member, &ask(200_000));
    let waits = wait_for(&member, second.id, |lease| lease.reason.is_some());
    assert!(waits.reason.as_ref().unwrap().contains("acme/sales"), "{waits:?}");
    let queue: Vec<Lease> = server.admin.list("/queue").unwrap();
    assert_eq!(queue.iter().map(|lease| lease.id).collect::<Vec<_>>(), [second.id]);
    let _: Lease = member.delete(&format!("/leases/{}", first.id)).unwrap();
    wait_for_state(&member, second.id, LeaseState::Granted);
}

#[test]
fn what_ends_on_the_node_ends_here_and_the_next_gets_its_place() {
    let (_folder, server) = Server::with_tenants();
    let mut node = ScriptedNode::join(&server, "one", 1);
    let member = server.token("acme", Role::Member);
    let first = request(&member, &ask(1_000_000));
    let granted = wait_for_state(&member, first.id, LeaseState::Granted);
    let second = request(&member, &ask(500_000));
    wait_for(&member, second.id, |lease| lease.reason.is_some());
    node.claim(&granted);
    node.report.leases.clear();
    node.say();
    let ended = wait_for_state(&member, first.id, LeaseState::Ended);
    assert_eq!(ended.reason.as_deref(), Some("its program ended"));
    wait_for_state(&member, second.id, LeaseState::Granted);
}

#[test]
fn a_preempted_lease_is_ended_and_queued_again() {
    let (_folder, server) = Server::with_tenants();
    let mut node = ScriptedNode::join(&server, "one", 1);
    let member = server.token("acme", Role::Member);
    let lease = request(&member, &ask(1_000_000));
    let path = format!("/leases/{}/preemptions", lease.id);
    let granted = wait_for_state(&member, lease.id, LeaseState::Granted);
    let early = problem(server.admin.post::<Lease>(&path, &serde_json::json!({})));
    assert!(early.is(Kind::Conflict), "{early:?}");
    node.claim(&granted);
    let told: Lease = server.admin.post(&path, &serde_json::json!({})).unwrap();
    assert_eq!(told.state, LeaseState::Preempting);
    // The grace time of this server is nothing.
    assert_eq!(node.say().end, node.report.leases);
    node.report.leases.clear();
    node.say();
    let again = wait_for(&member, lease.id, |lease| lease.attempt == 2);
    assert!(matches!(again.state, LeaseState::Queued | LeaseState::Granted));
    let granted = wait_for_state(&member, lease.id, LeaseState::Granted);
    node.claim(&granted);
    wait_for_state(&member, lease.id, LeaseState::Running);
}

#[test]
fn a_refused_grant_goes_back_to_the_queue() {
    let (_folder, server) = Server::with_tenants();
    let mut node = ScriptedNode::join(&server, "one", 1);
    let member = server.token("acme", Role::Member);
    let lease = request(&member, &ask(1_000_000));
    wait_for_state(&member, lease.id, LeaseState::Granted);
    let refused = Refused { attempt: 1, task: None, reason: "no room".into() };
    let path = format!("/leases/{}/refusals", lease.id);
    let waits: Lease = member.post(&path, &refused).unwrap();
    assert_eq!((waits.attempt, waits.state), (2, LeaseState::Queued));
    // The node may be gone: the lease is not placed there before it reports.
    node.say();
    let again = wait_for_state(&member, lease.id, LeaseState::Granted);
    assert_eq!(again.attempt, 2);
    // The word of an earlier attempt changes nothing.
    let late: Lease = member.post(&path, &refused).unwrap();
    assert_eq!((late.attempt, late.state), (2, LeaseState::Granted));
}

#[test]
fn one_key_is_one_lease() {
    let (_folder, server) = Server::with_tenants();
    let member = server.token("acme", Role::Member);
    let first: Lease = member.post_once("/leases", &ask(1000), "a key").unwrap();
    let second: Lease = member.post_once("/leases", &ask(1000), "a key").unwrap();
    assert_eq!(first.id, second.id);
    let other: Lease = member.post_once("/leases", &ask(1000), "another key").unwrap();
    assert_ne!(first.id, other.id);
    let reused = problem(member.post_once::<Lease>("/leases", &ask(2000), "a key"));
    assert!(reused.is(Kind::KeyReused), "{reused:?}");
    // Keys are each token's own.
    let foreign: Lease =
        server.token("globex", Role::Member).post_once("/leases", &ask(1000), "a key").unwrap();
    assert_ne!(first.id, foreign.id);
}

#[test]
fn how_long_a_grant_is_held_has_bounds_and_is_said() {
    let (_folder, server) = Server::with_tenants();
    let mut node = ScriptedNode::join(&server, "one", 1);
    let member = server.token("acme", Role::Member);
    for hold_ms in [0, 999, 3_600_001, u64::MAX] {
        let ask = NewLease { hold_ms: Some(hold_ms), ..ask(1000) };
        let refused = problem(member.post::<Lease>("/leases", &ask));
        assert!(refused.is(Kind::Invalid) && refused.field.as_deref() == Some("hold_ms"), "{refused:?}");
    }
    let held = request(&member, &NewLease { hold_ms: Some(3_600_000), ..ask(1000) });
    let held = wait_for_state(&member, held.id, LeaseState::Granted);
    assert_eq!(held.claim_until_ms, held.granted_at_ms.map(|at_ms| at_ms + 3_600_000));
    node.claim(&held);
    assert_eq!(wait_for_state(&member, held.id, LeaseState::Running).claim_until_ms, None);
}

#[test]
fn a_lease_outlives_its_token() {
    let (folder, server) = Server::with_tenants();
    let mut node = ScriptedNode::join(&server, "one", 1);
    let new = serde_json::json!({ "tenant": "acme", "role": "member", "lifetime_s": 600 });
    let made: MadeToken = server.admin.post("/tokens", &new).unwrap();
    let member = server.admin.with_token(&made.secret);
    let asked: Lease = member.post_once("/leases", &ask(1_000_000), "a key").unwrap();
    let again: Lease = member.post_once("/leases", &ask(1_000_000), "a key").unwrap();
    let other = request(&member, &ask(1000));
    let key = asked.key.clone().expect("who asks for a lease gets its key");
    assert_eq!((again.id, again.key.as_ref()), (asked.id, Some(&key)));
    assert!(other.key.is_some_and(|other| other != key));
    let path = format!("/leases/{}", asked.id);
    assert_eq!(member.get::<Lease>(&path).unwrap().key, None);
    let revoked: RevokedToken = server.admin.delete(&format!("/tokens/{}", made.token.id)).unwrap();
    assert_eq!((revoked.leases, revoked.ended), (vec![asked.id, other.id], false));
    assert!(problem(member.get::<Lease>(&path)).is(Kind::Unauthenticated));

    let _: Lease = server.admin.delete(&format!("/leases/{}", other.id)).unwrap();

    // Its grant is for who has the key, who is told what becomes of it, also by a server that has
    // just started.
    let holder = server.admin.with_token(&key);
    node.claim(&wait_for_state(&holder, asked.id, LeaseState::Granted));
    wait_for_state(&holder, asked.id, LeaseState::Running);
    drop(server);
    let server = Server::start(folder.path());
    node.client = server.admin.with_token(&node.joined.token);
    let holder = server.admin.with_token(&key);
    node.say();
    let _: Lease = server.admin.post(&format!("{path}/preemptions"), &serde_json::json!({})).unwrap();
    wait_for_state(&holder, asked.id, LeaseState::Preempting);
    node.report.leases.clear();
    node.say();
    let granted =
        wait_for(&holder, asked.id, |lease| lease.attempt == 2 && lease.state == LeaseState::Granted);
    assert!(granted.places[0].grant.is_some());
    let refused = Refused { attempt: 2, task: None, reason: "no".into() };
    let _: Lease = holder.post(&format!("{path}/refusals"), &refused).unwrap();

    // It is good for nothing else.
    let nothing = serde_json::json!({});
    for refused in [
        holder.get::<serde_json::Value>(&format!("/leases/{}", other.id)),
        holder.delete(&format!("/leases/{}", other.id)),
        holder.post(&format!("{path}/preemptions"), &nothing),
        holder.get("/leases"),
        holder.get("/whoami"),
        holder.post("/leases", &ask(1000)),
        server.admin.with_token(&format!("{key}A")).get(&path),
        server.admin.with_token(&key.replacen("slk_1_", "slk_2_", 1)).get("/leases/2"),
    ] {
        assert!(problem(refused).is(Kind::Unauthenticated));
    }
    let ended: Lease = holder.delete(&path).unwrap();
    assert_eq!(ended.state, LeaseState::Ended);
    assert_eq!(holder.get::<Lease>(&path).unwrap().reason.as_deref(), Some("ended by its owner"));
}

#[test]
fn who_revokes_a_token_may_end_its_leases() {
    let (_folder, server) = Server::with_tenants();
    ScriptedNode::join(&server, "one", 1);
    let make = |role: &str| -> MadeToken {
        let new = serde_json::json!({ "tenant": "acme", "role": role, "lifetime_s": 600 });
        server.admin.post("/tokens", &new).unwrap()
    };
    let (leaver, stays) = (make("member"), make("member"));
    let asked = |made: &MadeToken| request(&server.admin.with_token(&made.secret), &ask(1000)).id;
    let (left, stay) = ([asked(&leaver), asked(&leaver)], asked(&stays));
    let path = format!("/tokens/{}?end_leases=true", leaver.token.id);
    let administrator = server.admin.with_token(&make("tenant_admin").secret);
    let revoked: RevokedToken = administrator.delete(&path).unwrap();
    assert_eq!((revoked.leases, revoked.ended), (left.to_vec(), true));
    let lease = |id: u64| server.admin.get::<Lease>(&format!("/leases/{id}")).unwrap();
    for id in left {
        let reason = "its token was revoked, and its leases with it";
        assert_eq!((lease(id).state, lease(id).reason.as_deref()), (LeaseState::Ended, Some(reason)));
    }
    assert_ne!(lease(stay).state, LeaseState::Ended);
    let again: RevokedToken = administrator.delete(&path).unwrap();
    assert_eq!(again.leases, [] as [u64; 0]);
}

#[test]
fn leases_outlive_the_server() {
    let (folder, server) = Server::with_tenants();
    let mut node = ScriptedNode::join(&server, "one", 1);
    let member = server.token("acme", Role::Member);
    let first = request(&member, &ask(1_000_000));
    node.claim(&wait_for_state(&member, first.id, LeaseState::Granted));
    let second = request(&member, &ask(1_000_000));
    drop(server);

    let server = Server::start(folder.path());
    let member = server.token("acme", Role::Member);
    let lease: Lease = member.get(&format!("/leases/{}", first.id)).unwrap();
    assert_eq!(lease.state, LeaseState::Running);
    let lease: Lease = member.get(&format!("/leases/{}", second.id)).unwrap();
    assert_eq!(lease.state, LeaseState::Queued);
    let third = request(&member, &ask(1000));
    assert!(third.id > second.id);
}

#[test]
fn an_overcommitted_pool_leases_more_than_a_gpu_and_its_grants_say_so() {
    let (folder, mut server) = Server::with_tenants();
    let pool =
        |percent: u32| format!("pools: [{{name: shared, nodes: [one], overcommit_percent: {percent}}}]");
    for (yaml, words) in [
        (pool(99), "shared: overcommit_percent: 100 (what each GPU has) to 1000, not 99"),
        (pool(1001), "not 1001"),
        (pool(150).replace("nodes", "sharing: whole, nodes"), "whole GPUs are never overcommitted"),
        (
            pool(99).replace("over", "memory_over"),
            "shared: memory_overcommit_percent: 100 (what each GPU has) to 1000, not 99",
        ),
    ] {
        let refused = problem(server.apply(&yaml));
        assert!(refused.detail.contains(words), "{yaml}: {refused:?}");
    }
    assert_eq!(server.apply(&pool(150)).unwrap().changes, ["pool shared created"]);
    let mut node = ScriptedNode::join(&server, "one", 1);
    let member = server.token("globex", Role::Member);
    let leases = [request(&member, &ask(750_000)), request(&member, &ask(750_000))];
    let verifier = Verifier::from_text(&node.joined.grant_key).unwrap();
    for lease in &leases {
        let granted = wait_for_state(&member, lease.id, LeaseState::Granted);
        let grant = verifier.check(granted.places[0].grant.as_ref().unwrap(), node.joined.node, 0).unwrap();
        assert_eq!((grant.share_ppm, grant.promised_ppm, grant.memory), (750_000, 1_500_000, 8 << 30));
        node.claim(&granted);
        wait_for_state(&member, lease.id, LeaseState::Running);
    }
    let waiting = request(&member, &ask(750_000));
    let waits = wait_for(&member, waiting.id, |lease| lease.reason.is_some());
    let reason = waits.reason.unwrap();
    assert!(reason.contains("pool shared is overcommitted: 150 % of each GPU may be leased"), "{reason}");

    // Others know it as well, and so does a server that starts on its database.
    let declared = |server: &Server| -> Vec<u32> {
        let pools: Vec<PoolStatus> = server.admin.list("/pools").unwrap();
        pools.iter().map(|pool| pool.declared.overcommit_percent).collect()
    };
    assert_eq!(declared(&server), [150]);
    drop(server);
    server = Server::start(folder.path());
    assert_eq!(declared(&server), [150]);
    let admin = settings(folder.path()).client();
    node.client = admin.with_token(&node.joined.token);
    node.say();
    let gpus: Vec<GpuStatus> = admin.list("/gpus").unwrap();
    assert_eq!((gpus[0].share_leased_ppm, gpus[0].memory_leased, gpus[0].leases), (1_500_000, 16 << 30, 2));
    let tenants: Vec<TenantStatus> = admin.list("/tenants").unwrap();
    let held = tenants.iter().find(|tenant| tenant.path.as_str() == "globex").unwrap().held_milli;
    assert_eq!(held, 1500, "quotas count what was asked for");

    // It promises less: both go on, and the next one has to wait for both.
    assert_eq!(
        server.apply(&pool(100)).unwrap().changes,
        ["pool shared changed: overcommit_percent removed (was 150)"]
    );
    let member = server.token("globex", Role::Member);
    let end = |id| -> Lease { member.delete(&format!("/leases/{id}")).unwrap() };
    end(leases[0].id);
    node.report.leases.retain(|attempt| attempt.lease != leases[0].id);
    node.say();
    let state = |id| -> LeaseState { member.get::<Lease>(&format!("/leases/{id}")).unwrap().state };
    let other = request(&member, &ask(250_000));
    wait_for_state(&member, other.id, LeaseState::Granted);
    assert_eq!([leases[1].id, waiting.id].map(state), [LeaseState::Running, LeaseState::Queued]);
}

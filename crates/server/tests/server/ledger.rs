use sluice_api::audit::{Entry, Head, Verification};
use sluice_api::bill::{Bill, Meter};
use sluice_api::lease::LeaseState;
use sluice_api::node::Attempt;
use sluice_api::token::Role;
use sluice_api::usage::{GPU_HOUR_PPM_MS, UsageRecord};

use crate::{ScriptedNode, Server, ask, request, wait_for_state};

const HOUR_MS: u64 = 3_600_000;

fn record(node: u64, lease: u64, sequence: u32, tenant: &str, hours: (u64, u64)) -> UsageRecord {
    UsageRecord {
        id: UsageRecord::id_of(node, Attempt { lease, attempt: 1, task: 0 }, sequence),
        node,
        lease,
        attempt: 1,
        task: 0,
        sequence,
        tenant: tenant.parse().unwrap(),
        from_ms: hours.0,
        until_ms: hours.1,
        share_ppm: 250_000,
        gpus: 1,
        memory_mib: 1024,
        used_ppm_ms: GPU_HOUR_PPM_MS / 8,
        kernels: 1,
        bytes_in: 1,
        bytes_out: 1,
        memory_peak: 1,
        last: false,
    }
}

#[test]
fn usage_that_arrives_often_is_counted_once() {
    let (folder, server) = Server::with_tenants();
    let mut node = ScriptedNode::join(&server, "one", 1);
    let id = node.joined.node;
    // Four quarters for an hour, each in two unequal pieces, out of order and again and again.
    let pieces = |lease| {
        let cut = HOUR_MS / (lease + 2);
        [
            record(id, lease, 1, "acme/research", (0, cut)),
            record(id, lease, 2, "acme/research", (cut, HOUR_MS)),
        ]
    };
    let mut all: Vec<UsageRecord> = (101..105).flat_map(pieces).collect();
    for _ in 0..3 {
        all.reverse();
        node.report.usage = all.clone();
        assert_eq!(node.say().usage_taken, 8);
    }
    let check = |server: &Server| {
        let bill: Bill = server.admin.get("/bill?tenant=acme").unwrap();
        let line = |meter| bill.lines.iter().find(|line| line.meter == meter).unwrap();
        assert_eq!(line(Meter::Reserved).amount, GPU_HOUR_PPM_MS, "exactly one GPU-hour");
        assert_eq!(line(Meter::Reserved).cost_micro, 2_000_000);
        assert_eq!(line(Meter::Used).cost_micro, 500_000);
        assert_eq!(line(Meter::Memory).cost_micro, 0, "memory has no price here");
        assert_eq!((bill.total_micro, bill.records), (2_500_000, 8));
        let foreign: Bill = server.admin.get("/bill?tenant=globex").unwrap();
        assert_eq!(foreign.lines, []);
    };
    check(&server);
    let listed: Vec<UsageRecord> = server.admin.list("/usage?limit=3").unwrap();
    assert_eq!(listed.len(), 8);
    drop(server);
    check(&Server::start(folder.path()));
}

#[test]
fn what_a_node_may_not_say_is_refused_and_the_rest_counts() {
    let (_folder, server) = Server::with_tenants();
    let mut node = ScriptedNode::join(&server, "one", 1);
    let member = server.token("acme", Role::Member);
    let lease = request(&member, &ask(1000));
    wait_for_state(&member, lease.id, LeaseState::Granted);
    let id = node.joined.node;
    let good = record(id, 100, 1, "acme", (0, 10));
    let foreign = record(id + 1, 100, 2, "acme", (0, 10));
    let forged = UsageRecord { sequence: 9, ..record(id, 100, 3, "acme", (0, 10)) };
    let wrong_tenant = record(id, lease.id, 4, "globex", (0, 10));
    node.report.usage = vec![foreign, forged, wrong_tenant, good];
    let answer = node.say();
    assert_eq!((answer.usage_taken, answer.usage_refused.len()), (4, 3));
    let listed: Vec<UsageRecord> = server.admin.list("/usage").unwrap();
    assert_eq!(listed, [record(id, 100, 1, "acme", (0, 10))]);
}

#[test]
fn every_change_is_in_the_audit_log_and_the_chain_holds() {
    let (_folder, server) = Server::with_tenants();
    let member = server.token("acme", Role::Member);
    request(&member, &ask(1000));
    let entries: Vec<Entry> = server.admin.list("/audit?limit=2").unwrap();
    let mut verification = Verification::new(None);
    entries.iter().for_each(|entry| verification.follow(entry).unwrap());
    let head: Head = verification.end().unwrap();
    assert_eq!(head.sequence, entries.len() as u64);
    for action in ["token.made", "tenant.changed", "price.changed", "lease.requested"] {
        assert!(entries.iter().any(|entry| entry.action == action), "{action}");
    }
    let again = server.apply(crate::TENANTS).unwrap();
    assert_eq!(again.changes, [] as [String; 0], "what is so already is no change");
}

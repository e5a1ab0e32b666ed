//! Lists of leases, and what became of each.

use sluice_api::Page;
use sluice_api::audit::{Entry, Verification};
use sluice_api::client::Client;
use sluice_api::lease::{Lease, LeaseHistory, LeaseState, LeaseUse, NewLease};
use sluice_api::node::SessionReport;
use sluice_api::problem::Kind;
use sluice_api::token::Role;
use sluice_api::usage::UsageRecord;

use crate::ledger::record;
use crate::{ScriptedNode, Server, ask, problem, request, wait_for_state};

#[test]
fn what_became_of_a_lease_is_in_its_history_and_in_the_audit_log() {
    let (_folder, server) = Server::with_tenants();
    let mut node = ScriptedNode::join(&server, "one", 1);
    let member = server.token("acme/research", Role::Member);
    let first = request(&member, &ask(1_000_000)).id;
    node.claim(&wait_for_state(&member, first, LeaseState::Granted));
    let taker = request(&member, &NewLease { priority: 200, ..ask(1_000_000) }).id;
    // The grace time of this server is nothing.
    wait_for_state(&member, first, LeaseState::Preempting);
    node.report.leases.clear();
    node.say();
    node.claim(&wait_for_state(&member, taker, LeaseState::Granted));
    wait_for_state(&member, taker, LeaseState::Running);
    let record = UsageRecord {
        kernels: 7,
        memory_peak: 5,
        ..record(node.joined.node, taker, 1, "acme/research", (0, 40_000))
    };
    node.report.usage.push(record);
    node.report.leases.clear();
    node.say();
    node.report.usage.clear();
    wait_for_state(&member, taker, LeaseState::Ended);
    wait_for_state(&member, first, LeaseState::Granted);
    let _: Lease = member.delete(&format!("/leases/{first}")).unwrap();

    let history = |id: u64| member.get::<LeaseHistory>(&format!("/leases/{id}/history")).unwrap();
    let actions =
        |id: u64| -> Vec<String> { history(id).items.into_iter().map(|event| event.action).collect() };
    let expect = ["requested", "granted", "preempted", "requeued", "granted", "ended"];
    assert_eq!(actions(first), expect.map(|action| format!("lease.{action}")));
    assert_eq!(actions(taker), ["lease.requested", "lease.granted", "lease.ended"]);
    let of_first = history(first).items;
    let detail = |at: usize| of_first[at].detail.clone();
    assert_eq!(
        (&detail(0)["asked"]["share_ppm"], &detail(0)["tenant"]),
        (&1_000_000.into(), &"acme/research".into())
    );
    assert_eq!(detail(1)["places"], serde_json::json!([{ "task": 0, "node": "one", "gpus": [0] }]));
    let told = detail(2)["reason"].as_str().unwrap().to_owned();
    assert!(told.contains("higher priority") && detail(2)["for"] == taker, "{told}");
    assert_eq!((&detail(3)["attempt"], &detail(4)["attempt"]), (&2.into(), &2.into()));
    assert!(
        of_first[1].actor.starts_with("server ") && of_first[5].actor.contains("(a test)"),
        "{of_first:?}"
    );
    let of_taker = history(taker);
    assert_eq!(of_taker.items[2].detail["reason"], "its program ended");
    assert!(of_taker.items[2].actor.starts_with("server "));
    assert_eq!(of_taker.asked.priority, 200);
    let LeaseUse { records, reserved_ppm_ms, kernels, memory_peak, .. } = of_taker.used;
    assert_eq!((records, reserved_ppm_ms, kernels, memory_peak), (1, 250_000 * 40_000, 7, 5));

    // Page by page, and for nobody else.
    let page: LeaseHistory = member.get(&format!("/leases/{first}/history?limit=4")).unwrap();
    let path = format!("/leases/{first}/history?limit=4&cursor={}", page.next.unwrap());
    let rest: LeaseHistory = member.get(&path).unwrap();
    assert_eq!((page.items.len(), rest.items.len(), rest.next), (4, 2, None));
    let foreign =
        server.token("globex", Role::Member).get::<LeaseHistory>(&format!("/leases/{first}/history"));
    assert!(problem(foreign).is(Kind::NotFound));

    // The chain has them all.
    let mut verification = Verification::new(None);
    let mut of_leases = 0;
    server
        .admin
        .each("/audit", |entry: Entry| {
            verification.follow(&entry).unwrap();
            of_leases += usize::from(entry.action.starts_with("lease."));
        })
        .unwrap();
    assert_eq!(of_leases, 9);
}

#[test]
fn lists_of_leases_are_cut_once_they_are_what_was_asked_for() {
    let (_folder, server) = Server::with_tenants();
    let (own, foreign) = (server.token("acme/research", Role::Member), server.token("globex", Role::Member));
    let mut asked = Vec::new();
    for _ in 0..3 {
        asked.push(request(&own, &ask(1000)).id);
        request(&foreign, &ask(1000));
    }
    let _: Lease = own.delete(&format!("/leases/{}", asked[0])).unwrap();
    let acme = server.token("acme", Role::Viewer);
    let ids = |client: &Client, options: &str| -> Vec<u64> {
        let leases: Vec<Lease> = client.list(&format!("/leases?limit=2{options}")).unwrap();
        leases.iter().map(|lease| lease.id).collect()
    };
    let page: Page<Lease> = acme.get("/leases?limit=2").unwrap();
    assert_eq!(page.items.len(), 2, "others' leases take no room");
    let newest_first = [asked[2], asked[1], asked[0]];
    for tenant in ["", "&tenant=acme", "&tenant=acme/research", "&tenant=/"] {
        assert_eq!(ids(&acme, tenant), newest_first, "{tenant}");
    }
    assert_eq!(ids(&acme, "&tenant=globex"), [0; 0]);
    assert_eq!(ids(&acme, "&state=open"), newest_first[..2]);
    assert_eq!(ids(&acme, "&state=queued"), newest_first[..2]);
    assert_eq!(ids(&acme, "&state=ended"), newest_first[2..]);
    assert_eq!(ids(&acme, "&state=running"), [0; 0]);
    assert_eq!(ids(&server.admin, "").len(), 6);
    assert_eq!(ids(&server.admin, "&tenant=acme&state=open"), newest_first[..2]);
    for wrong in ["/leases?state=gone", "/leases?tenant=A"] {
        assert!(problem(acme.get::<Page<Lease>>(wrong)).is(Kind::Invalid), "{wrong}");
    }
}

#[test]
fn every_list_comes_in_pages_of_what_was_asked_for() {
    let (_folder, server) = Server::with_tenants();
    server.apply("pools: [{name: a, nodes: [x]}, {name: b, nodes: [y]}]").unwrap();
    let (own, foreign) = (server.token("acme/research", Role::Member), server.token("globex", Role::Member));
    let mut nodes = [ScriptedNode::join(&server, "one", 2), ScriptedNode::join(&server, "two", 1)];
    // What is small is on node one, which has no room for what is large then.
    let _: serde_json::Value = server.admin.post("/nodes/two/drain", &serde_json::json!({})).unwrap();
    let id = nodes[0].joined.node;
    for (at, client) in (0..).zip([&own, &foreign, &own, &foreign]) {
        let lease = wait_for_state(client, request(client, &ask(1000)).id, LeaseState::Granted);
        nodes[0].claim(&lease);
        let session = serde_json::json!({
            "session": 10 - at, "lease": lease.id, "name": "", "process": 1, "peer": "", "gpu": 0, "share_ppm": 1000, "hard_cap": false,
            "memory": 1, "memory_used": 1, "kernels": 1, "bytes_in": 1, "bytes_out": 1, "busy_us": 1, "age_ms": 1,
        });
        nodes[0].report.sessions.push(serde_json::from_value::<SessionReport>(session).unwrap());
        nodes[0].report.usage = vec![record(id, lease.id, 1, lease.tenant.as_str(), (at, at + 10))];
        nodes[0].say();
        nodes[0].report.usage.clear();
        request(client, &NewLease { gpus: 2, ..ask(1_000_000) });
        let invoice =
            serde_json::json!({ "tenant": lease.tenant, "from_ms": 10 * at, "until_ms": 10 * at + 1 });
        let _: serde_json::Value = server.admin.post("/invoices", &invoice).unwrap();
    }
    for (path, count, of_own) in [
        ("/gpus", 3, None),
        ("/gpus?node=one", 2, None),
        ("/nodes", 2, None),
        ("/sessions", 4, Some(2)),
        ("/sessions?node=two", 0, Some(0)),
        ("/sessions?tenant=globex", 2, Some(0)),
        ("/queue", 4, Some(2)),
        ("/queue?tenant=acme", 2, Some(2)),
        ("/tenants", 4, Some(1)),
        ("/tenants?tenant=acme", 3, Some(1)),
        ("/pools", 2, None),
        ("/invoices", 4, Some(2)),
        ("/invoices?tenant=globex", 2, Some(0)),
        ("/usage", 4, Some(2)),
        ("/usage?tenant=acme/research", 2, Some(2)),
        ("/leases", 8, Some(4)),
        ("/leases?tenant=globex&state=queued", 2, Some(0)),
        ("/tokens", 8, None),
    ] {
        let sign = if path.contains('?') { '&' } else { '?' };
        let whole = |client: &Client| -> Vec<serde_json::Value> {
            let page: Page<serde_json::Value> = client.get(&format!("{path}{sign}limit=1000")).unwrap();
            assert_eq!(page.next, None, "{path}");
            let ones: Vec<serde_json::Value> = client.list(&format!("{path}{sign}limit=1")).unwrap();
            assert_eq!(ones.len(), page.items.len(), "{path}: one by one");
            ones
        };
        assert_eq!(whole(&server.admin).len(), count, "{path}");
        if let Some(of_own) = of_own {
            assert_eq!(whole(&own).len(), of_own, "{path} of one tenant");
        }
        for wrong in ["limit=0", "limit=1001"] {
            let refused = server.admin.get::<serde_json::Value>(&format!("{path}{sign}{wrong}"));
            assert!(problem(refused).is(Kind::Invalid), "{path} {wrong}");
        }
    }
    for wrong in [
        "/gpus?cursor=1",
        "/queue?cursor=acme,1,2",
        "/tenants?cursor=A",
        "/invoices?cursor=x",
        "/nodes?cursor=x",
    ] {
        assert!(problem(server.admin.get::<serde_json::Value>(wrong)).is(Kind::Invalid), "{wrong}");
    }
}

#[test]
fn lists_come_in_pages() {
    let (_folder, server) = Server::with_tenants();
    let member = server.token("acme", Role::Member);
    let asked: Vec<u64> = (0..5).map(|_| request(&member, &ask(1000)).id).collect();
    let page: Page<Lease> = member.get("/leases?limit=2").unwrap();
    assert_eq!(page.items.len(), 2);
    let mut listed: Vec<u64> =
        member.list::<Lease>("/leases?limit=2").unwrap().iter().map(|lease| lease.id).collect();
    listed.reverse();
    assert_eq!(listed, asked);
    for path in ["/leases?limit=0", "/leases?limit=1001", "/leases?cursor=x", "/leases?limit=x"] {
        assert!(problem(member.get::<Page<Lease>>(path)).is(Kind::Invalid), "{path}");
    }
}

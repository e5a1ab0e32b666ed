//! What pools promise their tiers, what of it was kept, and the credits where it was not.

use serde_json::{Value, json};
use sluice_api::bill::{Bill, Charge, Price};
use sluice_api::grant::{Grant, Verifier};
use sluice_api::invoice::Invoice;
use sluice_api::lease::{Lease, LeaseHistory, LeaseState, NewLease};
use sluice_api::pool::{PoolStatus, Promise, Promised, Tier};
use sluice_api::report::ReportKind;
use sluice_api::token::Role;
use sluice_api::usage::UsageRecord;

use super::{HOUR_MS, record};
use crate::{ScriptedNode, Server, ask, problem, request, wait_for_state};

const DAY_MS: u64 = 24 * HOUR_MS;
const PROMISE: Promise = Promise { wait_us: 20_000, attained_ppm: 990_000, credit_ppm: 100_000 };

fn pool(tiers: &str) -> String {
    format!("pools: [{{name: inference, nodes: [one], tiers: {tiers}}}]")
}

fn second_of(lease: &Lease, sequence: u32) -> (u64, u64) {
    let until_ms = lease.created_at_ms + 1000 * u64::from(sequence);
    (until_ms - 1000, until_ms)
}

/// As its node would: the verified grant of a lease.
fn grant_of(node: &ScriptedNode, lease: &Lease) -> Grant {
    let verifier = Verifier::from_text(&node.joined.grant_key).unwrap();
    let text = lease.places[0].grant.as_ref().unwrap();
    verifier.check(text, node.joined.node, 0).unwrap()
}

fn promise_of(node: &ScriptedNode, lease: &Lease) -> Option<Promise> {
    grant_of(node, lease).promise
}

#[test]
fn a_lease_keeps_the_promise_that_it_was_granted_with() {
    let (folder, server) = Server::with_tenants();
    let declared = pool("[{name: standard, wait: 20ms, attained: 99%, credit: 10%}, basic]");
    assert_eq!(server.apply(&declared).unwrap().changes, ["pool inference created"]);
    assert_eq!(server.apply(&declared).unwrap().changes, [] as [String; 0]);
    let pools: Vec<PoolStatus> = server.admin.list("/pools").unwrap();
    assert_eq!(pools[0].terms().promise(Tier::Standard), Some(PROMISE));
    assert!(pools[0].terms().promise(Tier::Basic).is_none() && !pools[0].terms().serves_tier(Tier::Premium));
    let shown: Value = server.admin.get("/declaration").unwrap();
    let tier =
        json!({ "name": "standard", "wait_us": 20_000, "attained_ppm": 990_000, "credit_ppm": 100_000 });
    assert_eq!(shown["pools"][0]["tiers"], json!([tier, "basic"]));

    let member = server.token("acme", Role::Member);
    let mut node = ScriptedNode::join(&server, "one", 1);
    let granted = |share| {
        let lease = request(&member, &ask(share));
        wait_for_state(&member, lease.id, LeaseState::Granted)
    };
    let first = granted(250_000);
    assert_eq!((promise_of(&node, &first), first.promise), (Some(PROMISE), Some(PROMISE)));
    node.claim(&first);
    // Whatever the pool promises from now on.
    server.apply(&pool("[standard]")).unwrap();
    let second = granted(250_000);
    assert_eq!((promise_of(&node, &second), second.promise), (None, None));
    node.claim(&second);

    let of = |lease: &Lease, promise, sequence, (waits, within)| UsageRecord {
        promised: Some(Promised { promise, waits, within }),
        ..record(node.joined.node, lease.id, sequence, "acme", second_of(lease, sequence))
    };
    let dearer = Promise { credit_ppm: 1_000_000, ..PROMISE };
    let usage = vec![
        of(&first, PROMISE, 1, (10, 9)),
        of(&first, PROMISE, 2, (5, 5)),
        // Neither was promised.
        of(&first, dearer, 3, (10, 0)),
        of(&second, PROMISE, 1, (10, 0)),
    ];
    for _ in 0..2 {
        node.report.usage = usage.clone();
        node.say_only();
    }
    let check = |client: &sluice_api::client::Client| {
        let history =
            |lease: &Lease| -> LeaseHistory { client.get(&format!("/leases/{}/history", lease.id)).unwrap() };
        let kept = Promised { promise: PROMISE, waits: 15, within: 14 };
        assert_eq!((history(&first).promised, history(&second).promised), (vec![kept], vec![]));
        assert_eq!(client.get::<Lease>(&format!("/leases/{}", first.id)).unwrap().promise, Some(PROMISE));
        let records: Vec<UsageRecord> = client.list("/usage").unwrap();
        assert_eq!(records, usage[..2], "the others are set aside");
    };
    check(&server.admin);
    drop(server);
    check(&Server::start(folder.path()).admin);
}

#[test]
fn an_own_tier_is_a_kind_of_one_of_the_three_with_terms_of_its_own() {
    let (_folder, server) = Server::with_tenants();
    server.apply(&pool("[{name: standard-plus, wait: 20ms, credit: 10%, limit: 50%}, basic]")).unwrap();
    server.apply("prices: [{meter: reserved, tier: standard-plus, price: 7}]").unwrap();
    let pools: Vec<PoolStatus> = server.admin.list("/pools").unwrap();
    let plus: Tier = "standard-plus".parse().unwrap();
    assert_eq!(pools[0].terms().promise(plus), Some(PROMISE));

    let member = server.token("acme", Role::Member);
    let node = ScriptedNode::join(&server, "one", 1);
    let of = |tier: &str, share_ppm| NewLease { tier: tier.parse().unwrap(), ..ask(share_ppm) };
    let granted = |ask: &NewLease| {
        let lease = request(&member, ask);
        wait_for_state(&member, lease.id, LeaseState::Granted)
    };
    let lease = granted(&of("standard-plus", 250_000));
    assert_eq!((lease.tier, lease.promise, lease.limit_ppm), (plus, Some(PROMISE), 500_000));
    let grant = grant_of(&node, &lease);
    assert_eq!((grant.tier, grant.promise, grant.limit_ppm), (plus, Some(PROMISE), Some(500_000)));
    // A share above the limit is worth what it says, and a smaller limit stays what it is.
    let whole = granted(&of("standard-plus", 600_000));
    assert_eq!(whole.limit_ppm, 600_000);
    let smaller = granted(&NewLease { limit_ppm: Some(150_000), ..of("standard-plus", 100_000) });
    assert_eq!(smaller.limit_ppm, 150_000);

    for (tier, words) in [
        ("standard-other", "no pool that has GPUs serves the tier standard-other of acme; `sluice pools`"),
        ("standard", "no pool that has GPUs serves the tier standard of acme"),
    ] {
        let refused = problem(member.post::<Lease>("/leases", &of(tier, 1000)));
        assert!(refused.detail.contains(words), "{refused:?}");
    }
    let prices: Vec<Price> = server.admin.list("/prices").unwrap();
    assert!(prices.iter().any(|price| price.tier == Some(plus) && price.micro == 7_000_000));
    let tiers = (0..33).map(|number| format!("basic-{number}")).collect::<Vec<_>>().join(", ");
    let refused = problem(server.apply(&pool(&format!("[{tiers}]"))));
    assert!(refused.detail.contains("a pool has up to 32"), "{refused:?}");
}

#[test]
fn what_no_pool_can_promise_is_refused_by_name() {
    let (_folder, server) = Server::with_tenants();
    for (tiers, words) in [
        ("[gold]", "none of premium, standard and basic"),
        ("[{name: premium, wait: soon}]", "is no time such as 20ms"),
        ("[{name: premium, attained: 99%}]", "wait is not there"),
        ("[{name: premium, wait: 20ms, credit: 110%}]", "credit: at most 100 %"),
        ("[premium, {name: premium, wait: 20ms}]", "tiers: premium is there twice"),
    ] {
        let refused = problem(server.apply(&pool(tiers)));
        assert!(
            matches!(refused.status, 400 | 422) && refused.detail.contains(words),
            "{tiers}: {refused:?}"
        );
    }
}

#[test]
fn a_missed_promise_is_credited_on_bills_invoices_and_reports_to_the_millionth() {
    let (_folder, server) = Server::with_tenants();
    server.apply("{currency: EUR, issuer: Acme Compute}").unwrap();
    let mut node = ScriptedNode::join(&server, "one", 1);
    let id = node.joined.node;
    let in_hour = |lease, sequence, hour: u64, promised: Option<(u64, u64)>| UsageRecord {
        promised: promised.map(|(waits, within)| Promised { promise: PROMISE, waits, within }),
        tier: Tier::Premium,
        share_ppm: 333_333,
        ..record(id, lease, sequence, "acme/sales", (hour * HOUR_MS + 7, (hour + 1) * HOUR_MS))
    };
    node.report.usage = vec![
        // Kept on the first day, and missed on the second, on which two records are.
        in_hour(101, 1, 5, Some((100, 99))),
        in_hour(101, 2, 24, Some((100, 100))),
        in_hour(101, 3, 25, Some((100, 90))),
        // Without a promise, and without waits.
        in_hour(102, 1, 25, None),
        in_hour(103, 1, 25, Some((0, 0))),
        in_hour(104, 1, 40, Some((1, 0))),
    ];
    assert_eq!(node.say().usage_taken, 6);
    let bill = |path: &str| -> Bill { server.admin.get(path).unwrap() };
    let whole = bill(&format!("/bill?tenant=acme&from_ms=0&until_ms={}", 3 * DAY_MS));
    let of = |bill: &Bill| -> Vec<(u64, u64, u64, u64)> {
        bill.credits.iter().map(|of| (of.lease, of.from_ms, of.promised.waits, of.promised.within)).collect()
    };
    assert_eq!(of(&whole), [(101, DAY_MS, 200, 190), (104, DAY_MS, 1, 0)]);
    // A third of a GPU at 2 for nearly two hours, and for one.
    let costs: Vec<(u64, u64)> = whole.credits.iter().map(|of| (of.reserved_micro, of.micro)).collect();
    assert_eq!(costs, [(1_333_329, 133_333), (666_665, 66_667)]);
    let used: i64 = whole.lines.iter().map(|line| line.cost_micro as i64).sum();
    assert_eq!(whole.total_micro, used - 133_333 - 66_667);
    // However the days are cut into bills, their credits are the same, and so is what a lease sees.
    let days = (0..3).map(|day| {
        bill(&format!("/bill?tenant=acme&from_ms={}&until_ms={}", day * DAY_MS, (day + 1) * DAY_MS))
    });
    assert_eq!(days.flat_map(|day| day.credits).collect::<Vec<_>>(), whole.credits);
    let until_now = bill("/bill?tenant=acme");
    assert_eq!((until_now.credits.len(), until_now.total_micro), (2, whole.total_micro));
    assert_eq!(bill("/bill?tenant=globex").credits, []);
    // A bill that ends within the day judges what is on it: the first two records of lease 101.
    assert_eq!(of(&bill(&format!("/bill?tenant=acme&from_ms=0&until_ms={}", 25 * HOUR_MS + 7))), []);
    let of_part = bill(&format!("/bill?tenant=acme&from_ms=0&until_ms={}", 25 * HOUR_MS + 8));
    assert_eq!(of(&of_part), [(101, DAY_MS, 200, 190)]);

    let charges: Vec<Charge> =
        server.admin.list(&format!("/charges?tenant=acme&from_ms=0&until_ms={}", 3 * DAY_MS)).unwrap();
    assert!(!charges.is_empty() && charges.iter().all(|charge| charge.line.cost_micro > 0));
    let report = format!(
        "/reports/{}?tenant=acme&from_ms=0&until_ms={}&format=csv",
        ReportKind::Cost.name(),
        3 * DAY_MS
    );
    let report = String::from_utf8(server.admin.get_bytes(&report).unwrap()).unwrap();
    assert!(report.contains("95% of 200 waits; 99% within 20ms promised: missed"), "{report}");

    let new = json!({ "tenant": "acme", "from_ms": 0, "until_ms": 3 * DAY_MS });
    let invoice: Invoice = server.admin.post("/invoices", &new).unwrap();
    assert_eq!((&invoice.bill.credits, invoice.bill.total_micro), (&whole.credits, whole.total_micro));
    let credited: Vec<&str> =
        invoice.lines.iter().filter(|line| line.cost_micro < 0).map(|line| line.text.as_str()).collect();
    assert!(
        !credited.is_empty() && credited[0].starts_with("acme/sales: Credit: premium, pool"),
        "{credited:?}"
    );
    assert_eq!(invoice.lines.iter().map(|line| line.cost_micro).sum::<i64>(), whole.total_micro);
    // What comes late can turn a day that was kept: the next invoice has the difference.
    let late = in_hour(101, 4, 6, Some((100, 0)));
    node.report.usage = vec![late];
    node.say();
    let now = bill(&format!("/bill?tenant=acme&from_ms=0&until_ms={}", 3 * DAY_MS));
    assert_eq!(now.credits.len(), 3);
    let next = json!({ "tenant": "acme", "from_ms": 3 * DAY_MS, "until_ms": 4 * DAY_MS });
    let next: Invoice = server.admin.post("/invoices", &next).unwrap();
    assert_eq!(
        next.carried.iter().map(|carried| carried.micro).sum::<i64>(),
        now.total_micro - whole.total_micro
    );
}

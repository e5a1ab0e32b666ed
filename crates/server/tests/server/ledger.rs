mod bills;
mod prices;
mod promises;

use serde_json::Value;
use sluice_api::audit::{Entry, Head, Verification};
use sluice_api::bill::{BeforeAndAfter, Bill, Charge, Line, Meter};
use sluice_api::lease::LeaseState;
use sluice_api::node::Attempt;
use sluice_api::pool::Tier;
use sluice_api::problem::Kind;
use sluice_api::tenant::Applied;
use sluice_api::token::Role;
use sluice_api::usage::{
    AsideDecided, AsideDecision, AsideRecord, BYTES_MAX, GPU_HOUR_PPM_MS, SPAN_MAX_MS, UsageHour, UsageRecord,
};

use crate::{ScriptedNode, Server, ask, problem, request, wait_for_state};

const HOUR_MS: u64 = 3_600_000;

pub(crate) fn record(node: u64, lease: u64, sequence: u32, tenant: &str, hours: (u64, u64)) -> UsageRecord {
    UsageRecord {
        id: UsageRecord::id_of(node, Attempt { lease, attempt: 1, task: 0 }, sequence),
        node,
        lease,
        attempt: 1,
        task: 0,
        sequence,
        tenant: tenant.parse().unwrap(),
        tier: Tier::Standard,
        pool: "default".into(),
        model: "scripted GPU".into(),
        gflops: 20_000,
        from_ms: hours.0,
        until_ms: hours.1,
        share_ppm: 250_000,
        suspended: false,
        gpus: 1,
        memory_mib: 1024,
        used_ppm_ms: GPU_HOUR_PPM_MS / 8,
        kernels: 1,
        bytes_in: 1,
        bytes_out: 1,
        memory_peak: 1,
        promised: None,
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
    let of_transfer = server.admin.get::<Bill>("/bill?tenant=acme").unwrap().lines;
    let of_transfer: Vec<&Line> = of_transfer.iter().filter(|line| line.meter == Meter::Transfer).collect();
    assert_eq!((of_transfer.len(), of_transfer[0].amount), (1, 16), "a byte in and one out of each");
    drop(server);
    check(&Server::start(folder.path()));
}

/// More than an hour, a lease or a bill can hold: they have the most, and what others have used is
/// counted.
#[test]
fn the_bill_of_a_lease_is_its_part_of_its_tenants() {
    let (_folder, server) = Server::with_tenants();
    let member = server.token("acme", Role::Member);
    let [one, two] = [250_000, 500_000].map(|share| request(&member, &ask(share)).id);
    let mut node = ScriptedNode::join(&server, "one", 1);
    let (id, from_ms) = (node.joined.node, server.admin.get::<Bill>("/bill?tenant=acme").unwrap().until_ms);
    let used = |lease, sequence, share_ppm| UsageRecord {
        share_ppm,
        ..record(id, lease, sequence, "acme", (from_ms, from_ms + HOUR_MS))
    };
    node.report.usage = vec![used(one, 1, 250_000), used(one, 2, 250_000), used(two, 1, 500_000)];
    assert_eq!(node.say().usage_taken, 3);
    let bill = |path: &str| -> Bill { member.get(path).unwrap() };
    let [of_one, of_two] = [one, two].map(|lease| bill(&format!("/leases/{lease}/bill")));
    // At 2 for a GPU-hour held, and 0.50 for one used.
    assert_eq!((of_one.total_micro, of_one.records), (2 * (500_000 + 62_500), 2));
    assert_eq!((of_two.total_micro, of_two.records), (1_000_000 + 62_500, 1));
    let whole = bill(&format!("/bill?tenant=acme&until_ms={}", from_ms + 2 * HOUR_MS));
    assert_eq!(whole.total_micro, of_one.total_micro + of_two.total_micro);
    let foreign = server.token("globex", Role::Member);
    assert_eq!(problem(foreign.get::<Value>(&format!("/leases/{one}/bill"))).status, 404);
}

#[test]
fn what_nobody_can_have_used_stops_nothing() {
    let (_folder, server) = Server::with_tenants();
    let mut node = ScriptedNode::join(&server, "one", 1);
    let id = node.joined.node;
    let lie = |sequence| UsageRecord {
        share_ppm: 1_000_000,
        gpus: 1024,
        memory_mib: 1 << 30,
        used_ppm_ms: 2 * 1024 * GPU_HOUR_PPM_MS,
        bytes_in: BYTES_MAX,
        bytes_out: BYTES_MAX,
        ..record(id, 100, sequence, "acme", (0, SPAN_MAX_MS))
    };
    // The hour overflows in one statement, and in a later one.
    for sequences in [1..=300, 301..=330] {
        let count = sequences.end() - sequences.start() + 1;
        node.report.usage = sequences.map(lie).collect();
        assert_eq!((node.say().usage_taken, node.report.usage.len()), (count, count as usize));
    }
    node.report.usage = vec![record(id, 101, 1, "globex", (10, 20))];
    node.say();
    let amount = |bill: &Bill, meter| bill.lines.iter().find(|line| line.meter == meter).unwrap().amount;
    // All of the hour, as it was summed up, and a part of it, record by record.
    for (until_ms, most) in [(HOUR_MS, i64::MAX as u64), (10, u64::MAX)] {
        let bill: Bill =
            server.admin.get(&format!("/bill?tenant=acme&from_ms=0&until_ms={until_ms}")).unwrap();
        assert_eq!((bill.records, amount(&bill, Meter::Reserved)), (330, most));
        assert_eq!(amount(&bill, Meter::Memory), most);
        assert_eq!(
            amount(&bill, Meter::Used),
            330 * lie(1).used_ppm_ms,
            "which is not more than there can be"
        );
        assert_eq!(amount(&bill, Meter::Transfer), 330 * 2 * BYTES_MAX);
    }
    let bill: Bill = server.admin.get("/bill?tenant=globex").unwrap();
    assert_eq!((bill.records, amount(&bill, Meter::Reserved)), (1, 2_500_000));
    let charges: Vec<Charge> =
        server.admin.list(&format!("/charges?tenant=acme&from_ms=0&until_ms={HOUR_MS}")).unwrap();
    assert!(charges.iter().any(|charge| charge.line.amount == u64::MAX), "{charges:?}");
}

#[test]
fn bytes_that_are_moved_have_a_price_once_they_are_given_one() {
    let (_folder, server) = Server::with_tenants();
    let mut node = ScriptedNode::join(&server, "one", 1);
    let id = node.joined.node;
    let moved = UsageRecord { bytes_in: 3 << 30, bytes_out: 1 << 30, ..record(id, 100, 1, "acme", (0, 10)) };
    node.report.usage = vec![moved];
    node.say();
    let transfer = || {
        let bill: Bill = server.admin.get("/bill?tenant=acme").unwrap();
        let line = bill.lines.into_iter().find(|line| line.meter == Meter::Transfer).unwrap();
        (line.quantity_micro, line.cost_micro)
    };
    assert_eq!(transfer(), (4_000_000, 0));
    let refused = problem(server.apply("prices: [{meter: transfer, per: unit, price: 0.10}]"));
    assert!(refused.detail.contains("transfer per GiB"), "{refused:?}");
    // What was used before keeps its price, also that it had none.
    let dry = |yaml: &str| -> Applied {
        server.admin.post_text("/apply?dry_run=true", "application/yaml", yaml).unwrap()
    };
    let price = "prices: [{meter: transfer, price: 0.10}]";
    assert_eq!(dry(price).costs, [], "it was used long ago, and keeps its price");
    let set = server.apply(price).unwrap();
    assert!(set.changes[0].starts_with("price of transfer per GiB is 0.1 from 20"), "{set:?}");
    assert_eq!(transfer(), (4_000_000, 0));

    // Unless the declaration says from when on, which a dry run shows in money.
    let (_folder, server) = Server::with_tenants();
    let mut node = ScriptedNode::join(&server, "one", 1);
    let moved = UsageRecord { bytes_in: 3 << 30, ..record(node.joined.node, 100, 1, "acme", (0, 10)) };
    node.report.usage = vec![moved];
    node.say();
    let price = "prices: [{meter: transfer, price: 0.10, from: 1970-01-01}]";
    let dry: Applied = server.admin.post_text("/apply?dry_run=true", "application/yaml", price).unwrap();
    assert_eq!(dry.changes, ["price of transfer per GiB is 0.1 from 1970-01-01"]);
    let [cost] = &dry.costs[..] else { panic!("{dry:?}") };
    let BeforeAndAfter { before_micro, after_micro } = cost.until_now;
    assert_eq!((cost.tenant.as_str(), after_micro - before_micro), ("acme", 300_000));
    assert_eq!(
        server
            .admin
            .list::<Charge>("/charges?tenant=acme")
            .unwrap()
            .iter()
            .filter(|charge| charge.line.meter == Meter::Transfer)
            .count(),
        0,
        "nothing was done"
    );
    server.apply(price).unwrap();
    let charges: Vec<Charge> = server.admin.list("/charges?tenant=acme").unwrap();
    let charge = charges.iter().find(|charge| charge.line.meter == Meter::Transfer).unwrap();
    assert_eq!((charge.lease, charge.line.cost_micro), (100, 300_000));
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
    let answer = node.say_only();
    assert_eq!((answer.usage_taken, answer.usage_refused.len()), (4, 2));
    let aside: Vec<AsideRecord> = server.admin.list("/usage/aside").unwrap();
    let mut reasons: Vec<&str> = aside.iter().map(|aside| aside.reason.as_str()).collect();
    reasons.sort_unstable();
    let wrong = format!("lease {} is of acme, not of globex", lease.id);
    assert_eq!(reasons, [wrong.as_str(), "there is no lease 100"]);
    assert_eq!(server.admin.list::<UsageRecord>("/usage").unwrap(), []);
}

#[test]
fn usage_beyond_a_grant_is_on_no_bill_until_an_operator_accepts_it() {
    let (_folder, server) = Server::with_tenants();
    let mut one = ScriptedNode::join(&server, "one", 1);
    let member = server.token("acme", Role::Member);
    let lease = request(&member, &ask(250_000));
    one.claim(&wait_for_state(&member, lease.id, LeaseState::Granted));
    let at_ms = wait_for_state(&member, lease.id, LeaseState::Running).granted_at_ms.unwrap();
    let mut two = ScriptedNode::join(&server, "two", 1);
    let of = |node: u64, sequence| record(node, lease.id, sequence, "acme", (at_ms, at_ms + 1000));
    let too_much = UsageRecord { share_ppm: 1_000_000, ..of(one.joined.node, 2) };
    one.report.usage = vec![of(one.joined.node, 1), too_much.clone()];
    two.report.usage = vec![of(two.joined.node, 1)];
    for node in [&mut one, &mut two] {
        let answer = node.say_only();
        assert_eq!((answer.usage_taken as usize, answer.usage_refused.len()), (node.report.usage.len(), 0));
        node.say_only();
    }
    let counted = || server.admin.list::<UsageRecord>("/usage").unwrap();
    assert_eq!(counted(), [of(one.joined.node, 1)]);
    let aside: Vec<AsideRecord> = server.admin.list("/usage/aside").unwrap();
    let of_two = aside.iter().find(|aside| aside.record.node == two.joined.node).unwrap();
    assert!(aside.len() == 2 && of_two.reason.contains("another node"), "{aside:?}");
    assert!(problem(member.get::<Value>("/usage/aside")).is(Kind::Forbidden));

    let decide = |record: &UsageRecord, accept| -> AsideDecided {
        let decision = AsideDecision { ids: vec![record.id.clone()], accept };
        server.admin.post("/usage/aside", &decision).unwrap()
    };
    assert_eq!((decide(&of_two.record, false).records, decide(&too_much, true).records), (1, 1));
    assert_eq!(decide(&too_much, true).records, 0);
    assert_eq!(counted().len(), 2);
    assert_eq!(server.admin.list::<AsideRecord>("/usage/aside").unwrap(), []);
    let entries: Vec<Entry> = server.admin.list("/audit").unwrap();
    for action in ["usage.accepted", "usage.discarded"] {
        assert!(entries.iter().any(|entry| entry.action == action), "{action}");
    }
}

#[test]
fn usage_of_hours_is_summed_up_by_pool_for_those_who_may_see_it() {
    const HOUR_MS: u64 = 3_600_000;
    let (_folder, server) = Server::with_tenants();
    let mut node = ScriptedNode::join(&server, "one", 1);
    let id = node.joined.node;
    let of = |lease, sequence, tenant, hour: u64| {
        let begin_ms = hour * HOUR_MS + u64::from(sequence) * 60_000;
        record(id, lease, sequence, tenant, (begin_ms, begin_ms + 60_000))
    };
    node.report.usage = vec![
        of(100, 1, "acme", 7),
        of(100, 2, "acme", 7),
        UsageRecord { pool: "other".into(), ..of(101, 1, "globex", 7) },
        of(102, 1, "globex", 9),
    ];
    node.say();
    let hours: Vec<UsageHour> = server.admin.list("/usage/hours").unwrap();
    let places: Vec<(u64, &str)> = hours.iter().map(|hour| (hour.from_ms / HOUR_MS, &*hour.pool)).collect();
    assert_eq!(places.len(), 3);
    assert_eq!((places[0].0, places[2].0), (7, 9));
    assert!(places[..2].iter().any(|(_, pool)| *pool == "other"), "{places:?}");
    let reserved: u64 = hours.iter().map(|hour| hour.reserved_ppm_ms).sum();
    assert_eq!(reserved, node.report.usage.iter().map(UsageRecord::reserved_ppm_ms).sum::<u64>());
    let used: u64 = hours.iter().map(|hour| hour.used_ppm_ms).sum();
    assert_eq!(used, node.report.usage.iter().map(|record| record.used_ppm_ms).sum::<u64>());

    // Page by page, from an hour on, and as a tenant.
    let first: sluice_api::Page<UsageHour> = server.admin.get("/usage/hours?limit=1").unwrap();
    assert_eq!(first.items[..], hours[..1]);
    let rest = format!("/usage/hours?cursor={}", first.next.unwrap());
    assert_eq!(server.admin.get::<sluice_api::Page<UsageHour>>(&rest).unwrap().items[..], hours[1..]);
    let later: sluice_api::Page<UsageHour> = server.admin.get("/usage/hours?cursor=8.").unwrap();
    assert_eq!(later.items[..], hours[2..]);
    assert!(problem(server.admin.get::<Value>("/usage/hours?cursor=x")).is(Kind::Invalid));
    let member = server.token("acme", Role::Member);
    let own: Vec<UsageHour> = member.list("/usage/hours").unwrap();
    assert_eq!(own.len(), 1);
    assert_eq!(own[0].reserved_ppm_ms, 2 * node.report.usage[0].reserved_ppm_ms());
    assert_eq!(member.list::<UsageHour>("/usage/hours?tenant=globex").unwrap(), []);
}

#[test]
fn an_hour_that_is_reported_under_two_numbers_is_billed_once() {
    let (_folder, server) = Server::with_tenants();
    let mut node = ScriptedNode::join(&server, "one", 1);
    let member = server.token("acme", Role::Member);
    let lease = request(&member, &ask(250_000));
    node.claim(&wait_for_state(&member, lease.id, LeaseState::Granted));
    let at_ms = wait_for_state(&member, lease.id, LeaseState::Running).granted_at_ms.unwrap();
    let id = node.joined.node;
    let of = |sequence, from_ms, until_ms| {
        record(id, lease.id, sequence, "acme", (at_ms + from_ms, at_ms + until_ms))
    };
    let honest = [of(1, 0, 5000), of(2, 5000, 9000)];
    // In the same report, in a later one, and under a number that was passed over.
    node.report.usage = vec![honest[0].clone(), of(3, 0, 5000)];
    node.say_only();
    node.report.usage = vec![honest[1].clone(), of(4, 1000, 9000)];
    node.say_only();
    // A report whose answer was lost comes again, and changes nothing.
    node.say_only();
    let counted = || server.admin.list::<UsageRecord>("/usage").unwrap();
    assert_eq!(counted(), honest);
    let aside: Vec<AsideRecord> = server.admin.list("/usage/aside").unwrap();
    assert_eq!(aside.iter().map(|aside| aside.record.sequence).collect::<Vec<_>>(), [3, 4]);
    assert!(aside.iter().all(|aside| aside.reason.contains("were counted with record")), "{aside:?}");
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

#[test]
fn who_asks_for_the_bill_of_nobody_is_told_so() {
    let (_folder, server) = Server::with_tenants();
    let unknown = problem(server.admin.get::<Bill>("/bill?tenant=nosuch"));
    assert_eq!((unknown.status, unknown.field.as_deref()), (422, Some("tenant")), "{unknown}");
    assert_eq!(problem(server.token("acme", Role::Viewer).get::<Bill>("/bill?tenant=nosuch")).status, 403);
    server.admin.get::<Bill>("/bill?tenant=/").unwrap();
}

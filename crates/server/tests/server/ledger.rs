use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluice_api::audit::{Entry, Head, Verification};
use sluice_api::bill::{BeforeAndAfter, Bill, Charge, Correction, Line, Meter};
use sluice_api::invoice::Invoice;
use sluice_api::lease::LeaseState;
use sluice_api::node::Attempt;
use sluice_api::pool::{PoolStatus, Tier};
use sluice_api::problem::Kind;
use sluice_api::tenant::{Applied, TenantStatus};
use sluice_api::token::Role;
use sluice_api::usage::{
    AsideDecided, AsideDecision, AsideRecord, BYTES_MAX, GPU_HOUR_PPM_MS, SPAN_MAX_MS, UsageHour, UsageRecord,
};

use crate::{PATIENCE, ScriptedNode, Server, ask, problem, request, wait_for, wait_for_state};

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
fn prices_tell_tiers_apart_and_corrections_stand_beside() {
    let (_folder, server) = Server::with_tenants();
    server.apply("prices: [{meter: reserved, tier: basic, micro: 500000, from_ms: 1}]").unwrap();
    let mut node = ScriptedNode::join(&server, "one", 1);
    let id = node.joined.node;
    // The price for the tier was declared after these hours, and the past keeps its prices.
    let now = server_time(&server);
    let basic =
        |lease| UsageRecord { tier: Tier::Basic, ..record(id, lease, 1, "acme", (now, now + HOUR_MS)) };
    node.report.usage = vec![record(id, 100, 1, "acme", (now, now + HOUR_MS)), basic(101), basic(102)];
    assert_eq!(node.say().usage_taken, 3);
    let until = now + HOUR_MS + 1;
    let bill = || -> Bill { server.admin.get(&format!("/bill?tenant=acme&until_ms={until}")).unwrap() };
    let cost = |bill: &Bill, tier| -> u64 {
        let lines = bill.lines.iter().filter(|line| line.meter == Meter::Reserved && line.goods.tier == tier);
        lines.map(|line| line.cost_micro).sum()
    };
    let before = bill();
    assert_eq!((cost(&before, Tier::Standard), cost(&before, Tier::Basic)), (500_000, 250_000));

    let credit = json!({ "tenant": "acme", "micro": -100_000, "at_ms": now, "reason": "a fault of ours" });
    let made: Correction = server.admin.post("/corrections", &credit).unwrap();
    assert_eq!((made.id, made.micro), (1, -100_000));
    assert_eq!(bill().total_micro, before.total_micro - 100_000);
    for wrong in [
        json!({ "tenant": "acme", "micro": 0, "reason": "x" }),
        json!({ "tenant": "acme", "micro": 1, "reason": " " }),
    ] {
        assert_eq!(problem(server.admin.post::<Correction>("/corrections", &wrong)).status, 422, "{wrong}");
    }
}

#[test]
fn prices_per_unit_hour_follow_the_card_and_touch_no_past() {
    let (_folder, server) = Server::with_tenants();
    let mut node = ScriptedNode::join(&server, "one", 1);
    let id = node.joined.node;
    // Both stand: each is for the cards that it is for.
    let per_unit = "prices: [{meter: reserved, micro: 2000000}, {meter: reserved, per: unit, micro: 100000}]";
    let changes = server.apply(per_unit).unwrap().changes;
    assert!(
        changes.len() == 1 && changes[0].starts_with("price of reserved per unit-hour is 0.1 from "),
        "{changes:?}"
    );
    assert_eq!(server.apply(per_unit).unwrap().changes, [] as [String; 0]);
    let now = server_time(&server);
    let card = |lease, gflops, from_ms| UsageRecord {
        gflops,
        ..record(id, lease, 1, "acme", (from_ms, from_ms + HOUR_MS))
    };
    node.report.usage =
        vec![card(100, 20_000, 1), card(101, 20_000, now), card(102, 66_908, now), card(103, 0, now)];
    assert_eq!(node.say().usage_taken, 4);
    let path = format!("/bill?tenant=acme&until_ms={}", now + HOUR_MS);
    let bill: Bill = server.admin.get(&path).unwrap();
    let lines = bill.lines.iter().filter(|line| line.meter == Meter::Reserved);
    let seen = |line: &Line| (line.goods.gflops, line.unit_name(), line.quantity_micro, line.cost_micro);
    assert_eq!(
        lines.map(seen).collect::<Vec<_>>(),
        [
            // A quarter for an hour before there was such a price, and one of a card that nobody
            // knows the units of: at 2 per GPU-hour.
            (0, "GPU-hour", 500_000, 1_000_000),
            (20_000, "unit-hour", 5_000_000, 500_000),
            (66_908, "unit-hour", 16_727_000, 1_672_700),
        ]
    );
    let records: Vec<UsageRecord> = server.admin.list("/usage").unwrap();
    assert_eq!(records.iter().map(|record| record.gflops).sum::<u64>(), 20_000 * 2 + 66_908);
    // The first price of a tier is not the first of its meter, and so holds from now on as well.
    let past = format!("/bill?tenant=acme&until_ms={now}");
    let before: Bill = server.admin.get(&past).unwrap();
    server.apply("prices: [{meter: reserved, tier: standard, per: unit, micro: 900000}]").unwrap();
    assert_eq!(server.admin.get::<Bill>(&past).unwrap(), before);
    let memory = problem(server.apply("prices: [{meter: memory, per: unit, micro: 1}]"));
    assert!(memory.status == 422 && memory.detail.contains("GiB-hour"), "{memory:?}");
}

/// A pool with a personality that always holds, and a price for what is reserved meanwhile.
fn personality(micro: u64) -> String {
    format!(
        "pools:
  - name: shared
    personalities:
      - name: always
        calendar:
          zone: Europe/Berlin
          times:
            - {{days: [mon, tue, wed, thu, fri], from: 00:00, until: 24:00}}
            - {{days: [sat, sun], from: 00:00, until: 24:00}}
        tiers: [basic]
        prices: [{{meter: reserved, micro: {micro}}}]"
    )
}

#[test]
fn a_personality_has_prices_and_the_past_keeps_its_own() {
    let (_folder, server) = Server::with_tenants();
    assert_eq!(server.apply(&personality(8_000_000)).unwrap().changes, ["pool shared created"]);
    let pools: Vec<PoolStatus> = server.token("acme", Role::Viewer).list("/pools").unwrap();
    let [pool] = &pools[..] else { panic!("{pools:?}") };
    assert_eq!((pool.personality.as_deref(), pool.until_ms), (Some("always"), None));
    assert_eq!(pool.terms().tiers, [Tier::Basic]);
    let first_ms = server_time(&server);
    assert_eq!(server.apply(&personality(8_000_000)).unwrap().changes, [] as [String; 0]);
    let changes = server.apply(&personality(4_000_000)).unwrap().changes;
    assert!(
        changes.len() == 1 && changes[0].starts_with("pool shared changed: personalities"),
        "{changes:?}"
    );
    let second_ms = server_time(&server);

    let mut node = ScriptedNode::join(&server, "one", 1);
    let id = node.joined.node;
    let record = |lease, pool: &str, from_ms| UsageRecord {
        pool: pool.into(),
        ..record(id, lease, 1, "acme", (from_ms, from_ms + HOUR_MS))
    };
    node.report.usage = vec![
        record(100, "shared", 1),
        record(101, "shared", first_ms - 1),
        record(102, "shared", second_ms),
        record(103, "default", second_ms),
    ];
    assert_eq!(node.say().usage_taken, 4);
    let until_ms = second_ms + HOUR_MS;
    let bill: Bill = server.admin.get(&format!("/bill?tenant=acme&until_ms={until_ms}")).unwrap();
    let prices = |pool: &str| -> Vec<u64> {
        let lines = bill.lines.iter().filter(|line| line.meter == Meter::Reserved && line.goods.pool == pool);
        lines.map(|line| line.price_micro).collect()
    };
    // Before there was such a pool, the price for all was 2.
    assert_eq!(prices("shared"), [2_000_000, 4_000_000, 8_000_000]);
    assert_eq!(prices("default"), [2_000_000]);
    assert_eq!(bill.records, 4);
}

#[test]
fn a_personality_that_makes_no_sense_is_refused_by_name() {
    let (_folder, server) = Server::with_tenants();
    let check = |calendar: &str, words: &str| {
        let yaml = format!("pools: [{{name: p, personalities: [{{name: night, calendar: {calendar}}}]}}]");
        let problem = problem(server.apply(&yaml));
        let is_named = problem.detail.contains(words);
        assert!(matches!(problem.status, 400 | 422) && is_named, "{yaml}: {problem:?}");
    };
    check("{zone: UTC, times: []}", "p: personality \"night\": its calendar has no times");
    check("{zone: UTC, times: [{from: 08:00, until: 08:00}]}", "from 08:00 until 08:00");
    check("{zone: UTC, times: [{days: [], from: 08:00, until: 09:00}]}", "no days");
    check(
        "{zone: Mars/Olympus, times: [{from: 08:00, until: 09:00}]}",
        "its calendar is of \"Mars/Olympus\"",
    );
    check("{zone: UTC, times: [{from: 8:00, until: 09:00}]}", "8:00");
    let unknown = "{name: n, calendar: {zone: UTC, times: [{from: 08:00, until: 09:00}]}, \
                   access: {private: {tenants: [nobody]}}}";
    let refused = problem(server.apply(&format!("pools: [{{name: p, personalities: [{unknown}]}}]")));
    assert!(refused.detail.contains("no tenant nobody"), "{refused:?}");
    let pools: Vec<PoolStatus> = server.admin.list("/pools").unwrap();
    assert_eq!(pools, []);
}

/// A moment after everything that the server has done so far.
fn server_time(server: &Server) -> u64 {
    let entries: Vec<Entry> = server.admin.list("/audit").unwrap();
    entries.last().unwrap().at_ms + 1
}

#[test]
fn who_spends_sees_how_tight_the_budgets_above_are_and_nothing_else_of_them() {
    let (_folder, server) = Server::with_tenants();
    let mut node = ScriptedNode::join(&server, "one", 1);
    // Half of a unit and a sixteenth are spent.
    server.apply("tenants: [{path: acme, budget: {amount: 0.675, per: ever, then: warn}}]").unwrap();
    node.report.usage = vec![record(node.joined.node, 101, 1, "acme/sales", (0, HOUR_MS))];
    node.say();
    let member = server.token("acme/research", Role::Member);
    // The leader has noticed what it has written down; another server that is asked notices on its
    // own.
    let noticed = || -> bool {
        let entries: Vec<Entry> = server.admin.list("/audit").unwrap();
        entries.iter().any(|entry| entry.action == "budget.passed")
    };
    let deadline = Instant::now() + PATIENCE;
    let tenants = loop {
        let tenants: Value = member.get("/tenants").unwrap();
        if tenants["items"][0]["tightest_budget"]["spent_percent"] == 83 && noticed() {
            break tenants;
        }
        assert!(Instant::now() < deadline, "{tenants}");
        std::thread::sleep(Duration::from_millis(100));
    };
    let research = &tenants["items"][0];
    assert_eq!((&research["path"], &research["budget"]), (&json!("acme/research"), &Value::Null));
    let lease: Value = member.post("/leases", &ask(100_000)).unwrap();
    assert_eq!(lease["tightest_budget"], json!({ "spent_percent": 83, "then": "warn" }));
    let foreign = server.token("globex", Role::Member);
    let lease: Value = foreign.post("/leases", &ask(100_000)).unwrap();
    assert_eq!(lease["tightest_budget"], Value::Null);
}

#[test]
fn charges_tell_leases_nodes_and_days_apart_and_add_up_to_the_bill() {
    const DAY_MS: u64 = 24 * HOUR_MS;
    let (_folder, server) = Server::with_tenants();
    let [mut one, mut two] = ["one", "two"].map(|name| ScriptedNode::join(&server, name, 1));
    let [first, second] = [&one, &two].map(|node| node.joined.node);
    // A lease over midnight, a second one beside it on another node, one of somebody else, a day
    // without anything, and one more.
    one.report.usage = vec![
        record(first, 101, 1, "acme/research", (DAY_MS - HOUR_MS, DAY_MS)),
        record(first, 101, 2, "acme/research", (DAY_MS, DAY_MS + HOUR_MS / 3)),
        record(first, 101, 3, "acme/research", (DAY_MS + HOUR_MS / 3, DAY_MS + HOUR_MS)),
        record(first, 103, 1, "globex", (DAY_MS, DAY_MS + HOUR_MS)),
    ];
    two.report.usage = vec![
        record(second, 102, 1, "acme/sales", (DAY_MS, DAY_MS + HOUR_MS)),
        record(second, 104, 1, "acme", (3 * DAY_MS, 3 * DAY_MS + HOUR_MS)),
    ];
    one.say();
    two.say();
    let charges = |path: &str| server.admin.list::<Charge>(path).unwrap();
    let all = charges("/charges?tenant=acme");
    let reserved = all.iter().filter(|charge| charge.line.meter == Meter::Reserved);
    let seen =
        |charge: &Charge| (charge.from_ms / DAY_MS, charge.lease, charge.node.clone(), charge.line.amount);
    let quarter = GPU_HOUR_PPM_MS / 4;
    let of = |day, lease, node: &str| (day, lease, node.to_owned(), quarter);
    assert_eq!(
        reserved.map(seen).collect::<Vec<_>>(),
        [of(0, 101, "one"), of(1, 101, "one"), of(1, 102, "two"), of(3, 104, "two")]
    );
    assert!(all.iter().all(|charge| charge.line.meter != Meter::Memory), "it has no price");
    let bill: Bill = server.admin.get("/bill?tenant=acme").unwrap();
    for line in bill.lines.iter().filter(|line| line.price_micro > 0) {
        let same = |charge: &&Charge| (&charge.line.tenant, charge.line.meter) == (&line.tenant, line.meter);
        assert_eq!(all.iter().filter(same).map(|charge| charge.line.amount).sum::<u64>(), line.amount);
    }
    // A part of a day is asked for, of one tenant.
    let (from, until) = (DAY_MS + 1, DAY_MS + HOUR_MS);
    let part = charges(&format!("/charges?tenant=acme/research&from_ms={from}&until_ms={until}"));
    let amounts = part.iter().map(|charge| (charge.from_ms, charge.until_ms, charge.line.amount));
    assert_eq!(amounts.collect::<Vec<_>>()[0], (from, until, quarter / 3 * 2));
    let member = server.token("acme/sales", Role::Member);
    assert!(member.list::<Charge>("/charges").unwrap().iter().all(|charge| charge.lease == 102));
    assert_eq!(problem(member.list::<Charge>("/charges?tenant=acme")).status, 403);
    assert_eq!(problem(server.admin.list::<Charge>("/charges?cursor=x")).status, 422);
}

#[test]
fn an_invoice_is_as_it_was_issued() {
    let (_folder, server) = Server::with_tenants();
    let mut node = ScriptedNode::join(&server, "one", 1);
    let id = node.joined.node;
    node.report.usage = vec![record(id, 100, 1, "acme", (0, HOUR_MS))];
    node.say();
    let period = json!({ "tenant": "acme", "from_ms": 0, "until_ms": 2 * HOUR_MS });
    let invoice: Invoice = server.admin.post("/invoices", &period).unwrap();
    assert_eq!((invoice.number, invoice.bill.records), (1, 1));
    for tenant in ["acme", "acme/research"] {
        let again = json!({ "tenant": tenant, "from_ms": HOUR_MS, "until_ms": 3 * HOUR_MS });
        assert!(problem(server.admin.post::<Invoice>("/invoices", &again)).is(Kind::Conflict), "{tenant}");
    }
    let open = json!({ "tenant": "globex", "from_ms": 0, "until_ms": u64::MAX / 4 });
    assert_eq!(problem(server.admin.post::<Invoice>("/invoices", &open)).status, 422);

    // What comes late does not change it.
    node.report.usage = vec![record(id, 100, 2, "acme", (HOUR_MS, HOUR_MS + 1000))];
    node.say();
    let viewer = server.token("acme", Role::Viewer);
    assert_eq!(viewer.get::<Invoice>("/invoices/1").unwrap(), invoice);
    let listed: Vec<Invoice> = viewer.list("/invoices").unwrap();
    let [brief] = &listed[..] else { panic!("{listed:?}") };
    assert_eq!((brief.number, brief.total_minor, &brief.lines[..]), (1, invoice.total_minor, &[][..]));
    assert_eq!(server.token("globex", Role::Viewer).list::<Invoice>("/invoices").unwrap(), []);
}

#[test]
fn a_budget_that_is_spent_holds_back_what_is_new() {
    let (_folder, server) = Server::with_tenants();
    let mut node = ScriptedNode::join(&server, "one", 1);
    let id = node.joined.node;
    node.report.usage = vec![record(id, 100, 1, "acme", (0, HOUR_MS))];
    node.say();
    server
        .apply("tenants: [{path: acme, quota: {limit_milli: 2000}, budget: {micro: 500000, per: ever}}]")
        .unwrap();
    let member = server.token("acme/research", Role::Member);
    // What is in the audit log the leader has noticed; the server that is asked may be another, and
    // notices on its own.
    let noticed = || -> bool {
        let entries: Vec<Entry> = server.admin.list("/audit").unwrap();
        let tenants: Vec<TenantStatus> = server.admin.list("/tenants").unwrap();
        let spent = tenants[0].budget.as_ref().is_some_and(|budget| budget.spent_percent >= 100);
        spent && entries.iter().any(|entry| entry.action == "budget.passed")
    };
    let deadline = std::time::Instant::now() + crate::PATIENCE;
    while !noticed() {
        assert!(std::time::Instant::now() < deadline, "the budget is never looked at");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let lease = request(&member, &ask(1000));
    let waits = wait_for(&member, lease.id, |lease| lease.reason.is_some());
    assert!(waits.reason.as_ref().unwrap().contains("acme has spent"), "{waits:?}");
    // A node that has been silent for long gets nothing.
    node.say();
    server
        .apply("tenants: [{path: acme, quota: {limit_milli: 2000}, budget: {micro: 90000000, per: ever}}]")
        .unwrap();
    wait_for_state(&member, lease.id, LeaseState::Granted);
}

#[test]
fn a_declaration_of_a_tenant_changes_what_it_mentions() {
    let (folder, server) = Server::with_tenants();
    let check = |server: &Server, limit, spent_of| {
        let tenants: Vec<TenantStatus> = server.admin.list("/tenants").unwrap();
        let acme = tenants.iter().find(|tenant| tenant.path.as_str() == "acme").unwrap();
        let budget = acme.budget.as_ref().map(|status| status.budget.micro);
        assert_eq!((acme.quota.limit_milli, budget), (limit, spent_of));
    };
    for (declared, limit, budget) in [
        ("quota: {limit_milli: 2000}", Some(2000), None),
        ("budget: {micro: 500000, per: ever}", Some(2000), Some(500_000)),
        ("quota: {limit_milli: 3000}", Some(3000), Some(500_000)),
        ("budget: null", Some(3000), None),
        ("budget: {micro: 7, per: day}", Some(3000), Some(7)),
    ] {
        let changes = server.apply(&format!("tenants: [{{path: acme, {declared}}}]")).unwrap().changes;
        assert!(
            changes.len() == 1 && changes[0].starts_with("tenant acme changed: "),
            "{declared}: {changes:?}"
        );
        check(&server, limit, budget);
    }
    assert_eq!(server.apply("tenants: [{path: acme}]").unwrap().changes, [] as [String; 0]);
    drop(server);
    check(&Server::start(folder.path()), Some(3000), Some(7));
}

#[test]
fn who_asks_for_the_bill_of_nobody_is_told_so() {
    let (_folder, server) = Server::with_tenants();
    let unknown = problem(server.admin.get::<Bill>("/bill?tenant=nosuch"));
    assert_eq!((unknown.status, unknown.field.as_deref()), (422, Some("tenant")), "{unknown}");
    assert_eq!(problem(server.token("acme", Role::Viewer).get::<Bill>("/bill?tenant=nosuch")).status, 403);
    server.admin.get::<Bill>("/bill?tenant=/").unwrap();
}

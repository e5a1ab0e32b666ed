//! Prices: per unit hour, of tiers, of personalities.

use serde_json::json;
use sluice_api::bill::{Bill, Correction, Line, Meter};
use sluice_api::pool::{PoolStatus, Tier};
use sluice_api::token::Role;
use sluice_api::usage::UsageRecord;

use super::bills::server_time;
use super::{HOUR_MS, record};
use crate::{ScriptedNode, Server, problem};

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
    assert_eq!(pool.terms().tiers, [Tier::Basic.into()]);
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

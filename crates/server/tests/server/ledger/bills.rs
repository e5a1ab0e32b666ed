//! Charges, invoices and budgets.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluice_api::audit::Entry;
use sluice_api::bill::{Bill, Charge, Meter};
use sluice_api::invoice::Invoice;
use sluice_api::lease::LeaseState;
use sluice_api::problem::Kind;
use sluice_api::tenant::TenantStatus;
use sluice_api::token::Role;
use sluice_api::usage::GPU_HOUR_PPM_MS;

use super::{HOUR_MS, record};
use crate::{PATIENCE, ScriptedNode, Server, ask, problem, request, wait_for, wait_for_state};

/// A moment after everything that the server has done so far.
pub(super) fn server_time(server: &Server) -> u64 {
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

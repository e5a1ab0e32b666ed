//! What people write in files for `sluice apply`.

use serde_json::{Value, json};
use sluice_api::bill::{Bill, Currency};
use sluice_api::client::Client;
use sluice_api::invoice::Invoice;
use sluice_api::node::GpuStatus;
use sluice_api::tenant::{Applied, TenantStatus};
use sluice_api::token::Role;

use crate::ledger::record;
use crate::session::send;
use crate::{ScriptedNode, Server, problem, settings};

const WRITTEN: &str = "
tenants:
  - path: acme
    quota: {guaranteed: 0.5, limit: 1.5, units_limit: 80, memory_limit: 64GiB}
    budget: {amount: 5000.50, per: month}
pools:
  - name: night
    nodes: [one]
    access: {reserved: {tenants: [acme], windows: [{from: 2096-12-01, until: 2096-12-01T08:30:00+01:00}]}}
    personalities:
      - name: late
        calendar: {zone: UTC, times: [{from: '20:00', until: '07:00'}]}
        prices: [{meter: reserved, price: 1.20}]
prices:
  - {meter: reserved, price: 2.00}
  - {meter: used, price: 0.000001, from: 2096-12-01, until: 2096-12-02}
";

const EXACT: &str = "
tenants:
  - path: acme
    quota: {guaranteed_milli: 500, limit_milli: 1500, units_limit_milli: 80000, memory_limit_mib: 65536}
    budget: {micro: 5000500000, per: month, then: hold}
pools:
  - name: night
    nodes: [one]
    access: {reserved: {tenants: [acme], windows: [{from_ms: 4005158400000, until_ms: 4005185400000}]}}
    personalities:
      - name: late
        calendar: {zone: UTC, times: [{from: '20:00', until: '07:00'}]}
        prices: [{meter: reserved, micro: 1200000}]
prices:
  - {meter: reserved, micro: 2000000}
  - {meter: used, micro: 1, from_ms: 4005158400000, until_ms: 4005244800000}
";

#[test]
fn what_people_write_is_what_the_api_says_in_integers() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    ScriptedNode::join(&server, "one", 1);
    let applied = server.apply(WRITTEN).unwrap();
    assert_eq!((applied.changes.len(), applied.warnings.len()), (4, 0), "{applied:?}");
    let answer = |path: &str| server.admin.get::<Value>(path).unwrap()["items"].clone();
    let tenant = answer("/tenants")[0].clone();
    assert_eq!(
        (&tenant["quota"]["limit_milli"], &tenant["budget"]["micro"]),
        (&json!(1500), &json!(5_000_500_000_u64))
    );
    let prices = answer("/prices");
    assert_eq!(
        (&prices[0]["micro"], &prices[1]["from_ms"]),
        (&json!(2_000_000), &json!(4_005_158_400_000_u64))
    );
    let pool = answer("/pools")[0]["declared"].clone();
    assert_eq!(pool["personalities"][0]["prices"][0]["micro"], json!(1_200_000));
    assert_eq!(server.apply(EXACT).unwrap().changes, Vec::<String>::new());
    drop(server);
    let server = Server::start(folder.path());
    assert_eq!(server.apply(WRITTEN).unwrap().changes, Vec::<String>::new(), "it is kept as it was written");
}

#[test]
fn what_is_declared_is_written_as_people_write_it_and_taken_back_under_its_tag() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    ScriptedNode::join(&server, "one", 1);
    server.apply(WRITTEN).unwrap();
    let token = format!("Authorization: Bearer {}\r\n", settings(folder.path()).token);
    let read = || {
        let headers = format!("{token}Accept: application/yaml\r\n");
        let answer = send(&server, "GET", "/api/v1/declaration", &headers, "");
        let tag = answer.head.lines().find(|line| line.to_lowercase().starts_with("etag:")).unwrap();
        (tag.split_once(' ').unwrap().1.trim().to_owned(), answer.body)
    };
    let apply = |tag: &str, body: &str| {
        let headers = format!("{token}Content-Type: application/yaml\r\nIf-Match: {tag}\r\n");
        let answer = send(&server, "POST", "/api/v1/apply", &headers, body);
        (answer.status, serde_json::from_str::<Value>(&answer.body).unwrap())
    };
    let (tag, text) = read();
    assert!(text.contains("memory_limit: 64GiB") || text.contains("memory_limit_mib"), "{text}");
    assert!(text.contains("path: acme") && text.contains("price:"), "{text}");
    assert_eq!(apply(&tag, &text), (200, json!({ "changes": [] })));
    // What has changed meanwhile is not overwritten.
    server.apply("tenants: [{path: globex}]").unwrap();
    assert_eq!(apply(&tag, &text).0, 412);
    let (later, text) = read();
    assert!(later != tag && text.contains("globex"), "{text}");
}

#[test]
fn what_is_written_wrongly_is_named_and_nothing_is_done() {
    let (_folder, server) = Server::with_tenants();
    let before: Value = server.admin.get("/tenants").unwrap();
    for (declaration, words) in [
        (
            "tenants: [{path: acme, quota: {limit: 1, limit_milli: 1000}}]",
            "limit and limit_milli are both there",
        ),
        ("tenants: [{path: acme, quota: {guaranteed: 0.0005}}]", "guaranteed: \"0.0005\""),
        ("tenants: [{path: acme, budget: {per: day}}]", "neither amount nor micro"),
        ("prices: [{meter: used, price: 2.0000001}]", "price: \"2.0000001\""),
        ("prices: [{meter: used, price: 1, from: tomorrow}]", "from: \"tomorrow\""),
    ] {
        let refused = problem(server.apply(&format!("{declaration}\n")));
        assert!(refused.detail.contains(words), "{declaration}: {refused:?}");
    }
    assert_eq!(server.admin.get::<Value>("/tenants").unwrap(), before);
}

#[test]
fn more_is_guaranteed_than_there_is_and_it_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    ScriptedNode::join(&server, "one", 2);
    let Applied { warnings, .. } = server.apply("tenants: [{path: big, quota: {guaranteed: 99.5}}]").unwrap();
    assert!(warnings.len() == 1 && warnings[0].contains("99.5 GPUs in all, and there are 2"), "{warnings:?}");
}

#[test]
fn amounts_are_in_the_currency_that_is_declared() {
    let (folder, server) = Server::with_tenants();
    let mut node = ScriptedNode::join(&server, "one", 1);
    node.report.usage = vec![record(node.joined.node, 101, 1, "acme/research", (0, 3_600_000))];
    node.say();
    let currency = |bill: &Bill| bill.currency.as_ref().map(Currency::to_string);
    let bill = |server: &Server| server.admin.get::<Bill>("/bill?tenant=acme").unwrap();
    assert_eq!(currency(&bill(&server)), None, "nobody has said so");
    let declared =
        "currency: EUR\nissuer: Acme Compute GmbH\ntenants: [{path: acme, budget: {amount: 10, per: ever}}]";
    assert_eq!(server.apply(declared).unwrap().changes.len(), 2);
    assert_eq!(server.apply("currency: EUR").unwrap().changes, Vec::<String>::new());
    assert_eq!(server.apply("currency: GBP").unwrap().changes, ["amounts are in GBP"]);
    assert_eq!(currency(&bill(&server)), Some("GBP".into()), "a mistake can be mended");
    server.apply("currency: EUR").unwrap();
    let until_ms = 7_200_000;
    let new = json!({ "tenant": "acme", "from_ms": 0, "until_ms": until_ms });
    let invoice: Invoice = server.admin.post("/invoices", &new).unwrap();
    assert_eq!(
        (currency(&invoice.bill), invoice.bill.issuer.as_deref()),
        (Some("EUR".into()), Some("Acme Compute GmbH"))
    );
    let refused = problem(server.apply("currency: USD\nissuer: Others"));
    assert_eq!((refused.status, refused.field.as_deref()), (409, Some("currency")), "{refused:?}");
    assert_eq!(server.apply("issuer: Others").unwrap().changes, ["Others bills"]);
    for (wrong, field) in
        [("currency: eur", "currency"), ("currency: EURO", "currency"), ("issuer: ''", "issuer")]
    {
        let refused = problem(server.apply(wrong));
        assert!(refused.status == 422 && refused.detail.contains(field), "{wrong}: {refused:?}");
    }
    drop(server);
    let server = Server::start(folder.path());
    let tenants: Vec<TenantStatus> = server.admin.list("/tenants").unwrap();
    let budget = tenants.into_iter().find_map(|tenant| tenant.budget).unwrap();
    assert_eq!(budget.currency.map(String::from), Some("EUR".into()));
    let issued: Invoice = server.admin.get("/invoices/1").unwrap();
    assert_eq!((issued, bill(&server).issuer.as_deref()), (invoice, Some("Others")), "what was issued stays");
}

#[test]
fn each_gpu_is_in_one_pool_and_the_list_says_which() {
    let (_folder, server) = Server::with_tenants();
    ScriptedNode::join(&server, "one", 3);
    let own = "{name: own, gpus: [one/1], access: {private: {tenants: [globex]}}}";
    server.apply(&format!("pools: [{own}, {{name: scripted, models: [SCRIPTED], nodes: [one]}}]")).unwrap();
    let pools = |client: &Client| -> Vec<Option<String>> {
        client.list::<GpuStatus>("/gpus").unwrap().into_iter().map(|gpu| gpu.pool).collect()
    };
    let named = |pools: [&str; 3]| pools.map(|pool| Some(pool.to_owned())).to_vec();
    assert_eq!(pools(&server.admin), named(["scripted", "own", "scripted"]));
    assert_eq!(pools(&server.token("globex", Role::Member)), named(["scripted", "own", "scripted"]));
    assert_eq!(pools(&server.token("acme", Role::Member))[1], None, "it is none of theirs");
    for (wrong, words) in [
        ("{name: other, gpus: [one/0, one/1]}", "one/1 is in other and in own"),
        ("{name: other, gpus: [one]}", "one"),
        ("{name: other, models: ['']}", "models"),
    ] {
        let refused = problem(server.apply(&format!("pools: [{wrong}]")));
        assert!(refused.status == 422 && refused.detail.contains(words), "{wrong}: {refused:?}");
    }
    // What one pool gives away another may have, at once.
    server.apply("pools: [{name: own, gpus: [one/2]}, {name: other, gpus: [one/1]}]").unwrap();
    assert_eq!(pools(&server.admin), named(["scripted", "other", "own"]));
}

#[test]
fn what_may_not_be_meant_is_said_and_a_dry_run_does_nothing() {
    let (_folder, server) = Server::with_tenants();
    let _node = ScriptedNode::join(&server, "gpu1", 2);
    let yaml = "
tenants: [{path: acme, quota: {guaranteed: 1, limit: 1.5}}]
pools: [{name: p, nodes: [gpu1, gpu9], gpus: [gpu1/1, gpu1/2]}]
prices: [{meter: reserved, pool: elsewhere, price: 1}, {meter: reserved, price: 3, from: 2020-01-01}]
identity: {issuer: 'http://127.0.0.1:9', client_id: c, rules: [{claim: a, is: b, tenant: acme, role: member}]}
";
    let dry: Applied = server.admin.post_text("/apply?dry_run=true", "application/yaml", yaml).unwrap();
    assert_eq!(dry.changes[..2], ["tenant acme changed: limit 2 -> 1.5", "pool p created"]);
    assert!(dry.changes[2].starts_with("price of reserved, elsewhere per GPU-hour is 1 from 20"), "{dry:?}");
    assert!(dry.changes[3].ends_with(", it was 2"), "{dry:?}");
    for part in [
        "pool p: gpu9, gpu1/2 has not joined",
        "there is no pool elsewhere",
        "what was used before keeps its price",
        "identity provider http://127.0.0.1:9 does not answer",
    ] {
        assert!(dry.warnings.iter().any(|warning| warning.contains(part)), "{part}: {dry:?}");
    }
    let again: Applied = server.admin.post_text("/apply?dry_run=true", "application/yaml", yaml).unwrap();
    assert_eq!(again.changes[..2], dry.changes[..2]);
    assert_eq!(server.apply(yaml).unwrap().changes[..2], dry.changes[..2]);
}

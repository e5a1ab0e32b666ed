use serde_json::json;
use sluice_api::audit::Entry;
use sluice_api::bill::{Bill, DaySpent};
use sluice_api::problem::Kind;
use sluice_api::token::Role;
use sluice_api::written::decimal;

use crate::invoices::usage;
use crate::ledger::record;
use crate::{ScriptedNode, Server, ask, problem, request};

const HOUR_MS: u64 = 3_600_000;

/// The rows of a CSV file, as columns by their names.
fn rows(text: &str) -> Vec<std::collections::BTreeMap<String, String>> {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    reader.deserialize().map(|row| row.unwrap()).collect()
}

fn micro(text: &str) -> i64 {
    let (sign, text) = text.strip_prefix('-').map_or((1, text), |text| (-1, text));
    sign * i64::try_from(decimal(text, 6).unwrap()).unwrap()
}

#[test]
fn reports_add_up_to_the_bill_to_the_millionth() {
    let (_folder, server) = Server::with_tenants();
    let mut node = ScriptedNode::join(&server, "one", 1);
    let id = node.joined.node;
    let odd = HOUR_MS + 1;
    usage(
        &mut node,
        vec![
            record(id, 100, 1, "acme/research", (0, HOUR_MS)),
            record(id, 101, 1, "acme/sales", (7, odd)),
            record(id, 102, 1, "globex", (0, HOUR_MS)),
        ],
    );
    let correction = json!({ "tenant": "acme", "micro": -333_333, "at_ms": 5, "reason": "=slow" });
    let _: serde_json::Value = server.admin.post("/corrections", &correction).unwrap();
    let period = format!("tenant=acme&from_ms=0&until_ms={}", 2 * HOUR_MS);
    let bill: Bill = server.admin.get(&format!("/bill?{period}")).unwrap();
    assert!(bill.total_micro > 0);
    let own = server.token("acme", Role::Viewer);
    for (kind, sections) in [("cost", vec!["usage", "correction"]), ("chargeback", vec!["tenant"])] {
        let text = own.get_bytes(&format!("/reports/{kind}?{period}&format=csv")).unwrap();
        let rows = rows(&String::from_utf8(text).unwrap());
        let counted = rows.iter().filter(|row| sections.contains(&row["section"].as_str()));
        assert_eq!(counted.map(|row| micro(&row["cost"])).sum::<i64>(), bill.total_micro, "{kind}");
        assert!(rows.iter().all(|row| row["tenant"].starts_with("acme")), "{kind}: {rows:?}");
    }
    let page = own.get_bytes(&format!("/reports/cost?{period}")).unwrap();
    let total = sluice_api::written::money(bill.total_micro.unsigned_abs());
    assert!(String::from_utf8(page).unwrap().contains(&total));
    let document = own.get_bytes(&format!("/reports/usage?{period}&format=pdf")).unwrap();
    assert!(document.starts_with(b"%PDF-"));
    let foreign = server.token("globex", Role::TenantAdmin);
    assert!(problem(foreign.get_bytes(&format!("/reports/cost?{period}"))).is(Kind::Forbidden));
    assert_eq!(problem(own.get_bytes("/reports/weather")).status, 404);
}

#[test]
fn compliance_says_who_could_do_what_and_who_did() {
    let (_folder, server) = Server::with_tenants();
    let member = server.token("acme/research", Role::Member);
    let lease = request(&member, &ask(1000));
    let foreign = request(&server.token("globex", Role::Member), &ask(1000));
    let auditor = server.token("acme", Role::Auditor);
    let text = auditor.get_bytes("/reports/compliance?tenant=acme&format=csv").unwrap();
    let rows = rows(&String::from_utf8(text).unwrap());
    let of = |section: &str| -> Vec<_> { rows.iter().filter(|row| row["section"] == section).collect() };
    let roles: Vec<&str> = of("token").iter().map(|row| row["role"].as_str()).collect();
    assert_eq!(roles.len(), 2, "{rows:?}");
    assert!(roles.contains(&"member") && roles.contains(&"auditor"));
    assert!(of("token").iter().all(|row| row["state"] == "valid" && row["tenant"].starts_with("acme")));
    let actions: Vec<(&str, &str)> =
        of("action").iter().map(|row| (row["action"].as_str(), row["subject"].as_str())).collect();
    assert!(actions.contains(&("lease.requested", lease.id.to_string().as_str())), "{actions:?}");
    assert!(actions.iter().any(|(action, _)| *action == "token.made"));
    assert!(!actions.iter().any(|(_, subject)| *subject == foreign.id.to_string()), "{actions:?}");
    let administrator = server.token("acme", Role::TenantAdmin);
    let draft = serde_json::json!({ "tenant": "acme", "from_ms": 0, "until_ms": 1, "draft": true });
    let _: serde_json::Value = server.admin.post("/invoices", &draft).unwrap();
    let text = administrator.get_bytes("/reports/compliance?tenant=acme&format=csv").unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("lease.requested") && !text.contains("invoice.drafted"), "{text}");
    assert!(problem(member.get_bytes("/reports/compliance?tenant=acme")).is(Kind::Forbidden));
    let latest = |query: &str| -> Vec<String> {
        let entries: Vec<serde_json::Value> = administrator.list(&format!("/audit/latest{query}")).unwrap();
        entries.iter().map(|entry| format!("{} {}", entry["action"], entry["subject"])).collect()
    };
    let (all, paged) = (latest(""), latest("?limit=1"));
    assert!(all == paged && all.len() > 3, "{all:?} {paged:?}");
    assert!(all.contains(&format!("\"lease.requested\" \"{}\"", lease.id)), "{all:?}");
    assert!(!all.iter().any(|entry| entry.ends_with(&format!("\"{}\"", foreign.id))), "{all:?}");
    assert!(!all.iter().any(|entry| entry.contains("invoice")), "{all:?}");
    let actors = |actor: &str| -> std::collections::BTreeSet<String> {
        let path = format!("/audit/latest?actor={actor}");
        let entries: Vec<Entry> = administrator.list(&path).unwrap();
        entries.into_iter().map(|entry| entry.actor).collect()
    };
    let all = actors("");
    let one = all.first().unwrap();
    let id = one.split(' ').next().unwrap();
    assert!(all.len() > 1, "{all:?}");
    assert_eq!(actors(&id.to_uppercase()), [one.clone()].into());
    assert!(actors("%25").is_empty() && actors("no-such-actor").is_empty());
    let later = 4_000_000_000_000_u64;
    let path = format!("/reports/compliance?tenant=acme&from_ms={later}&until_ms={}&format=csv", later + 1);
    let text = String::from_utf8(auditor.get_bytes(&path).unwrap()).unwrap();
    assert!(!text.contains("lease.requested"), "{text}");
}

#[test]
fn each_day_is_a_bill_of_its_own() {
    const DAY_MS: u64 = 24 * HOUR_MS;
    let (_folder, server) = Server::with_tenants();
    let mut node = ScriptedNode::join(&server, "one", 1);
    let id = node.joined.node;
    let third = (2 * DAY_MS + HOUR_MS, 2 * DAY_MS + 2 * HOUR_MS);
    usage(&mut node, vec![record(id, 100, 1, "acme", (5, HOUR_MS)), record(id, 101, 1, "acme", third)]);
    let days: Vec<DaySpent> =
        server.admin.get(&format!("/bill/days?tenant=acme&from_ms=3&until_ms={}", 3 * DAY_MS)).unwrap();
    assert_eq!(days.len(), 3);
    assert_eq!((days[0].from_ms, days[0].until_ms, days[2].from_ms), (3, DAY_MS, 2 * DAY_MS));
    for day in &days {
        let path = format!("/bill?tenant=acme&from_ms={}&until_ms={}", day.from_ms, day.until_ms);
        assert_eq!(day.total_micro, server.admin.get::<Bill>(&path).unwrap().total_micro);
    }
    assert!(days[0].total_micro > 0 && days[1].total_micro == 0 && days[2].total_micro > 0);
    let long = format!("/bill/days?tenant=acme&from_ms=0&until_ms={}", 101 * DAY_MS);
    assert_eq!(problem(server.admin.get::<Vec<DaySpent>>(&long)).field.as_deref(), Some("from_ms"));
}

use serde_json::{Value, json};
use sluice_api::lease::Lease;
use sluice_api::problem::Kind;
use sluice_api::recommendation::{ProgramAdvice, RunDefault};
use sluice_api::token::Role;
use sluice_api::usage::UsageRecord;

use crate::invoices::usage;
use crate::ledger::record;
use crate::{ScriptedNode, Server, ask, problem, request};

const HOUR_MS: u64 = 3_600_000;
const GIB: u64 = 1 << 30;

#[test]
fn a_recommendation_becomes_the_default_of_the_next_runs_until_it_is_undone() {
    let (_folder, server) = Server::with_tenants();
    let member = server.token("acme/research", Role::Member);
    let mut node = ScriptedNode::join(&server, "one", 1);
    let id = node.joined.node;
    // Ten runs of a program that hold a whole GPU and use a tenth of it.
    for run in 0..10 {
        let lease = request(&member, &ask(1_000_000));
        let ended = UsageRecord {
            share_ppm: 1_000_000,
            used_ppm_ms: HOUR_MS * 100_000,
            memory_mib: 16_384,
            memory_peak: GIB,
            last: true,
            ..record(id, lease.id, 1, "acme/research", (run * HOUR_MS, (run + 1) * HOUR_MS))
        };
        usage(&mut node, vec![ended]);
        let _: Lease = member.delete(&format!("/leases/{}", lease.id)).unwrap();
    }
    let history = format!("/recommendations?from_ms=0&until_ms={}", 11 * HOUR_MS);
    let found: Vec<ProgramAdvice> = member.get(&history).unwrap();
    let [advice] = &found[..] else { panic!("{found:?}") };
    let fits = advice.recommendation.as_ref().unwrap();
    assert_eq!((advice.program.as_str(), fits.runs, fits.replay.slowed), ("a program", 10, 0));
    assert!(fits.share_ppm < 250_000 && fits.memory < 2 * GIB, "{fits:?}");
    assert!(advice.saves.as_ref().unwrap().micro_per_hour.is_some());
    let globex = server.token("globex", Role::TenantAdmin);
    assert_eq!(globex.get::<Vec<ProgramAdvice>>(&history).unwrap(), []);

    let new = json!({
        "tenant": "acme/research", "program": "a program", "share_ppm": fits.share_ppm, "memory": fits.memory,
    });
    assert!(problem(member.post::<Value>("/run-defaults", &new)).is(Kind::Forbidden));
    assert!(problem(globex.post::<Value>("/run-defaults", &new)).is(Kind::Forbidden));
    let administrator = server.token("acme", Role::TenantAdmin);
    let set: RunDefault = administrator.post("/run-defaults", &new).unwrap();
    assert_eq!((set.share_ppm, set.memory), (fits.share_ppm, fits.memory));
    let found: Vec<ProgramAdvice> = member.get(&history).unwrap();
    assert_eq!(found[0].run_default.as_ref(), Some(&set));

    let next = |use_default: bool, name: &str| -> (u32, u64) {
        let asked = json!({ "share_ppm": 1_000_000, "name": name, "use_default": use_default });
        let lease: Lease = member.post("/leases", &asked).unwrap();
        let _: Lease = member.delete(&format!("/leases/{}", lease.id)).unwrap();
        (lease.share_ppm, lease.memory)
    };
    assert_eq!(next(true, "a program"), (fits.share_ppm, fits.memory));
    assert_eq!(next(false, "a program").0, 1_000_000, "what is stated counts");
    assert_eq!(next(true, "another program").0, 1_000_000);

    let path = "/run-defaults?tenant=acme%2Fresearch&program=a%20program";
    let _: RunDefault = administrator.delete(path).unwrap();
    assert_eq!(problem(administrator.delete::<RunDefault>(path)).status, 404);
    assert_eq!(next(true, "a program").0, 1_000_000);
    let entries: Vec<Value> = server.admin.list("/audit").unwrap();
    let actions = entries.iter().filter_map(|entry| entry["action"].as_str());
    let of_defaults: Vec<&str> = actions.filter(|action| action.starts_with("default.")).collect();
    assert_eq!(of_defaults, ["default.set", "default.removed"]);
    for (field, value) in [("share_ppm", json!(0)), ("program", json!(""))] {
        let mut wrong = new.clone();
        wrong[field] = value;
        let refused = problem(administrator.post::<Value>("/run-defaults", &wrong));
        assert_eq!(refused.field.as_deref(), Some(field));
    }
}

//! What is restored from a backup is what it was made of.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::json;
use sluice_api::audit::{Entry, Verification};
use sluice_api::bill::{Bill, Correction};
use sluice_api::client::Client;
use sluice_api::invoice::Invoice;
use sluice_api::lease::Lease;
use sluice_api::tenant::TenantStatus;
use sluice_api::token::Role;
use sluice_api::usage::UsageRecord;

use crate::ledger::record;
use crate::{ScriptedNode, Server, TENANTS, ask, postgres, request, settings};

const HOUR_MS: u64 = 3_600_000;
/// Rows are copied a hundred at a time.
const RECORDS: u32 = 250;

/// Everything that must be the same.
fn books(admin: &Client) -> (Vec<Invoice>, Bill, Vec<UsageRecord>, Vec<Lease>, Vec<Entry>) {
    let until = u64::from(RECORDS) * HOUR_MS;
    (
        admin.list("/invoices").unwrap(),
        admin.get(&format!("/bill?tenant=acme&from_ms=0&until_ms={until}")).unwrap(),
        admin.list("/usage?limit=1000").unwrap(),
        admin.list("/leases").unwrap(),
        admin.list("/audit?limit=1000").unwrap(),
    )
}

fn server_program(folder: &Path, database: Option<&str>, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice-server"));
    command.arg("--data").arg(folder.join("data")).args(arguments);
    command.env("SLUICE_DATABASE", database.unwrap_or_default()).output().unwrap()
}

#[track_caller]
fn succeeds(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[track_caller]
fn fails(output: &Output, because: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains(because), "{said}");
}

#[test]
fn invoices_bills_and_the_audit_log_come_back_as_they_were() {
    let (folder, server) = Server::with_tenants();
    let database = postgres::database_for(folder.path());
    let mut node = ScriptedNode::join(&server, "one", 1);
    let id = node.joined.node;
    node.report.usage = (1..=RECORDS)
        .map(|n| record(id, 100, n, "acme/research", (u64::from(n - 1) * HOUR_MS, u64::from(n) * HOUR_MS)))
        .collect();
    node.say();
    // A lease has values that are NULL; it is over, so that time alone changes nothing about it.
    let member = server.token("acme", Role::Member);
    let lease = request(&member, &ask(1000));
    let _: Lease = member.delete(&format!("/leases/{}", lease.id)).unwrap();
    // What has quotes has to stay as it is.
    let reason = "a 'gift', \"to begin with\"; DROP TABLE invoice; --";
    let gift = json!({ "tenant": "acme", "micro": -7, "at_ms": 5, "reason": reason });
    let _: Correction = server.admin.post("/corrections", &gift).unwrap();
    let period = json!({ "tenant": "acme", "from_ms": 0, "until_ms": 3 * HOUR_MS });
    let invoice: Invoice = server.admin.post("/invoices", &period).unwrap();
    let before = books(&server.admin);
    assert_eq!((before.0.len(), before.2.len(), lease.id), (1, RECORDS as usize, before.3[0].id));

    // The server continues meanwhile, and what comes later is not in it.
    let saved = tempfile::tempdir().unwrap();
    let to = saved.path().join("data");
    let backup = ["--backup", to.to_str().unwrap()];
    succeeds(&server_program(folder.path(), database.as_deref(), &backup));
    fails(&server_program(folder.path(), database.as_deref(), &backup), "exists");
    let later = json!({ "tenant": "acme", "from_ms": 3 * HOUR_MS, "until_ms": 4 * HOUR_MS });
    let _: Invoice = server.admin.post("/invoices", &later).unwrap();

    let restored = tempfile::tempdir().unwrap();
    let other = postgres::database_for(restored.path());
    let restore = ["--restore", to.to_str().unwrap()];
    succeeds(&server_program(restored.path(), other.as_deref(), &restore));
    fails(&server_program(restored.path(), other.as_deref(), &restore), "not empty");

    // On the backup itself, which is a data folder, and on what was restored from it.
    for (folder, database) in [(saved.path(), None), (restored.path(), other.as_deref())] {
        let again = Server::start_on(folder, database);
        let mut now = books(&again.admin);
        // It made itself new tokens, and says so. On a busy machine the node, which reports when
        // this test has it do so, may have been silent for too long.
        let new = now.4.split_off(before.4.len());
        let expected = ["token.made", "node.silent"];
        assert!(new.iter().all(|entry| expected.contains(&entry.action.as_str())), "{new:?}");
        assert_eq!(json!(now), json!(before));
        let mut verification = Verification::new(None);
        now.4.iter().chain(&new).for_each(|entry| verification.follow(entry).unwrap());
        // The node's token and its number are as they were; it delivers what is new.
        node.client = again.admin.with_token(&node.joined.token);
        node.report.usage = vec![record(id, 100, RECORDS + 1, "acme", (0, HOUR_MS))];
        assert_eq!(node.say().usage_taken, 1);
        let next = json!({ "tenant": "acme", "from_ms": 4 * HOUR_MS, "until_ms": 5 * HOUR_MS });
        let next: Invoice = again.admin.post("/invoices", &next).unwrap();
        assert_eq!(next.number, invoice.number + 1);
        assert_eq!(again.apply(TENANTS).unwrap().changes, [] as [String; 0]);
        assert!(!again.admin.list::<TenantStatus>("/tenants").unwrap().is_empty());
        assert_ne!(settings(folder).token, "");
    }
}

#[test]
fn what_is_no_backup_is_refused() {
    let (folder, nothing) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let nowhere = nothing.path().to_str().unwrap();
    fails(&server_program(folder.path(), None, &["--restore", nowhere]), "there is no database");
    std::fs::write(nothing.path().join("sluice.db"), "").unwrap();
    fails(&server_program(folder.path(), None, &["--restore", nowhere]), "there is no database");
    std::fs::write(nothing.path().join("sluice.db"), [b"SQLite format 3\0".as_slice(), &[7; 8192]].concat())
        .unwrap();
    fails(&server_program(folder.path(), None, &["--restore", nowhere]), "the database is damaged");
    std::fs::remove_file(nothing.path().join("sluice.db")).unwrap();
    fails(&server_program(folder.path(), None, &["--backup", &format!("{nowhere}/b")]), "grant.key");
}

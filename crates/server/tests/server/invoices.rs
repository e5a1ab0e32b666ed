//! Invoices as documents: drafted, issued, paid, taken back, and what came late.

use serde_json::json;
use sluice_api::audit::Entry;
use sluice_api::bill::{Bill, Correction};
use sluice_api::client::Failure;
use sluice_api::invoice::{Invoice, InvoiceRun, InvoiceState};
use sluice_api::problem::Kind;
use sluice_api::tenant::Applied;
use sluice_api::token::Role;
use sluice_api::usage::UsageRecord;

use crate::ledger::record;
use crate::{ScriptedNode, Server, problem};

const HOUR_MS: u64 = 3_600_000;
/// The period of these tests.
const UNTIL_MS: u64 = 2 * HOUR_MS;

const INVOICING: &str = "
currency: EUR
issuer: Acme Compute GmbH
invoicing:
  seller: {address: [Musterweg 1, 10115 Berlin], tax_id: VAT DE123}
  payment: IBAN DE00
  tax: {name: VAT, percent: 19}
  number_prefix: AC-
  due_days: 14
tenants:
  - path: globex
    bill_to: {party: {name: Globex SARL}, tax: {name: reverse charge, percent: 0}, reference: PO 7}
";

pub(crate) fn usage(node: &mut ScriptedNode, records: Vec<UsageRecord>) {
    node.report.usage = records;
    node.say();
    node.report.usage.clear();
}

#[test]
fn a_run_invoices_every_tenant_once_however_often_it_is_repeated() {
    let (folder, server) = Server::with_tenants();
    server.apply(INVOICING).unwrap();
    let mut node = ScriptedNode::join(&server, "one", 1);
    let id = node.joined.node;
    usage(
        &mut node,
        vec![record(id, 100, 1, "acme/research", (0, HOUR_MS)), record(id, 101, 1, "globex", (0, HOUR_MS))],
    );
    let run = |draft: bool| -> InvoiceRun {
        server
            .admin
            .post("/invoices/runs", &json!({ "from_ms": 0, "until_ms": UNTIL_MS, "draft": draft }))
            .unwrap()
    };
    // Drafts have no number, and take each other's place.
    for _ in 0..2 {
        let drafts = run(true);
        assert_eq!(drafts.made.iter().map(|draft| draft.number).collect::<Vec<_>>(), [1, 2]);
        assert!(drafts.made.iter().all(|draft| draft.state == InvoiceState::Draft && draft.name.is_empty()));
    }
    let issued: Invoice = server.admin.post("/drafts/2/issue", &json!({})).unwrap();
    assert_eq!((issued.number, issued.name.as_str(), issued.bill.tenant.as_str()), (1, "AC-1", "globex"));
    let all = run(false);
    let [made] = &all.made[..] else { panic!("{all:?}") };
    assert_eq!((made.number, made.bill.tenant.as_str()), (2, "acme"));
    assert!(
        all.skipped
            .iter()
            .any(|passed| passed.tenant.as_str() == "globex" && passed.why.contains("invoice 1"))
    );
    let again = run(false);
    assert_eq!((again.made.len(), again.skipped.len()), (0, 2), "{again:?}");

    // A quarter of a GPU for an hour at 2.00, and an eighth computed at 0.50: 0.50 and 0.06.
    let acme: Invoice = server.admin.get("/invoices/2").unwrap();
    assert_eq!(acme.lines.iter().map(|line| line.amount_minor).collect::<Vec<_>>(), [50, 6]);
    assert_eq!((acme.net_minor, acme.tax_minor, acme.total_minor), (56, 11, 67));
    assert_eq!((acme.seller.name.as_str(), acme.buyer.name.as_str()), ("Acme Compute GmbH", "acme"));
    assert_eq!(acme.due_at_ms, Some(acme.issued_at_ms + 14 * 24 * HOUR_MS));
    assert_eq!(acme.details.iter().map(|detail| detail.cost_micro).sum::<u64>(), 562_500);
    assert_eq!(
        (issued.buyer.name.as_str(), issued.tax_minor, issued.reference.as_deref()),
        ("Globex SARL", 0, Some("PO 7"))
    );
    let viewer = server.token("acme", Role::Viewer);
    assert_eq!(viewer.list::<Invoice>("/invoices").unwrap().len(), 1);
    let foreign = viewer.get_bytes("/invoices/1/document");
    assert_eq!(problem(foreign).status, 404);
    let page = String::from_utf8(viewer.get_bytes("/invoices/2/document?format=html").unwrap()).unwrap();
    assert!(page.contains("Invoice AC-2") && page.contains("0.67 EUR"), "{page}");
    assert!(viewer.get_bytes("/invoices/2/document").unwrap().starts_with(b"%PDF-"));

    drop(server);
    let server = Server::start(folder.path());
    assert_eq!(server.admin.get::<Invoice>("/invoices/2").unwrap(), acme);
    assert_eq!(server.apply(INVOICING).unwrap().changes, [] as [String; 0]);
    let entries: Vec<Entry> = server.admin.list("/audit").unwrap();
    for action in ["invoice.drafted", "invoice.issued"] {
        assert!(entries.iter().any(|entry| entry.action == action), "{action}");
    }
}

#[test]
fn what_comes_late_for_an_invoiced_period_is_on_the_next_invoice_and_nowhere_twice() {
    let (_folder, server) = Server::with_tenants();
    let mut node = ScriptedNode::join(&server, "one", 1);
    let id = node.joined.node;
    usage(&mut node, vec![record(id, 100, 1, "acme", (0, HOUR_MS))]);
    let issue = |from_ms: u64, until_ms: u64| -> Invoice {
        server
            .admin
            .post("/invoices", &json!({ "tenant": "acme", "from_ms": from_ms, "until_ms": until_ms }))
            .unwrap()
    };
    let first = issue(0, UNTIL_MS);
    assert_eq!(first.bill.total_micro, 562_500);
    let credit = json!({ "tenant": "acme", "micro": -200_000, "at_ms": 5, "reason": "node7 was slow" });
    let made: Correction = server.admin.post("/corrections", &credit).unwrap();
    usage(&mut node, vec![record(id, 102, 1, "acme", (HOUR_MS, UNTIL_MS))]);
    let second = issue(UNTIL_MS, 2 * UNTIL_MS);
    let carried: Vec<_> =
        second.carried.iter().map(|late| (late.invoice, late.correction, late.micro, late.records)).collect();
    assert_eq!(carried, [(1, Some(made.id), -200_000, 0), (1, None, 562_500, 1)]);
    assert_eq!(second.lines.iter().map(|line| line.amount_minor).collect::<Vec<_>>(), [-20, 56]);
    assert!(second.lines[0].text.contains("invoice 1") && second.lines[0].text.contains("node7 was slow"));
    assert_eq!(issue(2 * UNTIL_MS, 3 * UNTIL_MS).carried, []);
    // All invoices together are what was used and corrected.
    let all: Bill = server.admin.get("/bill?tenant=acme").unwrap();
    let invoices: Vec<Invoice> = server.admin.list("/invoices").unwrap();
    let late: i64 = invoices.iter().flat_map(|invoice| &invoice.carried).map(|late| late.micro).sum();
    assert_eq!(invoices.iter().map(|invoice| invoice.bill.total_micro).sum::<i64>() + late, all.total_micro);

    // Taken back in another order, what came late would be billed twice: on the second invoice and
    // on the new first one.
    let credit = |number: u64| -> Result<Invoice, Failure> {
        server.admin.post(&format!("/invoices/{number}/credit"), &json!({ "reason": "wrong address" }))
    };
    let refused = problem(credit(1));
    assert!(refused.is(Kind::Conflict) && refused.detail.contains("invoice 2 bills"), "{refused:?}");
    assert_eq!((credit(2).unwrap().number, credit(1).unwrap().number), (4, 5));
    let anew = [issue(0, UNTIL_MS), issue(UNTIL_MS, 2 * UNTIL_MS)];
    assert!(anew.iter().all(|invoice| invoice.carried.is_empty()), "{anew:?}");
    assert_eq!(anew.iter().map(|invoice| invoice.bill.total_micro).sum::<i64>(), all.total_micro);
}

#[test]
fn who_is_billed_does_not_change_the_tax() {
    let (_folder, server) = Server::with_tenants();
    let tax = |percent: &str| json!({ "tenants": [{ "path": "acme/research", "bill_to": { "tax": { "name": "VAT", "percent": percent } } }] });
    let _: Applied = server.admin.post("/apply", &tax("19")).unwrap();
    let own = server.token("acme", Role::TenantAdmin);
    let same: Applied = own.post("/apply", &tax("19")).unwrap();
    assert_eq!(same.changes, [] as [String; 0]);
    assert!(problem(own.post::<Applied>("/apply", &tax("0"))).is(Kind::Forbidden));
    let long = json!({ "invoicing": { "seller": { "address": vec!["line"; 9] } } });
    assert!(problem(server.admin.post::<Applied>("/apply", &long)).detail.contains("address: up to 8 lines"));
}

#[test]
fn an_invoice_is_paid_or_taken_back_and_its_period_can_be_invoiced_anew() {
    let (_folder, server) = Server::with_tenants();
    let mut node = ScriptedNode::join(&server, "one", 1);
    let id = node.joined.node;
    usage(&mut node, vec![record(id, 100, 1, "acme", (0, HOUR_MS))]);
    let new = json!({ "tenant": "acme", "from_ms": 0, "until_ms": UNTIL_MS });
    let first: Invoice = server.admin.post("/invoices", &new).unwrap();
    let paid: Invoice = server.admin.post("/invoices/1/payment", &json!({ "at_ms": 77 })).unwrap();
    assert_eq!((paid.state, paid.paid_at_ms), (InvoiceState::Paid, Some(77)));
    assert!(problem(server.admin.post::<Invoice>("/invoices/1/payment", &json!({}))).is(Kind::Conflict));
    assert!(problem(server.admin.post::<Invoice>("/invoices", &new)).is(Kind::Conflict));
    let note: Invoice =
        server.admin.post("/invoices/1/credit", &json!({ "reason": "wrong address" })).unwrap();
    assert_eq!((note.number, note.credits, note.total_minor), (2, Some(1), -first.total_minor));
    for path in ["/invoices/1/credit", "/invoices/2/credit"] {
        let refused = problem(server.admin.post::<Invoice>(path, &json!({ "reason": "again" })));
        assert!(refused.is(Kind::Conflict), "{path}: {refused:?}");
    }
    let anew: Invoice = server.admin.post("/invoices", &new).unwrap();
    assert_eq!((anew.number, anew.total_minor, anew.carried.len()), (3, first.total_minor, 0));
    let states = |state: &str| -> Vec<u64> {
        let invoices: Vec<Invoice> = server.admin.list(&format!("/invoices?state={state}")).unwrap();
        invoices.iter().map(|invoice| invoice.number).collect()
    };
    assert_eq!((states("credited"), states("issued"), states("paid")), (vec![1], vec![2, 3], vec![]));
    let draft = json!({ "tenant": "globex", "from_ms": 0, "until_ms": 5, "draft": true });
    let draft: Invoice = server.admin.post("/invoices", &draft).unwrap();
    let _: Invoice = server.admin.delete(&format!("/drafts/{}", draft.number)).unwrap();
    assert_eq!(problem(server.admin.get::<Invoice>("/drafts/1")).status, 404);
}

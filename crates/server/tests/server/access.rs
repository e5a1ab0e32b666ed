mod limits;
mod refusals;
mod repeated;
mod secrets;

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use sluice_api::Page;
use sluice_api::client::{Client, Failure};
use sluice_api::invoice::Invoice;
use sluice_api::node::Joined;
use sluice_api::problem::Kind;
use sluice_api::tenant::Applied;
use sluice_api::token::{MadeToken, Role, Token};
use sluice_api::webhook::MadeWebhook;

use crate::{ScriptedNode, Server, ask, problem, request};

use refusals::raw;

/// What of tenant `acme` is asked about.
struct Target {
    lease: u64,
    token: String,
    draft: u64,
    webhook: String,
}

/// Asks for a document and forgets it.
fn document(client: &Client, path: &str) -> Result<Value, Failure> {
    client.get_bytes(&format!("{path}/document?format=html")).map(|_| Value::Null)
}

type Call = fn(&Client, &Target) -> Result<Value, Failure>;

/// A name, the operation in the OpenAPI document, and a request about tenant `acme`.
const CALLS: &[(&str, &str, Call)] = &[
    ("get lease", "get", |c, t| c.get(&format!("/leases/{}", t.lease))),
    ("lease history", "history", |c, t| c.get(&format!("/leases/{}/history", t.lease))),
    ("lease bill", "lease_bill", |c, t| c.get(&format!("/leases/{}/bill", t.lease))),
    ("lease", "create", |c, _| c.post("/leases", &json!({ "tenant": "acme", "share_ppm": 1000 }))),
    ("end lease", "end", |c, t| c.delete(&format!("/leases/{}", t.lease))),
    ("refuse", "refused", |c, t| {
        c.post(&format!("/leases/{}/refusals", t.lease), &json!({ "attempt": 9, "reason": "" }))
    }),
    ("preempt", "preempt", |c, t| c.post(&format!("/leases/{}/preemptions", t.lease), &json!({}))),
    ("move", "move_lease", |c, t| c.post(&format!("/leases/{}/moves", t.lease), &json!({}))),
    ("plan move", "plan_move", |c, t| c.get(&format!("/leases/{}/moves/plan", t.lease))),
    ("resize", "resize", |c, t| c.patch(&format!("/leases/{}", t.lease), &json!({ "share_ppm": 1 }))),
    ("bill", "bill", |c, _| c.get("/bill?tenant=acme")),
    ("bill days", "bill_days", |c, _| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        c.get(&format!("/bill/days?tenant=acme&from_ms={}", now.as_millis() - 86_400_000))
    }),
    ("charges", "charges", |c, _| c.get("/charges?tenant=acme")),
    ("cost report", "tenant_report", |c, _| c.get_bytes("/reports/cost?tenant=acme").map(|_| Value::Null)),
    ("compliance", "tenant_report", |c, _| {
        c.get_bytes("/reports/compliance?tenant=acme").map(|_| Value::Null)
    }),
    ("get invoice", "invoice", |c, _| c.get("/invoices/1")),
    ("invoice document", "invoice_document", |c, _| document(c, "/invoices/1")),
    ("quota", "apply", |c, _| c.post("/apply", &json!({ "tenants": [{ "path": "acme/new" }] }))),
    ("price", "apply", |c, _| c.post("/apply", &json!({ "prices": [{ "meter": "used", "micro": 1 }] }))),
    ("currency", "apply", |c, _| c.post("/apply", &json!({ "currency": "EUR" }))),
    ("pool", "apply", |c, _| c.post("/apply", &json!({ "pools": [{ "name": "p" }] }))),
    ("correct", "correct", |c, _| {
        c.post("/corrections", &json!({ "tenant": "acme", "micro": 1, "reason": "x" }))
    }),
    ("invoice", "issue", |c, _| {
        c.post("/invoices", &json!({ "tenant": "acme", "from_ms": 0, "until_ms": 1 }))
    }),
    ("aside", "aside", |c, _| c.get("/usage/aside")),
    ("decide aside", "decide", |c, _| c.post("/usage/aside", &json!({ "ids": [], "accept": true }))),
    ("invoice run", "run_invoices", |c, _| c.post("/invoices/runs", &json!({ "from_ms": 0, "until_ms": 1 }))),
    ("pay", "pay", |c, _| c.post("/invoices/1/payment", &json!({}))),
    ("credit", "credit", |c, _| c.post("/invoices/1/credit", &json!({ "reason": "x" }))),
    ("drafts", "drafts", |c, _| c.get("/drafts")),
    ("get draft", "draft", |c, t| c.get(&format!("/drafts/{}", t.draft))),
    ("draft document", "draft_document", |c, t| document(c, &format!("/drafts/{}", t.draft))),
    ("issue draft", "issue_draft", |c, t| c.post(&format!("/drafts/{}/issue", t.draft), &json!({}))),
    ("discard draft", "discard", |c, t| c.delete(&format!("/drafts/{}", t.draft))),
    ("watch", "watch", |c, _| c.watch("/watch", |_| ControlFlow::Break(())).map(|()| Value::Null)),
    ("pools", "pools", |c, _| c.get("/pools")),
    ("get tenant", "tenant", |c, _| c.get("/tenants/acme")),
    ("remove tenant", "remove_tenant", |c, _| c.delete("/tenants/acme%2Fkept")),
    ("get pool", "pool", |c, _| c.get("/pools/kept")),
    ("remove pool", "remove_pool", |c, _| c.delete("/pools/kept")),
    ("nodes", "nodes", |c, _| c.get("/nodes")),
    ("node", "node", |c, _| c.get("/nodes/kept")),
    ("drain", "drain", |c, _| c.post("/nodes/kept/drain", &json!({}))),
    ("undrain", "undrain", |c, _| c.delete("/nodes/kept/drain")),
    ("forget node", "forget", |c, _| c.delete("/nodes/kept")),
    ("token", "make_token", |c, _| {
        c.post("/tokens", &json!({ "tenant": "acme", "role": "member", "lifetime_s": 60 }))
    }),
    ("platform token", "make_token", |c, _| {
        c.post("/tokens", &json!({ "tenant": "/", "role": "platform", "lifetime_s": 60 }))
    }),
    ("revoke", "revoke_token", |c, t| c.delete(&format!("/tokens/{}", t.token))),
    ("tokens", "tokens", |c, _| c.get("/tokens")),
    ("get token", "token", |c, t| c.get(&format!("/tokens/{}", t.token))),
    ("people", "people", |c, _| c.get("/people?tenant=acme")),
    ("set default", "set_run_default", |c, _| {
        let new = json!({ "tenant": "acme", "program": "train.py", "share_ppm": 250_000, "memory": 0 });
        c.post("/run-defaults", &new)
    }),
    ("remove default", "remove_run_default", |c, _| c.delete("/run-defaults?tenant=acme&program=kept")),
    ("consent", "consent", |c, _| c.post("/autonomy", &json!({ "tenant": "acme", "mode": "recommend" }))),
    ("undo", "undo", |c, _| c.post("/autonomy/undo", &json!({ "tenant": "acme", "program": "kept" }))),
    ("allow", "allow", |c, _| c.post("/autonomy/allow", &json!({ "tenant": "acme", "program": "alone" }))),
    ("webhooks", "webhooks", |c, _| c.get("/webhooks")),
    ("make webhook", "make_webhook", |c, _| {
        c.post("/webhooks", &json!({ "tenant": "acme", "url": "https://hooks.invalid" }))
    }),
    ("get webhook", "webhook", |c, t| c.get(&format!("/webhooks/{}", t.webhook))),
    ("deliveries", "deliveries", |c, t| c.get(&format!("/webhooks/{}/deliveries", t.webhook))),
    ("test webhook", "test_webhook", |c, t| c.post(&format!("/webhooks/{}/tests", t.webhook), &json!({}))),
    ("enable webhook", "enable", |c, t| c.post(&format!("/webhooks/{}/enable", t.webhook), &json!({}))),
    ("remove webhook", "remove_webhook", |c, t| c.delete(&format!("/webhooks/{}", t.webhook))),
    ("audit", "audit", |c, _| c.get("/audit")),
    ("tenant's audit", "audit_latest", |c, _| c.get("/audit/latest?tenant=acme")),
    ("join", "join", |c, _| {
        c.post("/nodes", &json!({ "name": "n", "address": "h:1", "gpus": [], "release": "0" }))
    }),
    ("report", "report", |c, _| {
        c.post(
            "/nodes/1/reports",
            &json!({ "sequence": 1, "gpus": [], "leases": [], "sessions": [], "usage": [] }),
        )
    }),
    ("gpus", "gpus", |c, _| c.get("/gpus")),
    ("gpu sums", "gpu_sums", |c, _| c.get("/gpus/sums")),
    ("gpu earnings", "card_earnings", |c, _| c.get("/gpus/earnings")),
    ("drift", "drift", |c, _| c.get("/drift")),
    ("servers", "servers", |c, _| c.get("/servers")),
    ("plans", "plans", |c, _| c.get("/plans")),
    ("fence", "fence", |c, _| c.post("/gpus/fences", &json!({ "gpus": [], "why": "x" }))),
    ("unfence", "unfence", |c, _| c.post("/gpus/unfences", &json!({ "gpus": [] }))),
    ("identity", "identity", |c, _| c.get("/identity")),
    ("set identity", "apply", |c, _| c.post("/apply", &identity("https://elsewhere.example", "viewer"))),
    ("forget identity", "forget_identity", |c, _| c.delete("/identity")),
];

/// A declaration of a provider whose staff has this role.
fn identity(issuer: &str, role: &str) -> Value {
    let rule = json!({ "claim": "groups", "is": "staff", "tenant": "acme", "role": role });
    json!({ "identity": { "issuer": issuer, "client_id": "sluice", "rules": [rule] } })
}

#[test]
fn the_identity_provider_is_declared_seen_and_removed() {
    let (folder, server) = Server::with_tenants();
    let declare = |issuer: &str, role: &str| server.admin.post::<Applied>("/apply", &identity(issuer, role));
    assert!(problem(server.admin.get::<Value>("/identity")).is(Kind::NotFound));
    let issuer = "https://id.example";
    assert_eq!(declare(issuer, "viewer").unwrap().changes, ["identity provider https://id.example set"]);
    assert_eq!(declare(issuer, "viewer").unwrap().changes, [] as [String; 0]);
    assert_eq!(declare(issuer, "member").unwrap().changes, ["identity provider https://id.example changed"]);
    let login: Value = server.admin.get("/login").unwrap();
    assert_eq!(login["issuer"].as_str().map(|issuer| issuer.trim_end_matches('/')), Some(issuer));
    let seen: Value = server.token("/", Role::Auditor).get("/identity").unwrap();
    assert_eq!((&seen["issuer"], &seen["rules"][0]["role"]), (&json!(issuer), &json!("member")));
    for (wrong, words) in [
        (identity("http://id.example", "member"), "https://"),
        (identity(issuer, "node"), "token of their own"),
        (identity(issuer, "platform"), "is for /"),
        (identity("no URL", "member"), "no URL"),
    ] {
        let refused = problem(server.admin.post::<Applied>("/apply", &wrong));
        assert_eq!((refused.status, refused.field.as_deref()), (422, Some("identity")), "{refused:?}");
        assert!(refused.detail.contains(words), "{refused:?}");
    }
    let mut unknown = identity(issuer, "member");
    unknown["identity"]["rules"][0]["tenant"] = json!("nobody");
    assert!(problem(server.admin.post::<Applied>("/apply", &unknown)).detail.contains("no tenant nobody"));
    // Who has no word in it does not become somebody by it.
    let forged = server.admin.with_token("a.b.c");
    assert!(problem(forged.get::<Value>("/whoami")).is(Kind::Unauthenticated));
    drop(server);

    let server = Server::start(folder.path());
    assert_eq!(server.admin.get::<Value>("/identity").unwrap(), seen, "it is in the database");
    assert_eq!(server.admin.delete::<Value>("/identity").unwrap(), seen);
    assert!(problem(server.admin.delete::<Value>("/identity")).is(Kind::NotFound));
    let entries: Vec<Value> = server.admin.list("/audit").unwrap();
    let actions = entries.iter().filter_map(|entry| entry["action"].as_str());
    let of_identity: Vec<&str> = actions.filter(|action| action.starts_with("identity.")).collect();
    assert_eq!(of_identity, ["identity.changed", "identity.changed", "identity.removed"]);
}

/// What every valid token may ask for; the answers hold what it may see, see
/// [`lists_show_nothing_of_foreign_tenants`].
const LISTS: &[(&str, &str)] = &[
    ("list", "/leases"),
    ("queue", "/queue"),
    ("sessions", "/sessions"),
    ("tenants", "/tenants"),
    ("prices", "/prices"),
    ("declaration", "/declaration"),
    ("usage", "/usage"),
    ("usage_hours", "/usage/hours"),
    ("invoices", "/invoices"),
    ("recommendations", "/recommendations"),
    ("run_defaults", "/run-defaults"),
    ("autonomy", "/autonomy"),
    ("session", "/session"),
    ("whoami", "/whoami"),
];

/// The calls that the policy let through, whatever came of them then.
fn allowed(server: &Server, client: &Client) -> Vec<&'static str> {
    let refused = |failure: &Failure| match failure {
        Failure::Refused(problem) => matches!(problem.status, 401 | 403 | 404 | 429),
        other => panic!("{other}"),
    };
    let mut names = Vec::new();
    for (name, _, call) in CALLS {
        // What calls before may have taken away.
        server.apply("{tenants: [{path: acme/kept}], pools: [{name: kept, nodes: [kept]}]}").unwrap();
        if server.admin.get::<Value>("/nodes/kept").is_err() {
            ScriptedNode::join(server, "kept", 1);
        }
        let lease = request(&server.token("acme", Role::Member), &ask(1000)).id;
        let new = json!({ "tenant": "acme", "role": "viewer", "lifetime_s": 60 });
        let token = server.admin.post::<MadeToken>("/tokens", &new).unwrap().token.id;
        // Each of another period, since some are issued.
        static PERIODS: AtomicU64 = AtomicU64::new(1000);
        let from_ms = PERIODS.fetch_add(1, Ordering::Relaxed);
        let new = json!({ "tenant": "acme", "from_ms": from_ms, "until_ms": from_ms + 1, "draft": true });
        let draft = server.admin.post::<Invoice>("/invoices", &new).unwrap().number;
        let kept = json!({ "tenant": "acme", "program": "kept", "share_ppm": 1, "memory": 0 });
        let _: Value = server.admin.post("/run-defaults", &kept).unwrap();
        let alone = json!({ "tenant": "acme", "program": "alone" });
        let _: Value = server.admin.post("/autonomy/undo", &alone).unwrap();
        let new = json!({ "tenant": "acme", "url": "https://hooks.invalid" });
        let webhook = server.admin.post::<MadeWebhook>("/webhooks", &new).unwrap().webhook.id;
        let outcome = call(client, &Target { lease, token, draft, webhook: webhook.clone() });
        let _ = server.admin.delete::<Value>(&format!("/webhooks/{webhook}"));
        match outcome {
            Err(failure) if refused(&failure) => {}
            _ => names.push(*name),
        }
    }
    names
}

#[test]
fn every_endpoint_for_every_role() {
    let (_folder, server) = Server::with_tenants();
    let _: Applied = server.admin.post("/apply", &identity("https://id.example", "viewer")).unwrap();
    let invoice = json!({ "tenant": "acme", "from_ms": 2, "until_ms": 3 });
    let _: Value = server.admin.post("/invoices", &invoice).unwrap();
    let check = |role, tenant: &str, expect: &[&str]| {
        let client = server.token(tenant, role);
        assert_eq!(allowed(&server, &client), expect, "{role:?} of {tenant}");
        for (_, path) in LISTS {
            client.get::<Value>(path).unwrap_or_else(|failure| panic!("{role:?} of {tenant}: {failure}"));
        }
    };
    let leases = ["get lease", "lease history", "lease bill", "lease", "end lease", "refuse"];
    let fleet = ["get pool", "nodes", "node"];
    let webhooks = [
        "webhooks",
        "make webhook",
        "get webhook",
        "deliveries",
        "test webhook",
        "enable webhook",
        "remove webhook",
    ];
    let tokens = ["token", "revoke", "tokens", "get token", "people"];
    let gpus = ["gpus", "gpu sums", "drift"];
    let defaults = ["set default", "remove default", "consent", "undo", "allow"];
    let tenants = ["watch", "pools", "get tenant", "remove tenant"];
    let money = ["bill", "bill days", "charges", "cost report", "get invoice", "invoice document"];
    let audited =
        ["bill", "bill days", "charges", "cost report", "compliance", "get invoice", "invoice document"];
    let administrator = [
        &leases[..],
        &["preempt", "move", "plan move", "resize"],
        &audited,
        &["quota"],
        &tenants,
        &fleet,
        &tokens,
        &defaults,
        &webhooks,
        &["tenant's audit"],
        &gpus,
    ]
    .concat();
    check(Role::TenantAdmin, "acme", &administrator);
    let seen = [&money[..], &["watch", "pools", "get tenant"], &fleet].concat();
    check(Role::Member, "acme", &[&leases[..], &seen, &["undo"], &["gpus", "gpu sums", "drift"]].concat());
    check(Role::Viewer, "acme", &[&leases[..3], &seen, &["gpus", "gpu sums", "drift"]].concat());
    let audits = [
        "tokens",
        "get token",
        "people",
        "audit",
        "tenant's audit",
        "gpus",
        "gpu sums",
        "drift",
        "servers",
        "plans",
        "identity",
    ];
    let audited = [&audited[..], &["watch", "pools", "get tenant"], &fleet].concat();
    check(Role::Auditor, "/", &[&leases[..3], &audited, &audits].concat());
    let sold = [
        "price",
        "currency",
        "pool",
        "correct",
        "invoice",
        "aside",
        "decide aside",
        "invoice run",
        "pay",
        "credit",
        "drafts",
        "get draft",
        "draft document",
        "issue draft",
        "discard draft",
        "watch",
        "pools",
        "get tenant",
        "get pool",
        "remove pool",
    ];
    let nodes = ["nodes", "node", "drain", "undrain", "forget node", "tokens", "get token", "people"];
    let fences = ["gpus", "gpu sums", "gpu earnings", "drift", "servers", "plans", "fence", "unfence"];
    check(Role::Provider, "/", &[&leases[..3], &money, &sold, &nodes, &webhooks, &fences].concat());
    check(Role::Node, "/", &["join"]);
    let foreign = |more: &[&'static str]| {
        [&["watch", "pools"], &fleet[..], more, &["gpus", "gpu sums", "drift"]].concat()
    };
    check(Role::TenantAdmin, "globex", &foreign(&["tokens", "webhooks"]));
    for role in [Role::Member, Role::Viewer] {
        check(role, "globex", &foreign(&[]));
    }
    check(Role::Member, "acme/research", &foreign(&[]));
    for nobody in ["", "slc_x_y"] {
        let nobody = server.admin.with_token(nobody);
        assert_eq!(allowed(&server, &nobody), [] as [&str; 0]);
        for (_, path) in LISTS {
            assert!(matches!(problem(nobody.get::<Value>(path)).status, 401 | 429), "{path}");
        }
    }
}

#[test]
fn no_endpoint_is_left_out_of_the_table() {
    let document: Value = serde_json::from_str(&sluice_server::document()).unwrap();
    let paths = document["paths"].as_object().unwrap();
    let operations = paths.values().flat_map(|path| path.as_object().unwrap().values());
    let documented: BTreeSet<&str> =
        operations.map(|operation| operation["operationId"].as_str().unwrap()).collect();
    let calls = CALLS.iter().map(|(_, operation, _)| *operation);
    let lists = LISTS.iter().map(|(operation, _)| *operation);
    // Signing in needs no token: the end-to-end test of identity providers asks it, and session.rs
    // the web view's.
    let sign_in = ["login", "sign_in", "sign_out", "sign_in_link", "to_provider", "from_provider"];
    let tested: BTreeSet<&str> = calls.chain(lists).chain(sign_in).collect();
    assert_eq!(documented, tested);
}

#[test]
fn lists_show_nothing_of_foreign_tenants() {
    let (_folder, server) = Server::with_tenants();
    request(&server.token("acme/research", Role::Member), &ask(1000));
    let foreign = server.token("globex", Role::TenantAdmin);
    for path in ["/leases", "/queue", "/sessions", "/usage", "/usage/hours"] {
        assert_eq!(foreign.get::<Page<Value>>(path).unwrap().items, [] as [Value; 0], "{path}");
    }
    let tenants: Vec<Value> = foreign.list("/tenants").unwrap();
    assert_eq!(tenants.len(), 1);
    let tokens: Vec<Token> = foreign.list("/tokens").unwrap();
    assert!(tokens.iter().all(|token| token.tenant.as_str() == "globex"));
}

#[test]
fn the_documentation_lists_every_path() {
    let (_folder, server) = Server::with_tenants();
    let (status, _, page) = raw(&server, "GET /api/v1 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert_eq!(status, 200);
    let document: serde_json::Value = serde_json::from_str(&sluice_server::document()).unwrap();
    for path in document["paths"].as_object().unwrap().keys() {
        assert!(page.contains(path), "{path}");
    }
}

#[test]
fn a_token_that_names_a_node_is_good_for_that_node_alone() {
    let (_folder, server) = Server::with_tenants();
    let token = |node: Option<&str>| {
        let new = json!({ "tenant": "/", "role": "node", "lifetime_s": 600, "node": node });
        server.admin.with_token(&server.admin.post::<MadeToken>("/tokens", &new).unwrap().secret)
    };
    let join = |client: &Client, name: &str| -> Result<Joined, Failure> {
        let gpu = json!({
            "name": "GPU", "uuid": "", "memory": 1_u64 << 34, "software": true, "compute_capability": "8.0", "driver_version": 0,
        });
        let release = env!("CARGO_PKG_VERSION");
        client.post(
            "/nodes",
            &json!({ "name": name, "address": "h:1", "gpus": [gpu], "labels": {}, "release": release }),
        )
    };
    let refused = |joined: Result<Joined, Failure>, part: &str| {
        let problem = problem(joined.map(drop));
        assert!(problem.is(Kind::Forbidden) && problem.detail.contains(part), "{problem:?}");
    };
    let any = token(None);
    join(&any, "gpu1").unwrap();
    let of_gpu1 = token(Some("gpu1"));
    refused(join(&of_gpu1, "gpu2"), "for the node gpu1");
    let joined = join(&of_gpu1, "gpu1").unwrap();
    refused(join(&any, "gpu1"), "has a token of its own");
    join(&any, "gpu2").unwrap();
    // The token that a node reports with names it, too.
    refused(join(&server.admin.with_token(&joined.token), "gpu2"), "for the node gpu1");
    let wrong = json!({ "tenant": "acme", "role": "member", "lifetime_s": 600, "node": "gpu1" });
    assert!(problem(server.admin.post::<MadeToken>("/tokens", &wrong).map(drop)).is(Kind::Invalid));
}

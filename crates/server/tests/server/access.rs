use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde_json::{Value, json};
use sluice_api::Page;
use sluice_api::bill::Price;
use sluice_api::client::{Client, Failure};
use sluice_api::invoice::Invoice;
use sluice_api::lease::{Lease, LeaseState};
use sluice_api::node::Joined;
use sluice_api::problem::{Kind, Problem};
use sluice_api::tenant::{Applied, TenantPath};
use sluice_api::token::{MadeToken, NewToken, Role, Token};
use sluice_api::webhook::MadeWebhook;

use crate::{
    PATIENCE, ScriptedNode, Server, ServerProcess, ask, problem, request, settings, wait_for, wait_for_state,
};

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
    ("drift", "drift", |c, _| c.get("/drift")),
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
    let tokens = ["token", "revoke", "tokens", "get token"];
    let gpus = ["gpus", "gpu sums", "drift"];
    let defaults = ["set default", "remove default", "consent", "undo", "allow"];
    let tenants = ["watch", "pools", "get tenant", "remove tenant"];
    let money = ["bill", "bill days", "charges", "cost report", "get invoice", "invoice document"];
    let administrator = [
        &leases[..],
        &["preempt", "move", "resize"],
        &money,
        &["quota"],
        &tenants,
        &fleet,
        &tokens,
        &defaults,
        &webhooks,
        &gpus,
    ]
    .concat();
    check(Role::TenantAdmin, "acme", &administrator);
    let seen = [&money[..], &["watch", "pools", "get tenant"], &fleet].concat();
    check(Role::Member, "acme", &[&leases[..], &seen, &["undo"], &["gpus", "gpu sums", "drift"]].concat());
    check(Role::Viewer, "acme", &[&leases[..3], &seen, &["gpus", "gpu sums", "drift"]].concat());
    let audits = ["tokens", "get token", "audit", "gpus", "gpu sums", "drift", "identity"];
    let audited =
        ["bill", "bill days", "charges", "cost report", "compliance", "get invoice", "invoice document"];
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
    let nodes = ["nodes", "node", "drain", "undrain", "forget node", "tokens", "get token"];
    let fences = ["gpus", "gpu sums", "drift", "fence", "unfence"];
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
    let sign_in = ["login", "sign_in", "sign_out", "sign_in_link"];
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
fn tokens_end_and_their_secrets_are_nowhere() {
    let (folder, server) = Server::with_tenants();
    let new = json!({ "tenant": "acme", "role": "member", "name": "short", "lifetime_s": 600 });
    let made: MadeToken = server.admin.post("/tokens", &new).unwrap();
    let client = server.admin.with_token(&made.secret);
    let _: Token = client.get("/whoami").unwrap();
    for file in std::fs::read_dir(folder.path().join("data")).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        let secret = made.secret.as_bytes();
        assert!(!bytes.windows(secret.len()).any(|window| window == secret));
    }
    let changed = server.admin.with_token(&format!("{}x", made.secret));
    assert!(problem(changed.get::<Token>("/whoami")).is(Kind::Unauthenticated));
    let _: Token = server.admin.delete(&format!("/tokens/{}", made.token.id)).unwrap();
    let revoked = problem(client.get::<Token>("/whoami"));
    assert!(revoked.is(Kind::Unauthenticated) && revoked.detail.contains("revoked"), "{revoked:?}");
}

#[test]
fn bad_input_gets_a_problem_that_names_the_field() {
    let (_folder, server) = Server::with_tenants();
    let member = server.token("acme", Role::Member);
    let check = |body: Value, field: &str| {
        let problem = problem(member.post::<Lease>("/leases", &body));
        assert_eq!((problem.status, problem.field.as_deref()), (422, Some(field)), "{problem:?}");
    };
    check(json!({ "gpus": 0 }), "gpus");
    check(json!({ "gpus": 65 }), "gpus");
    check(json!({ "share_ppm": 0 }), "share_ppm");
    check(json!({ "share_ppm": 1_000_001 }), "share_ppm");
    check(json!({ "units_milli": 0 }), "units_milli");
    check(json!({ "units_milli": 5000, "share_ppm": 250_000 }), "share_ppm");
    check(json!({ "priority": 0 }), "priority");
    check(json!({ "memory": u64::MAX }), "memory");
    for body in [json!({ "gpu": 1 }), json!({ "gpus": -1 }), json!({ "tenant": "NO" })] {
        assert_eq!(problem(member.post::<Lease>("/leases", &body)).status, 422, "{body}");
    }
    let unknown = problem(server.admin.post::<Lease>("/leases", &json!({ "tenant": "nobody" })));
    assert_eq!(unknown.field.as_deref(), Some("tenant"));
    for yaml in
        ["tenants: [{path: orphan/child}]", "tenants: [{path: acme, quotas: {}}]", "tenants: {", "x: 1"]
    {
        assert_eq!(problem(server.apply(yaml)).status, 422, "{yaml}");
    }
    let below = "tenants: [{path: acme, quota: {guaranteed_milli: 2, limit_milli: 1}}]";
    assert!(problem(server.apply(below)).detail.contains("limit_milli"));
    for (quota, words) in [
        (
            "guaranteed_milli: 1, guaranteed_units_milli: 2, units_limit_milli: 1",
            "units_limit (units_limit_milli) is below",
        ),
        ("units_limit_milli: 1000000000001", "up to"),
        ("guaranteed_milli: 1000, guaranteed_units_milli: 5000", "globex: guaranteed_units_milli is missing"),
        ("guaranteed_units_milli: 5000", "acme: guaranteed_milli is missing"),
    ] {
        let refused = problem(server.apply(&format!("tenants: [{{path: acme, quota: {{{quota}}}}}]")));
        assert!(refused.status == 422 && refused.detail.contains(words), "{quota}: {refused:?}");
    }
    assert_eq!(problem(member.get::<Value>("/nothing")).status, 404);
    assert_eq!(problem(member.delete::<Value>("/queue")).status, 405);
    assert_eq!(problem(member.get::<Value>("/leases/x")).status, 404);
}

/// A request as no client of ours would send it; the answer's status, headers and body.
fn raw(server: &Server, request: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(server.admin.server().strip_prefix("http://").unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_ascii_lowercase(), body.to_owned())
}

#[test]
fn every_refusal_is_a_problem() {
    let (folder, server) = Server::with_tenants();
    let token = settings(folder.path()).token;
    let own = format!("Host: a\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n");
    let json = |body: &str| {
        format!("Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    };
    let check = |request: &str, status: u16, kind: &str| {
        let answer = raw(&server, request);
        assert_eq!(answer.0, status, "{request}: {answer:?}");
        assert!(answer.1.contains("content-type: application/problem+json"), "{answer:?}");
        let problem: Problem = serde_json::from_str(&answer.2).unwrap();
        assert_eq!((problem.kind.as_str(), problem.status), (kind, status));
    };
    check(&format!("GET /nowhere HTTP/1.1\r\n{own}\r\n"), 404, "/problems/not-found");
    check(&format!("GET /api/v1/leases/x HTTP/1.1\r\n{own}\r\n"), 404, "/problems/not-found");
    check(&format!("PUT /api/v1/leases HTTP/1.1\r\n{own}\r\n"), 405, "/problems/method-not-allowed");
    check(
        "GET /api/v1/leases HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        401,
        "/problems/unauthenticated",
    );
    check(&format!("POST /api/v1/leases HTTP/1.1\r\n{own}{}", json("{")), 400, "/problems/malformed-request");
    check(
        &format!("POST /api/v1/leases HTTP/1.1\r\n{own}{}", json("{\"gpus\": -1}")),
        422,
        "/problems/invalid-request",
    );
    check(&format!("GET /api/v1/leases?limit=0 HTTP/1.1\r\n{own}\r\n"), 422, "/problems/invalid-request");
    check(&format!("GET /api/v1/leases?cursor=%ff HTTP/1.1\r\n{own}\r\n"), 422, "/problems/invalid-request");
    let large = "x".repeat((4 << 20) + 1);
    check(&format!("POST /api/v1/leases HTTP/1.1\r\n{own}{}", json(&large)), 413, "/problems/too-large");
}

#[test]
fn tags_save_reading_again_and_guard_changes() {
    let (folder, server) = Server::with_tenants();
    let token = settings(folder.path()).token;
    let own = format!("HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n");
    let (status, head, _) = raw(&server, &format!("GET /api/v1/prices {own}\r\n"));
    assert_eq!(status, 200);
    let tag = head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap();
    let (status, _, body) = raw(&server, &format!("GET /api/v1/prices {own}If-None-Match: {tag}\r\n\r\n"));
    assert_eq!((status, body.as_str()), (304, ""));

    let member = server.token("acme", Role::Member);
    let lease = request(&member, &ask(1000));
    // It changes no more once it is known why it waits.
    wait_for(&member, lease.id, |lease| lease.reason.is_some());
    let path = format!("/api/v1/leases/{}", lease.id);
    let (status, head, _) = raw(&server, &format!("DELETE {path} {own}If-Match: \"0\"\r\n\r\n"));
    assert_eq!(status, 412, "{head}");
    let (_, head, _) = raw(&server, &format!("GET {path} {own}\r\n"));
    let tag = head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap();
    let (status, head, _) = raw(&server, &format!("DELETE {path} {own}If-Match: {tag}\r\n\r\n"));
    assert_eq!(status, 200, "{head}");
}

#[test]
fn what_is_taken_away_is_what_was_read() {
    let (folder, server) = Server::with_tenants();
    let _: Applied = server.admin.post("/apply", &identity("https://id.example", "viewer")).unwrap();
    server.apply("{tenants: [{path: spare}], pools: [{name: spare}]}").unwrap();
    ScriptedNode::join(&server, "one", 1);
    let _: Value = server.admin.post("/nodes/one/drain", &json!({})).unwrap();
    let new = json!({ "tenant": "acme", "role": "viewer", "lifetime_s": 60 });
    let made: MadeToken = server.admin.post("/tokens", &new).unwrap();
    let token = settings(folder.path()).token;
    let own = format!("HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n");
    let revoked = format!("tokens/{}", made.token.id);
    let check = |path: &str, read: &str, change: &dyn Fn()| {
        let tag = || {
            let (status, head, body) = raw(&server, &format!("GET /api/v1/{read} {own}\r\n"));
            assert_eq!(status, 200, "{path}: {body}");
            head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap().to_owned()
        };
        let remove =
            |tag: &str| raw(&server, &format!("DELETE /api/v1/{path} {own}If-Match: {tag}\r\n\r\n")).0;
        assert_eq!(remove("\"another\""), 412, "{path}");
        let before = tag();
        change();
        assert_eq!(remove(&before), 412, "{path} has changed");
        assert_eq!(remove(&tag()), 200, "{path}");
    };
    check("identity", "identity", &|| {
        let _: Applied = server.admin.post("/apply", &identity("https://id.example", "member")).unwrap();
    });
    check("tenants/spare", "tenants/spare", &|| {
        server.apply("tenants: [{path: spare, quota: {limit_milli: 1}}]").unwrap();
    });
    check("pools/spare", "pools/spare", &|| {
        server.apply("pools: [{name: spare, sharing: whole}]").unwrap();
    });
    check(&revoked, &revoked, &|| {
        let _: Value = server.admin.delete(&format!("/{revoked}")).unwrap();
    });
    // A node's drain is a part of what it is.
    check("nodes/one/drain", "nodes/one", &|| {
        let _: Value = server.admin.post("/nodes/one/drain", &json!({ "why": "fans" })).unwrap();
    });
    let (status, ..) = raw(&server, &format!("DELETE /api/v1/nodes/one {own}If-Match: \"another\"\r\n\r\n"));
    assert_eq!(status, 412);
}

#[test]
fn what_is_declared_is_what_was_read() {
    let (folder, server) = Server::with_tenants();
    let _: Applied = server.admin.post("/apply", &identity("https://id.example", "viewer")).unwrap();
    server.apply("{currency: EUR, pools: [{name: p, access: {private: {tenants: [acme]}}}]}").unwrap();
    server.apply("prices: [{meter: reserved, micro: 3000000, from: 2090-01-01}]").unwrap();
    let all: Value = server.admin.get("/declaration").unwrap();
    let again: Applied = server.admin.post("/apply", &all).unwrap();
    assert_eq!(again.changes, [] as [String; 0], "it is as it can be declared");
    let paths = |seen: &Value| -> Vec<String> {
        seen["tenants"]
            .as_array()
            .unwrap()
            .iter()
            .map(|tenant| tenant["path"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(paths(&all), ["acme", "acme/research", "acme/sales", "globex"]);
    assert_eq!((&all["currency"], &all["identity"]["issuer"]), (&json!("EUR"), &json!("https://id.example")));
    let seen: Value = server.token("globex", Role::TenantAdmin).get("/declaration").unwrap();
    assert_eq!(
        (paths(&seen), &seen["pools"], &seen["identity"]),
        (vec!["globex".into()], &json!([]), &Value::Null)
    );

    server.apply("prices: [{meter: reserved, pool: p, micro: 1, from: 2090-01-01}]").unwrap();
    for (tenant, prices) in [("globex", [2, 3]), ("acme", [3, 4])] {
        let client = server.token(tenant, Role::TenantAdmin);
        let declared: Value = client.get("/declaration").unwrap();
        let all: Vec<Price> = client.list("/prices").unwrap();
        assert_eq!(
            [declared["prices"].as_array().unwrap().len(), all.len()],
            prices,
            "{tenant}: of pools of others"
        );
    }

    let token = settings(folder.path()).token;
    let own = format!("HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n");
    let tag = || {
        let (_, head, _) = raw(&server, &format!("GET /api/v1/declaration {own}\r\n"));
        head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap().to_owned()
    };
    let apply = |tag: &str, body: &str| {
        let head =
            format!("POST /api/v1/apply {own}If-Match: {tag}\r\nContent-Length: {}\r\n\r\n", body.len());
        raw(&server, &format!("{head}{body}")).0
    };
    for body in [
        "tenants: [{path: new}]",
        "pools: [{name: p}]",
        "prices: [{meter: transfer, price: 0.01}]",
        "issuer: Somebody",
    ] {
        let before = tag();
        assert_eq!(apply(&before, body), 200, "{body}");
        assert_eq!(apply(&before, body), 412, "{body} has changed it");
    }
    assert_eq!(apply("*", "tenants: [{path: new}]"), 200);
}

#[test]
fn what_is_asked_for_again_under_its_key_is_done_once() {
    let (folder, server) = Server::with_tenants();
    let correction = json!({ "tenant": "acme", "micro": 5, "reason": "a gift" });
    let once = |path: &str, body: &Value, key: &str| server.admin.post_once::<Value>(path, body, key);
    let first = once("/corrections", &correction, "one").unwrap();
    assert_eq!(once("/corrections", &correction, "one").unwrap(), first, "the same answer");
    assert_ne!(once("/corrections", &correction, "two").unwrap()["id"], first["id"]);
    let other = json!({ "tenant": "acme", "micro": 6, "reason": "a gift" });
    for refused in [
        once("/corrections", &other, "one"),
        once("/invoices", &correction, "one"),
        once("/leases", &json!({ "tenant": "acme" }), "one"),
    ] {
        let refused = problem(refused);
        assert!(refused.is(Kind::KeyReused) && refused.status == 422, "{refused:?}");
    }
    // A token's secret is in the answer, and in no other place.
    let new = json!({ "tenant": "acme", "role": "member", "lifetime_s": 600 });
    let made = once("/tokens", &new, "token").unwrap();
    assert_eq!(once("/tokens", &new, "token").unwrap(), made);
    let secret = made["secret"].as_str().unwrap();
    for file in std::fs::read_dir(folder.path().join("data")).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        assert!(!bytes.windows(secret.len()).any(|window| window == secret.as_bytes()));
    }
    let tokens: Vec<Token> = server.admin.list("/tokens").unwrap();
    assert_eq!(tokens.iter().filter(|token| token.tenant.as_str() == "acme").count(), 1);
    // What is refused may be asked for again, and what changes nothing is as it was the first time.
    let invoice = json!({ "tenant": "nobody", "from_ms": 0, "until_ms": 1 });
    assert!(problem(once("/invoices", &invoice, "refused")).is(Kind::Invalid));
    assert!(problem(once("/invoices", &invoice, "refused")).is(Kind::Invalid));
    let nothing = json!({ "tenants": [{ "path": "acme" }] });
    assert_eq!(once("/apply", &nothing, "nothing").unwrap()["changes"], json!([]));
    assert_eq!(once("/apply", &nothing, "nothing").unwrap()["changes"], json!([]));
    assert!(
        problem(once("/apply", &json!({ "tenants": [{ "path": "new" }] }), "nothing")).is(Kind::KeyReused)
    );
    // Keys are each token's own, and known to a server that starts again.
    drop(server);
    let server = Server::start(folder.path());
    assert_eq!(server.admin.post_once::<Value>("/corrections", &correction, "one").unwrap(), first);
    let provider = server.token("/", Role::Provider);
    assert_ne!(provider.post_once::<Value>("/corrections", &correction, "one").unwrap()["id"], first["id"]);
    let log = server.admin.list::<Value>("/audit").unwrap();
    assert_eq!(log.iter().filter(|entry| entry["action"] == "bill.corrected").count(), 3);
    let long = "x".repeat(256);
    assert!(problem(server.admin.post_once::<Value>("/corrections", &correction, &long)).is(Kind::Invalid));
}

#[test]
fn who_comes_with_wrong_tokens_too_often_has_to_wait() {
    let (_folder, server) = Server::with_tenants();
    let stranger = server.admin.with_token("slc_a_b");
    let refused = (0..1000).map(|_| problem(stranger.get::<Token>("/whoami"))).find(|p| p.is(Kind::TooMany));
    assert!(refused.is_some(), "a thousand tries are too many");
    let _: Token = server.admin.get("/whoami").unwrap();
}

#[test]
fn who_asks_too_often_has_to_wait_and_nobody_else_does() {
    let folder = tempfile::tempdir().unwrap();
    let database = crate::postgres::database_for(folder.path());
    let mut command = ServerProcess::command(folder.path(), database.as_deref());
    // Five at once, and then one a second: a thousand take longer than any machine makes of them.
    let process = ServerProcess::spawn(command.args(["--requests-per-second", "1"]));
    let admin = settings(folder.path()).client();
    let server = Server { _process: process, _leader: None, admin };
    let make = || {
        let new = NewToken {
            tenant: TenantPath::root(),
            role: Role::Auditor,
            name: "x".into(),
            lifetime_s: 600,
            node: None,
        };
        server.admin.post::<MadeToken>("/tokens", &new).unwrap().secret
    };
    let (eager, modest) = (make(), make());
    let whoami = |token: &str| {
        let own = format!("Host: a\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\r\n");
        raw(&server, &format!("GET /api/v1/whoami HTTP/1.1\r\n{own}"))
    };
    let refused = (0..1000).map(|_| whoami(&eager)).find(|answer| answer.0 != 200);
    let (status, head, body) = refused.expect("a thousand are too many");
    assert_eq!(status, 429, "{body}");
    let after = head.lines().find_map(|line| line.strip_prefix("retry-after: ")).expect(&head);
    assert!(after.parse::<u32>().is_ok() && head.contains("application/problem+json"), "{head}");
    let problem: Problem = serde_json::from_str(&body).unwrap();
    assert!(problem.is(Kind::TooMany) && problem.detail.contains("Retry-After"), "{problem:?}");
    for _ in 0..3 {
        assert_eq!(whoami(&modest).0, 200, "another token has requests of its own");
    }
    // Who keeps on asking is served now and then.
    let deadline = Instant::now() + PATIENCE;
    while whoami(&eager).0 != 200 {
        assert!(Instant::now() < deadline, "it is never served again");
    }
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
fn secrets_are_in_no_log() {
    let folder = tempfile::tempdir().unwrap();
    let database = crate::postgres::database_for(folder.path());
    let mut command = ServerProcess::command(folder.path(), database.as_deref());
    let log = folder.path().join("log");
    // As much as any part of it says.
    command.env("RUST_LOG", "trace").env("RUST_BACKTRACE", "full");
    command.stderr(std::fs::File::create(&log).unwrap());
    let process = ServerProcess::spawn(&mut command);
    let admin = settings(folder.path());
    let server = Server { _process: process, _leader: None, admin: admin.client() };
    server.apply(crate::TENANTS).unwrap();
    let new = NewToken {
        tenant: "acme".parse().unwrap(),
        role: Role::Member,
        name: "x".into(),
        lifetime_s: 60,
        node: None,
    };
    let made: MadeToken = server.admin.post("/tokens", &new).unwrap();
    let member = server.admin.with_token(&made.secret);

    // A lease from request to end: its grant is as good as a token.
    let mut node = ScriptedNode::join(&server, "one", 1);
    let lease = request(&member, &ask(1000));
    let granted = wait_for_state(&member, lease.id, LeaseState::Granted);
    node.claim(&granted);
    let grant = granted.places[0].grant.clone().unwrap();
    let key = lease.key.clone().unwrap();
    let _: Lease = server.admin.with_token(&key).get(&format!("/leases/{}", lease.id)).unwrap();
    let _: Lease = member.delete(&format!("/leases/{}", lease.id)).unwrap();

    // And wherever a secret may stand by mistake.
    let secret = &made.secret;
    let wrong = format!("{secret}x");
    assert!(server.admin.with_token(&wrong).get::<Token>("/whoami").is_err());
    for path in ["/nodes/7/reports", "/apply", "/leases", "/tokens", "/corrections", "/prices", "/nothing"] {
        let body = json!({ "secret": secret, "tenant": secret, "gpus": grant, "report": admin.token });
        assert!(server.admin.post::<Value>(path, &body).is_err(), "{path}");
    }
    for path in
        [format!("/leases?cursor={secret}"), format!("/usage?token={secret}"), format!("/leases/{secret}")]
    {
        let _: Result<Value, _> = server.admin.get(&path);
    }
    drop(server);
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(!text.is_empty(), "it says that it leads");
    for token in [&admin.token, &made.secret, &node.joined.token, &key] {
        // `slc_ID_SECRET`; the secret itself may hold the sign that parts them.
        let secret = token.splitn(3, '_').nth(2).unwrap();
        assert!(secret.len() > 40 && !text.contains(secret), "{text}");
    }
    assert!(grant.len() > 40 && !text.contains(&grant), "{text}");
    let key = std::fs::read(folder.path().join("data/grant.key")).unwrap();
    let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(key.len() == 32 && !text.to_lowercase().contains(&hex), "{text}");
}

/// A server that cannot reach its database says where it is, and not the password.
#[test]
fn the_databases_password_is_in_no_log() {
    for url in [
        "postgres://sluice:hunter2-secret@127.0.0.1:1/sluice",
        "postgres://sluice:hunter2-secret@127.0.0.1:no-port/sluice",
        "postgres://sluice:hunter2-secret@127.0.0.1:1/sluice?sslmode=nonsense",
        "postgress://sluice:hunter2-secret@127.0.0.1/sluice",
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = ServerProcess::command(folder.path(), Some(url));
        let output = command.stdin(std::process::Stdio::null()).env("RUST_LOG", "trace").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && !said.is_empty(), "{url}");
        assert!(!said.contains("hunter2-secret"), "{said}");
    }
}

/// Silent connections, and ones that send their header byte by byte, all from the client's own
/// address.
#[test]
fn clients_with_a_token_are_served_beside_thousands_of_connections_without_a_request() {
    sluice_transport::raise_descriptor_limit();
    let (_folder, server) = Server::with_tenants();
    let member = server.token("acme", Role::Member);
    let waiting = request(&member, &ask(250_000));
    let (watcher, begun) = (member.clone(), std::sync::mpsc::channel());
    let watching = std::thread::spawn(move || {
        let mut seen = Vec::new();
        watcher
            .watch("/watch", |event| {
                seen.push(event.kind.clone());
                let _ = begun.0.send(());
                if event.kind == "lease" { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .unwrap();
        seen
    });
    begun.1.recv_timeout(PATIENCE).unwrap();

    let address = server.admin.server().strip_prefix("http://").unwrap().to_owned();
    let mut strangers: Vec<TcpStream> = Vec::new();
    for n in 0..3000 {
        let mut stranger = TcpStream::connect(&address).unwrap();
        if n % 2 == 0 {
            // It may have had to go already.
            let _ = stranger.write_all(b"G");
        }
        strangers.push(stranger);
    }
    let seen: Lease = member.get(&format!("/leases/{}", waiting.id)).unwrap();
    assert_eq!(seen.id, waiting.id);
    let ended: Lease = member.delete(&format!("/leases/{}", waiting.id)).unwrap();
    assert_eq!(ended.state, LeaseState::Ended);
    assert_eq!(watching.join().unwrap().last().map(String::as_str), Some("lease"));
}

#[test]
fn a_body_that_is_no_object_is_not_read_as_one() {
    let (_folder, server) = Server::with_tenants();
    let member = server.token("acme", Role::Member);
    for path in ["/leases", "/tokens", "/corrections", "/invoices", "/nodes"] {
        for body in ["[]", " \n[]", "null", "1", "\"text\"", "[[]]"] {
            let refused = problem(server.admin.post_text::<Value>(path, "application/json", body));
            assert!(refused.is(Kind::Malformed), "{path} {body}: {refused:?}");
        }
    }
    assert_eq!(member.list::<Lease>("/leases").unwrap().len(), 0);
    for yaml in ["[]", "tenants: [{path: acme, quota: []}]"] {
        let refused = problem(server.apply(yaml));
        assert_eq!(refused.status, 422, "{yaml}: {refused:?}");
    }
}

#[test]
fn names_hold_no_signs_that_deceive() {
    let (_folder, server) = Server::with_tenants();
    let member = server.token("acme", Role::Member);
    let new = json!({ "share_ppm": 1000, "name": "exe.\u{202e}gpj\n\u{1b}[2Jevil" });
    let lease: Lease = member.post("/leases", &new).unwrap();
    assert_eq!(lease.name, "exe.gpj[2Jevil");
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

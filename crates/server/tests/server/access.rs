use serde_json::{Value, json};
use sluice_api::Page;
use sluice_api::client::{Client, Failure};
use sluice_api::lease::Lease;
use sluice_api::problem::Kind;
use sluice_api::token::{MadeToken, Role, Token};

use crate::{Server, ask, problem, request};

type Call = fn(&Client, &Lease) -> Result<Value, Failure>;

/// Every endpoint, asked about tenant `acme`.
const CALLS: &[(&str, Call)] = &[
    ("get lease", |c, l| c.get(&format!("/leases/{}", l.id))),
    ("lease", |c, _| c.post("/leases", &json!({ "tenant": "acme", "share_ppm": 1000 }))),
    ("end lease", |c, l| c.delete(&format!("/leases/{}", l.id))),
    ("refuse", |c, l| c.post(&format!("/leases/{}/refusals", l.id), &json!({ "attempt": 9, "reason": "" }))),
    ("preempt", |c, l| c.post(&format!("/leases/{}/preemptions", l.id), &json!({}))),
    ("bill", |c, _| c.get("/bill?tenant=acme")),
    ("quota", |c, _| c.post("/apply", &json!({ "tenants": [{ "path": "acme/new" }] }))),
    ("price", |c, _| c.post("/apply", &json!({ "prices": [{ "meter": "used", "micro": 1 }] }))),
    ("token", |c, _| c.post("/tokens", &json!({ "tenant": "acme", "role": "member", "lifetime_s": 60 }))),
    ("platform token", |c, _| {
        c.post("/tokens", &json!({ "tenant": "/", "role": "platform", "lifetime_s": 60 }))
    }),
    ("audit", |c, _| c.get("/audit")),
    ("join", |c, _| c.post("/nodes", &json!({ "name": "n", "address": "h:1", "gpus": [], "release": "0" }))),
    ("report", |c, _| {
        c.post(
            "/nodes/1/reports",
            &json!({ "sequence": 1, "gpus": [], "leases": [], "sessions": [], "usage": [] }),
        )
    }),
    ("gpus", |c, _| c.get("/gpus")),
];

/// The calls that the policy let through, whatever came of them then.
fn allowed(server: &Server, client: &Client) -> Vec<&'static str> {
    let refused = |failure: &Failure| match failure {
        Failure::Refused(problem) => matches!(problem.status, 401 | 403 | 404),
        other => panic!("{other}"),
    };
    let mut names = Vec::new();
    for (name, call) in CALLS {
        let lease = request(&server.token("acme", Role::Member), &ask(1000));
        match call(client, &lease) {
            Err(failure) if refused(&failure) => {}
            _ => names.push(*name),
        }
    }
    names
}

#[test]
fn every_endpoint_for_every_role() {
    let (_folder, server) = Server::with_tenants();
    let check = |role, tenant: &str, expect: &[&str]| {
        assert_eq!(allowed(&server, &server.token(tenant, role)), expect, "{role:?} of {tenant}");
    };
    let leases = ["get lease", "lease", "end lease", "refuse"];
    check(Role::TenantAdmin, "acme", &[&leases[..], &["preempt", "bill", "quota", "token", "gpus"]].concat());
    check(Role::Member, "acme", &[&leases[..], &["bill", "gpus"]].concat());
    check(Role::Viewer, "acme", &["get lease", "bill", "gpus"]);
    check(Role::Auditor, "/", &["get lease", "bill", "audit", "gpus"]);
    check(Role::Provider, "/", &["get lease", "bill", "price", "gpus"]);
    check(Role::Node, "/", &["join"]);
    for role in [Role::TenantAdmin, Role::Member, Role::Viewer] {
        check(role, "globex", &["gpus"]);
    }
    check(Role::Member, "acme/research", &["gpus"]);
    assert_eq!(allowed(&server, &server.admin.with_token("")), [] as [&str; 0]);
    assert_eq!(allowed(&server, &server.admin.with_token("slc_x_y")), [] as [&str; 0]);
}

#[test]
fn lists_show_nothing_of_foreign_tenants() {
    let (_folder, server) = Server::with_tenants();
    request(&server.token("acme/research", Role::Member), &ask(1000));
    let foreign = server.token("globex", Role::TenantAdmin);
    for path in ["/leases", "/queue", "/sessions", "/usage"] {
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
    check(json!({ "priority": 0 }), "priority");
    check(json!({ "memory": u64::MAX }), "memory");
    for body in [json!({ "gpu": 1 }), json!({ "gpus": -1 }), json!("x"), json!({ "tenant": "NO" })] {
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
    assert_eq!(problem(member.get::<Value>("/nothing")).status, 404);
    assert_eq!(problem(member.delete::<Value>("/queue")).status, 405);
    assert_eq!(problem(member.get::<Value>("/leases/x")).status, 404);
}

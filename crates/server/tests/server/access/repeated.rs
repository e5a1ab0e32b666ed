//! Requests that are made again, and changes that meet others.

use serde_json::{Value, json};
use sluice_api::bill::Price;
use sluice_api::problem::Kind;
use sluice_api::tenant::Applied;
use sluice_api::token::{MadeToken, Role, Token};

use super::identity;
use super::refusals::raw;
use crate::{ScriptedNode, Server, ask, problem, request, settings, wait_for};

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
fn a_token_says_when_it_was_used_last_and_its_tag_stays() {
    let (folder, server) = Server::with_tenants();
    let admin = settings(folder.path()).token;
    let new = json!({ "tenant": "acme", "role": "member", "lifetime_s": 600 });
    let made: MadeToken = server.admin.post("/tokens", &new).unwrap();
    let path = format!("/tokens/{}", made.token.id);
    let tag = || {
        let own = format!("HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: Bearer {admin}\r\n");
        let (_, head, _) = raw(&server, &format!("GET /api/v1{path} {own}\r\n"));
        head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap().to_owned()
    };
    let seen = || server.admin.get::<Token>(&path).unwrap().last_used_at_ms;
    assert_eq!(seen(), None);
    let before = tag();
    let own: Token = server.admin.with_token(&made.secret).get("/whoami").unwrap();
    assert!(seen().is_some_and(|at_ms| at_ms >= own.created_at_ms), "{:?}", seen());
    assert_eq!(tag(), before, "who has read it may revoke it on that condition");
    let listed: Vec<Token> = server.admin.list("/tokens").unwrap();
    let listed = listed.iter().find(|token| token.id == own.id).unwrap();
    assert_eq!(listed.last_used_at_ms, seen());
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

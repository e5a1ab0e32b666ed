//! Requests that are wrong, and what is said to them.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};
use sluice_api::lease::Lease;
use sluice_api::problem::{Kind, Problem};
use sluice_api::token::Role;

use crate::{PATIENCE, Server, ServerProcess, problem, settings};

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
pub(super) fn raw(server: &Server, request: &str) -> (u16, String, String) {
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
fn a_request_is_named_in_its_answer_and_in_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let mut command = ServerProcess::command(folder.path(), None);
    command.env("SLUICE_LOG", "debug");
    let process = ServerProcess::spawn(command.stderr(std::fs::File::create(&log).unwrap()));
    let token = settings(folder.path()).token;
    let ask = |named: &str| {
        let mut stream = TcpStream::connect(process.url.strip_prefix("http://").unwrap()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let body = json!({ "tenant": "/", "share_ppm": 1000 }).to_string();
        let head = format!("Host: a\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n{named}");
        let kind = format!("Content-Type: application/json\r\nContent-Length: {}", body.len());
        let request = format!("POST /api/v1/leases HTTP/1.1\r\n{head}{kind}\r\n\r\n{body}");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let name = answer.lines().find_map(|line| line.strip_prefix("x-request-id: "));
        name.unwrap_or_else(|| panic!("{answer:?}")).to_owned()
    };
    assert_eq!(ask("X-Request-Id: from-a.proxy_7\r\n"), "from-a.proxy_7");
    let made = ask("X-Request-Id: a b\r\n");
    assert!(made.len() == 16 && made != ask(""), "{made}");
    drop(process);
    let log = std::fs::read_to_string(&log).unwrap();
    for name in ["from-a.proxy_7", &made] {
        let is_named = |line: &str| line.contains("POST /api/v1/leases: 422") && line.ends_with(name);
        assert!(log.lines().any(is_named), "{name}: {log}");
    }
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

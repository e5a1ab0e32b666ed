//! Sessions of the web view, as a browser has them: by a cookie.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};
use sluice_api::session::{Session, SignInLink};
use sluice_api::token::{MadeToken, Role, Token};

use crate::{Server, problem, settings};

/// An answer as it came.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    fn session(&self) -> Session {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// Name and value of the cookie that it sets.
    fn cookie(&self) -> &str {
        let line = self.head.lines().find(|line| line.to_lowercase().starts_with("set-cookie:")).unwrap();
        line.split_once(':').unwrap().1.split(';').next().unwrap().trim()
    }
}

/// A request with these headers, each with its line's end.
pub(crate) fn send(server: &Server, method: &str, path: &str, headers: &str, body: &str) -> Answer {
    let place = server.admin.server().strip_prefix("http://").unwrap();
    let mut socket = TcpStream::connect(place).unwrap();
    let length = body.len();
    write!(
        socket,
        "{method} {path} HTTP/1.1\r\nHost: {place}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    )
    .unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.into(), body: body.into() }
}

const JSON: &str = "Content-Type: application/json\r\n";

fn sign_in(server: &Server, how: &Value) -> Answer {
    send(server, "POST", "/api/v1/session", JSON, &how.to_string())
}

fn whoami(server: &Server, cookie: &str) -> u16 {
    send(server, "GET", "/api/v1/whoami", &format!("Cookie: a=b; {cookie}\r\n"), "").status
}

#[test]
fn a_session_is_in_a_cookie_that_scripts_and_other_sites_do_not_have() {
    let (folder, server) = Server::with_tenants();
    let secret = settings(folder.path()).token;
    let answer = sign_in(&server, &json!({ "token": secret }));
    assert_eq!(answer.status, 200, "{}", answer.body);
    for part in ["HttpOnly", "SameSite=Strict", "Path=/api", "Max-Age="] {
        assert!(answer.head.contains(part), "{part}: {}", answer.head);
    }
    assert!(!answer.head.contains(&secret) && !answer.body.contains(&secret), "the token is not kept");
    assert_eq!(answer.session().token.role, Role::Platform);
    let cookie = answer.cookie();
    assert_eq!(whoami(&server, cookie), 200);
    assert_eq!(whoami(&server, &format!("{}x", &cookie[..cookie.len() - 1])), 401);
    let again = send(&server, "GET", "/api/v1/session", &format!("Cookie: {cookie}\r\n"), "");
    assert_eq!(again.session().csrf, answer.session().csrf);
}

#[test]
fn a_session_changes_something_for_pages_of_this_server_alone() {
    let (folder, server) = Server::with_tenants();
    let answer = sign_in(&server, &json!({ "token": settings(folder.path()).token }));
    let (cookie, csrf) = (answer.cookie(), answer.session().csrf);
    let apply = |more: &str| {
        let headers = format!("{JSON}Cookie: {cookie}\r\n{more}");
        send(&server, "POST", "/api/v1/apply", &headers, "{\"tenants\":[{\"path\":\"new\"}]}").status
    };
    let other = sign_in(&server, &json!({ "token": settings(folder.path()).token })).session().csrf;
    assert_ne!(other, csrf);
    assert_eq!(apply(""), 403);
    assert_eq!(apply("Sluice-CSRF: 0\r\n"), 403);
    assert_eq!(apply(&format!("Sluice-CSRF: {other}\r\n")), 403, "it is another session's");
    assert_eq!(apply(&format!("Sluice-CSRF: {csrf}\r\n")), 200);
    let out =
        |more: &str| send(&server, "DELETE", "/api/v1/session", &format!("Cookie: {cookie}\r\n{more}"), "");
    assert_eq!(out("").status, 403);
    let out = out(&format!("Sluice-CSRF: {csrf}\r\n"));
    assert!(out.status == 200 && out.head.contains("Max-Age=0"), "{}", out.head);
    // What a form of another site can send signs nobody in.
    let form = send(&server, "POST", "/api/v1/session", "Content-Type: text/plain\r\n", "{\"token\":\"x\"}");
    assert_eq!(form.status, 400);
}

#[test]
fn a_session_ends_with_its_token() {
    let (_folder, server) = Server::with_tenants();
    let new = json!({ "tenant": "acme", "role": "member", "name": "short", "lifetime_s": 600 });
    let made: MadeToken = server.admin.post("/tokens", &new).unwrap();
    let answer = sign_in(&server, &json!({ "token": made.secret }));
    assert_eq!(answer.session().until_ms, made.token.expires_at_ms, "it does not outlive it");
    assert_eq!(whoami(&server, answer.cookie()), 200);
    let _: Token = server.admin.delete(&format!("/tokens/{}", made.token.id)).unwrap();
    assert_eq!(whoami(&server, answer.cookie()), 401);
    assert_eq!(sign_in(&server, &json!({ "token": made.secret })).status, 401);
}

#[test]
fn a_link_signs_in_once() {
    let (_folder, server) = Server::with_tenants();
    let member = server.token("acme", Role::Member);
    let link: SignInLink = member.post("/sign-in-links", &json!({})).unwrap();
    let code = link.path.strip_prefix("/#sign-in=").unwrap();
    let answer = sign_in(&server, &json!({ "code": code }));
    assert_eq!((answer.status, answer.session().token.tenant.as_str()), (200, "acme"));
    assert_eq!(whoami(&server, answer.cookie()), 200);
    assert_eq!(sign_in(&server, &json!({ "code": code })).status, 401);
    // A session that makes sessions would never end.
    let (cookie, csrf) = (answer.cookie(), answer.session().csrf);
    let headers = format!("{JSON}Cookie: {cookie}\r\nSluice-CSRF: {csrf}\r\n");
    assert_eq!(send(&server, "POST", "/api/v1/sign-in-links", &headers, "{}").status, 403);
    let session = cookie.split_once('=').unwrap().1;
    assert_eq!(sign_in(&server, &json!({ "token": session })).status, 403);
}

#[test]
fn what_is_nobodys_signs_nobody_in() {
    let (folder, server) = Server::with_tenants();
    let node = std::fs::read_to_string(folder.path().join("data/node.json")).unwrap();
    let node = serde_json::from_str::<Value>(&node).unwrap()["token"].clone();
    assert_eq!(sign_in(&server, &json!({ "token": node })).status, 403, "a node has no use for it");
    for token in ["", "slc_a_b", "slw_a_9999999999999_b_c", "a.b.c"] {
        assert_eq!(sign_in(&server, &json!({ "token": token })).status, 401, "{token}");
    }
    let nobody = server.admin.with_token("slc_a_b");
    assert_eq!(problem(nobody.post::<Value>("/sign-in-links", &json!({}))).status, 401);
}

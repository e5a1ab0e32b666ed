//! Who asks too often, and who only opens connections.

use std::io::Write;
use std::net::TcpStream;
use std::ops::ControlFlow;
use std::time::Instant;

use sluice_api::lease::{Lease, LeaseState};
use sluice_api::problem::{Kind, Problem};
use sluice_api::tenant::TenantPath;
use sluice_api::token::{MadeToken, NewToken, Role, Token};

use super::refusals::raw;
use crate::{PATIENCE, Server, ServerProcess, ask, problem, request, settings};

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

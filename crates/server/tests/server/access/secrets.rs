//! Secrets are in no log, and end when they are taken back.

use serde_json::{Value, json};
use sluice_api::lease::{Lease, LeaseState};
use sluice_api::problem::Kind;
use sluice_api::token::{MadeToken, NewToken, Role, Token};

use crate::{ScriptedNode, Server, ServerProcess, ask, problem, request, settings, wait_for_state};

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
fn secrets_are_in_no_log() {
    let folder = tempfile::tempdir().unwrap();
    let database = crate::postgres::database_for(folder.path());
    let mut command = ServerProcess::command(folder.path(), database.as_deref());
    let log = folder.path().join("log");
    // As much as any part of it says.
    command.env("SLUICE_LOG", "trace").env("RUST_BACKTRACE", "full");
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

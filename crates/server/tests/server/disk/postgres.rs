//! PostgreSQL's file system is full: that of its tables, or that of its log.

use std::fs::File;
use std::path::Path;

use sluice_api::client::Client;
use sluice_api::lease::{Lease, LeaseId, LeaseState};
use sluice_api::problem::Kind;
use sluice_api::token::Role;

use super::{ask_until_refused, holds_all_of, listed};
use crate::private_postgres::{self, Postgres};
use crate::small_disk::SmallDisk;
use crate::{ScriptedNode, Server, ServerProcess, ask, insist, request, settings, wait_for_state};

/// A server whose log is in its folder.
fn start_on(folder: &Path, database: &str) -> Server {
    let mut command = ServerProcess::command(folder, Some(database));
    command.stderr(File::create(folder.join("log")).unwrap());
    let process = ServerProcess::spawn(&mut command);
    let server = Server { _process: process, _leader: None, admin: settings(folder).client() };
    server.apply(crate::TENANTS).unwrap();
    server
}

/// Asks for a lease until one is given; in between somebody looks after PostgreSQL.
fn insist_on_a_lease(member: &Client, mut look: impl FnMut()) -> LeaseId {
    let lease: Lease = insist(|| {
        look();
        member.post("/leases", &ask(1000))
    });
    lease.id
}

/// What PostgreSQL has said.
fn said(postgres: &Postgres) -> String {
    std::fs::read_to_string(postgres.folder.path().join("log")).unwrap()
}

/// PostgreSQL continues without room for its tables, and has room for a row here and there, in
/// pages that are not full. So some changes come through, others do not, and all that counts is
/// that each was what its answer said.
#[test]
fn without_room_for_its_tables_the_server_loses_nothing_and_heals_by_itself() {
    let Some(disk) = SmallDisk::mount("48m") else { return };
    let Some(postgres) = Postgres::start_with(Some(disk.process()), &[]) else { return };
    std::fs::create_dir(disk.seen("tables")).unwrap();
    private_postgres::own(&disk.seen("tables"));
    let place = disk.folder.path().join("tables");
    postgres.sql("postgres", &format!("CREATE TABLESPACE tiny LOCATION '{}'", place.display()));
    let database = postgres.database("small");
    postgres.sql("postgres", "ALTER DATABASE small SET TABLESPACE tiny");
    let folder = tempfile::tempdir().unwrap();
    let server = start_on(folder.path(), &database);
    let member = server.token("globex", Role::Member);
    let mut node = ScriptedNode::join(&server, "one", 1);
    let running = request(&member, &ask(500_000));
    node.claim(&wait_for_state(&member, running.id, LeaseState::Granted));
    let mut acknowledged = vec![running.id];

    disk.fill();
    for _ in 0..3 {
        let refused = ask_until_refused(&member, &mut acknowledged);
        assert!(refused.is(Kind::DiskFull) && refused.status == 503, "{refused:?}");
    }
    assert_eq!(listed(&member), acknowledged);
    let lease: Lease = member.get(&format!("/leases/{}", running.id)).unwrap();
    assert_eq!(lease.state, LeaseState::Running, "what runs goes on");

    assert!(said(&postgres).contains("No space left on device"));

    disk.make_room();
    acknowledged.push(insist_on_a_lease(&member, || ()));
    assert_eq!(listed(&member), acknowledged);
    node.say();
    let ended: Lease = member.delete(&format!("/leases/{}", running.id)).unwrap();
    assert_eq!(ended.state, LeaseState::Ended);

    let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
    assert!(log.contains("the disk of the database is full") && log.contains("there is room"), "{log}");
    assert!(!log.contains("panicked"), "{log}");
    drop(server);
    // What the next server finds in the database is what this one has said.
    holds_all_of(&Server::start_on(folder.path(), Some(&database)).admin, &acknowledged);
}

/// PostgreSQL stops without room for its log. Then it is a database that is away, until somebody
/// makes room and starts it.
#[test]
fn without_room_for_its_log_it_stops_and_the_server_loses_nothing() {
    let Some(disk) = SmallDisk::mount("48m") else { return };
    let wal = disk.folder.path().join("wal");
    std::fs::create_dir(disk.seen("wal")).unwrap();
    private_postgres::own(&disk.seen("wal"));
    // Segments of a megabyte, so that it needs another one soon.
    let options = ["--wal-segsize=1".to_owned(), format!("--waldir={}", wal.display())];
    let Some(mut postgres) = Postgres::start_with(Some(disk.process()), &options) else { return };
    let database = postgres.database("small");
    let folder = tempfile::tempdir().unwrap();
    let server = start_on(folder.path(), &database);
    let member = server.token("globex", Role::Member);
    let mut acknowledged = vec![request(&member, &ask(1000)).id];

    disk.fill();
    let refused = ask_until_refused(&member, &mut acknowledged);
    assert!(
        refused.status == 503 && (refused.is(Kind::DiskFull) || refused.is(Kind::Unavailable)),
        "{refused:?}"
    );

    assert!(said(&postgres).contains("PANIC"), "it stops");

    disk.make_room();
    let next = insist_on_a_lease(&member, || {
        // It may have got up by itself, or have fallen again before there was room.
        if !postgres.runs() {
            postgres.restart();
        }
    });
    // An answer that a stop has cut off may have become true; it was promised to nobody.
    let listed = listed(&member);
    assert!(acknowledged.iter().all(|id| listed.contains(id)) && listed.contains(&next), "{listed:?}");
    let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
    assert!(!log.contains("panicked"), "{log}");
    drop(server);
    holds_all_of(&Server::start_on(folder.path(), Some(&database)).admin, &listed);
}

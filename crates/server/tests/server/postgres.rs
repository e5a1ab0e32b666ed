//! The server's tests on PostgreSQL.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use sluice_api::client::Failure;
use sluice_api::lease::{Lease, LeaseState};
use sluice_api::token::Role;

use crate::private_postgres::{Postgres, create, url};
use crate::{Server, ServerProcess, TENANTS, ask, insist, request, wait_for_state};

/// The folder of the socket of a PostgreSQL on which every server gets a database of its own;
/// unset, servers use SQLite.
const SOCKET_VARIABLE: &str = "SLUICE_TEST_POSTGRES";

/// The database of a server whose data are in this folder, if the tests run on PostgreSQL; the same
/// one for the same folder.
pub(crate) fn database_for(folder: &Path) -> Option<String> {
    let socket = PathBuf::from(std::env::var_os(SOCKET_VARIABLE)?);
    let note = folder.join("database");
    if let Ok(url) = std::fs::read_to_string(&note) {
        return Some(url);
    }
    let hash = blake3::hash(folder.as_os_str().as_encoded_bytes()).to_hex();
    let name = format!("test_{}", &hash[..16]);
    create(&socket, &name);
    let url = url(&socket, &name);
    std::fs::write(&note, &url).unwrap();
    Some(url)
}

/// Every other test of this program once more, with PostgreSQL in SQLite's place. That takes
/// minutes, and `everything_holds_through_a_follower` has PostgreSQL, too: only `cargo xtask test
/// --all` does it.
#[test]
fn everything_holds_on_postgres() {
    if std::env::var_os("SLUICE_TEST_ALL").is_some() {
        run_again(&[]);
    }
}

/// All tests of this program but those of this kind, on PostgreSQL and with more in the
/// environment.
pub(crate) fn run_again(environment: &[(&str, &str)]) {
    let Some(postgres) = Postgres::start() else { return };
    // Servers end in these tests, and the machine does not: a slow disk is not what they are about.
    postgres.sql("postgres", "ALTER SYSTEM SET fsync = off");
    postgres.sql("postgres", "SELECT pg_reload_conf()");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--skip", "postgres::", "--skip", "replicas::"]).envs(environment.iter().copied());
    let status = command.env(SOCKET_VARIABLE, postgres.folder.path()).status().unwrap();
    assert!(status.success());
}

/// How long the database is away at least: no time at all unless `AWAY_S` says so.
fn away() -> Duration {
    let seconds = std::env::var("AWAY_S").ok().map(|text| text.parse().expect("AWAY_S: seconds"));
    Duration::from_secs(seconds.unwrap_or(0))
}

#[test]
fn while_the_database_is_away_nothing_is_promised_and_then_it_goes_on() {
    let Some(mut postgres) = Postgres::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_on(folder.path(), Some(&postgres.database("away")));
    server.apply(TENANTS).unwrap();
    let member = server.token("acme", Role::Member);
    let before = request(&member, &ask(250_000));

    postgres.stop();
    let (stopped, away) = (Instant::now(), away());
    for count in 1.. {
        let refused = member.post::<Lease>("/leases", &ask(250_000));
        assert!(matches!(&refused, Err(Failure::Refused(problem)) if problem.status == 503), "{refused:?}");
        if count >= 3 && stopped.elapsed() >= away {
            println!("{count} requests were refused in {:?}", stopped.elapsed());
            break;
        }
    }
    postgres.restart();
    let back = Instant::now();

    let after: Lease = insist(|| member.post("/leases", &ask(500_000)));
    println!("next lease {:?} after the database was back", back.elapsed());
    wait_for_state(&member, before.id, LeaseState::Queued);
    assert_eq!(member.list::<Lease>("/leases").unwrap().len(), 2, "what was refused is not there");
    assert_eq!(
        postgres.sql("away", "SELECT id FROM lease ORDER BY id"),
        format!("{}\n{}\n", before.id, after.id)
    );
}

#[test]
fn connections_are_protected_where_the_url_says_so() {
    let Some((postgres, port, authority)) = Postgres::start_protected() else { return };
    let folder = tempfile::tempdir().unwrap();
    let sql = |database: &str, sql: &str| {
        let mut psql = postgres.program("psql");
        psql.env("PGPORT", port.to_string()).args(["-XAtq", "-d", database, "-c", sql]);
        String::from_utf8(psql.output().unwrap().stdout).unwrap()
    };
    sql("postgres", "CREATE DATABASE sealed");
    let url = |authority: &Path| {
        let authority = authority.display();
        format!("postgres://sluice@localhost:{port}/sealed?sslmode=verify-full&sslrootcert={authority}")
    };
    {
        let server = Server::start_on(folder.path(), Some(&url(&authority)));
        server.apply(TENANTS).unwrap();
        let sealed = "SELECT count(*) > 0 AND bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                      WHERE datname = 'sealed' AND client_addr IS NOT NULL";
        assert_eq!(sql("sealed", sealed), "t\n");
    }
    // Its own certificate vouches for nobody else, and the server says so rather than go on
    // without.
    let mut wrong =
        ServerProcess::command(folder.path(), Some(&url(&postgres.folder.path().join("stranger.pem"))));
    let stranger = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(postgres.folder.path().join("stranger.pem"), stranger.cert.pem()).unwrap();
    let refused = wrong.stderr(std::process::Stdio::piped()).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.to_lowercase().contains("certificate"), "{said}");
}

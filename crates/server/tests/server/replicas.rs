//! Several servers on one database: one leads, all answer, and when the leader is gone another
//! leads.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use sluice_api::audit::{Entry, Verification};
use sluice_api::client::Client;
use sluice_api::lease::{Lease, LeaseId};
use sluice_api::node::GpuStatus;
use sluice_api::replica::{ServerState, Servers};
use sluice_api::tenant::Applied;
use sluice_api::token::{MadeToken, NewToken, Role, Token};

use crate::postgres::run_again;
use crate::private_postgres::Postgres;
use crate::{PATIENCE, ScriptedNode, ServerProcess, TENANTS, ask, insist, settings};

/// Set, every server of the tests has a leader behind it.
pub(crate) const FOLLOWER_VARIABLE: &str = "SLUICE_TEST_FOLLOWER";

#[test]
fn everything_holds_through_a_follower() {
    run_again(&[(FOLLOWER_VARIABLE, "1")]);
}

/// Two servers, of which either may lead; dead ones are started again.
struct Pair<'a> {
    folder: &'a Path,
    database: String,
    servers: Vec<ServerProcess>,
}

impl<'a> Pair<'a> {
    fn start(folder: &'a Path, database: String) -> Pair<'a> {
        let start = |_| ServerProcess::start(folder, Some(&database));
        let servers = (0..2).map(start).collect();
        Pair { folder, database, servers }
    }

    /// Ends the one that leads without notice.
    fn kill_leader(&mut self, postgres: &Postgres) {
        let leader = postgres.sql("pair", "SELECT url FROM leader");
        let leads = |server: &ServerProcess| server.url == leader.trim();
        let leader = self.servers.iter().position(leads).expect("one of them leads");
        self.servers.remove(leader).kill();
    }

    fn start_another(&mut self) {
        self.servers.push(ServerProcess::start(self.folder, Some(&self.database)));
    }

    /// Of the administrator, at all servers that there are.
    fn client(&self) -> Client {
        let urls: Vec<&str> = self.servers.iter().map(|server| server.url.as_str()).collect();
        Client::new(&urls.join(","), &settings(self.folder).token)
    }
}

#[test]
fn killing_the_leader_under_load_loses_nothing_and_grants_nothing_twice() {
    const LEASES: usize = 600;
    let Some(postgres) = Postgres::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut pair = Pair::start(folder.path(), postgres.database("pair"));
    let admin = pair.client();
    let _: Applied = admin.post_text("/apply", "application/yaml", TENANTS).unwrap();
    let mut node = ScriptedNode::join_at(&admin, "one", 8);
    let new = NewToken {
        tenant: "globex".parse().unwrap(),
        role: Role::Member,
        name: String::new(),
        lifetime_s: 600,
        node: None,
    };
    let made: MadeToken = admin.post("/tokens", &new).unwrap();

    let asked = AtomicUsize::new(0);
    let acknowledged = Mutex::new(Vec::<(Instant, LeaseId)>::new());
    let clients = Mutex::new(admin.with_token(&made.secret));
    let (progress, progressed) = mpsc::channel();
    let mut killed = Vec::new();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            let progress = progress.clone();
            let (asked, acknowledged, clients) = (&asked, &acknowledged, &clients);
            scope.spawn(move || {
                loop {
                    let number = asked.fetch_add(1, Ordering::Relaxed);
                    if number >= LEASES {
                        return;
                    }
                    // Half of them want more than there is room for, and wait.
                    let wanted = ask(if number % 2 == 0 { 10_000 } else { 600_000 });
                    let lease: Lease = insist(|| {
                        let client = clients.lock().unwrap().clone();
                        client.post_once("/leases", &wanted, &format!("key {number}"))
                    });
                    acknowledged.lock().unwrap().push((Instant::now(), lease.id));
                    let _ = progress.send(());
                }
            });
        }
        drop(progress);
        for (count, ()) in (1..).zip(progressed) {
            if count == LEASES / 3 || count == 2 * LEASES / 3 {
                pair.kill_leader(&postgres);
                killed.push(Instant::now());
                pair.start_another();
                *clients.lock().unwrap() = pair.client().with_token(&made.secret);
            }
        }
    });

    let acknowledged = acknowledged.into_inner().unwrap();
    for killed in killed {
        let next = acknowledged
            .iter()
            .map(|(at, _)| *at)
            .filter(|at| *at > killed + Duration::from_millis(200))
            .min();
        println!("next lease {:?} after the leader was killed", next.map(|next| next - killed));
    }
    let ids: BTreeSet<LeaseId> = acknowledged.iter().map(|(_, id)| *id).collect();
    assert_eq!(ids.len(), LEASES, "no two requests led to one lease");
    let admin = pair.client();
    let listed: BTreeSet<LeaseId> =
        insist(|| admin.list::<Lease>("/leases?limit=1000")).iter().map(|lease| lease.id).collect();
    assert_eq!(listed, ids, "all that was acknowledged is there, and no request was carried out twice");

    node.client = admin.with_token(&node.joined.token);
    node.say();
    let gpus: Vec<GpuStatus> = insist(|| admin.list("/gpus"));
    assert!(gpus.iter().any(|gpu| gpu.leases > 0), "{gpus:?}");
    for gpu in gpus {
        assert!(gpu.share_leased_ppm <= 1_000_000 && gpu.memory_leased <= gpu.gpu.memory, "{gpu:?}");
    }
    let entries: Vec<Entry> = insist(|| admin.list("/audit"));
    let requested = entries.iter().filter(|entry| entry.action == "lease.requested").count();
    assert_eq!(requested, LEASES);
    let mut verification = Verification::new(None);
    entries.iter().for_each(|entry| verification.follow(entry).unwrap());
}

#[test]
fn a_token_revoked_at_one_server_is_refused_by_all() {
    let Some(postgres) = Postgres::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let pair = Pair::start(folder.path(), postgres.database("pair"));
    let admin = pair.client();
    let new = NewToken {
        tenant: "/".parse().unwrap(),
        role: Role::Viewer,
        name: String::new(),
        lifetime_s: 600,
        node: None,
    };
    let made: MadeToken = admin.post("/tokens", &new).unwrap();
    for server in &pair.servers {
        let _: Token = Client::new(&server.url, &made.secret).get("/whoami").unwrap();
    }
    let _: Token = admin.delete(&format!("/tokens/{}", made.token.id)).unwrap();
    for server in &pair.servers {
        let client = Client::new(&server.url, &made.secret);
        let deadline = Instant::now() + PATIENCE;
        while client.get::<Token>("/whoami").is_ok() {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

#[test]
fn operators_see_which_server_leads() {
    let Some(postgres) = Postgres::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut pair = Pair::start(folder.path(), postgres.database("pair"));
    let until = |client: &Client, is: &dyn Fn(&Servers) -> bool| -> Servers {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let servers: Servers = insist(|| client.get("/servers"));
            if is(&servers) {
                return servers;
            }
            assert!(Instant::now() < deadline, "{servers:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    let of = |servers: &Servers, state| -> Vec<String> {
        let with = servers.items.iter().filter(|server| server.state == state);
        with.map(|server| server.url.clone()).collect()
    };
    let (leads, follows) = (ServerState::Leads, ServerState::Follows);
    let both = until(&pair.client(), &|all| of(all, leads).len() == 1 && of(all, follows).len() == 1);
    assert!(both.items.iter().all(|server| server.release == env!("CARGO_PKG_VERSION")), "{both:?}");
    assert_eq!(both.items.iter().filter(|server| server.answers).count(), 1);
    // What the leader writes is read by the one that follows.
    let _: Applied = pair.client().post_text("/apply", "application/yaml", TENANTS).unwrap();
    until(&pair.client(), &|all| all.items.iter().all(|one| (one.behind, one.settings_behind) == (0, false)));

    let follower = of(&both, follows);
    pair.kill_leader(&postgres);
    let after = until(&pair.client(), &|all| of(all, leads) == follower);
    assert!(after.leadership > both.leadership, "{after:?}");
    let since = |all: &Servers| all.items.iter().find_map(|server| server.leads_since_ms).unwrap();
    assert!(since(&after) > since(&both), "{after:?}");
}

#[test]
fn replicas_must_agree_on_the_key_for_grants() {
    let Some(postgres) = Postgres::start() else { return };
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let database = postgres.database("pair");
    let _first = ServerProcess::start(one.path(), Some(&database));
    let mut second = ServerProcess::command(other.path(), Some(&database));
    let refused = second.stderr(std::process::Stdio::piped()).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("grant.key"), "{said}");
    std::fs::copy(one.path().join("data/grant.key"), other.path().join("data/grant.key")).unwrap();
    ServerProcess::start(other.path(), Some(&database));
}

#[test]
fn a_database_in_a_file_is_one_servers() {
    let folder = tempfile::tempdir().unwrap();
    let _first = ServerProcess::start(folder.path(), None);
    let mut second = ServerProcess::command(folder.path(), None);
    let refused = second.stderr(std::process::Stdio::piped()).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("another server uses this database"), "{said}");
}

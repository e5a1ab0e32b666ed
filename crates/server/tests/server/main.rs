//! The server as a process, asked over HTTP; nodes are scripted ones that speak the same protocol.

mod access;
mod autonomy;
mod backup;
mod declarations;
mod disk;
mod estimates;
mod health;
mod invoices;
mod leases;
mod ledger;
mod logs;
mod mail;
mod migration;
mod moves;
mod postgres;
#[path = "../support/postgres.rs"]
#[expect(dead_code, reason = "measurements use more of it")]
mod private_postgres;
mod recommendations;
mod removal;
mod replicas;
mod reports;
mod resize;
mod scaling;
mod session;
mod small_disk;
mod watch;
mod webhooks;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sluice_api::client::{Client, Failure, Settings};
use sluice_api::grant::Verifier;
use sluice_api::lease::{Lease, LeaseId, LeaseState, NewLease};
use sluice_api::node::{Attempt, Gpu, Join, Joined, Report, ReportAnswer};
use sluice_api::problem::Problem;
use sluice_api::tenant::{Applied, TenantPath};
use sluice_api::token::{MadeToken, NewToken, Role};
use sluice_api::usage::{AsideDecided, AsideDecision, AsideRecord};
use tempfile::TempDir;

/// Catches a hang; nothing takes this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

const TENANTS: &str = "
tenants:
  - path: acme
    quota: {guaranteed_milli: 1000, limit_milli: 2000}
  - path: acme/research
  - path: acme/sales
    quota: {limit_milli: 500}
  - path: globex
    quota: {guaranteed_milli: 1000}
prices:
  - {meter: reserved, micro: 2000000, from_ms: 0}
  - {meter: used, micro: 500000, from_ms: 0}
";

/// A running server; dropping it ends it.
pub(crate) struct Server {
    _process: ServerProcess,
    /// Where the tests go through a follower: the leader behind it.
    _leader: Option<ServerProcess>,
    pub(crate) admin: Client,
}

impl Server {
    /// On a folder of its own, with tenants.
    pub(crate) fn with_tenants() -> (TempDir, Server) {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start(folder.path());
        server.apply(TENANTS).unwrap();
        (folder, server)
    }

    /// Its data are in a folder below this one.
    pub(crate) fn start(folder: &Path) -> Server {
        let database = postgres::database_for(folder);
        if std::env::var_os(replicas::FOLLOWER_VARIABLE).is_some() {
            return Server::behind_follower(folder, database.as_deref().unwrap());
        }
        Server::start_on(folder, database.as_deref())
    }

    /// On a named database.
    pub(crate) fn start_on(folder: &Path, database: Option<&str>) -> Server {
        let process = ServerProcess::start(folder, database);
        let admin = settings(folder).client();
        Server { _process: process, _leader: None, admin }
    }

    /// A leader, and a follower that all requests go to.
    fn behind_follower(folder: &Path, database: &str) -> Server {
        let leader = ServerProcess::start(folder, Some(database));
        let token = settings(folder).token;
        let process = ServerProcess::start(folder, Some(database));
        assert_ne!(leader.url, process.url);
        let admin = Client::new(&process.url, &token);
        Server { _process: process, _leader: Some(leader), admin }
    }

    pub(crate) fn token(&self, tenant: &str, role: Role) -> Client {
        let tenant: TenantPath = tenant.parse().unwrap();
        let new = NewToken { tenant, role, name: "a test".into(), lifetime_s: 600, node: None };
        let made: MadeToken = self.admin.post("/tokens", &new).unwrap();
        self.admin.with_token(&made.secret)
    }

    pub(crate) fn apply(&self, yaml: &str) -> Result<Applied, Failure> {
        self.admin.post_text("/apply", "application/yaml", yaml)
    }
}

/// What the server in this folder wrote for its administrator.
pub(crate) fn settings(folder: &Path) -> Settings {
    Settings::read(&folder.join("data/admin.json")).unwrap().unwrap()
}

/// The program; dropping it ends it.
pub(crate) struct ServerProcess {
    child: Child,
    pub(crate) url: String,
}

impl ServerProcess {
    /// Its data are in a folder below this one.
    pub(crate) fn start(folder: &Path, database: Option<&str>) -> ServerProcess {
        ServerProcess::spawn(&mut ServerProcess::command(folder, database))
    }

    /// Waits until it listens.
    pub(crate) fn spawn(command: &mut Command) -> ServerProcess {
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("{line:?}")).to_owned();
        ServerProcess { child, url }
    }

    pub(crate) fn command(folder: &Path, database: Option<&str>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluice-server"));
        // Tests wait for no grace and no rest.
        command.args(["--grace", "0", "--gpu-quiet", "0"]);
        command.arg("--data").arg(folder.join("data")).stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(database) = database {
            command.env("SLUICE_DATABASE", database);
        }
        command
    }

    /// As `kill -9` does.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// A node that says what a test wants it to say.
pub(crate) struct ScriptedNode {
    admin: Client,
    pub(crate) client: Client,
    pub(crate) joined: Joined,
    pub(crate) report: Report,
}

impl ScriptedNode {
    /// With this many GPUs of 16 GiB.
    pub(crate) fn join(server: &Server, name: &str, gpus: usize) -> ScriptedNode {
        ScriptedNode::join_at(&server.admin, name, gpus)
    }

    pub(crate) fn join_at(admin: &Client, name: &str, gpus: usize) -> ScriptedNode {
        ScriptedNode::join_with(admin, name, vec![ScriptedNode::gpu(); gpus]).unwrap()
    }

    /// Of 16 GiB.
    pub(crate) fn gpu() -> Gpu {
        Gpu {
            name: "scripted GPU".into(),
            uuid: "GPU-0".into(),
            memory: 16 << 30,
            software: true,
            compute_capability: "12.0".into(),
            driver_version: 13000,
            gflops: 20_000,
            ..Gpu::default()
        }
    }

    /// The failure is of joining.
    pub(crate) fn join_with(admin: &Client, name: &str, gpus: Vec<Gpu>) -> Result<ScriptedNode, Failure> {
        let join = Join {
            name: name.into(),
            address: "10.0.0.7:7583".into(),
            gpus,
            labels: Default::default(),
            release: env!("CARGO_PKG_VERSION").into(),
        };
        let new = NewToken {
            tenant: TenantPath::root(),
            role: Role::Node,
            name: name.into(),
            lifetime_s: 600,
            node: None,
        };
        let made: MadeToken = admin.post("/tokens", &new).unwrap();
        let joined: Joined = admin.with_token(&made.secret).post("/nodes", &join)?;
        let client = admin.with_token(&joined.token);
        let mut node = ScriptedNode { admin: admin.clone(), client, joined, report: Report::default() };
        node.say();
        Ok(node)
    }

    /// Reports, and answers with what the server wants. Usage that is set aside is accepted: tests
    /// are about leases that there are not, and about long ago.
    pub(crate) fn say(&mut self) -> ReportAnswer {
        let answer = self.say_only();
        if !self.report.usage.is_empty() {
            let aside: Vec<AsideRecord> = self.admin.list("/usage/aside").unwrap();
            for part in aside.chunks(1000) {
                let ids = part.iter().map(|aside| aside.record.id.clone()).collect();
                let _: AsideDecided =
                    self.admin.post("/usage/aside", &AsideDecision { ids, accept: true }).unwrap();
            }
        }
        answer
    }

    /// Reports, and answers with what the server wants.
    pub(crate) fn say_only(&mut self) -> ReportAnswer {
        loop {
            self.report.sequence += 1;
            let path = format!("/nodes/{}/reports", self.joined.node);
            let answer: ReportAnswer = self.client.post(&path, &self.report).unwrap();
            // A server that has come to lead believes what is missing once it has been heard.
            if self.report.leadership.replace(answer.leadership) == Some(answer.leadership) {
                return answer;
            }
        }
    }

    /// Claims a granted lease, as its program would: the grant must be good.
    pub(crate) fn claim(&mut self, lease: &Lease) {
        let verifier = Verifier::from_text(&self.joined.grant_key).unwrap();
        for place in lease.places.iter().filter(|place| place.grant.is_some()) {
            let grant = verifier.check(place.grant.as_ref().unwrap(), self.joined.node, 0).unwrap();
            assert_eq!((grant.lease, grant.attempt, &grant.tenant), (lease.id, lease.attempt, &lease.tenant));
            assert_eq!(grant.task, place.task);
            self.report.leases.push(Attempt { lease: lease.id, attempt: lease.attempt, task: place.task });
        }
        self.say();
    }
}

pub(crate) fn ask(share_ppm: u32) -> NewLease {
    serde_json::from_value(serde_json::json!({ "share_ppm": share_ppm, "name": "a program" })).unwrap()
}

pub(crate) fn request(client: &Client, ask: &NewLease) -> Lease {
    client.post("/leases", ask).unwrap()
}

/// Asks until there is an answer, as seldom as not to be asked to ask less.
pub(crate) fn insist<T>(mut ask: impl FnMut() -> Result<T, Failure>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(failure) => assert!(failure.is_temporary() && Instant::now() < deadline, "{failure}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Watches a lease until `wanted`.
pub(crate) fn wait_for(client: &Client, id: LeaseId, wanted: impl Fn(&Lease) -> bool) -> Lease {
    let deadline = Instant::now() + PATIENCE;
    let mut revision = 0;
    loop {
        let lease: Lease = client.get(&format!("/leases/{id}?revision={revision}&wait_ms=1000")).unwrap();
        if wanted(&lease) {
            return lease;
        }
        assert!(Instant::now() < deadline, "{lease:?}");
        revision = lease.revision;
    }
}

pub(crate) fn wait_for_state(client: &Client, id: LeaseId, state: LeaseState) -> Lease {
    wait_for(client, id, |lease| lease.state == state)
}

/// The problem that a request was refused with.
pub(crate) fn problem<T: std::fmt::Debug>(result: Result<T, Failure>) -> Problem {
    match result {
        Err(Failure::Refused(problem)) => problem,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn the_openapi_document_is_current() {
    let checked_in = include_str!("../../openapi.json");
    let current = sluice_server::document();
    assert!(
        checked_in == current,
        "stale; run: cargo run -p sluice-server -- --openapi > crates/server/openapi.json"
    );
    let document: serde_json::Value = serde_json::from_str(&current).unwrap();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    // What is referred to is there.
    for reference in current.split("\"$ref\": \"#").skip(1).filter_map(|rest| rest.split('"').next()) {
        assert!(document.pointer(reference).is_some(), "{reference}");
    }
}

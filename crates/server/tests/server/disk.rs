//! The database's file system is full.

mod postgres;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use sluice_api::audit::{Entry, Verification};
use sluice_api::client::{Client, Failure};
use sluice_api::lease::{Lease, LeaseId, LeaseState};
use sluice_api::problem::{Kind, Problem};
use sluice_api::tenant::TenantStatus;
use sluice_api::token::Role;
use tempfile::TempDir;

use crate::small_disk::SmallDisk;
use crate::{ScriptedNode, Server, ServerProcess, ask, insist, problem, request, settings, wait_for_state};

/// A server whose data are on a small disk.
struct OnSmallDisk {
    /// Ended before the disk goes.
    server: Server,
    log: PathBuf,
    disk: SmallDisk,
    _folder: TempDir,
}

impl OnSmallDisk {
    fn start() -> Option<OnSmallDisk> {
        let disk = SmallDisk::mount("8m")?;
        let server = ServerProcess::command(disk.folder.path(), None);
        let mut command = disk.command(env!("CARGO_BIN_EXE_sluice-server"));
        command.args(server.get_args());
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(&log).unwrap());
        let server = ServerProcess::spawn(&mut command);
        let admin = settings(&disk.seen("")).client();
        let server = Server { _process: server, _leader: None, admin };
        server.apply(crate::TENANTS).unwrap();
        Some(OnSmallDisk { server, log, disk, _folder: folder })
    }

    /// A server on a copy of what the database holds.
    fn copy(&self, to: &Path) -> Server {
        let mut command = self.disk.command(env!("CARGO_BIN_EXE_sluice-server"));
        command.arg("--data").arg(self.disk.folder.path().join("data")).arg("--backup").arg(to.join("data"));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Server::start_on(to, None)
    }
}

fn listed(client: &Client) -> Vec<LeaseId> {
    let mut ids: Vec<LeaseId> =
        client.list::<Lease>("/leases").unwrap().iter().map(|lease| lease.id).collect();
    ids.sort_unstable();
    ids
}

/// Asks for leases until one is refused.
fn ask_until_refused(member: &Client, acknowledged: &mut Vec<LeaseId>) -> Problem {
    loop {
        match member.post::<Lease>("/leases", &ask(1000)) {
            Ok(lease) => acknowledged.push(lease.id),
            Err(Failure::Refused(problem)) => return problem,
            Err(failure) => panic!("{failure}"),
        }
    }
}

#[test]
fn a_full_disk_refuses_changes_loses_nothing_and_heals_by_itself() {
    let Some(on) = OnSmallDisk::start() else { return };
    let (server, admin) = (&on.server, &on.server.admin);
    let member = server.token("globex", Role::Member);
    let mut node = ScriptedNode::join(server, "one", 1);
    let running = request(&member, &ask(500_000));
    node.claim(&wait_for_state(&member, running.id, LeaseState::Granted));
    let mut acknowledged = vec![running.id];

    on.disk.fill();
    let refused = ask_until_refused(&member, &mut acknowledged);
    assert!(refused.is(Kind::DiskFull) && refused.status == 503, "{refused:?}");
    assert!(refused.detail.contains("disk") && refused.detail.contains("Make room"), "{refused:?}");
    let nothing = serde_json::json!({});
    for refused in [
        problem(server.apply("tenants: [{path: initech}]")),
        problem(member.delete::<Lease>(&format!("/leases/{}", running.id))),
        problem(admin.post::<Lease>(&format!("/leases/{}/preemptions", running.id), &nothing)),
    ] {
        assert!(refused.is(Kind::DiskFull), "{refused:?}");
    }

    // What is there is read, from memory and from the database, and nothing else is there.
    assert_eq!(listed(&member), acknowledged, "{}", std::fs::read_to_string(&on.log).unwrap());
    for &id in &acknowledged {
        let _: Lease = member.get(&format!("/leases/{id}")).unwrap();
    }
    let lease: Lease = member.get(&format!("/leases/{}", running.id)).unwrap();
    assert_eq!(lease.state, LeaseState::Running, "what runs goes on");
    let tenants: Vec<TenantStatus> = admin.list("/tenants").unwrap();
    assert!(tenants.iter().all(|tenant| tenant.path.as_str() != "initech"));

    on.disk.make_room();
    let next: Lease = insist(|| member.post("/leases", &ask(1000)));
    acknowledged.push(next.id);
    assert_eq!(listed(&member), acknowledged);
    node.say();
    let lease: Lease = member.get(&format!("/leases/{}", running.id)).unwrap();
    assert_eq!(lease.state, LeaseState::Running);
    let ended: Lease = member.delete(&format!("/leases/{}", running.id)).unwrap();
    assert_eq!(ended.state, LeaseState::Ended);

    // What a server finds in the database is what this one has said.
    let copied = tempfile::tempdir().unwrap();
    holds_all_of(&on.copy(copied.path()).admin, &acknowledged);
    let log = std::fs::read_to_string(&on.log).unwrap();
    assert!(log.contains("the disk of the database is full") && log.contains("there is room"), "{log}");
    assert!(!log.contains("panicked"), "{log}");
}

/// The leases that were acknowledged, no others, and an audit log without a gap.
fn holds_all_of(admin: &Client, acknowledged: &[LeaseId]) {
    assert_eq!(listed(admin), acknowledged);
    let entries: Vec<Entry> = admin.list("/audit?limit=1000").unwrap();
    let mut verification = Verification::new(None);
    entries.iter().for_each(|entry| verification.follow(entry).unwrap());
}

//! The database's file system is full. It is a small one of the server's own, in a mount namespace, which takes root.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use sluice_api::audit::{Entry, Verification};
use sluice_api::client::{Client, Failure};
use sluice_api::lease::{Lease, LeaseId, LeaseState};
use sluice_api::problem::{Kind, Problem};
use sluice_api::tenant::TenantStatus;
use sluice_api::token::Role;
use tempfile::TempDir;

use crate::{PATIENCE, ScriptedNode, Server, ServerProcess, ask, problem, request, settings, wait_for_state};

/// Mounts on the folder `$1`, then runs the rest.
const ON_SMALL_DISK: &str = r#"mount -t tmpfs -o size=8m,mode=700 none "$1" && shift && exec "$@""#;

struct SmallDisk {
    folder: TempDir,
    server: Server,
    log: PathBuf,
    process: u32,
}

impl SmallDisk {
    /// `None`, and says so, where nothing may be mounted.
    fn start() -> Option<SmallDisk> {
        let may_mount =
            Command::new("unshare").args(["--mount", "mount", "-t", "tmpfs", "none", "/mnt"]).output();
        if !may_mount.is_ok_and(|output| output.status.success()) {
            // Past the capture of the test harness: a skipped test is seen.
            let _ = writeln!(std::io::stderr(), "SKIPPED: mounting a small file system takes root");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        std::fs::create_dir(&data).unwrap();
        let server = ServerProcess::command(folder.path(), None);
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", ON_SMALL_DISK, "sh"]).arg(&data);
        command.arg(server.get_program()).args(server.get_args());
        let log = folder.path().join("log");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(&log).unwrap());
        let server = ServerProcess::spawn(&mut command);
        // Each of the programs has become the next one.
        let process = server.child.id();
        let admin = settings(&seen_by(process, folder.path())).client();
        let server = Server { _process: server, _leader: None, admin };
        server.apply(crate::TENANTS).unwrap();
        Some(SmallDisk { folder, server, log, process })
    }

    fn ballast(&self) -> PathBuf {
        seen_by(self.process, &self.folder.path().join("data/ballast"))
    }

    fn fill(&self) {
        let mut file = File::create(self.ballast()).unwrap();
        loop {
            match file.write_all(&[0; 4096]) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => return,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn make_room(&self) {
        std::fs::remove_file(self.ballast()).unwrap();
    }

    /// A server on a copy of what the database holds.
    fn copy(&self, to: &Path) -> Server {
        let mut command = Command::new("nsenter");
        command
            .args(["--mount", "--target", &self.process.to_string()])
            .arg(env!("CARGO_BIN_EXE_sluice-server"));
        command.arg("--data").arg(self.folder.path().join("data")).arg("--backup").arg(to.join("data"));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Server::start_on(to, None)
    }
}

/// A file as that process sees it.
fn seen_by(process: u32, path: &Path) -> PathBuf {
    PathBuf::from(format!("/proc/{process}/root{}", path.display()))
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
    let Some(disk) = SmallDisk::start() else { return };
    let (server, admin) = (&disk.server, &disk.server.admin);
    let member = server.token("globex", Role::Member);
    let mut node = ScriptedNode::join(server, "one", 1);
    let running = request(&member, &ask(500_000));
    node.claim(&wait_for_state(&member, running.id, LeaseState::Granted));
    let mut acknowledged = vec![running.id];

    disk.fill();
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
    assert_eq!(listed(&member), acknowledged);
    for &id in &acknowledged {
        let _: Lease = member.get(&format!("/leases/{id}")).unwrap();
    }
    let lease: Lease = member.get(&format!("/leases/{}", running.id)).unwrap();
    assert_eq!(lease.state, LeaseState::Running, "what runs goes on");
    let tenants: Vec<TenantStatus> = admin.list("/tenants").unwrap();
    assert!(tenants.iter().all(|tenant| tenant.path.as_str() != "initech"));

    disk.make_room();
    let deadline = Instant::now() + PATIENCE;
    let next = loop {
        match member.post::<Lease>("/leases", &ask(1000)) {
            Ok(lease) => break lease,
            Err(failure) => assert!(failure.is_temporary() && Instant::now() < deadline, "{failure}"),
        }
    };
    acknowledged.push(next.id);
    assert_eq!(listed(&member), acknowledged);
    node.say();
    let lease: Lease = member.get(&format!("/leases/{}", running.id)).unwrap();
    assert_eq!(lease.state, LeaseState::Running);
    let ended: Lease = member.delete(&format!("/leases/{}", running.id)).unwrap();
    assert_eq!(ended.state, LeaseState::Ended);

    // What a server finds in the database is what this one has said.
    let copied = tempfile::tempdir().unwrap();
    let copy = disk.copy(copied.path());
    assert_eq!(listed(&copy.admin), acknowledged);
    let entries: Vec<Entry> = copy.admin.list("/audit?limit=1000").unwrap();
    let mut verification = Verification::new(None);
    entries.iter().for_each(|entry| verification.follow(entry).unwrap());
    let log = std::fs::read_to_string(&disk.log).unwrap();
    assert!(log.contains("the disk of the database is full") && log.contains("there is room"), "{log}");
    assert!(!log.contains("panicked"), "{log}");
}

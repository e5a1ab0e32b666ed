//! The same on PostgreSQL: a private one in a temporary folder, on a Unix socket.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sluice_api::client::Failure;
use sluice_api::lease::{Lease, LeaseState};
use sluice_api::token::Role;
use tempfile::TempDir;

use crate::{Server, TENANTS, ask, request, wait_for_state};

/// The folder of the socket of a PostgreSQL on which every server gets a database of its own; unset, servers use SQLite.
const SOCKET_VARIABLE: &str = "SLUICE_TEST_POSTGRES";

/// A PostgreSQL of its own; dropping it ends it.
pub(crate) struct Postgres {
    server: Child,
    binaries: PathBuf,
    pub(crate) folder: TempDir,
}

impl Postgres {
    /// `None`, and says so, where PostgreSQL is not installed.
    pub(crate) fn start() -> Option<Postgres> {
        let Some(binaries) = binaries() else {
            // Past the capture of the test harness: a skipped test is seen.
            let _ = writeln!(std::io::stderr(), "SKIPPED: no initdb and postgres are installed here");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        own(folder.path());
        let data = folder.path().join("data");
        let initdb = unprivileged(&binaries.join("initdb"))
            .args(["--auth=trust", "--username=sluice", "--encoding=UTF8", "--no-sync", "-D"])
            .arg(&data)
            .output()
            .unwrap();
        assert!(initdb.status.success(), "{}", String::from_utf8_lossy(&initdb.stderr));
        let server = launch(&binaries, folder.path());
        let postgres = Postgres { server, binaries, folder };
        postgres.wait_until_ready();
        Some(postgres)
    }

    /// Stops it at once, as a power cut would.
    pub(crate) fn stop(&mut self) {
        // SAFETY: sends a signal to a child that has not been waited for.
        unsafe { libc::kill(self.server.id() as i32, libc::SIGQUIT) };
        self.server.wait().unwrap();
    }

    /// Starts it again on the same data.
    pub(crate) fn restart(&mut self) {
        self.server = launch(&self.binaries, self.folder.path());
        self.wait_until_ready();
    }

    /// A new, empty database.
    pub(crate) fn database(&self, name: &str) -> String {
        create(self.folder.path(), name);
        url(self.folder.path(), name)
    }

    /// One of PostgreSQL's programs, told where the server is.
    pub(crate) fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.binaries.join(name));
        command.env("PGHOST", self.folder.path()).env("PGUSER", "sluice");
        command
    }

    pub(crate) fn sql(&self, database: &str, sql: &str) -> String {
        let mut psql = self.program("psql");
        let output =
            psql.args(["-XAtq", "-v", "ON_ERROR_STOP=1", "-d", database, "-c", sql]).output().unwrap();
        assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn wait_until_ready(&self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        let ready = || self.program("psql").args(["-Xqc", "SELECT 1", "postgres"]).output().unwrap().status;
        while !ready().success() {
            assert!(Instant::now() < deadline, "PostgreSQL does not start");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if self.server.try_wait().is_ok_and(|ended| ended.is_none()) {
            self.stop();
        }
    }
}

fn launch(binaries: &Path, folder: &Path) -> Child {
    let log = std::fs::OpenOptions::new().create(true).append(true).open(folder.join("log")).unwrap();
    unprivileged(&binaries.join("postgres"))
        .args(["-c", "listen_addresses=", "-c", "max_connections=200", "-k"])
        .arg(folder)
        .arg("-D")
        .arg(folder.join("data"))
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}

fn url(folder: &Path, name: &str) -> String {
    format!("postgres:///{name}?host={}&user=sluice", folder.display())
}

fn create(folder: &Path, name: &str) {
    let mut command = Command::new(binaries().unwrap().join("psql"));
    command.arg("-h").arg(folder).args([
        "-U",
        "sluice",
        "-Xqc",
        &format!("CREATE DATABASE {name}"),
        "postgres",
    ]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The folder of `initdb` and `postgres`: of the path, or where Debian has them.
fn binaries() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let debian = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    folders.extend(debian.map(|version| version.path().join("bin")));
    let whole =
        |folder: &PathBuf| ["initdb", "postgres", "psql"].iter().all(|name| folder.join(name).is_file());
    folders.into_iter().find(whole)
}

const NOBODY: u32 = 65534;

fn is_root() -> bool {
    // SAFETY: reads a number of this process.
    unsafe { libc::geteuid() == 0 }
}

/// PostgreSQL refuses to run as root.
fn unprivileged(program: &Path) -> Command {
    let mut command = Command::new(program);
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command.current_dir("/");
    command
}

fn own(folder: &Path) {
    if is_root() {
        std::os::unix::fs::chown(folder, Some(NOBODY), Some(NOBODY)).unwrap();
    }
}

/// The database of a server whose data are in this folder, if the tests run on PostgreSQL; the same one for the same folder.
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

/// Every other test of this program once more, with PostgreSQL in SQLite's place.
#[test]
fn everything_holds_on_postgres() {
    if std::env::var_os(SOCKET_VARIABLE).is_some() {
        return;
    }
    let Some(postgres) = Postgres::start() else { return };
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--skip", "postgres::"])
        .env(SOCKET_VARIABLE, postgres.folder.path())
        .status()
        .unwrap();
    assert!(status.success());
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
    for _ in 0..3 {
        let refused = member.post::<Lease>("/leases", &ask(250_000));
        assert!(refused.as_ref().is_err_and(Failure::is_temporary), "{refused:?}");
    }
    postgres.restart();

    let deadline = Instant::now() + Duration::from_secs(60);
    let after: Lease = loop {
        match member.post("/leases", &ask(500_000)) {
            Ok(lease) => break lease,
            Err(failure) => assert!(Instant::now() < deadline, "{failure}"),
        }
    };
    wait_for_state(&member, before.id, LeaseState::Queued);
    assert_eq!(member.list::<Lease>("/leases").unwrap().len(), 2, "what was refused is not there");
    assert_eq!(
        postgres.sql("away", "SELECT id FROM lease ORDER BY id"),
        format!("{}\n{}\n", before.id, after.id)
    );
}

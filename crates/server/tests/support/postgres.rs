//! A private PostgreSQL in a temporary folder, on a Unix socket.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A PostgreSQL of its own; dropping it ends it.
pub(crate) struct Postgres {
    server: Child,
    binaries: PathBuf,
    pub(crate) folder: TempDir,
    /// A process whose mounts are those that PostgreSQL sees.
    within: Option<u32>,
}

impl Postgres {
    /// `None`, and says so, where PostgreSQL is not installed.
    pub(crate) fn start() -> Option<Postgres> {
        Postgres::start_with(None, &[])
    }

    /// As `start`; it sees the mounts of process `within`, where that is somebody (this takes
    /// root), and `initdb` has these options too.
    pub(crate) fn start_with(within: Option<u32>, options: &[String]) -> Option<Postgres> {
        let Some(binaries) = binaries() else {
            // Past the capture of the test harness: a skipped test is seen.
            let _ = writeln!(std::io::stderr(), "SKIPPED: no initdb and postgres are installed here");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        own(folder.path());
        let data = folder.path().join("data");
        let initdb = unprivileged(&binaries.join("initdb"), within)
            .args(options)
            .args(["--auth=trust", "--username=sluice", "--encoding=UTF8", "--no-sync", "-D"])
            .arg(&data)
            .output()
            .unwrap();
        assert!(initdb.status.success(), "{}", String::from_utf8_lossy(&initdb.stderr));
        let server = launch(&binaries, folder.path(), within);
        let postgres = Postgres { server, binaries, folder, within };
        postgres.wait_until_ready();
        Some(postgres)
    }

    /// One that listens on `localhost` with TLS, and the file of the authority that vouches for it.
    pub(crate) fn start_protected() -> Option<(Postgres, u16, PathBuf)> {
        let mut postgres = Postgres::start()?;
        let folder = postgres.folder.path().to_owned();
        let authority = certify(&folder);
        postgres.stop();
        // Somebody else may take the port before PostgreSQL does.
        for _ in 0..10 {
            let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            postgres.server = launch_with(&postgres.binaries, &folder, None, &protected_at(&folder, port));
            if postgres.gets_ready(port) {
                return Some((postgres, port, authority));
            }
        }
        panic!("PostgreSQL finds no port");
    }

    /// False if it has ended.
    fn gets_ready(&mut self, port: u16) -> bool {
        let deadline = Instant::now() + Duration::from_secs(60);
        let ask = |program: &mut Command| {
            program
                .env("PGPORT", port.to_string())
                .args(["-Xqc", "SELECT 1", "postgres"])
                .output()
                .unwrap()
                .status
        };
        while self.server.try_wait().unwrap().is_none() {
            if ask(&mut self.program("psql")).success() {
                return true;
            }
            assert!(Instant::now() < deadline, "PostgreSQL does not start");
            std::thread::sleep(Duration::from_millis(50));
        }
        false
    }

    /// Of the process above all of its processes.
    pub(crate) fn process(&self) -> u32 {
        self.server.id()
    }

    /// Stops it at once, as a power cut would.
    pub(crate) fn stop(&mut self) {
        // SAFETY: sends a signal to a child that has not been waited for.
        unsafe { libc::kill(self.server.id() as i32, libc::SIGQUIT) };
        self.server.wait().unwrap();
    }

    /// Whether it runs, as far as its first process shows.
    pub(crate) fn runs(&mut self) -> bool {
        self.server.try_wait().unwrap().is_none()
    }

    /// Starts it again on the same data.
    pub(crate) fn restart(&mut self) {
        self.server = launch(&self.binaries, self.folder.path(), self.within);
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

/// A certificate for `localhost`, its key, and the authority that has issued it.
fn certify(folder: &Path) -> PathBuf {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &authority).unwrap();
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        own(&path);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    };
    write("server.pem", certificate.pem());
    write("server.key", key.serialize_pem());
    write("authority.pem", authority.pem())
}

fn protected_at(folder: &Path, port: u16) -> Vec<String> {
    let file = |option: &str, name: &str| format!("{option}={}", folder.join(name).display());
    let options = [
        "listen_addresses=localhost".to_owned(),
        format!("port={port}"),
        "ssl=on".to_owned(),
        file("ssl_cert_file", "server.pem"),
        file("ssl_key_file", "server.key"),
    ];
    options.into_iter().flat_map(|option| ["-c".to_owned(), option]).collect()
}

fn launch(binaries: &Path, folder: &Path, within: Option<u32>) -> Child {
    launch_with(binaries, folder, within, &["-c".to_owned(), "listen_addresses=".to_owned()])
}

fn launch_with(binaries: &Path, folder: &Path, within: Option<u32>, options: &[String]) -> Child {
    let log = std::fs::OpenOptions::new().create(true).append(true).open(folder.join("log")).unwrap();
    unprivileged(&binaries.join("postgres"), within)
        .args(options)
        .args(["-c", "max_connections=200", "-k"])
        .arg(folder)
        .arg("-D")
        .arg(folder.join("data"))
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}

pub(crate) fn url(folder: &Path, name: &str) -> String {
    format!("postgres:///{name}?host={}&user=sluice", folder.display())
}

pub(crate) fn create(folder: &Path, name: &str) {
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
fn unprivileged(program: &Path, within: Option<u32>) -> Command {
    if let Some(process) = within {
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--target", &process.to_string(), "setpriv", "--clear-groups"]);
        command.args([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")]).arg(program);
        return command;
    }
    let mut command = Command::new(program);
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command.current_dir("/");
    command
}

pub(crate) fn own(folder: &Path) {
    if is_root() {
        std::os::unix::fs::chown(folder, Some(NOBODY), Some(NOBODY)).unwrap();
    }
}

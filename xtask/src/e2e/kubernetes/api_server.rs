//! A real API server with its store, on this machine's loopback. There is no controller manager, no
//! scheduler and no kubelet: a test plays those where it needs them.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::access::Authority;
use super::tools;
use crate::e2e::teams::Process;
use crate::process;
use crate::test::Skipped;

/// As in `tests/kubernetes/go.mod`.
const VERSION: &str = "1.37.2";
/// The programs and their packages.
const PROGRAMS: [(&str, &str); 2] =
    [("etcd", "go.etcd.io/etcd/server/v3"), ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver")];
/// Catches a hang.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// It ends when it is dropped, and its store after it.
pub(super) struct ApiServer {
    _server: Process,
    _store: Process,
    admin: String,
    authority: String,
    url: String,
}

impl ApiServer {
    /// Starts one, with its files in `folder`.
    pub(super) fn start(folder: &Path) -> Result<ApiServer> {
        let programs = programs()?;
        let authority = Authority::new(&folder.join("access"))?;
        authority.issue("api-server", "kube-apiserver", "", &["127.0.0.1", "kubernetes.default.svc"])?;
        let [store, peers, port] = free_ports()?;
        let (store, peers) = (format!("http://127.0.0.1:{store}"), format!("http://127.0.0.1:{peers}"));
        let url = format!("https://127.0.0.1:{port}");
        let data = folder.join("store").display().to_string();
        let store_process = start(
            &programs,
            "etcd",
            &[
                ("data-dir", &data),
                ("listen-client-urls", &store),
                ("advertise-client-urls", &store),
                ("listen-peer-urls", &peers),
                // A machine that loses power during a test begins anew.
                ("unsafe-no-fsync", "true"),
            ],
        )?;
        let file = |name: &str| authority.file(name);
        let server = start(
            &programs,
            "kube-apiserver",
            &[
                ("etcd-servers", &store),
                ("bind-address", "127.0.0.1"),
                ("advertise-address", "127.0.0.1"),
                ("secure-port", &port.to_string()),
                // Its own address is a loopback one, which is no endpoint of a Service.
                ("endpoint-reconciler-type", "none"),
                ("service-cluster-ip-range", "10.96.0.0/16"),
                ("tls-cert-file", &file("api-server.crt")),
                ("tls-private-key-file", &file("api-server.key")),
                ("client-ca-file", &file("authority.crt")),
                ("service-account-issuer", "https://kubernetes.default.svc"),
                ("service-account-signing-key-file", &file("accounts.key")),
                ("service-account-key-file", &file("accounts.pub")),
                ("authorization-mode", "Node,RBAC"),
                ("enable-admission-plugins", "NodeRestriction"),
            ],
        )?;
        let admin = authority.client("admin", "admin", "system:masters", &url)?;
        let started = ApiServer {
            _server: server,
            _store: store_process,
            admin,
            authority: file("authority.crt"),
            url,
        };
        started
            .wait("the API server is ready", || Ok(started.kubectl(&["get", "--raw", "/readyz"]).is_ok()))?;
        Ok(started)
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// The file with the authority of its certificate.
    pub(super) fn authority(&self) -> &str {
        &self.authority
    }

    pub(super) fn command(&self, program: &Path, words: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(words).env("KUBECONFIG", &self.admin).stdin(Stdio::null());
        command
    }

    /// What kubectl prints, as the administrator of the cluster.
    pub(super) fn kubectl(&self, words: &[&str]) -> Result<String> {
        process::output_of(&mut self.command(&tools::kubectl()?, words))
    }

    pub(super) fn helm(&self, words: &[&str]) -> Result<String> {
        process::output_of(&mut self.command(&tools::helm()?, words))
    }

    /// Objects, as kubectl prints them with `-o json`.
    pub(super) fn json(&self, words: &[&str]) -> Result<Value> {
        Ok(serde_json::from_str(&self.kubectl(&[words, &["-o", "json"]].concat())?)?)
    }

    /// Creates an object; the error is the API server's.
    pub(super) fn create(&self, folder: &Path, object: &Value) -> Result<()> {
        let file = folder.join("object.json");
        fs::write(&file, object.to_string())?;
        self.kubectl(&["create", "-f", &file.display().to_string()]).map(drop)
    }

    /// Waits until something is so; the name of it is in the error.
    pub(super) fn wait(&self, what: &str, is_so: impl Fn() -> Result<bool>) -> Result<()> {
        let begin = Instant::now();
        loop {
            let last = is_so();
            if matches!(last, Ok(true)) {
                return Ok(());
            }
            let cause = last.err().map(|error| format!(": {error:#}")).unwrap_or_default();
            ensure!(begin.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}{cause}");
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

fn start(programs: &Path, name: &str, options: &[(&str, &str)]) -> Result<Process> {
    let mut command = Command::new(programs.join(name));
    command.args(options.iter().map(|(option, value)| format!("--{option}={value}")));
    Process::start(name, &mut command)
}

/// The folder of the programs. A build takes many minutes, so the test makes none.
fn programs() -> Result<PathBuf> {
    let folder = crate::cache_folder().join(format!("kubernetes-{VERSION}"));
    for (name, package) in PROGRAMS {
        if !folder.join(name).is_file() {
            let reason = format!(
                "needs {name} of Kubernetes {VERSION}: in tests/kubernetes, go build -o {} {package}",
                folder.join(name).display()
            );
            return Err(Skipped(reason).into());
        }
    }
    Ok(folder)
}

fn free_ports<const COUNT: usize>() -> Result<[u16; COUNT]> {
    let listeners: Vec<TcpListener> =
        (0..COUNT).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<std::io::Result<_>>()?;
    let ports: Vec<u16> =
        listeners.iter().map(|listener| Ok(listener.local_addr()?.port())).collect::<std::io::Result<_>>()?;
    ports.try_into().ok().context("as many ports as listeners")
}

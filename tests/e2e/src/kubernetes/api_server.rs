//! A real API server with its store, on this machine's loopback or on a machine of a whole
//! cluster ([`super::cluster`]). By itself it has no controller manager, no scheduler and no
//! kubelet: a test plays those where it needs them.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::access::Authority;
use super::machine::{Host, kill};
use super::programs::KUBERNETES;
use super::tools;
use crate::process;
use crate::teams::Process;

/// The programs and their packages.
const PROGRAMS: [(&str, &str); 2] =
    [("etcd", "go.etcd.io/etcd/server/v3"), ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver")];
/// The addresses of Services, and the one that leads to the API server.
const SERVICES: &str = "10.96.0.0/16";
const OWN_SERVICE: &str = "10.96.0.1";
/// Catches a hang.
const PATIENCE: Duration = Duration::from_secs(300);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// It ends when it is dropped, and its store after it.
pub(super) struct ApiServer {
    server: Process,
    /// Starts it.
    command: Command,
    _store: Process,
    /// The words before a command that bring it to the API server's machine.
    entry: Vec<String>,
    admin: String,
    authority: Authority,
    url: String,
}

impl ApiServer {
    /// Starts one on this machine's loopback, with its files in `folder`.
    pub(super) fn start(folder: &Path) -> Result<ApiServer> {
        ApiServer::start_on(folder, None)
    }

    /// Starts one on a machine of a test cluster, where kubelets and pods reach it.
    pub(super) fn start_on(folder: &Path, machine: Option<&Host>) -> Result<ApiServer> {
        let programs = KUBERNETES.programs(&PROGRAMS)?;
        let entry = machine.map(Host::entry).unwrap_or_default();
        let command = |name: &str, options: &[(&str, &str)]| {
            let mut command = entered(&entry, &programs.join(name));
            command.args(options.iter().map(|(option, value)| format!("--{option}={value}")));
            command
        };
        let address = machine.map_or("127.0.0.1", Host::address);
        let authority = Authority::new(&folder.join("access"))?;
        let hosts = ["127.0.0.1", address, OWN_SERVICE, "kubernetes.default.svc"];
        authority.issue("api-server", "kube-apiserver", "", &hosts)?;
        let [store, peers, port] = free_ports()?;
        let (store, peers) = (format!("http://127.0.0.1:{store}"), format!("http://127.0.0.1:{peers}"));
        let url = format!("https://{address}:{port}");
        let data = folder.join("store").display().to_string();
        let mut store_command = command(
            "etcd",
            &[
                ("data-dir", &data),
                ("listen-client-urls", &store),
                ("advertise-client-urls", &store),
                ("listen-peer-urls", &peers),
                // A machine that loses power during a test begins anew.
                ("unsafe-no-fsync", "true"),
            ],
        );
        let store_process = Process::start("etcd", &mut store_command)?;
        let file = |name: &str| authority.file(name);
        authority.issue("api-server-kubelet-client", "api-server", "system:masters", &[])?;
        let mut command = command(
            "kube-apiserver",
            &[
                ("etcd-servers", &store),
                ("bind-address", address),
                ("advertise-address", address),
                ("secure-port", &port.to_string()),
                // A loopback address is no endpoint of a Service.
                ("endpoint-reconciler-type", if machine.is_some() { "lease" } else { "none" }),
                ("service-cluster-ip-range", SERVICES),
                // The names of machines lead nowhere.
                ("kubelet-preferred-address-types", "InternalIP"),
                ("kubelet-client-certificate", &file("api-server-kubelet-client.crt")),
                ("kubelet-client-key", &file("api-server-kubelet-client.key")),
                ("tls-cert-file", &file("api-server.crt")),
                ("tls-private-key-file", &file("api-server.key")),
                ("client-ca-file", &file("authority.crt")),
                ("service-account-issuer", "https://kubernetes.default.svc"),
                ("service-account-signing-key-file", &file("accounts.key")),
                ("service-account-key-file", &file("accounts.pub")),
                ("authorization-mode", "Node,RBAC"),
                ("enable-admission-plugins", "NodeRestriction"),
            ],
        );
        let server = Process::start("kube-apiserver", &mut command)?;
        let admin = authority.client("admin", "admin", "system:masters", &url)?;
        let entry = entry.clone();
        let started = ApiServer { server, command, _store: store_process, entry, admin, authority, url };
        started.wait_until_ready()?;
        Ok(started)
    }

    fn wait_until_ready(&self) -> Result<()> {
        self.wait("the API server is ready", || Ok(self.kubectl(&["get", "--raw", "/readyz"]).is_ok()))
    }

    /// Kills it, and starts it again.
    pub(super) fn restart(&mut self) -> Result<()> {
        kill(&mut self.server)?;
        self.server = Process::start("kube-apiserver", &mut self.command)?;
        self.wait_until_ready()
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// The file with the authority of its certificate.
    pub(super) fn authority(&self) -> String {
        self.file("authority.crt")
    }

    /// A file of the cluster's authority.
    pub(super) fn file(&self, name: &str) -> String {
        self.authority.file(name)
    }

    /// Lets a part of the cluster in; the answer is its kubeconfig.
    pub(super) fn client(&self, name: &str, user: &str, group: &str) -> Result<String> {
        self.authority.client(name, user, group, &self.url)
    }

    /// The kubeconfig of the administrator.
    pub(super) fn admin(&self) -> &str {
        &self.admin
    }

    pub(super) fn command(&self, program: &Path, words: &[&str]) -> Command {
        let mut command = entered(&self.entry, program);
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

/// A program, after the words that bring it to another machine.
pub(super) fn entered(entry: &[String], program: &Path) -> Command {
    let Some((first, rest)) = entry.split_first() else {
        return Command::new(program);
    };
    let mut command = Command::new(first);
    command.args(rest).arg(program);
    command
}

fn free_ports<const COUNT: usize>() -> Result<[u16; COUNT]> {
    let listeners: Vec<TcpListener> =
        (0..COUNT).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<std::io::Result<_>>()?;
    let ports: Vec<u16> =
        listeners.iter().map(|listener| Ok(listener.local_addr()?.port())).collect::<std::io::Result<_>>()?;
    ports.try_into().ok().context("as many ports as listeners")
}

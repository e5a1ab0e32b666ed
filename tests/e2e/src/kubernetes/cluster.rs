//! A whole cluster: an API server, a scheduler, a controller manager and names of Services, and two
//! machines with kubelets. One machine has no GPU; the other one lends a software GPU.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};
use xtask::dist;

use super::api_server::ApiServer;
use super::machine::{Host, NETWORK_PLUGINS, connect};
use super::programs::{CONTAINERD, KUBERNETES};
use super::{images, tools};
use crate::Skipped;
use crate::process;

/// The programs of a cluster beside the API server and its store.
const PROGRAMS: [(&str, &str); 4] = [
    ("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
    ("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
    ("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    ("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
];
/// What runs containers, and imports their images.
const CONTAINER_PROGRAMS: [(&str, &str); 3] = [
    ("containerd", "github.com/containerd/containerd/v2/cmd/containerd"),
    ("containerd-shim-runc-v2", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"),
    ("ctr", "github.com/containerd/containerd/v2/cmd/ctr"),
];
/// What has to be installed, and the Debian package that has it.
const INSTALLED: [(&str, &str); 3] = [("runc", "runc"), ("nft", "nftables"), ("gcc", "gcc libc6-dev")];

/// The names of images, as if a registry had them.
pub(super) const SLUICE: &str = "registry.example/sluice";
pub(super) const PYTHON: &str = "registry.example/python:1";

/// The machine without a GPU, where the control plane is, too.
pub(super) const PLAIN: &str = "plain";
/// The machine that lends its GPU.
pub(super) const LENDER: &str = "lender";

/// It ends when it is dropped.
pub(super) struct Cluster {
    pub(super) api: ApiServer,
    pub(super) plain: Host,
    pub(super) lender: Host,
}

impl Cluster {
    /// Starts one whose files are in `folder`, and waits until its machines take pods.
    pub(super) fn start(folder: &Path) -> Result<Cluster> {
        check_installed()?;
        let programs = KUBERNETES.programs(&PROGRAMS)?;
        let containers = CONTAINERD.programs(&CONTAINER_PROGRAMS)?;
        let (pause, python) = (images::pause(folder)?, images::python(folder)?);
        let sluice = dist::package("--oci")?;
        let mut plain = Host::start(PLAIN, 1, folder)?;
        let mut lender = Host::start(LENDER, 2, folder)?;
        connect(&plain, &lender)?;
        let api = ApiServer::start_on(folder, Some(&plain))?;
        run_control_plane(&api, &mut plain, &programs)?;
        let dns = plain.address().to_owned();
        for machine in [&mut plain, &mut lender] {
            machine.run_containers(&containers, "registry.example/pause:1")?;
            machine.import(&pause, "registry.example/pause")?;
            machine.import(&sluice, SLUICE)?;
            if machine.name() == PLAIN {
                machine.import(&python, PYTHON.trim_end_matches(":1"))?;
            }
            machine.join(&api, &programs, &dns)?;
        }
        let cluster = Cluster { api, plain, lender };
        for name in [PLAIN, LENDER] {
            cluster.api.wait(&format!("machine {name} takes pods"), || {
                let node = cluster.api.json(&["get", "node", name])?;
                let mut conditions = node["status"]["conditions"].as_array().into_iter().flatten();
                Ok(conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True"))
            })?;
        }
        Ok(cluster)
    }

    /// Runs commands as the administrator types them on a machine of the cluster; the answer is
    /// what they print.
    pub(super) fn shell(&self, script: &str) -> Result<String> {
        let tools = tools::kubectl()?.with_file_name("");
        let mut command = self.plain.command("sh");
        command.args(["-ec", script]).env("KUBECONFIG", self.api.admin());
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", tools.display())).current_dir(crate::root());
        process::output_of(&mut command)
    }
}

fn run_control_plane(api: &ApiServer, machine: &mut Host, programs: &Path) -> Result<()> {
    let scheduler = api.client("scheduler", "system:kube-scheduler", "")?;
    machine
        .run(&programs.join("kube-scheduler"), &[("kubeconfig", &scheduler), ("leader-elect", "false")])?;
    let manager = api.client("controller-manager", "system:kube-controller-manager", "")?;
    machine.run(
        &programs.join("kube-controller-manager"),
        &[
            ("kubeconfig", &manager),
            ("leader-elect", "false"),
            ("use-service-account-credentials", "true"),
            ("service-account-private-key-file", &api.file("accounts.key")),
            ("root-ca-file", &api.authority()),
        ],
    )?;
    let mut names = machine.command("python3");
    names.arg(crate::root().join("tests/kubernetes/names.py")).arg(machine.address());
    names.arg(tools::kubectl()?).env("KUBECONFIG", api.admin());
    machine.keep("names", names)
}

fn check_installed() -> Result<()> {
    // SAFETY: geteuid touches no memory.
    if unsafe { libc::geteuid() } != 0 {
        return Err(Skipped("needs root, to start machines in namespaces".into()).into());
    }
    for (program, package) in INSTALLED {
        let found =
            Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if !found.is_ok_and(|status| status.success()) {
            return Err(Skipped(format!("needs {program} (on Debian: apt install {package})")).into());
        }
    }
    if !Path::new(NETWORK_PLUGINS).join("bridge").is_file() {
        let reason = "needs CNI plugins (on Debian: apt install containernetworking-plugins)";
        return Err(Skipped(reason.into()).into());
    }
    ensure!(crate::root().join("deploy/helm/sluice").is_dir(), "the chart is missing");
    Ok(())
}

//! A machine of a test cluster: network, mount and process namespaces of its own, with containerd,
//! a kubelet and a service proxy in them. What it runs ends with it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::api_server::{ApiServer, entered};
use crate::process;
use crate::teams::Process;

/// Where Debian's containernetworking-plugins has its programs.
pub(super) const NETWORK_PLUGINS: &str = "/usr/lib/cni";
/// The addresses of all machines, and of all pods.
const MACHINES: &str = "10.79.0";
const PODS: &str = "10.244";
/// Where the control groups are.
const CGROUPS: &str = "/sys/fs/cgroup";
/// Catches a hang.
const PATIENCE: Duration = Duration::from_secs(60);

/// It ends when it is dropped.
pub(super) struct Host {
    name: &'static str,
    number: u8,
    address: String,
    /// Its network namespace.
    network: String,
    folder: PathBuf,
    /// The programs of containerd.
    containers: PathBuf,
    /// The control group of its pods.
    cgroup: String,
    init: Option<Process>,
    /// The process id of its first process.
    first: u32,
    running: Vec<Running>,
}

/// A program of a machine, and what starts it.
struct Running {
    name: String,
    command: Command,
    process: Process,
}

impl Host {
    /// Starts one with nothing but its first process; `number` tells machines apart.
    pub(super) fn start(name: &'static str, number: u8, folder: &Path) -> Result<Host> {
        let id = format!("{}-{number}", std::process::id());
        let network = format!("sluice-machine-{id}");
        ip(&["netns", "add", &network])?;
        let mut machine = Host {
            name,
            number,
            address: format!("{MACHINES}.{number}"),
            network,
            folder: folder.join(name),
            containers: PathBuf::new(),
            cgroup: format!("sluice-machine-{id}"),
            init: None,
            first: 0,
            running: Vec::new(),
        };
        ip(&["-n", &machine.network, "link", "set", "lo", "up"])?;
        fs::create_dir_all(&machine.folder)?;
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", machine.network));
        command.args(["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh"]);
        command.arg(crate::root().join("tests/kubernetes/machine.sh"));
        command.arg(&machine.folder).arg(&machine.cgroup);
        let mut init = Process::start(&format!("machine-{name}"), &mut command)?;
        init.expect_line("ready")?;
        machine.first = *process::children(init.pid()).first().context("the machine has a first process")?;
        machine.init = Some(init);
        Ok(machine)
    }

    pub(super) fn name(&self) -> &str {
        self.name
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Where a file of this machine below `/etc`, `/var/lib` or `/var/log` is outside of it, once
    /// the machine has written it.
    pub(super) fn file(&self, path: &str) -> PathBuf {
        self.folder.join("new").join(path.trim_start_matches('/'))
    }

    /// The words before a command that bring it to this machine.
    pub(super) fn entry(&self) -> Vec<String> {
        let target = format!("--target={}", self.first);
        ["nsenter", &target, "--mount", "--pid", "--net", "--"].map(String::from).into()
    }

    /// A command on this machine.
    pub(super) fn command(&self, program: impl AsRef<Path>) -> Command {
        entered(&self.entry(), program.as_ref())
    }

    /// Starts a program that runs as long as the machine.
    pub(super) fn run(&mut self, program: &Path, options: &[(&str, &str)]) -> Result<()> {
        let mut command = self.command(program);
        command.args(options.iter().map(|(option, value)| format!("--{option}={value}")));
        let name = program.file_name().context("a name")?.to_string_lossy();
        self.keep(&name, command)
    }

    /// Starts a command of this machine that runs as long as the machine.
    pub(super) fn keep(&mut self, name: &str, mut command: Command) -> Result<()> {
        let process = Process::start(&format!("{name}-{}", self.name), &mut command)?;
        self.running.push(Running { name: name.to_owned(), command, process });
        Ok(())
    }

    /// Kills a program of this machine, and starts it again.
    pub(super) fn restart(&mut self, name: &str) -> Result<()> {
        self.kill(name)?;
        self.start_again(name)
    }

    /// Kills a program of this machine.
    pub(super) fn kill(&mut self, name: &str) -> Result<()> {
        kill(&mut self.running(name)?.process)
    }

    /// Starts a program of this machine that was killed.
    pub(super) fn start_again(&mut self, name: &str) -> Result<()> {
        let log = format!("{name}-{}", self.name);
        let running = self.running(name)?;
        running.process = Process::start(&log, &mut running.command)?;
        Ok(())
    }

    fn running(&mut self, name: &str) -> Result<&mut Running> {
        let running = self.running.iter_mut().find(|running| running.name == name);
        running.with_context(|| format!("{} has no {name}", self.name))
    }

    /// Kills the first process of a container, by the container's id.
    pub(super) fn kill_container(&self, id: &str) -> Result<()> {
        process::output_of(self.containers("tasks kill --signal SIGKILL").arg(id)).map(drop)
    }

    /// Starts containerd, with its programs first on its path.
    pub(super) fn run_containers(&mut self, programs: &Path, pause: &str) -> Result<()> {
        let network = json!({
            "cniVersion": "1.0.0",
            "name": "pods",
            "plugins": [{
                "type": "bridge",
                "bridge": "pods0",
                "isGateway": true,
                "hairpinMode": true,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{ "subnet": format!("{PODS}.{}.0/24", self.number) }]],
                    "routes": [{ "dst": "0.0.0.0/0" }],
                },
            }],
        });
        let networks = self.folder.join("networks");
        fs::create_dir_all(&networks)?;
        fs::write(networks.join("pods.conflist"), network.to_string())?;
        // Its folder for programs of others would be the whole system's.
        let settings = format!(
            "version = 3\n\
             disabled_plugins = [\"io.containerd.internal.v1.opt\"]\n\
             [plugins.\"io.containerd.cri.v1.images\".pinned_images]\n\
             sandbox = \"{pause}\"\n\
             [plugins.\"io.containerd.cri.v1.runtime\"]\n\
             restrict_oom_score_adj = true\n\
             disable_apparmor = true\n\
             [plugins.\"io.containerd.cri.v1.runtime\".cni]\n\
             bin_dirs = [\"{NETWORK_PLUGINS}\"]\n\
             conf_dir = \"{}\"\n\
             [plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.runc]\n\
             runtime_type = \"io.containerd.runc.v2\"\n",
            networks.display()
        );
        let file = self.folder.join("containerd.toml");
        fs::write(&file, settings)?;
        self.containers = programs.to_owned();
        let mut command = self.command(programs.join("containerd"));
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", programs.display())).arg("--config").arg(file);
        self.keep("containerd", command)?;
        self.wait("containerd answers", || {
            self.containers("version").output().is_ok_and(|o| o.status.success())
        })
    }

    /// The client that comes with containerd.
    fn containers(&self, words: &str) -> Command {
        let mut command = self.command(self.containers.join("ctr"));
        command.arg("--namespace=k8s.io").args(words.split(' '));
        command
    }

    /// Imports an OCI layout under a name, as the guide says it.
    pub(super) fn import(&self, layout: &Path, name: &str) -> Result<()> {
        let archive = self.folder.join("image.tar");
        process::output_of(Command::new("tar").arg("-C").arg(layout).arg("-cf").arg(&archive).arg("."))?;
        let mut import = self.containers("images import --base-name");
        process::output_of(import.arg(name).arg(&archive))?;
        Ok(fs::remove_file(archive)?)
    }

    /// Starts the kubelet and the proxy for Services.
    pub(super) fn join(&mut self, api: &ApiServer, programs: &Path, dns: &str) -> Result<()> {
        let (name, user) = (self.name, format!("system:node:{}", self.name));
        let kubelet_access = api.client(&format!("kubelet-{name}"), &user, "system:nodes")?;
        let proxy_access = api.client(&format!("proxy-{name}"), "system:kube-proxy", "")?;
        let resolver = self.folder.join("resolv.conf");
        fs::write(&resolver, format!("nameserver {dns}\n"))?;
        // Where a test machine's disk is nearly full, that is none of the cluster's business.
        let least = json!({
            "memory.available": "50Mi", "nodefs.available": "0%", "nodefs.inodesFree": "0%",
            "imagefs.available": "0%", "imagefs.inodesFree": "0%",
        });
        let settings = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": { "x509": { "clientCAFile": api.authority() }, "anonymous": { "enabled": false } },
            "authorization": { "mode": "Webhook" },
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": format!("/{}", self.cgroup),
            "failCgroupV1": false,
            "failSwapOn": false,
            "enforceNodeAllocatable": ["none"],
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "clusterDNS": [dns],
            "clusterDomain": "cluster.local",
            "resolvConf": resolver,
            "evictionHard": least,
            "imageGCHighThresholdPercent": 100,
            "makeIPTablesUtilChains": false,
            "oomScoreAdj": 0,
        });
        let file = self.folder.join("kubelet.json");
        fs::write(&file, settings.to_string())?;
        let address = self.address.clone();
        self.run(
            &programs.join("kubelet"),
            &[
                ("config", &file.display().to_string()),
                ("kubeconfig", &kubelet_access),
                ("hostname-override", name),
                ("node-ip", &address),
                ("v", "2"),
            ],
        )?;
        let settings = json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "hostnameOverride": name,
            "clientConnection": { "kubeconfig": proxy_access },
            "clusterCIDR": format!("{PODS}.0.0/16"),
            // These sizes are not the machine's alone.
            "conntrack": { "maxPerCore": 0, "min": 0 },
        });
        let file = self.folder.join("proxy.json");
        fs::write(&file, settings.to_string())?;
        self.run(&programs.join("kube-proxy"), &[("config", &file.display().to_string())])
    }

    fn wait(&self, what: &str, is_so: impl Fn() -> bool) -> Result<()> {
        let begin = Instant::now();
        while !is_so() {
            ensure!(begin.elapsed() < PATIENCE, "{}: not within {PATIENCE:?}: {what}", self.name);
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Removes the control groups of pods that have been killed.
    fn remove_cgroups(&self) {
        let hierarchies = fs::read_dir(CGROUPS).into_iter().flatten().flatten().map(|entry| entry.path());
        for hierarchy in hierarchies.chain([PathBuf::from(CGROUPS)]) {
            remove_cgroup(&hierarchy.join(&self.cgroup), Instant::now() + PATIENCE);
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // The first process ends with its input, and takes all others along.
        if let Some(mut init) = self.init.take() {
            let _ = init.end_its_input();
        }
        self.running.clear();
        self.remove_cgroups();
        let _ = ip(&["netns", "delete", &self.network]);
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            eprintln!("{}: {error}", self.folder.display());
        }
    }
}

/// Kills a program that was started through `nsenter`, which waits for it as its parent.
pub(super) fn kill(process: &mut Process) -> Result<()> {
    for child in process::children(process.pid()) {
        // SAFETY: the child has not been waited for before its parent has ended, so the number is
        // still its own.
        unsafe { libc::kill(child as i32, libc::SIGKILL) };
    }
    process.end().map(drop)
}

/// Connects two machines, and each with the other's pods.
pub(super) fn connect(one: &Host, other: &Host) -> Result<()> {
    let device = |machine: &Host| format!("slm{}-{}", std::process::id(), machine.number);
    let ends = [device(one), device(other)];
    ip(&["link", "add", &ends[0], "type", "veth", "peer", "name", &ends[1]])?;
    for ((machine, peer), device) in [(one, other), (other, one)].into_iter().zip(ends) {
        let (network, peers_pods) = (&machine.network, format!("{PODS}.{}.0/24", peer.number));
        ip(&["link", "set", &device, "netns", network])?;
        ip(&["-n", network, "address", "add", &format!("{}/24", machine.address), "dev", &device])?;
        ip(&["-n", network, "link", "set", &device, "up"])?;
        ip(&["-n", network, "route", "add", &peers_pods, "via", &peer.address])?;
        // Addresses of Services have to be routed somewhere before they are replaced.
        ip(&["-n", network, "route", "add", "default", "via", &peer.address])?;
    }
    Ok(())
}

fn ip(words: &[&str]) -> Result<String> {
    process::output_of(Command::new("ip").args(words))
}

/// Removes a control group with those below it. The kernel refuses while a process is ending.
fn remove_cgroup(path: &Path, deadline: Instant) {
    let below = fs::read_dir(path).into_iter().flatten().flatten();
    for entry in below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        remove_cgroup(&entry.path(), deadline);
    }
    while path.is_dir() && fs::remove_dir(path).is_err() {
        if Instant::now() > deadline {
            return eprintln!("{} is left", path.display());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

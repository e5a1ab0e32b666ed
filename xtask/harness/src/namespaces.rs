//! Two machines on one: client and node in network and mount namespaces of their own, with a
//! virtual cable between them. What one has on its file system the other cannot open, so nothing
//! but TCP connects them.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, ensure};

use crate::node::{self, Node};
use crate::packets::{self, End, Shape};
use crate::process;

const NODE_ADDRESS: &str = "10.83.75.1";
const CLIENT_ADDRESS: &str = "10.83.75.2";

/// The two network namespaces and the client's folder; gone when dropped.
pub struct Separation {
    /// What tells its names from those of others.
    id: String,
    node_network: String,
    client_network: String,
    /// All that the client has of Sluice: `sluice` and the client libraries.
    client_libraries: PathBuf,
}

impl Separation {
    pub fn new() -> Result<Separation> {
        let this = Separation::without_link()?;
        this.lay_cable()?;
        Ok(this)
    }

    /// The two machines are far from each other.
    pub fn far(shape: Shape) -> Result<Separation> {
        let this = Separation::without_link()?;
        let (node_address, client_address) = (format!("{NODE_ADDRESS}/24"), format!("{CLIENT_ADDRESS}/24"));
        let node = End { network: &this.node_network, device: "far0", address: &node_address };
        let client = End { network: &this.client_network, device: "far0", address: &client_address };
        packets::link([node, client], shape)?;
        Ok(this)
    }

    fn without_link() -> Result<Separation> {
        // SAFETY: geteuid has no preconditions.
        ensure!(unsafe { libc::geteuid() } == 0, "needs root");
        static MADE: AtomicU32 = AtomicU32::new(0);
        let id = format!("{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let this = Separation {
            node_network: format!("sluice-node-{id}"),
            client_network: format!("sluice-client-{id}"),
            client_libraries: std::env::temp_dir().join(format!("sluice-client-libraries-{id}")),
            id,
        };
        for network in [&this.node_network, &this.client_network] {
            process::output_of(Command::new("ip").args(["netns", "add", network]))?;
            process::output_of(Command::new("ip").args(["-n", network, "link", "set", "lo", "up"]))?;
        }
        std::fs::create_dir_all(&this.client_libraries)?;
        let built = node::sluice().parent().context("sluice lies in a folder")?.to_path_buf();
        for library in [
            "libsluice_client.so",
            "libsluice_nvml.so",
            "libsluice_nojitlink.so",
            "libsluice_devfiles.so",
            "libsluice_blas.so",
            "libsluice_rand.so",
            "libsluice_fft.so",
            "sluice",
        ] {
            std::fs::copy(built.join(library), this.client_libraries.join(library)).context(library)?;
        }
        Ok(this)
    }

    /// The devices at the ends of the cable, the node's first.
    fn cable(&self) -> (String, String) {
        // A device's name has 15 characters at most.
        let name = format!("slu{}", self.id);
        (format!("{name}a"), format!("{name}b"))
    }

    /// Packets on the cable are lost from now on, without a message: both ends send to a device
    /// that is not there.
    pub fn cut_cable(&self) -> Result<()> {
        self.neighbours(&["replace"], &["lladdr", "02:00:00:00:00:01", "nud", "permanent"])
    }

    /// The reverse.
    pub fn mend_cable(&self) -> Result<()> {
        self.neighbours(&["delete"], &[])
    }

    /// Says at each end which device the other is.
    fn neighbours(&self, before: &[&str], after: &[&str]) -> Result<()> {
        let (near, far) = self.cable();
        for (network, device, other) in
            [(&self.node_network, &near, CLIENT_ADDRESS), (&self.client_network, &far, NODE_ADDRESS)]
        {
            let mut command = Command::new("ip");
            command.args(["-n", network, "neighbour"]).args(before).args([other, "dev", device]).args(after);
            process::output_of(&mut command)?;
        }
        Ok(())
    }

    fn lay_cable(&self) -> Result<()> {
        let (node, client) = (self.node_network.as_str(), self.client_network.as_str());
        let (near, far) = self.cable();
        let node_end = format!("{NODE_ADDRESS}/24");
        let client_end = format!("{CLIENT_ADDRESS}/24");
        for words in [
            vec!["link", "add", &near, "netns", node, "type", "veth", "peer", "name", &far, "netns", client],
            vec!["-n", node, "address", "add", &node_end, "dev", &near],
            vec!["-n", client, "address", "add", &client_end, "dev", &far],
            vec!["-n", node, "link", "set", &near, "up"],
            vec!["-n", client, "link", "set", &far, "up"],
        ] {
            process::output_of(Command::new("ip").args(words))?;
        }
        Ok(())
    }

    /// A node in its own network and mount namespaces.
    pub fn start_node(&self) -> Result<Node> {
        self.start_node_with(crate::expect::NODE_GPUS)
    }

    /// Starts a node with these GPUs, written as for `sluice node --gpus`.
    pub fn start_node_with(&self, gpus: &str) -> Result<Node> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.node_network, "unshare", "--mount"]).arg(node::sluice());
        let listen = format!("{NODE_ADDRESS}:0");
        command.args(["node", "--listen", &listen, "--gpus", gpus]);
        // Beyond loopback a node speaks TLS, with a certificate of its own that it keeps here.
        command.env("XDG_DATA_HOME", crate::target_folder().join("namespaces"));
        let mut node = Node::start_command(&mut command)?;
        // From where it is, so also while the link is cut.
        node.seen_from = Some(self.node_network.clone());
        Ok(node)
    }

    /// How TCP answers losses between the two.
    pub fn congestion_control(&self) -> Result<String> {
        let mut command = Command::new("ip");
        command.args([
            "netns",
            "exec",
            &self.client_network,
            "cat",
            "/proc/sys/net/ipv4/tcp_congestion_control",
        ]);
        Ok(process::output_of(&mut command)?.trim().to_owned())
    }

    /// What the client's kernel receives for a connection before the client reads it has this many
    /// bytes at most (`tcp_rmem` in tcp(7)).
    pub fn bound_receive_buffers(&self, bytes: u32) -> Result<()> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.client_network, "sh", "-c"]);
        command.arg(format!("echo 4096 {bytes} {bytes} > /proc/sys/net/ipv4/tcp_rmem"));
        process::output_of(&mut command)?;
        Ok(())
    }

    /// `sluice` in the client's network namespace, to be completed.
    pub fn sluice(&self) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.client_network]).arg(self.client_libraries.join("sluice"));
        command
    }

    /// `sluice run` in the client's namespaces, to be completed by the program. The program itself
    /// runs where the build folder is empty but for itself.
    pub fn client(&self, node: &Node, options: &[&str]) -> Command {
        let mut command = self.sluice();
        command.arg("run").args(options).args(["--node", &node.address, "--"]);
        command
            .args(["unshare", "--mount", "sh", "-c", HIDE_BUILD, "sh"])
            .arg(node::sluice().parent().unwrap_or(crate::root()));
        command.env("SLUICE_LIB_DIR", &self.client_libraries);
        command
    }
}

/// `$1` is the folder of release builds; the rest is the program. A program that lies in that
/// folder (a test program of ours) is put back alone.
const HIDE_BUILD: &str = r#"
builds=$1; shift
copy=$(mktemp) && case $1 in "$builds"/*) cp "$1" "$copy";; esac
mount -t tmpfs none "$builds" || exit 125
case $1 in "$builds"/*) cp "$copy" "$1" && chmod +x "$1";; esac
rm "$copy"
exec "$@"
"#;

impl Drop for Separation {
    fn drop(&mut self) {
        for network in [&self.node_network, &self.client_network] {
            let _ = process::output_of(Command::new("ip").args(["netns", "delete", network]));
        }
        let _ = std::fs::remove_dir_all(&self.client_libraries);
    }
}

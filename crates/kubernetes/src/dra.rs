//! The driver for dynamic resource allocation: pods ask for shares of GPUs by ResourceClaims.
//!
//! ```text
//!  controller: GPUs of Sluice's server ──▶ ResourceSlices ──▶ scheduler allocates claims
//!  kubelet ── NodePrepareResources ──▶ driver: lease, `sluice hold`, CDI device ──▶ containers
//!  kubelet ── NodeUnprepareResources ──▶ driver: lease ended, files removed
//! ```
//! Two parts decide: the scheduler by what the slices say, and Sluice's server, which has the last
//! word. Where the server has no room, a claim is not prepared yet, and the pod's event has the
//! server's reason. Both requests of the kubelet can be repeated at any time.

mod claim;
pub(crate) mod devices;
mod lease;
pub(crate) mod messages;
mod prepared;
#[cfg(test)]
pub(crate) mod tests;

use std::convert::Infallible;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use messages::{
    ClaimName, InfoRequest, KIND, PluginInfo, PrepareRequest, PrepareResponse, PreparedClaim,
    RegistrationStatus, RegistrationStatusResponse, SERVICE, UnprepareRequest, UnprepareResponse,
    UnpreparedClaim,
};
use prepared::Driver;

use crate::ApiArguments;

/// The name of the driver, and of the device class of all its devices.
pub(crate) const DRIVER: &str = "gpu.sluice.dev";
/// The version of the parameters that claims and classes may have.
const API_VERSION: &str = "gpu.sluice.dev/v1alpha1";

/// The generated services, each with its client and its server. A driver needs one half of each;
/// the tests' kubelet needs the other.
#[allow(dead_code, unreachable_pub, clippy::all)]
mod services {
    include!(concat!(env!("OUT_DIR"), "/pluginregistration.Registration.rs"));
    include!(concat!(env!("OUT_DIR"), "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin.rs"));
}

/// The socket by which the kubelet finds the driver. The kubelet's requests there have the encoded
/// path of the socket as their authority (`:authority` of HTTP/2), where the parser of ours takes
/// `%` in the part before an `@` only.
const REGISTRATION: &str = "gpu.sluice.dev@reg.sock";
/// A claim whose lease is not granted in this time is not prepared: the kubelet waits for 45 s, and
/// asks again.
const GRANT_TIME_MAX: Duration = Duration::from_secs(25);
/// Claims without a pod, and leases that wait, are looked at this often: the server drops a lease
/// that nothing asks for after 20 s.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Prepare claims of this machine's pods, as a driver of its kubelet
#[derive(Debug, Args)]
pub(crate) struct DriverArguments {
    /// Sluice's server, as this machine reaches it
    #[arg(long, value_name = "URL")]
    server: String,

    /// The file with the token for Sluice's server; it is read again when the token is refused
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,

    /// The tenant of a namespace; claims of other namespaces have the token's own
    #[arg(long = "tenant", value_name = "NAMESPACE=TENANT", value_parser = crate::assignment)]
    tenants: Vec<(String, String)>,

    /// Have toolkits hand over PTX, for pools of software GPUs
    #[arg(long)]
    ptx: bool,

    /// The folder for the driver's socket, claims and libraries; it has the same path on the
    /// machine
    #[arg(long, value_name = "FOLDER", default_value = "/var/lib/kubelet/plugins/gpu.sluice.dev")]
    folder: PathBuf,

    /// The folder in which the kubelet looks for plugins
    #[arg(long, value_name = "FOLDER", default_value = "/var/lib/kubelet/plugins_registry")]
    registry: PathBuf,

    /// The folder in which container runtimes look for CDI devices
    #[arg(long, value_name = "FOLDER", default_value = "/var/run/cdi")]
    cdi: PathBuf,

    /// The program `sluice`, which holds leases
    #[arg(long, value_name = "FILE", default_value = "/usr/bin/sluice")]
    sluice: PathBuf,

    #[command(flatten)]
    api: ApiArguments,
}

/// Serves the kubelet until the process is asked to end.
pub(crate) fn run(arguments: DriverArguments) -> Result<()> {
    let api = arguments.api.open()?;
    let client = crate::client(&arguments.server, &arguments.token_file)?;
    let driver = Driver {
        cluster: crate::cluster(&api)?,
        api,
        client,
        server: arguments.server,
        tenants: arguments.tenants.into_iter().collect(),
        ptx: arguments.ptx,
        folder: arguments.folder.clone(),
        cdi: arguments.cdi,
        sluice: arguments.sluice,
        grant_time_max: GRANT_TIME_MAX,
        entries: Default::default(),
    };
    let mut folder = std::fs::DirBuilder::new();
    let made = folder.recursive(true).mode(0o750).create(&arguments.folder);
    made.with_context(|| format!("--folder {}", arguments.folder.display()))?;
    let driver = Arc::new(driver);
    driver.take_up();
    let tended = Arc::clone(&driver);
    crate::spawn("claims", move || {
        loop {
            tended.tend();
            std::thread::sleep(LOOK_EVERY);
        }
    })?;
    let served = crate::serve(serve(Arc::clone(&driver), &arguments.folder, &arguments.registry));
    driver.stop_holders();
    served
}

/// Serves the driver's socket, and that of the registration, by which the kubelet finds the former.
async fn serve(driver: Arc<Driver>, folder: &Path, registry: &Path) -> Result<Infallible> {
    let socket = folder.join("dra.sock");
    let registration = registry.join(REGISTRATION);
    let (refusals, mut refused) = mpsc::channel(1);
    let endpoint = socket.to_str().context("--folder is no text")?.to_owned();
    let plugin = services::d_r_a_plugin_server::DRAPluginServer::new(Plugin(driver));
    let registrar = services::registration_server::RegistrationServer::new(Registrar { endpoint, refusals });
    // The kubelet calls as soon as it sees the second socket.
    let (plugin_socket, registrar_socket) = (listen(&socket)?, listen(&registration)?);
    tokio::select! {
        served = Server::builder().add_service(plugin).serve_with_incoming(plugin_socket) => {
            served.with_context(|| socket.display().to_string())?;
        }
        served = Server::builder().add_service(registrar).serve_with_incoming(registrar_socket) => {
            served.with_context(|| registration.display().to_string())?;
        }
        Some(why) = refused.recv() => bail!("the kubelet does not take the driver: {why}"),
    }
    bail!("a socket is served no more")
}

fn listen(socket: &Path) -> Result<UnixListenerStream> {
    // What an earlier process has left; no process listens there.
    let _ = std::fs::remove_file(socket);
    let listener = UnixListener::bind(socket).with_context(|| socket.display().to_string())?;
    Ok(UnixListenerStream::new(listener))
}

type Answer<T> = Result<Response<T>, Status>;

/// What the kubelet asks to find the driver.
struct Registrar {
    endpoint: String,
    /// Takes the reason why the kubelet does not use the driver.
    refusals: mpsc::Sender<String>,
}

#[tonic::async_trait]
impl services::registration_server::Registration for Registrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Answer<PluginInfo> {
        Ok(Response::new(PluginInfo {
            kind: KIND.into(),
            name: DRIVER.into(),
            endpoint: self.endpoint.clone(),
            supported_versions: vec![SERVICE.into()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Answer<RegistrationStatusResponse> {
        let RegistrationStatus { plugin_registered, error } = request.into_inner();
        if plugin_registered {
            eprintln!("sluice-kubernetes: registered with the kubelet");
        } else {
            // The process ends with the first; it has no use for others.
            let _ = self.refusals.try_send(error);
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

/// What the kubelet asks for pods.
struct Plugin(Arc<Driver>);

#[tonic::async_trait]
impl services::d_r_a_plugin_server::DRAPlugin for Plugin {
    async fn node_prepare_resources(&self, request: Request<PrepareRequest>) -> Answer<PrepareResponse> {
        let mut response = PrepareResponse::default();
        // All at once: the kubelet waits for the answer no longer for several claims than for one.
        let start = |name: ClaimName| {
            let (driver, uid) = (Arc::clone(&self.0), name.uid.clone());
            (uid, tokio::task::spawn_blocking(move || driver.prepare(&name)))
        };
        let started: Vec<_> = request.into_inner().claims.into_iter().map(start).collect();
        for (uid, prepared) in started {
            let prepared =
                prepared.await.unwrap_or_else(|_| Err("the driver failed; its log says where".to_owned()));
            let prepared = match prepared {
                Ok(devices) => PreparedClaim { devices, error: String::new() },
                Err(error) => PreparedClaim { devices: Vec::new(), error },
            };
            response.claims.insert(uid, prepared);
        }
        Ok(Response::new(response))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<UnprepareRequest>,
    ) -> Answer<UnprepareResponse> {
        let mut response = UnprepareResponse::default();
        for name in request.into_inner().claims {
            let (driver, uid) = (Arc::clone(&self.0), name.uid.clone());
            let ended = tokio::task::spawn_blocking(move || driver.unprepare(&name.uid)).await;
            let ended = ended.unwrap_or_else(|_| Err("the driver failed; its log says where".to_owned()));
            response.claims.insert(uid, UnpreparedClaim { error: ended.err().unwrap_or_default() });
        }
        Ok(Response::new(response))
    }
}

//! The device plugin: makes `sluice.dev/gpu` a resource of each machine, also of machines without a
//! GPU.
//!
//! ```text
//!  kubelet ◀── Register ── plugin: socket in the kubelet's folder
//!  kubelet ── ListAndWatch ──▶ slots; unhealthy while Sluice's server cannot be reached
//!  kubelet ── Allocate ──▶ nothing to mount: the webhook and the lease have done that
//! ```
//! A slot stands for one GPU of a lease, wherever the GPU is. With slots the scheduler places pods
//! only on machines that reach the server, quotas of namespaces count leases, and a pod that names
//! the resource does not start where Sluice is not installed.

mod messages;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use futures_util::Stream;
use sluice_api::client::ServerUrl;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::{UnixListenerStream, WatchStream};
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status};

use messages::{
    AllocateRequest, AllocateResponse, ContainerAllocateResponse, Device, DevicePluginOptions, Empty,
    HEALTHY, ListAndWatchResponse, PreStartContainerRequest, PreStartContainerResponse,
    PreferredAllocationRequest, PreferredAllocationResponse, RegisterRequest, UNHEALTHY, VERSION,
};

use crate::ask::GPU;

/// The generated services, each with its client and its server. A plugin needs one half of each;
/// the tests' kubelet needs the other.
#[allow(dead_code, unreachable_pub, clippy::all)]
mod services {
    include!(concat!(env!("OUT_DIR"), "/v1beta1.Registration.rs"));
    include!(concat!(env!("OUT_DIR"), "/v1beta1.DevicePlugin.rs"));
}

/// The names of the sockets, in one folder.
const OWN_SOCKET: &str = "sluice.sock";
const KUBELET_SOCKET: &str = "kubelet.sock";
/// The pause between two looks at the sockets and the server.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A server that does not answer within this time cannot be reached.
const SERVER_TIME_MAX: Duration = Duration::from_secs(5);

/// Make sluice.dev/gpu a resource of this machine, as a device plugin of its kubelet
#[derive(Debug, Args)]
pub(crate) struct PluginArguments {
    /// Sluice's server, as pods of this machine reach it
    #[arg(long, value_name = "URL")]
    server: String,

    /// The GPUs that leases of this machine's pods have at most
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1024))]
    slots: u32,

    /// The folder of the kubelet's socket for device plugins
    #[arg(long, value_name = "FOLDER", default_value = "/var/lib/kubelet/device-plugins")]
    folder: PathBuf,
}

/// Serves kubelets, one after the other, until the process ends.
pub(crate) async fn run(arguments: PluginArguments) -> Result<Infallible> {
    let PluginArguments { server, slots, folder } = arguments;
    let is_reached = follow_server(&server)?;
    loop {
        serve_kubelet(&folder, slots, is_reached.clone()).await?;
        eprintln!("sluice-kubernetes: the kubelet has started again");
    }
}

/// Whether the server answers, looked at again and again in a thread.
fn follow_server(url: &str) -> Result<watch::Receiver<bool>> {
    let url: ServerUrl =
        url.parse().map_err(|_| anyhow::anyhow!("--server {url:?} is not the URL of a server"))?;
    let config = ureq::Agent::config_builder().timeout_global(Some(SERVER_TIME_MAX)).max_redirects(0).build();
    let agent = url.agent(config).map_err(anyhow::Error::msg)?;
    let (sender, receiver) = watch::channel(false);
    let look = move || {
        while !sender.is_closed() {
            let answer = agent.get(format!("{}/healthz", url.base)).call();
            let is_reached = answer.is_ok();
            if sender.send_if_modified(|before| std::mem::replace(before, is_reached) != is_reached) {
                match answer {
                    Ok(_) => eprintln!("sluice-kubernetes: the server is reached"),
                    Err(error) => eprintln!("sluice-kubernetes: the server is not reached: {error}"),
                }
            }
            std::thread::sleep(LOOK_EVERY);
        }
    };
    std::thread::Builder::new().name("server".into()).spawn(look).context("a thread")?;
    Ok(receiver)
}

/// Registers with the kubelet, and serves it until one of the two sockets is another one or gone:
/// a kubelet that starts empties the folder, and wants plugins to register again.
async fn serve_kubelet(folder: &Path, slots: u32, is_reached: watch::Receiver<bool>) -> Result<()> {
    let (own, kubelet) = (folder.join(OWN_SOCKET), folder.join(KUBELET_SOCKET));
    let place = || own.display().to_string();
    // What an earlier process has left; no process listens there.
    let _ = std::fs::remove_file(&own);
    let incoming = UnixListenerStream::new(UnixListener::bind(&own).with_context(place)?);
    let sockets = || (inode(&own), inode(&kubelet));
    let at_start = sockets();
    let is_replaced = async {
        while sockets() == at_start {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    let plugin = services::device_plugin_server::DevicePluginServer::new(Plugin { slots, is_reached });
    tokio::select! {
        served = Server::builder().add_service(plugin).serve_with_incoming(incoming) => {
            served.with_context(place)
        }
        () = is_replaced => Ok(()),
        never = keep_registering(&kubelet) => match never {},
    }
}

/// Registers once the kubelet answers, and then does nothing.
async fn keep_registering(kubelet: &Path) -> Infallible {
    let mut said = String::new();
    while let Err(error) = register(kubelet).await {
        let problem = format!("{error:#}");
        if problem != said {
            eprintln!("sluice-kubernetes: {}: {problem}; trying again", kubelet.display());
            said = problem;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    eprintln!("sluice-kubernetes: registered with the kubelet");
    std::future::pending().await
}

async fn register(kubelet: &Path) -> Result<()> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", kubelet.display()))?;
    let mut client = services::registration_client::RegistrationClient::new(endpoint.connect().await?);
    let request = RegisterRequest {
        version: VERSION.into(),
        endpoint: OWN_SOCKET.into(),
        resource_name: GPU.into(),
        options: Some(DevicePluginOptions::default()),
    };
    client.register(request).await.map(drop).map_err(|status| anyhow::anyhow!("{}", status.message()))
}

/// The file behind a path.
fn inode(path: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    path.metadata().ok().map(|metadata| metadata.ino())
}

/// What the kubelet asks.
struct Plugin {
    slots: u32,
    is_reached: watch::Receiver<bool>,
}

impl Plugin {
    fn devices(slots: u32, is_reached: bool) -> ListAndWatchResponse {
        let health = if is_reached { HEALTHY } else { UNHEALTHY };
        let device = |number: u32| Device { id: format!("slot-{number}"), health: health.into() };
        ListAndWatchResponse { devices: (0..slots).map(device).collect() }
    }
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl services::device_plugin_server::DevicePlugin for Plugin {
    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn get_device_plugin_options(&self, _: Request<Empty>) -> Answer<DevicePluginOptions> {
        Ok(Response::new(DevicePluginOptions::default()))
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Answer<Self::ListAndWatchStream> {
        let slots = self.slots;
        let lists = WatchStream::new(self.is_reached.clone());
        Ok(Response::new(Box::pin(lists.map(move |is_reached| Ok(Plugin::devices(slots, is_reached))))))
    }

    async fn allocate(&self, request: Request<AllocateRequest>) -> Answer<AllocateResponse> {
        let containers = request.into_inner().container_requests;
        let unknown = containers.iter().flat_map(|container| &container.devices_ids).find(|id| {
            let number = id.strip_prefix("slot-").and_then(|number| number.parse::<u32>().ok());
            number.is_none_or(|number| number >= self.slots)
        });
        if let Some(id) = unknown {
            return Err(Status::not_found(format!("{id} is none of {} slots", self.slots)));
        }
        let container_responses = containers.iter().map(|_| ContainerAllocateResponse {}).collect();
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn get_preferred_allocation(
        &self,
        _: Request<PreferredAllocationRequest>,
    ) -> Answer<PreferredAllocationResponse> {
        Err(Status::unimplemented("all slots are alike"))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Answer<PreStartContainerResponse> {
        Err(Status::unimplemented("nothing is to be done before a container starts"))
    }
}

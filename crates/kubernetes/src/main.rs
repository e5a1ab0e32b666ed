//! Sluice in a Kubernetes cluster: a pod on any node gets a share of a GPU elsewhere.
//!
//! ```text
//!  kubectl apply ──▶ API server ──▶ webhook: gate, sidecar, libraries ──▶ gated pod
//!  controller: lease from Sluice's server ──▶ Secret, gate lifted
//!  `sluice hold` in the pod: claims the lease on its node
//! ```
//! Webhook and controller are one process; it keeps nothing on disk and may be restarted at any
//! time. The device plugin and the driver for dynamic resource allocation, which a cluster need not
//! have, are processes on each machine.

mod api;
mod ask;
mod certificate;
mod controller;
mod dra;
mod events;
mod inject;
mod name;
mod plugin;
mod pods;
mod readiness;
mod step;
mod webhook;

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::channel;

use anyhow::{Context, Result, anyhow};
use clap::{Args, Parser, Subcommand};
use sluice_api::client::Client;
use tokio::signal::unix::{SignalKind, signal};

use crate::api::Api;
use crate::ask::Alias;
use crate::certificate::Certificate;
use crate::controller::Controller;
use crate::readiness::Readiness;

/// The time from grant to claim unless said: it has to be enough to pull images.
const HOLD_S: u64 = 600;

/// Sluice in a Kubernetes cluster
#[derive(Debug, Parser)]
#[command(name = "sluice-kubernetes", version)]
struct CommandLine {
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, Subcommand)]
enum Part {
    Controller(Box<ControllerArguments>),
    DevicePlugin(plugin::PluginArguments),
    DraDriver(Box<dra::DriverArguments>),
}

/// Give pods shares of GPUs: an admission webhook and a controller
#[derive(Debug, Args)]
struct ControllerArguments {
    /// Sluice's server, as this process and pods reach it
    #[arg(long, value_name = "URL")]
    server: String,

    /// The file with the token for Sluice's server; it is read again when the token is refused
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,

    /// The tenant of a namespace; pods of other namespaces have the token's own
    #[arg(long = "tenant", value_name = "NAMESPACE=TENANT", value_parser = assignment)]
    tenants: Vec<(String, String)>,

    /// The image with `sluice`, for the sidecar of each pod
    #[arg(long, value_name = "IMAGE")]
    image: String,

    /// When the sidecar's image is pulled: Always, IfNotPresent or Never
    #[arg(long, value_name = "POLICY")]
    pull_policy: Option<String>,

    /// Also read these products' resources and annotations
    #[arg(long = "alias", value_name = "PRODUCT")]
    aliases: Vec<Alias>,

    /// Have toolkits hand over PTX, for pools of software GPUs
    #[arg(long)]
    ptx: bool,

    /// Have each pod take slots of the device plugin of its machine
    #[arg(long)]
    device_plugin: bool,

    /// Where the webhook listens
    #[arg(long, value_name = "ADDR", default_value = "[::]:9443")]
    listen: SocketAddr,

    /// The host names of the webhook's certificate
    #[arg(long = "host", value_name = "NAME", default_value = "sluice-webhook")]
    hosts: Vec<String>,

    /// The MutatingWebhookConfiguration to write the certificate into
    #[arg(long, value_name = "NAME", default_value = "sluice")]
    webhook_configuration: String,

    /// The namespace of this process: there the API server is asked to try the webhook, which is
    /// not ready before. Without it, the webhook is ready once its certificate is written
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,

    /// Seconds that a granted lease waits for its pod to start
    #[arg(long, value_name = "SECONDS", default_value_t = HOLD_S, value_parser = clap::value_parser!(u64).range(1..=3600))]
    hold: u64,

    /// Publish GPUs as devices for dynamic resource allocation
    #[arg(long)]
    dra: bool,

    /// A label of the machines with the driver for dynamic resource allocation; all unless said
    #[arg(long = "dra-machine", value_name = "LABEL=VALUE", value_parser = assignment, requires = "dra")]
    dra_machines: Vec<(String, String)>,

    #[command(flatten)]
    api: ApiArguments,
}

/// Which API server
#[derive(Debug, Args)]
struct ApiArguments {
    /// The API server; the cluster of this pod unless said
    #[arg(long, value_name = "URL", requires_all = ["api_token_file", "api_authority"])]
    api_server: Option<String>,

    /// The token for --api-server
    #[arg(long, value_name = "FILE")]
    api_token_file: Option<PathBuf>,

    /// The authority of --api-server's certificate
    #[arg(long, value_name = "FILE")]
    api_authority: Option<PathBuf>,
}

impl ApiArguments {
    fn open(&self) -> Result<Api> {
        let api = match (&self.api_server, &self.api_authority, &self.api_token_file) {
            (Some(url), Some(authority), Some(token)) => Api::new(url, authority, token),
            _ => Api::in_cluster(),
        };
        api.map_err(anyhow::Error::msg)
    }
}

fn assignment(text: &str) -> Result<(String, String), String> {
    let expected = || format!("{text:?} is not NAMESPACE=TENANT");
    text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned())).ok_or_else(expected)
}

fn main() -> ExitCode {
    let served = match CommandLine::parse().part {
        Part::Controller(arguments) => control(*arguments),
        Part::DraDriver(arguments) => dra::run(*arguments),
        Part::DevicePlugin(arguments) => serve(plugin::run(arguments)),
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sluice-kubernetes: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Serves until it fails, or until the process gets SIGTERM. The first process of a container has
/// to handle that itself: the kernel ends it by no signal that it does not handle.
fn serve(service: impl Future<Output = Result<Infallible>>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let served = runtime.block_on(async {
        let mut end = signal(SignalKind::terminate())?;
        tokio::select! {
            served = service => served.map(|never| match never {}),
            _ = end.recv() => Ok(()),
        }
    });
    // Requests that are being answered may take long, and can be repeated.
    runtime.shutdown_background();
    served
}

fn control(arguments: ControllerArguments) -> Result<()> {
    let api = arguments.api.open()?;
    let Certificate { tls, authority } = Certificate::make(arguments.hosts.clone())?;
    let readiness = Readiness::new().context("a random number")?;
    let (kept, announcing) = (readiness.clone(), api.clone());
    let (configuration, namespace) = (arguments.webhook_configuration.clone(), arguments.namespace.clone());
    spawn("readiness", move || kept.keep(&announcing, &authority, &configuration, namespace.as_deref()))?;

    let client = client(&arguments.server, &arguments.token_file)?;
    if arguments.dra {
        let machines = arguments.dra_machines.clone();
        let publisher = dra::devices::Publisher { api: api.clone(), client: client.clone(), machines };
        spawn("devices", move || publisher.run())?;
    }
    let watching = client.clone();
    let controller = Controller::new(api.clone(), client, settings(&api, &arguments)?);
    let aliases = arguments.aliases.clone();
    let (news, receiver) = channel();
    let leases = news.clone();
    spawn("leases", move || controller::follow_leases(&watching, &leases))?;
    spawn("pods", move || pods::follow(&api, &aliases, &news))?;
    // Without a controller the process has to be restarted: its pods would wait for ever.
    spawn("controller", move || {
        let Err(error) = controller.run(&receiver);
        eprintln!("sluice-kubernetes: {error}");
        std::process::exit(1)
    })?;

    let injection = inject::Settings {
        image: arguments.image,
        pull_policy: arguments.pull_policy,
        aliases: arguments.aliases,
        ptx: arguments.ptx,
        device_plugin: arguments.device_plugin,
    };
    serve(webhook::serve(arguments.listen, tls, injection, readiness))
}

fn client(server: &str, token_file: &Path) -> Result<Client> {
    let file = token_file.to_owned();
    let read = move || std::fs::read_to_string(&file).map(|text| text.trim().to_owned());
    let token = read().with_context(|| format!("--token-file {}", token_file.display()))?;
    Ok(Client::new(server, &token).renewing(move || read().ok()))
}

/// What tells this cluster from others: by convention the uid of one namespace.
fn cluster(api: &Api) -> Result<String> {
    let namespace = api.get("/api/v1/namespaces/kube-system").context("which cluster this is")?;
    let uid = namespace["metadata"]["uid"].as_str().context("the namespace kube-system has no uid")?;
    Ok(uid.to_owned())
}

fn settings(api: &Api, arguments: &ControllerArguments) -> Result<controller::Settings> {
    Ok(controller::Settings {
        cluster: cluster(api)?,
        server: arguments.server.clone(),
        tenants: arguments.tenants.iter().cloned().collect::<HashMap<_, _>>(),
        hold_ms: arguments.hold * 1000,
    })
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    let thread = std::thread::Builder::new().name(name.into()).spawn(run);
    thread.map(drop).map_err(|error| anyhow!("a thread: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_ends_when_the_process_is_asked_to_end() {
        let service = async {
            let asked = std::process::Command::new("kill").arg(std::process::id().to_string()).status();
            assert!(asked.unwrap().success());
            std::future::pending().await
        };
        serve(service).unwrap();
    }
}

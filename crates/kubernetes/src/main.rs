//! Sluice in a Kubernetes cluster: a pod on any node gets a share of a GPU elsewhere.
//!
//! ```text
//!  kubectl apply ──▶ API server ──▶ webhook: gate, sidecar, libraries ──▶ gated pod
//!  controller: lease from Sluice's server ──▶ Secret, gate lifted
//!  `sluice hold` in the pod: claims the lease on its node
//! ```
//! Webhook and controller are one process; it keeps nothing on disk and may be restarted at any
//! time.

mod api;
mod ask;
mod certificate;
mod controller;
mod events;
mod inject;
mod name;
mod pods;
mod step;
mod webhook;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::Parser;
use sluice_api::client::Client;

use crate::api::Api;
use crate::ask::Alias;
use crate::certificate::{Authority, Certificate};
use crate::controller::Controller;

/// The webhook's configuration is compared this often.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(5);
/// The time from grant to claim unless said: it has to be enough to pull images.
const HOLD_S: u64 = 600;

/// Give pods shares of GPUs: an admission webhook and a controller
#[derive(Debug, Parser)]
#[command(name = "sluice-kubernetes", version)]
struct Arguments {
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

    /// Where the webhook listens
    #[arg(long, value_name = "ADDR", default_value = "[::]:9443")]
    listen: SocketAddr,

    /// The host names of the webhook's certificate
    #[arg(long = "host", value_name = "NAME", default_value = "sluice-webhook")]
    hosts: Vec<String>,

    /// The MutatingWebhookConfiguration to write the certificate into
    #[arg(long, value_name = "NAME", default_value = "sluice")]
    webhook_configuration: String,

    /// Seconds that a granted lease waits for its pod to start
    #[arg(long, value_name = "SECONDS", default_value_t = HOLD_S, value_parser = clap::value_parser!(u64).range(1..=3600))]
    hold: u64,

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

fn assignment(text: &str) -> Result<(String, String), String> {
    let expected = || format!("{text:?} is not NAMESPACE=TENANT");
    text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned())).ok_or_else(expected)
}

fn main() -> ExitCode {
    let Err(error) = run(Arguments::parse());
    eprintln!("sluice-kubernetes: {error:#}");
    ExitCode::FAILURE
}

fn run(arguments: Arguments) -> Result<std::convert::Infallible> {
    let api = match (&arguments.api_server, &arguments.api_authority, &arguments.api_token_file) {
        (Some(url), Some(authority), Some(token)) => Api::new(url, authority, token),
        _ => Api::in_cluster(),
    };
    let api = api.map_err(anyhow::Error::msg)?;
    let Certificate { tls, authority } = Certificate::make(arguments.hosts.clone())?;
    keep_announced(api.clone(), authority, arguments.webhook_configuration.clone())?;

    let controller = Controller::new(api.clone(), client(&arguments)?, settings(&api, &arguments)?);
    let aliases = arguments.aliases.clone();
    let (news, receiver) = channel();
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
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(webhook::serve(arguments.listen, tls, injection))
}

fn client(arguments: &Arguments) -> Result<Client> {
    let file = arguments.token_file.clone();
    let read = move || std::fs::read_to_string(&file).map(|text| text.trim().to_owned());
    let token = read().with_context(|| format!("--token-file {}", arguments.token_file.display()))?;
    Ok(Client::new(&arguments.server, &token).renewing(move || read().ok()))
}

fn settings(api: &Api, arguments: &Arguments) -> Result<controller::Settings> {
    // The uid of this namespace is what tells clusters apart by convention.
    let namespace = api.get("/api/v1/namespaces/kube-system").context("which cluster this is")?;
    let cluster = namespace["metadata"]["uid"].as_str().context("the namespace kube-system has no uid")?;
    Ok(controller::Settings {
        cluster: cluster.to_owned(),
        server: arguments.server.clone(),
        tenants: arguments.tenants.iter().cloned().collect::<HashMap<_, _>>(),
        hold_ms: arguments.hold * 1000,
    })
}

/// Keeps the webhook's certificate in its configuration, in a thread of its own.
fn keep_announced(api: Api, authority: Authority, configuration: String) -> Result<()> {
    spawn("announce", move || {
        let mut said = String::new();
        loop {
            let problem = authority.announce(&api, &configuration).err().map(|error| error.to_string());
            if let Some(problem) = problem.filter(|problem| *problem != said) {
                eprintln!("sluice-kubernetes: {problem}");
                said = problem;
            }
            std::thread::sleep(ANNOUNCE_EVERY);
        }
    })
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    let thread = std::thread::Builder::new().name(name.into()).spawn(run);
    thread.map(drop).map_err(|error| anyhow!("a thread: {error}"))
}

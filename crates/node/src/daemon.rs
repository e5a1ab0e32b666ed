//! The daemon: listens, accepts, and gives each connection a thread.
//!
//! Connections are few and long (one per client process and one per lease), so a blocking thread
//! each is the simplest thing that works; a session's thread only waits for its worker.

mod going_on;
mod handover;
mod listener;

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sluice_metrics::Exporter;
use sluice_transport::admission::Source;
use sluice_wire::control::Status;

use sluice_worker_link::link::Driver;

use crate::admission::Places;
use crate::clock::SystemClock;
use crate::config::{Listen, NextProgram, NodeConfig, WorkerCommand};
use crate::connection::{self, HELLO_PATIENCE};
use crate::facts;
use crate::health;
use crate::inventory::{Inventory, InventoryError, take_inventory};
use crate::join::{Agent, JoinError, gpus};
use crate::measure;
use crate::metrics::{self, NodeMetrics};
use crate::registry::{self, Registry};
use crate::silent::{self, Accepted, Silent};
use crate::spawn::{Forks, Spawner};
use crate::strangers::Kind;
use crate::swap_space::{SwapFileError, SwapSpace};
use crate::upgrade::RestoreError;

pub(crate) use self::listener::{SavedListener, name_of as listen_name};

pub use self::handover::READY;

use self::going_on::GoingOn;
use self::listener::{Listener, bind_nearby};

/// A node that is bound to its addresses.
#[derive(Debug)]
pub struct Node {
    /// As asked for, in this order, and behind them the one for programs of this machine.
    listeners: Vec<Listener>,
    asked: Vec<Listen>,
    registry: Arc<Registry>,
    places: Arc<Places>,
    stop: Arc<OwnedFd>,
    upgrade: Arc<OwnedFd>,
    /// What this daemon runs when it is upgraded.
    next_program: Option<NextProgram>,
    spawner: Spawner,
    /// Until it runs.
    forks: Option<Forks>,
    /// What the program before this one has left.
    going_on: GoingOn,
    /// To watch the GPUs' health with, and through what.
    watcher: Option<(WorkerCommand, PathBuf)>,
    /// Speaks to the server that this node has joined.
    agent: Option<Agent>,
    /// Serves metrics for as long as the node lives.
    metrics: Option<Exporter>,
}

/// Why a node does not start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error(transparent)]
    Inventory(#[from] InventoryError),
    #[error("cannot listen on {address}: {source}")]
    Listen { address: String, source: io::Error },
    #[error("{0} is for TLS, and there is no certificate")]
    NoCertificate(String),
    #[error("a node listens there already: {}", .0.display())]
    InUse(PathBuf),
    #[error("cannot join: {0}")]
    Join(#[from] JoinError),
    #[error(transparent)]
    SwapFile(#[from] SwapFileError),
    #[error("cannot take over from the program before this one: {0}")]
    Restore(#[from] RestoreError),
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}

/// Ends a node from another thread; its sessions end with it.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<OwnedFd>);

impl Stopper {
    pub fn stop(&self) {
        ring(&self.0);
    }
}

/// Has a node run its next program, which continues with all leases and sessions.
#[derive(Clone, Debug)]
pub struct Upgrader(Arc<OwnedFd>);

impl Upgrader {
    /// Asks for it. The log says what becomes of that.
    pub fn upgrade(&self) {
        ring(&self.0);
    }
}

fn new_bell() -> io::Result<Arc<OwnedFd>> {
    // SAFETY: plain system call; the result is checked before it is used.
    let bell = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if bell < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and has no other owner.
    Ok(Arc::new(unsafe { OwnedFd::from_raw_fd(bell) }))
}

fn ring(bell: &OwnedFd) {
    let one = 1_u64.to_ne_bytes();
    // SAFETY: writes eight bytes to an event counter that is open.
    unsafe { libc::write(bell.as_raw_fd(), one.as_ptr().cast(), one.len()) };
}

/// It rings no more.
fn silence(bell: &OwnedFd) {
    let mut count = [0_u8; 8];
    // SAFETY: reads eight bytes of an event counter that is open, and does not wait for one.
    unsafe { libc::read(bell.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
}

impl Node {
    /// Finds the GPUs and binds the addresses; no client is served before [`Node::run`].
    pub fn bind(config: &NodeConfig) -> Result<Node, NodeError> {
        // Each session has several descriptors, and what sessions share has one each.
        sluice_transport::raise_descriptor_limit();
        let mut listeners = config
            .listen
            .iter()
            .map(|listen| Listener::bind(listen, config.tls.as_ref()))
            .collect::<Result<Vec<_>, _>>()?;
        let inventory = take_inventory(&config.gpus, &config.worker)?;
        let library = health::library(config, &inventory);
        let is_software = matches!(inventory.driver, Driver::Software { .. });
        let (spawner, forks) = Spawner::new(config.worker.clone(), is_software);
        let swap = SwapSpace::open(registry::swap_memory(config), config.swap_file.as_ref())?;
        let overcommit = registry::overcommit_of(config, &swap);
        if let Some(overcommit) = &overcommit {
            overcommit.shortages(&inventory.cards).for_each(|text| tracing::warn!("{text}"));
        }
        let first = listeners.first().and_then(|listener| Some((listener, listener.endpoint()?)));
        let agent = config
            .join
            .as_ref()
            .zip(first)
            .map(|(join, (listener, endpoint))| {
                let facts = facts::of(&inventory, library.as_deref(), &config.worker);
                let measured = measure::rates(&inventory, &config.worker, &join.folder);
                let mut gpus = gpus(&inventory.snapshots, &facts, &measured, join.gflops);
                if let Some(overcommit) = &overcommit {
                    let leasable = overcommit.leasable(&inventory.cards);
                    gpus.iter_mut().zip(leasable).for_each(|(gpu, bytes)| gpu.memory_leasable = bytes);
                }
                let oddities = gpus.iter().enumerate().filter_map(|(index, gpu)| measure::oddity(index, gpu));
                oddities.for_each(|oddity| tracing::warn!("{oddity}"));
                Agent::join(join, gpus, &endpoint, listener.identity())
            })
            .transpose()?;
        let membership = agent.as_ref().map(|agent| Arc::clone(agent.membership()));
        let clock = Arc::new(SystemClock::new());
        let mut registry = Registry::new(config, inventory, (spawner.clone(), swap), membership, clock);
        if listeners.iter().any(|listener| matches!(listener, Listener::Tcp { .. })) {
            let (listener, name) = bind_nearby()?;
            registry.nearby = Some(name);
            listeners.push(listener);
        }
        let (registry, places) = (Arc::new(registry), Places::new(config.connections_max));
        let metrics = serve_metrics(config, &registry, &places, &listeners).transpose()?;
        Ok(Node {
            listeners,
            asked: config.listen.clone(),
            registry,
            places,
            stop: new_bell()?,
            upgrade: new_bell()?,
            next_program: config.next_program.clone(),
            spawner,
            forks: Some(forks),
            going_on: GoingOn::default(),
            watcher: library.map(|library| (config.worker.clone(), library)),
            agent,
            metrics,
        })
    }

    /// Where clients reach the node, with the real port: texts of [`Endpoint`].
    pub fn addresses(&self) -> Vec<String> {
        self.listeners.iter().filter_map(Listener::endpoint).map(|endpoint| endpoint.to_string()).collect()
    }

    /// Where its metrics are served, if they are.
    pub fn metrics_url(&self) -> Option<String> {
        self.metrics.as_ref().map(Exporter::url)
    }

    pub fn inventory(&self) -> &Inventory {
        self.registry.inventory()
    }

    /// What this node does now.
    pub fn status(&self) -> Status {
        self.registry.status()
    }

    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.stop))
    }

    pub fn upgrader(&self) -> Upgrader {
        Upgrader(Arc::clone(&self.upgrade))
    }

    /// Serves until [`Stopper::stop`]. The calling thread starts the workers, so it has to be the
    /// process's first one where the node is to be upgraded.
    pub fn run(mut self) -> Result<(), NodeError> {
        let Some(forks) = self.forks.take() else { return Ok(()) };
        let serving = move || {
            // However serving ends, the thread that forks is free.
            let _ending = Ending(self.spawner.clone());
            self.serve_to_end()
        };
        let serving = std::thread::Builder::new().name("connections".into()).spawn(serving)?;
        forks.serve();
        // A panic of the thread continues here.
        serving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    fn serve_to_end(mut self) -> Result<(), NodeError> {
        let reporting = self.agent.take().map(|agent| self.start_agent(agent)).transpose()?;
        self.serve()?;
        self.registry.end_all();
        if let Some(reporting) = reporting {
            self.registry.stop_reporting();
            let _ = reporting.join();
        }
        Ok(())
    }

    fn start_agent(&self, agent: Agent) -> io::Result<JoinHandle<()>> {
        let registry = Arc::clone(&self.registry);
        let (moves, own) = (Arc::clone(&self.registry), agent.address());
        std::thread::Builder::new().name("moves".into()).spawn(move || moves.carry_out_moves(&own))?;
        std::thread::Builder::new().name("agent".into()).spawn(move || agent.run(&registry))
    }

    fn serve(&mut self) -> Result<(), NodeError> {
        let registry = Arc::clone(&self.registry);
        std::thread::Builder::new().name("turns".into()).spawn(move || registry.turns.keep_time())?;
        let registry = Arc::clone(&self.registry);
        std::thread::Builder::new().name("meter".into()).spawn(move || registry.meter())?;
        if self.registry.overcommits {
            let registry = Arc::clone(&self.registry);
            std::thread::Builder::new().name("residency".into()).spawn(move || registry.keep_residency())?;
        }
        if let Some(seed) = self.registry.churn {
            let registry = Arc::clone(&self.registry);
            std::thread::Builder::new().name("churn".into()).spawn(move || registry.churn(seed))?;
        }
        if let Some((worker, library)) = self.watcher.clone() {
            let registry = Arc::clone(&self.registry);
            let watch = move || health::watch(&registry, &worker, &library);
            std::thread::Builder::new().name("health".into()).spawn(watch)?;
        }
        let mut silent = Silent::new()?;
        silent.watch(STOP, self.stop.as_fd())?;
        silent.watch(UPGRADE, self.upgrade.as_fd())?;
        for (number, listener) in (LISTENERS..).zip(&self.listeners) {
            silent.watch(number, listener.as_fd())?;
        }
        self.go_on(&mut silent)?;
        loop {
            let news = silent.wait()?;
            if news.ready.contains(&STOP) {
                return Ok(());
            }
            if news.ready.contains(&UPGRADE) {
                silence(&self.upgrade);
                self.upgrade(&mut silent);
            }
            for accepted in news.expired {
                let text = format!("turned away: it said nothing within {} s", HELLO_PATIENCE.as_secs());
                self.registry.strangers.say(&accepted.peer, Kind::TurnedAway, &text);
            }
            // The newest first: where more come than can be served, the old ones are those that
            // have waited in vain.
            for accepted in news.speaking.into_iter().rev() {
                self.begin(accepted);
            }
            for (number, listener) in (LISTENERS..).zip(&self.listeners) {
                // A limit, so that one listener does not hold the others up.
                let mut left = if news.ready.contains(&number) { ACCEPTED_AT_ONCE } else { 0 };
                while left > 0
                    && let Some(accepted) = self.accept(number, listener)
                {
                    left -= 1;
                    if let Err(error) = silent.keep(accepted) {
                        tracing::error!("cannot wait for a connection: {error}");
                    }
                }
            }
        }
    }

    /// Takes one connection, if there is one.
    fn accept(&self, number: u64, listener: &Listener) -> Option<Accepted> {
        let (stream, peer) = loop {
            match listener.accept() {
                Ok(accepted) => break accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                // Its peer has gone already.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    tracing::error!("cannot accept a connection: {error}");
                    // Most likely out of descriptors: without a pause this loop would spin.
                    std::thread::sleep(Duration::from_millis(10));
                    return None;
                }
            }
        };
        let source = source_of(&peer);
        let deadline = Instant::now() + HELLO_PATIENCE;
        Some(Accepted { stream, peer, source, door: listener.door(), listener: number, deadline })
    }

    /// Serves a connection that has begun to speak in a thread of its own.
    fn begin(&self, accepted: Accepted) {
        // A peer that has hung up needs no thread.
        let ends = accepted.stream.as_fd();
        if silent::has_ended(ends) {
            return;
        }
        let ends = ends.try_clone_to_owned().ok();
        let Some(place) = ends.and_then(|ends| self.places.enter(accepted.source, ends)) else {
            let text = "turned away: too many connections at once";
            self.registry.strangers.say(&accepted.peer, Kind::TurnedAway, text);
            return;
        };
        let registry = Arc::clone(&self.registry);
        let step = registry.gates.steps.enter("a connection that begins");
        let serve = move || connection::serve(&registry, accepted, place, step);
        if let Err(error) = std::thread::Builder::new().name("connection".into()).spawn(serve) {
            tracing::error!("cannot start a thread for a connection: {error}");
        }
    }
}

/// Has the thread that forks end.
struct Ending(Spawner);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.end();
    }
}

fn source_of(peer: &str) -> Source {
    peer.parse::<SocketAddr>().map_or(Source::Local, Source::from)
}

/// Waits again for what connections say; one for which that fails is dropped.
fn keep_all(silent: &mut Silent, kept: Vec<Accepted>) {
    for accepted in kept {
        if let Err(error) = silent.keep(accepted) {
            tracing::error!("cannot wait for a connection: {error}");
        }
    }
}

/// Serves metrics, if they are to be.
fn serve_metrics(
    config: &NodeConfig,
    registry: &Arc<Registry>,
    places: &Arc<Places>,
    listeners: &[Listener],
) -> Option<Result<Exporter, NodeError>> {
    config.metrics.clone().map(|exporter| {
        let address = exporter.address.clone();
        let node = metrics::name_of(config);
        let identities = listeners.iter().filter_map(Listener::identity).cloned().collect();
        let source = NodeMetrics::new(node, Arc::clone(registry), Arc::clone(places), identities);
        Exporter::start(exporter, Arc::new(source)).map_err(|source| NodeError::Listen { address, source })
    })
}

/// The numbers of the events that end and upgrade the node; those of its listeners follow.
const STOP: u64 = 0;
const UPGRADE: u64 = 1;
const LISTENERS: u64 = 2;
/// Connections that are accepted of one listener before the others are looked at.
const ACCEPTED_AT_ONCE: usize = 64;

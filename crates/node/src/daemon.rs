//! The daemon: listens, accepts, and gives each connection a thread.
//!
//! Connections are few and long (one per client process and one per lease), so a blocking thread
//! each is the simplest thing that works; a session's thread only waits for its worker.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sluice_metrics::Exporter;
use sluice_transport::Stream;
use sluice_transport::admission::Source;
use sluice_transport::tls::ServerIdentity;
use sluice_wire::address::Endpoint;
use sluice_wire::control::Status;

use sluice_worker_link::link::Driver;

use crate::admission::Places;
use crate::clock::SystemClock;
use crate::config::{Listen, NodeConfig, WorkerCommand};
use crate::connection::{self, Door, HELLO_PATIENCE};
use crate::facts;
use crate::health;
use crate::inventory::{Inventory, InventoryError, take_inventory};
use crate::join::{Agent, JoinError, gpus};
use crate::measure;
use crate::metrics::{self, NodeMetrics};
use crate::registry::{self, Registry};
use crate::silent::{self, Accepted, Silent};
use crate::spawn::Spawner;
use crate::strangers::Kind;
use crate::swap_space::{SwapFileError, SwapSpace};

/// A node that is bound to its addresses.
#[derive(Debug)]
pub struct Node {
    listeners: Vec<Listener>,
    registry: Arc<Registry>,
    places: Arc<Places>,
    stop: Arc<OwnedFd>,
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
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}

/// Ends a node from another thread; its sessions end with it.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<OwnedFd>);

impl Stopper {
    pub fn stop(&self) {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: writes eight bytes to an event counter that `self` keeps open.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }
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
        let spawner =
            Spawner::start(config.worker.clone(), matches!(inventory.driver, Driver::Software { .. }))?;
        // SAFETY: plain system call; the result is checked before it is used.
        let stop = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if stop < 0 {
            return Err(io::Error::last_os_error().into());
        }
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
        let mut registry = Registry::new(config, inventory, (spawner, swap), membership, clock);
        if listeners.iter().any(|listener| matches!(listener, Listener::Tcp { .. })) {
            let (listener, name) = bind_nearby()?;
            registry.nearby = Some(name);
            listeners.push(listener);
        }
        let (registry, places) = (Arc::new(registry), Places::new(config.connections_max));
        let metrics = config.metrics.clone().map(|exporter| {
            let address = exporter.address.clone();
            let node = metrics::name_of(config);
            let identities = listeners.iter().filter_map(Listener::identity).cloned().collect();
            let source = NodeMetrics::new(node, Arc::clone(&registry), Arc::clone(&places), identities);
            Exporter::start(exporter, Arc::new(source))
                .map_err(|source| NodeError::Listen { address, source })
        });
        Ok(Node {
            listeners,
            registry,
            places,
            // SAFETY: the descriptor is new and has no other owner.
            stop: Arc::new(unsafe { OwnedFd::from_raw_fd(stop) }),
            watcher: library.map(|library| (config.worker.clone(), library)),
            agent,
            metrics: metrics.transpose()?,
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

    /// Serves until [`Stopper::stop`].
    pub fn run(mut self) -> Result<(), NodeError> {
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

    fn serve(&self) -> Result<(), NodeError> {
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
        for (number, listener) in (STOP + 1..).zip(&self.listeners) {
            silent.watch(number, listener.as_fd())?;
        }
        loop {
            let news = silent.wait()?;
            if news.ready.contains(&STOP) {
                return Ok(());
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
            for (number, listener) in (STOP + 1..).zip(&self.listeners) {
                // A limit, so that one listener does not hold the others up.
                let mut left = if news.ready.contains(&number) { ACCEPTED_AT_ONCE } else { 0 };
                while left > 0
                    && let Some(accepted) = self.accept(listener)
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
    fn accept(&self, listener: &Listener) -> Option<Accepted> {
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
        let source = peer.parse::<SocketAddr>().map_or(Source::Local, Source::from);
        let deadline = Instant::now() + HELLO_PATIENCE;
        Some(Accepted { stream, peer, source, door: listener.door(), deadline })
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
        let serve = move || connection::serve(&registry, accepted, place);
        if let Err(error) = std::thread::Builder::new().name("connection".into()).spawn(serve) {
            tracing::error!("cannot start a thread for a connection: {error}");
        }
    }
}

/// The number of the event that ends the node; those of its listeners follow.
const STOP: u64 = 0;

#[derive(Debug)]
enum Listener {
    Tcp {
        listener: TcpListener,
        tls: Option<ServerIdentity>,
    },
    Unix {
        listener: UnixListener,
        path: PathBuf,
    },
    /// For programs of this machine that have a lease.
    Nearby(UnixListener),
}

impl Listener {
    fn bind(listen: &Listen, identity: Option<&ServerIdentity>) -> Result<Listener, NodeError> {
        let (address, tls) = match listen {
            Listen::Unix(path) => return bind_unix(path),
            Listen::Tcp(address) => (address, None),
            Listen::Tls(address) => {
                let identity = identity.ok_or_else(|| NodeError::NoCertificate(address.clone()))?;
                (address, Some(identity.clone()))
            }
        };
        match bind_tcp(address) {
            Ok(listener) => Ok(Listener::Tcp { listener, tls }),
            Err(source) => Err(NodeError::Listen { address: address.clone(), source }),
        }
    }

    /// The address that clients get, if they get one.
    fn endpoint(&self) -> Option<Endpoint> {
        Some(match self {
            Listener::Tcp { listener, tls } => {
                let address = listener.local_addr().map_or_else(|e| e.to_string(), |a| a.to_string());
                match tls {
                    Some(tls) => Endpoint::Tls { address, fingerprint: Some(tls.fingerprint()) },
                    None => Endpoint::Tcp(address),
                }
            }
            Listener::Unix { path, .. } => Endpoint::Unix(path.clone()),
            Listener::Nearby(_) => return None,
        })
    }

    /// What it shows those who connect.
    fn identity(&self) -> Option<&ServerIdentity> {
        match self {
            Listener::Tcp { tls, .. } => tls.as_ref(),
            Listener::Unix { .. } | Listener::Nearby(_) => None,
        }
    }

    fn door(&self) -> Door {
        match self {
            Listener::Tcp { tls: Some(identity), .. } => Door::Tls(identity.clone()),
            Listener::Tcp { tls: None, .. } | Listener::Unix { .. } => Door::Plain,
            Listener::Nearby(_) => Door::Sessions,
        }
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp { listener, .. } => listener.as_fd(),
            Listener::Unix { listener, .. } | Listener::Nearby(listener) => listener.as_fd(),
        }
    }

    fn accept(&self) -> io::Result<(Stream, String)> {
        match self {
            Listener::Tcp { listener, .. } => {
                let (stream, peer) = listener.accept()?;
                stream.set_nonblocking(false)?;
                stream.set_nodelay(true)?;
                sluice_transport::notice_dead_peer(stream.as_fd())?;
                Ok((OwnedFd::from(stream).into(), peer.to_string()))
            }
            Listener::Unix { listener, .. } | Listener::Nearby(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                let peer = local_peer(&stream);
                Ok((stream.into(), peer))
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Unix { path, .. } = self {
            let _ = fs::remove_file(path);
        }
    }
}

fn bind_tcp(address: &str) -> io::Result<TcpListener> {
    let addresses: Vec<SocketAddr> = address.to_socket_addrs()?.collect();
    let listener = TcpListener::bind(addresses.as_slice())?;
    lengthen_queue(listener.as_fd())?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Connections that wait to be accepted, at most; the system may allow fewer
/// (`net.core.somaxconn`). One beyond them is tried again by its client's system after a second.
const QUEUE: libc::c_int = 4096;
/// Connections that are accepted of one listener before the others are looked at.
const ACCEPTED_AT_ONCE: usize = 64;

/// The standard library has 128 wait, which a burst fills.
fn lengthen_queue(listener: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: sets the length of the queue of a socket that listens already.
    match unsafe { libc::listen(listener.as_raw_fd(), QUEUE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A socket file at which no process answers is what a killed node left behind.
fn bind_unix(path: &Path) -> Result<Listener, NodeError> {
    let failed = |source| NodeError::Listen { address: format!("unix:{}", path.display()), source };
    if fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket()) {
        if UnixStream::connect(path).is_ok() {
            return Err(NodeError::InUse(path.to_owned()));
        }
        fs::remove_file(path).map_err(failed)?;
    }
    let listener = sluice_transport::unix_address(path)
        .and_then(|address| UnixListener::bind_addr(&address))
        .map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(Listener::Unix { listener, path: path.to_owned() })
}

/// Binds a name that no other node has and no file system: who may come in has the token of a
/// lease. With it comes where that is.
fn bind_nearby() -> io::Result<(Listener, String)> {
    let name: String = registry::random().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    let name = sluice_transport::node_socket(&name);
    let listener = UnixListener::bind_addr(&sluice_transport::unix_address(Path::new(&name))?)?;
    listener.set_nonblocking(true)?;
    Ok((Listener::Nearby(listener), name))
}

/// `pid 1234`, as the kernel vouches for it.
fn local_peer(stream: &UnixStream) -> String {
    sluice_transport::peer_of(stream).map_or_else(|_| "local".into(), |peer| format!("pid {}", peer.pid))
}

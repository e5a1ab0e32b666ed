//! A node continues from the state of the program that its process ran before.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use sluice_worker_link::link::PacketSocket;

use super::listener::Listener;
use super::{LISTENERS, Node, NodeError, keep_all, new_bell, serve_metrics, source_of};
use crate::admission::Places;
use crate::clock::SystemClock;
use crate::config::NodeConfig;
use crate::connection;
use crate::health;
use crate::join::Agent;
use crate::registry::cuts::Awaited;
use crate::registry::{self, Registry};
use crate::silent::{Accepted, Silent};
use crate::spawn::{Spawner, WorkerProcess};
use crate::swap_space::SwapSpace;
use crate::upgrade::{HandedOver, Received, RestoreError, SavedConnection, State};

/// What is to continue once the node serves.
#[derive(Debug, Default)]
pub(super) struct GoingOn {
    silent: Vec<Accepted>,
    watcher: Option<u32>,
    upgrade: Option<Upgrade>,
}

/// For the log.
#[derive(Debug)]
struct Upgrade {
    before: String,
    stopped: Instant,
    counts: (usize, usize),
}

impl Node {
    /// Continues with what the program before this one has handed over; no client is served before
    /// [`Node::run`].
    ///
    /// # Safety
    ///
    /// The state is of the program that this process ran before: the descriptors that it names
    /// belong to nothing else, and the processes are children of this thread.
    pub unsafe fn take_over(config: &NodeConfig, state: HandedOver) -> Result<Node, NodeError> {
        sluice_transport::raise_descriptor_limit();
        state.check(config)?;
        // SAFETY: by the caller's promise; this is the only one.
        let mut received = unsafe { Received::of_this_process() };
        let State {
            release,
            stopped,
            stop,
            swap_file_bytes,
            listeners,
            silent,
            inventory,
            registry: saved,
            membership,
            watcher,
        } = state.0;
        let (counts, inventory) = (saved.counts(), inventory.restored());
        let mut asked = config.listen.iter();
        let listeners = listeners.into_iter().map(|listener| {
            let asked = listener.asked.is_some().then(|| asked.next()).flatten();
            listener.restored(asked, config.tls.as_ref(), &mut received)
        });
        let listeners = listeners.collect::<Result<Vec<_>, _>>()?;
        let silent = silent.into_iter().map(|saved| accepted(saved, &listeners, &mut received));
        let silent = silent.collect::<Result<Vec<_>, _>>()?;
        let library = health::library(config, &inventory);
        let is_software = matches!(inventory.driver, sluice_worker_link::link::Driver::Software { .. });
        let (spawner, forks) = Spawner::new(config.worker.clone(), is_software);
        let swap =
            SwapSpace::reopen(registry::swap_memory(config), config.swap_file.as_ref(), swap_file_bytes)?;
        let identity = listeners.first().and_then(Listener::identity);
        let agent = config.join.as_ref().zip(membership);
        let agent = agent.map(|(join, saved)| Agent::restored(join, saved, identity)).transpose()?;
        let membership = agent.as_ref().map(|agent| Arc::clone(agent.membership()));
        let clock = Arc::new(SystemClock::new());
        let mut registry = Registry::new(config, inventory, (spawner.clone(), swap), membership, clock);
        registry.restore(saved, &mut received)?;
        let (registry, places) = (Arc::new(registry), Places::new(config.connections_max));
        // Nothing of what runs depends on metrics.
        let metrics = serve_metrics(config, &registry, &places, &listeners).transpose();
        let metrics = metrics.inspect_err(|error| tracing::error!("no metrics are served: {error}"));
        Ok(Node {
            listeners,
            asked: config.listen.clone(),
            registry,
            places,
            stop: Arc::new(received.take(stop).map_err(RestoreError::from)?),
            upgrade: new_bell()?,
            next_program: config.next_program.clone(),
            spawner,
            forks: Some(forks),
            going_on: GoingOn {
                silent,
                watcher,
                upgrade: Some(Upgrade { before: release, stopped, counts }),
            },
            watcher: library.map(|library| (config.worker.clone(), library)),
            agent,
            metrics: metrics.ok().flatten(),
        })
    }

    /// Serves what was served before.
    pub(super) fn go_on(&mut self, silent: &mut Silent) -> io::Result<()> {
        let GoingOn { silent: kept, watcher, upgrade } = std::mem::take(&mut self.going_on);
        for (lease, session, link) in self.registry.sessions_from_before() {
            self.or_end(lease, self.serve_again(lease, session, link));
        }
        for (lease, awaited) in self.registry.awaited_holders() {
            self.or_end(lease, self.await_again(lease, awaited));
        }
        keep_all(silent, kept);
        if let Some(watcher) = watcher {
            // It has ended with the thread that had started it.
            let reap = move || WorkerProcess::taken_over(watcher, None).wait();
            std::thread::Builder::new().name("last watcher".into()).spawn(reap)?;
        }
        if let Some(Upgrade { before, stopped, counts: (leases, sessions) }) = upgrade {
            let (now, took_ms) = (env!("CARGO_PKG_VERSION"), stopped.elapsed().as_millis() as u64);
            tracing::info!(
                took_ms,
                leases,
                sessions,
                "the node is upgraded from release {before} to {now}: {leases} leases and {sessions} sessions continue, after \
                 {took_ms} ms"
            );
        }
        Ok(())
    }
}

impl Node {
    /// One lease that cannot be served costs the others nothing.
    fn or_end(&self, lease: u64, served: io::Result<()>) {
        if let Err(error) = served {
            tracing::error!(lease, "lease {lease} does not continue, and is ended: {error}");
            self.registry.end_lease(lease);
        }
    }

    fn serve_again(&self, lease: u64, session: u64, link: Arc<PacketSocket>) -> io::Result<()> {
        self.registry.follow_output_of(session)?;
        let (registry, place) = (Arc::clone(&self.registry), self.places.enter_proven());
        let serve = move || {
            let _place = place;
            registry.serve_to_end(lease, session, link);
        };
        std::thread::Builder::new().name("connection".into()).spawn(serve).map(drop)
    }

    fn await_again(&self, lease: u64, mut awaited: Awaited) -> io::Result<()> {
        let successor = connection::hold_again(&self.registry, lease, &mut awaited)?;
        let (registry, place) = (Arc::clone(&self.registry), self.places.enter_proven());
        let serve = move || connection::serve_holder(&registry, (lease, successor), awaited, place);
        std::thread::Builder::new().name("connection".into()).spawn(serve).map(drop)
    }
}

fn accepted(
    saved: SavedConnection,
    listeners: &[Listener],
    received: &mut Received,
) -> Result<Accepted, RestoreError> {
    let SavedConnection { socket, peer, listener, deadline } = saved;
    let place = listener.checked_sub(LISTENERS).and_then(|place| listeners.get(place as usize));
    let door = place.ok_or(RestoreError::Unsound)?.door();
    let socket: OwnedFd = received.take(socket)?;
    let source = source_of(&peer);
    Ok(Accepted { stream: socket.into(), peer, source, door, listener, deadline })
}

//! The old worker: stops the session, sends everything, and waits for what the daemon decides.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use sluice_cuda::CUresult;
use sluice_wire::migration::{Downstream, Recipe, SessionState, Upstream, Variable};
use sluice_wire::{Command, Encode, ImageHash, ModuleId, commands, decode};

use super::pause::{Pause, Standing};
use super::{cloned, compared, unmovable};
use crate::connection::client::Client;
use crate::connection::snapshot;
use crate::link::{Packet, PacketSocket, Receiver};
use crate::memory::contents::Contents;
use crate::memory::swap::{NotMoved, with_quiet_session};
use crate::modules::images::Image;
use crate::outbox::HeldOutbox;
use crate::pipeline::Pipeline;
use crate::session::Session;

/// How often a session that is not quiet is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Why a session has not departed; it continues here.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotDeparted {
    #[error("{}", .0.join("; "))]
    Unmovable(Vec<String>),
    #[error("it is suspended: resume it first")]
    Suspended,
    #[error("its client is away: try again when it has come back")]
    Away,
    #[error("its program is sending something, or one of its functions runs: try again")]
    Occupied,
    #[error("it has failed, and ends with its program")]
    Failed,
    #[error(transparent)]
    Memory(#[from] NotMoved),
    #[error("its client does not take what it is sent")]
    Outbox,
    #[error("the image of one of its modules is no longer kept")]
    Image,
    #[error("its memory cannot be shared with a clone ({0})")]
    Frozen(CUresult),
    #[error("the driver cannot be asked about its GPU ({0})")]
    Driver(CUresult),
    /// The other worker has gone, and the daemon knows why.
    #[error("{}", crate::link::STAYS)]
    Peer(#[from] io::Error),
    /// The daemon has so decided.
    #[error("{}", crate::link::STAYS)]
    Stays,
}

/// What a departure needs of the worker.
pub(crate) struct Departing<'a> {
    pub(crate) pipeline: &'a Pipeline,
    pub(crate) client: &'a Client,
    pub(crate) pause: &'a Pause,
    pub(crate) link: &'a PacketSocket,
    pub(crate) receiver: Receiver,
}

impl Departing<'_> {
    /// Whether the client comes back for the session, on a new connection. The child of a client
    /// always comes on one.
    fn resumes(&self) -> bool {
        self.receiver == Receiver::Clone || self.client.resumes()
    }
}

/// Sends the session. Returns only if it stays: when the daemon says so, by ending `decided`, or
/// after a failure.
pub(crate) fn depart(
    departing: &Departing<'_>,
    mut to: File,
    patience: Duration,
    decided: &mpsc::Receiver<()>,
) -> NotDeparted {
    let session = &departing.pipeline.session;
    let reasons = unmovable::reasons(session, departing.resumes());
    if !reasons.is_empty() {
        return NotDeparted::Unmovable(reasons);
    }
    let _mover = session.memory.mover();
    if session.presence.is_absent() {
        return NotDeparted::Suspended;
    }
    if session.failure().is_err() {
        return NotDeparted::Failed;
    }
    // The daemon keeps it from coming back meanwhile. A copy changes nothing for a client that is
    // away.
    if departing.client.connection_now().is_none() && departing.receiver == Receiver::Worker {
        return NotDeparted::Away;
    }
    let until = Instant::now() + patience;
    let busy = || NotMoved::Busy(patience.as_secs()).into();
    while is_occupied(session) {
        if Instant::now() > until {
            return NotDeparted::Occupied;
        }
        std::thread::park_timeout(LOOK_EVERY);
    }
    // A client that is about to fork has all its answers, and sends nothing more before it knows of
    // the clone, so the reader need not stop.
    let clones = departing.receiver == Receiver::Clone;
    let standing = match clones {
        true => Some(Standing::default()),
        false => departing.pause.begin(until, || departing.client.wake()),
    };
    let Some(standing) = standing else { return busy() };
    // Without a daemon this process is about to end.
    let _ = departing.link.send(&Packet::Paused);
    let stays = match departing.pipeline.is_done_by(until) {
        _ if is_occupied(session) => NotDeparted::Occupied,
        true => send_all(departing, standing, (&mut to, until), decided),
        false => busy(),
    };
    if !clones {
        departing.pause.end();
    }
    stays
}

/// Whether something is under way that ends only while the client is read from.
fn is_occupied(session: &Session) -> bool {
    !session.host_calls.hold_nothing() || !session.watches.is_empty() || session.images.is_uploading()
}

fn send_all(
    departing: &Departing<'_>,
    standing: Standing,
    (to, until): (&mut File, Instant),
    decided: &mpsc::Receiver<()>,
) -> NotDeparted {
    let session = &departing.pipeline.session;
    let left = until.saturating_duration_since(Instant::now());
    let movable = session.counters.movable.load(Relaxed);
    let stays = with_quiet_session(session, left, || -> Result<(), NotDeparted> {
        let reasons = unmovable::reasons(session, departing.resumes());
        if !reasons.is_empty() {
            return Err(NotDeparted::Unmovable(reasons));
        }
        if is_occupied(session) {
            return Err(NotDeparted::Occupied);
        }
        // Its lock comes before the writer's.
        let position = departing.client.position();
        let held = session.outbox.hold().ok_or(NotDeparted::Outbox)?;
        let mut state = state(departing, standing, position, &held)?;
        if departing.receiver == Receiver::Clone {
            begin_anew(&mut state);
        }
        let mut bytes = Vec::new();
        state.encode(&mut bytes);
        to.write_all(&(bytes.len() as u64).to_le_bytes())?;
        to.write_all(&bytes)?;
        match departing.receiver {
            Receiver::Keeper => compared::send(session, &state, to)?,
            Receiver::Worker => send_contents(session, state.contents(), to)?,
            Receiver::Clone => {
                send_contents(session, state.contents_of_variables(), to)?;
                cloned::send(session, to)?;
            }
        }
        // Until the daemon ends this process or says otherwise, nothing moves.
        let _ = decided.recv();
        drop(held);
        Err(NotDeparted::Stays)
    });
    // The other worker counts in the same page.
    session.counters.movable.store(movable, Relaxed);
    stays.err().unwrap_or(NotDeparted::Stays)
}

fn send_contents(
    session: &Session,
    ranges: impl Iterator<Item = (u32, u64, u64)>,
    to: &mut File,
) -> Result<(), NotDeparted> {
    let mut contents = Contents::new(session)?;
    for (gpu, address, bytes) in ranges {
        contents.send::<NotDeparted>(gpu, (address, bytes), |piece| to.write_all(piece))?;
    }
    Ok(())
}

/// Has the streams of a clone begin with their first bytes: its client has received all that
/// this session has sent, and comes on a connection of its own.
fn begin_anew(state: &mut SessionState) {
    state.upstream = Upstream {
        received: 0,
        partial: Vec::new(),
        acknowledged: 0,
        expander: None,
        unpacked: 0,
        expanded_before: 0,
        attempt: 0,
    };
    let Downstream { packs, is_protected, .. } = state.downstream;
    state.downstream = Downstream { start: 0, unacknowledged: Vec::new(), packs, is_protected };
    // What is kept for the session is not kept for another one.
    state.allowances.iter_mut().for_each(|allowance| *allowance = (0, 0));
}

fn state(
    departing: &Departing<'_>,
    standing: Standing,
    (received, attempt): (u64, u32),
    held: &HeldOutbox<'_>,
) -> Result<SessionState, NotDeparted> {
    let session = &departing.pipeline.session;
    let (acknowledged, expanded_before) = held.acknowledged();
    let Standing { partial, expander, unpacked } = standing;
    let recipes = session.recipes.all();
    let take = |device: &crate::session::device::Device| {
        snapshot::take(&session.table, device.ordinal, device.memory.load(Relaxed), !session.is_loaded)
    };
    let devices: Result<Vec<_>, CUresult> = session.devices.iter().map(take).collect();
    let gpus = 0..session.devices.len() as u32;
    Ok(SessionState {
        range: session.memory.range(),
        devices: devices.map_err(NotDeparted::Driver)?,
        upstream: Upstream { received, partial, acknowledged, expander, unpacked, expanded_before, attempt },
        downstream: held.downstream(),
        allowances: session.budget.allowances(),
        taken: gpus.map(|gpu| session.budget.taken(gpu)).collect(),
        images: images(departing, &recipes)?,
        promised: session.images.known().1,
        recipes,
        variables: variables(departing)?,
        memory: session.memory.committed(),
    })
}

/// The images of all modules, and those on which the client counts, which the cache of another node
/// need not have; each once.
fn images(departing: &Departing<'_>, recipes: &[Recipe]) -> Result<Vec<(ImageHash, Vec<u8>)>, NotDeparted> {
    let loads = [commands::cuModuleLoadDataEx::OP.0, commands::ModuleLoadAhead::OP.0];
    // A NUL ends what is kept.
    let bytes_of = |image: &Image| image.bytes.strip_suffix(&[0]).unwrap_or(&image.bytes).to_vec();
    let (whole, promised) = departing.pipeline.session.images.known();
    let mut images: BTreeMap<_, _> = whole.iter().map(|(hash, image)| (hash.0, bytes_of(image))).collect();
    let mut wanted = promised;
    for recipe in recipes.iter().filter(|recipe| loads.contains(&recipe.op)) {
        let load: commands::ModuleLoadAhead = decode(&recipe.payload).map_err(|_| NotDeparted::Image)?;
        wanted.push(load.image);
    }
    for hash in wanted {
        if images.contains_key(&hash.0) {
            continue;
        }
        let found = departing.pipeline.session.images.find(hash);
        let image = found.ok().flatten().ok_or(NotDeparted::Image)?;
        images.insert(hash.0, bytes_of(&image));
    }
    Ok(images.into_iter().map(|(hash, bytes)| (ImageHash(hash), bytes)).collect())
}

fn variables(departing: &Departing<'_>) -> Result<Vec<Variable>, NotDeparted> {
    let objects = &departing.pipeline.session.objects;
    let known = |variable: sluice_softgpu::Variable| {
        // A module that the program has unloaded lives while its kernels run, and none does.
        let unknown = || NotDeparted::Unmovable(vec!["a variable's module is none of its own".to_owned()]);
        let module = objects.number_of::<ModuleId>(variable.module).ok_or_else(unknown)?;
        let sluice_softgpu::Variable { name, address, bytes, .. } = variable;
        Ok(Variable { module: module.0, name, address, bytes })
    };
    sluice_softgpu::variables().into_iter().map(known).collect()
}

/// Has a thread do it, which reports why the session stays.
pub(crate) fn begin(
    (pipeline, client, pause): (Arc<Pipeline>, Arc<Client>, Arc<Pause>),
    (to, patience, receiver): (File, Duration, Receiver),
    decided: mpsc::Receiver<()>,
    link: Arc<PacketSocket>,
) {
    crate::process::ending::spawn("departure", move || {
        let departing =
            Departing { pipeline: &pipeline, client: &client, pause: &pause, link: &link, receiver };
        let stays = depart(&departing, to, patience, &decided);
        // Without a daemon this process is about to end.
        let _ = link.send(&Packet::NotDeparted { reason: stays.to_string() });
    });
}

/// Has a thread tell the daemon what keeps the session from moving now: it may wait for the
/// session's locks.
pub(crate) fn say_whether(parts: Option<(Arc<Pipeline>, Arc<Client>)>, link: Arc<PacketSocket>) {
    crate::process::ending::spawn("movable", move || {
        let reasons = match parts {
            Some((pipeline, client)) => {
                let mut reasons = unmovable::reasons(&pipeline.session, client.resumes());
                if client.connection_now().is_none() {
                    reasons.push(NotDeparted::Away.to_string());
                }
                reasons
            }
            None => vec!["it has not begun yet".to_owned()],
        };
        // Without a daemon this process is about to end.
        let _ = link.send(&Packet::Movable { reasons });
    });
}

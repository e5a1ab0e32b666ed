//! `sluice checkpoint`: a copy of a running program's session, in a folder of this machine.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use sluice_checkpoint::{Amounts, Failure, Folder, TakenSession};
use sluice_control::{Cause, Connection, Copying, Failure as FailureOfNode};
use sluice_wire::address::Endpoint;
use sluice_wire::checkpoint::Manifest;
use sluice_wire::control::{CheckpointBegun, Checkpointed, Control, LeaseName, StatusRequest};

use crate::cli::CheckpointArgs;
use crate::key_file;
use crate::place::Provider;
use crate::progress::Counted;
use crate::quantity::Memory;
use crate::restore::{self, ProgramToRestore, former};
use crate::server::lists::now_ms;

pub(crate) fn run(arguments: &CheckpointArgs) -> Result<ExitCode> {
    let node = match Provider::choose(None, arguments.node.as_deref())? {
        Provider::Node(node) => node,
        Provider::Server(_) => bail!(
            "a checkpoint is of a lease of a node without a server: say --node HOST:PORT, or set SLUICE_NODE"
        ),
        Provider::Private => bail!("which node? Say --node HOST:PORT, or set SLUICE_NODE"),
    };
    match arguments.every {
        Some(every) => again_and_again(&node, arguments, every.duration())?,
        None => make(&node, arguments)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The lease is looked at this often between two checkpoints.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// A node is gone once nothing has listened there for this number of looks in a row.
const ABSENCES_MIN: u32 = 3;

/// Makes checkpoints until the lease ends. The first one has to succeed, so that a mistake is seen
/// at once.
fn again_and_again(node: &Endpoint, arguments: &CheckpointArgs, every: Duration) -> Result<()> {
    let (number, folder) = (arguments.number, arguments.folder.display());
    make(node, arguments)?;
    loop {
        let due = Instant::now() + every;
        let mut absences = 0;
        while let Some(left) = due.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            std::thread::sleep(left.min(LOOK_EVERY));
            match is_there(node, number) {
                Ok(true) => absences = 0,
                Ok(false) => {
                    eprintln!(
                        "sluice: no program runs under {number} any more; {folder} has a copy of its memory, from which \
                         no program continues"
                    );
                    return Ok(());
                }
                Err(error) if is_down(&error) => absences += 1,
                // A node that does not answer now may do so later.
                Err(_) => absences = 0,
            }
            if let Some(spare) = arguments.if_lost.as_deref().filter(|_| absences >= ABSENCES_MIN) {
                eprintln!("sluice: nothing listens at {} any more", node.place());
                return restore_on(spare, arguments);
            }
        }
        if let Err(error) = make(node, arguments) {
            eprintln!("sluice: no checkpoint now: {error:#}; {folder} has the last one");
        }
    }
}

/// Has the program continue on another node from its last checkpoint.
fn restore_on(spare: &str, arguments: &CheckpointArgs) -> Result<()> {
    restore::program(&ProgramToRestore {
        from: &arguments.folder,
        node: Some(spare),
        gpu: None,
        former_node_is_gone: true,
        key_file: arguments.key_file.as_deref(),
    })
}

/// Whether the node's machine says that no node is there.
fn is_down(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref::<FailureOfNode>(), Some(FailureOfNode { cause: Cause::NobodyListens, .. }))
}

/// Whether a program runs under the lease, or session, of this number.
fn is_there(node: &Endpoint, number: u64) -> Result<bool> {
    let mut connection = Connection::open(node)?;
    let Control::Status(status) = connection.ask(StatusRequest {})? else {
        return Err(connection.unexpected().into());
    };
    Ok(status.sessions.iter().any(|session| session.lease == number || session.session == number))
}

fn make(node: &Endpoint, arguments: &CheckpointArgs) -> Result<()> {
    let key_file = arguments.key_file.as_deref();
    let key = key_file.map(|file| key_file::load_or_make(file, &arguments.folder)).transpose()?;
    let folder = Folder::make(&arguments.folder, key)?;
    let mut former = folder.manifest()?;
    if let Some(stops) = former.as_mut().filter(|former| waits(former)) {
        // The stop may have failed.
        let place: Endpoint = stops.node.parse().context("the node of the checkpoint")?;
        if !stops.stopped && restore::goes_on(&former::ask(&place, stops.offer.lease.token), stops) {
            stops.stops = false;
            folder.commit(stops)?;
        }
    }
    ensure!(
        former.as_ref().is_none_or(|former| !waits(former)),
        "{} holds a program that was stopped and is not restored yet; name another folder, or restore it first",
        folder.path().display()
    );
    if let Some(former) = former.as_ref().filter(|_| arguments.stop) {
        // The program will rest on these, and does not stand still yet.
        folder.remove_damaged(former)?;
    }
    let connection = Connection::open(node)?;
    let (copying, begun) = Copying::begin(connection, LeaseName::Numbered(arguments.number))?;
    let node = copying.connection().node().clone();
    let making = Making { folder: &folder, former: former.as_ref(), node, begun };
    if arguments.stop { making.stop(copying) } else { making.copy(copying) }
}

/// Whether the only copy of a session may be in the folder.
fn waits(manifest: &Manifest) -> bool {
    (manifest.stops || manifest.stopped) && manifest.restored.is_none()
}

/// A checkpoint that is being made.
struct Making<'a> {
    folder: &'a Folder,
    former: Option<&'a Manifest>,
    node: Endpoint,
    begun: CheckpointBegun,
}

impl Making<'_> {
    /// The session continues as soon as all has come.
    fn copy(&self, copying: Copying) -> Result<()> {
        let taken = sluice_checkpoint::take(self.folder, self.former, Counted::new(copying), |copying| {
            copying
                .into_inner()
                .decide(false)
                .map_err(|failure| Failure::Peer(std::io::Error::other(failure)))
        })?;
        let (amounts, stall_us) = (taken.amounts, taken.came.stall_us);
        let manifest = self.manifest(taken, false);
        self.folder.commit(&manifest)?;
        self.folder.sweep(Some(&manifest))?;
        eprintln!(
            "sluice: session {} is in {}; {}",
            self.begun.session,
            self.place(),
            said(&amounts, stall_us)
        );
        Ok(())
    }

    /// The session leaves its node once all is on the disk.
    fn stop(&self, copying: Copying) -> Result<()> {
        let came = |copying: Counted<Copying>| Ok(copying.into_inner());
        let taken = sluice_checkpoint::take(self.folder, self.former, Counted::new(copying), came)?;
        let amounts = taken.amounts;
        let (taken, copying) = without(taken);
        let mut manifest = self.manifest(taken, true);
        self.folder.commit(&manifest)?;
        let Checkpointed { used, stall_us, .. } = match copying.decide(true) {
            Ok(stopped) => stopped,
            Err(failure) => {
                let is_sure = matches!(failure.cause, Cause::Refused(_));
                return Err(self.is_not_stopped(manifest, is_sure).err().unwrap_or(failure.into()));
            }
        };
        manifest.stopped = true;
        manifest.offer.lease.used = used;
        self.folder.commit(&manifest)?;
        self.folder.sweep(Some(&manifest))?;
        let (session, place) = (self.begun.session, self.place());
        eprintln!(
            "sluice: session {session} is in {place}, and has left its node; {}",
            said(&amounts, stall_us)
        );
        eprintln!("sluice: its program waits for `sluice restore {place}`");
        Ok(())
    }

    /// The node has not said that the session has left.
    fn is_not_stopped(&self, mut manifest: Manifest, is_sure: bool) -> Result<()> {
        if is_sure {
            manifest.stops = false;
            return Ok(self.folder.commit(&manifest)?);
        }
        let place = self.place();
        Err(anyhow::anyhow!(
            "the connection to the node was lost before it said whether the session has left; `sluice restore {place}` \
             finds out"
        ))
        .context("it is not known what became of the program")
    }

    fn manifest<R>(&self, taken: TakenSession<R>, stops: bool) -> Manifest {
        let TakenSession { state, images, contents, .. } = taken;
        Manifest {
            taken_ms: now_ms(),
            node: self.node.to_string(),
            session: self.begun.session,
            stops,
            stopped: false,
            restored: None,
            restoring: None,
            offer: self.begun.offer.clone(),
            state,
            images,
            contents,
        }
    }

    fn place(&self) -> std::path::Display<'_> {
        self.folder.path().display()
    }
}

fn without<R>(taken: TakenSession<R>) -> (TakenSession<()>, R) {
    let TakenSession { state, images, contents, amounts, came } = taken;
    (TakenSession { state, images, contents, amounts, came: () }, came)
}

/// What a checkpoint has cost.
fn said(amounts: &Amounts, stall_us: u64) -> String {
    let &Amounts { memory, copied, stored, .. } = amounts;
    let [memory, copied, stored] = [memory, copied, stored].map(Memory::from_bytes);
    let stall = stall_us as f64 / 1e6;
    format!("of {memory}, {copied} were copied and {stored} were new, and it stood still for {stall:.2} s")
}

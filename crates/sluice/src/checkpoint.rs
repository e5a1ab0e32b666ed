//! `sluice checkpoint`: a copy of a running program's session, in a folder of this machine.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use sluice_checkpoint::{Amounts, Failure, Folder, TakenSession};
use sluice_control::{Cause, Connection, Copying, Failure as FailureOfNode};
use sluice_transport::process::{ProcessWatch, space};
use sluice_wire::address::Endpoint;
use sluice_wire::checkpoint::Manifest;
use sluice_wire::control::{
    CheckpointBegun, Checkpointed, Control, LeaseName, LeaseQuestion, MoveOffer, MovedSession, SessionStatus,
    StatusRequest,
};
use sluice_wire::handshake::LeaseToken;

use crate::cli::CheckpointArgs;
use crate::key_file;
use crate::place::Provider;
use crate::progress::Counted;
use crate::quantity::Memory;
use crate::restore::former::{self, Said};
use crate::restore::{self, ProgramToRestore};
use crate::server::lists::now_ms;

pub(crate) fn run(arguments: &CheckpointArgs) -> Result<ExitCode> {
    let node = match Provider::choose(None, arguments.node.as_deref())? {
        Provider::Node(node) => node,
        Provider::Server(_) => bail!(
            "a checkpoint is of a lease of a node without a server: say --node HOST:PORT, or set SLUICE_NODE"
        ),
        Provider::Private => bail!("which node? Say --node HOST:PORT, or set SLUICE_NODE"),
    };
    if let Some(spare) = &arguments.if_lost {
        spare.parse::<Endpoint>().context("--if-lost")?;
    }
    match arguments.every {
        Some(every) => again_and_again(&node, arguments, every.duration())?,
        None => drop(make(&node, arguments, None)?),
    }
    Ok(ExitCode::SUCCESS)
}

/// The lease is looked at this often between two checkpoints.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// A node is gone once nothing has listened there for this number of attempts in a row.
const ABSENCES_MIN: u32 = 3;

/// Makes checkpoints until the lease ends. The first one has to succeed, so that a mistake is seen
/// at once.
fn again_and_again(node: &Endpoint, arguments: &CheckpointArgs, every: Duration) -> Result<()> {
    let program = make(node, arguments, None)?;
    let mut watch = Watch { node, arguments, program, absences: 0 };
    loop {
        let due = Instant::now() + every;
        while let Some(left) = due.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            std::thread::sleep(left.min(LOOK_EVERY));
            if watch.has_ended(is_there(node, arguments.number, watch.program.lease))? {
                return Ok(());
            }
        }
        let made = make(node, arguments, Some(&watch.program.lease)).map(|program| watch.program = program);
        if let Err(error) = &made
            && !error.is::<Gone>()
        {
            let folder = arguments.folder.display();
            eprintln!("sluice: no checkpoint now: {error:#}; {folder} has the last one");
        }
        if watch.has_ended(made)? {
            return Ok(());
        }
    }
}

/// Why no further checkpoint of a program can be made.
#[derive(Debug, thiserror::Error)]
enum Gone {
    #[error("no program runs under {0} any more")]
    NotThere(u64),
    #[error(
        "{0} is the lease of another program now, of which no checkpoint was made: its node was started anew, and \
         counts its leases from 1 again"
    )]
    OtherLease(u64),
}

/// The program of a checkpoint.
struct Program {
    lease: LeaseToken,
    /// Its process, if that is on this machine and has not ended.
    process: Option<ProcessWatch>,
}

impl Program {
    fn of(offer: &MoveOffer) -> Program {
        let MovedSession { process, process_space, .. } = offer.session;
        let is_here = process_space == space() && process_space != 0;
        let process = is_here.then(|| ProcessWatch::new(process).ok().flatten()).flatten();
        Program { lease: offer.lease.token, process }
    }

    fn lives(&self) -> bool {
        self.process.as_ref().is_some_and(|process| !process.has_ended())
    }
}

/// A program of which checkpoints are made, until it ends or is restored elsewhere.
struct Watch<'a> {
    node: &'a Endpoint,
    arguments: &'a CheckpointArgs,
    program: Program,
    /// How often in a row nothing has listened at the node.
    absences: u32,
}

impl Watch<'_> {
    /// Whether nothing is left to do after a look at the node, or a checkpoint.
    fn has_ended(&mut self, attempt: Result<()>) -> Result<bool> {
        let Err(error) = attempt else {
            self.absences = 0;
            return Ok(false);
        };
        // A node that does not answer now may do so later.
        self.absences = if is_down(&error) { self.absences + 1 } else { 0 };
        let gone = error.downcast_ref();
        if let Some(spare) = &self.arguments.if_lost {
            let place = self.node.place();
            if self.absences >= ABSENCES_MIN {
                eprintln!("sluice: nothing listens at {place} any more");
                return restore_on(spare, self.arguments).map(|()| true);
            }
            match gone.map(|_: &Gone| former::ask(self.node, self.program.lease)) {
                Some(Said::Unknown) if self.program.lives() => {
                    eprintln!("sluice: {place} does not know the program any more, which has not ended");
                    return restore_on(spare, self.arguments).map(|()| true);
                }
                Some(Said::Silent(_)) => return Ok(false),
                _ => {}
            }
        }
        match gone {
            Some(gone @ Gone::NotThere(_)) => {
                let folder = self.arguments.folder.display();
                eprintln!(
                    "sluice: {gone}; {folder} has a copy of its memory, from which no program continues"
                );
                Ok(true)
            }
            Some(Gone::OtherLease(_)) => {
                Err(error.context(format!("{} keeps the last checkpoint", self.arguments.folder.display())))
            }
            None => Ok(false),
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

/// Looks whether the program of this lease runs under the number of the lease, or session.
fn is_there(node: &Endpoint, number: u64, lease: LeaseToken) -> Result<()> {
    let mut connection = Connection::open(node)?;
    // Before the status: a lease that ends in between is not in that.
    let is_known = match connection.ask_once(LeaseQuestion { token: lease }) {
        Err(FailureOfNode { cause: Cause::Refused(_), .. }) => false,
        said => said.map(|_| true)?,
    };
    let Control::Status(status) = connection.ask(StatusRequest {})? else {
        return Err(connection.unexpected().into());
    };
    let is_it = |session: &SessionStatus| session.lease == number || session.session == number;
    ensure!(status.sessions.iter().any(is_it), Gone::NotThere(number));
    ensure!(is_known, Gone::OtherLease(number));
    Ok(())
}

/// Makes a checkpoint. Where there were earlier ones, the lease has to be that of these: a node
/// that was started anew gives its number to another program.
fn make(node: &Endpoint, arguments: &CheckpointArgs, lease: Option<&LeaseToken>) -> Result<Program> {
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
    ensure!(lease.is_none_or(|lease| *lease == begun.offer.lease.token), Gone::OtherLease(arguments.number));
    let program = Program::of(&begun.offer);
    let node = copying.connection().node().clone();
    let making = Making { folder: &folder, former: former.as_ref(), node, begun };
    if arguments.stop { making.stop(copying) } else { making.copy(copying) }?;
    Ok(program)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments() -> CheckpointArgs {
        CheckpointArgs {
            number: 7,
            folder: "saved".into(),
            stop: false,
            every: None,
            if_lost: None,
            key_file: None,
            node: None,
        }
    }

    #[test]
    fn refusals_of_looks_and_checkpoints_are_counted_together() {
        let (node, arguments) = ("a:1".parse().unwrap(), arguments());
        let program = Program { lease: LeaseToken([1; 32]), process: None };
        let mut watch = Watch { node: &node, arguments: &arguments, program, absences: 0 };
        let failure = |cause| anyhow::Error::new(FailureOfNode { node: "a:1".into(), cause });
        for absences in 1..=ABSENCES_MIN {
            assert!(!watch.has_ended(Err(failure(Cause::NobodyListens))).unwrap());
            assert_eq!(watch.absences, absences);
        }
        assert!(!watch.has_ended(Err(failure(Cause::UnexpectedAnswer))).unwrap());
        assert_eq!(watch.absences, 0);
    }

    #[test]
    fn it_ends_with_the_program_and_fails_at_another_one() {
        let (node, arguments) = ("a:1".parse().unwrap(), arguments());
        let program = Program { lease: LeaseToken([1; 32]), process: None };
        let mut watch = Watch { node: &node, arguments: &arguments, program, absences: 0 };
        assert!(!watch.has_ended(Ok(())).unwrap());
        assert!(watch.has_ended(Err(Gone::NotThere(7).into())).unwrap());
        let other = watch.has_ended(Err(Gone::OtherLease(7).into())).unwrap_err();
        assert!(format!("{other:#}").contains("another program"), "{other:#}");
    }

    #[test]
    fn a_process_lives_until_its_end() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let mut offer = sluice_wire::sample::manifest(&[1; 300]).offer;
        (offer.session.process, offer.session.process_space) = (child.id(), space());
        let program = Program::of(&offer);
        assert!(program.lives());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!program.lives());
        (offer.session.process, offer.session.process_space) = (std::process::id(), 0);
        assert!(!Program::of(&offer).lives(), "a process of another machine");
    }
}

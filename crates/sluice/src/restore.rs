//! `sluice restore`: a program that was stopped with a checkpoint continues on a node. A backup of
//! a server is restored by the server's side.
//!
//! The new node takes the session over as from another node (`sluice_control`'s `Departure`). The
//! program's client and the holder of its lease ask the former node, which sends them on; where
//! that is gone, a note on the program's machine does.

pub(crate) mod former;

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use sluice_checkpoint::{Folder, Session};
use sluice_control::{Cause, Connection, Departure, Failure};
use sluice_transport::process::{ProcessWatch, space};
use sluice_transport::restored;
use sluice_wire::address::{Endpoint, is_loopback};
use sluice_wire::checkpoint::{Manifest, Restored};
use sluice_wire::control::{LeaseRestored, MoveOffer};
use sluice_wire::handshake::{LeaseToken, SessionSecret};

use crate::cli::RestoreArgs;
use crate::key_file;
use crate::moment::Moment;
use crate::place::Provider;
use crate::quantity::Memory;
use crate::restore::former::Said;
use crate::server::lists::now_ms;
use crate::server::process;

/// The node waits as long for all of it.
const LIMIT: Duration = Duration::from_secs(1800);
/// How often the former node is asked, and the pause between: its connection may be cut.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_secs(1);

/// Restores what is in the folder: a program, or the data of a server.
pub(crate) fn run(arguments: &RestoreArgs) -> Result<ExitCode> {
    let is_of_program = Folder::is_one(&arguments.from)
        || arguments.node.is_some()
        || arguments.gpu.is_some()
        || arguments.key_file.is_some()
        || arguments.former_node_is_gone;
    if !is_of_program {
        return process::restore(arguments);
    }
    program(&ProgramToRestore {
        from: &arguments.from,
        node: arguments.node.as_deref(),
        gpu: arguments.gpu,
        former_node_is_gone: arguments.former_node_is_gone,
        key_file: arguments.key_file.as_deref(),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// A program that is to continue from a checkpoint; the fields are as those of [`RestoreArgs`].
pub(crate) struct ProgramToRestore<'a> {
    pub(crate) from: &'a Path,
    pub(crate) node: Option<&'a str>,
    pub(crate) gpu: Option<u32>,
    pub(crate) former_node_is_gone: bool,
    pub(crate) key_file: Option<&'a Path>,
}

pub(crate) fn program(asked: &ProgramToRestore<'_>) -> Result<()> {
    let key = asked.key_file.map(|file| key_file::load(file, asked.from)).transpose()?;
    let folder = Folder::open(asked.from, key)?;
    let manifest = folder.manifest()?.context("it holds no checkpoint")?;
    let is_gone = asked.former_node_is_gone;
    may_continue(&manifest, is_gone)?;
    let former: Endpoint = manifest.node.parse().context("the node of the checkpoint")?;
    let node = match Provider::choose(None, asked.node)? {
        Provider::Node(node) => node,
        Provider::Private => former.clone(),
        Provider::Server(_) => {
            bail!("a program is restored on a node without a server: say --node HOST:PORT")
        }
    };
    if let Some(Restored { node, .. }) = &manifest.restoring {
        let earlier: Endpoint = node.parse().context("the node of an earlier restore")?;
        former::check_earlier(&former::ask(&earlier, manifest.offer.lease.token), node, is_gone)?;
    }
    let said = former::ask(&former, manifest.offer.lease.token);
    if let Err(refusal) = former::check(&said, &manifest, is_gone) {
        if goes_on(&said, &manifest) {
            folder.commit(&Manifest { stops: false, ..manifest })?;
        }
        return Err(refusal);
    }
    let client = Client::find(&manifest, &said, &former, &node)?;
    let session = sluice_checkpoint::read(&folder, &manifest)?;
    let begun = Instant::now();
    let offer = MoveOffer { gpu: asked.gpu, ..manifest.offer.clone() };
    let (mut departure, accepted) = Departure::offer_restored(&node, offer)?;
    let bytes = send(&session, &mut departure)?;
    let node = departure.node().clone();
    let restored = Restored { at_ms: now_ms(), node: node.to_string(), session: accepted.session };
    folder.commit(&Manifest { restoring: Some(restored.clone()), ..manifest.clone() })?;
    match client.send_to(&manifest, &node, accepted.session) {
        Told::Yes => {}
        Told::No(error) => {
            // A node that did not get this may have the session; the next restore asks it.
            if departure.stays().is_ok() {
                folder.commit(&Manifest { restoring: None, ..manifest })?;
            }
            return Err(error);
        }
        // The new node has the session until its client comes, or for the time of its `--linger`.
        Told::Unknown(failure) => {
            return Err(failure).context("it is not known whether the program was sent on; restore it again");
        }
    }
    departure.moves(Some(manifest.offer.lease.used.clone()), None)?;
    let (waited, taken) = (manifest.stops || manifest.stopped, Moment::from_ms(manifest.taken_ms));
    // Once: two of it would be two programs.
    folder.commit(&with_no_secrets(Manifest { restored: Some(restored), restoring: None, ..manifest }))?;
    eprintln!(
        "sluice: session {} is on GPU {} of {}; {} were copied in {:.2} s",
        accepted.session,
        accepted.gpu,
        node.place(),
        Memory::from_bytes(bytes),
        begun.elapsed().as_secs_f64()
    );
    if !waited {
        eprintln!(
            "sluice: its program continues there if it has made no CUDA call since {taken}; otherwise its next call says \
             that its session is lost"
        );
    }
    Ok(())
}

/// Whether its program has waited since, as far as the folder tells. Where the former node is gone,
/// a program that has not is lost anyway, and one that has done nothing since is not.
fn may_continue(manifest: &Manifest, is_gone: bool) -> Result<()> {
    if let Some(Restored { at_ms, node, .. }) = &manifest.restored {
        bail!("it was restored on {node} at {}, and its program has gone on since", Moment::from_ms(*at_ms));
    }
    ensure!(
        manifest.stops || manifest.stopped || is_gone,
        "its program has gone on since the checkpoint was taken, so it cannot continue from there; \
         `sluice checkpoint --stop` makes one for a program that waits. If its node has ended, say \
         --former-node-is-gone: a program that has made no CUDA call since continues"
    );
    Ok(())
}

/// Whether a stop that was not confirmed did not happen: then the checkpoint is one without.
pub(crate) fn goes_on(said: &Said, manifest: &Manifest) -> bool {
    !manifest.stopped && manifest.restoring.is_none() && matches!(said, Said::GoesOn(_))
}

/// What opens the lease and the session is of no more use in the folder.
fn with_no_secrets(mut manifest: Manifest) -> Manifest {
    manifest.offer.lease.token = LeaseToken([0; 32]);
    manifest.offer.session.secret = SessionSecret([0; 32]);
    manifest
}

/// How the program's client and the holder of its lease get to know the new node.
struct Client {
    /// The former node, if it answers.
    former: Option<Endpoint>,
    /// The program is on this machine.
    is_here: bool,
}

/// Whether the program's client learns where its session is.
enum Told {
    Yes,
    No(anyhow::Error),
    Unknown(Failure),
}

impl Client {
    /// Finds the program's client, or says why it would not find its session.
    fn find(manifest: &Manifest, said: &Said, former: &Endpoint, node: &Endpoint) -> Result<Client> {
        let process = manifest.offer.session.process;
        let is_here = manifest.offer.session.process_space == space() && space() != 0;
        if is_here && matches!(ProcessWatch::new(process), Ok(None)) {
            bail!("its program, process {process}, has ended");
        }
        match (said, node) {
            (Said::Silent(failure), _) if !is_here => bail!(
                "the former node is to tell the program where its session is, and does not answer ({failure}): run this on \
                 the program's machine, as its user, or start that node again"
            ),
            (_, Endpoint::Tcp(address) | Endpoint::Tls { address, .. })
                if !is_here && is_loopback(address) =>
            {
                bail!(
                    "{address} is this machine's own, and the program is on another one: name the node as that one reaches it"
                )
            }
            (_, Endpoint::Unix(path)) => bail!("{} is not reached over a network", path.display()),
            (_, Endpoint::Tcp(address)) if matches!(former, Endpoint::Tls { .. }) => {
                bail!("the program has reached its node by TLS, and {address} would be by plain text")
            }
            _ => {}
        }
        if matches!(said, Said::Silent(_)) {
            finds_notes(process)?;
        }
        let former = (!matches!(said, Said::Silent(_))).then(|| former.clone());
        Ok(Client { former, is_here })
    }

    /// Sends them to the new node.
    fn send_to(&self, manifest: &Manifest, node: &Endpoint, there: u64) -> Told {
        let MoveOffer { lease, session, .. } = &manifest.offer;
        let note = restored::Restored { node: node.clone(), session: there };
        let noted = || {
            restored::note(&session.secret.0, &note)?;
            restored::note(&lease.token.0, &note)
        };
        let is_noted = match self.is_here.then(noted) {
            Some(Err(error)) if self.former.is_none() => {
                return Told::No(anyhow::Error::new(error).context("the program does not learn where it is"));
            }
            noted => matches!(noted, Some(Ok(()))),
        };
        let Some(former) = &self.former else { return Told::Yes };
        let moved = LeaseRestored {
            token: lease.token,
            secret: session.secret,
            session: manifest.session,
            node: node.to_string(),
            there,
        };
        let told = tell(former, &moved);
        match told {
            Err(failure) if is_noted => {
                eprintln!("sluice: the former node does not know of it: {failure}");
                Told::Yes
            }
            Ok(()) => Told::Yes,
            Err(failure @ Failure { cause: Cause::Refused(_), .. }) => Told::No(
                anyhow::Error::new(failure).context("the program does not learn where its session is"),
            ),
            Err(failure) => Told::Unknown(failure),
        }
    }
}

/// Tells the former node, on connections that it has not waited on meanwhile.
fn tell(former: &Endpoint, moved: &LeaseRestored) -> Result<(), Failure> {
    let mut tries = 1;
    loop {
        let told = Connection::open(former).and_then(|mut connection| connection.ask_once(moved.clone()));
        match told {
            Ok(_) => return Ok(()),
            Err(failure) if tries == TRIES || matches!(failure.cause, Cause::Refused(_)) => {
                return Err(failure);
            }
            Err(_) => tries += 1,
        }
        std::thread::sleep(PAUSE);
    }
}

/// Whether a process finds the notes of this user: it is theirs, and has the same `/tmp`.
fn finds_notes(process: u32) -> Result<()> {
    restored::check().context("the program does not learn where its session is")?;
    let of = |path: String| fs::metadata(&path).with_context(|| path);
    let owner = of(format!("/proc/{process}"))?.uid();
    // SAFETY: takes nothing and touches no memory.
    let user = unsafe { libc::geteuid() };
    ensure!(
        owner == user,
        "the program, process {process}, is of user {owner}: restore it as that user, or start its former node again"
    );
    let [here, there] = [of("/tmp".to_owned())?, of(format!("/proc/{process}/root/tmp"))?];
    ensure!(
        (here.dev(), here.ino()) == (there.dev(), there.ino()),
        "the program, process {process}, has another /tmp: restore it from within its container, or start its former node again"
    );
    Ok(())
}

/// Sends the session; the answer is how many bytes of device memory that was.
fn send(session: &Session<'_>, departure: &mut Departure) -> Result<u64> {
    let (here, there) = UnixStream::pair()?;
    std::thread::scope(|scope| {
        // Its end is a failure, so this stays open after the last byte.
        let writing = scope.spawn(|| {
            let written = session.send(&mut &there);
            if written.is_err() {
                let _ = there.shutdown(std::net::Shutdown::Both);
            }
            written
        });
        let sent = departure.send(File::from(OwnedFd::from(here)), LIMIT);
        let written = writing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        match (sent, written) {
            (Ok(bytes), _) => Ok(bytes),
            // The node finds the end of what was to come, and this is why.
            (
                Err(_),
                Err(
                    failure @ (sluice_checkpoint::Failure::Damaged { .. }
                    | sluice_checkpoint::Failure::Io { .. }),
                ),
            ) => Err(failure.into()),
            (Err(failure), _) => Err(failure.into()),
        }
    })
}

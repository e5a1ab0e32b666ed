//! `sluice restore`: a program that was stopped with a checkpoint continues on a node. A backup of
//! a server is restored by the server's side.
//!
//! The new node takes the session over as from another node (`sluice_control`'s `Departure`). The
//! program's client and the holder of its lease ask the former node, which sends them on; where
//! that is gone, a note on the program's machine does.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use sluice_checkpoint::{Folder, Session};
use sluice_control::{Cause, Connection, Departure, Failure};
use sluice_transport::process::{ProcessWatch, space};
use sluice_transport::restored;
use sluice_wire::address::{Endpoint, is_loopback};
use sluice_wire::checkpoint::{Manifest, Restored};
use sluice_wire::control::{Control, LeaseQuestion, LeaseRestored, MoveOffer};

use crate::cli::RestoreArgs;
use crate::moment::Moment;
use crate::place::Place;
use crate::quantity::Memory;
use crate::server::lists::now_ms;
use crate::server::process;

/// The node waits as long for all of it.
const LIMIT: Duration = Duration::from_secs(1800);

/// Restores what is in the folder: a program, or the data of a server.
pub(crate) fn run(arguments: &RestoreArgs) -> Result<ExitCode> {
    let is_of_program =
        Folder::is_one(&arguments.from) || arguments.node.is_some() || arguments.gpu.is_some();
    if is_of_program { program(arguments) } else { process::restore(arguments) }
}

fn program(arguments: &RestoreArgs) -> Result<ExitCode> {
    let folder = Folder::open(&arguments.from)?;
    let manifest = folder.manifest()?.context("it holds no checkpoint")?;
    has_waited(&manifest)?;
    let former: Endpoint = manifest.node.parse().context("the node of the checkpoint")?;
    let node = match Place::choose(None, arguments.node.as_deref()) {
        Ok(Place::Node(node)) => node,
        _ => former.clone(),
    };
    let client = Client::find(&manifest, &former, &node)?;
    let session = sluice_checkpoint::read(&folder, &manifest)?;
    let begun = Instant::now();
    let offer = MoveOffer { gpu: arguments.gpu, ..manifest.offer.clone() };
    let (mut departure, accepted) = Departure::offer_restored(&node, offer)?;
    let bytes = send(&session, &mut departure)?;
    let node = departure.node().clone();
    // Once: two of it would be two programs.
    let restored = Restored { at_ms: now_ms(), node: node.to_string(), session: accepted.session };
    folder.commit(&Manifest { restored: Some(restored), ..manifest.clone() })?;
    if let Err(error) = client.send_to(&manifest, &node, accepted.session) {
        folder.commit(&manifest)?;
        let _ = departure.stays();
        return Err(error);
    }
    departure.moves(Some(manifest.offer.lease.used.clone()), None)?;
    eprintln!(
        "sluice: session {} is on GPU {} of {}; {} were copied in {:.2} s",
        accepted.session,
        accepted.gpu,
        node.place(),
        Memory::from_bytes(bytes),
        begun.elapsed().as_secs_f64()
    );
    Ok(ExitCode::SUCCESS)
}

/// Whether its program has waited since, as far as the folder tells.
fn has_waited(manifest: &Manifest) -> Result<()> {
    if let Some(Restored { at_ms, node, .. }) = &manifest.restored {
        bail!("it was restored on {node} at {}, and its program has gone on since", Moment::from_ms(*at_ms));
    }
    ensure!(
        manifest.stops || manifest.stopped,
        "its program has gone on since the checkpoint was taken, so it cannot continue from there; \
         `sluice checkpoint --stop` makes one for a program that waits"
    );
    Ok(())
}

/// How the program's client and the holder of its lease get to know the new node.
struct Client {
    /// The former node, if it answers.
    former: Option<Connection>,
    /// The program is on this machine.
    is_here: bool,
}

impl Client {
    /// Finds the program's client, or says why it would not find its session.
    fn find(manifest: &Manifest, former: &Endpoint, node: &Endpoint) -> Result<Client> {
        let process = manifest.offer.session.process;
        let is_here = manifest.offer.session.process_space == space() && space() != 0;
        if is_here && matches!(ProcessWatch::new(process), Ok(None)) {
            bail!("its program, process {process}, has ended");
        }
        let is_same = former.place() == node.place();
        let answered = ask_former(manifest, former);
        match (&answered, node) {
            (Err(failure), _) if !is_here && !is_same => bail!(
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
        Ok(Client { former: answered.ok().transpose()?, is_here })
    }

    /// Sends them to the new node.
    fn send_to(self, manifest: &Manifest, node: &Endpoint, there: u64) -> Result<()> {
        let &MoveOffer { ref lease, ref session, .. } = &manifest.offer;
        if self.is_here {
            let note = restored::Restored { node: node.clone(), session: there };
            restored::note(&lease.token, &note).context("the program does not learn where its session is")?;
        }
        if let Some(mut former) = self.former {
            let moved = LeaseRestored {
                token: lease.token,
                secret: session.secret,
                session: manifest.session,
                node: node.to_string(),
                there,
            };
            match former.ask(moved) {
                Ok(_) => {}
                // By the note it finds its session as well.
                Err(failure) if self.is_here => {
                    eprintln!("sluice: the former node does not know of it: {failure}")
                }
                Err(failure) => {
                    return Err(failure).context("the program does not learn where its session is");
                }
            }
        }
        Ok(())
    }
}

/// What the former node says of the lease: an outer error if nothing comes from there, an inner
/// one if the program has gone on.
fn ask_former(manifest: &Manifest, former: &Endpoint) -> Result<Result<Connection>, Failure> {
    let mut connection = Connection::open(former)?;
    let place = former.place();
    let question = LeaseQuestion { token: manifest.offer.lease.token };
    match connection.ask_once(question) {
        Ok(Control::LeaseStored(_)) => Ok(Ok(connection)),
        // Another daemon than then.
        Err(Failure { cause: Cause::Refused(_), .. }) => Ok(Ok(connection)),
        Ok(Control::LeaseHere(_)) => Ok(Err(anyhow::anyhow!("its program continues, on {place}"))),
        Ok(Control::LeaseMoved(moved)) => {
            Ok(Err(anyhow::anyhow!("its program continues, on {}", moved.node)))
        }
        Ok(_) => Err(connection.unexpected()),
        Err(failure) => Err(failure),
    }
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

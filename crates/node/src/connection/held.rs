//! What a control connection holds, and the answers to what it asks.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use sluice_transport::Stream;
use sluice_wire::address::Endpoint;
use sluice_wire::control::{
    Control, Devices, DevicesRequest, GpuFree, LeaseClaim, LeaseGranted, LeaseHere, LeaseName, LeaseQuestion,
    LeaseRefused, LeaseRegrant, LeaseRequest, LeaseResize, LeaseResized, LeaseRestored, LeaseResume,
    LeaseResumed, Migrate, Refused, SHARE_WHOLE_PPM, Suspend, Suspended, TokenProof, TokenWanted,
};
use sluice_wire::handshake::LeaseToken;

use super::control::{Rights, Token, send, token_of};

use super::{ConnectionError, Line, WRITE_PATIENCE};
use crate::admission::ConnectionSlot;
use crate::lease::{Ask, Resize};
use crate::registry::cuts::{Hold, Holding, Process, Terms};
use crate::registry::joined::NoLease;
use crate::registry::migrate::Moved;
use crate::registry::residence::Moves;
use crate::registry::resize::Size;
use crate::registry::{Granted, Registry, one_line, random};
use crate::strangers;
use crate::upgrade::Pass;

/// The answer to a client that shows no certificate where one is needed.
pub(super) const NO_CERTIFICATE: &str = "this node lends to holders of a certificate only; name yours, from an authority that the node \
     knows, in SLUICE_TLS_CERT and SLUICE_TLS_KEY";
/// The answer to a client that has another token than this node's.
const WRONG_TOKEN: &str = "the token in SLUICE_NODE_TOKEN is not this node's; its operator has it in the file of \
     `sluice node --token-file`";
/// The answer where an address is for sessions only.
pub(super) const NO_LEASES_HERE: &str =
    "this address is for sessions of leases that the node has granted; ask for one where it listens";
/// The answer to a token that is none.
const NO_SUCH_LEASE: &str = "no lease has this token";

/// Characters of a program's name that are kept.
const NAME_MAX: usize = 256;

/// The lease of a control connection. Dropped, it ends, unless the connection was cut: then its
/// holder is waited for.
pub(super) struct HeldLease<'a> {
    pub(super) registry: &'a Registry,
    pub(super) line: Arc<Line>,
    pub(super) process: Process,
    /// As messages name it.
    pub(super) peer: &'a str,
    pub(super) rights: Rights,
    pub(super) token: Token,
    pub(super) place: ConnectionSlot,
    pub(super) hold: Option<Hold>,
    /// The holder has said so.
    pub(super) is_over: bool,
    /// What is being done for the peer.
    pub(super) step: Option<Pass>,
}

impl<'a> HeldLease<'a> {
    /// Of a connection that has not said anything yet.
    pub(super) fn new(
        registry: &'a Registry,
        line: Arc<Line>,
        process: Process,
        rights: Rights,
        (peer, place): (&'a str, ConnectionSlot),
    ) -> HeldLease<'a> {
        let token = registry.token.as_ref().map_or(Token::Unasked, |_| Token::Wanted);
        let (hold, is_over, step) = (None, false, None);
        HeldLease { registry, line, process, peer, rights, token, place, hold, is_over, step }
    }

    /// Begins a step, or continues with the present one under this name.
    pub(super) fn step(&mut self, what: &'static str) {
        match &mut self.step {
            Some(step) => step.is_now(what),
            None => self.step = Some(self.registry.gates.steps.enter(what)),
        }
    }
}

impl HeldLease<'_> {
    /// What is to be said to this, if anything.
    pub(super) fn answer(&mut self, question: Control) -> Result<Option<Control>, ConnectionError> {
        if let Some(moved) = token_of(&question).and_then(|token| self.registry.moved_lease(token)) {
            return Ok(Some(moved.for_holder()));
        }
        let answer = match question {
            Control::LeaseRequest(_) | Control::LeaseClaim(_) | Control::StatusRequest(_)
                if !self.rights.may_ask =>
            {
                refused(if self.line.stream.is_unix() { NO_LEASES_HERE } else { NO_CERTIFICATE })
            }
            Control::LeaseResize(LeaseResize { lease: LeaseName::Numbered(_), .. })
            | Control::Suspend(Suspend { lease: LeaseName::Numbered(_), .. })
            | Control::Migrate(_)
            | Control::LeaseRestored(_)
                if !self.rights.may_ask =>
            {
                refused(if self.line.stream.is_unix() { NO_LEASES_HERE } else { NO_CERTIFICATE })
            }
            Control::LeaseRequest(_)
            | Control::StatusRequest(_)
            | Control::LeaseResize(LeaseResize { lease: LeaseName::Numbered(_), .. })
            | Control::Suspend(Suspend { lease: LeaseName::Numbered(_), .. })
            | Control::Migrate(_)
            | Control::LeaseRestored(_)
                if !matches!(self.token, Token::Unasked | Token::Shown) =>
            {
                self.want_token()
            }
            Control::TokenProof(TokenProof { proof }) => {
                self.check_token(&proof)?;
                return Ok(None);
            }
            Control::LeaseRequest(_) | Control::LeaseClaim(_) | Control::LeaseResume(_)
                if self.hold.is_some() =>
            {
                refused("this connection holds a lease already")
            }
            Control::LeaseRequest(request) => self.grant(request)?,
            Control::LeaseClaim(claim) => self.claim(claim)?,
            Control::LeaseResume(LeaseResume { token }) => self.resume(&token)?,
            Control::LeaseResize(resize) => self.resize(&resize),
            Control::Suspend(suspend) => self.suspend(&suspend),
            Control::Migrate(migrate) => self.migrate(&migrate),
            Control::LeaseQuestion(LeaseQuestion { token }) if self.registry.has_lease(&token) => {
                LeaseHere {}.into()
            }
            Control::LeaseQuestion(_) => refused(NO_SUCH_LEASE),
            Control::LeaseRestored(restored) => self.send_to_restored(restored),
            // Any client may bring it: the server has signed it.
            Control::LeaseRegrant(LeaseRegrant { grant }) => match self.registry.regrant(&grant) {
                Ok((lease, size)) => resized(lease, size),
                Err(refusal) => refused(&refusal.to_string()),
            },
            Control::LeaseEnd(_) => {
                self.is_over = true;
                return Ok(None);
            }
            Control::ProcessEnded(ended) => {
                if let Some(hold) = &self.hold {
                    self.registry.process_ended(hold.lease, ended.process);
                }
                return Ok(None);
            }
            Control::StatusRequest(_) => match self.registry.server() {
                None => {
                    self.registry.ask_what_keeps_all();
                    self.registry.status().into()
                }
                Some(server) => {
                    refused(&format!("this node lends through {server}; set SLUICE_SERVER to that"))
                }
            },
            Control::DevicesRequest(DevicesRequest { token }) => {
                if self.registry.lease_of(&token).is_some() {
                    self.prove()?;
                }
                self.devices(&token)
            }
            Control::EchoRequest(_) => refused(NO_SUCH_LEASE),
            Control::UsageRequest(_) => {
                match self.hold.as_ref().and_then(|hold| self.registry.usage(hold.lease)) {
                    Some(usage) => usage.into(),
                    None => refused("this connection holds no lease"),
                }
            }
            Control::ProcessesRequest(_) => {
                match self.hold.as_ref().and_then(|hold| self.registry.processes(hold.lease)) {
                    Some(processes) => processes.into(),
                    None => refused("this connection holds no lease"),
                }
            }
            _ => refused("a node does not answer that"),
        };
        Ok(Some(answer))
    }

    pub(super) fn want_token(&mut self) -> Control {
        if let Token::Wanted = self.token {
            let challenge = random();
            self.token = Token::Challenged(challenge);
            return TokenWanted { challenge }.into();
        }
        refused(WRONG_TOKEN)
    }

    /// The peer has shown that it may be here. Where there is no place for it, it gets that answer
    /// before its connection ends.
    pub(super) fn prove(&mut self) -> Result<(), ConnectionError> {
        if let Err(full) = self.place.prove() {
            self.line.send(refused(&full.to_string()))?;
            return Err(ConnectionError::Refused(full.to_string()));
        }
        Ok(self.line.stream.set_write_limit(WRITE_PATIENCE)?)
    }

    fn check_token(&mut self, proof: &[u8; 32]) -> Result<(), ConnectionError> {
        let Some(token) = &self.registry.token else { return Ok(()) };
        let shown = self.rights.shown;
        let is_shown =
            matches!(&self.token, Token::Challenged(challenge) if token.is_proof(challenge, shown, proof));
        if !is_shown {
            self.registry.strangers.say(self.peer, strangers::Kind::WrongToken, "has shown a wrong token");
        }
        self.token = if is_shown { Token::Shown } else { Token::Wrong };
        if is_shown { self.prove() } else { Ok(()) }
    }

    fn grant(&mut self, request: LeaseRequest) -> Result<Control, ConnectionError> {
        if let Some(server) = self.registry.server() {
            let reason =
                format!("this node lends through {server}; set SLUICE_SERVER to that (and not --node)");
            return Ok(LeaseRefused { reason, free: Vec::new() }.into());
        }
        let ask = Ask {
            gpus: request.gpus,
            share_ppm: request.share_ppm,
            memory: request.memory,
            limit_ppm: request.limit_ppm,
            promised_ppm: SHARE_WHOLE_PPM,
            // Tiers are a server's.
            premium: false,
            wait_ns: 0,
        };
        let granted = self.registry.grant(
            request.once,
            ask,
            u64::from(request.kernel_timeout_ms),
            short_name(&request.name),
            Some(self.holding()?),
        );
        self.granted(granted, || self.registry.free())
    }

    fn claim(&mut self, claim: LeaseClaim) -> Result<Control, ConnectionError> {
        let (name, holding) = (short_name(&claim.name), Some(self.holding()?));
        let kernel_timeout_ms = u64::from(claim.kernel_timeout_ms);
        let granted = self.registry.claim(claim.once, &claim.grant, kernel_timeout_ms, name, holding);
        self.granted(granted, Vec::new)
    }

    pub(super) fn holding(&self) -> io::Result<Holding> {
        let Rights { resumes, may_ask, .. } = self.rights;
        let terms = Terms { resumes, may_ask, peer: self.peer.to_owned() };
        Holding::new(&self.line, &self.process, terms)
    }

    /// Of a lease that arrives, whose holder comes on a connection of its own.
    pub(super) fn holding_for_another(&self) -> io::Result<Holding> {
        let terms = Terms { resumes: true, may_ask: self.rights.may_ask, peer: self.peer.to_owned() };
        Holding::new(&self.line, &self.process, terms)
    }

    /// The answer to who asks for a lease; where there is none, `free` says what it could ask for.
    fn granted(
        &mut self,
        granted: Result<(Granted, Option<Hold>), NoLease>,
        free: impl FnOnce() -> Vec<GpuFree>,
    ) -> Result<Control, ConnectionError> {
        let (Granted { lease, token, devices }, hold) = match granted {
            Ok(granted) => granted,
            // A client that finds the connection at its end asks again, and finds the lease gone.
            Err(NoLease::Ending) => return Err(ConnectionError::Refused(NoLease::Ending.to_string())),
            Err(refusal) => return Ok(LeaseRefused { reason: refusal.to_string(), free: free() }.into()),
        };
        self.hold = hold;
        if let Err(full) = self.prove() {
            // The peer does not receive a lease, so it does not come back for one.
            self.is_over = true;
            return Err(full);
        }
        let linger = if self.rights.resumes { self.registry.linger } else { Duration::ZERO };
        let linger_ms = u32::try_from(linger.as_millis()).unwrap_or(u32::MAX);
        let is_here = self.process.space != 0 && self.process.space == self.registry.process_space;
        let nearby = self.registry.nearby.clone().filter(|_| is_here && !self.line.stream.is_unix());
        Ok(LeaseGranted { lease, token, devices, linger_ms, nearby }.into())
    }

    fn resume(&mut self, token: &LeaseToken) -> Result<Control, ConnectionError> {
        self.hold = self.registry.resume_lease(token, self.holding()?);
        if self.hold.is_some() {
            self.prove()?;
        }
        Ok(match (&self.hold, self.registry.moved_lease(token)) {
            (Some(_), _) => LeaseResumed {}.into(),
            (None, Some(moved)) => moved.for_holder(),
            (None, None) => refused("no lease has this token any more; has the node been started anew?"),
        })
    }

    /// The lease or session that is meant, and its lease, where it is for this node to change it.
    pub(super) fn named(&self, name: &LeaseName) -> Result<(u64, u64), String> {
        if let Some(server) = self.registry.server() {
            return Err(format!(
                "this node lends through {server}, which decides what its leases have: set SLUICE_SERVER to that, and name \
                 the lease by the server's number"
            ));
        }
        let (number, lease) = match *name {
            LeaseName::Own(ref token) => {
                let lease = self.registry.lease_of(token).ok_or_else(|| NO_SUCH_LEASE.to_owned())?;
                (lease, Some(lease))
            }
            LeaseName::Numbered(number) => (number, self.registry.lease_numbered(number)),
        };
        let nothing = || format!("there is no lease or session {number} here; `sluice sessions` lists them");
        lease.map(|lease| (number, lease)).ok_or_else(nothing)
    }

    fn suspend(&self, asked: &Suspend) -> Control {
        let changed = self.named(&asked.lease).and_then(|(number, _)| {
            self.registry.set_suspended(number, asked.suspended).map_err(|refusal| refusal.to_string())
        });
        match changed {
            Ok(sessions) => {
                let Moves { swapped, notes } = self.registry.await_moves(&sessions);
                Suspended { sessions, swapped, notes }.into()
            }
            Err(reason) => refused(&reason),
        }
    }

    pub(super) fn migrate(&self, asked: &Migrate) -> Control {
        let &Migrate { ref lease, gpu, ref node, dry_run } = asked;
        let migrated = self.named(lease).and_then(|(_, lease)| {
            let registry = self.registry;
            self.protects(node.as_deref())?;
            let answer = match node {
                _ if dry_run => registry.plan_move(lease, node.as_deref(), gpu).map(Control::from),
                None => registry.migrate(lease, gpu.map(|gpu| gpu as usize)).map(Control::from),
                Some(node) => registry.migrate_to(lease, node, gpu).map(Control::from),
            };
            answer.map_err(|refusal| refusal.to_string())
        });
        migrated.unwrap_or_else(|reason| refused(&reason))
    }

    fn send_to_restored(&self, restored: LeaseRestored) -> Control {
        if let Err(reason) = self.protects(Some(&restored.node)) {
            return refused(&reason);
        }
        match self.registry.note_restored(&restored) {
            Ok(()) => restored.into(),
            Err(reason) => refused(&reason),
        }
    }

    /// A program that reaches this node by TLS is not sent on to one that speaks plain text.
    fn protects(&self, node: Option<&str>) -> Result<(), String> {
        match node.map(str::parse) {
            Some(Ok(Endpoint::Tcp(address))) if self.rights.shown.is_some() => {
                Err(format!("this node is reached by TLS, and {address} would be by plain text"))
            }
            _ => Ok(()),
        }
    }

    fn resize(&self, asked: &LeaseResize) -> Control {
        let lease = self.named(&asked.lease).map(|(_, lease)| lease);
        let &LeaseResize { share_ppm, memory, limit_ppm, .. } = asked;
        let resize = Resize { share_ppm, memory, limit_ppm, promised_ppm: None };
        let answer = lease.and_then(|lease| {
            let size = self.registry.resize(lease, &resize).map_err(|refusal| refusal.to_string())?;
            Ok(resized(lease, size))
        });
        answer.unwrap_or_else(|reason: String| refused(&reason))
    }

    fn devices(&self, token: &LeaseToken) -> Control {
        let lease = self.registry.lease_of(token);
        match lease.and_then(|lease| self.registry.lease_status(lease)) {
            Some((devices, sessions)) => Devices { devices, sessions }.into(),
            None => refused(NO_SUCH_LEASE),
        }
    }
}

impl Drop for HeldLease<'_> {
    fn drop(&mut self) {
        self.step = None;
        let Some(hold) = &self.hold else { return };
        if self.rights.resumes && !self.is_over {
            self.registry.await_holder(hold, &self.process);
        } else {
            let _step = self.registry.gates.steps.enter("the end of a lease");
            self.registry.end_held(hold);
        }
    }
}

/// Tells a client where its session is now.
pub(super) fn send_on(stream: &Stream, moved: &Moved) -> Result<(), ConnectionError> {
    send(stream, moved.for_client())
}

/// A program's name, fit for lists.
pub(crate) fn short_name(name: &str) -> String {
    one_line(name).chars().take(NAME_MAX).collect()
}

fn resized(lease: u64, Size { share_ppm, limit_ppm, memory }: Size) -> Control {
    LeaseResized { lease, share_ppm, limit_ppm, memory }.into()
}

pub(super) fn refused(reason: &str) -> Control {
    Refused { reason: reason.into() }.into()
}

//! Speaks to the server: joins, then reports in the rhythm that the answers give, and at once when
//! there is news.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use sluice_api::client::{Client, Failure};
use sluice_api::node::{Gpu, Join, Joined, ReportAnswer};
use sluice_transport::tls::ServerIdentity;
use sluice_wire::address::{Endpoint, Fingerprint};

use super::journal::Journal;
use super::reporter::Reporter;
use super::{JoinConfig, Membership, SavedMembership};
use crate::registry::Registry;

/// Why a node does not join.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error(transparent)]
    Server(#[from] Failure),
    #[error("{0}: the server's key for grants makes no sense")]
    Key(String),
    #[error("which address do programs reach this node at? It listens on {0}; say --advertise HOST:PORT")]
    Address(String),
    #[error("the usage journal in {folder}: {source}")]
    Journal { folder: String, source: std::io::Error },
}

/// While the server is away, and before it says anything else.
const RETRY_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Agent {
    /// With the token to join with.
    joining: Client,
    /// With the node's own.
    client: Client,
    reporter: Reporter,
    /// What the node shows to those who connect.
    identity: Option<ServerIdentity>,
    /// That it has another certificate could not be said.
    untold: bool,
    /// The last report failed, and that has been said.
    away: bool,
}

impl Agent {
    /// Joins; the answer is also what connections need.
    pub(crate) fn join(
        config: &JoinConfig,
        gpus: Vec<Gpu>,
        listens: &Endpoint,
        identity: Option<&ServerIdentity>,
    ) -> Result<Agent, JoinError> {
        let folder = &config.folder;
        let unusable = |source| JoinError::Journal { folder: folder.display().to_string(), source };
        let journal = Journal::open(folder).map_err(unusable)?;
        let address = match &config.address {
            Some(address) => Some(at(listens, address)),
            None => advertised(listens),
        };
        let address = address.ok_or_else(|| JoinError::Address(listens.place()))?.to_string();
        let join = Join {
            name: config.name.clone(),
            address,
            gpus,
            labels: config.labels.clone(),
            release: env!("CARGO_PKG_VERSION").into(),
        };
        let joining = Client::new(&config.server, &config.token);
        let joined: Joined = joining.post("/nodes", &join)?;
        Agent::joined(&config.server, joining, (join, joined), journal, identity)
    }

    /// Continues as what the program before this one has joined: the server need not be there.
    pub(crate) fn restored(
        config: &JoinConfig,
        saved: SavedMembership,
        identity: Option<&ServerIdentity>,
    ) -> Result<Agent, JoinError> {
        let folder = &config.folder;
        let unusable = |source| JoinError::Journal { folder: folder.display().to_string(), source };
        let journal = Journal::open(folder).map_err(unusable)?;
        let joining = Client::new(&config.server, &config.token);
        let (enrolled, rest) = saved.parts();
        let join = Join { release: env!("CARGO_PKG_VERSION").into(), ..enrolled.join };
        let agent = Agent::joined(&config.server, joining, (join, enrolled.joined), journal, identity)?;
        agent.membership().restore(rest);
        Ok(agent)
    }

    fn joined(
        server: &str,
        joining: Client,
        (join, joined): (Join, Joined),
        journal: Journal,
        identity: Option<&ServerIdentity>,
    ) -> Result<Agent, JoinError> {
        let reporter = Reporter::new(server, join, &joined, journal, boot())?;
        let client = joining.with_token(&joined.token);
        reporter.membership.enrolled(&reporter.join, &joined);
        Ok(Agent { client, joining, reporter, identity: identity.cloned(), untold: false, away: false })
    }

    pub(crate) fn membership(&self) -> &Arc<Membership> {
        &self.reporter.membership
    }

    /// Where programs and other nodes reach the node.
    pub(crate) fn address(&self) -> String {
        self.reporter.join.address.clone()
    }

    /// Reports until the node stops, and once more then.
    pub(crate) fn run(mut self, registry: &Registry) {
        loop {
            let stopping = self.wait();
            if let Some(address) = self.new_address() {
                self.move_to(address);
            }
            match self.report(registry) {
                Ok(()) if self.away => {
                    tracing::info!("the server is back: {}", self.client.server());
                    self.away = false;
                }
                Ok(()) => {}
                Err(failure) => self.failed(&failure),
            }
            if stopping {
                return;
            }
        }
    }

    /// Until the next report is due, or there is news; true when the node stops.
    fn wait(&self) -> bool {
        let membership = &self.reporter.membership;
        let state = membership.lock();
        let quiet = |state: &mut super::State| !state.news && !state.stopping;
        let waited = membership.news.wait_timeout_while(state, self.reporter.every, quiet);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        state.news = false;
        state.stopping
    }

    fn report(&mut self, registry: &Registry) -> Result<(), Failure> {
        let sent = self.reporter.next(registry);
        let answer: ReportAnswer = self.client.post(&sent.path, &sent.report)?;
        self.reporter.answered(registry, &sent, answer);
        Ok(())
    }

    fn failed(&mut self, failure: &Failure) {
        self.reporter.every = RETRY_EVERY;
        if !self.away {
            tracing::warn!("{failure}. Sessions continue; usage is kept on disk");
            self.away = true;
        }
        if let Failure::Refused(problem) = failure
            && Reporter::has_to_join(problem)
            && let Err(failure) = self.join_again()
        {
            tracing::error!("cannot join again: {failure}");
        }
    }

    fn join_again(&mut self) -> Result<(), Failure> {
        let joined: Joined = self.joining.post("/nodes", &self.reporter.join)?;
        if self.reporter.joined_again(&joined) {
            self.client = self.joining.with_token(&joined.token);
            self.reporter.membership.enrolled(&self.reporter.join, &joined);
        } else {
            tracing::error!("the server takes this for a new node: start it again");
        }
        Ok(())
    }

    /// Where programs have to look for it, if it shows another certificate than the server knows
    /// of.
    fn new_address(&self) -> Option<String> {
        renewed(&self.reporter.join.address, self.identity.as_ref()?.fingerprint())
    }

    /// Has the server send programs there. Until it does, they are shown the certificate that they
    /// know.
    fn move_to(&mut self, address: String) {
        let before = std::mem::replace(&mut self.reporter.join.address, address);
        let moved = self.join_again();
        if let Err(failure) = &moved {
            self.reporter.join.address = before;
            if !self.untold {
                tracing::warn!("the server could not be notified of the new certificate: {failure}");
            }
        }
        self.untold = moved.is_err();
    }
}

/// Another one after each start of the machine.
fn boot() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    boot.trim().to_owned()
}

/// The address that the node listens on, if others can use it as it is.
fn advertised(listens: &Endpoint) -> Option<Endpoint> {
    let address: std::net::SocketAddr = listens.place().parse().ok()?;
    (!address.ip().is_unspecified()).then(|| listens.clone())
}

/// The node as it is reached at another address: with the same certificate, or in plain text.
fn at(listens: &Endpoint, address: &str) -> Endpoint {
    match listens {
        Endpoint::Tls { fingerprint, .. } => {
            Endpoint::Tls { address: address.to_owned(), fingerprint: *fingerprint }
        }
        Endpoint::Tcp(_) | Endpoint::Unix(_) => Endpoint::Tcp(address.to_owned()),
    }
}

/// The address with this fingerprint, if it has another one.
fn renewed(address: &str, shown: Fingerprint) -> Option<String> {
    match address.parse() {
        Ok(Endpoint::Tls { address, fingerprint: Some(known) }) if known != shown => {
            Some(Endpoint::Tls { address, fingerprint: Some(shown) }.to_string())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_address_that_others_can_use_is_advertised() {
        let pinned = format!("10.0.0.7:7583/{}", "ab".repeat(32));
        for listens in ["127.0.0.1:7583", "[::1]:7583", "plain-text:10.0.0.7:7583", &pinned] {
            assert_eq!(advertised(&listens.parse().unwrap()).unwrap().to_string(), listens);
        }
        for listens in ["0.0.0.0:7583", "plain-text:[::]:7583", "unix:/run/a.sock"] {
            assert_eq!(advertised(&listens.parse().unwrap()), None, "{listens}");
        }
    }

    #[test]
    fn a_renewed_certificate_is_another_address() {
        let (old, new) = ("ab".repeat(32), "cd".repeat(32));
        let shown: Fingerprint = new.parse().unwrap();
        assert_eq!(renewed(&format!("gpu1:7583/{old}"), shown), Some(format!("gpu1:7583/{new}")));
        for address in [format!("gpu1:7583/{new}"), "plain-text:gpu1:7583".to_owned(), "gpu1:7583".to_owned()]
        {
            assert_eq!(renewed(&address, shown), None, "{address}");
        }
    }

    #[test]
    fn a_node_is_known_by_its_certificate_wherever_it_is_reached() {
        let fingerprint = "ab".repeat(32);
        let tls = format!("0.0.0.0:7583/{fingerprint}").parse().unwrap();
        assert_eq!(at(&tls, "gpu1:7583").to_string(), format!("gpu1:7583/{fingerprint}"));
        let plain = "127.0.0.1:7583".parse().unwrap();
        assert_eq!(at(&plain, "gpu1:7583").to_string(), "plain-text:gpu1:7583");
    }
}

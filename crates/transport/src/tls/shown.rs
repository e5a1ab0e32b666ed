//! Which certificate is shown: the one in the files, read again when they change
//! ([`super::follow`]).
//!
//! A client that knows this side by the fingerprint of an earlier certificate still works: it says
//! so in its first message, as the name of the server that it wants to reach (server name
//! indication, RFC 6066, section 3), and is shown that one. So a session that was disconnected, and
//! an address with a fingerprint, outlives a renewal: the first certificate, which addresses
//! are made with, for as long as this process runs, and many of the later ones.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use sluice_wire::address::Fingerprint;

use super::client::{certificates, private_key};
use super::fingerprint_of;
use super::follow::{Files, Stamp};
use super::handshake::crypto;

/// Certificates that were shown before and still can be, beside the first one: some KB each.
const EARLIER_MAX: usize = 256;

/// Certificate and key of this side.
#[derive(Debug)]
pub(super) struct Shown {
    certificate: PathBuf,
    key: PathBuf,
    /// The files before they were read at the start.
    loaded: Stamp,
    state: RwLock<State>,
}

#[derive(Clone, Debug)]
struct State {
    fingerprint: Fingerprint,
    current: Arc<CertifiedKey>,
    /// The certificate of the start: clients that got an address since may know this side by it.
    first: (Fingerprint, Arc<CertifiedKey>),
    /// The latest last.
    earlier: Vec<(Fingerprint, Arc<CertifiedKey>)>,
}

impl Shown {
    pub(super) fn load(certificate: &Path, key: &Path) -> Result<Shown, String> {
        let loaded = Stamp::of(&[certificate, key]);
        let current = read(certificate, key)?;
        let fingerprint = fingerprint_of(&current.cert[0]);
        let current = Arc::new(current);
        let first = (fingerprint, Arc::clone(&current));
        let state = State { fingerprint, current, first, earlier: Vec::new() };
        Ok(Shown { certificate: certificate.into(), key: key.into(), loaded, state: RwLock::new(state) })
    }

    pub(super) fn fingerprint(&self) -> Fingerprint {
        self.state.read().unwrap_or_else(PoisonError::into_inner).fingerprint
    }

    /// The certificate of this side, in DER.
    pub(super) fn certificate(&self) -> Vec<u8> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        state.current.cert.first().map_or_else(Vec::new, |certificate| certificate.to_vec())
    }
}

impl Files for Shown {
    fn loaded(&self) -> Stamp {
        self.loaded.clone()
    }

    fn stamp(&self) -> Stamp {
        Stamp::of(&[&self.certificate, &self.key])
    }

    /// Shows what is in the files from now on.
    fn reload(&self) -> Result<bool, String> {
        let new = read(&self.certificate, &self.key)?;
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if state.current.cert == new.cert {
            return Ok(false);
        }
        let fingerprint = fingerprint_of(&new.cert[0]);
        let before = std::mem::replace(&mut state.current, Arc::new(new));
        let known = std::mem::replace(&mut state.fingerprint, fingerprint);
        state.earlier.retain(|(earlier, _)| *earlier != known && *earlier != fingerprint);
        if known != fingerprint {
            state.earlier.push((known, before));
        }
        let most = state.earlier.len().saturating_sub(EARLIER_MAX);
        state.earlier.drain(..most);
        Ok(true)
    }

    fn news(&self) -> String {
        format!(
            "{} is another certificate, {}, shown from now on",
            self.certificate.display(),
            self.fingerprint()
        )
    }

    fn kept(&self) -> &'static str {
        "The certificate that was there stays in use"
    }
}

fn read(certificate: &Path, key: &Path) -> Result<CertifiedKey, String> {
    let (chain, private) = (certificates(certificate)?, private_key(key)?);
    let certified = CertifiedKey::from_der(chain, private, &crypto());
    certified.map_err(|error| format!("{}: {error}", certificate.display()))
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let named =
            |(fingerprint, _): &&(Fingerprint, _)| hello.server_name() == Some(&name_of(*fingerprint));
        let earlier = state.earlier.iter().rev().chain([&state.first]).find(named);
        Some(Arc::clone(earlier.map_or(&state.current, |(_, certified)| certified)))
    }
}

/// Which certificate one connection is shown.
#[derive(Debug)]
pub(super) struct Resolved {
    from: Arc<Shown>,
    fingerprint: Mutex<Option<Fingerprint>>,
}

impl Resolved {
    pub(super) fn new(from: Arc<Shown>) -> Resolved {
        Resolved { from, fingerprint: Mutex::new(None) }
    }

    pub(super) fn fingerprint(&self) -> Option<Fingerprint> {
        *self.fingerprint.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ResolvesServerCert for Resolved {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let certified = self.from.resolve(hello)?;
        let shown = fingerprint_of(certified.cert.first()?);
        *self.fingerprint.lock().unwrap_or_else(PoisonError::into_inner) = Some(shown);
        Some(certified)
    }
}

/// As what a client that knows the certificate's fingerprint asks for it. A label of a name has up
/// to 63 characters.
pub(super) fn name_of(fingerprint: Fingerprint) -> String {
    let digits = fingerprint.to_string();
    let (first, second) = digits.split_at(digits.len() / 2);
    format!("{first}.{second}.fingerprint")
}

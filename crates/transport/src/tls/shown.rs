//! Which certificate is shown: the one in the files, read again when they change.
//!
//! Whoever knows this side by the fingerprint of an earlier certificate goes on: it says so in its first message, as the name of
//! whom it wants to reach (server name indication, RFC 6066, section 3), and is shown that one. So a session that was cut, and whoever
//! has an address with a fingerprint, outlives a renewal: the first certificate, which addresses are made with, for as long as this
//! process runs, and many of the later ones.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use sluice_wire::address::Fingerprint;

use super::client::{certificates, private_key};
use super::fingerprint_of;
use super::handshake::crypto;

/// The files are looked at this often; what has changed is read once it has stayed the same from one look to the next.
const LOOK_EVERY: Duration = Duration::from_secs(2);
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
    /// That of the start: whoever was told an address since may know this side by it.
    first: (Fingerprint, Arc<CertifiedKey>),
    /// The latest last.
    earlier: Vec<(Fingerprint, Arc<CertifiedKey>)>,
}

impl Shown {
    pub(super) fn load(certificate: &Path, key: &Path) -> Result<Shown, String> {
        let loaded = Stamp::of([certificate, key]);
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

    /// Shows what is in the files from now on; true if that is another certificate. If they are of no use, nothing changes.
    pub(super) fn reload(&self) -> Result<bool, String> {
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

    /// What the files are now, without a look inside.
    fn stamp(&self) -> Stamp {
        Stamp::of([&self.certificate, &self.key])
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

/// As what a client that knows the certificate's fingerprint asks for it. A label of a name has up to 63 characters.
pub(super) fn name_of(fingerprint: Fingerprint) -> String {
    let digits = fingerprint.to_string();
    let (first, second) = digits.split_at(digits.len() / 2);
    format!("{first}.{second}.fingerprint")
}

/// Device, inode, size, and in seconds and nanoseconds when it was written and when anything of it changed, such as who may read it.
type FileStamp = (u64, u64, u64, [i64; 4]);

/// Of each file; nothing for one that is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamp([Option<FileStamp>; 2]);

impl Stamp {
    fn of(files: [&Path; 2]) -> Stamp {
        Stamp(files.map(|path| {
            let file = fs::metadata(path).ok()?;
            let times = [file.mtime(), file.mtime_nsec(), file.ctime(), file.ctime_nsec()];
            Some((file.dev(), file.ino(), file.size(), times))
        }))
    }
}

/// Follows the files.
#[derive(Debug)]
pub(super) struct Look {
    /// As they were when they were read last.
    read: Stamp,
    /// As they were at the last look.
    last: Stamp,
    /// Why they could not be read when that was tried last.
    failed: Option<String>,
}

impl Look {
    pub(super) fn new(shown: &Shown) -> Look {
        Look { read: shown.loaded.clone(), last: shown.stamp(), failed: None }
    }

    /// Reads the files if they have changed, and did not change since the last look: whoever writes them may not be done. What
    /// came of it then. What fails is tried again at each look, and told again only if it fails for another reason.
    pub(super) fn again(&mut self, shown: &Shown) -> Option<Result<bool, String>> {
        let now = shown.stamp();
        let rests = now == self.last;
        self.last = now.clone();
        if !rests || now == self.read {
            return None;
        }
        match shown.reload() {
            Ok(is_other) => {
                (self.read, self.failed) = (now, None);
                Some(Ok(is_other))
            }
            Err(error) if self.failed.as_ref() == Some(&error) => None,
            Err(error) => {
                self.failed = Some(error.clone());
                Some(Err(error))
            }
        }
    }
}

/// Follows the files in a thread, for as long as somebody shows what is in them.
pub(super) fn follow(shown: &Arc<Shown>, who: &'static str) -> io::Result<()> {
    let mut look = Look::new(shown);
    let shown: Weak<Shown> = Arc::downgrade(shown);
    let follow = move || {
        loop {
            std::thread::sleep(LOOK_EVERY);
            let Some(shown) = shown.upgrade() else { return };
            let file = shown.certificate.display();
            match look.again(&shown) {
                None | Some(Ok(false)) => {}
                Some(Ok(true)) => {
                    eprintln!(
                        "{who}: {file} is another certificate, {}, shown from now on",
                        shown.fingerprint()
                    );
                }
                Some(Err(error)) => eprintln!("{who}: {error}. The certificate that was there stays in use"),
            }
        }
    };
    std::thread::Builder::new().name("certificate".into()).spawn(follow).map(drop)
}

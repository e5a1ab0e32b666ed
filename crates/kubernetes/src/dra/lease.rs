//! The lease of a claim: asked for, waited for, written down and ended.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};

use sluice_api::client::Failure;
use sluice_api::lease::{Lease, LeaseId, LeaseState};
use sluice_api::node::GpuStatus;

use super::claim::Claim;
use super::prepared::Driver;
use crate::name::LeaseName;
use crate::step::wait_message;

/// A lease that waits is asked for this often meanwhile.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// Leases of one claim, each after the last ended.
const ASKS_MAX: u32 = 100;

/// The files that describe a claim and its lease on this machine.
pub(super) struct ClaimFolder(pub(super) PathBuf);

impl ClaimFolder {
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// The folder that containers see.
    pub(super) fn session(&self) -> PathBuf {
        self.0.join("session")
    }

    pub(super) fn session_file(&self) -> PathBuf {
        self.session().join("session")
    }

    pub(super) fn lease(&self) -> Option<LeaseId> {
        fs::read_to_string(self.0.join("lease")).ok()?.trim().parse().ok()
    }

    /// The namespace and the name of the claim.
    pub(super) fn claim(&self) -> Option<(String, String)> {
        let text = fs::read_to_string(self.0.join("claim")).ok()?;
        let (namespace, name) = text.trim().split_once('/')?;
        Some((namespace.to_owned(), name.to_owned()))
    }

    /// The times that the lease had been queued when it was written down.
    fn attempt(&self) -> Option<u32> {
        fs::read_to_string(self.0.join("attempt")).ok()?.trim().parse().ok()
    }

    /// Says whether a session of this attempt of the lease was written here.
    pub(super) fn has_session_of(&self, lease: &Lease) -> bool {
        self.lease() == Some(lease.id)
            && self.attempt() == Some(lease.attempt)
            && self.session_file().is_file()
    }

    fn remove_session(&self) -> Result<(), String> {
        match fs::remove_file(self.session_file()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(format!("{}: {error}", self.session_file().display()))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn write(&self, file: &str, text: &str) -> Result<(), String> {
        let path = self.0.join(file);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
    }
}

impl Driver {
    /// Returns once the claim has a lease that can be held here.
    pub(super) fn lease_of(
        &self,
        claim: &Claim,
        folder: &ClaimFolder,
        deadline: Instant,
    ) -> Result<Lease, String> {
        let gpus: Vec<GpuStatus> = self.client.list("/gpus").map_err(|failure| failure.to_string())?;
        let mut ask = claim.ask(&gpus)?;
        let tenant = self.tenants.get(&claim.namespace).map(|tenant| tenant.parse());
        ask.tenant = tenant.transpose().map_err(|error| format!("--tenant: {error}"))?;
        ask.name = self.lease_name(claim);
        // A claim may be allocated anew, to another device. That is another request.
        let body = serde_json::to_vec(&ask).unwrap_or_default();
        let request = blake3::hash(&body).to_hex();
        let mut count = 0;
        loop {
            // The same request leads to the same lease, whichever process of the driver makes it.
            let key = format!("{}-{}-{count}", claim.uid, &request[..16]);
            let lease: Lease =
                self.client.post_once("/leases", &ask, &key).map_err(|failure| failure.to_string())?;
            match lease.state {
                LeaseState::Ended if count + 1 < ASKS_MAX => count += 1,
                LeaseState::Ended => {
                    return Err(format!("{ASKS_MAX} leases of the claim have ended; make the claim anew"));
                }
                LeaseState::Queued => {
                    self.note_lease(folder, &lease)?;
                    if Instant::now() >= deadline {
                        return Err(wait_message(&lease).1);
                    }
                    std::thread::sleep(ASK_EVERY);
                }
                LeaseState::Granted | LeaseState::Running | LeaseState::Preempting => return Ok(lease),
            }
        }
    }

    /// Writes down the claim's lease. The session of another lease, or of an earlier attempt of the
    /// same one, is of no use any more, and neither is an earlier lease.
    pub(super) fn note_lease(&self, folder: &ClaimFolder, lease: &Lease) -> Result<(), String> {
        let earlier = folder.lease();
        if earlier == Some(lease.id) && folder.attempt() == Some(lease.attempt) {
            return Ok(());
        }
        folder.remove_session()?;
        if let Some(earlier) = earlier.filter(|earlier| *earlier != lease.id) {
            self.end(earlier)?;
        }
        folder.write("attempt", &lease.attempt.to_string())?;
        folder.write("lease", &lease.id.to_string())
    }

    /// The name says whose lease it is. The controller ends leases of its own cluster that have no
    /// pod; these are named as if of another one.
    fn lease_name(&self, claim: &Claim) -> String {
        let cluster = format!("claims.{}", self.cluster);
        let Claim { namespace, name, uid, .. } = claim;
        LeaseName { namespace, pod: name, uid, cluster: &cluster }.to_string()
    }

    pub(super) fn end(&self, lease: LeaseId) -> Result<(), String> {
        match self.client.delete::<Lease>(&format!("/leases/{lease}?finished=true")) {
            Ok(_) => Ok(()),
            Err(Failure::Refused(problem)) if problem.status == 404 => Ok(()),
            Err(failure) => Err(format!("lease {lease}: {failure}")),
        }
    }
}

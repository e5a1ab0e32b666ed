//! Claims that are prepared on this machine: their files, the processes that hold their leases, and
//! their devices for the container runtime.
//!
//! ```text
//!  FOLDER/claims/UID/    claim, attempt, server, lease, key: for `sluice hold`, and to find it all
//!                        again
//!                session/session: what programs attach with, the only part that containers see
//!  FOLDER/libraries-VERSION/    the client libraries, which running programs have mapped
//!  CDI/sluice-UID.json    the device: both folders read-only, and environment variables
//! ```
//! The files are the state: a driver that starts again holds the leases again, and a machine that
//! has started again writes the devices again, since the folder of CDI is empty then.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::{Value, json};
use sluice_api::client::{Client, Failure};
use sluice_api::lease::{Lease, LeaseId, LeaseState};

use super::DRIVER;
use super::claim::{Claim, is_in_use};
use super::lease::ClaimFolder;
use super::messages::{ClaimName, PreparedDevice};
use crate::api::{Api, ApiError, Patch};
use crate::inject::{LIBRARIES, SESSION, environment};

/// The kind of the CDI devices; each has the claim's uid as its name.
const CDI_KIND: &str = "gpu.sluice.dev/claim";
/// A lease is claimed on its node within this time.
const CLAIM_TIME_MAX: Duration = Duration::from_secs(15);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// A claim is gone for sure once the API server has said so this often, one look after another.
const MISSING_LOOKS: u32 = 2;

pub(super) struct Driver {
    pub(super) api: Api,
    pub(super) client: Client,
    pub(super) server: String,
    /// The part of lease names that tells this cluster from others of the same server.
    pub(super) cluster: String,
    pub(super) tenants: HashMap<String, String>,
    pub(super) ptx: bool,
    pub(super) folder: PathBuf,
    pub(super) cdi: PathBuf,
    pub(super) sluice: PathBuf,
    /// The time in which a lease has to be granted.
    pub(super) grant_time_max: Duration,
    /// By the claim's uid; each is locked while it is prepared or unprepared.
    pub(super) entries: Mutex<HashMap<String, Arc<Mutex<Entry>>>>,
}

/// A claim of this machine.
#[derive(Default)]
pub(super) struct Entry {
    /// The process that holds the lease.
    holder: Option<Child>,
    /// The lease that the claim's status says is over.
    reported_over: Option<LeaseId>,
    /// How often in a row the API server had no such claim.
    missing_looks: u32,
    /// It is not in the driver's table any more: another one takes its place.
    is_removed: bool,
}

/// A process that was started to hold a lease.
struct Holder {
    child: Child,
    /// The session file that was there before, as its inode.
    session_before: Option<u64>,
}

impl Entry {
    fn is_held(&mut self) -> bool {
        self.holder.as_mut().is_some_and(|holder| matches!(holder.try_wait(), Ok(None)))
    }

    fn stop_holder(&mut self) {
        if let Some(mut holder) = self.holder.take() {
            // It has ended by itself, or does now; the server ends the lease.
            let _ = holder.kill();
            let _ = holder.wait();
        }
    }
}

impl Driver {
    /// Gives the claim its lease. Where it has one the answer is the same.
    pub(super) fn prepare(&self, name: &ClaimName) -> Result<Vec<PreparedDevice>, String> {
        // The wait for another request for the same claim counts.
        let deadline = Instant::now() + self.grant_time_max;
        let folder = self.claim_folder(&name.uid)?;
        self.locked(&name.uid, |entry| self.prepare_locked(name, &folder, entry, deadline))
    }

    fn prepare_locked(
        &self,
        name: &ClaimName,
        folder: &ClaimFolder,
        entry: &mut Entry,
        deadline: Instant,
    ) -> Result<Vec<PreparedDevice>, String> {
        let path = claim_path(&name.namespace, &name.name);
        let object = self.api.get(&path).map_err(|error| error.to_string())?;
        let claim = Claim::of(&object)?;
        if claim.uid != name.uid {
            return Err(format!("another claim has the name {} now; make the pod anew", name.name));
        }
        if !entry.is_held() {
            let lease = self.take_lease(&claim, folder, deadline)?;
            let mut holder = self.start_holder(folder)?;
            self.wait_until_held(&mut holder, folder)?;
            entry.holder = Some(holder.child);
            // Another attempt of a lease has its number.
            entry.reported_over = None;
            self.report(&claim, &lease_data(&lease), Ok(()));
        }
        self.write_device(&claim.uid, folder)?;
        let prepared = |device: &super::claim::Allocated| PreparedDevice {
            request_names: vec![device.request.clone()],
            pool_name: device.pool.clone(),
            device_name: device.device.clone(),
            cdi_device_ids: vec![format!("{CDI_KIND}={}", claim.uid)],
            share_id: device.share_id.clone(),
        };
        Ok(claim.devices.iter().map(prepared).collect())
    }

    /// Ends the lease, and removes the files. A claim that is not prepared is fine as it is.
    pub(super) fn unprepare(&self, uid: &str) -> Result<(), String> {
        let folder = self.claim_folder(uid)?;
        self.locked(uid, |entry| self.unprepare_locked(uid, &folder, entry))
    }

    fn unprepare_locked(&self, uid: &str, folder: &ClaimFolder, entry: &mut Entry) -> Result<(), String> {
        entry.stop_holder();
        if let Some(lease) = folder.lease() {
            self.end(lease)?;
        }
        for removed in [fs::remove_file(self.device_file(uid)), fs::remove_dir_all(folder.path())] {
            match removed {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.to_string()),
                _ => {}
            }
        }
        // Who waits for this entry's lock looks for another one then.
        entry.is_removed = true;
        lock(&self.entries).remove(uid);
        Ok(())
    }

    /// Holds the leases again that an earlier process of the driver has held.
    pub(super) fn take_up(&self) {
        for uid in self.claims() {
            let Ok(folder) = self.claim_folder(&uid) else { continue };
            if !folder.session_file().is_file() {
                continue;
            }
            match self.start_holder(&folder) {
                Ok(holder) => self.locked(&uid, |entry| entry.holder = Some(holder.child)),
                // It is tried again with the next look at all claims.
                Err(error) => eprintln!("sluice-kubernetes: claim {uid}: {error}"),
            }
        }
    }

    /// Ends what belongs to claims that no pod has any more, which the kubelet may not know of,
    /// asks for leases that wait, and reports those that are over.
    pub(super) fn tend(&self) {
        for uid in self.claims() {
            if let Err(error) = self.tend_one(&uid) {
                eprintln!("sluice-kubernetes: claim {uid}: {error}");
            }
        }
    }

    fn tend_one(&self, uid: &str) -> Result<(), String> {
        let folder = self.claim_folder(uid)?;
        let entry = self.entry(uid);
        let mut entry = match entry.try_lock() {
            Ok(entry) => entry,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // It is being prepared or unprepared, and other claims do not wait for that.
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
        let Some((namespace, name)) = folder.claim().filter(|_| !entry.is_removed) else { return Ok(()) };
        // Read under the lock: what was read before a claim was prepared says nothing about it.
        let claim = match self.api.get(&claim_path(&namespace, &name)) {
            Err(error) if error.is_missing(&name) => {
                entry.missing_looks += 1;
                let is_gone = entry.missing_looks >= MISSING_LOOKS;
                return if is_gone { self.unprepare_locked(uid, &folder, &mut entry) } else { Ok(()) };
            }
            Err(error) => return Err(error.to_string()),
            Ok(object) if !is_in_use(&object, uid) => {
                return self.unprepare_locked(uid, &folder, &mut entry);
            }
            Ok(object) => Claim::of(&object)?,
        };
        entry.missing_looks = 0;
        if folder.session_file().is_file() {
            return self.replace_holder(&claim, &folder, &mut entry);
        }
        if let Some(lease) = folder.lease() {
            // Asked for again, it stays in the queue.
            self.client.get::<Lease>(&format!("/leases/{lease}")).map_err(|failure| failure.to_string())?;
        }
        Ok(())
    }

    /// Looks after a claim that has a session and no holder, because that has ended or did not
    /// start: holds the lease again, or writes into the claim, once, that the lease is over.
    fn replace_holder(&self, claim: &Claim, folder: &ClaimFolder, entry: &mut Entry) -> Result<(), String> {
        if entry.is_held() || folder.lease() == entry.reported_over {
            return Ok(());
        }
        entry.holder = None;
        let Some(id) = folder.lease() else { return Ok(()) };
        let lease: Lease = match self.client.get(&format!("/leases/{id}")) {
            Ok(lease) => lease,
            Err(Failure::Refused(problem)) if problem.status == 404 => {
                let reason = "Sluice's server does not have the lease any more".to_owned();
                self.report(claim, &json!({ "lease": id }), Err(reason));
                entry.reported_over = Some(id);
                return Ok(());
            }
            Err(failure) => return Err(failure.to_string()),
        };
        if lease.state.holds() && folder.has_session_of(&lease) {
            entry.holder = Some(self.start_holder(folder)?.child);
            return Ok(());
        }
        let reason = lease.reason.clone().unwrap_or_else(|| "its holder has ended".to_owned());
        self.report(claim, &lease_data(&lease), Err(reason));
        entry.reported_over = Some(lease.id);
        Ok(())
    }

    /// The lease of a claim, written down so that it can be held.
    fn take_lease(&self, claim: &Claim, folder: &ClaimFolder, deadline: Instant) -> Result<Lease, String> {
        let failed = |error: io::Error| format!("{}: {error}", folder.path().display());
        let mut own = fs::DirBuilder::new();
        own.recursive(true).mode(0o700).create(folder.path()).map_err(failed)?;
        fs::create_dir_all(folder.session()).map_err(failed)?;
        fs::set_permissions(folder.session(), fs::Permissions::from_mode(0o755)).map_err(failed)?;
        folder.write("claim", &format!("{}/{}", claim.namespace, claim.name))?;
        folder.write("server", &self.server)?;
        let lease = self.lease_of(claim, folder, deadline)?;
        match (lease.state, &lease.key) {
            (LeaseState::Granted, Some(key)) => {
                self.note_lease(folder, &lease)?;
                folder.write("key", key)?;
                Ok(lease)
            }
            (LeaseState::Granted, None) => Err(format!("the server gave no key for lease {}", lease.id)),
            _ if folder.has_session_of(&lease) => Ok(lease),
            _ => Err(format!(
                "lease {} of this claim is in use on another machine; pods that share a claim run on one machine",
                lease.id
            )),
        }
    }

    /// Starts the process that holds the lease.
    fn start_holder(&self, folder: &ClaimFolder) -> Result<Holder, String> {
        let session_before = inode(&folder.session_file());
        let mut holder = Command::new(&self.sluice);
        holder.arg("hold").arg("--from").arg(folder.path()).arg("--session-file").arg(folder.session_file());
        holder.arg("--install").arg(self.libraries()).stdin(Stdio::null());
        let child = holder.spawn().map_err(|error| format!("{}: {error}", self.sluice.display()))?;
        Ok(Holder { child, session_before })
    }

    /// Returns once the process holds the lease, so that programs can attach: it writes the session
    /// file then, anew where there is one of an earlier process.
    fn wait_until_held(&self, holder: &mut Holder, folder: &ClaimFolder) -> Result<(), String> {
        let begin = Instant::now();
        let child = &mut holder.child;
        loop {
            let session = inode(&folder.session_file());
            if session.is_some() && session != holder.session_before {
                return Ok(());
            }
            let ended = child.try_wait().map_err(|error| format!("{}: {error}", self.sluice.display()))?;
            if let Some(status) = ended {
                return Err(format!("`sluice hold` ended with {status}; the driver's log says why"));
            }
            if begin.elapsed() > CLAIM_TIME_MAX {
                let _ = child.kill();
                let _ = child.wait();
                return Err(
                    "the lease's node did not answer in time; is it reached from this machine?".to_owned()
                );
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Ends the processes that hold leases, and not the leases: the next process of the driver
    /// holds them again. A claim that is being prepared is left alone.
    pub(super) fn stop_holders(&self) {
        for entry in lock(&self.entries).values() {
            if let Ok(mut entry) = entry.try_lock() {
                entry.stop_holder();
            }
        }
    }

    /// The libraries of this release: programs that have mapped those of another keep them.
    fn libraries(&self) -> PathBuf {
        self.folder.join(concat!("libraries-", env!("CARGO_PKG_VERSION")))
    }

    fn claim_folder(&self, uid: &str) -> Result<ClaimFolder, String> {
        let is_name = !uid.is_empty() && uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        is_name
            .then(|| ClaimFolder(self.folder.join("claims").join(uid)))
            .ok_or_else(|| format!("{uid:?} is no uid of a claim"))
    }

    /// The uids of all claims with files here.
    fn claims(&self) -> Vec<String> {
        let folders = fs::read_dir(self.folder.join("claims")).into_iter().flatten().flatten();
        folders.filter_map(|folder| folder.file_name().into_string().ok()).collect()
    }

    /// Does something with a claim's entry while nothing else does.
    fn locked<T>(&self, uid: &str, act: impl FnOnce(&mut Entry) -> T) -> T {
        loop {
            let entry = self.entry(uid);
            let mut entry = lock(&entry);
            // The claim was unprepared meanwhile, and the table has another entry or none.
            if !entry.is_removed {
                return act(&mut entry);
            }
        }
    }

    fn entry(&self, uid: &str) -> Arc<Mutex<Entry>> {
        Arc::clone(lock(&self.entries).entry(uid.to_owned()).or_default())
    }

    fn device_file(&self, uid: &str) -> PathBuf {
        self.cdi.join(format!("sluice-{uid}.json"))
    }

    /// Writes the CDI device (Container Device Interface, 0.6.0), unless it is there.
    fn write_device(&self, uid: &str, folder: &ClaimFolder) -> Result<(), String> {
        let file = self.device_file(uid);
        if file.is_file() {
            return Ok(());
        }
        let mount = |from: &Path, to: &str| json!({ "hostPath": from, "containerPath": to, "options": ["ro", "nosuid", "nodev", "rbind"] });
        let variables = environment(self.ptx).into_iter().map(|(name, value)| format!("{name}={value}"));
        let device = json!({
            "cdiVersion": "0.6.0",
            "kind": CDI_KIND,
            "devices": [{
                "name": uid,
                "containerEdits": {
                    "env": variables.collect::<Vec<_>>(),
                    "mounts": [mount(&self.libraries(), LIBRARIES), mount(&folder.session(), SESSION)],
                },
            }],
        });
        let failed = |error: io::Error| format!("{}: {error}", file.display());
        fs::create_dir_all(&self.cdi).map_err(failed)?;
        // Runtimes read every .json file of the folder.
        let unfinished = file.with_extension("unfinished");
        fs::write(&unfinished, device.to_string()).map_err(failed)?;
        fs::rename(&unfinished, &file).map_err(failed)
    }

    /// Writes the lease, and whether it is there, into the status of the claim's devices. That is
    /// for people: where it fails, the claim is prepared all the same.
    fn report(&self, claim: &Claim, data: &Value, is_ready: Result<(), String>) {
        let (status, reason, message) = match is_ready {
            Ok(()) => ("True", "LeaseGranted", format!("lease {} is held", data["lease"])),
            Err(message) => ("False", "LeaseOver", message),
        };
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let device = |device: &super::claim::Allocated| {
            let mut status = json!({
                "driver": DRIVER, "pool": device.pool, "device": device.device, "data": data,
                "conditions": [{
                    "type": "Ready", "status": status, "reason": reason, "message": message,
                    "lastTransitionTime": now,
                }],
            });
            if let Some(share) = &device.share_id {
                status["shareID"] = share.as_str().into();
            }
            status
        };
        let applied = json!({
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": { "namespace": claim.namespace, "name": claim.name, "uid": claim.uid },
            "status": { "devices": claim.devices.iter().map(device).collect::<Vec<_>>() },
        });
        let path = format!("{}/status", claim_path(&claim.namespace, &claim.name));
        match self.api.patch(&path, Patch::Apply, &applied) {
            Err(ApiError::Refused { status: 404, .. }) | Ok(_) => {}
            Err(error) => eprintln!("sluice-kubernetes: status of claim {}: {error}", claim.name),
        }
    }
}

#[cfg(test)]
impl Driver {
    pub(super) fn has_holder(&self, uid: &str) -> bool {
        lock(&self.entry(uid)).is_held()
    }

    /// Ends the holder as if by itself: the driver learns of it later.
    pub(super) fn kill_holder(&self, uid: &str) {
        let entry = self.entry(uid);
        let mut entry = lock(&entry);
        let holder = entry.holder.as_mut().expect("it is held");
        holder.kill().and_then(|()| holder.wait()).expect("a child of this process");
    }
}

/// No process outlives the driver.
impl Drop for Entry {
    fn drop(&mut self) {
        self.stop_holder();
    }
}

fn claim_path(namespace: &str, name: &str) -> String {
    format!("/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}")
}

fn lease_data(lease: &Lease) -> Value {
    let nodes: Vec<&str> = lease.places.iter().map(|place| place.node.as_str()).collect();
    json!({ "lease": lease.id, "nodes": nodes })
}

fn inode(file: &Path) -> Option<u64> {
    fs::metadata(file).ok().map(|metadata| metadata.ino())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

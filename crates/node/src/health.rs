//! What is wrong with this node's GPUs, as far as it is found out here; the server decides what
//! becomes of that.
//!
//! A watcher, which is a process of its own as every user of a driver is, asks NVML and says once a
//! second what it has found ([`sluice_worker_link::health`]). If it says nothing for
//! [`NodeConfig::driver_patience`], the driver hangs. A worker says so of a driver that does not
//! return from a call ([`Registry::driver_hangs`]), and one that was killed and does not end hangs
//! in it too, unless it may be waiting for the disk of a swap file ([`Registry::await_end`]).

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sluice_api::health::{Clearing, Condition, GpuFault, is_version};
use sluice_worker_link::health::{ARGUMENT, Figures, Finding, Harm, Look, Watch};
use sluice_worker_link::link::Driver;

use crate::config::{NodeConfig, WorkerCommand};
use crate::inventory::Inventory;
use crate::output;
use crate::registry::{Registry, one_line};

/// A watcher that has ended is started again after this; one that never said anything, each time
/// after twice as long.
const AGAIN_AFTER: Duration = Duration::from_secs(30);
const AGAIN_AFTER_MAX: Duration = Duration::from_secs(3600);
/// Lasting faults that wait for the server. More say nothing new.
const LASTING_MAX: usize = 100;

/// What was not reported to the server yet.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    state: Mutex<State>,
    /// The process that watches now; 0 without one.
    watcher: AtomicU32,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct State {
    lasting: Vec<GpuFault>,
    /// As of the last look.
    passing: Vec<GpuFault>,
    /// What NVML said of each GPU at the last look.
    figures: BTreeMap<u32, Figures>,
    /// Faults of each GPU that were found so far.
    found: BTreeMap<u32, u64>,
}

impl Faults {
    /// All of them, and how many of them, from the first, are lasting ones.
    pub(crate) fn all(&self) -> (Vec<GpuFault>, usize) {
        let state = self.lock();
        (state.lasting.iter().chain(&state.passing).cloned().collect(), state.lasting.len())
    }

    /// What NVML said of each GPU at the last look; nothing of GPUs that it does not know.
    pub(crate) fn figures(&self) -> BTreeMap<u32, Figures> {
        self.lock().figures.clone()
    }

    /// Returns the condition of each GPU, for the server.
    pub(crate) fn conditions(&self) -> BTreeMap<u32, Condition> {
        self.lock().figures.iter().map(|(gpu, figures)| (*gpu, condition(figures))).collect()
    }

    /// No watcher looks any more: what the last one said is not true of now.
    fn unwatched(&self) {
        self.lock().figures.clear();
    }

    /// Faults of each GPU that were found since the start: lasting ones, and beginnings of passing
    /// ones.
    pub(crate) fn found(&self) -> BTreeMap<u32, u64> {
        self.lock().found.clone()
    }

    /// The server has taken this number of lasting ones.
    pub(crate) fn taken(&self, lasting: usize) {
        let mut state = self.lock();
        let lasting = lasting.min(state.lasting.len());
        state.lasting.drain(..lasting);
    }

    /// Adds a lasting one, and says so in the log.
    pub(crate) fn add(&self, gpu: u32, what: &str, sessions: Clearing) {
        let fault = GpuFault { gpu, what: one_line(what), sessions, lasting: true };
        let mut state = self.lock();
        if state.lasting.len() < LASTING_MAX && !state.lasting.contains(&fault) {
            tracing::error!(gpu, "GPU {gpu} is faulty: {}", fault.what);
            state.lasting.push(fault);
            *state.found.entry(gpu).or_default() += 1;
        }
    }

    /// True if something has begun.
    fn look(&self, look: Look) -> bool {
        for finding in &look.lasting {
            self.add(finding.gpu, &finding.what, sessions(finding.harm));
        }
        let mut state = self.lock();
        let passing: Vec<GpuFault> = look.passing.into_iter().map(passing).collect();
        let of = |faults: &[GpuFault]| faults.iter().map(|fault| fault.gpu).collect::<Vec<_>>();
        let begins = of(&passing) != of(&state.passing);
        for fault in &passing {
            let is_new = !state.passing.iter().any(|before| before.gpu == fault.gpu);
            *state.found.entry(fault.gpu).or_default() += u64::from(is_new);
        }
        state.figures = look.figures.into_iter().collect();
        state.passing = passing;
        begins || !look.lasting.is_empty()
    }

    /// The process that watches now.
    pub(crate) fn watcher(&self) -> Option<u32> {
        Some(self.watcher.load(Relaxed)).filter(|watcher| *watcher != 0)
    }

    /// For the next program, which has a watcher of its own: what this one's has said is not of
    /// then.
    pub(crate) fn saved(&self) -> State {
        State { passing: Vec::new(), figures: BTreeMap::new(), ..self.lock().clone() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<State> for Faults {
    fn from(saved: State) -> Faults {
        Faults { state: Mutex::new(saved), watcher: AtomicU32::new(0) }
    }
}

fn condition(figures: &Figures) -> Condition {
    Condition {
        temperature_c: figures.temperature_c,
        slowdown_at_c: figures.slowdown_at_c,
        power_mw: figures.power_mw,
        power_limit_mw: figures.power_limit_mw,
        sm_clock_mhz: figures.sm_clock_mhz,
        driver: figures.driver_version.clone().filter(|version| is_version(version)),
        xid: figures.xid,
    }
}

fn passing(finding: Finding) -> GpuFault {
    let Finding { gpu, what, harm } = finding;
    GpuFault { gpu, what: one_line(&what), sessions: sessions(harm), lasting: false }
}

fn sessions(harm: Harm) -> Clearing {
    match harm {
        Harm::Degraded => Clearing::Finish,
        Harm::Contained => Clearing::Preempt,
        Harm::Lost => Clearing::End,
    }
}

/// The NVML to watch these GPUs through: the one that is named, else NVIDIA's beside its driver. A
/// node that has neither a server nor metrics has no receiver for it.
pub(crate) fn library(config: &NodeConfig, inventory: &Inventory) -> Option<PathBuf> {
    const NAME: &str = "libnvidia-ml.so.1";
    if config.join.is_none() && config.metrics.is_none() {
        return None;
    }
    if config.nvml.is_some() {
        return config.nvml.clone();
    }
    let Driver::Library { path } = &inventory.driver else { return None };
    let beside = Path::new(path).parent()?.join(NAME);
    beside.exists().then_some(beside)
}

/// The GPUs as NVML knows them.
pub(crate) fn watched(inventory: &Inventory, library: &Path) -> Watch {
    let uuid = |gpu: &sluice_wire::control::DeviceSnapshot| sluice_control::uuid_text(gpu.uuid);
    let gpus = inventory.snapshots.iter().map(uuid).collect();
    Watch { library: library.display().to_string(), gpus }
}

/// Has a watcher run for as long as the node does; never returns.
pub(crate) fn watch(registry: &Arc<Registry>, worker: &WorkerCommand, library: &Path) -> ! {
    let watch = watched(registry.inventory(), library);
    let mut again_after = AGAIN_AFTER;
    loop {
        let heard = match start(&watch, worker) {
            Ok((child, looks)) => follow(registry, child, &looks),
            Err(error) => {
                tracing::warn!("the watcher of the GPUs' health cannot be started: {error}");
                false
            }
        };
        again_after = if heard { AGAIN_AFTER } else { (again_after * 2).min(AGAIN_AFTER_MAX) };
        tracing::warn!("the GPUs' health is not watched for the next {} s", again_after.as_secs());
        std::thread::sleep(again_after);
    }
}

fn start(watch: &Watch, worker: &WorkerCommand) -> std::io::Result<(Child, Receiver<Look>)> {
    let mut command = Command::new(&worker.program);
    command.args(&worker.arguments).arg(ARGUMENT).arg(serde_json::to_string(watch)?);
    // It ends with the daemon: this thread starts it, and lives as long.
    // SAFETY: between fork and exec the closure makes one system call and touches no memory.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        })
    };
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (pid, errors) = (child.id(), child.stderr.take());
    std::thread::Builder::new().name("watcher output".into()).spawn(move || {
        errors.into_iter().for_each(|errors| output::follow(errors, |line| output::log(pid, line)));
    })?;
    let lines = child.stdout.take().map(BufReader::new);
    let (sender, looks) = sync_channel(1);
    std::thread::Builder::new().name("looks".into()).spawn(move || {
        for line in lines.into_iter().flat_map(BufRead::lines) {
            let look = line.ok().and_then(|line| serde_json::from_str(&line).ok());
            if look.is_none_or(|look| sender.send(look).is_err()) {
                return;
            }
        }
    })?;
    Ok((child, looks))
}

/// Takes what a watcher says until it ends, or says nothing any more. False if it never said
/// anything.
fn follow(registry: &Registry, mut child: Child, looks: &Receiver<Look>) -> bool {
    let mut heard = false;
    registry.faults.watcher.store(child.id(), Relaxed);
    loop {
        match looks.recv_timeout(registry.driver_patience) {
            Ok(look) => {
                heard = true;
                if registry.faults.look(look) {
                    registry.tell_server();
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                for gpu in 0..registry.inventory().cards.len() as u32 {
                    let patience_s = registry.driver_patience.as_secs();
                    let what = format!("its driver hangs: NVML says nothing for {patience_s} s");
                    registry.faults.add(gpu, &what, Clearing::End);
                }
                registry.tell_server();
                break;
            }
        }
    }
    registry.faults.unwatched();
    registry.faults.watcher.store(0, Relaxed);
    let _ = child.kill();
    // One that hangs in the driver cannot be waited for here.
    let reaper = std::thread::Builder::new().name("last watcher".into());
    if let Err(error) = reaper.spawn(move || child.wait()) {
        tracing::warn!("nothing waits for the last watcher: {error}");
    }
    heard
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, AsRawFd};

    use sluice_transport::process::ProcessWatch;

    use super::*;
    use crate::clock::SystemClock;
    use crate::lease::Card;
    use crate::registry::MayHang;
    use crate::spawn::Spawner;

    fn finding(gpu: u32, harm: Harm) -> Finding {
        Finding { gpu, what: format!("{harm:?}"), harm }
    }

    #[test]
    fn lasting_faults_wait_for_the_server_and_passing_ones_are_as_of_now() {
        let faults = Faults::default();
        let (lasting, passing) = (vec![finding(1, Harm::Lost)], vec![finding(0, Harm::Degraded)]);
        let driver_version = Some("no version".into());
        let figures = vec![(0, Figures { temperature_c: Some(95), driver_version, ..Figures::default() })];
        let hot = Condition { temperature_c: Some(95), ..Condition::default() };
        let both = Look { lasting, passing, figures };
        assert!(faults.look(both));
        assert_eq!(faults.figures()[&0].temperature_c, Some(95));
        assert_eq!(faults.conditions()[&0], hot);
        let hot = Look { passing: vec![finding(0, Harm::Degraded)], ..Look::default() };
        assert!(!faults.look(hot), "nothing new");
        assert_eq!(
            faults.found().into_iter().collect::<Vec<_>>(),
            [(0, 1), (1, 1)],
            "heat that lasts is one fault"
        );
        assert!(faults.figures().is_empty(), "what is not said any more is not shown any more");
        let (all, lasting) = faults.all();
        assert_eq!((all.len(), lasting), (2, 1));
        assert_eq!((all[0].gpu, all[0].sessions, all[0].lasting), (1, Clearing::End, true));
        assert_eq!((all[1].gpu, all[1].sessions, all[1].lasting), (0, Clearing::Finish, false));

        // What comes while a report is on its way goes with the next one.
        faults.add(2, "another", Clearing::End);
        faults.taken(lasting);
        faults.look(Look::default());
        let (all, lasting) = faults.all();
        assert_eq!((all.len(), lasting, all[0].gpu), (1, 1, 2));
        faults.add(2, "another", Clearing::End);
        assert_eq!(faults.all().1, 1, "it is said already");
    }

    /// Of two GPUs, with hardly any patience.
    fn registry() -> Registry {
        let card = Card { name: "a GPU".into(), memory: 1 << 30 };
        let inventory = Inventory {
            driver: Driver::Software { memory: vec![1 << 30; 2] },
            cards: vec![card; 2],
            snapshots: Vec::new(),
        };
        let spawner = Spawner::start(WorkerCommand::default(), true).unwrap();
        let config = NodeConfig {
            cache: None,
            linger: Duration::ZERO,
            driver_patience: Duration::from_millis(20),
            ..NodeConfig::default()
        };
        Registry::new(
            &config,
            inventory,
            (spawner, crate::swap_space::SwapSpace::open(0, None).unwrap()),
            None,
            Arc::new(SystemClock::new()),
        )
    }

    /// One that ends only when it is killed.
    fn endless() -> Child {
        Command::new("sleep").arg("infinity").spawn().unwrap()
    }

    #[test]
    fn a_watcher_that_says_nothing_any_more_hangs_in_the_driver() {
        let registry = registry();
        let (says, looks) = sync_channel(1);
        let hot = Look { passing: vec![finding(0, Harm::Degraded)], ..Look::default() };
        says.send(hot).unwrap();
        let child = endless();
        let watch = ProcessWatch::new(child.id()).unwrap().unwrap();
        assert!(follow(&registry, child, &looks), "it said something before");
        let (faults, lasting) = registry.faults.all();
        assert_eq!((faults.len(), lasting), (3, 2), "{faults:?}");
        for (gpu, fault) in faults[..2].iter().enumerate() {
            assert_eq!((fault.gpu as usize, fault.sessions, fault.lasting), (gpu, Clearing::End, true));
            assert!(fault.what.contains("its driver hangs: NVML"), "{fault:?}");
        }
        // It is not left behind.
        let mut ended = libc::pollfd { fd: watch.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the pointer and length describe `ended`.
        assert_eq!(unsafe { libc::poll(&mut ended, 1, 60_000) }, 1);
    }

    #[test]
    fn a_watcher_that_ends_says_nothing_of_the_driver() {
        let registry = registry();
        let (says, looks) = sync_channel::<Look>(1);
        drop(says);
        assert!(!follow(&registry, endless(), &looks), "it never said anything");
        assert_eq!(registry.faults.all().0, []);
    }

    /// Nothing that can be killed hangs so; one that nobody kills does as well.
    #[test]
    fn a_worker_that_does_not_end_hangs_in_the_driver_of_its_own_gpus() {
        let registry = Arc::new(registry());
        let mut worker = endless();
        let (waits, pid) = (Arc::clone(&registry), worker.id());
        let waiter = std::thread::spawn(move || waits.await_end(pid, &MayHang::Driver(vec![1]), || ()));
        while registry.faults.all().1 == 0 {
            assert!(!waiter.is_finished(), "it waits for the worker");
            std::thread::yield_now();
        }
        let (faults, _) = registry.faults.all();
        assert_eq!(faults.iter().map(|fault| fault.gpu).collect::<Vec<_>>(), [1]);
        assert!(faults[0].what.contains("its driver hangs: a worker was killed"), "{faults:?}");
        worker.kill().unwrap();
        waiter.join().unwrap();
        worker.wait().unwrap();
    }

    #[test]
    fn a_worker_that_may_wait_for_the_disk_says_nothing_of_the_driver() {
        let registry = Arc::new(registry());
        let mut worker = endless();
        let (waits, pid) = (Arc::clone(&registry), worker.id());
        let (says, hangs) = sync_channel(1);
        let waiter = std::thread::spawn(move || {
            waits.await_end(pid, &MayHang::Disk, || says.send(()).unwrap());
        });
        hangs.recv().unwrap();
        assert_eq!(registry.faults.all().0, []);
        worker.kill().unwrap();
        waiter.join().unwrap();
        worker.wait().unwrap();
    }
}

//! The sessions of this process: one connection to one worker for each node of its lease, all made
//! at the first call that needs one ([`init`](crate::lifecycle::init)). Nearly always there is one.
//!
//! With several, a device, its contexts, and everything made in them belong to the session of that
//! device's node. A call goes to the session of the current context, or to that of its own stream,
//! other handle or address ([`routed`](crate::entry::routing::routed)). Copies between two of them
//! are in [`between_nodes`](crate::copy::between_nodes), other calls that concern two in
//! [`other_node`].
//!
//! A session knows the connection and the devices. It holds state of memory, mappings and mirrors
//! as plain data, and calls nothing of the modules that work on it.
//!
//! # In this folder
//!
//! How sessions are made ([`attach`]), how commands are sent in one ([`issue`], implemented in
//! [`handles`](crate::entry::handles)), and answers that are kept ([`answers`], [`facts`]).

mod announce;
pub(crate) mod answers;
pub(crate) mod attach;
pub(crate) mod facts;
pub(crate) mod issue;
pub(crate) mod other_node;
pub(crate) mod visible;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_cuda::*;
use sluice_wire::address::Endpoint;

use crate::abi::ids;
use crate::context::{self, Primary};
use crate::copy::reads::Reads;
use crate::device::{Device, place_of};
use crate::host_memory::blocks;
use crate::host_memory::session_state::{Live, Progress};
use crate::link::Link;
use crate::memory::mappings::VirtualMemory;
use crate::session::answers::Answers;

pub(crate) struct Session {
    /// Its place among the sessions of this process.
    pub(crate) index: u8,
    /// Where its node is.
    pub(crate) node: Endpoint,
    pub(crate) link: Link,
    pub(crate) devices: Vec<Device>,
    /// The range in which this side names device addresses; empty where the node does.
    pub(crate) minted: Range<u64>,
    /// What the node can do for this session.
    pub(crate) functions: Presence,
    /// Module globals that programs have asked for, by address.
    globals: Mutex<BTreeMap<u64, Global>>,
    /// Limits that the program has set.
    limits: Mutex<BTreeMap<CUlimit, u64>>,
    /// Answers about nothing that changes.
    pub(crate) answers: Answers,
    /// Addresses and memory that the program manages itself.
    pub(crate) virtual_memory: Mutex<VirtualMemory>,
    /// Keeping host memory equal while device code runs.
    pub(crate) live: Live,
    /// How far what its commands have written is fetched.
    pub(crate) fetched: Progress,
    /// What large copies to the program read.
    pub(crate) reads: Reads,
    /// Whether its host functions have a thread.
    pub(crate) has_host_thread: AtomicBool,
}

/// Every session, and which of them each device belongs to, by its ordinal.
pub(crate) struct Sessions {
    pub(crate) list: Vec<Session>,
    of_device: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Global {
    bytes: u64,
    module: u64,
}

/// The sessions, once there are any. They are never freed: any thread may be inside one when the
/// process ends.
static SESSIONS: AtomicPtr<Sessions> = AtomicPtr::new(std::ptr::null_mut());
static INITIALIZED: AtomicBool = AtomicBool::new(false);
/// In a forked child that has no session and gets none: what its calls answer; else 0.
static ABSENT: AtomicI32 = AtomicI32::new(0);

/// Whether the program has called `cuInit`.
pub(crate) fn is_initialized() -> bool {
    INITIALIZED.load(Ordering::Acquire)
}

/// The error of the calling thread's session, if its context is lost.
pub(crate) fn check_failure() -> Result<(), CUresult> {
    get().map_or(Ok(()), |session| session.link.check())
}

/// All sessions of an initialized process.
pub(crate) fn all() -> Result<&'static Sessions, CUresult> {
    if !INITIALIZED.load(Ordering::Acquire) {
        return Err(absence().unwrap_or(CUresult::NOT_INITIALIZED));
    }
    existing().ok_or(CUresult::NOT_INITIALIZED)
}

/// Why this process has no session and gets none.
pub(crate) fn absence() -> Option<CUresult> {
    CUresult(ABSENT.load(Ordering::Acquire)).ok().err()
}

/// A forked child has no session and gets none.
pub(crate) fn set_absence(error: CUresult) {
    ABSENT.store(error.0, Ordering::Release);
}

/// Whether there are several sessions.
pub(crate) fn are_many() -> bool {
    context::on_several_nodes()
}

/// The session that the calling thread works with: that of its context's device, the first where it
/// has no context.
pub(crate) fn get() -> Result<&'static Session, CUresult> {
    let all = all()?;
    if are_many() { all.of(context::device()) } else { all.list.first().ok_or(CUresult::NO_DEVICE) }
}

/// The session that a device belongs to.
pub(crate) fn of(device: CUdevice) -> Result<&'static Session, CUresult> {
    all()?.of(device)
}

/// A device of any session.
pub(crate) fn device(ordinal: CUdevice) -> Result<&'static Device, CUresult> {
    of(ordinal)?.device(ordinal)
}

/// The device whose memory an address is in.
pub(crate) fn of_address(address: CUdeviceptr) -> Option<CUdevice> {
    let all = all().ok()?;
    if blocks::is_only_here(address) {
        return None;
    }
    let minted = |device: &&Device| device.minted.contains(&address);
    if let Some(device) = all.devices().find(minted) {
        return Some(device.ordinal);
    }
    // What the nodes' drivers name themselves, such as a module's variables, may be the same for
    // two of them.
    let here = get().ok()?;
    let holds = |session: &&Session| session.holds(address, 1);
    let holder = std::iter::once(here).chain(&all.list).find(holds)?;
    holder.devices.first().map(|device| device.ordinal)
}

/// Whether a device belongs to the session that the calling thread works with.
pub(crate) fn is_here(device: CUdevice) -> bool {
    get().is_ok_and(|session| session.has(device))
}

/// The session, for a call that needs a current context.
pub(crate) fn enter() -> Result<&'static Session, CUresult> {
    let session = get()?;
    context::check_current()?;
    Ok(session)
}

pub(crate) fn set_initialized() {
    INITIALIZED.store(true, Ordering::Release);
}

/// Makes the process one that has not called `cuInit`; says whether it had.
pub(crate) fn take_initialized() -> bool {
    INITIALIZED.swap(false, Ordering::AcqRel)
}

/// Sets the sessions of this process.
pub(crate) fn set_all(sessions: Option<&'static Sessions>) {
    let sessions = sessions.map_or(std::ptr::null_mut(), |all| std::ptr::from_ref(all).cast_mut());
    SESSIONS.store(sessions, Ordering::Release);
}

/// Returns the handle of a graph's node that a worker has named: workers do not know each other's
/// names.
pub(crate) fn of_worker(name: u64) -> u64 {
    let device = get().ok().and_then(|session| session.devices.first());
    ids::of_worker_on(device.map_or(0, |device| device.ordinal), name)
}

/// Returns the sessions, also before the program has called `cuInit`.
pub(crate) fn existing() -> Option<&'static Sessions> {
    // SAFETY: null, or what was leaked when it was made.
    unsafe { SESSIONS.load(Ordering::Acquire).as_ref() }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sessions {
    /// Of sessions that stand where their indices say, and whose devices have each ordinal once.
    pub(crate) fn new(list: Vec<Session>) -> Sessions {
        let count = list.iter().map(|session| session.devices.len()).sum();
        let mut of_device = vec![0; count];
        for session in &list {
            for device in &session.devices {
                of_device[device.ordinal as usize] = session.index;
            }
        }
        Sessions { list, of_device }
    }

    fn of(&self, device: CUdevice) -> Result<&Session, CUresult> {
        let index = usize::try_from(device).ok().and_then(|device| self.of_device.get(device));
        index.and_then(|&index| self.list.get(usize::from(index))).ok_or(CUresult::INVALID_DEVICE)
    }

    /// All devices, session by session.
    pub(crate) fn devices(&self) -> impl Iterator<Item = &Device> {
        self.list.iter().flat_map(|session| &session.devices)
    }

    /// All devices as the program counts them.
    pub(crate) fn ordered_devices(&self) -> impl Iterator<Item = &Device> {
        (0..).zip(&self.of_device).filter_map(|(ordinal, _)| self.of(ordinal).ok()?.device(ordinal).ok())
    }

    pub(crate) fn device_count(&self) -> usize {
        self.of_device.len()
    }
}

impl Session {
    pub(crate) fn new(
        (index, node): (u8, Endpoint),
        link: Link,
        devices: Vec<Device>,
        minted: Range<u64>,
    ) -> Session {
        Session {
            index,
            node,
            functions: functions(&devices),
            link,
            devices,
            minted,
            globals: Mutex::new(BTreeMap::new()),
            limits: Mutex::new(BTreeMap::new()),
            answers: Answers::default(),
            virtual_memory: Mutex::default(),
            live: Live::default(),
            fetched: Progress::default(),
            reads: Reads::default(),
            has_host_thread: AtomicBool::new(false),
        }
    }

    /// A device of this session, by its ordinal among those of all.
    pub(crate) fn device(&self, ordinal: CUdevice) -> Result<&Device, CUresult> {
        self.devices.iter().find(|device| device.ordinal == ordinal).ok_or(CUresult::INVALID_DEVICE)
    }

    pub(crate) fn has(&self, device: CUdevice) -> bool {
        self.device(device).is_ok()
    }

    /// Whether a handle is one of this session.
    pub(crate) fn owns(&self, handle: u64) -> bool {
        !are_many() || ids::device(handle).is_none_or(|device| self.has(device))
    }

    /// The calling thread's device, if it is of this session.
    pub(crate) fn here(&self) -> Option<&Device> {
        self.device(context::device()).ok()
    }

    /// The place in the headers of the calling thread's commands: of its green context, or of its
    /// device in the lease.
    pub(crate) fn place(&self) -> u8 {
        self.here().map_or(0, place_of)
    }

    pub(crate) fn primary(&self, device: CUdevice) -> Result<&Primary, CUresult> {
        Ok(&self.device(device)?.primary)
    }

    /// Whether an address can only be the device's.
    pub(crate) fn is_device_address(&self, address: u64) -> bool {
        if blocks::is_only_here(address) {
            return false;
        }
        self.minted.contains(&address)
            || self.holds(address, 1)
            || (are_many() && of_address(address).is_some())
    }

    /// Whether `bytes` bytes from `address` lie in one allocation or module global, or in mapped
    /// memory.
    pub(crate) fn holds(&self, address: u64, bytes: u64) -> bool {
        let within = |start: u64, size: u64| {
            address.checked_sub(start).is_some_and(|offset| offset < size && bytes <= size - offset)
        };
        if let Some((_, allocation)) = self.find_allocation(address) {
            return within(allocation.start, allocation.bytes);
        }
        let globals = locked(&self.globals);
        globals.range(..=address).next_back().is_some_and(|(&start, global)| within(start, global.bytes))
            || self.virtual_memory().is_accessible(address, bytes)
    }

    pub(crate) fn know_global(&self, module: u64, address: u64, bytes: u64) {
        locked(&self.globals).insert(address, Global { bytes, module });
    }

    /// Module, address and size of the global variable that an address lies in.
    pub(crate) fn find_global(&self, address: u64) -> Option<(u64, u64, u64)> {
        let globals = locked(&self.globals);
        let (&start, global) = globals.range(..=address).next_back()?;
        (address - start < global.bytes).then_some((global.module, start, global.bytes))
    }

    /// Forgets the global variables of a module; returns their addresses.
    pub(crate) fn take_globals(&self, module: u64) -> Vec<u64> {
        let mut globals = locked(&self.globals);
        globals.extract_if(.., |_, global| global.module == module).map(|(address, _)| address).collect()
    }

    pub(crate) fn limit_set(&self, limit: CUlimit) -> Option<u64> {
        locked(&self.limits).get(&limit).copied()
    }

    pub(crate) fn remember_limit(&self, limit: CUlimit, value: u64) {
        locked(&self.limits).insert(limit, value);
    }
}

/// What every device of a lease has, and what the session's own messages do on any driver.
fn functions(devices: &[Device]) -> Presence {
    const ANYWAY: &[Fn] = &[
        Fn::cuMemAlloc_v2,
        Fn::cuMemFree_v2,
        Fn::cuMemGetInfo_v2,
        // One message for all kinds of nodes, the newest form for all forms of a question, and what
        // the worker knows itself.
        Fn::cuGraphAddNode_v2,
        Fn::cuGraphNodeSetParams,
        Fn::cuGraphExecNodeSetParams,
        Fn::cuGraphNodeGetParams,
        Fn::cuGraphNodeGetContainingGraph,
        Fn::cuGraphGetEdges_v2,
        Fn::cuGraphNodeGetDependencies_v2,
        Fn::cuGraphNodeGetDependentNodes_v2,
        Fn::cuStreamGetCaptureInfo_v3,
    ];
    let mut all = Presence::default();
    for info in FUNCTIONS.iter() {
        let everywhere = devices.iter().all(|device| device.snapshot.functions.contains(info.function));
        if everywhere || ANYWAY.contains(&info.function) {
            all.insert(info.function);
        }
    }
    all
}

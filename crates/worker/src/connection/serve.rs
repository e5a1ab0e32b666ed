//! A worker's life: take over what the daemon hands down, start the driver, serve the client, end.

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sluice_cuda::{CUresult, DriverTable};
use sluice_softgpu::SystemOrder;
use sluice_transport::Stream;
use sluice_wire::Op;
use sluice_wire::control::{ResumeTerms, SessionOpen, SessionOpened, SessionRefused};
use sluice_wire::handshake::SessionSecret;
use sluice_wire::migration::SessionState;

use crate::INHERITED_FDS;
use crate::connection::client::{Client, frame_of};
use crate::connection::migration::arrive::{self, NotArrived};
use crate::connection::migration::depart;
use crate::connection::migration::pause::Pause;
use crate::connection::reader::Reader;
use crate::connection::snapshot;
use crate::counters::CounterPage;
use crate::driver::EventSharing;
use crate::driver::output::DriverOutput;
use crate::driver::own_memory::LeaseAccount;
use crate::driver::{self, DriverError};
use crate::link::{Driver, GpuPart, Packet, PacketSocket, ResumeStart, Start};
use crate::live::mirrors::Reach;
use crate::memory::ballast::Source;
use crate::memory::budget::{Answers, Budget};
use crate::memory::host_memory::HostMemory;
use crate::memory::{spare, swap};
use crate::modules::code_cache::CodeCache;
use crate::modules::disk_cache::DiskCache;
use crate::modules::images::Images;
use crate::outbox::{Outbox, Push};
use crate::pipeline::Pipeline;
use crate::process::ending;
use crate::process::hang;
use crate::process::sandbox::{self, SandboxError};
use crate::process::watchdog;
use crate::schedule::gate::Gate;
use crate::schedule::launch_times::LaunchTimes;
use crate::schedule::streams::Streams;
use crate::session::device::Device;
use crate::session::{Session, SessionParts};
use crate::sharing::peers;

/// Serves one session on the inherited descriptors; never returns.
pub(crate) fn serve() -> ! {
    let dropped = sandbox::drop_inheritance();
    // SAFETY: the daemon put these descriptors there for us, and nothing else in this process uses
    // them.
    let [client, link, counters] = INHERITED_FDS.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    let link = Arc::new(PacketSocket::from_fd(link));
    ending::set_link(Arc::clone(&link));
    if let Err(error) = dropped {
        ending::failed(&format!("the worker cannot be confined: {error}"));
    }
    let start = match link.receive::<Start>() {
        Ok(Some(start)) => start,
        Ok(None) => ending::daemon_gone(),
        Err(error) => ending::failed(&format!("the daemon's first packet cannot be read: {error}")),
    };
    let counters = match CounterPage::map(counters) {
        Ok(page) => Arc::new(page),
        Err(error) => ending::failed(&format!("the counters cannot be mapped: {error}")),
    };
    let resumes = start.resume.is_some();
    let stream = match Stream::protected(client, start.tls.clone()) {
        Ok(stream) => Arc::new(stream),
        Err(error) => ending::failed(&format!("the daemon's keys are of no use: {error}")),
    };
    let outbox = Arc::new(Outbox::new(Arc::clone(&stream), resumes, Arc::clone(&counters)));
    let attempt = start.resume.as_ref().map(|resume| resume.attempt);
    let client = Arc::new(Client::new(stream, Arc::clone(&outbox), Arc::clone(&link), attempt));
    let opened = hang::Opened::default();
    if matches!(start.driver, Driver::Library { .. }) {
        let patience = Duration::from_millis(start.driver_patience_ms);
        let (opened, client, link) = (Arc::clone(&opened), Arc::clone(&client), Arc::clone(&link));
        ending::spawn("driver watch", move || hang::watch(patience, &opened, &client, &link));
    }
    let mut reader = Reader::new(client, Arc::clone(&outbox), Arc::clone(&counters));
    let opened = Opening { session: opened, pipeline: Arc::default() };
    let session = open(&start, &mut reader, &link, &opened, counters).unwrap_or_else(|error| {
        ending::failed(&format!("the session cannot start: {error}"));
    });
    let limit = Duration::from_millis(start.kernel_timeout_ms);
    let limit = Some(limit).filter(|limit| !limit.is_zero());
    run(session, link, reader, &opened.pipeline, (limit, resumes, start.arrives))
}

/// What the thread that serves the daemon's packets can use once it is there.
#[derive(Clone)]
struct Opening {
    session: hang::Opened,
    pipeline: Arc<OnceLock<Arc<Pipeline>>>,
}

/// Starts the driver and greets the client.
fn open(
    start: &Start,
    reader: &mut Reader,
    link: &Arc<PacketSocket>,
    opened: &Opening,
    counters: Arc<CounterPage>,
) -> Result<Arc<Session>, OpenError> {
    let is_library = matches!(start.driver, Driver::Library { .. });
    let driver_output = if is_library { DriverOutput::take_over().ok() } else { None };
    let started = start_driver(start, link, &counters);
    let cache = match &start.driver {
        Driver::Software { memory } => {
            // What the sanitizer keeps of each byte is on no account.
            if !sluice_softgpu::sanitizes() {
                sandbox::limit_memory(memory_of(start, memory))?;
            }
            sandbox::enter(start.cache.as_deref())?.cache.map(DiskCache::from_fd)
        }
        _ => start.cache.as_deref().and_then(|folder| DiskCache::make(folder).ok()),
    };
    let cache = cache.map(Arc::new);
    if let Some(cache) = cache.as_ref().filter(|_| start.stores_code && !is_library) {
        sluice_softgpu::set_code_store(Arc::new(CodeCache::new(Arc::clone(cache))));
    }
    let outbox = Arc::clone(reader.client().outbox());
    let (budget, answers) = Budget::new(Arc::clone(link), start.gpus.len(), Arc::clone(&outbox));
    let mut arriving = if start.arrives { Some(arriving(link)?) } else { None };
    if let Some((state, _)) = &arriving {
        reader.client().restore(&state.upstream);
        reader.restore(&state.upstream)?;
        outbox.restore(&state.upstream, &state.downstream);
    }
    let (listening, heard, client) = (Arc::clone(link), opened.clone(), Arc::clone(reader.client()));
    let pause = Arc::clone(reader.pause());
    // From here on the client may come back on another connection, also before it has its session.
    ending::spawn("daemon", move || listen(&heard, &answers, &listening, (&client, &pause)));
    // Nothing of the client's is parsed before.
    let SessionOpen { ranges: offers, recognises, unpacks, forks } = match &arriving {
        Some((state, _)) => {
            SessionOpen { ranges: vec![state.range], recognises: false, unpacks: false, forks: false }
        }
        None => reader.session_open()?,
    };
    if forks && matches!(start.driver, Driver::Software { .. }) {
        sluice_softgpu::keep_in_files();
    }
    let expands = recognises && start.resume.is_some();
    if expands {
        reader.expand();
    }
    if unpacks {
        outbox.pack();
    }
    let (table, mut devices) = match started {
        Ok(started) => started,
        Err(error) => {
            let reason = format!("the node's driver does not start: {error}");
            outbox.send(&frame_of(SessionRefused { reason })?)?;
            return Err(error.into());
        }
    };
    // What watches the accesses of kernels has to know each allocation, so the driver makes them.
    let sanitizes = !is_library && sluice_softgpu::sanitizes();
    let reserve = || driver::reserve(&table, &offers, devices.iter_mut().map(|(device, _)| device));
    let reservation = (!sanitizes).then(reserve).flatten();
    if let Some((state, _)) = &arriving {
        let here: Vec<_> = devices.iter().map(|(_, snapshot)| snapshot.clone()).collect();
        arrive::check_models(&state.devices, &here)?;
        let is_same = |range: &Range<u64>| (range.start, range.end - range.start) == state.range;
        reservation.as_ref().filter(|range| is_same(range)).ok_or(NotArrived::Addresses)?;
    }
    let allow = |(gpu, (part, (device, _))): (u32, (&GpuPart, &(Device, _)))| {
        let (ordinal, handle_types) = (device.ordinal, device.handle_types);
        // Where the driver names addresses, every allocation waits for its own.
        let source = reservation.is_some().then_some(Source { table, ordinal, handle_types });
        let known = arriving.as_ref().and_then(|(state, _)| state.allowances.get(gpu as usize));
        budget.begin(gpu, known.map_or(part.reserve, |(allowed, kept)| allowed + kept), source)
    };
    let allowances = (0..).zip(start.gpus.iter().zip(&devices)).map(allow).collect();
    let message = SessionOpened {
        session: start.session,
        range: reservation.as_ref().map(|range| (range.start, range.end - range.start)),
        devices: devices.iter().map(|(_, snapshot)| snapshot.clone()).collect(),
        resume: start.resume.as_ref().map(|&ResumeStart { secret, linger_ms, .. }| ResumeTerms {
            secret: SessionSecret(secret),
            linger_ms,
            expands,
        }),
        allowances,
    };
    let told = Arc::clone(&outbox);
    let host_memory = HostMemory::new(start.host_memory, move |text| told.push(Push::Notice(text)));
    if start.overcommits {
        budget.overcommits(table.cuMemGetInfo_v2);
    }
    let session = Arc::new(Session::new(SessionParts {
        table,
        devices: devices.into_iter().map(|(device, _)| device).collect(),
        reservation: reservation.unwrap_or(0..0),
        budget,
        images: Images::new(cache, Arc::clone(&host_memory)),
        host_memory,
        outbox: Arc::clone(&outbox),
        driver_output,
        counters,
        event_sharing: EventSharing::of(&start.driver),
        reach: Reach::of(&start.driver),
        is_loaded: is_library,
        overcommits: start.overcommits,
    }));
    if start.suspended {
        session.presence.begin_absent();
    }
    let _ = opened.session.set(Arc::clone(&session));
    // On a software GPU, making pages would take processors from kernels.
    if start.keeps_host_memory && is_library {
        spare::make_ahead(&session);
    }
    match &mut arriving {
        Some((state, from)) => arrive::take_over(&session, state, from)?,
        None => outbox.send(&frame_of(message)?)?,
    }
    Ok(session)
}

/// The state of a session that comes from another worker, and where its memory follows.
fn arriving(link: &PacketSocket) -> Result<(SessionState, arrive::Origin), OpenError> {
    let (packet, from) = link.receive_fd::<Packet>()?.ok_or(OpenError::Unexpected)?;
    let (Packet::Arrive { is_clone }, Some(from)) = (packet, from) else { return Err(OpenError::Unexpected) };
    let mut file = File::from(from);
    let state = arrive::read_state(&mut file)?;
    Ok((state, arrive::Origin { file, is_clone }))
}

type Started = (DriverTable, Vec<(Device, sluice_wire::control::DeviceSnapshot)>);

/// What a session on software GPUs of these sizes may have of the machine's memory: that of its
/// GPUs, since leases grow while programs run, and what it may keep beside it.
fn memory_of(start: &Start, gpus: &[u64]) -> u64 {
    let devices = start.gpus.iter().filter_map(|part| gpus.get(part.ordinal as usize));
    devices.fold(start.host_memory, |sum, bytes| sum.saturating_add(*bytes))
}

fn start_driver(
    start: &Start,
    link: &Arc<PacketSocket>,
    counters: &Arc<CounterPage>,
) -> Result<Started, DriverError> {
    let table = driver::start(&start.driver)?;
    let is_software = matches!(start.driver, Driver::Software { .. });
    let mut devices = Vec::new();
    for (place, part) in start.gpus.iter().enumerate() {
        let GpuPart { ordinal, memory, .. } = *part;
        let ordinal = ordinal as i32;
        let context = driver::retain_context(&table, ordinal)?;
        let snapshot = snapshot::take(&table, ordinal, memory, is_software)
            .map_err(|result| DriverError::Call { function: "device query", result })?;
        let streams = Streams::new(table, context);
        let brake = crate::schedule::brake::of(&start.driver, Arc::clone(&streams), part.ordinal as usize)
            .ok_or(DriverError::Call { function: "cuDeviceGet", result: CUresult::INVALID_DEVICE })?;
        let gate = Gate::new(place as u32, brake, Arc::clone(link), Arc::clone(counters));
        let needs_times = start.kernel_timeout_ms > 0 && !is_software;
        let launch_times = needs_times.then(|| LaunchTimes::new(table));
        let (gate, handle_types) = (Arc::new(gate), crate::session::device::handle_types(&table, ordinal));
        let memory = AtomicU64::new(memory);
        devices
            .push((Device { ordinal, context, memory, gate, streams, launch_times, handle_types }, snapshot));
    }
    Ok((table, devices))
}

/// Starts the session's threads and reads the client's commands on this one.
fn run(
    session: Arc<Session>,
    link: Arc<PacketSocket>,
    mut reader: Reader,
    running: &OnceLock<Arc<Pipeline>>,
    (kernel_limit, resumes, has_arrived): (Option<Duration>, bool, bool),
) -> ! {
    for device in &session.devices {
        let gate = Arc::clone(&device.gate);
        ending::spawn("gate", move || gate.watch());
    }
    let accounted = Arc::clone(&session);
    ending::set_last_words(move || account(&accounted));
    let pipeline = Pipeline::new(Arc::clone(&session), resumes);
    let _ = running.set(Arc::clone(&pipeline));
    sluice_softgpu::set_device_memory_account(Box::new(LeaseAccount::new(Arc::clone(&session))));
    let printed = Arc::clone(&session.outbox);
    sluice_softgpu::set_output(Arc::new(move |text| printed.print(text)));
    let reported = Arc::clone(&session.outbox);
    sluice_softgpu::set_messages(Arc::new(move |text| reported.push(Push::Notice(text.to_owned()))));
    if !session.is_loaded {
        sluice_softgpu::set_compile_memory(session.host_memory.limit());
        if let Some(limit) = kernel_limit {
            let limited = Arc::clone(&session);
            let limit = limit.max(watchdog::COMPILE_LIMIT_MIN);
            sluice_softgpu::set_compile_limit(limit, move |kernel| {
                watchdog::end_compiling(&limited, kernel, limit)
            });
        }
    }
    let (released, acquired) = (Arc::clone(&session), Arc::clone(&session));
    sluice_softgpu::on_system_order(SystemOrder {
        released: Box::new(move || released.live.fence()),
        acquired: Box::new(move || acquired.live.acquire()),
    });
    let pushing = Arc::clone(&session.outbox);
    ending::spawn("push", move || {
        let _ = pushing.run();
        ending::client_gone()
    });
    for device in 0..session.devices.len() {
        let watched = Arc::clone(&session);
        ending::spawn("watchdog", move || watchdog::watch(&watched, device, kernel_limit));
    }
    if has_arrived {
        let bytes = session.memory.committed().iter().map(|committed| committed.bytes).sum();
        let taken = (0..session.devices.len() as u32).map(|gpu| session.budget.taken(gpu)).collect();
        let reserved = session.budget.allowances().iter().map(|(allowed, kept)| allowed + kept).collect();
        let _ = link.send(&Packet::Arrived { bytes, taken, reserved });
        let _ = link.send(&Packet::Parted);
        session.give_back_what_is_not_here();
    }
    let _ = link.send(&Packet::Ready);
    loop {
        reader.next(&pipeline);
        session.counters.commands.fetch_add(1, Relaxed);
    }
}

/// Receives what the daemon sends, and notices when the client is gone, also while no thread reads
/// from it.
fn listen(
    opened: &Opening,
    answers: &Answers,
    link: &Arc<PacketSocket>,
    (client, pause): (&Arc<Client>, &Arc<Pause>),
) -> ! {
    // Dropped when a departure is off.
    let mut departs = None;
    let poll = |fd, events| libc::pollfd { fd, events, revents: 0 };
    loop {
        let connection = client.connection_now();
        // Negative descriptors are passed over.
        let client_fd = connection.as_ref().map_or(-1, |connection| connection.stream.as_fd().as_raw_fd());
        let mut polled = [poll(link.as_fd().as_raw_fd(), libc::POLLIN), poll(client_fd, libc::POLLRDHUP)];
        // SAFETY: the pointer and length describe `polled`.
        unsafe { libc::poll(polled.as_mut_ptr(), 2, -1) };
        if let Some(connection) = connection
            && polled[1].revents != 0
        {
            client.parted(&connection);
        }
        if polled[0].revents == 0 {
            continue;
        }
        let (packet, fd) = match link.receive_fd::<Packet>() {
            Ok(Some(received)) => received,
            Ok(None) => ending::daemon_gone(),
            Err(error) => ending::failed(&format!("the daemon sent nonsense: {error}")),
        };
        let session = opened.session.get();
        let gate = |gpu: u32| session?.devices.get(gpu as usize).map(|device| &device.gate);
        match packet {
            Packet::Grant { gpu } => gate(gpu).into_iter().for_each(|gate| gate.granted()),
            Packet::Press { gpu } => gate(gpu).into_iter().for_each(|gate| gate.pressed()),
            Packet::Recall { gpu } => gate(gpu).into_iter().for_each(|gate| gate.recalled()),
            answer @ (Packet::Taken(_)
            | Packet::TakenAtOnce(_)
            | Packet::Used(_)
            | Packet::Exported(_)
            | Packet::Imported(_)
            | Packet::PeerOffered { .. }) => answers.pass_on((answer, fd)),
            Packet::Resized { memory } => {
                let devices = session.into_iter().flat_map(|session| &session.devices);
                devices.for_each(|device| device.memory.store(memory, Relaxed));
            }
            Packet::Reserved { gpu, bytes } => answers.reserved(gpu, bytes),
            Packet::Notice(text) => answers.notice(text),
            asked @ (Packet::MoveOut { .. } | Packet::MoveIn { .. }) => {
                if let Some(session) = session {
                    move_memory(session, link, asked, fd.map(File::from));
                }
            }
            Packet::Depart { work_limit_ms, to: receiver } => {
                let (stays, decided) = channel();
                departs = Some(stays);
                let limit = Duration::from_millis(work_limit_ms);
                match opened.pipeline.get().zip(fd) {
                    Some((pipeline, to)) => {
                        let parts = (Arc::clone(pipeline), Arc::clone(client), Arc::clone(pause));
                        depart::begin(parts, (File::from(to), limit, receiver), decided, Arc::clone(link));
                    }
                    None => {
                        let reason = "it has not begun yet".to_owned();
                        let _ = link.send(&Packet::NotDeparted { reason });
                    }
                }
            }
            Packet::Stay => drop(departs.take()),
            Packet::AskMovable => {
                let parts = opened.pipeline.get().map(|pipeline| (Arc::clone(pipeline), Arc::clone(client)));
                depart::say_whether(parts, Arc::clone(link));
            }
            Packet::PeerConnected { number, tls, refused } => {
                let taken_over = peers::taken_over(fd, tls, refused);
                if let Some(session) = session {
                    session.peers.connected(number, taken_over);
                }
            }
            Packet::Peer { tls } => {
                if let Some((session, stream)) = session.zip(peers::taken_over(fd, tls, None).ok()) {
                    peers::serve(session, stream);
                }
            }
            Packet::Resume { attempt, received, stripe, tls } => {
                match fd.map(|socket| Stream::protected(socket, tls)).transpose() {
                    Ok(stream) => {
                        stream.into_iter().for_each(|s| client.come_back(attempt, received, stripe, s))
                    }
                    Err(error) => ending::failed(&format!("the daemon's keys are of no use: {error}")),
                }
            }
            Packet::NodeEnds => {
                let text = "the node has been stopped, and the session has ended with it".to_owned();
                match session {
                    Some(session) => watchdog::last_word(session, Op::NONE, ending::GONE, text),
                    None => hang::refuse(client, text),
                }
                client.wait_until_heard(ending::HEARD);
                ending::daemon_gone()
            }
            // What workers say.
            _ => {}
        }
    }
}

/// On a thread of its own: it waits for the session's work, and copies.
fn move_memory(session: &Arc<Session>, link: &Arc<PacketSocket>, asked: Packet, file: Option<File>) {
    let (session, link) = (Arc::clone(session), Arc::clone(link));
    ending::spawn("memory mover", move || {
        // Without a daemon this process is about to end.
        swap::obey(&session, &asked, file, |answer| _ = link.send(&answer));
    });
}

fn account(session: &Session) {
    for device in &session.devices {
        device.gate.account();
    }
}

/// Why a session does not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error(transparent)]
    Driver(#[from] DriverError),
    #[error("the client sent nonsense: {0}")]
    Wire(#[from] sluice_wire::WireError),
    #[error("the worker cannot be confined: {0}")]
    Sandbox(#[from] SandboxError),
    #[error("it does not arrive: {0}")]
    Arrival(#[from] NotArrived),
    #[error("the client did not open it")]
    Unexpected,
    #[error("the client is gone: {0}")]
    Gone(#[from] std::io::Error),
}

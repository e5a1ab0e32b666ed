//! A session without processes, and what its client knows.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use sluice_cuda::CUresult;
#[cfg(test)]
use sluice_cuda::DriverTable;
use sluice_transport::Stream;
use sluice_wire::peer::{Answer, REQUEST_SIZE, Request};
use sluice_wire::{
    ArrayId, DevicePtr, EventId, ExportToken, FrameDecoder, FunctionId, GraphExecId, GraphId, GraphNodeId,
    GreenCtxId, Header, HostCall, Kind, MipmappedArrayId, ModuleId, Op, PhysicalId, Received, ResourceDescId,
    StreamId, SurfRefId, TexRefId, UserObjectId, decode,
};

use crate::counters::CounterPage;
use crate::driver;
use crate::driver::EventSharing;
use crate::generated::dispatch::dispatch;
use crate::link::{Driver, Export, Packet, PacketSocket};
use crate::live::mirrors::Reach;
use crate::memory::Backing;
use crate::memory::ballast::Source;
use crate::memory::budget::Budget;
use crate::memory::chunks::CHUNK;
use crate::memory::host_memory::HostMemory;
use crate::memory::virtual_memory;
use crate::modules::images::Images;
use crate::outbox::{Outbox, Push};
use crate::schedule::brake;
use crate::schedule::gate::Gate;
use crate::schedule::streams::Streams;
use crate::session::device::Device;
use crate::session::execute::Refusal;
use crate::session::host_calls::HostCalls;
use crate::session::{Session, SessionParts};
use crate::sharing::peers::taken_over;

/// What the daemon of the test lends, in bytes.
const MEMORY: u64 = 512 << 20;
/// The part of it that the client may use without a request.
const ALLOWANCE: u64 = 16 << 20;
/// Addresses of a session.
pub(crate) const RESERVATION: u64 = 0x2000_0000_0000;
const RESERVED: u64 = 1 << 36;

/// A session whose daemon and client are threads that answer and swallow.
pub(crate) struct Stage {
    session: Session,
    link: Arc<PacketSocket>,
    stream: Arc<Stream>,
    threads: Vec<JoinHandle<()>>,
    /// The driver's GPU is the only one of the process.
    _alone: MutexGuard<'static, ()>,
}

static CARD: Mutex<()> = Mutex::new(());

impl Stage {
    /// A new session, of which there is one at a time.
    pub(crate) fn new() -> Stage {
        Stage::with_host_memory(u64::MAX)
    }

    /// A new session, for which at most `limit` bytes of host memory are kept.
    pub(crate) fn with_host_memory(limit: u64) -> Stage {
        let alone = CARD.lock().unwrap_or_else(PoisonError::into_inner);
        let (link, daemon) = PacketSocket::pair().unwrap();
        let link = Arc::new(link);
        let counters = Arc::new(CounterPage::create().unwrap());
        let (ours, client) = UnixStream::pair().unwrap();
        let stream = Arc::new(Stream::from(ours));
        let outbox = Arc::new(Outbox::new(Arc::clone(&stream), false, Arc::clone(&counters)));
        let pushing = Arc::clone(&outbox);
        let (budget, answers) = Budget::new(Arc::clone(&link), 1, Arc::clone(&outbox));
        let heard = Arc::clone(&link);
        let mut threads = vec![
            std::thread::spawn(move || play_daemon(&daemon)),
            // Ends with an error once the client is gone.
            std::thread::spawn(move || drop(pushing.run())),
        ];
        let table = hostile_driver::table();
        // SAFETY: a CUDA driver's function.
        assert!(unsafe { table.cuInit.unwrap()(0) }.is_success());
        let chosen = Driver::Recording { model: "h200".into(), count: 1 };
        let context = driver::retain_context(&table, 0).unwrap();
        let streams = Streams::new(table, context);
        let brake = brake::of(&chosen, Arc::clone(&streams), 0).unwrap();
        let gate = Arc::new(Gate::new(0, brake, Arc::clone(&link), Arc::clone(&counters)));
        // No other session wants it.
        gate.granted();
        let mut device = Device {
            ordinal: 0,
            context,
            memory: MEMORY.into(),
            gate,
            streams,
            launch_times: None,
            handle_types: crate::session::device::handle_types(&table, 0),
        };
        let source = Source { table, ordinal: 0, handle_types: device.handle_types };
        assert_eq!(budget.begin(0, ALLOWANCE, Some(source)), ALLOWANCE);
        let reservation =
            driver::reserve(&table, &[(RESERVATION, RESERVED)], [&mut device].into_iter()).unwrap();
        assert_eq!(reservation, RESERVATION..RESERVATION + RESERVED);
        let told = Arc::clone(&outbox);
        let host_memory = HostMemory::new(limit, move |text| told.push(Push::Notice(text)));
        let session = Session::new(SessionParts {
            table,
            devices: vec![device],
            reservation,
            budget,
            images: Images::new(None, Arc::clone(&host_memory)),
            host_memory,
            outbox,
            driver_output: None,
            counters,
            event_sharing: EventSharing::of(&chosen),
            reach: Reach::HostPages,
            is_loaded: false,
            overcommits: false,
        });
        let host_calls = Arc::clone(&session.host_calls);
        threads.push(std::thread::spawn(move || play_client(client, &host_calls)));
        let peers = Arc::clone(&session.peers);
        threads.push(std::thread::spawn(move || {
            while let Ok(Some(heard)) = heard.receive_fd::<Packet>() {
                match heard {
                    (Packet::PeerConnected { number, .. }, socket) => {
                        peers.connected(number, taken_over(socket, None, None));
                    }
                    (Packet::Reserved { gpu, bytes }, _) => answers.reserved(gpu, bytes),
                    answer => answers.pass_on(answer),
                }
            }
        }));
        Stage { session, link, stream, threads, _alone: alone }
    }

    /// The driver itself, with its context current, and the streams that it was given work in.
    #[cfg(test)]
    pub(crate) fn driver(&self) -> (&DriverTable, &Streams) {
        let header = Header { kind: Kind::Command, device: 0, op: 0, lane: 1, sequence: 0 };
        self.session.enter(header).unwrap();
        (&self.session.table, &self.session.devices[0].streams)
    }

    #[cfg(test)]
    pub(crate) fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Has a command executed as a thread of the pipeline would.
    pub(crate) fn send(&self, op: Op, payload: &[u8]) -> Result<Vec<u8>, Refusal> {
        let _present = self.session.presence.enter();
        let header = Header { kind: Kind::Command, device: 0, op: op.0, lane: 1, sequence: 0 };
        self.session.enter(header).unwrap();
        let mut reply = Vec::new();
        dispatch(&self.session, op, payload, &mut reply)?;
        Ok(reply)
    }

    /// Executes a command of a frame, whatever its header says.
    pub(crate) fn execute(&self, header: Header, payload: &[u8]) -> Result<Vec<u8>, Refusal> {
        let _present = self.session.presence.enter();
        self.session.enter(header)?;
        self.session.device()?;
        let mut reply = Vec::new();
        dispatch(&self.session, Op(header.op), payload, &mut reply)?;
        Ok(reply)
    }

    /// The client says how much it has.
    pub(crate) fn acknowledge(&self, received: Received) -> io::Result<()> {
        self.session.outbox.acknowledged(received)
    }

    /// Whether a number stands for something of the session.
    pub(crate) fn is_live(&self, of: &str, number: u64) -> bool {
        let objects = &self.session.objects;
        match of {
            "StreamId" => objects.find(StreamId(number)).is_ok(),
            "EventId" => objects.find(EventId(number)).is_ok(),
            "ModuleId" => objects.find(ModuleId(number)).is_ok(),
            "FunctionId" => objects.find(FunctionId(number)).is_ok(),
            "GraphId" => objects.find(GraphId(number)).is_ok(),
            "GraphNodeId" => objects.find(GraphNodeId(number)).is_ok(),
            "GraphExecId" => objects.find(GraphExecId(number)).is_ok(),
            "UserObjectId" => objects.find(UserObjectId(number)).is_ok(),
            "ArrayId" => objects.find(ArrayId(number)).is_ok(),
            "MipmappedArrayId" => objects.find(MipmappedArrayId(number)).is_ok(),
            "GreenCtxId" => objects.find(GreenCtxId(number)).is_ok(),
            "ResourceDescId" => objects.find(ResourceDescId(number)).is_ok(),
            "TexRefId" => objects.find(TexRefId(number)).is_ok(),
            "SurfRefId" => objects.find(SurfRefId(number)).is_ok(),
            "PhysicalId" => self.session.memory.lock().physical.contains_key(&number),
            "DevicePtr" => self.session.memory.covers(number, 1),
            _ => true,
        }
    }

    /// Gives back what the driver would keep longer than the context, as a worker's end does.
    fn clear(&self) {
        let session = &self.session;
        let mut at = RESERVATION;
        while at < RESERVATION + RESERVED {
            let run = session
                .memory
                .lock()
                .chunks
                .run_of(at)
                .map(|(start, bytes, backing)| (start, bytes, matches!(backing, Backing::Mapped(_))));
            at = match run {
                Some((start, bytes, true)) => {
                    virtual_memory::unmap(session, DevicePtr(start), bytes).unwrap();
                    start + bytes
                }
                Some((start, bytes, false)) => {
                    session.memory.decommit(&session.table, &session.budget, (start, bytes), || ()).unwrap();
                    start + bytes
                }
                None => at + CHUNK,
            };
        }
        let physical: Vec<u64> = session.memory.lock().physical.keys().copied().collect();
        for id in physical {
            virtual_memory::release(session, PhysicalId(id)).unwrap();
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let driver = hostile_driver::inner();
        // What was copied for the client lies in memory of the context until it is written.
        // (`cuCtxSynchronize` waits for nothing while a stream captures, and nothing waits for what
        // a context that has failed still calls.)
        let _ = self.session.devices[0].streams.synchronize();
        let _ = self.session.outbox.send(&[]);
        self.session.outbox.loses_memory();
        self.session.watches.end();
        // The client still returns from the host functions that the context waits for.
        // SAFETY: a CUDA driver's function.
        assert!(unsafe { driver.cuDevicePrimaryCtxReset_v2.unwrap()(0) }.is_success());
        self.clear();
        // SAFETY: as above; the reservation is the session's, and nothing is mapped there any more.
        assert!(unsafe { driver.cuMemAddressFree.unwrap()(RESERVATION, RESERVED as usize) }.is_success());
        self.link.send(&Packet::Parted).unwrap();
        self.stream.shut_down();
        // Wakes the writer, which finds that the client has gone.
        self.session.outbox.push(Push::Call { ticket: 0, status: 0 });
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

/// Says of every host function that it has returned.
fn play_client(mut socket: UnixStream, host_calls: &HostCalls) {
    let (mut decoder, mut bytes) = (FrameDecoder::new(), vec![0; 1 << 16]);
    while let Ok(count @ 1..) = socket.read(&mut bytes) {
        decoder.push(&bytes[..count]);
        while let Some(frame) = decoder.next_frame().expect("the worker speaks the protocol") {
            if frame.header.kind == Kind::HostCall {
                host_calls
                    .done(decode::<HostCall>(frame.payload).expect("the worker speaks the protocol").ticket);
            }
        }
    }
}

/// Lends a fixed amount of memory and no more, and keeps what is exported.
fn play_daemon(link: &PacketSocket) {
    let (mut used, mut kept, mut exports, mut count) = (0_u64, ALLOWANCE, BTreeMap::new(), 0_u8);
    while let Ok(Some((packet, file))) = link.receive_fd::<Packet>() {
        let sent = match packet {
            Packet::Take { bytes, reserve, .. } => {
                let spent = bytes.saturating_sub(MEMORY - used - kept);
                let fits = spent <= reserve;
                used += if fits { bytes } else { 0 };
                kept -= if fits { spent } else { 0 };
                link.send(&Packet::Taken(fits.then(|| reserve - spent)))
            }
            Packet::TakeAtOnce { bytes, .. } => {
                let fits = bytes <= MEMORY - used - kept;
                used += if fits { bytes } else { 0 };
                link.send(&Packet::TakenAtOnce(fits))
            }
            Packet::Spend { gpu, bytes } => {
                used += bytes;
                kept = kept.checked_sub(bytes).expect("no more is used than is kept");
                let more = (ALLOWANCE - kept).min(MEMORY - used - kept);
                kept += more;
                link.send(&Packet::Reserved { gpu, bytes: more })
            }
            Packet::GiveBack { bytes, .. } => {
                used = used.checked_sub(bytes).expect("more is given back than was taken");
                Ok(())
            }
            Packet::QueryUsed { .. } => link.send(&Packet::Used(used)),
            Packet::Export(export) => {
                count = count.wrapping_add(1);
                let token = ExportToken([count; 32]);
                exports.insert(token, (export, file));
                link.send(&Packet::Exported(Some(token)))
            }
            Packet::Import(token) => {
                let found: Option<&(Export, _)> = exports.get(&token);
                let file = found.and_then(|(_, file)| file.as_ref()).map(|file| file.as_fd());
                let answer = found.map(|(export, _)| (export.clone(), false));
                match file {
                    Some(file) => link.send_fd(&Packet::Imported(answer), file),
                    None => link.send(&Packet::Imported(answer)),
                }
            }
            Packet::PeerOffer => link.send(&Packet::PeerOffered { session: 1, token: [1; 32] }),
            Packet::PeerConnect { number, .. } => {
                let (ours, theirs) = UnixStream::pair().unwrap();
                // Ends when the session does.
                std::thread::spawn(move || play_peer(ours));
                let packet = Packet::PeerConnected { number, tls: None, refused: None };
                link.send_fd(&packet, theirs.as_fd())
            }
            Packet::Parted => return,
            _ => Ok(()),
        };
        if sent.is_err() {
            return;
        }
    }
}

/// Another node, which has memory wherever it is asked for some.
fn play_peer(mut socket: UnixStream) {
    let mut request = [0; REQUEST_SIZE];
    while socket.read_exact(&mut request).is_ok() {
        let answer = match Request::from_bytes(request).expect("the worker speaks the protocol") {
            Request::Put(piece) => {
                if socket.read_exact(&mut vec![0; piece.bytes]).is_err() {
                    return;
                }
                continue;
            }
            Request::End => Answer::Done(CUresult::SUCCESS).to_bytes().to_vec(),
            Request::Get(piece) => {
                let mut answer = Answer::Data(piece.bytes).to_bytes().to_vec();
                answer.resize(answer.len() + piece.bytes, 7);
                answer
            }
        };
        if socket.write_all(&answer).is_err() {
            return;
        }
    }
}

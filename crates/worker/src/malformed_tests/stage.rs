//! A session without processes, and what its client knows.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use sluice_cuda::{CUmemAllocationHandleType, CUmemAllocationType, CUmemLocation, CUmemLocationType};
use sluice_transport::Stream;
use sluice_wire::{
    Command, DevicePtr, EventId, ExportToken, FrameDecoder, FunctionId, GraphExecId, GraphId, GraphNodeId,
    GraphPlace, Header, HostCall, ImageHash, KernelNode, Kind, ModuleId, NodePlace, NodeWork, Op, PhysicalId,
    PhysicalProp, StreamId, UserObjectId, commands, decode,
};

use super::{EDGES, Random};
use crate::budget::Budget;
use crate::chunks::CHUNK;
use crate::counters::CounterPage;
use crate::execute::Refusal;
use crate::gate::Gate;
use crate::generated::dispatch::dispatch;
use crate::host_calls::HostCalls;
use crate::images::Images;
use crate::link::{Driver, Export, Link, Packet};
use crate::outbox::Outbox;
use crate::session::{Device, Session, SessionParts};
use crate::sharing::{self, EventSharing};
use crate::{brake, driver};

/// What the daemon of the test lends, in bytes.
const MEMORY: u64 = 256 << 20;
/// Addresses of the first session, and how many each has.
const RESERVATION: u64 = 0x2000_0000_0000;
const RESERVED: u64 = 1 << 36;

/// A session whose daemon and client are threads that answer and swallow.
pub(super) struct Stage {
    session: Session,
    /// Of its reservation.
    start: u64,
}

impl Stage {
    /// The `number`th session of the process: nothing of those before it is left.
    pub(super) fn new(number: u64) -> Stage {
        let (link, daemon) = Link::pair().unwrap();
        let link = Arc::new(link);
        std::thread::spawn(move || play_daemon(&daemon));
        let counters = Arc::new(CounterPage::create().unwrap());
        let (ours, client) = UnixStream::pair().unwrap();
        let outbox = Arc::new(Outbox::new(Arc::new(Stream::from(ours)), false, Arc::clone(&counters)));
        let pushing = Arc::clone(&outbox);
        std::thread::spawn(move || pushing.run());
        let (budget, answers) = Budget::new(Arc::clone(&link));
        let heard = Arc::clone(&link);
        std::thread::spawn(move || {
            while let Ok(Some(answer)) = heard.receive_fd::<Packet>() {
                answers.pass_on(answer);
            }
        });
        let table = hostile_driver::table();
        // SAFETY: a CUDA driver's function.
        assert!(unsafe { table.cuInit.unwrap()(0) }.is_success());
        let chosen = Driver::Recording { model: "h200".into(), count: 1 };
        // SAFETY: as above; no work of an earlier session is left that could be submitted.
        assert!(unsafe { hostile_driver::inner().cuDevicePrimaryCtxReset_v2.unwrap()(0) }.is_success());
        let context = driver::retain_context(&table, 0).unwrap();
        let brake = brake::of(&chosen, table, context, 0).unwrap();
        let gate = Arc::new(Gate::new(0, brake, link, Arc::clone(&counters)));
        // Nobody else wants it.
        gate.granted();
        let device = Device {
            ordinal: 0,
            context,
            memory: MEMORY,
            gate,
            launch_times: None,
            handle_types: sharing::handle_types(&table, 0),
        };
        let start = RESERVATION + number * RESERVED;
        let reservation = driver::reserve(&table, &[(start, RESERVED)]).unwrap();
        let session = Session::new(SessionParts {
            table,
            devices: vec![device],
            reservation,
            budget,
            images: Images::new(None),
            outbox,
            counters,
            event_sharing: EventSharing::of(&chosen),
        });
        let host_calls = Arc::clone(&session.host_calls);
        std::thread::spawn(move || play_client(client, &host_calls));
        Stage { session, start }
    }

    /// Has a command executed as a thread of the pipeline would.
    pub(super) fn send(&self, op: Op, payload: &[u8]) -> Result<Vec<u8>, Refusal> {
        let header = Header { kind: Kind::Command, device: 0, op: op.0, lane: 1, sequence: 0 };
        self.session.enter(header).unwrap();
        let mut reply = Vec::new();
        dispatch(&self.session, op, payload, &mut reply)?;
        Ok(reply)
    }

    /// Makes one of everything, under new ids. What the frames so far have used up or broken may be missing.
    pub(super) fn populate(&self, known: &mut Known, seed: u64) {
        known.forget();
        let id = known.minted + 16;
        known.minted = id;
        let start = self.start + seed % 16 * 8 * CHUNK;
        known.start = self.start;
        let location = CUmemLocation { kind: CUmemLocationType::DEVICE, id: 0 };
        let prop = PhysicalProp {
            kind: CUmemAllocationType::PINNED,
            handle_types: CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR,
            location,
            compression_type: 0,
            gpu_direct_rdma: 0,
            usage: 0,
        };
        let text = KERNEL.as_bytes();
        let image = ImageHash(*blake3::hash(text).as_bytes());
        let (stream, graph, function) = (StreamId(id), GraphId(id + 3), FunctionId(id + 5));
        let place = NodePlace::Graph(GraphPlace { graph, dependencies: Vec::new() });
        let (grid, block) = ([2, 1, 1], [32, 1, 1]);
        let kernel = KernelNode { f: function, grid, block, shared_bytes: 0, params: vec![0; 12] };
        let mut say = Honest { stage: self, known, refusals: 0 };
        say.command(&commands::cuStreamCreateWithPriority { phStream: stream, flags: 1, priority: 0 });
        say.command(&commands::cuEventCreate { phEvent: EventId(id + 1), Flags: 6 });
        say.command(&commands::MemoryCommit { address: DevicePtr(start), bytes: CHUNK });
        say.command(&commands::cuMemCreate { handle: PhysicalId(id + 2), size: CHUNK, prop, flags: 0 });
        say.command(&commands::cuGraphCreate { phGraph: graph, flags: 0 });
        say.command(&commands::ImageData { image, offset: 0, total: text.len() as u64, bytes: text });
        say.command(&commands::cuModuleLoadDataEx { module: ModuleId(id + 4), image });
        say.command(&commands::cuModuleGetFunction {
            hfunc: function,
            hmod: ModuleId(id + 4),
            name: c"entry",
        });
        say.command(&commands::cuGraphAddNode_v2 {
            phGraphNode: GraphNodeId(id + 6),
            place: place.clone(),
            work: NodeWork::Kernel(kernel),
        });
        say.command(&commands::cuGraphAddNode_v2 {
            phGraphNode: GraphNodeId(id + 7),
            place,
            work: NodeWork::HostCall(id + 8),
        });
        let executable = GraphExecId(id + 9);
        say.command(&commands::cuGraphInstantiateWithFlags {
            phGraphExec: executable,
            hGraph: graph,
            flags: 0,
        });
        say.command(&commands::cuUserObjectCreate { object: UserObjectId(id + 10), initialRefcount: 3 });
        say.command(&commands::cuLaunchKernel {
            f: function,
            grid,
            block,
            sharedMemBytes: 0,
            hStream: stream,
            params: &[0; 12],
        });
        assert!(say.refusals <= 12, "{} refusals", say.refusals);
        for (of, number) in [
            ("StreamId", id),
            ("EventId", id + 1),
            ("PhysicalId", id + 2),
            ("GraphId", id + 3),
            ("ModuleId", id + 4),
            ("FunctionId", id + 5),
            ("GraphNodeId", id + 6),
            ("GraphNodeId", id + 7),
            ("GraphExecId", id + 9),
            ("UserObjectId", id + 10),
            ("DevicePtr", start),
            ("DevicePtr", start + CHUNK / 2),
            ("DevicePtr", start + CHUNK - 4),
            ("DevicePtr", start + CHUNK),
        ] {
            known.live.entry(of).or_default().push(number);
        }
    }
}

const KERNEL: &str = ".version 7.0\n.target sm_75\n.address_size 64\n\
    .visible .entry entry(.param .u64 a, .param .u32 b) { ret; }\n";

/// Says what an honest client would.
struct Honest<'a> {
    stage: &'a Stage,
    known: &'a mut Known,
    refusals: usize,
}

impl Honest<'_> {
    fn command<C: Command>(&mut self, command: &C) {
        let mut payload = Vec::new();
        command.encode(&mut payload);
        self.refusals += usize::from(self.stage.send(C::OP, &payload).is_err());
        self.known.said.push((C::OP, payload));
    }
}

/// What a client knows: numbers that mean something, and what it has said.
#[derive(Default)]
pub(super) struct Known {
    /// By the types of the fields that hold them.
    live: BTreeMap<&'static str, Vec<u64>>,
    said: Vec<(Op, Vec<u8>)>,
    minted: u64,
    /// Of the reservation.
    start: u64,
    /// New ids in the command that is being made.
    fresh: RefCell<Vec<(&'static str, u64)>>,
}

/// Most numbers of a kind that are remembered.
const LIVE_MAX: usize = 64;

impl Known {
    /// Forgets old objects: some still live, and nobody will name them again.
    fn forget(&mut self) {
        self.said.clear();
        for numbers in self.live.values_mut() {
            let excess = numbers.len().saturating_sub(LIVE_MAX);
            numbers.drain(..excess);
        }
    }

    /// A command is about to be made.
    pub(super) fn begin(&self) {
        self.fresh.borrow_mut().clear();
    }

    /// A command that was said since.
    pub(super) fn said(&self, choice: u64) -> (Op, Vec<u8>) {
        self.said[(choice % self.said.len() as u64) as usize].clone()
    }

    /// The last command was executed: its new ids are live.
    pub(super) fn settle(&mut self) {
        for (of, number) in self.fresh.get_mut().drain(..) {
            self.live.entry(of).or_default().push(number);
        }
    }

    /// A number of a type that an honest client might say.
    pub(super) fn plausible(&self, of: &'static str, raw: u64) -> u64 {
        let mut random = Random(raw);
        match (of, self.live.get(of)) {
            (_, Some(live)) if random.below(8) > 1 => random.one_of(live),
            ("DevicePtr", _) => self.start + random.below(128) * CHUNK,
            (_, Some(_)) if random.below(4) > 0 => {
                // Between those that `populate` makes.
                let number = self.minted * 1000 + random.below(1 << 20);
                self.fresh.borrow_mut().push((of, number));
                number
            }
            ("u8" | "ImageHash" | "ExportToken", _) => raw,
            (_, _) => match random.below(8) {
                0 => random.one_of(EDGES),
                1 => raw,
                2 => random.below(4) * CHUNK,
                3 => random.below(4096),
                _ => random.below(8),
            },
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

/// Lends so much memory and no more, and keeps what is exported.
fn play_daemon(link: &Link) {
    let (mut used, mut exports, mut count) = (0_u64, BTreeMap::new(), 0_u8);
    while let Ok(Some((packet, file))) = link.receive_fd::<Packet>() {
        let sent = match packet {
            Packet::Take { bytes, .. } => {
                let fits = used.checked_add(bytes).is_some_and(|sum| sum <= MEMORY);
                used += if fits { bytes } else { 0 };
                link.send(&Packet::Taken(fits))
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
            _ => Ok(()),
        };
        if sent.is_err() {
            return;
        }
    }
}

//! Commands that no honest client sends, for every operation: forged ids, foreign addresses, overflowing sizes, counts
//! beyond limits, payloads cut short. Behind the worker is the recording driver, whose memory is real: an address that gets
//! through unchecked and is nobody's ends the test process. A panic on any thread fails the test, the driver's too.
//!
//! `SLUICE_SEED` repeats a run, `SLUICE_FRAMES` sets its length; ten million take minutes.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use sluice_cuda::{
    CUarray_format, CUmemAllocationHandleType, CUmemAllocationType, CUmemLocation, CUmemLocationType, Fn,
};
use sluice_transport::Stream;
use sluice_wire::{
    ArrayId, ArrayShape, Command, DevicePtr, EventId, ExportToken, FunctionId, GraphId, Header, ImageHash,
    Kind, MipmappedArrayId, ModuleId, Op, PhysicalId, PhysicalProp, StreamId, Target, commands, sample,
};

use crate::budget::Budget;
use crate::chunks::CHUNK;
use crate::counters::CounterPage;
use crate::execute::Refusal;
use crate::gate::Gate;
use crate::generated::dispatch::dispatch;
use crate::images::Images;
use crate::link::{Driver, Export, Link, Packet};
use crate::outbox::Outbox;
use crate::session::{Device, Session, SessionParts};
use crate::sharing::{self, EventSharing};
use crate::{brake, driver};

const FRAMES: u64 = 100_000;
/// What the daemon of the test lends, in bytes.
const MEMORY: u64 = 64 << 20;

/// Numbers in an order that the seed decides (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize]
    }
}

/// A session without processes: its daemon and its client are threads that answer and swallow.
struct Stage {
    session: Session,
    next_id: u64,
    /// Ids and addresses that mean something.
    live: Vec<u64>,
}

impl Stage {
    fn new() -> Stage {
        let (link, daemon) = Link::pair().unwrap();
        let link = Arc::new(link);
        std::thread::spawn(move || play_daemon(&daemon));
        let counters = Arc::new(CounterPage::create().unwrap());
        let (ours, mut client) = UnixStream::pair().unwrap();
        let outbox = Arc::new(Outbox::new(Arc::new(Stream::from(ours)), false, Arc::clone(&counters)));
        let pushing = Arc::clone(&outbox);
        std::thread::spawn(move || pushing.run());
        std::thread::spawn(move || {
            let mut sink = vec![0; 1 << 16];
            while client.read(&mut sink).is_ok_and(|count| count > 0) {}
        });
        let (budget, answers) = Budget::new(Arc::clone(&link));
        let heard = Arc::clone(&link);
        std::thread::spawn(move || {
            while let Ok(Some(answer)) = heard.receive_fd::<Packet>() {
                answers.pass_on(answer);
            }
        });
        let chosen = Driver::Recording { model: "h200".into(), count: 1 };
        let table = driver::start(&chosen).unwrap();
        let context = driver::retain_context(&table, 0).unwrap();
        let brake = brake::of(&chosen, table, context, 0).unwrap();
        let device = Device {
            ordinal: 0,
            context,
            memory: MEMORY,
            gate: Arc::new(Gate::new(0, brake, link, Arc::clone(&counters))),
            launch_times: None,
            handle_types: sharing::handle_types(&table, 0),
        };
        let reservation = driver::reserve(&table, &[(0x2000_0000_0000, 1 << 36)]).unwrap();
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
        Stage { session, next_id: 100, live: Vec::new() }
    }

    fn send(&self, op: Op, payload: &[u8]) -> Result<Vec<u8>, Refusal> {
        let header = Header { kind: Kind::Command, device: 0, op: op.0, lane: 1, sequence: 0 };
        self.session.enter(header).unwrap();
        let mut reply = Vec::new();
        dispatch(&self.session, op, payload, &mut reply)?;
        Ok(reply)
    }

    /// Sends what an honest client would.
    fn honest<C: Command>(&self, command: &C) -> Result<Vec<u8>, Refusal> {
        let mut payload = Vec::new();
        command.encode(&mut payload);
        self.send(C::OP, &payload)
    }

    /// Makes one of everything, under new ids. What the frames so far have used up or broken may be missing.
    fn populate(&mut self, random: &mut Random) {
        self.next_id += 16;
        let id = self.next_id;
        let start = 0x2000_0000_0000 + random.below(64) * 8 * CHUNK;
        let location = CUmemLocation { kind: CUmemLocationType::DEVICE, id: 0 };
        let prop = PhysicalProp {
            kind: CUmemAllocationType::PINNED,
            handle_types: CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR,
            location,
            compression_type: 0,
            gpu_direct_rdma: 0,
            usage: 0,
        };
        let format = CUarray_format::UNSIGNED_INT16;
        let shape = ArrayShape { width: 100, height: 20, depth: 0, format, channels: 2, flags: 2 };
        let text = KERNEL.as_bytes();
        let image = ImageHash(*blake3::hash(text).as_bytes());
        let (address, bytes) = (DevicePtr(start), CHUNK);
        let results = [
            self.honest(&commands::cuStreamCreateWithPriority {
                phStream: StreamId(id),
                flags: 1,
                priority: 0,
            }),
            self.honest(&commands::cuEventCreate { phEvent: EventId(id + 1), Flags: 6 }),
            self.honest(&commands::MemoryCommit { address, bytes }),
            self.honest(&commands::cuMemCreate { handle: PhysicalId(id + 2), size: CHUNK, prop, flags: 0 }),
            self.honest(&commands::cuGraphCreate { phGraph: GraphId(id + 3), flags: 0 }),
            self.honest(&commands::ImageData { image, offset: 0, total: text.len() as u64, bytes: text }),
            self.honest(&commands::cuModuleLoadDataEx { module: ModuleId(id + 4), image }),
            self.honest(&commands::cuModuleGetFunction {
                hfunc: FunctionId(id + 5),
                hmod: ModuleId(id + 4),
                name: c"entry",
            }),
            self.honest(&commands::cuArray3DCreate_v2 { pHandle: ArrayId(id + 6), shape: shape.clone() }),
            self.honest(&commands::cuMipmappedArrayCreate {
                pHandle: MipmappedArrayId(id + 7),
                shape,
                levels: 3,
            }),
        ];
        assert!(results.iter().filter(|result| result.is_ok()).count() >= 3, "{results:?}");
        self.live = (id..id + 8).chain([start, start + CHUNK / 2, start + CHUNK - 1]).collect();
    }
}

const KERNEL: &str = ".version 7.0\n.target sm_75\n.address_size 64\n\
    .visible .entry entry(.param .u64 a, .param .u32 b) { ret; }\n";

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

/// Numbers that sizes, counts and pitches go wrong at.
const EDGES: &[u64] = &[
    0,
    1,
    2,
    7,
    8,
    255,
    4096,
    CHUNK - 1,
    CHUNK,
    CHUNK + 1,
    1 << 31,
    u32::MAX as u64,
    1 << 32,
    1 << 33,
    1 << 47,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - CHUNK + 1,
    u64::MAX,
];

/// An honest payload with random fields, of which some are replaced, or cut, or followed by more.
fn malformed(random: &mut Random, op: Op, live: &[u64]) -> Option<Vec<u8>> {
    let mut noise = [0_u8; 256];
    noise.chunks_exact_mut(8).for_each(|chunk| chunk.copy_from_slice(&random.next().to_le_bytes()));
    let mut payload = sample::payload(op, &noise)?;
    for _ in 0..random.below(8) {
        let Some(last) = payload.len().checked_sub(8) else { break };
        let at = (random.below(last as u64 + 1) / 4 * 4) as usize;
        let value = if random.below(3) == 0 { random.one_of(EDGES) } else { random.one_of(live) };
        payload[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    match random.below(16) {
        0 => payload.truncate(random.below(payload.len() as u64 + 1) as usize),
        1 => payload.extend_from_slice(&noise[..random.below(64) as usize]),
        _ => {}
    }
    Some(payload)
}

/// Whether a command can wait for what nobody here will do: a value in memory, or a host function.
fn may_wait_for_ever(op: Op) -> bool {
    matches!(
        op.target(),
        Some(Target::Driver(
            Fn::cuLaunchHostFunc
                | Fn::cuStreamWaitValue32
                | Fn::cuStreamWaitValue32_v2
                | Fn::cuStreamWaitValue64
                | Fn::cuStreamWaitValue64_v2
        ))
    )
}

/// Panics since the test began: those that the driver turns into errors, and those of other threads.
static PANICS: AtomicU64 = AtomicU64::new(0);

fn count_panics() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.fetch_add(1, Relaxed);
        report(panic);
    }));
}

fn number_from(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn malformed_commands_are_refused() {
    let seed = number_from("SLUICE_SEED", 1);
    let frames = number_from("SLUICE_FRAMES", FRAMES);
    println!("SLUICE_SEED={seed} SLUICE_FRAMES={frames}");
    count_panics();
    let mut random = Random(seed);
    let mut stage = Stage::new();
    let all: Vec<Op> = (0..=u16::MAX).map(Op).filter(|op| sample::payload(*op, &[]).is_some()).collect();
    let ops: Vec<Op> = all.into_iter().filter(|op| !may_wait_for_ever(*op)).collect();
    let (mut done, mut refused, mut nonsense) = (0_u64, 0_u64, 0_u64);
    for frame in 0..frames {
        if frame % 500 == 0 {
            stage.populate(&mut random);
        }
        let op = random.one_of(&ops);
        let Some(payload) = malformed(&mut random, op, &stage.live) else { continue };
        match stage.send(op, &payload) {
            Ok(_) => done += 1,
            Err(Refusal::Failed(_)) => refused += 1,
            Err(Refusal::Malformed(_) | Refusal::UnknownOp(_)) => nonsense += 1,
        }
        assert_eq!(PANICS.load(Relaxed), 0, "frame {frame}, {}: {payload:02x?}", op.name());
    }
    println!("{done} done, {refused} refused, {nonsense} no messages");
    assert!(done > frames / 100 && refused > frames / 100 && nonsense > frames / 100);
}

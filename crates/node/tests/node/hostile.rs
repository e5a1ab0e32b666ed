//! Clients that say anything, beside one that computes.
//!
//! `SLUICE_SEED` repeats a run, `SLUICE_SESSIONS` sets its length.

use std::io::{Read, Write};
use std::net::Shutdown;

use sluice_wire::{DevicePtr, EventId, FunctionId, Op, StreamId, commands, sample};

use crate::raw::{Session, lease, request};
use crate::{MIB, NULL, PTX, TestNode, commit, read};

const SESSIONS: u64 = 40;
/// Commands of one session, unless it ends before.
const COMMANDS: u64 = 400;

/// Numbers in an order that the seed decides (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn one_of(&mut self, values: &[u64]) -> u64 {
        values[(self.next() % values.len() as u64) as usize]
    }
}

fn number_from(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// What a hostile client has, and what it would like to have.
struct Loot {
    stream: StreamId,
    event: EventId,
    function: FunctionId,
    addresses: Vec<u64>,
}

impl Loot {
    /// Of a session that begins honestly; `foreign` is an address that a neighbour uses.
    fn of(session: &mut Session, foreign: u64) -> Loot {
        let place = commit(session, 0, 2 * MIB).unwrap();
        let module = session.load(PTX);
        let function = session.function(module, c"bump");
        let (stream, event) = (StreamId(session.id()), EventId(session.id()));
        session.queue(&commands::cuStreamCreateWithPriority { phStream: stream, flags: 1, priority: 0 });
        session.queue(&commands::cuEventCreate { phEvent: event, Flags: 0 });
        let beyond = place + 2 * MIB;
        let addresses = vec![place, place + MIB, beyond - 4, beyond, foreign, foreign + MIB, 0, u64::MAX];
        Loot { stream, event, function, addresses }
    }

    fn plausible(&self, of: &str, raw: u64) -> u64 {
        let mut random = Random(raw);
        match of {
            "StreamId" => random.one_of(&[self.stream.0, self.stream.0, 0, 1, 2]),
            "EventId" => self.event.0,
            "FunctionId" => self.function.0,
            "DevicePtr" => random.one_of(&self.addresses),
            "u8" => raw,
            // New ids come from a small space, so that they are found again.
            _ => {
                random.one_of(&[0, 1, 2, 3, 4, 8, 32, 1000, 1001, 1002, MIB, u32::MAX.into(), u64::MAX, raw])
            }
        }
    }
}

/// A program whose results can only be right if nobody else touches its memory.
pub(crate) struct Neighbour {
    pub(crate) session: Session,
    place: u64,
    bump: FunctionId,
    rounds: u32,
}

impl Neighbour {
    pub(crate) fn new(mut session: Session) -> Neighbour {
        let place = commit(&mut session, 0, 2 * MIB).unwrap();
        let module = session.load(PTX);
        let bump = session.function(module, c"bump");
        session.queue(&commands::cuMemsetD8Async {
            dstDevice: DevicePtr(place),
            uc: 0,
            N: 128,
            hStream: NULL,
        });
        Neighbour { session, place, bump, rounds: 0 }
    }

    pub(crate) fn computes(&mut self) {
        self.session.launch(self.bump, 1, &[self.place]);
        self.rounds += 1;
        let want: Vec<u8> = std::iter::repeat_n(self.rounds.to_le_bytes(), 32).flatten().collect();
        assert_eq!(read(&mut self.session, self.place, 128), Ok(want));
    }
}

pub(crate) fn a_hostile_client_harms_nobody(node: &TestNode) {
    let seed = number_from("SLUICE_SEED", 1);
    println!("SLUICE_SEED={seed}");
    let mut random = Random(seed);
    let operations: Vec<Op> =
        (0..=u16::MAX).map(Op).filter(|op| sample::payload(*op, &[], &|_, raw| raw).is_some()).collect();
    let (neighbours_lease, session) = node.session();
    let mut neighbour = Neighbour::new(session);
    for _ in 0..number_from("SLUICE_SESSIONS", SESSIONS) {
        // A grid of any size and any number of rounds is not what this is about.
        let request =
            sluice_wire::control::LeaseRequest { kernel_timeout_ms: 100, ..request(100_000, 64 * MIB) };
        let lease = lease(&node.address, request);
        let mut hostile = Session::open(&node.address, lease.granted.token);
        let loot = Loot::of(&mut hostile, neighbour.place);
        let mut answers = hostile.connection.stream.try_clone().unwrap();
        let listener = std::thread::spawn(move || while let Ok(1..) = answers.read(&mut [0; 4096]) {});
        for _ in 0..COMMANDS {
            let op = operations[(random.next() % operations.len() as u64) as usize];
            let noise: Vec<u8> = (0..64).flat_map(|_| random.next().to_le_bytes()).collect();
            let mut payload = sample::payload(op, &noise, &|of, raw| loot.plausible(of, raw)).unwrap();
            if random.next().is_multiple_of(200) {
                payload.truncate((random.next() % (payload.len() as u64 + 1)) as usize);
            }
            let frame = hostile.frame(op, &payload);
            if hostile.connection.stream.write_all(&frame).is_err() {
                break;
            }
        }
        neighbour.computes();
        // By now the worker may have hung up.
        let _ = hostile.connection.stream.shutdown(Shutdown::Both);
        listener.join().unwrap();
        drop(lease);
    }
    neighbour.computes();
    drop((neighbour, neighbours_lease));
    node.wait_until_idle();
}

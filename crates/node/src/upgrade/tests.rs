//! Whole states: what is written is read back, and damage is found.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use proptest::prelude::*;
use sluice_wire::control::SessionStatus;
use sluice_wire::handshake::{Once, OpeningNonce};
use sluice_worker_link::link::{Driver, Packet, PacketSocket};

use super::{Passing, Received, SavedInventory, State, StateError, seal};
use crate::arbiter::Use;
use crate::clock::SystemClock;
use crate::config::NodeConfig;
use crate::inventory::Inventory;
use crate::inventory::tests::card;
use crate::lease::{Ask, Card};
use crate::registry::Registry;
use crate::spawn::{Spawner, WorkerCommand, WorkerProcess};
use crate::swap_space::SwapSpace;

fn registry(gpus: usize) -> Registry {
    let inventory = Inventory {
        driver: Driver::Software { memory: vec![1 << 30; gpus] },
        cards: vec![Card { name: "a GPU".into(), memory: 1 << 30 }; gpus],
        snapshots: vec![card("a GPU", &[]); gpus],
    };
    let spawner = Spawner::start(WorkerCommand::default(), true).unwrap();
    let swap = SwapSpace::open(0, None).unwrap();
    Registry::new(&NodeConfig::default(), inventory, (spawner, swap), None, Arc::new(SystemClock::new()))
}

/// A lease, if there is room, with a session that has memory and wants the GPU: the worker's end of
/// its link.
fn lend(registry: &Registry, number: u8, share_ppm: u32, memory: u64) -> Option<PacketSocket> {
    let ask = Ask {
        gpus: 1,
        share_ppm,
        memory: 64 << 20,
        limit_ppm: 1_000_000,
        promised_ppm: 1_000_000,
        premium: false,
        wait_ns: 0,
    };
    let once = Once { nonce: OpeningNonce([number; 32]), attempt: u32::from(number) };
    let (granted, _) = registry.grant(once, ask, 0, format!("program {number}"), None).ok()?;
    let (link, worker) = PacketSocket::pair().unwrap();
    // No process has this number.
    let process = WorkerProcess::taken_over(u32::MAX >> 1, None);
    let session = registry.enter_for_test(granted.lease, once, (process, link), memory);
    registry.turns.want(session, 0);
    Some(worker)
}

fn state(registry: &Registry) -> State {
    State {
        release: "0.0.1".into(),
        stopped: Instant::now(),
        stop: Passing::default().pass(std::io::stderr().as_fd()),
        swap_file_bytes: None,
        listeners: Vec::new(),
        silent: Vec::new(),
        inventory: SavedInventory::of(registry.inventory()),
        registry: registry.stop().save(&mut Passing::default()),
        membership: None,
        watcher: Some(9),
    }
}

/// Without the moments, which two readings of a clock tell differently.
fn text_of(state: &State) -> String {
    fn without_moments(value: &mut serde_json::Value) {
        match value {
            serde_json::Value::Object(fields) => {
                for name in ["began", "started", "stopped", "since"] {
                    fields.remove(name);
                }
                fields.values_mut().for_each(without_moments);
            }
            serde_json::Value::Array(values) => values.iter_mut().for_each(without_moments),
            _ => {}
        }
    }
    let mut value = serde_json::to_value(state).unwrap();
    without_moments(&mut value);
    value.to_string()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_state_is_read_as_it_was_written(
        leases in prop::collection::vec((1_000_u32..400_000, 0_u64..(64 << 20)), 0..6),
        gpus in 1_usize..4,
    ) {
        let registry = registry(gpus);
        let lend = |(&(share_ppm, memory), number)| lend(&registry, number, share_ppm, memory);
        let workers: Vec<_> = leases.iter().zip(1..).map(lend).collect();
        let written = state(&registry);
        let read = State::from_bytes(&written.to_bytes().unwrap()).unwrap();
        prop_assert_eq!(text_of(&read), text_of(&written));
        prop_assert_eq!(read.registry.counts().1, workers.iter().flatten().count());
        prop_assert!(read.registry.check(gpus, false).is_ok());
        prop_assert!(read.registry.check(gpus + 1, false).is_err());
        prop_assert!(read.registry.check(gpus, true).is_err());
    }

    #[test]
    fn a_damaged_state_is_refused(at in any::<prop::sample::Index>(), flip in 1_u8.., cut in any::<bool>()) {
        let registry = registry(1);
        let _worker = lend(&registry, 1, 100_000, 1 << 20);
        let mut bytes = state(&registry).to_bytes().unwrap();
        let at = at.index(bytes.len());
        if cut { bytes.truncate(at) } else { bytes[at] ^= flip };
        prop_assert!(State::from_bytes(&bytes).is_err());
    }

    #[test]
    fn what_is_no_state_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(State::from_bytes(&bytes).is_err());
    }
}

/// What is said of a whole state with another version in its head.
fn with_version(at: usize, version: u32) -> StateError {
    let mut bytes = state(&registry(1)).to_bytes().unwrap();
    bytes[at..at + 4].copy_from_slice(&version.to_le_bytes());
    let hash = blake3::Hasher::new().update(&bytes[..28]).update(&bytes[60..]).finalize();
    bytes[28..60].copy_from_slice(hash.as_bytes());
    State::from_bytes(&bytes).unwrap_err()
}

#[test]
fn other_versions_are_refused_by_name() {
    assert!(matches!(with_version(8, 99), StateError::Format { theirs: 99 }));
    let link = with_version(12, 99);
    assert!(matches!(link, StateError::Link { theirs: 99, .. }));
    assert!(link.to_string().contains("version 99 of the link to their daemon"), "{link}");
    assert!(matches!(with_version(16, 99), StateError::Protocol { theirs: 99, .. }));
}

/// As the next program does it, in the same process here.
#[test]
fn a_registry_goes_on_where_another_one_stopped() {
    let before = registry(1);
    let workers = [lend(&before, 1, 250_000, 5 << 20).unwrap(), lend(&before, 2, 500_000, 1 << 20).unwrap()];
    let (saved, then) = (seal(&state(&before)).unwrap(), before.status());
    assert_eq!(workers[0].receive::<Packet>().unwrap(), Some(Packet::Grant { gpu: 0 }));
    let saved = State::read(saved).unwrap();
    // From here on the state alone has the descriptors.
    std::mem::forget(before);
    // SAFETY: the registry that had them is forgotten.
    let mut received = unsafe { Received::of_this_process() };
    let mut after = registry(1);
    after.restore(saved.registry, &mut received).unwrap();
    let now = after.status();
    let of = |session: &SessionStatus| {
        let name = session.name.clone();
        (session.session, session.lease, session.memory_used, session.share_ppm, name)
    };
    assert_eq!(
        now.sessions.iter().map(of).collect::<Vec<_>>(),
        then.sessions.iter().map(of).collect::<Vec<_>>()
    );
    assert_eq!((now.sessions.len(), now.gpus[0].share_leased_ppm), (2, 750_000));
    assert!(now.sessions[0].age_ms >= then.sessions[0].age_ms);
    // A turn that was granted before ends after, and the other worker's link is the same.
    after.turns.done(now.sessions[0].session, 0, Use::whole(1_000_000), false);
    assert_eq!(workers[1].receive::<Packet>().unwrap(), Some(Packet::Grant { gpu: 0 }));
    let _third = lend(&after, 3, 100_000, 0).unwrap();
    let status = after.status();
    let numbers: Vec<u64> = status.sessions.iter().flat_map(|it| [it.lease, it.session]).collect();
    assert!(numbers.is_sorted() && numbers.len() == 6, "no number is used twice: {numbers:?}");
}

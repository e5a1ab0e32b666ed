use sluice_wire::DevicePtr;
use sluice_wire::live::{Word, tell, told};

use super::mirrors::READY_MAX;
use super::*;
use crate::malformed::stage::{RESERVATION, Stage};
use crate::memory::chunks::CHUNK;
use crate::session::execute::Refusal;

/// Memory that is there for the whole test.
fn live(words: &mut [u64]) -> Live {
    let live = Live::default();
    live.insert(7, words.as_ptr() as u64, size_of_val(words) as u64).unwrap();
    live
}

fn word(index: u32, value: u64) -> Word {
    Word { mirror: 7, index, mask: u8::MAX, value }
}

/// What the client is to be told: places and values.
fn ready(live: &Live) -> Vec<(u32, u64)> {
    let mut words = Vec::new();
    for part in std::mem::take(&mut live.lock().ready) {
        told(&part, |word| words.push((word.index, word.value))).unwrap();
    }
    words
}

fn push(live: &Live, more: bool, words: &[Word]) {
    let parts = tell(words);
    live.put_in(&commands::LivePush { more, words: &parts[0] }).unwrap();
}

#[test]
fn what_is_before_a_fence_is_told_before_what_is_behind_it() {
    let mut words = vec![0_u64; 100];
    let live = live(&mut words);
    let memory = live.lock().mirrors[&7].memory;
    let mut agreed = vec![0; 800];
    // The flag has the lower address.
    for (index, value) in [(90, 1), (3, 2)] {
        memory.apply(&mut agreed, &word(index, value));
        assert!(live.fence());
    }
    assert_eq!(ready(&live), [(90, 1), (3, 2)]);
}

#[test]
fn what_the_client_has_changed_is_put_in_when_all_of_it_is_there() {
    let mut words = vec![0_u64; 10];
    let live = live(&mut words);
    let memory = live.lock().mirrors[&7].memory;
    let changed = || {
        let mut found = Vec::new();
        memory.look(7, &[0; 80], &mut found);
        found.iter().map(|word| (word.index, word.value)).collect::<Vec<_>>()
    };
    push(&live, true, &[word(1, 5)]);
    assert!(changed().is_empty());
    push(&live, false, &[word(2, 6), Word { mirror: 8, ..word(2, 9) }, word(10, 1)]);
    assert_eq!(changed(), [(1, 5), (2, 6)], "what is no memory of the session is passed over");
    assert!(live.fence());
    assert!(ready(&live).is_empty(), "the client knows");
    assert!(live.put_in(&commands::LivePush { more: false, words: &[1, 2, 3] }).is_err());
}

#[test]
fn memory_that_goes_is_looked_at_no_more() {
    let mut words = vec![1_u64; 10];
    let live = live(&mut words);
    let start = words.as_ptr() as u64;
    live.leave(start + 80, 1000);
    assert!(live.exists.load(Ordering::Relaxed));
    live.leave(start, 80);
    assert!(live.fence());
    assert!(ready(&live).is_empty() && !live.exists.load(Ordering::Relaxed));
}

#[test]
fn memory_is_kept_once_and_within_limits() {
    let mut words = vec![0_u64; 10];
    let live = live(&mut words);
    let start = words.as_ptr() as u64;
    let result = |number, address, bytes| live.insert(number, address, bytes).err();
    assert_eq!(result(7, start + 800, 8), Some(CUresult::INVALID_VALUE), "the number is taken");
    assert_eq!(result(8, start + 72, 80), Some(CUresult::INVALID_VALUE), "some of it is there");
    assert_eq!(result(8, start + 801, 80), Some(CUresult::INVALID_VALUE), "not aligned");
    assert_eq!(result(8, start + 800, 0), Some(CUresult::INVALID_VALUE), "nothing");
    assert_eq!(result(8, start + 800, LIVE_BYTES_MAX), Some(CUresult::NOT_SUPPORTED), "too much in all");
}

/// Device code writes on while the client asks for nothing.
#[test]
fn a_fence_waits_while_the_client_has_too_much_to_take() {
    let mut words = vec![0_u64; 4 << 20 >> 3];
    let live = live(&mut words);
    let memory = live.lock().mirrors[&7].memory;
    let mut agreed = vec![0; 4 << 20];
    let mut fences = 0;
    loop {
        fences += 1;
        for index in 0..agreed.len() / 8 {
            memory.apply(&mut agreed, &word(index as u32, fences));
        }
        if !live.fence() {
            break;
        }
    }
    let mut state = live.lock();
    assert!(state.ready_bytes > READY_MAX && state.ready_bytes < READY_MAX + (6 << 20));
    // A look that is asked for has to wait, and is not forgotten.
    assert!(live.look_for(&mut state, true, false, true));
    let (mut values, mut numbers, mut more) = (Vec::new(), 0, true);
    while more {
        let (number, part, goes_on) = live.take(&mut state);
        told(&part, |word| values.push(word.value)).unwrap();
        (numbers, more) = (numbers + 1, goes_on);
        assert_eq!(number, numbers);
        assert!(live.look_for(&mut state, false, false, true));
    }
    assert!(values.is_sorted(), "in the order of the fences");
    assert_eq!((values.len() as u64, values.last()), (fences * (4 << 20 >> 3), Some(&fences)));
    drop(state);
    assert!(live.fence());
}

#[test]
fn a_question_that_waits_is_answered_once_there_is_something_or_nothing_runs() {
    let mut words = vec![0_u64; 10];
    let live = live(&mut words);
    let memory = live.lock().mirrors[&7].memory;
    let mut state = live.lock();
    assert!(!live.look_for(&mut state, false, true, true));
    assert!(live.look_for(&mut state, false, true, false), "nothing runs");
    assert!(live.look_for(&mut state, true, true, true), "whether something runs is asked for");
    memory.apply(&mut [0; 80], &word(3, 1));
    assert!(live.look_for(&mut state, false, true, true));
    assert!(!live.take(&mut state).1.is_empty());
}

/// A driver that is loaded: only what it has on the host can be looked at, and what the client has
/// changed is put in there.
#[test]
fn memory_of_a_loaded_driver_is_looked_at_on_the_host() {
    let stage = Stage::new();
    let say = |op: Op, payload: &[u8]| stage.send(op, payload).map(drop);
    let [on_card, on_host] = [RESERVATION, RESERVATION + CHUNK].map(DevicePtr);
    for address in [on_card, on_host] {
        let command =
            commands::MemoryCommit { address, bytes: CHUNK, on_host: address == on_host, by_all: false };
        say(commands::MemoryCommit::OP, &encoded(&command)).unwrap();
    }
    let map =
        |address| say(commands::LiveMap::OP, &encoded(&commands::LiveMap { mirror: 7, address, bytes: 100 }));
    assert!(matches!(map(on_card), Err(Refusal::Failed(CUresult::NOT_SUPPORTED))));
    map(on_host).unwrap();
    let push = commands::LivePush { more: false, words: &tell(&[word(3, 77)])[0] };
    say(commands::LivePush::OP, &encoded(&push)).unwrap();
    // SAFETY: committed for this process to use.
    assert_eq!(unsafe { (on_host.0 as *const u64).add(3).read_volatile() }, 77);
}

/// Then it is device memory, which is made equal before and after work, and the program's user is
/// told.
#[test]
fn a_loaded_driver_may_have_no_host_memory() {
    let mut stage = Stage::new();
    stage.session().table.cuDeviceGetAttribute = None;
    let address = DevicePtr(RESERVATION);
    let commit = commands::MemoryCommit { address, bytes: CHUNK, on_host: true, by_all: false };
    stage.send(commands::MemoryCommit::OP, &encoded(&commit)).unwrap();
    let map = commands::LiveMap { mirror: 7, address, bytes: 100 };
    let mapped = stage.send(commands::LiveMap::OP, &encoded(&map));
    assert!(matches!(mapped, Err(Refusal::Failed(CUresult::NOT_SUPPORTED))));
    assert!(stage.session().live.has_told.load(Ordering::Relaxed));
}

fn encoded(command: &impl Encode) -> Vec<u8> {
    let mut payload = Vec::new();
    command.encode(&mut payload);
    payload
}

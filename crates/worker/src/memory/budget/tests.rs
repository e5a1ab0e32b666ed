//! Budgets against a daemon that is played here.

use std::os::unix::net::UnixStream;

use sluice_cuda::{
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemGenericAllocationHandle, DriverTable,
};
use sluice_transport::Stream;

use super::*;
use crate::counters::CounterPage;
use crate::memory::chunks::CHUNK;

const RESERVE: u64 = 8 * CHUNK;

/// A budget of one GPU with a reserve, the side of the reader, and the daemon's end of the
/// link.
fn budget() -> (Budget, Answers, PacketSocket, Arc<Outbox>) {
    let (link, daemon) = PacketSocket::pair().unwrap();
    let (ours, _) = UnixStream::pair().unwrap();
    let counters = Arc::new(CounterPage::create().unwrap());
    let outbox = Arc::new(Outbox::new(Arc::new(Stream::from(ours)), true, counters));
    let (budget, answers) = Budget::new(Arc::new(link), 1, Arc::clone(&outbox));
    let source = Source { table: table(), ordinal: 0, handle_types: CUmemAllocationHandleType::NONE };
    assert_eq!(budget.begin(0, RESERVE, Some(source)), RESERVE);
    (budget, answers, daemon, outbox)
}

unsafe extern "C" fn create(
    _: *mut CUmemGenericAllocationHandle,
    _: usize,
    _: *const CUmemAllocationProp,
    _: u64,
) -> CUresult {
    CUresult::SUCCESS
}

unsafe extern "C" fn release(_: CUmemGenericAllocationHandle) -> CUresult {
    CUresult::SUCCESS
}

/// A driver that has memory for ballast.
fn table() -> DriverTable {
    DriverTable { cuMemCreate: Some(create), cuMemRelease: Some(release), ..DriverTable::EMPTY }
}

/// What the client has been told.
fn told(outbox: &Outbox) -> Vec<i64> {
    let change = |push: Push| match push {
        Push::Allowance { device: 0, change } => change,
        _ => panic!("it is told something else"),
    };
    outbox.take_pushes().into_iter().map(change).collect()
}

/// Asks, and has the daemon answer.
fn ask(
    budget: &Budget,
    answers: &Answers,
    daemon: &PacketSocket,
    bytes: u64,
    answer: Option<u64>,
) -> (Result<(), CUresult>, u64) {
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| budget.charge(Claim::Asked, (0, bytes), || Ok(())));
        let Some(Packet::Take { gpu: 0, bytes: wanted, reserve }) = daemon.receive().unwrap() else {
            panic!("nothing is asked for")
        };
        assert_eq!(wanted, bytes);
        answers.pass_on((Packet::Taken(answer), None));
        (asked.join().unwrap(), reserve)
    })
}

#[test]
fn what_is_allowed_is_used_unasked_and_no_more() {
    let (budget, answers, daemon, outbox) = budget();
    budget.charge(Claim::Allowed, (0, 6 * CHUNK), || Ok(())).unwrap();
    assert_eq!(daemon.receive().unwrap(), Some(Packet::Spend { gpu: 0, bytes: 6 * CHUNK }));
    let more = || budget.charge(Claim::Allowed, (0, 3 * CHUNK), || Ok(()));
    assert_eq!(more(), Err(CUresult::OUT_OF_MEMORY));
    answers.reserved(0, 4 * CHUNK);
    assert_eq!(told(&outbox), [4 * CHUNK as i64]);
    assert_eq!(more(), Ok(()));
    // It is never more than what is behind it.
    answers.reserved(0, 100 * CHUNK);
    assert_eq!(told(&outbox), [5 * CHUNK as i64]);
}

#[test]
fn who_waits_at_the_end_of_the_lease_gets_what_is_kept() {
    let (budget, answers, daemon, outbox) = budget();
    let (got, offered) = ask(&budget, &answers, &daemon, 50 * CHUNK, Some(RESERVE));
    assert_eq!((got, offered, told(&outbox)), (Ok(()), RESERVE, vec![]));
    let (got, _) = ask(&budget, &answers, &daemon, 50 * CHUNK, None);
    assert_eq!((got, told(&outbox)), (Err(CUresult::OUT_OF_MEMORY), vec![]));
    // All is taken away, and what is left allowed again once there is something behind it.
    let (got, _) = ask(&budget, &answers, &daemon, 50 * CHUNK, Some(2 * CHUNK));
    assert_eq!((got, told(&outbox)), (Ok(()), vec![-(RESERVE as i64), 2 * CHUNK as i64]));
    let (got, offered) = ask(&budget, &answers, &daemon, 2 * CHUNK, Some(0));
    assert_eq!((got, offered, told(&outbox)), (Ok(()), 2 * CHUNK, vec![-(2 * CHUNK as i64)]));
    assert_eq!(budget.charge(Claim::Allowed, (0, 1), || Ok(())), Err(CUresult::OUT_OF_MEMORY));
}

#[test]
fn what_is_on_its_way_here_is_offered_too() {
    let (budget, answers, daemon, _outbox) = budget();
    let take = |reserve| Some(Packet::Take { gpu: 0, bytes: 10 * CHUNK, reserve });
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| budget.charge(Claim::Asked, (0, 10 * CHUNK), || Ok(())));
        assert_eq!(daemon.receive().unwrap(), take(RESERVE));
        answers.reserved(0, 2 * CHUNK);
        answers.pass_on((Packet::Taken(None), None));
        assert_eq!(daemon.receive().unwrap(), take(RESERVE + 2 * CHUNK));
        answers.pass_on((Packet::Taken(Some(0)), None));
        assert_eq!(asked.join().unwrap(), Ok(()));
    });
}

#[test]
fn what_the_driver_refuses_is_asked_for_again_where_others_can_make_room() {
    unsafe extern "C" fn get(free: *mut usize, _: *mut usize) -> CUresult {
        // SAFETY: the caller's to be written.
        unsafe { *free = 3 << 20 };
        CUresult::SUCCESS
    }
    let (budget, answers, daemon, _outbox) = budget();
    let bytes = 10 * CHUNK;
    let next = || daemon.receive::<Packet>().unwrap().unwrap();
    let granted = || {
        assert!(matches!(next(), Packet::Take { .. }));
        answers.pass_on((Packet::Taken(Some(RESERVE)), None));
    };
    let charge = |mut refusals: i32| {
        budget.charge(Claim::Asked, (0, bytes), || {
            refusals -= 1;
            if refusals < 0 { Ok(()) } else { Err(CUresult::OUT_OF_MEMORY) }
        })
    };
    // The ballast is given up first, and then there is nobody to make room.
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| charge(2));
        granted();
        assert_eq!(asked.join().unwrap(), Err(CUresult::OUT_OF_MEMORY));
        assert_eq!(next(), Packet::GiveBack { gpu: 0, bytes });
    });
    budget.overcommits(Some(get));
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| charge(2));
        for _ in 0..2 {
            granted();
            assert_eq!(next(), Packet::GiveBack { gpu: 0, bytes });
            assert_eq!(next(), Packet::CardFull { gpu: 0, free: 3 << 20 });
        }
        granted();
        assert_eq!(asked.join().unwrap(), Ok(()));
    });
    assert_eq!(budget.taken(0), bytes);
}

/// A request may have to wait for memory that leaves, and that for threads that ask something
/// else.
#[test]
fn a_request_that_waits_holds_no_other_question_up() {
    let (budget, answers, daemon, _outbox) = budget();
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| budget.charge(Claim::Asked, (0, 10 * CHUNK), || Ok(())));
        assert!(matches!(daemon.receive().unwrap(), Some(Packet::Take { .. })));
        let used = scope.spawn(|| budget.used(0));
        assert_eq!(daemon.receive().unwrap(), Some(Packet::QueryUsed { gpu: 0 }));
        answers.pass_on((Packet::Used(7), None));
        assert_eq!(used.join().unwrap(), Ok(7));
        let driver = scope.spawn(|| budget.take_for_driver(0, CHUNK));
        assert_eq!(daemon.receive().unwrap(), Some(Packet::TakeAtOnce { gpu: 0, bytes: CHUNK }));
        answers.pass_on((Packet::TakenAtOnce(true), None));
        assert_eq!(driver.join().unwrap(), Ok(()));
        assert_eq!(budget.taken(0), CHUNK);
        answers.pass_on((Packet::Taken(Some(RESERVE)), None));
        assert_eq!(asked.join().unwrap(), Ok(()));
    });
    assert_eq!(budget.taken(0), 11 * CHUNK);
    budget.give_back(0, 4 * CHUNK);
    let refused = budget.charge(Claim::Allowed, (0, CHUNK), || Err::<(), _>(CUresult::UNKNOWN));
    assert_eq!((refused, budget.taken(0)), (Err(CUresult::UNKNOWN), 7 * CHUNK));
}

#[test]
fn without_memory_behind_it_what_is_kept_is_for_who_waits() {
    let (budget, answers, daemon, outbox) = budget();
    assert_eq!(budget.begin(0, RESERVE, None), 0);
    let (got, offered) = ask(&budget, &answers, &daemon, CHUNK, Some(RESERVE - CHUNK));
    assert_eq!((got, offered, told(&outbox)), (Ok(()), RESERVE, vec![]));
    assert_eq!(budget.charge(Claim::Allowed, (0, 1), || Ok(())), Err(CUresult::OUT_OF_MEMORY));
}

#[test]
fn a_card_that_is_short_of_memory_refuses_only_who_waits() {
    let (budget, answers, daemon, outbox) = budget();
    let mut calls = 0;
    let mut second = || {
        calls += 1;
        if calls == 2 { Ok(()) } else { Err(CUresult::OUT_OF_MEMORY) }
    };
    assert_eq!(budget.charge(Claim::Allowed, (0, CHUNK), &mut second), Ok(()));
    assert!(told(&outbox).is_empty(), "what was sent meanwhile is still allowed");
    assert_eq!(budget.charge(Claim::Allowed, (0, CHUNK), || Ok(())), Ok(()));
    let of_others = budget.charge(Claim::Allowed, (0, CHUNK), || Err::<(), _>(CUresult::OUT_OF_MEMORY));
    assert_eq!(of_others, Err(CUresult::OUT_OF_MEMORY));
    for _ in 0..3 {
        assert_eq!(daemon.receive().unwrap(), Some(Packet::Spend { gpu: 0, bytes: CHUNK }));
    }
    assert_eq!(daemon.receive().unwrap(), Some(Packet::GiveBack { gpu: 0, bytes: CHUNK }));
    assert!(matches!(outbox.take_pushes()[..], [Push::Notice(_)]), "and the user is told why");
    let (got, _) = ask(&budget, &answers, &daemon, CHUNK, Some(5 * CHUNK));
    assert_eq!((got, told(&outbox)), (Ok(()), vec![-5 * CHUNK as i64, 5 * CHUNK as i64]));
}

//! What leases get, hold and give back: shares and memory of GPUs, beside each other and over time.

use super::*;
use crate::arbiter::PPM;

const GIB: u64 = 1 << 30;

fn node(cards: usize) -> Books {
    Books::new(vec![Card { name: "software GPU".into(), memory: 16 * GIB }; cards])
}

fn ask(share_ppm: u32, memory: u64) -> Ask {
    let whole = PPM as u32;
    Ask { gpus: 1, share_ppm, memory, limit_ppm: whole, promised_ppm: whole, premium: false, wait_ns: 0 }
}

#[test]
fn a_lease_grows_and_shrinks_within_its_gpu() {
    let mut books = node(1);
    books.grant(1, ask(500_000, 8 * GIB)).unwrap();
    books.grant(2, ask(250_000, 4 * GIB)).unwrap();
    let share = |share_ppm| Resize { share_ppm: Some(share_ppm), ..Resize::default() };
    let memory = |memory| Resize { memory: Some(memory), ..Resize::default() };
    let refusal = books.resize(2, &share(500_001)).unwrap_err().to_string();
    assert!(refusal.contains("up to 50 % of the compute and 8.0 GiB"), "{refusal}");
    let refusal = books.resize(2, &memory(8 * GIB + 1)).unwrap_err().to_string();
    assert!(refusal.contains("up to 50 % of the compute and 8.0 GiB"), "{refusal}");
    assert_eq!((books.leased_ppm(0), books.leased_memory(0)), (750_000, 12 * GIB), "nothing has changed");
    let lease = books.resize(2, &Resize { memory: Some(8 * GIB), ..share(500_000) }).unwrap();
    assert_eq!((lease.ask.share_ppm, lease.memory), (500_000, 8 * GIB));
    books.resize(1, &Resize { memory: Some(GIB), ..share(1) }).unwrap();
    books.resize(2, &share(999_999)).unwrap();
    assert_eq!((books.leased_ppm(0), books.leased_memory(0)), (1_000_000, 9 * GIB));
    assert_eq!(books.resize(2, &share(0)), Err(Refusal::Share));
    assert_eq!(books.resize(3, &share(1)), Err(Refusal::Gone));
}

fn overcommitted(cards: usize, swap_memory: u64) -> Books {
    node(cards).with_overcommit(Overcommit { memory_ppm: 2_000_000, swap_memory })
}

#[test]
fn memory_is_leased_beyond_the_gpu_as_far_as_it_can_be_swapped() {
    let mut books = overcommitted(1, 30 * GIB);
    books.grant(1, ask(100_000, 11 * GIB)).unwrap();
    books.grant(2, ask(100_000, 11 * GIB)).unwrap();
    // All three may have left the GPU when the fourth returns.
    assert_eq!(books.free_memory(0), 8 * GIB);
    let refusal = books.grant(3, ask(100_000, 9 * GIB)).unwrap_err().to_string();
    assert!(refusal.contains("80 % and 8.0 GiB"), "{refusal}");
    books.grant(3, ask(100_000, 8 * GIB)).unwrap();
    assert_eq!((books.leased_memory(0), books.free_memory(0)), (30 * GIB, 0));
    let refusal = books.resize(3, &Resize { memory: Some(9 * GIB), ..Resize::default() });
    assert!(refusal.unwrap_err().to_string().contains("up to 80 % of the compute and 8.0 GiB"));
    // A suspended lease can always be resumed.
    books.suspend(1).unwrap();
    books.vacate(1);
    assert_eq!(books.leased_memory(0), 30 * GIB);
    books.resume(1).unwrap();
    assert!(!books.lease(1).unwrap().suspended);
}

#[test]
fn without_host_memory_a_gpu_is_not_overcommitted() {
    let mut books = overcommitted(2, GIB);
    books.grant_on(1, ask(100_000, 10 * GIB), &[0]).unwrap();
    assert_eq!((books.free_memory(0), books.free_memory(1)), (6 * GIB, 16 * GIB));
    books.grant_on(2, ask(100_000, 6 * GIB), &[0]).unwrap();
    assert_eq!(books.free_memory(0), 0);
}

#[test]
fn no_lease_has_more_than_the_gpu_leaves_beside_those_that_are_fixed() {
    let mut books = overcommitted(1, 100 * GIB);
    let premium = |memory| Ask { premium: true, ..ask(100_000, memory) };
    books.grant(1, premium(6 * GIB)).unwrap();
    assert_eq!(books.free_memory(0), 10 * GIB);
    books.grant(2, ask(100_000, 10 * GIB)).unwrap();
    assert!(books.grant(3, premium(GIB)).is_err(), "lease 2 could never be on the GPU");
    books.grant(3, ask(100_000, 10 * GIB)).unwrap();
    assert_eq!((books.leased_memory(0), books.free_memory(0)), (26 * GIB, 6 * GIB));
}

#[test]
fn two_gpus_share_the_host_memory() {
    let mut books = overcommitted(2, 40 * GIB);
    for (id, gpu) in [(1, 0), (2, 0), (3, 1)] {
        books.grant_on(id, ask(100_000, 12 * GIB), &[gpu]).unwrap();
    }
    // 24 GiB of the first GPU's leases may be in host memory.
    assert_eq!((books.free_memory(0), books.free_memory(1)), (8 * GIB, 4 * GIB));
    let both = Ask { gpus: 2, ..ask(100_000, GIB) };
    books.grant(4, both).expect("it leaves no GPU, and others have host memory to leave for");
}

#[test]
fn what_a_server_may_lease_of_each_gpu_is_never_refused() {
    let cards = vec![Card { name: "software GPU".into(), memory: 16 * GIB }; 3];
    let leasable = |swap_memory| Overcommit { memory_ppm: 1_500_000, swap_memory }.leasable(&cards);
    assert_eq!(leasable(16 * GIB), [16 * GIB; 3], "a GPU of which no more is leased needs none");
    assert_eq!(leasable(47 * GIB), [16 * GIB; 3], "too little for each");
    assert_eq!(leasable(62 * GIB), [20 * GIB; 3], "each has a third, in sixteenths of a GPU");
    assert_eq!(leasable(1000 * GIB), [24 * GIB; 3]);
    for swap_memory in [17 * GIB, 40 * GIB, 55 * GIB] {
        let overcommit = Overcommit { memory_ppm: 1_500_000, swap_memory };
        let mut books = node(3).with_overcommit(overcommit);
        let mut id = 0;
        for (gpu, mut left) in overcommit.leasable(books.cards()).into_iter().enumerate() {
            while left > 0 {
                id += 1;
                let memory = left.min(11 * GIB);
                books.grant_on(id, ask(10_000, memory), &[gpu]).expect("it was said to be leasable");
                left -= memory;
            }
        }
    }
}

#[test]
fn memory_that_a_session_waits_for_is_not_shown_as_used() {
    let mut books = overcommitted(1, 40 * GIB);
    books.grant(1, ask(100_000, 8 * GIB)).unwrap();
    books.open_session(1, 10);
    assert_eq!(books.fill_reserve(1, 10, 0), 0, "nothing is kept on the GPU for later");
    books.take(1, 10, 0, 3 * GIB, 0).unwrap();
    books.await_bytes(1, 10, 0, 2 * GIB);
    let lease = books.lease(1).unwrap();
    assert_eq!((lease.used(0), lease.used_by(10), books.used_memory(0)), (3 * GIB, GIB, GIB));
    assert_eq!(books.arrived(1, 10, 0), 2 * GIB);
    assert_eq!((books.lease(1).unwrap().used_by(10), books.used_memory(0)), (3 * GIB, 3 * GIB));
    assert_eq!(books.arrived(1, 10, 0), 0);
}

#[test]
fn memory_that_sessions_hold_stays_theirs() {
    let mut books = node(1);
    books.grant(1, ask(500_000, 8 * GIB)).unwrap();
    books.open_session(1, 10);
    books.take(1, 10, 0, 3 * GIB, 0).unwrap();
    let reserved = books.fill_reserve(1, 10, 0);
    let memory = |memory| Resize { memory: Some(memory), ..Resize::default() };
    let refusal = books.resize(1, &memory(3 * GIB)).unwrap_err().to_string();
    assert!(refusal.contains("hold 3.1 GiB") && refusal.contains("128.0 MiB of it"), "{refusal}");
    books.resize(1, &memory(3 * GIB + reserved)).unwrap();
    assert!(books.take(1, 10, 0, 1, 0).is_none(), "the new limit counts at once");
    assert_eq!(books.take(1, 10, 0, reserved, reserved), Some(0), "and what was set aside can be used");
    books.resize(1, &memory(16 * GIB)).unwrap();
    assert!(books.take(1, 10, 0, 12 * GIB, 0).is_some(), "so does one that is raised");
}

#[test]
fn the_compute_of_a_suspended_lease_is_free_and_its_memory_is_not() {
    let mut books = node(1);
    books.grant(1, ask(750_000, 12 * GIB)).unwrap();
    books.suspend(1).unwrap();
    assert_eq!((books.leased_ppm(0), books.leased_memory(0)), (0, 12 * GIB));
    assert!(books.grant(2, ask(500_000, 5 * GIB)).is_err(), "its memory is its own");
    books.grant(2, ask(500_000, 4 * GIB)).unwrap();
    let refusal = books.resume(1).unwrap_err().to_string();
    assert!(refusal.contains("50 % of the compute of GPU 0 are free now"), "{refusal}");
    assert!(books.lease(1).unwrap().suspended);
    let share = |share_ppm| Resize { share_ppm: Some(share_ppm), ..Resize::default() };
    books.resize(1, &share(900_000)).expect("it counts only when it is resumed");
    assert!(books.resume(1).is_err());
    books.resize(1, &share(500_000)).unwrap();
    books.resume(1).unwrap();
    assert_eq!(books.leased_ppm(0), 1_000_000);
    books.resume(1).expect("resuming twice is harmless");
    books.end(1);
    books.grant(3, ask(500_000, GIB)).unwrap();
}

#[test]
fn a_suspended_lease_whose_memory_has_left_keeps_what_stays() {
    let mut books = node(1);
    books.grant(1, ask(500_000, 12 * GIB)).unwrap();
    books.open_session(1, 10);
    books.take(1, 10, 0, 6 * GIB, 0).unwrap();
    books.vacate(1);
    assert_eq!(books.vacated().count(), 0, "it is not suspended");
    books.suspend(1).unwrap();
    assert_eq!(books.vacated().count(), 0, "nothing has left");
    books.vacate(1);
    assert_eq!(books.vacated().collect::<Vec<_>>(), [(1, 6 * GIB)]);
    assert_eq!(books.leased_memory(0), 6 * GIB);
    books.resume(1).unwrap();
    assert_eq!(books.vacated().count(), 0);
}

/// Its client takes what is reserved unasked, and other memory of the lease until it leaves.
#[test]
fn a_session_that_leaves_may_have_more_than_it_has_taken() {
    let mut books = node(1);
    books.grant(1, ask(250_000, 12 * GIB)).unwrap();
    for session in [10, 11] {
        books.open_session(1, session);
    }
    books.take(1, 10, 0, 5 * GIB, 0).unwrap();
    books.take(1, 11, 0, GIB, 0).unwrap();
    let reserve = books.fill_reserve(1, 10, 0);
    assert!(reserve > 0);
    let seen = |books: &Books| {
        let lease = books.lease(1).unwrap();
        (lease.unmoved_of(10), lease.within_reach_of(10))
    };
    assert_eq!(seen(&books), (5 * GIB + reserve, 11 * GIB));
    books.spend(1, 10, 0, reserve);
    books.take(1, 10, 0, GIB, 0).unwrap();
    assert_eq!(seen(&books), (6 * GIB + reserve, 11 * GIB));
    books.moved_out(1, 10, &[2 * GIB], &[0]);
    assert_eq!(seen(&books), (4 * GIB + reserve, 9 * GIB));
    assert_eq!(books.lease(1).unwrap().within_reach_of(12), 0);
}

#[test]
fn memory_that_has_left_the_gpu_is_free_until_its_lease_is_resumed() {
    let mut books = node(1);
    books.grant(1, ask(250_000, 12 * GIB)).unwrap();
    books.open_session(1, 10);
    books.take(1, 10, 0, 10 * GIB, 0).unwrap();
    books.moved_out(1, 10, &[GIB], &[GIB / 4]);
    assert_eq!(books.swapped(), (GIB, GIB / 4));
    books.vacate(1);
    assert_eq!(books.leased_memory(0), 12 * GIB, "it is not suspended");
    books.moved_in(1, 10);
    books.suspend(1).unwrap();
    books.moved_out(1, 10, &[9 * GIB], &[0]);
    assert_eq!((books.leased_memory(0), books.used_memory(0)), (12 * GIB, GIB), "others of it may follow");
    books.vacate(1);
    assert_eq!((books.leased_memory(0), books.swapped()), (GIB, (9 * GIB, 0)), "a part cannot leave");
    assert_eq!(books.fill_reserve(1, 10, 0), 0, "nothing is set aside there meanwhile");
    let lease = books.lease(1).unwrap();
    assert_eq!((lease.used_by(10), lease.swapped_by(10)), (10 * GIB, 9 * GIB));
    books.resize(1, &Resize { memory: Some(14 * GIB), ..Resize::default() }).expect("it fits the GPU");
    books.grant(2, ask(250_000, 4 * GIB)).unwrap();
    let refusal = books.resume(1).unwrap_err().to_string();
    assert!(
        refusal.contains("12.0 GiB of the memory of GPU 0") && refusal.contains("needs 14.0 GiB"),
        "{refusal}"
    );
    assert!(books.lease(1).unwrap().suspended, "nothing has changed");
    books.resize(1, &Resize { memory: Some(12 * GIB), ..Resize::default() }).unwrap();
    books.resume(1).unwrap();
    assert_eq!(books.leased_memory(0), 16 * GIB, "its room is its own before its memory is back");
    books.moved_in(1, 10);
    assert_eq!((books.used_memory(0), books.swapped()), (10 * GIB, (0, 0)));
    books.moved_out(1, 10, &[u64::MAX], &[u64::MAX]);
    assert_eq!(books.swapped(), (10 * GIB, 10 * GIB), "no more than there is");
    books.close_session(1, 10);
    assert_eq!((books.swapped(), books.used_memory(0)), ((0, 0), 0));
}

#[test]
fn a_hard_cap_follows_the_share_and_another_limit_stays() {
    let mut books = node(1);
    let capped = Ask { limit_ppm: 250_000, ..ask(250_000, GIB) };
    books.grant(1, capped.clone()).unwrap();
    let resize = |share_ppm, limit_ppm| Resize { share_ppm, limit_ppm, ..Resize::default() };
    let mut check = |resize: Resize, expect: (u32, u32)| {
        let ask = &books.resize(1, &resize).unwrap().ask;
        assert_eq!((ask.share_ppm, ask.limit_ppm), expect, "{resize:?}");
    };
    check(resize(Some(500_000), None), (500_000, 500_000));
    check(resize(None, Some(750_000)), (500_000, 750_000));
    check(resize(Some(250_000), None), (250_000, 750_000));
    check(resize(None, Some(0)), (250_000, 250_000));
    check(resize(Some(100_000), Some(1_000_000)), (100_000, 1_000_000));
    check(resize(Some(1_000_000), None), (1_000_000, 1_000_000));
    check(resize(Some(100_000), None), (100_000, 1_000_000));
    let refusal = books.resize(1, &resize(None, Some(99_999))).unwrap_err().to_string();
    assert!(refusal.contains("not below the share (10 %)"), "{refusal}");
    assert!(matches!(books.grant(2, Ask { limit_ppm: 1, ..capped }), Err(Refusal::Limit { .. })));
}

#[test]
fn a_lease_grows_to_a_whole_gpu_only_where_it_is_alone() {
    let mut books = node(1);
    let of_150 = |share_ppm| Ask { promised_ppm: 1_500_000, ..ask(share_ppm, GIB) };
    let share = |share_ppm| Resize { share_ppm: Some(share_ppm), ..Resize::default() };
    books.grant_on(1, of_150(750_000), &[0]).unwrap();
    books.grant_on(2, of_150(500_000), &[0]).unwrap();
    assert!(books.resize(1, &share(1_000_000)).is_err());
    books.resize(1, &share(999_999)).unwrap();
    books.end(2);
    books.resize(1, &share(1_000_000)).unwrap();
    // Its pool promises less than it did: what it has stays, and it can become less.
    books.grant_on(3, of_150(1), &[0]).unwrap_err();
    books.resize(1, &Resize { promised_ppm: Some(500_000), ..share(750_000) }).unwrap();
}

#[test]
fn memory_follows_the_share_unless_named() {
    let mut books = node(1);
    assert_eq!(books.grant(1, ask(250_000, 0)).unwrap().memory, 4 * GIB);
    assert_eq!(books.grant(2, ask(250_000, GIB)).unwrap().memory, GIB);
    assert_eq!((books.leased_ppm(0), books.leased_memory(0)), (500_000, 5 * GIB));
}

#[test]
fn shares_and_memory_are_never_oversold() {
    let mut books = node(1);
    books.grant(1, ask(750_000, GIB)).unwrap();
    let refusal = books.grant(2, ask(250_001, GIB)).unwrap_err().to_string();
    assert!(refusal.contains("GPU 0 (software GPU) 25 % and 15.0 GiB"), "{refusal}");
    books.grant(3, ask(250_000, 15 * GIB)).unwrap();
    assert!(books.grant(4, ask(1, 1)).is_err());
    books.end(3);
    books.grant(4, ask(1, 1)).unwrap();
}

#[test]
fn parts_of_an_overcommitted_gpu_are_leased_up_to_what_the_grant_says() {
    let mut books = node(1);
    let of_150 = |share_ppm, memory| Ask { promised_ppm: 1_500_000, ..ask(share_ppm, memory) };
    books.grant_on(1, of_150(750_000, GIB), &[0]).unwrap();
    books.grant_on(2, of_150(750_000, GIB), &[0]).unwrap();
    assert_eq!(books.leased_ppm(0), 1_500_000);
    assert!(books.grant_on(3, of_150(1, GIB), &[0]).is_err());
    books.end(2);
    // The pool promises less than it did: what is there stays.
    assert!(books.grant_on(3, ask(250_001, GIB), &[0]).is_err());
    books.grant_on(3, ask(250_000, GIB), &[0]).unwrap();
    let refusal = books.grant_on(4, of_150(500_000, 15 * GIB), &[0]).unwrap_err().to_string();
    assert!(refusal.contains("50 % and 14.0 GiB"), "memory is leased once: {refusal}");
}

#[test]
fn a_whole_gpu_is_alone_however_much_is_promised() {
    let mut books = node(1);
    let of_1000 = |share_ppm| Ask { promised_ppm: 10_000_000, ..ask(share_ppm, GIB) };
    books.grant_on(1, of_1000(1), &[0]).unwrap();
    assert!(books.grant_on(2, of_1000(1_000_000), &[0]).is_err(), "a part is leased");
    books.end(1);
    books.grant_on(2, of_1000(1_000_000), &[0]).unwrap();
    assert!(books.grant_on(3, of_1000(1), &[0]).is_err(), "the whole is leased");
}

#[test]
fn senseless_requests_say_what_makes_sense() {
    let mut books = node(2);
    assert_eq!(books.grant(1, ask(0, 0)), Err(Refusal::Share));
    assert_eq!(books.grant(1, ask(1_000_001, 0)), Err(Refusal::Share));
    assert_eq!(books.grant(1, Ask { gpus: 3, ..ask(1, 0) }), Err(Refusal::Count(2)));
    assert_eq!(books.grant(1, Ask { gpus: 0, ..ask(1, 0) }), Err(Refusal::Count(2)));
    let refusal = books.grant(1, ask(1000, 17 * GIB)).unwrap_err().to_string();
    assert!(refusal.contains("17.0 GiB") && refusal.contains("16.0 GiB"), "{refusal}");
    assert!(books.grant(1, ask(1000, u64::MAX)).is_err());
}

#[test]
fn several_gpus_are_distinct_and_fill_up_one_after_another() {
    let mut books = node(3);
    let first = books.grant(1, ask(100_000, GIB)).unwrap().gpus.clone();
    assert_eq!(books.grant(2, ask(100_000, GIB)).unwrap().gpus, first);
    let three = Ask { gpus: 3, ..ask(500_000, GIB) };
    assert_eq!(books.grant(3, three).unwrap().gpus, [0, 1, 2]);
}

#[test]
fn a_chosen_place_is_taken_or_refused() {
    let mut books = node(2);
    assert_eq!(books.grant_on(1, ask(750_000, GIB), &[1]).unwrap().gpus, [1]);
    assert!(books.grant_on(2, ask(500_000, GIB), &[1]).is_err());
    assert_eq!(books.grant_on(2, Ask { gpus: 2, ..ask(250_000, GIB) }, &[1, 0]).unwrap().gpus, [1, 0]);
    for gpus in [&[][..], &[2], &[0, 0]] {
        assert_eq!(books.grant_on(3, ask(1, 1), gpus), Err(Refusal::Count(2)), "{gpus:?}");
    }
}

#[test]
fn the_limit_counts_over_all_sessions_of_a_lease() {
    let mut books = node(1);
    books.grant(1, ask(500_000, 4 * GIB)).unwrap();
    assert!(books.open_session(1, 10) && books.open_session(1, 11));
    assert!(books.take(1, 10, 0, 3 * GIB, 0).is_some());
    assert!(books.take(1, 11, 0, 2 * GIB, 0).is_none());
    assert!(books.take(1, 11, 0, GIB, 0).is_some());
    assert!(books.take(1, 11, 0, 1, 0).is_none() && books.take(1, 10, 0, u64::MAX, 0).is_none());
    books.close_session(1, 10);
    assert_eq!(books.lease(1).unwrap().used(0), GIB);
    assert!(books.take(1, 11, 0, 3 * GIB, 0).is_some());
    books.give_back(1, 11, 0, u64::MAX);
    assert_eq!(books.lease(1).unwrap().used(0), 0);
}

#[test]
fn shared_memory_counts_once_and_outlives_its_session() {
    let mut books = node(1);
    books.grant(1, ask(500_000, 4 * GIB)).unwrap();
    books.open_session(1, 10);
    books.open_session(1, 11);
    assert!(books.take(1, 10, 0, 3 * GIB, 0).is_some());
    assert!(!books.share(1, 11, 0, 1) && !books.share(1, 10, 0, 4 * GIB));
    assert!(books.share(1, 10, 0, 2 * GIB));
    assert_eq!(books.lease(1).unwrap().used(0), 3 * GIB);
    books.close_session(1, 10);
    assert_eq!(books.lease(1).unwrap().used(0), 2 * GIB);
    assert!(books.take(1, 11, 0, 3 * GIB, 0).is_none());
    books.unshare(1, 0, 2 * GIB);
    assert!(books.take(1, 11, 0, 4 * GIB, 0).is_some());
}

#[test]
fn a_reserve_is_a_small_part_of_the_lease_and_nobody_elses() {
    const MIB: u64 = 1 << 20;
    let mut books = Books::new(vec![Card { name: "GPU".into(), memory: 100 * GIB }]);
    for (lease, memory, kept) in
        [(1, 64 * GIB, 256 * MIB), (2, GIB, 16 * MIB), (3, 255 * MIB, 2 * MIB), (4, 127 * MIB, 0)]
    {
        books.grant(lease, ask(1000, memory)).unwrap();
        books.open_session(lease, 10);
        assert_eq!(books.fill_reserve(lease, 10, 0), kept, "{memory}");
        assert_eq!(books.fill_reserve(lease, 10, 0), 0, "it is full");
        let lease = books.lease(lease).unwrap();
        assert_eq!((lease.used(0), lease.used_by(10)), (0, 0), "a reserve is not used");
    }
    // Of all of a lease its sessions together keep a thirty-second.
    for session in 11..100 {
        books.open_session(2, session);
        books.fill_reserve(2, session, 0);
    }
    assert_eq!(books.lease(2).unwrap().reserves(0), 32 * MIB);
    books.close_session(2, 10);
    assert_eq!(books.lease(2).unwrap().reserves(0), 16 * MIB);
}

#[test]
fn a_session_gets_all_of_its_lease_with_its_reserve_and_no_more() {
    const MIB: u64 = 1 << 20;
    let mut books = node(1);
    books.grant(1, ask(500_000, 256 * MIB)).unwrap();
    books.open_session(1, 10);
    books.open_session(1, 11);
    assert_eq!((books.fill_reserve(1, 10, 0), books.fill_reserve(1, 11, 0)), (4 * MIB, 2 * MIB));
    books.spend(1, 10, 0, 2 * MIB);
    assert_eq!((books.lease(1).unwrap().used(0), books.fill_reserve(1, 10, 0)), (2 * MIB, 2 * MIB));
    assert_eq!(books.take(1, 10, 0, 100 * MIB, 4 * MIB), Some(4 * MIB), "what is left goes first");
    // 148 MiB are left, and 2 MiB are kept for the other.
    assert_eq!(books.take(1, 10, 0, 154 * MIB, 4 * MIB), None);
    assert_eq!(books.take(1, 10, 0, 150 * MIB, 0), None, "the reserve is in use");
    assert_eq!(books.take(1, 10, 0, 150 * MIB, 4 * MIB), Some(2 * MIB));
    assert_eq!(books.fill_reserve(1, 10, 0), 0, "nothing is left");
    assert_eq!(books.take(1, 11, 0, 2 * MIB, 2 * MIB), Some(0));
    assert_eq!(books.take(1, 10, 0, 2 * MIB, 2 * MIB), Some(0));
    assert_eq!(books.lease(1).unwrap().used(0), 256 * MIB);
    assert_eq!(books.take(1, 10, 0, 1, 0), None);
    books.close_session(1, 10);
    assert_eq!(books.lease(1).unwrap().used(0), 2 * MIB);
}

#[test]
fn a_clone_takes_what_its_session_has_or_says_what_is_missing() {
    const MIB: u64 = 1 << 20;
    let mut books = node(1);
    books.grant(1, ask(500_000, 256 * MIB)).unwrap();
    books.open_session(1, 10);
    let reserve = books.fill_reserve(1, 10, 0);
    assert_eq!(books.take(1, 10, 0, 100 * MIB, 0), Some(0));
    books.open_clone(1, 10, 11).unwrap();
    let lease = books.lease(1).unwrap();
    assert_eq!((lease.used(0), lease.reserves(0)), (200 * MIB, reserve), "nothing is kept for it yet");
    let refusal = books.open_clone(1, 10, 12).unwrap_err();
    let text = refusal.to_string();
    let left = 56 * MIB - reserve;
    let needed = format!("give it {:.1} MiB", (256 * MIB + 100 * MIB - left) as f64 / MIB as f64);
    assert!(text.contains("needs 100.0 MiB") && text.contains(&needed), "{text}");
    assert_eq!(books.lease(1).unwrap().used(0), 200 * MIB, "no account is left");
    // What the worker has taken meanwhile counts, as far as there is room.
    books.settle_clone(1, 11, &[110 * MIB]).unwrap();
    assert!(books.settle_clone(1, 11, &[200 * MIB]).is_err());
    assert_eq!(books.lease(1).unwrap().used_by(11), 110 * MIB);
    assert_eq!(books.open_clone(1, 99, 13), Err(Refusal::Gone));
    assert_eq!(books.open_clone(2, 10, 13), Err(Refusal::Gone));
}

#[test]
fn unknown_leases_sessions_and_gpus_get_nothing() {
    let mut books = node(1);
    assert!(!books.open_session(7, 1) && books.take(7, 1, 0, 1, 0).is_none());
    books.grant(7, ask(1000, GIB)).unwrap();
    assert!(books.take(7, 1, 0, 1, 0).is_none());
    books.open_session(7, 1);
    assert!(books.take(7, 1, 1, 1, 0).is_none());
}

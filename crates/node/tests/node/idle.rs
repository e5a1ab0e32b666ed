//! Leases whose programs do nothing, on a node that suspends them.

use std::time::{Duration, Instant};

use crate::elastic::{check, fill, seen, suspend};
use crate::raw::{Session, lease, request};
use crate::{MIB, NodeConfig, PATIENCE, TestNode, commit};

/// After so long without a call; short, for a test.
const IDLE_AFTER: Duration = Duration::from_secs(3);

pub(crate) fn suspends_idle_ones() -> NodeConfig {
    NodeConfig { idle_after: Some(IDLE_AFTER), ..NodeConfig::default() }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn an_idle_lease_leaves_its_gpu_and_comes_back_at_the_next_call(node: &TestNode) {
    let (bytes, memory) = (200 * MIB, 700 * MIB);
    let first = lease(&node.address, request(600_000, memory));
    let mut one = Session::open(&node.address, first.granted.token);
    let session = one.opened.session;
    let place = commit(&mut one, 0, bytes).unwrap();
    for round in 0..2 {
        fill(&mut one, place, bytes, round);
        wait_until("it is suspended", || seen(node, session).memory_swapped == bytes);
        let idle = seen(node, session);
        assert!(idle.suspended && idle.memory_state.contains("next CUDA call"), "{idle:?}");
        // No command but the call itself brings it back.
        check(&mut one, place, bytes, round);
        let back = seen(node, session);
        assert_eq!((back.suspended, back.memory_swapped), (false, 0), "{back:?}");
    }

    // Its room is gone: the call waits, and says why.
    wait_until("it is suspended", || seen(node, session).memory_swapped == bytes);
    let second = lease(&node.address, request(800_000, memory));
    let mut two = Session::open(&node.address, second.granted.token);
    let other = 2 * MIB;
    let there = commit(&mut two, 0, other).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| check(&mut one, place, bytes, 1));
        let mut state = String::new();
        wait_until("its call waits", || {
            // The other one is not idle.
            fill(&mut two, there, other, 3);
            state = seen(node, session).memory_state;
            state.contains("its call waits")
        });
        assert!(state.contains("GPU 0"), "{state}");
        assert!(!waiting.is_finished());
        drop((two, second));
        waiting.join().unwrap();
    });
    assert!(!seen(node, session).suspended);

    // What a person has suspended stays so.
    suspend(node, first.granted.lease, true).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| check(&mut one, place, bytes, 1));
        wait_until("the call is there", || seen(node, session).suspended);
        suspend(node, first.granted.lease, false).unwrap();
        waiting.join().unwrap();
    });
    drop((one, first));
    node.wait_until_idle();
}

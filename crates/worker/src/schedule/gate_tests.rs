//! The gate against a scripted daemon and a driver whose work finishes when the test says so.

use super::*;

/// Work in units; `finished` counts those that are done.
#[derive(Default)]
struct FakeDriver {
    pausable: bool,
    state: Mutex<FakeState>,
    changed: Condvar,
}

#[derive(Default)]
struct FakeState {
    paused: bool,
    pending: u32,
    /// What its work has used, if it tells.
    used: Option<Duration>,
}

impl FakeDriver {
    fn submit(&self) {
        self.state.lock().unwrap().pending += 1;
    }

    fn finish_all(&self) {
        self.state.lock().unwrap().pending = 0;
        self.changed.notify_all();
    }

    fn paused(&self) -> bool {
        self.state.lock().unwrap().paused
    }
}

impl Brake for Arc<FakeDriver> {
    fn can_pause(&self) -> bool {
        self.pausable
    }

    fn pause(&self) {
        self.state.lock().unwrap().paused = true;
    }

    fn resume(&self) {
        self.state.lock().unwrap().paused = false;
    }

    fn used(&self) -> Option<Duration> {
        self.state.lock().unwrap().used
    }

    fn drain(&self) {
        let mut state = self.state.lock().unwrap();
        while state.pending > 0 {
            state = self.changed.wait(state).unwrap();
        }
    }
}

struct Bench {
    driver: Arc<FakeDriver>,
    gate: Arc<Gate>,
    daemon: PacketSocket,
    counters: Arc<CounterPage>,
}

fn bench(pausable: bool) -> Bench {
    let driver = Arc::new(FakeDriver { pausable, ..FakeDriver::default() });
    let (daemon, worker) = PacketSocket::pair().unwrap();
    let counters = Arc::new(CounterPage::create().unwrap());
    let gate = Arc::new(Gate::new(0, Box::new(Arc::clone(&driver)), Arc::new(worker), Arc::clone(&counters)));
    let watched = Arc::clone(&gate);
    std::thread::spawn(move || watched.watch());
    Bench { driver, gate, daemon, counters }
}

impl Bench {
    fn submit(&self) {
        let _submission = self.gate.enter();
        self.driver.submit();
    }

    fn next(&self) -> Packet {
        self.daemon.receive().unwrap().unwrap()
    }
}

#[test]
fn pausable_work_is_taken_before_the_turn_and_runs_in_it() {
    let b = bench(true);
    b.submit();
    b.submit();
    assert_eq!(b.next(), Packet::Want { gpu: 0 });
    assert!(b.driver.paused());
    b.gate.granted();
    assert!(!b.driver.paused());
    b.gate.recalled();
    assert!(b.driver.paused());
    assert!(matches!(b.next(), Packet::Done { more: true, .. }));
    b.gate.granted();
    b.gate.pressed();
    b.driver.finish_all();
    assert!(matches!(b.next(), Packet::Done { more: false, .. }));
}

/// The driver's word is what use is, to the last bit of work after a turn; what a turn is charged
/// with is its time.
#[test]
fn a_driver_that_tells_what_its_work_used_is_believed() {
    let b = bench(true);
    b.submit();
    assert_eq!(b.next(), Packet::Want { gpu: 0 });
    let used = |ns| b.driver.state.lock().unwrap().used = Some(Duration::from_nanos(ns));
    used(5);
    b.gate.granted();
    b.gate.account();
    assert_eq!(b.counters.read().used_ns, 5);
    used(7);
    b.gate.recalled();
    let Packet::Done { turn_ns, used_ns: 7, more: true, .. } = b.next() else { panic!("the turn is over") };
    let counts = b.counters.read();
    assert_eq!((counts.used_ns, counts.gpu_ns), (7, turn_ns));
    assert!(turn_ns > 7);
    used(8);
    b.gate.account();
    assert_eq!((b.counters.read().used_ns, b.counters.read().gpu_ns), (8, turn_ns));
}

#[test]
fn a_driver_that_does_not_tell_is_used_for_as_long_as_the_turn() {
    let b = bench(false);
    let gate = Arc::clone(&b.gate);
    let driver = Arc::clone(&b.driver);
    let submits = std::thread::spawn(move || {
        let _submission = gate.enter();
        driver.submit();
    });
    assert_eq!(b.next(), Packet::Want { gpu: 0 });
    b.gate.granted();
    submits.join().unwrap();
    b.driver.finish_all();
    b.gate.pressed();
    assert!(matches!(b.next(), Packet::Done { more: false, .. }));
    let counts = b.counters.read();
    assert!(counts.used_ns > 0 && counts.used_ns == counts.gpu_ns, "{counts:?}");
}

#[test]
fn a_lone_holder_keeps_the_turn_until_somebody_waits() {
    let b = bench(true);
    b.submit();
    assert_eq!(b.next(), Packet::Want { gpu: 0 });
    b.gate.granted();
    b.driver.finish_all();
    b.submit();
    b.driver.finish_all();
    // Whether the gate has noticed the drain yet or not, the turn comes back without a second Want.
    b.gate.pressed();
    assert!(matches!(b.next(), Packet::Done { more: false, .. }));
    b.submit();
    assert_eq!(b.next(), Packet::Want { gpu: 0 });
}

#[test]
fn a_driver_that_cannot_pause_gets_no_work_between_turns() {
    let b = bench(false);
    let (gate, driver) = (Arc::clone(&b.gate), Arc::clone(&b.driver));
    let submitter = std::thread::spawn(move || {
        let _submission = gate.enter();
        driver.submit();
    });
    assert_eq!(b.next(), Packet::Want { gpu: 0 });
    assert_eq!(b.driver.state.lock().unwrap().pending, 0);
    b.gate.granted();
    submitter.join().unwrap();
    assert_eq!(b.driver.state.lock().unwrap().pending, 1);
    // The recall waits for the kernel, and the next submission for the next turn.
    b.gate.recalled();
    let (gate, driver) = (Arc::clone(&b.gate), Arc::clone(&b.driver));
    let submitter = std::thread::spawn(move || {
        let _submission = gate.enter();
        driver.submit();
    });
    b.driver.finish_all();
    let Packet::Done { more, .. } = b.next() else { panic!("not done") };
    if !more {
        // The submitter came after the turn was given up.
        assert_eq!(b.next(), Packet::Want { gpu: 0 });
    }
    b.gate.granted();
    submitter.join().unwrap();
    assert_eq!(b.driver.state.lock().unwrap().pending, 1);
}

/// On a busy machine a turn can be over before whoever waited for it is awake.
#[test]
fn a_turn_that_nobody_was_awake_for_is_given_back() {
    let b = Arc::new(bench(false));
    let other = Arc::clone(&b);
    let submitter = std::thread::spawn(move || other.submit());
    assert_eq!(b.next(), Packet::Want { gpu: 0 });
    while b.gate.lock().at_gate == 0 {
        std::thread::yield_now();
    }
    // Both words of the daemon come while the submitter sleeps.
    let mut state = b.gate.lock();
    (state.turn, state.recalled) = (SliceState::Held, false);
    drop(state);
    b.gate.recalled();
    assert!(matches!(b.next(), Packet::Done { more: true, .. }));
    b.gate.granted();
    submitter.join().unwrap();
}

/// What was submitted runs to its end before anybody else has the turn.
#[test]
fn with_neighbours_a_driver_that_cannot_pause_is_given_little_ahead() {
    let b = Arc::new(bench(false));
    b.gate.granted();
    b.gate.lock().ahead = Ahead::of_pieces(Duration::from_secs(100));
    // However slow this machine is, it is a moment ago.
    b.gate.lock().ahead.pressed(Instant::now() + Duration::from_secs(3600));
    b.submit();
    b.submit();
    let other = Arc::clone(&b);
    let submitter = std::thread::spawn(move || other.submit());
    while b.gate.lock().at_gate == 0 {
        std::thread::yield_now();
    }
    assert_eq!(b.driver.state.lock().unwrap().pending, 2);
    b.gate.recalled();
    b.driver.finish_all();
    assert!(matches!(b.next(), Packet::Done { more: true, .. }));
    b.gate.granted();
    submitter.join().unwrap();
    assert_eq!(b.driver.state.lock().unwrap().pending, 1);
}

#[test]
fn a_recall_of_an_idle_holder_is_answered_at_once() {
    let b = bench(false);
    b.gate.granted();
    b.gate.recalled();
    assert_eq!(b.next(), Packet::Done { gpu: 0, turn_ns: 0, used_ns: 0, more: false });
}

#[test]
fn work_that_its_call_has_waited_for_needs_no_drain() {
    let b = bench(true);
    b.gate.granted();
    // Nothing ends this drain.
    b.driver.state.lock().unwrap().pending = 1;
    b.gate.enter().finished();
    b.gate.pressed();
    let Packet::Done { used_ns, more, .. } = b.next() else { panic!("not done") };
    assert!(used_ns > 0 && !more);
}

#[test]
fn what_the_turn_may_wait_for_does_not_wait_for_the_turn() {
    let b = bench(false);
    assert!(b.gate.enter_without_waiting().is_none());
    let b = bench(true);
    assert!(b.gate.enter_without_waiting().is_some(), "a driver that pauses takes work at any time");
}

#[test]
fn a_drain_empties_the_backlog() {
    let b = bench(true);
    b.gate.granted();
    let submission = b.gate.enter();
    let call = b.gate.backlog().call();
    b.driver.submit();
    drop(call);
    drop(submission);
    b.gate.pressed();
    assert!(!b.gate.backlog().is_empty());
    b.driver.finish_all();
    assert!(matches!(b.next(), Packet::Done { more: false, .. }));
    assert!(b.gate.backlog().is_empty());
}

#[test]
fn a_watchdog_sleeps_until_there_is_work() {
    let b = bench(true);
    b.gate.granted();
    for _ in 0..3 {
        assert!(b.gate.is_idle());
        let gate = Arc::clone(&b.gate);
        let sleeper = std::thread::spawn(move || gate.wait_for_work());
        while !b.gate.lock().awaited {
            std::thread::yield_now();
        }
        let submission = b.gate.enter();
        sleeper.join().unwrap();
        assert!(!b.gate.is_idle());
        submission.finished();
    }
}

/// The daemon says once in each turn that others wait, and a turn may last.
#[test]
fn a_turn_that_lasts_is_given_little_ahead_to_its_end() {
    let b = bench(false);
    let mut state = b.gate.lock();
    state.ahead = Ahead::of_pieces(Duration::from_secs(100));
    (state.turn, state.pressed, state.submitted) = (SliceState::Held, true, 2);
    let keeps_out = state.keeps_out(Instant::now() + Duration::from_secs(10));
    // Nothing was submitted in truth.
    state.submitted = 0;
    assert!(keeps_out.is_some());
}

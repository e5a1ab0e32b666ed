//! Notices a call of a loaded driver that never returns, and ends the session then: its client gets
//! an error that stays, and the daemon is notified that the driver hangs.
//!
//! Not every call that takes long hangs. A synchronisation lasts as long as a kernel, or a function
//! of the client that its stream waits for; nearly any call may wait for kernels, and loading code
//! may compile for minutes, on other threads too, while other calls wait for that. So a call hangs
//! that for the whole timeout
//!
//! - was there while this process computed next to nothing, and nothing that the session gave the
//!   GPU was left to wait for; or
//! - has been in one and the same sleep in the kernel that no signal ends: no driver waits for its
//!   GPU's work in that way.
//!
//! A driver that has never answered yet may have many GPUs to wake up: it gets twice the timeout.
//! What remains is a call that waits for work which never ends, and cannot be distinguished from a
//! long kernel: the limit on kernels is for that.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use sluice_wire::Op;
use sluice_wire::control::SessionRefused;

use crate::connection::client::{Client, frame_of};
use crate::link::{Packet, PacketSocket};
use crate::process::calls::{self, Call};
use crate::process::ending;
use crate::session::Session;

/// The timeout of a driver that starts, as a multiple of the usual one.
const START: u32 = 2;

/// The session, once there is one: the driver can hang before.
pub(crate) type Opened = Arc<OnceLock<Arc<Session>>>;

/// Looks at the calls for as long as the process lives; never returns.
pub(crate) fn watch(patience: Duration, opened: &Opened, client: &Client, link: &PacketSocket) -> ! {
    let pause = patience / 20;
    let mut looks = Looks::default();
    loop {
        std::thread::sleep(pause);
        let session = opened.get();
        let patience = if session.is_some() { patience } else { START * patience };
        let look = Look {
            at: Instant::now(),
            computed: task_state("/proc/self").map_or(Duration::ZERO, |process| process.computed),
            waits_for_work: session.is_some_and(|session| session.has_unfinished()),
        };
        if let Some(call) = looks.look(patience, look, &calls::in_progress(), thread_state) {
            end(call, patience, opened, client, link);
        }
    }
}

fn end(call: Call, patience: Duration, opened: &Opened, client: &Client, link: &PacketSocket) -> ! {
    let name = call.function.name();
    let what = format!("the node's driver hangs: {name} did not return for {} s", patience.as_secs());
    match opened.get() {
        Some(session) => {
            let text = format!("{what}, so the session has ended");
            crate::process::watchdog::last_word(session, Op::of(call.function), ending::GONE, text);
        }
        None => refuse(client, what.clone()),
    }
    // A process with a thread that no signal ends keeps its descriptors, and the client would wait
    // on.
    client.hang_up();
    let _ = link.send(&Packet::Hangs(what));
    ending::hangs()
}

/// Tells a client that its session does not begin.
pub(crate) fn refuse(client: &Client, reason: String) {
    if let Ok(frame) = frame_of(SessionRefused { reason }) {
        let outbox = Arc::clone(client.outbox());
        ending::last_word(move || _ = outbox.send(&frame));
    }
}

/// What the system says of a thread, or of the process.
#[derive(Clone, Copy, Debug, Default)]
struct TaskState {
    /// CPU time so far.
    computed: Duration,
    /// Asleep where no signal wakes it.
    is_stuck: bool,
    /// How often it has given a core up, or had to.
    switches: u64,
}

fn thread_state(thread: i32) -> Option<TaskState> {
    task_state(&format!("/proc/self/task/{thread}"))
}

/// Reads `stat` and `status` (proc(5)).
fn task_state(folder: &str) -> Option<TaskState> {
    let read = |name| std::fs::read_to_string(format!("{folder}/{name}")).ok();
    let state = parse(&read("stat")?, ticks_per_s())?;
    Some(TaskState { switches: switches(&read("status")?), ..state })
}

fn switches(status: &str) -> u64 {
    let counts =
        status.lines().filter_map(|line| line.split_once("ctxt_switches:")?.1.trim().parse::<u64>().ok());
    counts.fold(0, u64::saturating_add)
}

fn parse(stat: &str, ticks_per_s: u64) -> Option<TaskState> {
    // The name may hold anything, spaces and parentheses too.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    // Behind the name: the state is field 3, the CPU times are 14 and 15.
    let ticks = fields.get(11)?.parse::<u64>().ok()?.saturating_add(fields.get(12)?.parse().ok()?);
    let computed = Duration::from_millis(ticks.saturating_mul(1000) / ticks_per_s.max(1));
    Some(TaskState { computed, is_stuck: *fields.first()? == "D", switches: 0 })
}

fn ticks_per_s() -> u64 {
    // SAFETY: plain query.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).unwrap_or(100)
}

/// What was seen so far.
#[derive(Default)]
struct Looks {
    last: Option<Look>,
    /// By thread.
    calls: HashMap<i32, Seen>,
}

/// What is so for all calls at some moment.
#[derive(Clone, Copy, Debug)]
struct Look {
    at: Instant,
    /// CPU time of the process so far.
    computed: Duration,
    /// The GPU has something to do.
    waits_for_work: bool,
}

/// A call that was there at the last look.
#[derive(Clone, Copy, Debug)]
struct Seen {
    call: Call,
    state: TaskState,
    /// For how long there has been nothing that it could wait for.
    for_nothing: Duration,
    /// For how long it has been stuck in the kernel.
    stuck: Duration,
}

/// A thread that computes for less than this part of the time only checks whether to continue
/// waiting.
const COMPUTES: u32 = 20;
/// Less than this time of computing cannot be distinguished from none: the system counts in
/// hundredths of a second.
const COMPUTES_MIN: Duration = Duration::from_millis(20);

impl Looks {
    /// The call that hangs, if one does by now.
    fn look(
        &mut self,
        patience: Duration,
        look: Look,
        calls: &[Call],
        state_of: impl Fn(i32) -> Option<TaskState>,
    ) -> Option<Call> {
        let last = self.last.replace(look).unwrap_or(look);
        // A process that was stopped has not waited meanwhile.
        let passed = (look.at - last.at).min(patience / 10);
        let computes = look.computed.saturating_sub(last.computed) > (passed / COMPUTES).max(COMPUTES_MIN);
        let before = std::mem::take(&mut self.calls);
        for &call in calls {
            let Some(state) = state_of(call.thread) else { continue };
            let mut seen = Seen { call, state, for_nothing: Duration::ZERO, stuck: Duration::ZERO };
            if let Some(last) = before.get(&call.thread).filter(|last| last.call == call) {
                if !look.waits_for_work && !computes {
                    seen.for_nothing = last.for_nothing + passed;
                }
                if state.is_stuck && last.state.is_stuck && state.switches == last.state.switches {
                    seen.stuck = last.stuck + passed;
                }
            }
            self.calls.insert(call.thread, seen);
        }
        let hangs = |seen: &&Seen| seen.for_nothing >= patience || seen.stuck >= patience;
        self.calls.values().find(hangs).map(|seen| seen.call)
    }
}

#[cfg(test)]
mod tests {
    use sluice_cuda::Fn;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);
    const CALL: Call = Call { thread: 7, number: 41, function: Fn::cuMemCreate };

    /// Looks once a second at [`CALL`]; the answer is after how many seconds it hangs, within a
    /// minute. `computed` is of the process.
    fn hangs_after(
        waits_for_work: impl std::ops::Fn(u64) -> bool,
        computed: impl std::ops::Fn(u64) -> Duration,
        state_of: impl std::ops::Fn(u64) -> TaskState,
    ) -> Option<u64> {
        let (mut looks, start) = (Looks::default(), Instant::now());
        (0..60).find(|&second| {
            let at = start + Duration::from_secs(second);
            let look = Look { at, computed: computed(second), waits_for_work: waits_for_work(second) };
            let state = |thread| (thread == CALL.thread).then(|| state_of(second));
            looks.look(PATIENCE, look, &[CALL], state) == Some(CALL)
        })
    }

    fn nothing(_: u64) -> Duration {
        Duration::ZERO
    }

    fn asleep(_: u64) -> TaskState {
        TaskState::default()
    }

    #[test]
    fn a_call_hangs_that_waits_for_nothing() {
        assert_eq!(hangs_after(|_| false, nothing, asleep), Some(10));
        let looks_around = |second| Duration::from_millis(40 * second);
        assert_eq!(
            hangs_after(|_| false, looks_around, asleep),
            Some(10),
            "it looks whether to go on waiting"
        );
        assert_eq!(hangs_after(|_| true, nothing, asleep), None, "a kernel may take as long as it likes");
        assert_eq!(
            hangs_after(|second| second < 20, nothing, asleep),
            Some(29),
            "from when the last kernel ended"
        );
    }

    #[test]
    fn no_call_hangs_while_the_process_computes() {
        assert_eq!(
            hangs_after(|_| false, Duration::from_secs, asleep),
            None,
            "another thread may compile for it"
        );
        let at_times = |second| Duration::from_secs(second / 5);
        assert_eq!(hangs_after(|_| false, at_times, asleep), None, "cores are short");
        let at_first = |second: u64| Duration::from_secs(second.min(20));
        assert_eq!(hangs_after(|_| false, at_first, asleep), Some(30));
    }

    #[test]
    fn a_call_hangs_that_is_stuck_in_the_kernel_whatever_there_is_to_wait_for() {
        let stuck = |_| TaskState { is_stuck: true, ..TaskState::default() };
        assert_eq!(hangs_after(|_| true, nothing, stuck), Some(10));
        let at_times =
            |second: u64| TaskState { is_stuck: !second.is_multiple_of(5), ..TaskState::default() };
        assert_eq!(hangs_after(|_| true, nothing, at_times), None);
        let swaps = |second| TaskState { is_stuck: true, switches: second, ..TaskState::default() };
        assert_eq!(hangs_after(|_| true, nothing, swaps), None, "each time it was another sleep");
    }

    #[test]
    fn each_call_of_a_thread_has_a_patience_of_its_own_and_time_in_which_the_process_was_stopped_is_none() {
        let (mut looks, mut at) = (Looks::default(), Instant::now());
        let mut look = |at, number| {
            let look = Look { at, computed: Duration::ZERO, waits_for_work: false };
            looks.look(PATIENCE, look, &[Call { number, ..CALL }], |_| Some(TaskState::default()))
        };
        for number in 0..40 {
            at += Duration::from_secs(1);
            assert_eq!(look(at, number), None);
        }
        assert_eq!(look(at + Duration::from_secs(3600), 39), None);
    }

    #[test]
    fn a_thread_is_read_from_what_the_system_says() {
        let stat = "123 (a (strange) name) D 1 2 3 0 -1 4194560 5 0 0 0 250 50 0 0 20 0 4 0 99";
        let state = parse(stat, 100).unwrap();
        assert_eq!((state.computed, state.is_stuck), (Duration::from_secs(3), true));
        // SAFETY: plain query.
        let own = thread_state(unsafe { libc::gettid() }).unwrap();
        assert!(!own.is_stuck, "it runs");
        for nonsense in ["", "1 (x", "1 (x) S 1 2", "1 (x) S 0 0 0 0 0 0 0 0 0 0 a b"] {
            assert!(parse(nonsense, 100).is_none(), "{nonsense:?}");
        }
    }
}

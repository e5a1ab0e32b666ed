//! Notices a call of a loaded driver that never returns, and ends the session then: its client gets an error that stays, and the
//! daemon hears that the driver hangs.
//!
//! Not every call that takes long hangs. A synchronisation lasts as long as a kernel, or a function of the client that its stream
//! waits for; nearly any call may wait for kernels, and loading code may compile for minutes. So a call hangs that for
//! the whole patience
//!
//! - has not computed itself, while nothing that the session gave the GPU was left to wait for; or
//! - has been in the kernel, in a sleep that no signal ends: no driver waits for its GPU's work in that way.
//!
//! What remains is a call that waits for work which never ends, and cannot be told from a long kernel: the limit on kernels is for that.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use sluice_wire::control::SessionRefused;

use crate::calls::{self, Call};
use crate::client::frame_of;
use crate::ending;
use crate::link::{Link, Packet};
use crate::outbox::Outbox;
use crate::session::Session;

/// What calls of a session answer whose driver hangs: the same as when the node is gone.
const RESULT: sluice_cuda::CUresult = sluice_cuda::CUresult::DEVICE_UNAVAILABLE;

/// The session, once there is one: the driver can hang before.
pub(crate) type Opened = Arc<OnceLock<Arc<Session>>>;

/// Looks at the calls for as long as the process lives; never returns.
pub(crate) fn watch(patience: Duration, opened: &Opened, outbox: &Arc<Outbox>, link: &Link) -> ! {
    let pause = patience / 20;
    let mut looks = Looks::new(patience);
    loop {
        std::thread::sleep(pause);
        let waits_for_work = opened.get().is_some_and(|session| session.has_unfinished());
        if let Some(call) = looks.look(Instant::now(), &calls::in_progress(), waits_for_work, thread_state) {
            end(call, patience, opened, outbox, link);
        }
    }
}

fn end(call: Call, patience: Duration, opened: &Opened, outbox: &Arc<Outbox>, link: &Link) -> ! {
    let name = call.function.name();
    let what = format!("the node's driver hangs: {name} did not return for {} s", patience.as_secs());
    match opened.get() {
        Some(session) => {
            let text = format!("{what}, so the session has ended");
            crate::watchdog::last_word(session, call.function, RESULT, text);
        }
        None => {
            let reason = SessionRefused { reason: what.clone() };
            if let Ok(frame) = frame_of(reason) {
                let outbox = Arc::clone(outbox);
                ending::last_word(move || _ = outbox.send(&frame));
            }
        }
    }
    let _ = link.send(&Packet::Hangs(what));
    ending::hangs()
}

/// What the system says of a thread.
#[derive(Clone, Copy, Debug, Default)]
struct ThreadState {
    /// CPU time so far.
    computed: Duration,
    /// Asleep where no signal wakes it.
    is_stuck: bool,
}

/// Reads `/proc/self/task/N/stat` (proc(5)).
fn thread_state(thread: i32) -> Option<ThreadState> {
    parse(&std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).ok()?, ticks_per_s())
}

fn parse(stat: &str, ticks_per_s: u64) -> Option<ThreadState> {
    // The name may hold anything, spaces and parentheses too.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    // Behind the name: the state is field 3, the CPU times are 14 and 15.
    let ticks = fields.get(11)?.parse::<u64>().ok()?.saturating_add(fields.get(12)?.parse().ok()?);
    let computed = Duration::from_millis(ticks.saturating_mul(1000) / ticks_per_s.max(1));
    Some(ThreadState { computed, is_stuck: *fields.first()? == "D" })
}

fn ticks_per_s() -> u64 {
    // SAFETY: plain query.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).unwrap_or(100)
}

/// What was seen so far.
struct Looks {
    patience: Duration,
    last: Option<Instant>,
    /// By thread.
    calls: HashMap<i32, Seen>,
}

/// A call that was there at the last look.
#[derive(Clone, Copy, Debug)]
struct Seen {
    call: Call,
    state: ThreadState,
    /// For how long it has done nothing, with nothing to wait for.
    for_nothing: Duration,
    /// For how long it has been stuck in the kernel.
    stuck: Duration,
}

impl Looks {
    fn new(patience: Duration) -> Looks {
        Looks { patience, last: None, calls: HashMap::new() }
    }

    /// The call that hangs, if one does by now.
    fn look(
        &mut self,
        now: Instant,
        calls: &[Call],
        waits_for_work: bool,
        state_of: impl Fn(i32) -> Option<ThreadState>,
    ) -> Option<Call> {
        // A process that was stopped has not waited meanwhile.
        let passed = self.last.replace(now).map_or(Duration::ZERO, |last| now - last).min(self.patience / 10);
        let before = std::mem::take(&mut self.calls);
        for &call in calls {
            let Some(state) = state_of(call.thread) else { continue };
            let mut seen = Seen { call, state, for_nothing: Duration::ZERO, stuck: Duration::ZERO };
            if let Some(last) = before.get(&call.thread).filter(|last| last.call == call) {
                let computed = state.computed.saturating_sub(last.state.computed);
                if !waits_for_work {
                    seen.for_nothing = last.for_nothing + passed.saturating_sub(computed);
                }
                if state.is_stuck && last.state.is_stuck {
                    seen.stuck = last.stuck + passed;
                }
            }
            self.calls.insert(call.thread, seen);
        }
        let hangs = |seen: &&Seen| seen.for_nothing >= self.patience || seen.stuck >= self.patience;
        self.calls.values().find(hangs).map(|seen| seen.call)
    }
}

#[cfg(test)]
mod tests {
    use sluice_cuda::Fn;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);
    const CALL: Call = Call { thread: 7, number: 41, function: Fn::cuMemCreate };

    /// Looks once a second at [`CALL`]; the answer is after how many seconds it hangs, within a minute.
    fn hangs_after(
        waits_for_work: impl std::ops::Fn(u64) -> bool,
        state_of: impl std::ops::Fn(u64) -> ThreadState,
    ) -> Option<u64> {
        let (mut looks, start) = (Looks::new(PATIENCE), Instant::now());
        (0..60).find(|&second| {
            let now = start + Duration::from_secs(second);
            let state = |thread| (thread == CALL.thread).then(|| state_of(second));
            looks.look(now, &[CALL], waits_for_work(second), state) == Some(CALL)
        })
    }

    fn asleep(_: u64) -> ThreadState {
        ThreadState::default()
    }

    #[test]
    fn a_call_hangs_that_waits_for_nothing() {
        assert_eq!(hangs_after(|_| false, asleep), Some(10));
        assert_eq!(hangs_after(|_| true, asleep), None, "a kernel may take as long as it likes");
        assert_eq!(hangs_after(|second| second < 20, asleep), Some(29), "from when the last kernel ended");
    }

    #[test]
    fn a_call_that_computes_does_not_hang() {
        let compiles = |second| ThreadState { computed: Duration::from_secs(second), is_stuck: false };
        assert_eq!(hangs_after(|_| false, compiles), None);
        let at_times = |second| ThreadState { computed: Duration::from_secs(second / 2), is_stuck: false };
        assert_eq!(hangs_after(|_| false, at_times), Some(19), "ten seconds in which it did nothing");
    }

    #[test]
    fn a_call_hangs_that_is_stuck_in_the_kernel_whatever_there_is_to_wait_for() {
        let stuck = |_| ThreadState { is_stuck: true, ..ThreadState::default() };
        assert_eq!(hangs_after(|_| true, stuck), Some(10));
        let at_times = |second: u64| ThreadState { is_stuck: second % 5 != 0, ..ThreadState::default() };
        assert_eq!(hangs_after(|_| true, at_times), None);
    }

    #[test]
    fn each_call_of_a_thread_has_a_patience_of_its_own_and_time_in_which_the_process_was_stopped_is_none() {
        let (mut looks, mut now) = (Looks::new(PATIENCE), Instant::now());
        for number in 0..40 {
            now += Duration::from_secs(1);
            let call = Call { number, ..CALL };
            assert_eq!(looks.look(now, &[call], false, |_| Some(ThreadState::default())), None);
        }
        let call = Call { number: 39, ..CALL };
        let later = now + Duration::from_secs(3600);
        assert_eq!(looks.look(later, &[call], false, |_| Some(ThreadState::default())), None);
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

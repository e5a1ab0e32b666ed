//! Looks at a device while it has work: adds the time to the session's counters, and ends kernels
//! that run for longer than the lease allows.
//!
//! The software GPU ends the kernel itself, and the context keeps `CUDA_ERROR_LAUNCH_TIMEOUT`. No
//! other driver has a call for that, so there the session ends with the same error, and the process
//! with it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_cuda::{CUresult, Fn};
use sluice_wire::{Header, Kind, Op};

use crate::process::ending;
use crate::session::Session;
use crate::session::current::make_current;

/// With nothing on the device for this number of looks, the next one waits for work. Not at once: a
/// program that launches and waits would have to wake the watchdog each time.
const IDLE_LOOKS: u32 = 10;

/// The longest time between two looks.
const LOOK: Duration = Duration::from_millis(100);

/// The least time that a kernel may take to compile, whatever the lease allows it to run: a
/// compilation shares the processor with other work, and programs with a short limit have ordinary
/// kernels.
pub(crate) const COMPILE_LIMIT_MIN: Duration = Duration::from_secs(10);

/// Watches this device of the lease, often enough to be a tenth late at most; never returns.
pub(crate) fn watch(session: &Arc<Session>, device: usize, limit: Option<Duration>) -> ! {
    let device = &session.devices[device];
    let pause = limit.map_or(LOOK, |limit| (limit / 10).clamp(Duration::from_millis(1), LOOK));
    let new_card = || Card::new(device.ordinal as usize, limit.unwrap_or(Duration::MAX));
    let mut card = new_card();
    let mut idle_looks = 0;
    loop {
        std::thread::sleep(pause);
        device.gate.account();
        idle_looks = if device.gate.is_idle() { idle_looks + 1 } else { 0 };
        if idle_looks == IDLE_LOOKS {
            device.gate.wait_for_work();
            (card, idle_looks) = (new_card(), 0);
        }
        let Some(limit) = limit else { continue };
        let Some(times) = &device.launch_times else {
            card.look(device.gate.has_turn());
            continue;
        };
        let _ = make_current(&session.table, device.context);
        if times.longest(Instant::now()).is_some_and(|ran| ran >= limit) {
            end(session, limit);
        }
    }
}

fn end(session: &Arc<Session>, limit: Duration) -> ! {
    let text = format!("a kernel ran for longer than the limit of {limit:?}, so the session has ended");
    last_word(session, Op::of(Fn::cuLaunchKernel), CUresult::LAUNCH_TIMEOUT, text);
    ending::failed("a kernel ran for longer than its limit")
}

/// Ends the session because a kernel takes longer to compile than the limit: the compiler cannot be
/// interrupted.
pub(crate) fn end_compiling(session: &Arc<Session>, kernel: &str, limit: Duration) {
    let kernel: String = kernel.chars().take(100).collect();
    let text = format!("compiling kernel {kernel} took longer than {limit:?}, so the session has ended");
    last_word(session, Op::of(Fn::cuLaunchKernel), CUresult::LAUNCH_TIMEOUT, text);
    ending::failed("a kernel took longer to compile than the limit")
}

/// Tells the client that its session ends with this error of an operation.
pub(crate) fn last_word(session: &Arc<Session>, op: Op, result: CUresult, text: String) {
    let speaker = Arc::clone(session);
    ending::last_word(move || {
        let header = Header { kind: Kind::Sticky, device: 0, op: op.0, lane: 0, sequence: 0 };
        let _ = speaker.outbox.sticky(header, result.0, &text);
    });
    // Not before: a program that gets this error as the answer to a call may end at once, and the
    // reason would not be read.
    session.fail(result);
}

/// A device of the software GPU. What its kernels wait for their turn does not count.
struct Card {
    ordinal: usize,
    limit: Duration,
    looked: Instant,
    ran: Duration,
}

impl Card {
    fn new(ordinal: usize, limit: Duration) -> Card {
        Card { ordinal, limit, looked: Instant::now(), ran: Duration::ZERO }
    }

    /// Called often enough that the time between two calls does not matter.
    fn look(&mut self, has_turn: bool) {
        let passed = self.looked.elapsed();
        self.looked = Instant::now();
        let Some(age) = sluice_softgpu::longest_running(self.ordinal) else {
            self.ran = Duration::ZERO;
            return;
        };
        if has_turn {
            self.ran += passed;
        }
        // A kernel younger than that is another one than at the last look.
        self.ran = self.ran.min(age);
        if self.ran >= self.limit {
            sluice_softgpu::cancel_running(self.ordinal);
        }
    }
}

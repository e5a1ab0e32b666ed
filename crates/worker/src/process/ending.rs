//! How a worker ends: at once, whatever its threads are doing.
//!
//! Ending is always `_exit`: device code may run without end on other threads, and nothing that the
//! process holds outlives it. What it has used is in the counter page already.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use sluice_cuda::CUresult;

use crate::link::{Packet, PacketSocket};

/// What calls answer once there is no GPU behind them any more: its driver hangs, or the node is
/// gone.
pub(crate) const GONE: CUresult = CUresult::DEVICE_UNAVAILABLE;

/// How long a client may take to receive what was sent before the reason why its session ends.
const LAST_WORD: Duration = Duration::from_secs(3);
/// How long a client may take to read that reason.
pub(crate) const HEARD: Duration = Duration::from_secs(3);

/// The link over which a reason is given, once there is one.
static LINK: OnceLock<std::sync::Arc<PacketSocket>> = OnceLock::new();

/// A thread says why the session ends, and ends the process when that is said.
static EXPLAINS: AtomicBool = AtomicBool::new(false);

/// Work to do right before the end, such as the last accounting.
static LAST_WORDS: OnceLock<Box<dyn std::ops::Fn() + Send + Sync>> = OnceLock::new();

pub(crate) fn set_link(link: std::sync::Arc<PacketSocket>) {
    let _ = LINK.set(link);
}

pub(crate) fn set_last_words(last_words: impl std::ops::Fn() + Send + Sync + 'static) {
    let _ = LAST_WORDS.set(Box::new(last_words));
}

/// The client has closed its connection. If it did so because it received the reason why its
/// session ends, the thread that sent it has to notify the daemon as well, and ends the process.
pub(crate) fn client_gone() -> ! {
    if EXPLAINS.load(Ordering::Acquire) {
        std::thread::sleep(2 * (LAST_WORD + HEARD));
    }
    exit(0)
}

/// The daemon is gone; so is the lease.
pub(crate) fn daemon_gone() -> ! {
    exit(0)
}

/// Ends the session, which cannot continue for this reason.
pub(crate) fn failed(why: &str) -> ! {
    match LINK.get() {
        Some(link) => _ = link.send(&Packet::Failed(why.into())),
        None => eprintln!("sluice worker: {why}"),
    }
    exit(1)
}

/// The driver does not return from a call, of which the daemon has been notified.
pub(crate) fn hangs() -> ! {
    exit(1)
}

/// Gives a client the time to read why its session ends. One that does not read does not keep its
/// worker. The caller ends the process afterwards.
pub(crate) fn last_word(say: impl FnOnce() + Send + 'static) {
    EXPLAINS.store(true, Ordering::Release);
    let (said, heard) = sync_channel(1);
    let speaker = std::thread::Builder::new().name("last word".into());
    let speaks = move || {
        say();
        let _ = said.send(());
    };
    if speaker.spawn(speaks).is_ok() {
        let _ = heard.recv_timeout(LAST_WORD);
    }
}

/// Starts a thread whose panic ends the process: a session with a part missing would hang its
/// client.
pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) {
    let guarded = move || {
        if catch_unwind(AssertUnwindSafe(body)).is_err() {
            failed("a thread of the worker panicked");
        }
    };
    if let Err(error) = std::thread::Builder::new().name(name.into()).spawn(guarded) {
        failed(&format!("cannot start a thread: {error}"));
    }
}

fn exit(status: i32) -> ! {
    if let Some(last_words) = LAST_WORDS.get() {
        last_words();
    }
    // SAFETY: ends the process without running anything else of it.
    unsafe { libc::_exit(status) }
}

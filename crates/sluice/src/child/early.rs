//! Signals that ask for the end before there is a program to pass them on to: while a lease is
//! waited for.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread::JoinHandle;

use super::ENDING;

/// While it lives, the first signal of [`ENDING`] has a thread of its own do what was said; a
/// second one ends the process at once.
pub(crate) struct EarlyEnd {
    /// Closed, it lets the thread go.
    notes: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// The first signal that came, 0 before, and where its handler says so.
static FIRST: AtomicI32 = AtomicI32::new(0);
static NOTES: AtomicI32 = AtomicI32::new(-1);

impl EarlyEnd {
    /// `end` gets the signal's number, and does not return: a thread that drops this meanwhile
    /// waits for the end. There is one of these at a time.
    pub(crate) fn heed(end: impl FnOnce(i32) + Send + 'static) -> io::Result<EarlyEnd> {
        let mut ends = [0; 2];
        // SAFETY: pipe2 fills the array with two descriptors.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: both were opened above and have no other owner.
        let (mut heard, notes) = unsafe { (File::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
        let wait = move || {
            // Nothing can be read once nothing can come any more.
            if matches!(heard.read(&mut [0]), Ok(1)) {
                end(FIRST.load(Ordering::SeqCst));
            }
        };
        let thread = std::thread::Builder::new().name("early end".into()).spawn(wait)?;
        FIRST.store(0, Ordering::SeqCst);
        NOTES.store(notes.as_raw_fd(), Ordering::SeqCst);
        // One that was ignored when we were started (`nohup`) stays ignored.
        replace_handlers(|handler| handler == libc::SIG_DFL, note as extern "C" fn(i32) as usize);
        Ok(EarlyEnd { notes: Some(notes), thread: Some(thread) })
    }
}

impl Drop for EarlyEnd {
    fn drop(&mut self) {
        // Not those of another listener that has begun meanwhile.
        let own = note as extern "C" fn(i32) as usize;
        replace_handlers(|handler| handler == own, libc::SIG_DFL);
        NOTES.store(-1, Ordering::SeqCst);
        self.notes = None;
        self.thread.take().into_iter().for_each(|thread| _ = thread.join());
    }
}

/// Has signals handled so where they are handled as said.
fn replace_handlers(where_it_is: impl Fn(usize) -> bool, handler: usize) {
    for signal in ENDING {
        // SAFETY: an all-zero sigaction is valid (no flags, empty mask, default handler), and
        // `note` only makes async-signal-safe calls.
        unsafe {
            let mut now: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &mut now);
            if where_it_is(now.sa_sigaction) {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = handler;
                action.sa_flags = libc::SA_RESTART;
                libc::sigaction(signal, &action, std::ptr::null_mut());
            }
        }
    }
}

extern "C" fn note(number: i32) {
    if FIRST.compare_exchange(0, number, Ordering::SeqCst, Ordering::SeqCst).is_err() {
        // SAFETY: async-signal-safe, and does not return.
        unsafe { libc::_exit(128 + number) };
    }
    // SAFETY: write is async-signal-safe, and reads one byte; the descriptor is open, or none while
    // nothing listens. What errno says is kept for the code that was interrupted.
    unsafe {
        let errno = *libc::__errno_location();
        libc::write(NOTES.load(Ordering::SeqCst), [0_u8].as_ptr().cast(), 1);
        *libc::__errno_location() = errno;
    }
}

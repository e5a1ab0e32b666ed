//! Lines for standard error, written by a thread of their own: a daemon must not wait
//! for a terminal that is stopped or a collector that does not read, nor end with it.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

/// Lines that may wait; further ones are left out and counted.
const LINES_MAX: usize = 4096;
/// How long the end of a process waits for the lines before it.
const FINISH_MAX: Duration = Duration::from_millis(500);

const THREAD: &str = "log";

/// The writing end; each write is one line.
#[derive(Clone)]
pub(crate) struct Queue {
    lines: SyncSender<Item>,
    left_out: Arc<AtomicU64>,
}

enum Item {
    Line(Vec<u8>),
    /// All lines before it have been written.
    Finished(Sender<()>),
}

impl Queue {
    /// Starts the thread, which writes for as long as this process runs.
    pub(crate) fn start(to: impl Write + Send + 'static) -> io::Result<Queue> {
        let (lines, waiting) = sync_channel(LINES_MAX);
        let queue = Queue { lines, left_out: Arc::default() };
        let thread = std::thread::Builder::new().name(THREAD.into());
        without_signals(|| thread.spawn(move || write(to, &waiting)))?;
        Ok(queue)
    }

    /// Lines that were left out before it are counted in front of it, in the same item: a notice of
    /// its own would take the room of the line.
    pub(crate) fn push(&self, line: &[u8]) {
        let missing = self.left_out.swap(0, Ordering::Relaxed);
        let line = [notice(missing).as_bytes(), line].concat();
        if self.lines.try_send(Item::Line(line)).is_err() {
            self.left_out.fetch_add(missing + 1, Ordering::Relaxed);
        }
    }

    /// Waits until the lines so far are written, for a moment at most.
    pub(crate) fn finish(&self) {
        let missing = self.left_out.swap(0, Ordering::Relaxed);
        // Without room for it the count is lost with the process.
        let _ = self.lines.try_send(Item::Line(notice(missing).into_bytes()));
        let (finished, wait) = channel();
        if self.lines.try_send(Item::Finished(finished)).is_ok() {
            let _ = wait.recv_timeout(FINISH_MAX);
        }
    }
}

/// Nothing where no line is missing.
fn notice(missing: u64) -> String {
    match missing {
        0 => String::new(),
        _ => format!("{missing} lines of the log were left out here: they were not read in time\n"),
    }
}

/// A thread inherits which signals it gets. A daemon waits for those that end it after its log has
/// started: one that the log's thread got would end the process at once.
fn without_signals<T>(spawn: impl FnOnce() -> T) -> T {
    // SAFETY: an all-zero set is a valid one, and the calls read and write locals.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) =
            (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let spawned = spawn();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        spawned
    }
}

/// A line that cannot be written is lost: there is no place to say so.
fn write(mut to: impl Write, waiting: &Receiver<Item>) {
    for item in waiting {
        match item {
            Item::Line(line) => {
                let _ = to.write_all(&line);
            }
            Item::Finished(finished) => {
                let _ = to.flush();
                let _ = finished.send(());
            }
        }
    }
}

impl Write for Queue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Queue {
    type Writer = Queue;

    fn make_writer(&self) -> Queue {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::SyncSender;

    use super::*;

    /// Hands each write over and waits until it is taken, as a pipe does that is full.
    struct Pipe(SyncSender<String>);

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let text = String::from_utf8_lossy(bytes).into_owned();
            self.0.send(text).map_err(|_| io::ErrorKind::BrokenPipe)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_are_not_read_are_counted_and_nothing_waits_for_them() {
        let (taken, reader) = sync_channel(0);
        let queue = Queue::start(Pipe(taken)).unwrap();
        // The thread may hold one line beyond those that wait.
        for number in 0..LINES_MAX + 10 {
            queue.push(format!("{number}\n").as_bytes());
        }
        let before: Vec<_> = reader.iter().take(LINES_MAX / 2).collect();
        assert_eq!(before.first().map(String::as_str), Some("0\n"));
        queue.push(b"later\n");
        let later = reader.iter().find(|text| text.ends_with("later\n")).unwrap();
        assert!(later.contains("lines of the log were left out here"), "{later}");
        drop(reader);
        queue.finish();
    }

    #[test]
    fn a_reader_that_is_gone_stops_nothing() {
        let (taken, reader) = sync_channel(0);
        drop(reader);
        let queue = Queue::start(Pipe(taken)).unwrap();
        queue.push(b"lost\n");
        queue.finish();
        queue.push(b"lost as well\n");
        queue.finish();
    }

    #[test]
    fn a_signal_that_ends_a_daemon_is_not_for_the_log() {
        let queue = Queue::start(io::sink()).unwrap();
        // A thread that answers has its name.
        queue.finish();
        let own_thread = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        assert_eq!(blocked(&own_thread) & 1 << (libc::SIGTERM - 1), 0, "the mask is as it was");
        let mut seen = 0;
        for task in std::fs::read_dir("/proc/self/task").unwrap() {
            let folder = task.unwrap().path();
            // Threads of other tests may end meanwhile.
            let is_log = std::fs::read_to_string(folder.join("comm")).is_ok_and(|name| name.trim() == THREAD);
            let Ok(status) = std::fs::read_to_string(folder.join("status")) else { continue };
            if is_log {
                assert_ne!(blocked(&status) & 1 << (libc::SIGTERM - 1), 0, "{status}");
                seen += 1;
            }
        }
        assert!(seen > 0, "a thread that runs was not found");
    }

    fn blocked(status: &str) -> u64 {
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap()
    }
}

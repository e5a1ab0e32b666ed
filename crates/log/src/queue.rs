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
        let left_out = Arc::clone(&queue.left_out);
        std::thread::Builder::new().name("log".into()).spawn(move || write(to, &waiting, &left_out))?;
        Ok(queue)
    }

    pub(crate) fn push(&self, line: &[u8]) {
        if self.lines.try_send(Item::Line(line.to_vec())).is_err() {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until the lines so far are written, for a moment at most.
    pub(crate) fn finish(&self) {
        let (finished, wait) = channel();
        if self.lines.try_send(Item::Finished(finished)).is_ok() {
            let _ = wait.recv_timeout(FINISH_MAX);
        }
    }
}

/// A line that cannot be written is lost: there is no place to say so.
fn write(mut to: impl Write, waiting: &Receiver<Item>, left_out: &AtomicU64) {
    for item in waiting {
        match item {
            Item::Line(line) => {
                let missing = left_out.swap(0, Ordering::Relaxed);
                if missing > 0 {
                    let _ = writeln!(
                        to,
                        "{missing} lines of the log were left out here: they were not read in time"
                    );
                }
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
        let text: String = reader.iter().take_while(|text| text != &format!("{}\n", LINES_MAX - 1)).collect();
        assert!(text.starts_with("0\n") && text.contains("of the log were left out here"), "{:.200}", text);
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
}

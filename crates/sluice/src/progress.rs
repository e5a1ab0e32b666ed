//! How far something has come that takes long.

use std::io::{IsTerminal, Read, Write};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::quantity::Memory;

/// On standard error: a line that is rewritten on a terminal, and now and then a new one elsewhere.
/// What is done within a second says nothing.
pub(crate) struct Progress {
    is_terminal: bool,
    said: Instant,
}

impl Progress {
    pub(crate) fn new() -> Progress {
        Progress { is_terminal: std::io::stderr().is_terminal(), said: Instant::now() }
    }

    /// Says it if it is time to.
    pub(crate) fn at(&mut self, line: impl FnOnce() -> String) {
        let every = Duration::from_secs(if self.is_terminal { 1 } else { 30 });
        if self.said.elapsed() < every {
            return;
        }
        self.said = Instant::now();
        let line = line();
        if self.is_terminal { eprint!("\r\x1b[Ksluice: {line}") } else { eprintln!("sluice: {line}") }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_terminal {
            eprint!("\r\x1b[K");
        }
    }
}

/// Says what is waited for, and since when, until it is dropped: for what cannot tell how far it
/// is.
pub(crate) struct Waiting {
    /// Dropped to end the thread.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Waiting {
    /// `what` is the start of the line, such as `lease 3 is moving`.
    pub(crate) fn new(what: String) -> Waiting {
        let (end, ended) = channel();
        let begun = Instant::now();
        let thread = std::thread::spawn(move || {
            let mut progress = Progress::new();
            while ended.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
                progress.at(|| format!("{what}, for {} s", begun.elapsed().as_secs()));
            }
        });
        Waiting { end: Some(end), thread: Some(thread) }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it has nothing to report
        }
    }
}

/// A stream that says how much has come over it.
pub(crate) struct Counted<S> {
    stream: S,
    bytes: u64,
    progress: Progress,
}

impl<S> Counted<S> {
    pub(crate) fn new(stream: S) -> Counted<S> {
        Counted { stream, bytes: 0, progress: Progress::new() }
    }

    pub(crate) fn into_inner(self) -> S {
        self.stream
    }
}

impl<S: Read> Read for Counted<S> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let read = self.stream.read(into)?;
        self.bytes += read as u64;
        let bytes = self.bytes;
        self.progress.at(|| format!("{} have come", Memory::from_bytes(bytes)));
        Ok(read)
    }
}

impl<S: Write> Write for Counted<S> {
    fn write(&mut self, from: &[u8]) -> std::io::Result<usize> {
        self.stream.write(from)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_is_counted_and_passed_on() {
        let mut counted = Counted::new(std::io::Cursor::new(b"abcdef".to_vec()));
        let mut text = String::new();
        counted.read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), counted.bytes), ("abcdef", 6));
        assert_eq!(counted.into_inner().position(), 6);
    }

    #[test]
    fn a_wait_ends_with_its_thread() {
        let (end, ended) = channel();
        let waiting = Waiting::new("a test waits".into());
        let watcher = std::thread::spawn(move || {
            drop(waiting);
            end.send(()).unwrap();
        });
        ended.recv_timeout(Duration::from_secs(60)).unwrap();
        watcher.join().unwrap();
    }

    #[test]
    fn what_takes_no_time_says_nothing() {
        let mut progress = Progress::new();
        progress.at(|| unreachable!("no second has passed"));
    }
}

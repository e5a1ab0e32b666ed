//! Connections that have not said a word yet: each costs a descriptor, and no thread.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use sluice_transport::Stream;
use sluice_transport::admission::{Entry, Source, Unproven};

use crate::admission::within_descriptors;
use crate::connection::Door;

/// Connections that say nothing, at a time.
const SILENT_MAX: usize = 8192;
/// Events that are taken at once.
const EVENTS_MAX: usize = 256;
/// The number of the first connection's event; those below are for [`Silent::watch`].
const CONNECTIONS: u64 = 64;

/// A connection as it was accepted.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) stream: Stream,
    pub(crate) peer: String,
    pub(crate) source: Source,
    pub(crate) door: Door,
    /// The number of the event of where it came in.
    pub(crate) listener: u64,
    /// For all that it has to say before it is known what it is for.
    pub(crate) deadline: Instant,
}

/// The connections, and what else is waited for beside them.
#[derive(Debug)]
pub(crate) struct Silent {
    epoll: OwnedFd,
    /// Each with the number of its event.
    connections: Unproven<(u64, Accepted)>,
    entries: HashMap<u64, Entry>,
    /// The deadlines of all connections that were ever kept and have not come to them, in order.
    deadlines: VecDeque<(Instant, u64)>,
    next: u64,
}

/// What has come about.
#[derive(Debug, Default)]
pub(crate) struct News {
    /// Numbers of what [`Silent::watch`] was given to watch.
    pub(crate) ready: Vec<u64>,
    /// Connections that have something to read.
    pub(crate) speaking: Vec<Accepted>,
    /// Those whose time is over.
    pub(crate) expired: Vec<Accepted>,
}

impl Silent {
    pub(crate) fn new() -> io::Result<Silent> {
        // SAFETY: plain system call; the result is checked before it is used.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if epoll < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and has no other owner.
        let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
        Ok(Silent {
            epoll,
            connections: Unproven::new(within_descriptors(SILENT_MAX, 4)),
            entries: HashMap::new(),
            deadlines: VecDeque::new(),
            next: CONNECTIONS,
        })
    }

    /// Watches a descriptor under a number below 64.
    pub(crate) fn watch(&self, number: u64, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, number, fd)
    }

    /// Keeps a connection until it says something. One of the source that has the most may have to
    /// go for it.
    pub(crate) fn keep(&mut self, accepted: Accepted) -> io::Result<()> {
        let number = self.next;
        self.next += 1;
        self.control(libc::EPOLL_CTL_ADD, number, accepted.stream.as_fd())?;
        self.deadlines.push_back((accepted.deadline, number));
        let (entry, displaced) = self.connections.enter(accepted.source, (number, accepted));
        self.entries.insert(number, entry);
        if let Some((number, _)) = displaced {
            self.entries.remove(&number);
        }
        Ok(())
    }

    /// Waits until there are news.
    pub(crate) fn wait(&mut self) -> io::Result<News> {
        let limit = self.deadlines.front().map_or(-1, |(deadline, _)| {
            let left = deadline.saturating_duration_since(Instant::now());
            // Rounded up, so that it is over then.
            i32::try_from((left + Duration::from_millis(1)).as_millis()).unwrap_or(i32::MAX)
        });
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX];
        // SAFETY: the pointer and length describe `events`.
        let count = unsafe {
            libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), EVENTS_MAX as i32, limit)
        };
        let count = match usize::try_from(count) {
            Ok(count) => count,
            Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => 0,
            Err(_) => return Err(io::Error::last_os_error()),
        };
        let mut news = News::default();
        for number in events[..count].iter().map(|event| event.u64) {
            match number < CONNECTIONS {
                true => news.ready.push(number),
                false => news.speaking.extend(self.take(number)),
            }
        }
        let now = Instant::now();
        while let Some(&(_, number)) = self.deadlines.front().filter(|(deadline, _)| *deadline <= now) {
            self.deadlines.pop_front();
            news.expired.extend(self.take(number));
        }
        Ok(news)
    }

    /// Takes all connections that have said nothing out, the oldest first.
    pub(crate) fn take_all(&mut self) -> Vec<Accepted> {
        let mut numbers: Vec<u64> = self.entries.keys().copied().collect();
        numbers.sort_unstable();
        numbers.into_iter().filter_map(|number| self.take(number)).collect()
    }

    fn take(&mut self, number: u64) -> Option<Accepted> {
        let entry = self.entries.remove(&number)?;
        let (_, accepted) = self.connections.leave(entry)?;
        // Who serves it may hand the socket on.
        let _ = self.control(libc::EPOLL_CTL_DEL, 0, accepted.stream.as_fd());
        Some(accepted)
    }

    fn control(&self, operation: i32, number: u64, fd: BorrowedFd<'_>) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: number };
        // SAFETY: both descriptors are open, and the call reads one event.
        let done = unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, fd.as_raw_fd(), &mut event) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// Whether the peer has hung up and nothing that it has said is left to be read.
pub(crate) fn has_ended(socket: BorrowedFd<'_>) -> bool {
    let mut byte = 0_u8;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: the call writes at most one byte to a local.
    let count = unsafe { libc::recv(socket.as_raw_fd(), (&raw mut byte).cast(), 1, flags) };
    match count {
        0 => true,
        1.. => false,
        _ => io::Error::last_os_error().kind() != io::ErrorKind::WouldBlock,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn accepted(deadline: Instant) -> (UnixStream, Accepted) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let stream = Stream::from(theirs);
        (
            ours,
            Accepted {
                stream,
                peer: "pid 1".into(),
                source: Source::Local,
                door: Door::Plain,
                listener: 1,
                deadline,
            },
        )
    }

    #[test]
    fn who_speaks_and_who_does_not_come_out() {
        let mut silent = Silent::new().unwrap();
        let (stop, stopper) = UnixStream::pair().unwrap();
        silent.watch(3, stop.as_fd()).unwrap();
        let far = Instant::now() + Duration::from_secs(600);
        let (_says_nothing, kept) = accepted(Instant::now());
        silent.keep(kept).unwrap();
        let (mut speaks, kept) = accepted(far);
        silent.keep(kept).unwrap();
        speaks.write_all(b"x").unwrap();
        let mut news = silent.wait().unwrap();
        while news.speaking.is_empty() || news.expired.is_empty() {
            let more = silent.wait().unwrap();
            news.speaking.extend(more.speaking);
            news.expired.extend(more.expired);
        }
        assert_eq!((news.ready.len(), news.speaking.len(), news.expired.len()), (0, 1, 1));
        drop(stopper);
        assert_eq!(silent.wait().unwrap().ready, [3]);
    }
}

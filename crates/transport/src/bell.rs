//! Sleeping until the other process rings.
//!
//! A side that is about to sleep says what for, checks once more whether it is there, and sleeps on
//! the count of rings that it saw before. A side that has changed something rings if the other
//! announced that it sleeps: at least one of the two checks sees the other side. Everything here is
//! in shared memory, and a peer that lies wakes this side for nothing, or lets itself wait.
//!
//! A futex does not show that the peer was killed, so a sleeper on it checks the socket at
//! intervals. After a long sleep it sleeps on the socket instead, which shows both, and the peer
//! then rings by sending a byte.

use std::io::IoSlice;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

use sluice_wire::spin::Wait;

use crate::socket::Socket;

/// What one side of a stream sleeps on.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub(crate) struct Bell {
    /// Counts rings; the futex.
    rung: AtomicU32,
    awaits_bytes: AtomicU32,
    awaits_room: AtomicU32,
    /// A ring has to send a byte as well.
    on_socket: AtomicU32,
}

/// What a side sleeps for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// At least this many bytes, or free bytes, and not more than half of the ring.
    Bytes(usize),
    Room(usize),
    BytesOrRoom,
}

impl Bell {
    /// Announces that this side is about to sleep; the count is for [`Bell::sleep`], after another
    /// look.
    pub(crate) fn about_to_sleep(&self, event: Event) -> u32 {
        let rung = self.rung.load(Ordering::Acquire);
        if !matches!(event, Event::Room(_)) {
            self.awaits_bytes.store(1, Ordering::Release);
        }
        if !matches!(event, Event::Bytes(_)) {
            self.awaits_room.store(1, Ordering::Release);
        }
        fence(Ordering::SeqCst);
        rung
    }

    /// Sleeps until the bell is rung, at most for this time; it may also wake for nothing.
    pub(crate) fn sleep(&self, rung: u32, limit: Duration) {
        let limit = libc::timespec {
            tv_sec: limit.as_secs() as libc::time_t,
            tv_nsec: limit.subsec_nanos() as libc::c_long,
        };
        // Not FUTEX_PRIVATE_FLAG: the other process rings.
        // SAFETY: the kernel reads the word, which is mapped, and the time, which is a local.
        unsafe {
            libc::syscall(libc::SYS_futex, &raw const self.rung, libc::FUTEX_WAIT, rung, &raw const limit)
        };
    }

    /// Says that the one about to sleep does so on the socket. Before [`Bell::about_to_sleep`].
    pub(crate) fn about_to_sleep_on_socket(&self) {
        self.on_socket.store(1, Ordering::Relaxed);
    }

    /// Bytes have been written for this side, whose socket's other end is `socket`.
    pub(crate) fn bytes_came(&self, socket: &Socket) {
        self.ring_for(&self.awaits_bytes, socket);
    }

    /// Bytes of this side have been read.
    pub(crate) fn room_came(&self, socket: &Socket) {
        self.ring_for(&self.awaits_room, socket);
    }

    fn ring_for(&self, awaited: &AtomicU32, socket: &Socket) {
        fence(Ordering::SeqCst);
        // Once is enough: a side that sleeps again announces it again.
        if awaited.load(Ordering::Relaxed) != 0 && awaited.swap(0, Ordering::AcqRel) != 0 {
            if self.on_socket.load(Ordering::Relaxed) != 0 && self.on_socket.swap(0, Ordering::Relaxed) != 0 {
                // Where there is no room for a byte, bytes lie there that have woken the peer; an
                // end wakes it as well.
                let _ = socket.write_vectored(&[IoSlice::new(&[0])], Wait::No);
            }
            self.ring();
        }
    }

    /// Wakes the sleepers on the futex.
    pub(crate) fn ring(&self) {
        self.rung.fetch_add(1, Ordering::Release);
        // SAFETY: the kernel only takes the word's address.
        unsafe { libc::syscall(libc::SYS_futex, &raw const self.rung, libc::FUTEX_WAKE, i32::MAX) };
    }
}

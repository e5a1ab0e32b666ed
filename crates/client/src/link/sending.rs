//! What leaves the outbox: all of it, what fits, and word of how much of the worker's stream has
//! come.

use std::io;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sluice_cuda::CUresult;
use sluice_wire::resume::ACKNOWLEDGE_EVERY;
use sluice_wire::{Encode, Header, Kind, Received};

use super::{Link, SILENCE, SILENT_MAX};
use crate::abi::call::uncancelled;
use crate::link::outbox::Outbox;
use crate::link::waiters::Want;

/// How long until a thread that cannot write looks again whether it should read.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Nothing can be written.
struct Stall {
    /// For how long, and nothing has come either.
    waited: Duration,
    /// Bytes of the worker's stream that had come when it began.
    received: u64,
}

impl Link {
    /// Sends what is queued. Where there is no connection, or too much is unacknowledged, it waits
    /// for that to end.
    pub(super) fn send(&self, mut outbox: MutexGuard<'_, Outbox>) -> Result<(), CUresult> {
        self.flush(&mut outbox);
        let room_after = outbox.room_after();
        drop(outbox);
        self.acknowledge();
        let goes_on =
            || !self.is_cut() && self.acknowledged.load(Ordering::Acquire) >= room_after && !self.is_lost();
        if goes_on() { Ok(()) } else { self.wait_until(Want::Change, |_| goes_on().then_some(())) }
    }

    /// Writes all of the outbox, unless the connection ends first.
    pub(super) fn flush(&self, outbox: &mut Outbox) {
        if let Err(error) = outbox.end_recognised() {
            self.lose(&error);
        }
        if self.owes_acknowledgement() {
            self.confirm(outbox, false);
        }
        let mut stall = Stall { waited: Duration::ZERO, received: self.received.load(Ordering::Acquire) };
        while outbox.buffer.unsent() > 0 && !self.is_cut() && !self.is_lost() {
            match uncancelled(|| outbox.write()) {
                Ok(()) => stall.waited = Duration::ZERO,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let begin = Instant::now();
                    self.read_while_full(outbox);
                    self.look_for_progress(outbox, &mut stall, begin.elapsed());
                }
                Err(error) => self.part(&outbox.stream, &error),
            }
        }
        outbox.flushed_at = Instant::now();
        if let Some(recorder) = &self.recorder {
            recorder.write();
        }
        if let Err(error) = outbox.acknowledge(self.acknowledged.load(Ordering::Acquire)) {
            self.lose(&error);
        }
    }

    /// The worker takes no more until it gets rid of something: reads it, unless another thread
    /// does.
    fn read_while_full(&self, outbox: &Outbox) {
        let somebody_leads = self.inbox().receiver.is_none();
        let _ = uncancelled(|| outbox.stream.wait_writable(!somebody_leads, LOOK_AGAIN));
        if !somebody_leads {
            self.look();
        }
    }

    /// A worker reads on, or says that it is there: one that has taken nothing for long, and has
    /// sent nothing, is not.
    fn look_for_progress(&self, outbox: &Outbox, stall: &mut Stall, waited: Duration) {
        let received = self.received.load(Ordering::Acquire);
        if received != stall.received {
            *stall = Stall { waited: Duration::ZERO, received };
            return;
        }
        // A program that was stopped itself has not waited for the worker.
        stall.waited += waited.min(SILENCE);
        if stall.waited >= SILENCE * SILENT_MAX {
            self.has_waited_enough(&outbox.stream, stall.waited, "gone");
        }
    }

    fn owes_acknowledgement(&self) -> bool {
        // Either may move in between.
        let confirmed = self.confirmed.load(Ordering::SeqCst);
        let behind = self.received.load(Ordering::SeqCst).saturating_sub(confirmed);
        let unpacked = self.unpacked.load(Ordering::SeqCst);
        self.resumption().is_some() && behind.max(unpacked) >= ACKNOWLEDGE_EVERY
    }

    /// Tells the worker how much of its stream has come, if that is worth a frame.
    pub(super) fn acknowledge(&self) {
        while self.owes_acknowledgement() {
            // Who has the outbox does so, once it is free.
            let Some(mut outbox) = self.try_outbox() else { return };
            self.confirm(&mut outbox, false);
            self.flush_what_fits(&mut outbox);
        }
    }

    /// Adds an acknowledgement; `answer` says that the worker is to answer it, to show that it is
    /// there.
    pub(super) fn confirm(&self, outbox: &mut Outbox, answer: bool) {
        self.unpacked.store(0, Ordering::SeqCst);
        let position = self.received.load(Ordering::SeqCst);
        self.confirmed.store(position, Ordering::SeqCst);
        let header = Header { kind: Kind::Received, device: 0, op: 0, lane: 0, sequence: 0 };
        // A frame of a few bytes is never too large.
        let _ =
            outbox.buffer.append(|out| header.frame(out, |out| Received { position, answer }.encode(out)));
    }

    pub(super) fn flush_what_fits(&self, outbox: &mut Outbox) {
        while outbox.buffer.unsent() > 0 && !self.is_cut() && !self.is_lost() {
            match uncancelled(|| outbox.write()) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => self.part(&outbox.stream, &error),
            }
        }
    }
}

//! Commands: queued, or sent and waited for.

use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use sluice_cuda::CUresult;
use sluice_wire::{Command, Header, Kind, Op, commands};

use super::command_id::CommandId;
use super::inbox::Answer;
use super::outbox::Outbox;
use super::refusals::Tried;
use super::waiters::Want;
use super::zero_copy::Loan;
use super::{Link, command_id};

/// Tickets are unique over all links: what they stand for is in tables of the process.
static NEXT_TICKET: AtomicU64 = AtomicU64::new(1);

impl Link {
    /// A number for data that the worker will push, or for a host function that it will ask for.
    pub(crate) fn ticket(&self) -> u64 {
        NEXT_TICKET.fetch_add(1, Ordering::Relaxed)
    }

    /// The session's sticky error, if it has one.
    pub(crate) fn check(&self) -> Result<(), CUresult> {
        CUresult(self.failed.load(Ordering::Acquire)).ok()
    }

    /// Appends a command to the session, without waiting for anything but room.
    pub(crate) fn queue(
        &self,
        device: u8,
        op: Op,
        payload: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), CUresult> {
        self.check()?;
        self.leave(command(device, op, command_id::next()), payload)
    }

    /// Appends a command that is not answered, and waits for what the driver says to it.
    pub(crate) fn try_out(
        &self,
        device: u8,
        op: Op,
        payload: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), CUresult> {
        self.check()?;
        let place = command_id::next();
        let tried = Tried::at(place);
        self.leave(command(device, op, place), payload)?;
        self.call(device, commands::Submitted::OP, |_| ())?.result.ok()?;
        tried.result()
    }

    /// Appends a command whose answer is [taken](Link::take) later.
    pub(crate) fn ask(
        &self,
        device: u8,
        op: Op,
        payload: impl FnOnce(&mut Vec<u8>),
    ) -> Result<CommandId, CUresult> {
        self.check()?;
        let place = command_id::next();
        self.inbox().await_answer(place);
        let asked = self.leave(command(device, op, place), payload);
        asked.map(|()| place).inspect_err(|_| self.inbox().give_up(place))
    }

    /// Waits for the answer to what was [asked](Link::ask).
    pub(crate) fn take(&self, place: CommandId) -> Result<Answer, CUresult> {
        let answer = self
            .flush_now()
            .and_then(|()| self.wait_until(Want::Answer(place), |inbox| inbox.take_answer(place)));
        answer.inspect_err(|_| self.inbox().give_up(place))
    }

    /// As [`take`](Link::take); `None` if it has not come by `deadline`, or up to a few seconds
    /// after it, and then it is dropped when it comes.
    pub(crate) fn take_by(&self, place: CommandId, deadline: Instant) -> Result<Option<Answer>, CUresult> {
        self.flush_now()?;
        // As each thread that reads, this one looks again after a silence (`SILENCE`), and one that
        // sleeps for a change whenever another has read.
        let taken = self.wait_until(Want::Change, |inbox| {
            let answer = inbox.take_answer(place);
            (answer.is_some() || Instant::now() >= deadline).then_some(answer)
        });
        if !matches!(taken, Ok(Some(_))) {
            self.inbox().give_up(place);
        }
        taken
    }

    /// The answer to what was [asked](Link::ask), if it has come.
    pub(crate) fn come(&self, place: CommandId) -> Option<Answer> {
        self.inbox().take_answer(place)
    }

    /// The answer to what was [asked](Link::ask), if it has come; a later answer is dropped.
    pub(crate) fn forgo(&self, place: CommandId) -> Option<Answer> {
        let mut inbox = self.inbox();
        let answer = inbox.take_answer(place);
        inbox.give_up(place);
        answer
    }

    /// Appends a command, which goes out with others.
    fn leave(&self, header: Header, payload: impl FnOnce(&mut Vec<u8>)) -> Result<(), CUresult> {
        let mut outbox = self.outbox();
        self.append(&mut outbox, header, 0, payload)?;
        self.send_with_others(outbox)
    }

    /// Sends what is queued if that is due, or leaves it to the next sender.
    pub(super) fn send_with_others(&self, mut outbox: MutexGuard<'_, Outbox>) -> Result<(), CUresult> {
        if outbox.is_due() {
            return self.send(outbox);
        }
        if !std::mem::replace(&mut outbox.is_watched, true) {
            self.left.notify_one();
        }
        drop(outbox);
        self.acknowledge();
        Ok(())
    }

    /// Memory can be lent to the link while the loan lasts.
    pub(crate) fn loan<'a>(&'static self) -> Loan<'a> {
        Loan::new(self)
    }

    /// Of the payload about `size` bytes are data.
    pub(super) fn append(
        &self,
        outbox: &mut Outbox,
        header: Header,
        size: usize,
        payload: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), CUresult> {
        let see = |frame: &[u8]| {
            if let Some(recorder) = &self.recorder {
                recorder.sent(frame);
            }
        };
        outbox.append(header, size, payload, see).map_err(|_| CUresult::INVALID_VALUE)
    }

    /// Whether a log of the session is kept, which has to hold all that its commands need.
    pub(crate) fn is_recorded(&self) -> bool {
        self.recorder.is_some()
    }

    /// Sends what is queued.
    pub(crate) fn flush_now(&self) -> Result<(), CUresult> {
        self.send(self.outbox())
    }

    /// Sends a command and waits for its answer.
    pub(crate) fn call(
        &self,
        device: u8,
        op: Op,
        payload: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Answer, CUresult> {
        self.check()?;
        let place = command_id::next();
        self.inbox().await_answer(place);
        let sent = {
            let mut outbox = self.outbox();
            let header = command(device, op, place);
            self.append(&mut outbox, header, 0, payload).map(|()| self.flush(&mut outbox))
        };
        self.acknowledge();
        let answer =
            sent.and_then(|()| self.wait_until(Want::Answer(place), |inbox| inbox.take_answer(place)));
        if answer.is_err() {
            self.inbox().give_up(place);
        }
        answer.inspect(|answer| self.note_loss(answer.result))
    }

    /// An answer that says that the context is lost is the session's error from then on, also for
    /// calls that the client answers by itself. What a driver answers with "unknown" may be one
    /// call's mistake.
    fn note_loss(&self, result: CUresult) {
        if result.is_sticky() && result != CUresult::UNKNOWN {
            self.fail(result);
        }
    }
}

pub(super) fn command(device: u8, op: Op, (lane, sequence): CommandId) -> Header {
    Header { kind: Kind::Command, device, op: op.0, lane, sequence }
}

//! Frames that arrive, delivered to whom they are for.

use std::io;
use std::ops::Range;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

use sluice_cuda::CUresult;
use sluice_wire::pack::unpack;
use sluice_wire::spin::Wait;
use sluice_wire::{Frame, HostCall, Kind, Op};

use super::inbox::{Inbox, News, Receiver, SCRAP_BYTES, Sink};
use super::waiters::Want;
use super::{Link, refusals};
use crate::abi::call::uncancelled;

/// Bytes read from the socket at a time.
const READ_BYTES: usize = 64 << 10;

/// Bytes read after a large push: the next frame is probably another, of which only the beginning
/// is wanted here.
const READ_BYTES_AFTER_BULK: usize = 4 << 10;

impl Link {
    /// Says where data pushed under this ticket go. They land whenever any thread reads.
    pub(crate) fn expect(&'static self, ticket: u64, sink: Sink) {
        self.widen_for(sink.bytes());
        self.inbox().expect(ticket, sink);
    }

    /// Whether data are still to land in this memory.
    pub(crate) fn will_write(&self, range: &Range<u64>) -> bool {
        self.inbox().will_write(range)
    }

    /// Whether pushed data are still to land.
    pub(crate) fn owes_data(&self) -> bool {
        self.inbox().owes_data()
    }

    /// Waits until the turn of a host function has come, or the session has failed.
    pub(crate) fn wait_for_host_calls(&self) -> Result<Vec<HostCall>, CUresult> {
        self.wait_until(Want::HostCalls, |inbox| match inbox.take_host_calls() {
            Some(calls) => Some(Ok(calls)),
            None => self.check().err().map(Err),
        })?
    }

    /// Reads once, with the lock free meanwhile, and delivers what came.
    pub(super) fn lead<'a>(
        &'a self,
        inbox: MutexGuard<'a, Inbox>,
        mut receiver: Receiver,
        wait: Wait,
    ) -> MutexGuard<'a, Inbox> {
        drop(inbox);
        // What was delivered last may have been many bytes in few.
        self.acknowledge();
        let read = uncancelled(|| self.read(&mut receiver, wait));
        if let Ok(count) = read {
            receiver.silent = 0;
            if count > 0 {
                self.heard_something();
            }
            self.received.fetch_add(count as u64, Ordering::SeqCst);
            self.acknowledge();
        }
        let mut inbox = self.inbox();
        match read {
            Ok(0) => self.part(&receiver.stream, &"the node has closed it"),
            Ok(_) => self.deliver(&mut inbox, &mut receiver),
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => self.sink_is_bad(&mut receiver),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if wait == Wait::Asleep {
                    self.heard_nothing(&mut receiver);
                }
            }
            Err(error) => self.part(&receiver.stream, &error),
        }
        self.stop_leading(&mut inbox, receiver);
        inbox
    }

    /// Reads what is there to where it belongs.
    pub(super) fn read(&self, receiver: &mut Receiver, wait: Wait) -> io::Result<usize> {
        // The rest of a frame that has begun follows, in as many pieces as it takes.
        if let Some(arrival) = &mut receiver.arrival {
            let mut scrap = [0; SCRAP_BYTES];
            // SAFETY: this thread leads, and the space is used in the next line only.
            let space = unsafe { arrival.space(&mut scrap) };
            let count = receiver.stream.read(space, wait)?;
            arrival.received(count);
            return Ok(count);
        }
        let decoder = &mut receiver.decoder;
        let spins = wait == Wait::Asleep && decoder.is_between_frames();
        let room = match receiver.after_bulk && decoder.is_between_frames() {
            true => READ_BYTES_AFTER_BULK,
            false => decoder.missing().unwrap_or(0).max(READ_BYTES),
        };
        let space = decoder.space(room);
        let count = match spins {
            true => self.spin.read(|wait| receiver.stream.read(space, wait))?,
            false => receiver.stream.read(space, wait)?,
        };
        decoder.received(count);
        Ok(count)
    }

    /// The program has passed memory that cannot be written to.
    fn sink_is_bad(&self, receiver: &mut Receiver) {
        self.fail(CUresult::INVALID_VALUE);
        if let Some(arrival) = &mut receiver.arrival {
            arrival.discard();
        }
    }

    /// Delivers every whole frame. One that makes no sense ends the session.
    pub(super) fn deliver(&self, inbox: &mut Inbox, receiver: &mut Receiver) {
        inbox.end_arrival(receiver);
        loop {
            let frame = match receiver.decoder.next_frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(error) => return self.lose(&error),
            };
            let unpacked = match frame.header.kind {
                Kind::Packed => match unpack(&frame) {
                    Ok(unpacked) => {
                        self.unpacked.fetch_add(unpacked.1.len() as u64, Ordering::SeqCst);
                        Some(unpacked)
                    }
                    Err(error) => return self.lose(&error),
                },
                _ => None,
            };
            let frame = match &unpacked {
                Some((header, payload)) => Frame { header: *header, payload },
                None => frame,
            };
            receiver.after_bulk = false;
            if let Some(recorder) = &self.recorder {
                recorder.came(&frame);
                recorder.write();
            }
            match inbox.deliver(&frame) {
                Ok(None) => {}
                Ok(Some(News::Received(received))) => {
                    self.acknowledged.fetch_max(received.position, Ordering::AcqRel);
                    // At once, if that needs no waiting: when it came says how fast the link is.
                    if let Some(mut outbox) = self.try_outbox()
                        && let Err(error) = outbox.acknowledge(received.position)
                    {
                        return self.lose(&error);
                    }
                }
                Ok(Some(News::Allowance(allowance))) => self.allowances.change(allowance),
                Ok(Some(News::Notice(text))) => crate::abi::errors::say(format_args!("{text}")),
                Ok(Some(News::Refused(place, op, refused))) => {
                    (self.on_refused)(refused.ticket);
                    refusals::note(place, op, CUresult(refused.result), refused.captured);
                }
                Ok(Some(News::Failed(sticky))) => {
                    self.fail(CUresult(sticky.result));
                    match Op(sticky.op) {
                        _ if sticky.text.is_empty() => {}
                        Op::NONE => crate::abi::errors::say(format_args!("{}", sticky.text)),
                        op => crate::abi::errors::say(format_args!("{}: {}", op.name(), sticky.text)),
                    }
                }
                Err(error) => return self.lose(&error),
            }
        }
        // Data that arrive in place do not pass the recorder.
        if receiver.arrival.is_none()
            && !self.is_recorded()
            && let Err(error) = inbox.begin_arrival(receiver)
        {
            self.lose(&error);
        }
    }
}

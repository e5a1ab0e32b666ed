//! Zero-copy sends: data that are sent directly from the program's memory.
//!
//! What may be sent again after a cut must stay as it is until the worker has it, and a call may
//! return before. So of a copy over a connection that can be resumed the last window of bytes is
//! copied ([`retained`](super::retained)), and what is before them is lent: when all of them are
//! queued the worker has that, or else the window would be full. (A window that has grown meanwhile
//! makes the end of such a copy wait for the worker once.) Where nothing is sent again all data are
//! lent.

use std::marker::PhantomData;
use std::sync::atomic::Ordering;

use sluice_cuda::CUresult;
use sluice_wire::{Encode, Op};

use super::{Link, command};
use crate::link::command_id;
use crate::link::outbox::Lent;
use crate::link::waiters::Want;

/// Less data are copied into the outbox, where they find company.
pub(super) const LEND_MIN: usize = 64 << 10;

/// Memory of the caller's in the outbox; taken back when this goes.
pub(crate) struct Loan<'a> {
    link: &'static Link,
    /// Position in our stream after the last byte that is lent.
    pub(super) end: u64,
    memory: PhantomData<&'a [u8]>,
}

impl<'a> Loan<'a> {
    pub(super) fn new(link: &'static Link) -> Loan<'a> {
        Loan { link, end: 0, memory: PhantomData }
    }

    /// As [`Link::queue`], for a command whose last field is `data`: `fields` appends those before.
    /// The caller will queue at least `behind` bytes more.
    ///
    /// # Safety
    /// The loan is dropped, and not leaked, before the data go.
    pub(crate) unsafe fn queue(
        &mut self,
        device: u8,
        op: Op,
        fields: impl FnOnce(&mut Vec<u8>),
        (data, behind): (&'a [u8], usize),
    ) -> Result<(), CUresult> {
        let link = self.link;
        let count = u32::try_from(data.len()).map_err(|_| CUresult::INVALID_VALUE)?;
        let fields = |out: &mut Vec<u8>| {
            fields(out);
            count.encode(out);
        };
        link.check()?;
        link.widen_for(data.len() as u64);
        let mut outbox = link.outbox();
        let may_lend = link.resumption().is_none() || behind as u64 >= outbox.buffer.window();
        // What is packed is copied, and so is what a log keeps.
        let is_large = data.len() >= LEND_MIN && !link.is_recorded() && !outbox.would_pack(data);
        let kept = if is_large && !may_lend { outbox.keeper.keep(data) } else { None };
        let place = command_id::next();
        if kept.is_none() && !(is_large && may_lend) {
            link.append(&mut outbox, command(device, op, place), data.len(), |out| {
                fields(out);
                out.extend_from_slice(data);
            })?;
            // Behind what is lent the window must be seen to.
            let is_alone = data.len() < LEND_MIN && self.end == 0;
            return if is_alone { link.send_with_others(outbox) } else { link.send(outbox) };
        }
        let header = command(device, op, place);
        let framed = outbox
            .end_recognised()
            .and_then(|()| outbox.buffer.append(|out| header.frame_before(out, data.len(), fields)));
        framed.map_err(|_| CUresult::INVALID_VALUE)?;
        if let Some(kept) = kept {
            outbox.buffer.lend(Lent::Kept(kept));
        } else {
            // SAFETY: the data are borrowed for longer than this lives, and its drop, of which the
            // caller assures us, takes them back.
            unsafe { outbox.lend(data) };
            self.end = outbox.buffer.end();
        }
        link.send(outbox)
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        if self.end > 0 {
            self.link.take_back(self.end);
        }
    }
}

impl Link {
    /// Returns when nothing before `end` is in the outbox any more.
    fn take_back(&self, end: u64) {
        // While there is no connection, what the worker has may not count as sent yet.
        let has_come = || self.acknowledged.load(Ordering::Acquire) >= end && !self.is_cut();
        if self.resumption().is_some() && !has_come() {
            // A call has failed half-way: too little follows for the worker to say what it has.
            let mut outbox = self.outbox();
            self.confirm(&mut outbox, true);
            self.flush(&mut outbox);
            drop(outbox);
            // An error means that the connection is lost, too.
            let _ = self.wait_until(Want::Change, |_| (has_come() || self.is_lost()).then_some(()));
        }
        let mut outbox = self.outbox();
        if self.resumption().is_some()
            && let Err(error) = outbox.acknowledge(self.acknowledged.load(Ordering::Acquire))
        {
            self.lose(&error);
        }
        if outbox.buffer.start() < end {
            outbox.buffer.abandon();
        }
        drop(outbox);
        self.acknowledge();
    }
}

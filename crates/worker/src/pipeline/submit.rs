//! The thread that submits, and who takes its part while it is blocked.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use sluice_wire::{Command, Op, commands};

use super::execute::execute;
use super::{Job, Pipeline, Queued, SUBMITTED_BYTES_MAX, State, THREADS_MAX};
use crate::pipeline::kinds::may_block;
use crate::process::ending;

/// A reader that waits for room sends a keep-alive at this interval.
pub(super) const SIGN_OF_LIFE: Duration = Duration::from_secs(3);

impl Pipeline {
    pub(super) fn execute(&self, job: Job) {
        execute(&self.session, &job);
        self.buffers.give(job.payload);
    }

    /// Makes sure that a thread submits what is queued.
    pub(super) fn find_submitter(self: &Arc<Self>, state: &mut State) {
        if state.jobs.is_empty() || state.has_submitter {
            return;
        }
        if state.idle > 0 {
            self.work.notify_one();
        } else if state.threads < THREADS_MAX {
            state.threads += 1;
            let pipeline = Arc::clone(self);
            ending::spawn("executor", move || pipeline.run());
        }
        // Otherwise the first call that returns finds the queue.
    }

    /// The life of a thread of the pool.
    fn run(self: &Arc<Self>) -> ! {
        loop {
            let mut state = self.lock();
            while state.jobs.is_empty() || state.has_submitter {
                state.idle += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
            state.has_submitter = true;
            if let Some(blocking) = self.submit(state) {
                let present = self.session.presence.enter();
                self.execute(blocking);
                drop(present);
                self.lock().blocking -= 1;
                self.room.notify_all();
            }
        }
    }

    /// Submits until there is nothing left, or a call that can block: that one is returned, and
    /// holds up no other thread from here on.
    fn submit<'a>(self: &'a Arc<Self>, mut state: MutexGuard<'a, State>) -> Option<Job> {
        while !state.jobs.is_empty() {
            let mut batch = std::mem::take(&mut state.jobs);
            state.bytes = 0;
            self.room.notify_all();
            self.accept_more(state);
            while let Some(Queued { job, behind }) = batch.pop_front() {
                self.wait_until_pushed(behind);
                let op = Op(job.header.op);
                if !may_block(op) {
                    // Not inside the gate: without the turn there will be no room.
                    sluice_softgpu::wait_for_room(SUBMITTED_BYTES_MAX);
                    let present = self.session.presence.enter();
                    self.execute(job);
                    drop(present);
                    if op == commands::MirrorPush::OP {
                        self.lock().pushes_queued -= 1;
                        self.room.notify_all();
                    }
                    continue;
                }
                let mut state = self.lock();
                state.bytes += batch.iter().map(|queued| queued.job.payload.len()).sum::<usize>();
                batch.append(&mut state.jobs);
                state.jobs = batch;
                state.has_submitter = false;
                state.blocking += 1;
                self.find_submitter(&mut state);
                return Some(job);
            }
            state = self.lock();
        }
        state.has_submitter = false;
        self.room.notify_all();
        None
    }
}

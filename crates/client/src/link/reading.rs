//! Who reads the connection, and who sleeps meanwhile.
//!
//! A thread that stops waiting while no thread reads wakes one that still sleeps; so there is
//! always a reader while a thread waits, and a thread that sleeps is woken for what it waits for,
//! and not for what others do.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

use sluice_cuda::CUresult;
use sluice_wire::spin::Wait;

use super::Link;
use crate::link::inbox::{Inbox, Receiver};
use crate::link::waiters::{Nap, Sleeper, Want};

impl Link {
    /// Leads, or sleeps while another thread does, until `take` finds what this thread waits for.
    pub(super) fn wait_until<T>(
        &self,
        want: Want,
        mut take: impl FnMut(&mut Inbox) -> Option<T>,
    ) -> Result<T, CUresult> {
        let mut inbox = self.inbox();
        let taken = loop {
            if let Some(taken) = take(&mut inbox) {
                break Ok(taken);
            }
            let lost = self.is_lost();
            inbox = match inbox.receiver.take() {
                Some(receiver) if lost => {
                    inbox.receiver = Some(receiver);
                    break Err(self.error());
                }
                Some(receiver) if self.is_cut() => self.resume(inbox, receiver),
                Some(receiver) => self.lead(inbox, receiver, Wait::Asleep),
                // Also after a loss: the leader may be writing into a buffer of this very call.
                None => self.sleep(inbox, want),
            };
        };
        hand_on(inbox);
        taken
    }

    /// Reads what has come unless another thread does; says whether it could.
    pub(crate) fn look(&self) -> bool {
        let mut inbox = self.inbox();
        if self.is_cut() || self.is_lost() {
            return false;
        }
        let Some(receiver) = inbox.receiver.take() else { return false };
        hand_on(self.lead(inbox, receiver, Wait::No));
        true
    }

    /// The buffer of a ticket is about to go: true if data were still to come, which are dropped.
    pub(crate) fn forget(&self, ticket: u64) -> bool {
        let mut inbox = self.inbox();
        while inbox.is_in_use(ticket) {
            inbox = self.sleep(inbox, Want::Change);
        }
        let was_owed = inbox.forget(ticket);
        hand_on(inbox);
        was_owed
    }

    /// Gives the connection back for another thread to read, and wakes the threads whose answers
    /// are there.
    pub(super) fn stop_leading(&self, inbox: &mut Inbox, receiver: Receiver) {
        inbox.receiver = Some(receiver);
        let everybody = self.is_lost() || self.check().is_err();
        let woken = |inbox: &Inbox, sleeper: &Sleeper| everybody || inbox.has(sleeper.want);
        let sleepers = std::mem::take(&mut inbox.sleepers);
        for sleeper in sleepers {
            match woken(inbox, &sleeper) {
                true => sleeper.wake(),
                false => inbox.sleepers.push(sleeper),
            }
        }
    }

    /// Sleeps until this thread is taken from the list. Where answers come soon it polls for a
    /// moment first, as the reader does.
    fn sleep<'a>(&'a self, mut inbox: MutexGuard<'a, Inbox>, want: Want) -> MutexGuard<'a, Inbox> {
        let nap = Arc::new(Nap::default());
        inbox.sleepers.push(Sleeper { want, is_asleep: false, nap: Arc::clone(&nap) });
        if !matches!(want, Want::Answer(_)) {
            return nap.sleep(inbox);
        }
        drop(inbox);
        let mut woken = None;
        let _ = self.spin_asleep.read(|wait| match wait {
            Wait::No if nap.is_over.load(Ordering::Acquire) => Ok(0),
            Wait::No => Err(io::ErrorKind::WouldBlock.into()),
            Wait::Asleep => {
                woken = Some(nap.sleep(self.inbox()));
                Ok(0)
            }
        });
        woken.unwrap_or_else(|| self.inbox())
    }
}

impl Nap {
    fn sleep<'a>(&self, mut inbox: MutexGuard<'a, Inbox>) -> MutexGuard<'a, Inbox> {
        for sleeper in &mut inbox.sleepers {
            sleeper.is_asleep |= std::ptr::eq(&*sleeper.nap, self);
        }
        let is_on = |_: &mut Inbox| !self.is_over.load(Ordering::Relaxed);
        self.over.wait_while(inbox, is_on).unwrap_or_else(PoisonError::into_inner)
    }
}

/// Called when this thread stops waiting: if no thread reads, one that still waits has to.
fn hand_on(mut inbox: MutexGuard<'_, Inbox>) {
    if inbox.receiver.is_some()
        && let Some(next) = inbox.sleepers.pop()
    {
        next.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{OP, pair};
    use super::*;

    #[test]
    fn an_answer_wakes_its_own_thread_and_a_leader_who_leaves_one_more() {
        let (link, mut peer) = pair();
        std::thread::scope(|scope| {
            let threads = [(); 3].map(|()| scope.spawn(|| link.call(0, OP, |_| ()).map(drop)));
            let mut commands = [(); 3].map(|()| peer.next().unwrap());
            let asleep = loop {
                let inbox = link.inbox();
                if let [first, second] = &inbox.sleepers[..] {
                    break [first, second].map(|sleeper| (sleeper.want, Arc::clone(&sleeper.nap)));
                }
                drop(inbox);
                std::thread::yield_now();
            };
            // The leader's own comes last.
            commands.sort_by_key(|(header, _)| {
                let place = (header.lane, header.sequence);
                asleep
                    .iter()
                    .position(|(want, _)| matches!(want, Want::Answer(wanted) if *wanted == place))
                    .unwrap_or(2)
            });
            let [first, second, leader] = commands;
            peer.echo(first);
            while !asleep[0].1.is_over.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            // The thread that wakes has the lock, and is done with all.
            drop(link.inbox());
            let is_woken_too = asleep[1].1.is_over.load(Ordering::Acquire);
            peer.echo(leader);
            while !asleep[1].1.is_over.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            peer.echo(second);
            for thread in threads {
                thread.join().unwrap().unwrap();
            }
            assert!(!is_woken_too, "woken for another's answer");
        });
    }
}

//! A program forks, and its child continues with a session of its own, which is a clone of this
//! one.
//!
//! The parent holds the link while the clone is made and the process is copied, with nothing owed
//! in either direction. So the child's copy of the link needs only another connection: its streams
//! begin with their first bytes.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use sluice_cuda::CUresult;
use sluice_transport::Stream;
use sluice_wire::FrameDecoder;
use sluice_wire::address::{Endpoint, SessionAddress};
use sluice_wire::control::{ResumeTerms, SessionCloned};
use sluice_wire::handshake::{CloneOf, CloneProof, LeaseToken};

use super::inbox::{Inbox, Receiver};
use super::outbox::Outbox;
use super::waiters::Want;
use super::{Link, Resumption, watch_silence};

/// A link that no other thread uses until this is dropped.
pub(crate) struct HeldLink {
    link: &'static Link,
    outbox: MutexGuard<'static, Outbox>,
    inbox: MutexGuard<'static, Inbox>,
}

impl Link {
    /// Sends what is left, waits until nothing is owed, and keeps all other threads from the link;
    /// `None` if something still is by `deadline`, or up to a few seconds after it.
    pub(crate) fn hold(&'static self, deadline: Instant) -> Result<Option<HeldLink>, CUresult> {
        loop {
            let mut outbox = self.outbox();
            self.flush(&mut outbox);
            let inbox = self.inbox();
            if inbox.is_settled() {
                return Ok(Some(HeldLink { link: self, outbox, inbox }));
            }
            drop((inbox, outbox));
            if Instant::now() >= deadline {
                return Ok(None);
            }
            // What was asked ahead, or is watched, is answered unasked.
            let settled = |inbox: &mut Inbox| inbox.is_settled() || Instant::now() >= deadline;
            self.wait_until(Want::Change, |inbox| settled(inbox).then_some(()))?;
        }
    }

    /// Where the session is now, and how its clone is asked for there.
    pub(crate) fn to_be_cloned(&self) -> Option<(Endpoint, CloneOf)> {
        let known = self.resumption().map(|resumption| {
            let (session, secret) = resumption.identity();
            (resumption.node(), CloneOf { session, proof: CloneProof(secret.0) })
        });
        let opened = || {
            let (SessionAddress { node, token }, session) = self.opened.as_ref()?;
            Some((node.clone(), CloneOf { session: *session, proof: CloneProof(token.0) }))
        };
        known.or_else(opened)
    }
}

impl HeldLink {
    /// In the child: the parent's connection is not its own. Async-signal-safe.
    pub(crate) fn leave_parent(&self) {
        self.link.detach();
    }

    /// In the child, after it has left the parent: the link is that of the clone, over this
    /// connection, on which nothing has been sent.
    pub(crate) fn becomes(mut self, cloned: &SessionCloned, node: Endpoint, stream: Stream) {
        let link = self.link;
        let stream = Arc::new(stream);
        watch_silence(&stream);
        // What belongs to the parent's connection is never dropped: its descriptor is closed.
        let outbox = self.outbox.for_clone(Arc::clone(&stream));
        std::mem::forget(std::mem::replace(&mut *self.outbox, outbox));
        let receiver = Receiver::new(Arc::clone(&stream), FrameDecoder::new());
        std::mem::forget(self.inbox.receiver.replace(receiver));
        // Threads of the parent.
        self.inbox.sleepers.clear();
        for position in [&link.received, &link.confirmed, &link.unpacked, &link.acknowledged] {
            position.store(0, SeqCst);
        }
        link.cut.store(false, SeqCst);
        link.silence_is_told.store(false, SeqCst);
        link.current.store(Arc::as_ptr(&stream).cast_mut(), SeqCst);
        link.allowances.end();
        let &SessionCloned { session, secret, linger_ms } = cloned;
        match link.resumption() {
            Some(resumption) => resumption.becomes((session, secret)),
            None => {
                let address = SessionAddress { node, token: LeaseToken([0; 32]) };
                let terms = ResumeTerms { secret, linger_ms, expands: false };
                // It was empty just now, and there is no other thread.
                let _ = link.resumption.set(Resumption::new(address, session, &terms, 1, 1));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use sluice_wire::handshake::SessionSecret;

    use super::super::tests::{OP, pair};
    use super::*;

    fn long() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn a_link_is_held_only_while_nothing_is_owed() {
        let (link, mut peer) = pair();
        let asked = link.ask(0, OP, |_| ()).unwrap();
        link.flush_now().unwrap();
        let command = peer.next().unwrap();
        assert!(link.hold(Instant::now()).unwrap().is_none(), "an answer is owed");
        std::thread::scope(|scope| {
            let held = scope.spawn(|| link.hold(long()).map(|held| held.is_some()));
            peer.echo(command);
            assert_eq!(held.join().unwrap(), Ok(true), "it waits for the answer");
        });
        assert!(link.come(asked).is_some(), "the answer is still there");
    }

    #[test]
    fn the_link_of_a_child_begins_anew_on_its_own_connection() {
        let (link, mut parent) = pair();
        let asked = link.ask(0, OP, |_| ()).unwrap();
        link.flush_now().unwrap();
        let command = parent.next().unwrap();
        parent.echo(command);
        while !link.inbox().is_settled() {
            link.look();
        }
        let (ours, theirs) = UnixStream::pair().unwrap();
        let cloned = SessionCloned { session: 7, secret: SessionSecret([3; 32]), linger_ms: 1000 };
        let node: Endpoint = "127.0.0.1:1".parse().unwrap();
        link.hold(long()).unwrap().unwrap().becomes(&cloned, node.clone(), Stream::from(ours));
        assert!(link.come(asked).is_some(), "what its parent was answered is the child's as well");
        let (at, of) = link.to_be_cloned().unwrap();
        assert_eq!((at, of.session, of.proof), (node, 7, CloneProof([3; 32])), "it can fork, too");
        link.queue(0, OP, |_| ()).unwrap();
        link.flush_now().unwrap();
        let mut child = parent.on(theirs);
        assert_eq!(child.next().unwrap().0.op, OP.0);
        assert_eq!(link.received.load(SeqCst), 0);
    }
}

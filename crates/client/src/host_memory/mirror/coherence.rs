//! The moments at which both sides are made to agree.

use std::sync::atomic::Ordering;

use sluice_cuda::*;
use sluice_wire::live::{Word, agree, capture, told};
use sluice_wire::{Command, Encode, WireError, commands};

use super::{Mirror, exist, mirrors};
use crate::session;
use crate::session::Session;

/// Sends what the program has written since both sides agreed. Called before work is sent.
pub(crate) fn push(session: &Session) -> Result<(), CUresult> {
    if !exist() {
        return Ok(());
    }
    let mut mirrors = mirrors();
    let beside = goes_beside(session);
    let here = |mirror: &&mut Mirror| mirror.number.is_none() && session.has(mirror.ordinal);
    mirrors.iter_mut().filter(here).try_for_each(|mirror| mirror.push(session, beside))?;
    push_live_from(session, &mut mirrors).map(drop)
}

/// From now on streams of the session may call functions. What they need waits for no command
/// before it, and commands behind it wait for it; changes are always sent so, since they may be a
/// function's, whose stream continues once all of them are there.
pub(crate) fn go_beside(session: &Session) {
    // What is sent otherwise is sent before any function runs.
    let _mirrors = mirrors();
    session.has_host_thread.store(true, Ordering::Release);
}

/// In a log all goes one way: it would hold otherwise whether something happened to run.
pub(super) fn goes_beside(session: &Session) -> bool {
    session.has_host_thread.load(Ordering::Acquire) || session.link.is_recorded()
}

/// As [`push`], of memory that is kept equal while device code runs; whether there was anything to
/// send.
pub(crate) fn push_live(session: &Session) -> Result<bool, CUresult> {
    push_live_from(session, &mut mirrors())
}

fn push_live_from(session: &Session, mirrors: &mut [Mirror]) -> Result<bool, CUresult> {
    // Other threads of the program may be writing to it.
    let words = capture(|| look(session, mirrors));
    tell(session, mirrors, &words).map(|()| !words.is_empty())
}

/// What the program has changed in memory of which the node keeps a copy.
pub(super) fn look(session: &Session, mirrors: &[Mirror]) -> Vec<Word> {
    let mut found = Vec::new();
    for mirror in mirrors.iter().filter(|mirror| session.has(mirror.ordinal)) {
        if let (Some(number), Some(memory)) = (mirror.number, mirror.memory()) {
            memory.look(number, &mirror.agreed, &mut found);
        }
    }
    found
}

fn tell(session: &Session, mirrors: &mut [Mirror], words: &[Word]) -> Result<(), CUresult> {
    each_with_mirror(session, mirrors, words.iter().copied(), |mirror, word| {
        agree(&mut mirror.agreed, &word)
    });
    let parts = sluice_wire::live::tell(words);
    let last = parts.len().saturating_sub(1);
    parts.iter().enumerate().try_for_each(|(at, words)| {
        let command = commands::LivePush { more: at < last, words };
        session.link.queue(0, commands::LivePush::OP, |out| command.encode(out))
    })
}

/// Calls `each` with every word whose memory is there.
fn each_with_mirror(
    session: &Session,
    mirrors: &mut [Mirror],
    words: impl IntoIterator<Item = Word>,
    mut each: impl FnMut(&mut Mirror, Word),
) {
    let mut last = 0;
    for word in words {
        let is_it = |mirror: &Mirror| mirror.number == Some(word.mirror);
        // Neighbours are in the same memory, nearly always.
        if !mirrors.get(last).is_some_and(is_it) {
            let found = mirrors.iter().position(|mirror| is_it(mirror) && session.has(mirror.ordinal));
            let Some(found) = found else { continue };
            last = found;
        }
        each(&mut mirrors[last], word);
    }
}

/// Puts in what the device has changed.
pub(crate) fn take_words(session: &Session, part: &[u8]) -> Result<(), WireError> {
    let mut words = Vec::new();
    told(part, |word| words.push(word))?;
    each_with_mirror(session, &mut mirrors(), words, |mirror, word| {
        if let Some(memory) = mirror.memory().filter(|_| !mirror.is_read_only) {
            memory.apply(&mut mirror.agreed, &word);
        }
    });
    Ok(())
}

/// Fetches what the device has written since both sides agreed. Called after a wait for the device.
pub(crate) fn fetch(session: &Session) -> Result<(), CUresult> {
    if !exist() {
        return Ok(());
    }
    let is_kept = |mirror: &Mirror| mirror.number.is_some() && session.has(mirror.ordinal);
    let some_are_kept = mirrors().iter().any(is_kept);
    if some_are_kept {
        session.live.fetch(session)?;
    }
    let sent = session.fetched.sent.load(Ordering::Acquire);
    if session.fetched.fetched.load(Ordering::Acquire) == sent {
        return Ok(());
    }
    let beside = goes_beside(session);
    let here =
        |mirror: &&mut Mirror| mirror.number.is_none() && !mirror.is_read_only && session.has(mirror.ordinal);
    let mut runs = false;
    for mirror in mirrors().iter_mut().filter(here) {
        runs |= mirror.fetch(session, beside)?;
    }
    // Other nodes write without a command of this session's.
    if !runs && !session::are_many() {
        session.fetched.fetched.fetch_max(sent, Ordering::AcqRel);
    }
    Ok(())
}

//! Memory that the program and the device both use: managed memory, and host memory mapped into the
//! device.
//!
//! Each side has pages of its own, and they are made to agree at the moments at which CUDA promises
//! coherence on devices without concurrent managed access: before work is sent, what the program
//! has written goes to the device; once the program has waited for work, what the device has
//! written comes back. Only bytes that have changed since both sides last agreed move, so a page
//! that both write in different places keeps what each wrote.
//!
//! ```text
//!   program writes ──▶ host pages ──(changed since agreed; before work)──▶ device memory
//!                          ▲                                                    │ kernels write
//!                          └──(changed since agreed; after a wait)◀────────────┘
//! ```
//!
//! Around a function of the program that a stream calls the same is done, beside the queue of
//! commands: work in it may wait for the function.
//!
//! The pages here are always readable and writable, so that system calls can use them like any
//! others; what has changed is found by comparing. That costs a look at all of this memory before
//! each launch, and only programs that have such memory pay it.
//!
//! On nodes that can look at such memory while device code runs, mapped host memory is also kept
//! equal meanwhile ([`live`](crate::host_memory::live)). There both sides have a copy of what they
//! last agreed on, and compare with that; elsewhere the copy is here, and the node is sent what it
//! contains.

use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_cuda::*;
use sluice_wire::live::{LIVE_BYTES_MAX, Memory, WORD, Word, agree, capture, told};
use sluice_wire::{
    BULK_SIZE_MAX, Command, DevicePtr, Encode, MIRROR_PAGE, StreamId, WireError, commands, decode, page_hash,
};

use crate::abi::ids::Kind;
use crate::context::{self, Context};
use crate::host_memory::{live, variables};
use crate::memory::allocations::Pages;
use crate::session::issue::Issue;
use crate::session::{self, Session};

/// One piece of memory on both sides.
#[derive(Debug)]
pub(crate) struct Mirror {
    /// The first byte here.
    pub(crate) host: u64,
    /// The first byte there.
    pub(crate) device: u64,
    pub(crate) bytes: u64,
    pub(crate) ordinal: CUdevice,
    pub(crate) is_managed: bool,
    /// Whose the host's pages are.
    pub(crate) pages: HostPages,
    /// The program may not write its side, so this library may not either.
    is_read_only: bool,
    /// The contents of both sides when they last agreed.
    agreed: Vec<u8>,
    /// A hash of each page of `agreed`, where the node keeps no copy.
    hashes: Vec<u64>,
    /// What the node knows it by where it keeps a copy of its own of what both sides had
    /// ([`live`](crate::host_memory::live)).
    number: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostPages {
    /// The program's: it has registered them.
    Program,
    /// Ours, at the addresses that this side has given the device's memory.
    Minted,
    /// Ours, at the address of a module's variable ([`variables`]).
    Variable,
    /// Those of a file, at addresses where a program has mapped it
    /// ([`physical`](crate::host_memory::physical)).
    File,
}

static MIRRORS: Mutex<Vec<Mirror>> = Mutex::new(Vec::new());
/// How many there are; most programs have none and pay for nothing.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn mirrors() -> MutexGuard<'static, Vec<Mirror>> {
    MIRRORS.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn exist() -> bool {
    COUNT.load(Ordering::Acquire) > 0
}

/// Looks at the mirror that a device address lies in.
pub(crate) fn with_device_address<R>(address: u64, look: impl FnOnce(&Mirror) -> R) -> Option<R> {
    if !exist() {
        return None;
    }
    let mirrors = mirrors();
    mirrors.iter().find(|it| address.wrapping_sub(it.device) < it.bytes).map(look)
}

/// The address here of what the device has at `address`.
pub(crate) fn on_host(address: u64) -> Option<u64> {
    with_device_address(address, |it| it.host + (address - it.device))
}

/// The address there of what the program has at `address`.
pub(crate) fn on_device(address: u64) -> Option<u64> {
    let offset = |it: &Mirror| address.checked_sub(it.host).filter(|offset| *offset < it.bytes);
    exist().then(|| mirrors().iter().find_map(|it| Some(it.device + offset(it)?))).flatten()
}

/// The device address of the host memory that starts at `host`, if a device of the session has it.
pub(crate) fn of_host(session: &Session, host: u64) -> Option<u64> {
    let is_it = |it: &&Mirror| it.host == host && session.has(it.ordinal);
    exist().then(|| mirrors().iter().find(is_it).map(|it| it.device)).flatten()
}

/// What the device's side is to be of host memory that exists already.
pub(crate) fn map_host(
    session: &'static Session,
    context: &Context,
    host: Range<u64>,
    is_read_only: bool,
) -> Result<u64, CUresult> {
    let bytes = host.end - host.start;
    let device = session.allocate(context, bytes, pages(session, host.start, bytes))?;
    add(
        session,
        Mirror {
            host: host.start,
            device,
            bytes,
            ordinal: context.device,
            is_managed: false,
            pages: HostPages::Program,
            is_read_only,
            agreed: Vec::new(),
            hashes: Vec::new(),
            number: None,
        },
    )
    .or_else(|error| session.free(context.device, device).and(Err(error)))?;
    Ok(device)
}

/// Where the device's side is to lie of host memory that starts here.
fn pages(session: &Session, host: u64, bytes: u64) -> Pages {
    let is_kept = live::is_possible(session) && bytes <= LIVE_BYTES_MAX && host.is_multiple_of(WORD as u64);
    if is_kept { Pages::OnHost } else { Pages::Own }
}

/// Memory at one address for both sides: managed, or the program's and mapped.
pub(crate) fn allocate(
    session: &'static Session,
    context: &Context,
    bytes: u64,
    is_managed: bool,
) -> Result<u64, CUresult> {
    if !session.device(context.device)?.mints_addresses {
        return Err(CUresult::NOT_SUPPORTED);
    }
    // It begins a chunk.
    let pages = if is_managed { Pages::Own } else { pages(session, 0, bytes) };
    let address = session.allocate(context, bytes, pages)?;
    let made = set_pages(address, bytes, libc::PROT_READ | libc::PROT_WRITE).and_then(|()| {
        let mirror = Mirror::at_one_address((address, bytes), context.device, HostPages::Minted, is_managed);
        add(session, mirror).or_else(|error| set_pages(address, bytes, libc::PROT_NONE).and(Err(error)))
    });
    made.or_else(|error| session.free(context.device, address).and(Err(error)))?;
    Ok(address)
}

/// Host memory at addresses of a device, which has nothing there; [`back`] gives it its side.
/// `None` where there are no such addresses.
pub(crate) fn lend(session: &Session, device: CUdevice, bytes: u64) -> Option<u64> {
    let address = session.lend(device, bytes)?;
    // More than this machine has is refused now, as without CUDA, and not when it is used.
    let made = map_pages(address, bytes, libc::PROT_READ | libc::PROT_WRITE, 0);
    made.inspect_err(|_| session.take_back(device, address, bytes)).ok().map(|()| address)
}

/// Undoes [`lend`].
pub(crate) fn take_back(
    session: &Session,
    device: CUdevice,
    address: u64,
    bytes: u64,
) -> Result<(), CUresult> {
    set_pages(address, bytes, libc::PROT_NONE)?;
    session.take_back(device, address, bytes);
    Ok(())
}

/// The current device gets the other side of host memory that `lender` has lent its addresses to.
/// It ends with `owner`.
pub(crate) fn back(
    session: &'static Session,
    context: &Context,
    (lender, owner): (CUdevice, CUcontext),
    (address, bytes): (u64, u64),
) -> Result<(), CUresult> {
    // It begins a chunk.
    session.back((lender, owner), (address, bytes), pages(session, 0, bytes))?;
    let mirror = Mirror::at_one_address((address, bytes), context.device, HostPages::Minted, false);
    add(session, mirror).or_else(|error| session.unback(lender, address).and(Err(error)))
}

/// The pages of a file at addresses at which a device has memory already.
pub(crate) fn add_file(
    session: &'static Session,
    ordinal: CUdevice,
    (address, bytes): (u64, u64),
    file: &OwnedFd,
) -> Result<(), CUresult> {
    let at = std::ptr::without_provenance_mut(address as usize);
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
    // SAFETY: the addresses belong to a mapping of the program inside the range that this library
    // has reserved, and the file has at least that many bytes.
    let got = unsafe { libc::mmap(at, bytes as usize, rights, flags, file.as_raw_fd(), 0) };
    if got == libc::MAP_FAILED {
        return Err(CUresult::OUT_OF_MEMORY);
    }
    let mirror = Mirror::at_one_address((address, bytes), ordinal, HostPages::File, false);
    add(session, mirror).or_else(|error| set_pages(address, bytes, libc::PROT_NONE).and(Err(error)))
}

/// Fresh pages with these rights inside the range that the session holds, where the device's memory
/// has them.
fn set_pages(address: u64, bytes: u64, rights: i32) -> Result<(), CUresult> {
    map_pages(address, bytes, rights, libc::MAP_NORESERVE)
}

fn map_pages(address: u64, bytes: u64, rights: i32, more: i32) -> Result<(), CUresult> {
    let at = std::ptr::without_provenance_mut(address as usize);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | more;
    // SAFETY: the addresses belong to an allocation inside the range that this library has
    // reserved, and to no other mapping of the process.
    let got = unsafe { libc::mmap(at, bytes as usize, rights, flags, -1, 0) };
    if got == libc::MAP_FAILED { Err(CUresult::OUT_OF_MEMORY) } else { Ok(()) }
}

/// Both sides start with zeros agreed upon, so that whatever the host has already will be sent.
fn add(session: &'static Session, mut mirror: Mirror) -> Result<(), CUresult> {
    zero(session, &mirror)?;
    if mirror.memory().is_some() {
        mirror.number = live::map(session, DevicePtr(mirror.device), mirror.bytes)?;
    }
    mirror.agree_on_zeros();
    if mirror.number.is_some() {
        session.live.start(session)?;
    }
    mirrors().push(mirror);
    COUNT.fetch_add(1, Ordering::AcqRel);
    Ok(())
}

/// In a stream that waits for no other, and is in nobody's capture: what runs may wait for
/// something that the program does later.
fn zero(session: &Session, mirror: &Mirror) -> Result<(), CUresult> {
    let stream = StreamId(context::mint(Kind::Stream));
    let (flags, priority) = (CU_STREAM_NON_BLOCKING, 0);
    session.queue_quietly(&commands::cuStreamCreateWithPriority { phStream: stream, flags, priority })?;
    let (dstDevice, N) = (DevicePtr(mirror.device), mirror.bytes);
    session.queue_quietly(&commands::cuMemsetD8Async { dstDevice, uc: 0, N, hStream: stream })?;
    let done = session.call(&commands::cuStreamSynchronize { hStream: stream }, |()| ());
    session.queue_quietly(&commands::cuStreamDestroy_v2 { hStream: stream })?;
    done
}

/// A managed variable of a module, where this side has fresh pages: takes what it was made with.
pub(crate) fn add_variable(
    session: &Session,
    ordinal: CUdevice,
    address: u64,
    bytes: u64,
) -> Result<(), CUresult> {
    let mut mirror = Mirror::at_one_address((address, bytes), ordinal, HostPages::Variable, true);
    mirror.agree_on_zeros();
    let mut mirrors = mirrors();
    mirror.fetch(session, goes_beside(session))?;
    mirrors.push(mirror);
    COUNT.fetch_add(1, Ordering::AcqRel);
    Ok(())
}

/// The device's side at this address, which is no other node's, is about to be freed.
pub(crate) fn forget(device: u64) {
    forget_that(|it| it.device == device);
}

/// A module's variable at this address is gone; another node's may have the same.
pub(crate) fn forget_variable(session: &Session, address: u64) {
    forget_that(|it| it.device == address && session.has(it.ordinal));
}

/// The devices' sides of all mirrors are gone with their session.
pub(crate) fn forget_all() {
    while exist() {
        forget_that(|_| true);
    }
}

fn forget_that(is_it: impl FnMut(&Mirror) -> bool) {
    if !exist() {
        return;
    }
    let mut mirrors = mirrors();
    let Some(index) = mirrors.iter().position(is_it) else { return };
    let gone = mirrors.swap_remove(index);
    COUNT.fetch_sub(1, Ordering::AcqRel);
    match gone.pages {
        HostPages::Program => {}
        // A failure leaves unused pages.
        HostPages::Minted | HostPages::File => _ = set_pages(gone.host, gone.bytes, libc::PROT_NONE),
        HostPages::Variable => variables::unmap(gone.host, gone.bytes),
    }
}

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
fn goes_beside(session: &Session) -> bool {
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
fn look(session: &Session, mirrors: &[Mirror]) -> Vec<Word> {
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

impl Mirror {
    /// Of memory that has one address on both sides. Nothing is agreed on yet.
    fn at_one_address(
        (address, bytes): (u64, u64),
        ordinal: CUdevice,
        pages: HostPages,
        is_managed: bool,
    ) -> Mirror {
        Mirror {
            host: address,
            device: address,
            bytes,
            ordinal,
            is_managed,
            pages,
            is_read_only: false,
            agreed: Vec::new(),
            hashes: Vec::new(),
            number: None,
        }
    }

    /// The host's side, where it can be kept equal while device code runs.
    fn memory(&self) -> Option<Memory> {
        // A driver that is loaded keeps what is mapped by the program in the card's memory.
        if self.is_managed || self.pages == HostPages::File || self.bytes > LIVE_BYTES_MAX {
            return None;
        }
        // SAFETY: the program keeps the memory for as long as it is mapped. What is read-only is
        // not written to.
        unsafe { Memory::new(self.host as *mut u8, self.bytes as usize) }
    }

    /// Copies `range` of the host's side, which other threads may be writing to, into `page`.
    fn read_host(&self, range: &Range<usize>, page: &mut Vec<u8>) {
        page.resize(range.len(), 0);
        // SAFETY: the range lies in memory that the program keeps for as long as it is mapped.
        unsafe {
            let from = (self.host as usize + range.start) as *const u8;
            std::ptr::copy_nonoverlapping(from, page.as_mut_ptr(), range.len());
        }
    }

    fn write_host(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: as for reading; the program has not said that the memory is only to be read.
        unsafe {
            let to = (self.host as usize + offset) as *mut u8;
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }

    fn pages(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let bytes = self.bytes as usize;
        (0..bytes).step_by(MIRROR_PAGE).map(move |start| start..bytes.min(start + MIRROR_PAGE))
    }

    /// Whether the host's side of a page is what both sides had.
    fn is_as_agreed(&self, page: &Range<usize>) -> bool {
        let agreed = &self.agreed[page.clone()];
        // SAFETY: as for reading; a write meanwhile is found at once or by the next look.
        unsafe {
            let host = (self.host as usize + page.start) as *const libc::c_void;
            libc::memcmp(host, agreed.as_ptr().cast(), agreed.len()) == 0
        }
    }

    /// Both sides have zeros.
    fn agree_on_zeros(&mut self) {
        self.agreed = vec![0; self.bytes as usize];
        if self.number.is_none() {
            self.hashes = self.agreed.chunks(MIRROR_PAGE).map(page_hash).collect();
        }
    }

    /// Both sides have this page now.
    fn agree_on(&mut self, page: Range<usize>, bytes: &[u8]) {
        self.hashes[page.start / MIRROR_PAGE] = page_hash(bytes);
        self.agreed[page].copy_from_slice(bytes);
    }

    fn push(&mut self, session: &Session, beside: bool) -> Result<(), CUresult> {
        let mut page = Vec::with_capacity(MIRROR_PAGE);
        let mut run: Range<usize> = 0..0;
        for range in self.pages() {
            if self.is_as_agreed(&range) {
                continue;
            }
            self.read_host(&range, &mut page);
            let changes = changes(&self.agreed[range.clone()], &page);
            // What is sent is read from here: the program may write on.
            self.agree_on(range.clone(), &page);
            for changed in changes {
                let changed = range.start + changed.start..range.start + changed.end;
                if run.end != changed.start || changed.end - run.start > BULK_SIZE_MAX {
                    self.send(session, beside, run)?;
                    run = changed.start..changed.start;
                }
                run.end = changed.end;
            }
        }
        self.send(session, beside, run)
    }

    fn send(&self, session: &Session, beside: bool, range: Range<usize>) -> Result<(), CUresult> {
        if range.is_empty() {
            return Ok(());
        }
        let address = DevicePtr(self.device + range.start as u64);
        let command = commands::MirrorPush { beside, address, bytes: &self.agreed[range] };
        session
            .link
            .queue(session.device(self.ordinal)?.place, commands::MirrorPush::OP, |out| command.encode(out))
    }

    /// Whether something still ran, which may write more.
    fn fetch(&mut self, session: &Session, beside: bool) -> Result<bool, CUresult> {
        let bytes = self.bytes as usize;
        let mut runs = false;
        for start in (0..bytes).step_by(BULK_SIZE_MAX) {
            runs |= self.fetch_part(session, beside, start..bytes.min(start + BULK_SIZE_MAX))?;
        }
        Ok(runs)
    }

    /// Says what both sides agreed on, page by page, and takes the pages that have become
    /// different.
    fn fetch_part(&mut self, session: &Session, beside: bool, part: Range<usize>) -> Result<bool, CUresult> {
        let pages = part.start / MIRROR_PAGE..part.end.div_ceil(MIRROR_PAGE);
        let command = commands::MirrorFetch {
            beside,
            address: DevicePtr(self.device + part.start as u64),
            bytes: part.len() as u64,
            hashes: self.hashes[pages].to_vec(),
        };
        let op = commands::MirrorFetch::OP;
        let answer = session.link.call(session.device(self.ordinal)?.place, op, |out| command.encode(out))?;
        answer.result.ok()?;
        let reply: commands::MirrorFetchReply<'_> = decode(&answer.payload).map_err(|error| {
            crate::say_once!("the node's answer to {} cannot be read: {error}", op.name());
            CUresult::UNKNOWN
        })?;
        let mut rest = reply.bytes;
        for index in reply.pages {
            let start = part.start + index as usize * MIRROR_PAGE;
            let range = start..part.end.min(start.saturating_add(MIRROR_PAGE));
            let (theirs, after) = rest.split_at_checked(range.len()).ok_or(CUresult::UNKNOWN)?;
            if range.is_empty() {
                return Err(CUresult::UNKNOWN);
            }
            self.take(range, theirs);
            rest = after;
        }
        Ok(reply.runs)
    }

    /// Writes what the device has changed of a page, and nothing else.
    fn take(&mut self, range: Range<usize>, theirs: &[u8]) {
        for changed in differences(&self.agreed[range.clone()], theirs) {
            self.write_host(range.start + changed.start, &theirs[changed]);
        }
        self.agree_on(range, theirs);
    }
}

/// A page that has changed in more places than this is sent whole.
const CHANGES_MAX: usize = 16;

/// Where `new` differs from `old`; everywhere, if that is in many places.
fn changes(old: &[u8], new: &[u8]) -> Vec<Range<usize>> {
    if old == new {
        return Vec::new();
    }
    let changes: Vec<_> = differences(old, new).take(CHANGES_MAX + 1).collect();
    if changes.len() > CHANGES_MAX { std::iter::once(0..new.len()).collect() } else { changes }
}

/// The runs of bytes in which two pages of one size differ.
fn differences(old: &[u8], new: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at + old[at..].iter().zip(&new[at..]).position(|(old, new)| old != new)?;
        let same = old[start..].iter().zip(&new[start..]).position(|(old, new)| old == new);
        at = same.map_or(new.len(), |length| start + length);
        Some(start..at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mirror(host: &[u8]) -> Mirror {
        Mirror {
            host: host.as_ptr() as u64,
            device: 0,
            bytes: host.len() as u64,
            ordinal: 0,
            is_managed: false,
            pages: HostPages::Program,
            is_read_only: false,
            agreed: vec![0; host.len()],
            hashes: vec![0; host.len().div_ceil(MIRROR_PAGE)],
            number: None,
        }
    }

    #[test]
    fn differences_are_runs() {
        let runs = |old: &[u8], new: &[u8]| differences(old, new).collect::<Vec<_>>();
        assert_eq!(runs(b"abcdef", b"abcdef"), []);
        assert_eq!(runs(b"abcdef", b"xbcxxf"), [0..1, 3..5]);
        assert_eq!(runs(b"abc", b"xyz").first(), Some(&(0..3)));
        assert_eq!(runs(b"", b""), []);
    }

    #[test]
    fn a_page_that_changed_in_many_places_goes_whole() {
        let old = [0; 64];
        let mut new = [0; 64];
        new.iter_mut().step_by(2).for_each(|byte| *byte = 1);
        assert_eq!(changes(&old, &new).first(), Some(&(0..64)), "and nothing else is left to say");
        assert_eq!(changes(&old, &new[..4]), [0..1, 2..3]);
    }

    #[test]
    fn what_the_program_wrote_meanwhile_stays() {
        let mut host = vec![0_u8; 100];
        let mut mirror = mirror(&host);
        host[7] = 70;
        let mut theirs = vec![0; 100];
        theirs[8] = 80;
        mirror.host = host.as_mut_ptr() as u64;
        mirror.take(0..100, &theirs);
        assert_eq!((host[7], host[8]), (70, 80));
        assert_eq!(
            (mirror.agreed[7], mirror.agreed[8]),
            (0, 80),
            "what the program wrote is still to be sent"
        );
    }
}

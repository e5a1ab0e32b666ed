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

mod changes;
mod coherence;
mod members;

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_cuda::*;
use sluice_wire::live::{LIVE_BYTES_MAX, Memory};
use sluice_wire::{BULK_SIZE_MAX, Command, DevicePtr, Encode, MIRROR_PAGE, commands, decode, page_hash};

use crate::session::Session;

pub(crate) use coherence::{fetch, go_beside, push, push_live, take_words};
pub(crate) use members::{
    add_file, add_variable, allocate, back, forget, forget_all, forget_variable, lend, map_host, take_back,
};

use changes::{changes, differences};

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

#[cfg(test)]
mod tests;

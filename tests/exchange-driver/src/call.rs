//! One call: its arguments as bytes, and the answer that follows from them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use sluice_cuda::{CUdeviceptr, CUstream};

use crate::answer::{Answer, DEFAULT_STREAM, MARK};
use crate::{memory, table};

/// Handles that were introduced or minted, by kind: their numbers, in order.
static HANDLES: Mutex<BTreeMap<&'static str, BTreeMap<usize, u64>>> = Mutex::new(BTreeMap::new());

fn handles() -> MutexGuard<'static, BTreeMap<&'static str, BTreeMap<usize, u64>>> {
    HANDLES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes the next handle of its kind.
pub(crate) fn note(kind: &'static str, handle: usize) {
    static NOTED: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());
    let mut noted = NOTED.lock().unwrap_or_else(PoisonError::into_inner);
    let number = noted.entry(kind).or_default();
    handles().entry(kind).or_default().insert(handle, *number);
    *number += 1;
}

/// The number of a handle.
pub(crate) fn number_of(kind: &str, handle: usize) -> Option<u64> {
    match kind {
        "Stream" if handle <= CUstream::LEGACY.0 => Some(DEFAULT_STREAM),
        _ => handles().get(kind)?.get(&handle).copied(),
    }
}

/// A handle that is no more.
pub(crate) fn forget(kind: &str, handle: usize) {
    if let Some(known) = handles().get_mut(kind) {
        known.remove(&handle);
    }
}

/// How many handles of a kind there are.
pub(crate) fn handles_of(kind: &str) -> usize {
    handles().get(kind).map_or(0, BTreeMap::len)
}

/// The handle with a number.
pub(crate) fn handle_of(kind: &str, number: usize) -> usize {
    let handles = handles();
    let found = handles.get(kind).and_then(|known| known.iter().find(|(_, known)| **known == number as u64));
    *found.unwrap_or_else(|| panic!("no {kind} has the number {number}")).0
}

/// Adds a line to the file of what arrived.
pub(crate) fn log(mut line: String) {
    static FILE: LazyLock<Option<File>> = LazyLock::new(|| {
        File::options().create(true).append(true).open(std::env::var_os("EXCHANGE_LOG")?).ok()
    });
    line.push('\n');
    if let Some(mut file) = FILE.as_ref() {
        file.write_all(line.as_bytes()).expect("the log can be written");
    }
}

pub(crate) struct Call {
    name: &'static str,
    bytes: Vec<u8>,
    /// Handles by value, until it is clear whether the call introduces one.
    seen: Vec<(&'static str, usize, usize)>,
}

impl Call {
    pub(crate) fn new(name: &'static str) -> Call {
        Call { name, bytes: Vec::new(), seen: Vec::new() }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) fn value<T: Copy>(&mut self, value: T) {
        // SAFETY: the value's own bytes; the arguments of driver functions have no padding.
        let bytes = unsafe { std::slice::from_raw_parts((&raw const value).cast::<u8>(), size_of::<T>()) };
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn values_of<T: Copy>(&mut self, values: &[T]) {
        values.iter().for_each(|value| self.value(*value));
    }

    /// # Safety
    /// `values` points to `count` values.
    pub(crate) unsafe fn values<T: Copy>(&mut self, values: *const T, count: u64) {
        for index in 0..count as usize {
            // SAFETY: by this function's contract.
            self.value(unsafe { values.add(index).read() });
        }
    }

    /// A handle: what the caller calls it by is its number.
    pub(crate) fn handle(&mut self, kind: &'static str, handle: usize) {
        self.seen.push((kind, handle, self.bytes.len()));
        self.value(0u64);
    }

    /// # Safety
    /// `values` points to `count` handles.
    #[allow(dead_code, reason = "whether a function takes an array of handles is up to the list")]
    pub(crate) unsafe fn handles(&mut self, kind: &'static str, values: *const usize, count: u64) {
        for index in 0..count as usize {
            // SAFETY: by this function's contract.
            self.handle(kind, unsafe { values.add(index).read() });
        }
    }

    /// Device memory, all of which has to be there.
    pub(crate) fn address(&mut self, address: CUdeviceptr, bytes: u64) {
        if bytes > 0 {
            let last = address.checked_add(bytes - 1);
            let is_there = |address| {
                let (mut base, mut size) = (0, 0);
                let ask = table().cuMemGetAddressRange_v2.expect("the recording driver has it");
                // SAFETY: two places for numbers.
                unsafe { ask(&mut base, &mut size, address) }.is_success()
            };
            if !is_there(address) || !last.is_some_and(is_there) {
                self.end(&format!("{address:#x} with {bytes} bytes is nobody's"));
            }
        }
        self.value(address);
    }

    /// The answer, once all arguments are known. `waits` says whether somebody hears of a failure.
    pub(crate) fn answer(mut self, waits: bool) -> Answer {
        self.number_handles();
        self.log();
        if let ("cuStreamWriteValue64_v2", Some((_, stream, _))) = (self.name, self.seen.first()) {
            memory::request(CUstream(*stream), self.word(8), self.word(16));
        }
        self.said(waits)
    }

    /// The answer to a call that was recorded before.
    pub(crate) fn answer_again(mut self, waits: bool) -> Answer {
        self.number_handles();
        self.said(waits)
    }

    fn number_handles(&mut self) {
        let seen = std::mem::take(&mut self.seen);
        for &(kind, handle, place) in &seen {
            let number = self.introduced(kind, handle);
            let number = number.or_else(|| number_of(kind, handle));
            let Some(number) = number else { self.end(&format!("{handle:#x} is no {kind}")) };
            self.bytes[place..place + 8].copy_from_slice(&number.to_le_bytes());
        }
        self.seen = seen;
    }

    fn said(&self, waits: bool) -> Answer {
        match self.mark() {
            Some(_) => Answer::to("", &[], false),
            None => Answer::to(self.name, &self.bytes, waits),
        }
    }

    /// The number in a call that introduces a handle.
    fn mark(&self) -> Option<u64> {
        let place = match self.name {
            "cuStreamWriteValue32" | "cuEventRecordWithFlags" => 16,
            "cuOccupancyMaxActiveBlocksPerMultiprocessor" => 8,
            _ => return None,
        };
        let word = self.bytes.get(place..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))?;
        (word & 0xffff_0000 == MARK).then(|| u64::from(word - MARK))
    }

    fn introduced(&self, kind: &'static str, handle: usize) -> Option<u64> {
        let number = self.mark()?;
        let wanted = match self.name {
            "cuStreamWriteValue32" => "Stream",
            "cuEventRecordWithFlags" => "Event",
            _ => "Function",
        };
        if kind != wanted {
            return None;
        }
        handles().entry(kind).or_default().insert(handle, number);
        Some(number)
    }

    /// Eight of the arguments' bytes.
    fn word(&self, place: usize) -> u64 {
        self.bytes[place..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    fn log(&self) {
        let mut line = format!("{} ", self.name);
        self.bytes.iter().for_each(|byte| _ = write!(line, "{byte:02x}"));
        log(line);
    }

    /// Something reached the driver that nobody was given.
    fn end(&self, what: &str) -> ! {
        eprintln!("exchange driver: {}: {what}", self.name);
        std::process::abort()
    }
}

impl Answer {
    /// # Safety
    /// `place` is null or a place for a value.
    pub(crate) unsafe fn write<T: Copy>(&mut self, place: *mut T) {
        if !self.result().is_success() {
            return;
        }
        let bytes = self.bytes(size_of::<T>());
        if !place.is_null() {
            // SAFETY: a place of that size, by this function's contract.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place.cast(), bytes.len()) };
        }
    }

    /// # Safety
    /// `place` is a place for a handle.
    pub(crate) unsafe fn mint(&mut self, kind: &'static str, place: *mut usize) {
        if !self.result().is_success() {
            return;
        }
        let mut handles = handles();
        let known = handles.entry(kind).or_default();
        // No two kinds have the same.
        let base = kind.bytes().fold(0_usize, |sum, byte| sum * 31 + usize::from(byte)) << 20;
        let (number, handle) = (known.len() as u64, base + 16 * (1 + known.len()));
        known.insert(handle, number);
        // SAFETY: by this function's contract.
        unsafe { place.write(handle) };
    }
}

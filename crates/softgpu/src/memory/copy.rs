//! Copies and fills of memory as they are done: one shape for all of them, boxes of rows.
//!
//! With unified addressing an address alone says which memory it is in: inside the device address
//! range it must lie in live allocations; outside it is the program's own memory, which the program
//! answers for.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use crate::base::status::{Result, Status};
use crate::device::address_space;
use crate::device::sanitizer;
use crate::memory::allocation;
use crate::memory::tiles::{self, TiledArray};

/// Size of a box: bytes per row, rows per slice, slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) width: u64,
    pub(crate) height: u64,
    pub(crate) depth: u64,
}

/// Where a box lies: its first byte, and the bytes from row to row and from slice to slice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BoxLayout {
    pub(crate) address: u64,
    pub(crate) pitch: u64,
    pub(crate) slice: u64,
}

pub(crate) struct Copy {
    pub(crate) from: Source,
    pub(crate) to: BoxLayout,
    pub(crate) extent: Extent,
}

pub(crate) enum Source {
    Memory(BoxLayout),
    /// What the source held when the copy was submitted; one row.
    Staged(Box<[u8]>),
}

/// Rows of equal elements of 1, 2 or 4 bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fill {
    pub(crate) address: u64,
    pub(crate) pitch: u64,
    pub(crate) value: u32,
    pub(crate) element: u32,
    /// Elements per row.
    pub(crate) width: u64,
    pub(crate) height: u64,
}

impl Extent {
    /// One row.
    pub(crate) fn line(width: u64) -> Self {
        Self { width, height: 1, depth: 1 }
    }

    pub(crate) fn is_empty(self) -> bool {
        self.width == 0 || self.height == 0 || self.depth == 0
    }
}

impl BoxLayout {
    /// One row at `address`.
    pub(crate) fn line(address: u64) -> Self {
        Self { address, pitch: 0, slice: 0 }
    }

    /// Bytes from the first to the last byte of a box here.
    pub(crate) fn span(self, extent: Extent) -> Option<u64> {
        let rows = self.pitch.checked_mul(extent.height - 1)?;
        let slices = self.slice.checked_mul(extent.depth - 1)?;
        rows.checked_add(slices)?.checked_add(extent.width)
    }

    pub(crate) fn check(self, extent: Extent) -> Result<()> {
        self.check_by(allocation::check, extent)
    }

    /// As [`BoxLayout::check`] when the work has come to its turn.
    fn check_at_turn(self, extent: Extent) -> Result<()> {
        self.check_by(allocation::check_at_turn, extent).map_err(|_| Status::ILLEGAL_ADDRESS)
    }

    fn check_by(self, memory: fn(u64, u64) -> Result<()>, extent: Extent) -> Result<()> {
        let pitch_fits = extent.height == 1 || self.pitch >= extent.width;
        let span =
            self.span(extent).filter(|_| pitch_fits && self.address != 0).ok_or(Status::INVALID_VALUE)?;
        if address_space::contains(self.address) {
            return memory(self.address, span).inspect_err(|_| sanitizer::invalid_copy(self.address, span));
        }
        // Memory of the program must not run into the device's addresses.
        let end = self.address.checked_add(span).ok_or(Status::INVALID_VALUE)?;
        if address_space::contains(end - 1) { Err(Status::INVALID_VALUE) } else { Ok(()) }
    }

    /// Whether the driver may use the memory after the call that names it has returned.
    pub(crate) fn is_pinned(self, extent: Extent) -> bool {
        address_space::contains(self.address)
            || self.span(extent).is_some_and(|span| is_registered(self.address, span))
    }
}

/// Refuses an address that must be a device's and is not.
pub(crate) fn require_device(address: u64) -> Result<()> {
    if address_space::contains(address) { Ok(()) } else { Err(Status::INVALID_VALUE) }
}

impl Copy {
    /// Destination, source and size of a copy between places that both are read and written when it
    /// runs.
    pub(crate) fn places(&self) -> Option<(BoxLayout, BoxLayout, Extent)> {
        match self.from {
            Source::Memory(from) => Some((self.to, from, self.extent)),
            Source::Staged(_) => None,
        }
    }

    /// What it holds of memory that the program may have changed since.
    pub(crate) fn staged_bytes(&self) -> usize {
        match &self.from {
            Source::Memory(_) => 0,
            Source::Staged(bytes) => bytes.len(),
        }
    }

    /// Fails where memory is gone that was there when the copy was submitted, or put into a graph.
    pub(crate) fn run(&self) -> Result<()> {
        self.to.check_at_turn(self.extent)?;
        match &self.from {
            Source::Memory(from) => {
                from.check_at_turn(self.extent)?;
                copy_box(self.to, *from, self.extent);
            }
            Source::Staged(bytes) => {
                let from = BoxLayout::line(bytes.as_ptr() as u64);
                copy_box(self.to, from, Extent::line(bytes.len() as u64));
            }
        }
        Ok(())
    }
}

fn copy_box(to: BoxLayout, from: BoxLayout, extent: Extent) {
    let [to_tiles, from_tiles] = [to, from].map(|place| tiles::find(place.address));
    for z in 0..extent.depth {
        for y in 0..extent.height {
            let to = to.address + z * to.slice + y * to.pitch;
            let from = from.address + z * from.slice + y * from.pitch;
            copy_row((to, to_tiles.as_deref()), (from, from_tiles.as_deref()), extent.width);
        }
    }
}

/// Copies a row whose ends may be in arrays without memory here and there: that reads as zero, and
/// takes nothing up.
fn copy_row(to: (u64, Option<&TiledArray>), from: (u64, Option<&TiledArray>), width: u64) {
    let run = |(start, tiles): (u64, Option<&TiledArray>), done: u64| match tiles {
        Some(tiles) => tiles.run(start + done),
        None => (Some(start + done), u64::MAX),
    };
    let mut done = 0;
    while done < width {
        let ((target, room), (source, length)) = (run(to, done), run(from, done));
        let bytes = room.min(length).min(width - done);
        // SAFETY: both boxes were checked just now, and memory is not freed while submitted work
        // may use it. What is mapped to an array stays until the stream has come to its end. The
        // ends may overlap.
        unsafe {
            match (target, source) {
                (Some(to), Some(from)) => {
                    sluice_copy::copy(from as *const u8, to as *mut u8, bytes as usize);
                    sanitizer::copied(to, from, bytes);
                }
                (Some(to), None) => std::ptr::write_bytes(to as *mut u8, 0, bytes as usize),
                (None, _) => {}
            }
        }
        done += bytes;
    }
}

impl Fill {
    pub(crate) fn check(&self) -> Result<()> {
        let element = u64::from(self.element);
        if !matches!(element, 1 | 2 | 4)
            || !self.address.is_multiple_of(element)
            || !self.pitch.is_multiple_of(element)
        {
            return Err(Status::INVALID_VALUE);
        }
        if self.is_empty() {
            return Ok(());
        }
        require_device(self.address)?;
        let (place, extent) = self.place().ok_or(Status::INVALID_VALUE)?;
        place.check(extent)
    }

    /// Where its bytes lie; `None` where there are more than addresses.
    pub(crate) fn place(&self) -> Option<(BoxLayout, Extent)> {
        let width = self.width.checked_mul(self.element.into())?;
        let place = BoxLayout { address: self.address, pitch: self.pitch, slice: 0 };
        Some((place, Extent { width, height: self.height, depth: 1 }))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.width == 0 || self.height == 0
    }

    /// Fails as a copy does.
    pub(crate) fn run(&self) -> Result<()> {
        if let Some((place, extent)) = self.place().filter(|_| !self.is_empty()) {
            place.check_at_turn(extent)?;
        }
        for y in 0..self.height {
            let row = self.address + y * self.pitch;
            sanitizer::written(row, self.width * u64::from(self.element));
            let width = self.width as usize;
            // SAFETY: checked just now, its alignment when it was submitted; memory is not freed
            // while submitted work may use it.
            unsafe {
                match self.element {
                    1 => std::slice::from_raw_parts_mut(row as *mut u8, width).fill(self.value as u8),
                    2 => std::slice::from_raw_parts_mut(row as *mut u16, width).fill(self.value as u16),
                    _ => std::slice::from_raw_parts_mut(row as *mut u32, width).fill(self.value),
                }
            }
        }
        Ok(())
    }
}

/// Memory of the program that `cuMemHostRegister` pinned: start to length and flags.
static REGISTERED: RwLock<BTreeMap<u64, (u64, u32)>> = RwLock::new(BTreeMap::new());

pub(crate) fn register(address: u64, size: u64, flags: u32) -> Result<()> {
    let end = address.checked_add(size).filter(|_| address != 0 && size != 0).ok_or(Status::INVALID_VALUE)?;
    let mut registered = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
    let before = registered.range(..end).next_back();
    if before.is_some_and(|(&start, &(len, _))| start + len > address) {
        return Err(Status::HOST_MEMORY_ALREADY_REGISTERED);
    }
    registered.insert(address, (size, flags));
    Ok(())
}

pub(crate) fn unregister(address: u64) -> Result<()> {
    let mut registered = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
    registered.remove(&address).map(drop).ok_or(Status::HOST_MEMORY_NOT_REGISTERED)
}

/// Start, length and flags of the registration that `address` lies in.
pub(crate) fn registration(address: u64) -> Option<(u64, u64, u32)> {
    let registered = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
    let (&start, &(len, flags)) = registered.range(..=address).next_back()?;
    (address - start < len).then_some((start, len, flags))
}

fn is_registered(address: u64, size: u64) -> bool {
    registration(address).is_some_and(|(start, len, _)| size <= len - (address - start))
}

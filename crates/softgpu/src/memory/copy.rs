//! Copies and fills of memory: one shape for all of them, boxes of rows.
//!
//! With unified addressing an address alone says which memory it is in: inside the device address
//! range it must lie in live allocations; outside it is the program's own memory, which the program
//! answers for.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use sluice_cuda::CUstream;

use crate::base::status::{Result, Status};
use crate::context;
use crate::context::stream::{self, Target};
use crate::device::address_space;
use crate::device::driver;
use crate::device::sanitizer;
use crate::memory::allocation;
use crate::memory::tiles::{self, TiledArray};
use crate::work::op::Op;

/// Copies of pageable memory up to this size are staged, so that the caller may continue at once;
/// CUDA's own limit (CUDA Driver API, API synchronization behavior).
const STAGED_MAX: u64 = 64 << 10;

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
    from: Source,
    to: BoxLayout,
    extent: Extent,
}

enum Source {
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
    fn span(self, extent: Extent) -> Option<u64> {
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

    /// Refuses memory that one of these devices may not use.
    fn check_reach(self, extent: Extent, devices: &[usize]) -> Result<()> {
        if driver()?.devices.len() == 1 || !address_space::contains(self.address) {
            return Ok(());
        }
        let span = self.span(extent).ok_or(Status::INVALID_VALUE)?;
        devices.iter().try_for_each(|&device| allocation::check_reach(self.address, span, device))
    }

    /// Whether the driver may use the memory after the call that names it has returned.
    fn is_pinned(self, extent: Extent) -> bool {
        address_space::contains(self.address)
            || self.span(extent).is_some_and(|span| is_registered(self.address, span))
    }
}

/// Refuses an address that must be a device's and is not.
pub(crate) fn require_device(address: u64) -> Result<()> {
    if address_space::contains(address) { Ok(()) } else { Err(Status::INVALID_VALUE) }
}

/// Waits for its turn in the stream, as a copy of these bytes to the host would, and says whether
/// such a copy would then read them at this address. The caller may read there itself, until the
/// program frees or unmaps them, and do without the copy.
pub fn wait_to_read(stream: CUstream, address: u64, bytes: u64) -> bool {
    // What an array names has no memory of its own.
    let is_memory = address_space::contains(address) && tiles::find(address).is_none();
    let reaches = |device: &usize| allocation::check_reach(address, bytes, *device).is_ok();
    is_memory
        && stream::target(stream).is_ok_and(|target| {
            doers(&target).is_ok_and(|devices| devices.iter().all(reaches)) && target.run(Op::Empty).is_ok()
        })
}

/// The devices that have to reach what a copy or a fill in a stream uses: as NVIDIA's driver has
/// it, also the one whose context is current, if one is.
fn doers(target: &Target) -> Result<[usize; 2]> {
    let current = context::current_or_none()?;
    Ok([target.stream.device, current.map_or(target.stream.device, |context| context.device.ordinal)])
}

/// Copies a box in stream order between places that the stream's device reaches. The call waits
/// where `synchronous`, or where memory of the program is neither pinned nor small enough to stage.
pub(crate) fn submit(
    target: &Target,
    to: BoxLayout,
    from: BoxLayout,
    extent: Extent,
    synchronous: bool,
) -> Result<()> {
    if extent.is_empty() {
        return Ok(());
    }
    for place in [to, from] {
        place.check(extent)?;
        place.check_reach(extent, &doers(target)?)?;
    }
    queue(target, to, from, extent, synchronous)
}

/// Copies a box in stream order between places of two devices.
pub(crate) fn submit_peer(
    target: &Target,
    (to, to_device): (BoxLayout, usize),
    (from, from_device): (BoxLayout, usize),
    extent: Extent,
) -> Result<()> {
    if extent.is_empty() {
        return Ok(());
    }
    for (place, device) in [(to, to_device), (from, from_device)] {
        place.check(extent)?;
        place.check_reach(extent, &[device])?;
    }
    queue(target, to, from, extent, false)
}

fn queue(target: &Target, to: BoxLayout, from: BoxLayout, extent: Extent, synchronous: bool) -> Result<()> {
    let memory = || Op::Copy(Arc::new(Copy { from: Source::Memory(from), to, extent }));
    if target.stream.capture().is_some() && !synchronous {
        return target.submit(memory());
    }
    if synchronous || !to.is_pinned(extent) {
        return target.run(memory());
    }
    if from.is_pinned(extent) {
        return target.submit(memory());
    }
    if extent == Extent::line(extent.width) && extent.width <= STAGED_MAX {
        // SAFETY: the program says that it may be read here (CUDA Driver API, `cuMemcpyHtoDAsync`).
        let bytes = unsafe { std::slice::from_raw_parts(from.address as *const u8, extent.width as usize) };
        return target.submit(Op::Copy(Arc::new(Copy { from: Source::Staged(bytes.into()), to, extent })));
    }
    target.run(memory())
}

/// A copy that a graph keeps, by a device if that is known; both ends are read and written when the
/// graph runs.
pub(crate) fn for_graph(to: BoxLayout, from: BoxLayout, extent: Extent, device: Option<usize>) -> Result<Op> {
    if extent.is_empty() {
        return Err(Status::INVALID_VALUE);
    }
    for place in [to, from] {
        place.check(extent)?;
        place.check_reach(extent, device.as_slice())?;
    }
    Ok(Op::Copy(Arc::new(Copy { from: Source::Memory(from), to, extent })))
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

    /// Refuses memory that one of these devices may not use.
    pub(crate) fn check_reach(&self, devices: &[usize]) -> Result<()> {
        match self.place().filter(|_| !self.is_empty()) {
            Some((place, extent)) => place.check_reach(extent, devices),
            None => Ok(()),
        }
    }

    fn place(&self) -> Option<(BoxLayout, Extent)> {
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

/// Fills memory in stream order.
pub(crate) fn submit_fill(target: &Target, fill: Fill) -> Result<()> {
    fill.check()?;
    fill.check_reach(&doers(target)?)?;
    if fill.is_empty() {
        return Ok(());
    }
    target.submit(Op::Fill(fill))
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

//! Copies and fills as they are submitted: which memory they may use, and whether the call waits.

use std::sync::Arc;

use sluice_cuda::CUstream;

use crate::base::status::{Result, Status};
use crate::context;
use crate::device::{address_space, driver};
use crate::memory::copy::{BoxLayout, Copy, Extent, Fill, Source};
use crate::memory::tiles;
use crate::submit::{self, Target};
use crate::vmm::reach;
use crate::work::op::Op;

/// Copies of pageable memory up to this size are staged, so that the caller may continue at once;
/// CUDA's own limit (CUDA Driver API, API synchronization behavior).
const STAGED_MAX: u64 = 64 << 10;

/// Waits for its turn in the stream, as a copy of these bytes to the host would, and says whether
/// such a copy would then read them at this address. The caller may read there itself, until the
/// program frees or unmaps them, and do without the copy.
pub fn wait_to_read(stream: CUstream, address: u64, bytes: u64) -> bool {
    // What an array names has no memory of its own.
    let is_memory = address_space::contains(address) && tiles::find(address).is_none();
    let reaches = |device: &usize| reach::check(address, bytes, *device).is_ok();
    is_memory
        && submit::target(stream).is_ok_and(|target| {
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
        check_reach(place, extent, &doers(target)?)?;
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
        check_reach(place, extent, &[device])?;
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
        check_reach(place, extent, device.as_slice())?;
    }
    Ok(Op::Copy(Arc::new(Copy { from: Source::Memory(from), to, extent })))
}

/// Refuses memory that one of these devices may not use.
fn check_reach(place: BoxLayout, extent: Extent, devices: &[usize]) -> Result<()> {
    if driver()?.devices.len() == 1 || !address_space::contains(place.address) {
        return Ok(());
    }
    let span = place.span(extent).ok_or(Status::INVALID_VALUE)?;
    devices.iter().try_for_each(|&device| reach::check(place.address, span, device))
}

/// Refuses a fill of memory that one of these devices may not use.
pub(crate) fn check_fill_reach(fill: &Fill, devices: &[usize]) -> Result<()> {
    match fill.place().filter(|_| !fill.is_empty()) {
        Some((place, extent)) => check_reach(place, extent, devices),
        None => Ok(()),
    }
}

/// Fills memory in stream order.
pub(crate) fn submit_fill(target: &Target, fill: Fill) -> Result<()> {
    fill.check()?;
    check_fill_reach(&fill, &doers(target)?)?;
    if fill.is_empty() {
        return Ok(());
    }
    target.submit(Op::Fill(fill))
}

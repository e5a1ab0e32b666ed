//! Sums and extrema of vectors (cuBLAS 2.5): from arguments to launches and results.

use std::ffi::c_void;

use crate::abi::{Element, Outcome, PointerMode, Status};
use crate::driver::Driver;
use crate::handle::{Handle, Use};
use crate::kernels::{self, Launch};
use crate::ptx::reduction::{Reduced, Reduction, THREADS};
use crate::vector::Vector;

/// The elements that a thread takes at least, and the most blocks.
const PER_THREAD_MIN: u64 = 8;
const BLOCKS_MAX: u64 = 256;

/// The bytes in front of the partial results, which hold a result that goes to the host.
const RESULT_BYTES: u64 = 16;

/// Computes a result for one vector, or for two, and puts it where the caller wants it, in the
/// handle's pointer mode. An empty vector gives 0.
///
/// # Safety
/// In host mode `place` is null or that of a result of the type `result`.
pub(crate) unsafe fn run(
    handle: &mut Handle,
    reduced: Reduced,
    count: i64,
    [x, y]: [Vector; 2],
    result: Element,
    place: *mut c_void,
) -> Outcome {
    if place.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    let count = count.max(0) as u64;
    let kernel = Reduction { reduced, element: x.element, result, is_unit: x.step == 1 && y.step == 1 };
    let blocks = count.div_ceil(u64::from(THREADS) * PER_THREAD_MIN).clamp(1, BLOCKS_MAX);
    let scratch = handle.scratch(Use::Partials, RESULT_BYTES + blocks * kernel.partial_bytes())?;
    let (partials, is_host) = (scratch + RESULT_BYTES, handle.pointer_mode == PointerMode::Host);
    let at = |blocks: u64, threads: u32| Launch {
        stream: handle.stream,
        grid: [blocks as u32, 1, 1],
        block: [threads, 1, 1],
    };
    kernels::launch(
        at(blocks, THREADS),
        kernel.name("first"),
        |name| kernel.first_source(name),
        &[count, x.first, x.step as u64, y.first, y.step as u64, partials],
    )?;
    let goes_to = if is_host { scratch } else { place as u64 };
    kernels::launch(
        at(1, 1),
        kernel.name("last"),
        |name| kernel.last_source(name),
        &[blocks, partials, goes_to],
    )?;
    if !is_host {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts_mut(place.cast::<u8>(), result.bytes() as usize) };
    Ok(Driver::get()?.read(scratch, bytes, handle.stream)?)
}

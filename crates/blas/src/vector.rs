//! Operations on the elements of vectors (cuBLAS 2.5): from arguments to launches.

use crate::abi::{Element, Outcome};
use crate::driver::DevicePtr;
use crate::handle::Handle;
use crate::kernels::{self, Launch};
use crate::ptx::vector::{VectorKernel, VectorOperation};
use crate::scalar::Words;

/// Threads of a block, and the most blocks that share a vector.
const BLOCK: u32 = 256;
const BLOCKS_MAX: u64 = 1 << 16;

/// A vector in device memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vector {
    /// The address of its first element, which with a negative step is the last in memory.
    pub(crate) first: DevicePtr,
    pub(crate) element: Element,
    /// Elements from one to the next; may be negative.
    pub(crate) step: i64,
}

impl Vector {
    /// The vector that a caller gives by its lowest address, as BLAS does.
    pub(crate) fn new(address: DevicePtr, element: Element, count: i64, step: i64) -> Vector {
        let back = if step < 0 { (1 - count.max(1)).wrapping_mul(step) } else { 0 };
        let first = address.wrapping_add((back as u64).wrapping_mul(element.bytes()));
        Vector { first, element, step }
    }
}

/// Blocks for each element of a vector.
pub(crate) fn launch_1d(handle: &Handle, count: i64) -> Launch {
    let blocks = (count.max(1) as u64).div_ceil(u64::from(BLOCK)).min(BLOCKS_MAX);
    Launch { stream: handle.stream, grid: [blocks as u32, 1, 1], block: [BLOCK, 1, 1] }
}

/// Runs an operation; `scalars` are `alpha` and `beta` with their types.
pub(crate) fn run(
    handle: &Handle,
    operation: VectorOperation,
    count: i64,
    [x, y]: [Vector; 2],
    scalars: [(Element, Words); 2],
) -> Outcome {
    if count <= 0 {
        return Ok(());
    }
    let kernel = VectorKernel {
        operation,
        x: x.element,
        y: y.element,
        scalars: scalars.map(|(element, _)| element),
        domain: x.element.domain(),
        is_unit: x.step == 1 && y.step == 1,
    };
    let mut arguments = vec![count as u64, x.first, x.step as u64, y.first, y.step as u64];
    arguments.extend(scalars.iter().flat_map(|(_, words)| words));
    kernels::launch(launch_1d(handle, count), kernel.name(), |name| kernel.source(name), &arguments)
}

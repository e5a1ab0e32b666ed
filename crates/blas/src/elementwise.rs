//! Operations on the elements of matrices (cuBLAS 2.8): from arguments to launches.

use crate::abi::{Element, Outcome};
use crate::handle::Handle;
use crate::kernels;
use crate::product::launch_2d;
use crate::ptx::elementwise::{MatrixKernel, MatrixOperand, MatrixOperation};
use crate::scalar::Words;

/// Runs an operation on a matrix of this many rows and columns; `places` are those of A, B and C.
pub(crate) fn run(
    handle: &Handle,
    operation: MatrixOperation,
    element: Element,
    [rows, columns]: [i64; 2],
    places: [MatrixOperand; 3],
    scalars: [Words; 2],
) -> Outcome {
    if rows == 0 || columns == 0 {
        return Ok(());
    }
    let kernel = MatrixKernel { operation, element };
    let mut arguments = vec![rows as u64, columns as u64];
    arguments.extend(places.iter().flatten());
    arguments.extend(scalars.iter().flatten());
    kernels::launch(
        launch_2d(handle, rows, columns, 1),
        kernel.name(),
        |name| kernel.source(name),
        &arguments,
    )
}

//! Products of matrices: from the arguments of the GEMM family to launches.

use std::ffi::c_void;

use crate::abi::{Domain, Element, Operation, Outcome, Status, Triangle};
use crate::driver::DevicePtr;
use crate::handle::Handle;
use crate::kernels::{self, Launch};
use crate::packed;
use crate::ptx::product::{DirectArguments, DirectProduct};
use crate::scalar::Words;

/// The threads of a block: rows and columns of the result.
const BLOCK: [u32; 3] = [32, 8, 1];

/// The largest number of blocks in y and z (CUDA C++ Programming Guide, "Technical
/// Specifications"). Kernels repeat their work for what is beyond.
const GRID_MAX: u64 = 65_535;

/// A matrix in column-major order, or a batch of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix {
    pub(crate) address: DevicePtr,
    pub(crate) element: Element,
    /// Elements from one column to the next.
    pub(crate) leading: i64,
    /// Elements from one matrix of a batch to the next.
    pub(crate) stride: i64,
}

impl Matrix {
    pub(crate) fn new(address: *const c_void, element: Element, leading: i64) -> Matrix {
        Matrix { address: address as DevicePtr, element, leading, stride: 0 }
    }
}

/// `C = alpha op(A) op(B) + beta C` (cuBLAS 2.7.1).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Product {
    pub(crate) m: i64,
    pub(crate) n: i64,
    pub(crate) k: i64,
    pub(crate) operations: [Operation; 2],
    pub(crate) a: Matrix,
    pub(crate) b: Matrix,
    pub(crate) c: Matrix,
    pub(crate) alpha: Words,
    pub(crate) beta: Words,
    pub(crate) scalar: Element,
    pub(crate) domain: Domain,
    pub(crate) batch: i64,
    /// Whether the addresses are those of arrays of pointers in device memory.
    pub(crate) by_pointers: bool,
    /// The only part of C that is read and written.
    pub(crate) triangle: Option<Triangle>,
    /// Whether C is Hermitian, so that its diagonal is real.
    pub(crate) is_hermitian: bool,
}

impl Product {
    /// Checks the sizes as the documentation of `cublas<t>gemm` says.
    pub(crate) fn check(&self) -> Outcome {
        let rows = |operation: Operation, rows: i64, columns: i64| {
            if operation.transposes() { columns } else { rows }
        };
        let a_rows = rows(self.operations[0], self.m, self.k);
        let b_rows = rows(self.operations[1], self.k, self.n);
        let is_valid = self.m >= 0
            && self.n >= 0
            && self.k >= 0
            && self.batch >= 0
            && self.a.leading >= a_rows.max(1)
            && self.b.leading >= b_rows.max(1)
            && self.c.leading >= self.m.max(1);
        if is_valid { Ok(()) } else { Err(Status::INVALID_VALUE) }
    }

    pub(crate) fn run(&self, handle: &mut Handle) -> Outcome {
        self.check()?;
        if self.m == 0 || self.n == 0 || self.batch == 0 {
            return Ok(());
        }
        if packed::gains(self) { packed::run(self, handle) } else { self.direct(handle) }
    }

    /// One launch whose threads have an element of C each.
    fn direct(&self, handle: &Handle) -> Outcome {
        let operand = |matrix: &Matrix, operation: Operation| Strided {
            address: matrix.address,
            steps: if operation.transposes() { [matrix.leading, 1] } else { [1, matrix.leading] },
            conjugates: operation.conjugates() && matrix.element.is_complex(),
        };
        let [a, b, c] = [
            operand(&self.a, self.operations[0]),
            operand(&self.b, self.operations[1]),
            operand(&self.c, Operation::Plain),
        ];
        let kernel = DirectProduct {
            a: self.a.element,
            b: self.b.element,
            c: self.c.element,
            scalar: self.scalar,
            domain: self.domain,
            conjugate_a: a.conjugates,
            conjugate_b: b.conjugates,
            unit_a: a.steps[0] == 1,
            unit_c: c.steps[0] == 1,
            by_pointers: self.by_pointers,
            triangle: self.triangle,
            is_hermitian: self.is_hermitian,
        };
        let arguments = DirectArguments {
            a: a.address,
            b: b.address,
            c: c.address,
            alpha: self.alpha,
            beta: self.beta,
            m: self.m,
            n: self.n,
            k: self.k,
            a_steps: a.steps,
            b_steps: b.steps,
            c_steps: c.steps,
            batch: self.batch,
            batch_steps: [self.a.stride, self.b.stride, self.c.stride],
        };
        launch(handle, &kernel, &arguments)
    }
}

/// A matrix with any distances: elements from one row to the next and from one column to the next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strided {
    pub(crate) address: DevicePtr,
    pub(crate) steps: [i64; 2],
    pub(crate) conjugates: bool,
}

/// A batch of products of strided matrices: how many, and the elements from one to the next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    pub(crate) count: i64,
    pub(crate) steps: [i64; 3],
}

impl Batch {
    pub(crate) const ONE: Batch = Batch { count: 1, steps: [0; 3] };
}

/// What of `C` changes, and that `C` is Hermitian and the scalars are real.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Update {
    pub(crate) triangle: Triangle,
    pub(crate) is_hermitian: bool,
}

/// `C = alpha A B + beta C` of small or thin matrices of one element type, such as vectors; `sizes`
/// are the rows and columns of C and the length of the sums.
pub(crate) fn multiply_strided(
    handle: &Handle,
    element: Element,
    [m, n, k]: [i64; 3],
    a: Strided,
    b: Strided,
    c: Strided,
    [alpha, beta]: [Words; 2],
    update: Option<Update>,
    batch: Batch,
) -> Outcome {
    let is_hermitian = update.is_some_and(|update| update.is_hermitian);
    let kernel = DirectProduct {
        a: element,
        b: element,
        c: element,
        scalar: if is_hermitian { element.component() } else { element },
        domain: element.domain(),
        conjugate_a: a.conjugates && element.is_complex(),
        conjugate_b: b.conjugates && element.is_complex(),
        unit_a: a.steps[0] == 1,
        unit_c: c.steps[0] == 1,
        by_pointers: false,
        triangle: update.map(|update| update.triangle),
        is_hermitian,
    };
    let arguments = DirectArguments {
        a: a.address,
        b: b.address,
        c: c.address,
        alpha,
        beta,
        m,
        n,
        k,
        a_steps: a.steps,
        b_steps: b.steps,
        c_steps: c.steps,
        batch: batch.count,
        batch_steps: batch.steps,
    };
    launch(handle, &kernel, &arguments)
}

fn launch(handle: &Handle, kernel: &DirectProduct, arguments: &DirectArguments) -> Outcome {
    let at = launch_2d(handle, arguments.m, arguments.n, arguments.batch);
    kernels::launch(at, kernel.name(), |name| kernel.source(name), &arguments.words())
}

/// Blocks for each row, column and matrix of a batch.
pub(crate) fn launch_2d(handle: &Handle, rows: i64, columns: i64, batch: i64) -> Launch {
    let blocks =
        |count: i64, size: u32, limit: u64| (count.max(1) as u64).div_ceil(u64::from(size)).min(limit) as u32;
    Launch {
        stream: handle.stream,
        grid: [
            blocks(rows, BLOCK[0], u64::from(u32::MAX >> 1)),
            blocks(columns, BLOCK[1], GRID_MAX),
            blocks(batch, BLOCK[2], GRID_MAX),
        ],
        block: BLOCK,
    }
}

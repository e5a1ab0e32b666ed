//! Triangular systems (cuBLAS 2.7): from arguments to launches.

use crate::abi::{Diagonal, Element, Operation, Outcome, Side, Triangle};
use crate::driver::DevicePtr;
use crate::handle::Handle;
use crate::kernels::{self, Launch};
use crate::product::{Matrix, Product};
use crate::ptx::triangular::Solve;
use crate::scalar::{self, Words};
use crate::vector::launch_1d;

/// Systems of at most this order are solved at once; larger ones block by block, with products
/// between the blocks.
const BLOCK_ORDER: i64 = 64;

/// The most blocks of a launch in z.
const BATCH_MAX: i64 = 65_535;

/// `op(A) X = alpha B`, or `X op(A) = alpha B`, in place of B.
#[derive(Clone, Copy, Debug)]
pub(crate) struct System {
    pub(crate) side: Side,
    pub(crate) triangle: Triangle,
    pub(crate) operation: Operation,
    pub(crate) diagonal: Diagonal,
    /// Rows and columns of B.
    pub(crate) m: i64,
    pub(crate) n: i64,
    pub(crate) element: Element,
    pub(crate) alpha: Words,
    pub(crate) a: DevicePtr,
    pub(crate) a_leading: i64,
    pub(crate) b: DevicePtr,
    pub(crate) b_leading: i64,
    /// The number of systems whose matrices are given by arrays of pointers.
    pub(crate) batch: Option<i64>,
}

impl System {
    fn order(&self) -> i64 {
        if self.side == Side::Left { self.m } else { self.n }
    }

    /// The triangle of `op(A)` that is not zero.
    fn effective(&self) -> Triangle {
        match (self.operation.transposes(), self.triangle) {
            (false, triangle) => triangle,
            (true, Triangle::Lower) => Triangle::Upper,
            (true, Triangle::Upper) => Triangle::Lower,
        }
    }

    pub(crate) fn run(&self, handle: &mut Handle) -> Outcome {
        if self.m == 0 || self.n == 0 || self.batch == Some(0) {
            return Ok(());
        }
        let order = self.order();
        if order <= BLOCK_ORDER || self.batch.is_some() {
            return self.solve(handle, 0, order, self.alpha);
        }
        let blocks: Vec<i64> = (0..order).step_by(BLOCK_ORDER as usize).collect();
        let is_forward = (self.side == Side::Left) == (self.effective() == Triangle::Lower);
        let mut alpha = self.alpha;
        for number in 0..blocks.len() {
            let at = if is_forward { number } else { blocks.len() - 1 - number };
            let (start, end) = (blocks[at], (blocks[at] + BLOCK_ORDER).min(order));
            self.solve(handle, start, end - start, alpha)?;
            // What is left of the right-hand sides takes the solution so far.
            let rest = if is_forward { end..order } else { 0..start };
            if !rest.is_empty() {
                self.update(handle, start..end, rest, alpha)?;
            }
            alpha = scalar::constant(1, self.element);
        }
        Ok(())
    }

    /// The address of an element of A or B.
    fn at(&self, base: DevicePtr, leading: i64, row: i64, column: i64) -> DevicePtr {
        let index = row.wrapping_add(column.wrapping_mul(leading));
        base.wrapping_add((index as u64).wrapping_mul(self.element.bytes()))
    }

    /// The address of the element of `A` that is in this place of `op(A)`.
    fn operated(&self, row: i64, column: i64) -> DevicePtr {
        let (row, column) = if self.operation.transposes() { (column, row) } else { (row, column) };
        self.at(self.a, self.a_leading, row, column)
    }

    /// Solves the systems of a block on the diagonal.
    fn solve(&self, handle: &Handle, start: i64, order: i64, alpha: Words) -> Outcome {
        let is_left = self.side == Side::Left;
        // From the right it is the transposed matrix whose systems are solved, with rows of B.
        let triangle = match (is_left, self.effective()) {
            (true, triangle) => triangle,
            (false, Triangle::Lower) => Triangle::Upper,
            (false, Triangle::Upper) => Triangle::Lower,
        };
        let is_transposed = self.operation.transposes() == is_left;
        let m_steps = if is_transposed { [self.a_leading, 1] } else { [1, self.a_leading] };
        let (x_steps, systems) =
            if is_left { ([1, self.b_leading], self.n) } else { ([self.b_leading, 1], self.m) };
        let b = if is_left { [start, 0] } else { [0, start] };
        let kernel = Solve {
            element: self.element,
            triangle,
            diagonal: self.diagonal,
            conjugates: self.operation.conjugates() && self.element.is_complex(),
            is_unit: x_steps[1] == 1,
            by_pointers: self.batch.is_some(),
        };
        let (a, b) =
            (self.at(self.a, self.a_leading, start, start), self.at(self.b, self.b_leading, b[0], b[1]));
        let batch = self.batch.unwrap_or(1);
        let mut arguments = vec![order as u64, systems as u64];
        arguments.extend([a, m_steps[0] as u64, m_steps[1] as u64]);
        arguments.extend([b, x_steps[0] as u64, x_steps[1] as u64]);
        arguments.push(batch as u64);
        arguments.extend(alpha);
        let flat = launch_1d(handle, systems);
        let grid = [flat.grid[0], 1, batch.min(BATCH_MAX) as u32];
        let block = if systems < 64 { [32, 1, 1] } else { flat.block };
        kernels::launch(Launch { grid, block, ..flat }, kernel.name(), |name| kernel.source(name), &arguments)
    }

    /// Subtracts the product of what is solved with the part of `op(A)` that the rest needs.
    fn update(
        &self,
        handle: &mut Handle,
        solved: std::ops::Range<i64>,
        rest: std::ops::Range<i64>,
        beta: Words,
    ) -> Outcome {
        let (length, left_over) = (solved.end - solved.start, rest.end - rest.start);
        let matrix =
            |address: DevicePtr, leading: i64| Matrix { address, element: self.element, leading, stride: 0 };
        let b = |row: i64, column: i64| matrix(self.at(self.b, self.b_leading, row, column), self.b_leading);
        let is_left = self.side == Side::Left;
        let [row, column] = if is_left { [rest.start, solved.start] } else { [solved.start, rest.start] };
        let factor = matrix(self.operated(row, column), self.a_leading);
        let (m, n, operations, operands, c) = if is_left {
            let operands = [factor, b(solved.start, 0)];
            (left_over, self.n, [self.operation, Operation::Plain], operands, b(rest.start, 0))
        } else {
            let operands = [b(0, solved.start), factor];
            (self.m, left_over, [Operation::Plain, self.operation], operands, b(0, rest.start))
        };
        Product {
            m,
            n,
            k: length,
            operations,
            a: operands[0],
            b: operands[1],
            c,
            alpha: scalar::constant(-1, self.element),
            beta,
            scalar: self.element,
            domain: self.element.domain(),
            batch: 1,
            by_pointers: false,
            triangle: None,
            is_hermitian: false,
        }
        .run(handle)
    }
}

//! Products by way of panels in scratch memory ([`crate::ptx::panels`]): which they are for, and
//! how they are cut where the scratch memory would be too large.

use crate::abi::{Outcome, Real};
use crate::handle::{Handle, Use};
use crate::kernels::{self, Launch};
use crate::product::{Matrix, Product};
use crate::ptx::panels::{COLUMNS, Operand, Pack, PanelProduct, ROWS, UNROLLED};

/// Multiplications below which copies to panels cost more than they save.
const MULTIPLICATIONS_MIN: i128 = 1 << 17;

/// The least rows, columns and length of the sums.
const SIZES_MIN: [i64; 3] = [16, 8, 16];

/// The panels of a launch have at most about this many bytes.
const SCRATCH_BYTES_MAX: i64 = 128 << 20;

/// The most blocks of a launch in y and z.
const BLOCKS_MAX: i64 = 65_535;

/// Whether the product is one that panels are for.
pub(crate) fn gains(product: &Product) -> bool {
    let sizes = [product.m, product.n, product.k];
    let all: i128 = sizes.iter().map(|&size| i128::from(size)).product();
    product.domain.real != Real::I32
        && all >= MULTIPLICATIONS_MIN
        && sizes.iter().zip(SIZES_MIN).all(|(&size, least)| size >= least)
}

/// Panels of one operand.
struct Panels {
    pack: Pack,
    matrix: Matrix,
    transposes: bool,
    /// Rows of A, or columns of B, in a panel.
    width: i64,
    /// Bytes of a panel.
    bytes: i64,
    /// The number of panels of the whole matrix.
    count: i64,
}

/// A part of the product: panels of A and of B, and matrices of the batch.
#[derive(Clone, Copy)]
struct Part {
    first: i64,
    count: i64,
}

impl Part {
    /// Cuts `total` into parts of at most `size`.
    fn all(total: i64, size: i64) -> impl Iterator<Item = Part> {
        let size = size.max(1);
        (0..total).step_by(size as usize).map(move |first| Part { first, count: size.min(total - first) })
    }
}

/// Runs a product. Sizes are above 0.
pub(crate) fn run(product: &Product, handle: &mut Handle) -> Outcome {
    let parts = if product.domain.is_complex { 2 } else { 1 };
    let padded = ((product.k * parts) as u64).next_multiple_of(u64::from(UNROLLED)) as i64;
    let real_bytes = if product.domain.real == Real::F64 { 8 } else { 4 };
    let panels = |operand: Operand| {
        let (matrix, operation, size) = match operand {
            Operand::A => (product.a, product.operations[0], product.m),
            Operand::B => (product.b, product.operations[1], product.n),
        };
        let reals = match operand {
            Operand::A => i64::from(ROWS),
            Operand::B => i64::from(COLUMNS),
        };
        let width = if operand == Operand::A { reals } else { reals / parts };
        // A is by rows of `op(A)`, B by columns of `op(B)`.
        let along_sums = operation.transposes() == (operand == Operand::A);
        Panels {
            pack: Pack {
                operand,
                element: matrix.element,
                domain: product.domain,
                conjugates: operation.conjugates() && matrix.element.is_complex(),
                along_sums,
                by_pointers: product.by_pointers,
            },
            matrix,
            transposes: operation.transposes(),
            width,
            bytes: padded * reals * real_bytes,
            count: (size as u64).div_ceil(width as u64) as i64,
        }
    };
    let (a, b) = (panels(Operand::A), panels(Operand::B));
    let whole = a.bytes.saturating_mul(a.count).saturating_add(b.bytes.saturating_mul(b.count));
    let items = (SCRATCH_BYTES_MAX / whole.max(1)).clamp(1, BLOCKS_MAX);
    let b_panels = (SCRATCH_BYTES_MAX / 2 / b.bytes).clamp(1, b.count);
    let left = SCRATCH_BYTES_MAX - b_panels.saturating_mul(b.bytes).min(SCRATCH_BYTES_MAX / 2);
    let a_panels = (left / a.bytes).clamp(1, a.count.min(BLOCKS_MAX));
    for item in Part::all(product.batch, items) {
        for b_part in Part::all(b.count, b_panels) {
            let a_bytes = a_panels * a.bytes * item.count;
            let scratch =
                handle.scratch(Use::Panels, (a_bytes + b_part.count * b.bytes * item.count) as u64)?;
            let b_scratch = scratch + a_bytes as u64;
            b.pack(handle, product, item, b_part, padded, b_scratch)?;
            for a_part in Part::all(a.count, a_panels) {
                a.pack(handle, product, item, a_part, padded, scratch)?;
                let at = [scratch, b_scratch];
                multiply(handle, product, [&a, &b], [item, a_part, b_part], padded, at)?;
            }
        }
    }
    Ok(())
}

/// A matrix of a batch by its number: what is added to the address of an array of pointers, or
/// elements that are skipped.
fn batch_start(product: &Product, matrix: &Matrix, item: i64) -> (u64, i64) {
    match product.by_pointers {
        true => (matrix.address.wrapping_add(8 * item as u64), 0),
        false => (matrix.address, item.wrapping_mul(matrix.stride)),
    }
}

impl Panels {
    fn pack(
        &self,
        handle: &Handle,
        product: &Product,
        item: Part,
        part: Part,
        padded: i64,
        scratch: u64,
    ) -> Outcome {
        let steps = match (self.pack.operand, self.transposes) {
            (Operand::A, false) | (Operand::B, true) => [1, self.matrix.leading],
            (Operand::A, true) | (Operand::B, false) => [self.matrix.leading, 1],
        };
        let first = part.first * self.width;
        let rows = if self.pack.operand == Operand::A { product.m } else { product.n };
        let (address, skipped) = batch_start(product, &self.matrix, item.first);
        let numbers = [
            skipped.wrapping_add(first.wrapping_mul(steps[0])),
            self.matrix.stride,
            scratch as i64,
            part.count * self.bytes,
            rows - first,
            product.k,
            padded,
            steps[0],
            steps[1],
            part.count,
            item.count,
        ];
        let mut arguments = vec![address];
        arguments.extend(numbers.map(|number| number as u64));
        let groups = (padded as u64).div_ceil(8 * self.pack.steps_of_warp());
        let groups = groups.clamp(1, BLOCKS_MAX as u64) as u32;
        let at = Launch {
            stream: handle.stream,
            grid: [part.count as u32, groups, item.count as u32],
            block: [32, 8, 1],
        };
        kernels::launch(at, self.pack.name(), |name| self.pack.source(name), &arguments)
    }
}

fn multiply(
    handle: &Handle,
    product: &Product,
    [a, b]: [&Panels; 2],
    [item, a_part, b_part]: [Part; 3],
    padded: i64,
    [a_scratch, b_scratch]: [u64; 2],
) -> Outcome {
    let kernel = PanelProduct {
        c: product.c.element,
        scalar: product.scalar,
        domain: product.domain,
        by_pointers: product.by_pointers,
        triangle: product.triangle,
        is_hermitian: product.is_hermitian,
    };
    let (row, column) = (a_part.first * a.width, b_part.first * b.width);
    let (address, skipped) = batch_start(product, &product.c, item.first);
    let skipped = skipped.wrapping_add(row).wrapping_add(column.wrapping_mul(product.c.leading));
    let mut arguments = vec![a_scratch, b_scratch];
    arguments.extend([a_part.count * a.bytes, b_part.count * b.bytes].map(|bytes| bytes as u64));
    arguments.push(address);
    arguments.extend([skipped, product.c.stride, product.c.leading].map(|number| number as u64));
    arguments.extend(product.alpha.iter().chain(&product.beta));
    let sizes = [product.m - row, product.n - column, padded, row, column];
    arguments.extend(sizes.map(|number| number as u64));
    let at = Launch {
        stream: handle.stream,
        grid: [b_part.count as u32, a_part.count as u32, item.count as u32],
        block: [ROWS, 1, 1],
    };
    kernels::launch(at, kernel.name(), |name| kernel.source(name), &arguments)
}

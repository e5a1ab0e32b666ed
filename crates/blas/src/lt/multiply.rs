//! `D = epilogue(alpha op(A) op(B) + beta C)` (cuBLAS 3.4, `cublasLtMatmul`).

use std::ffi::c_void;

use sluice_library_base::driver::{DevicePtr, Stream};

use super::descriptor::{Descriptor, MatmulDescriptor, MatrixLayout, NO_EPILOGUE, TYPE_OF_RESULT, WHOLE};
use crate::abi::{Domain, Element, Operation, Outcome, PointerMode, Real, Status, compute_type};
use crate::handle::{Handle, Use};
use crate::kernels;
use crate::level3::products_are_built;
use crate::product::{Matrix, Product, launch_2d};
use crate::ptx::epilogue::{Activation, Epilogue};
use crate::scalar::{Words, scalar};

/// Bits of `cublasLtEpilogue_t`.
const RELU: u64 = 2;
const BIAS: u64 = 4;
const GELU: u64 = 32;

/// A product as its descriptors say, without addresses. Matrices are by columns: one by rows is its
/// transpose by columns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    sizes: [i64; 3],
    operations: [Operation; 2],
    /// A, B, C, D; A and B are exchanged if D is by rows.
    matrices: [Matrix; 4],
    is_exchanged: bool,
    scalar: Element,
    domain: Domain,
    mode: PointerMode,
    batch: i64,
    activation: Activation,
    bias: Option<Bias>,
}

/// The vector that is added to each column of D.
#[derive(Clone, Copy, Debug)]
struct Bias {
    address: DevicePtr,
    element: Element,
    stride: i64,
}

/// The addresses of a product.
#[derive(Clone, Copy)]
pub(super) struct Addresses {
    pub(super) scalars: [*const c_void; 2],
    pub(super) a: DevicePtr,
    pub(super) b: DevicePtr,
    pub(super) c: DevicePtr,
    pub(super) d: DevicePtr,
}

/// The transpose of what an operation makes of the transpose.
fn flipped(operation: Operation) -> Operation {
    match operation {
        Operation::Plain => Operation::Transpose,
        Operation::Transpose => Operation::Plain,
        Operation::Adjoint => Operation::Conjugate,
        Operation::Conjugate => Operation::Adjoint,
    }
}

impl Plan {
    /// Checks that a product is consistent and built.
    pub(super) fn new(descriptor: &MatmulDescriptor, layouts: [&MatrixLayout; 4]) -> Outcome<Plan> {
        use MatmulDescriptor as M;
        let is_unused = |attribute| descriptor.value(attribute) == 0;
        let others = [M::TRANSPOSE_C, M::A_SCALE, M::B_SCALE, M::C_SCALE, M::D_SCALE, M::D_MAXIMUM];
        let is_plain = others.into_iter().all(is_unused) && descriptor.value(M::FILL_MODE) == WHOLE;
        let mode = PointerMode::parse(descriptor.number(M::POINTER_MODE));
        let (true, Ok(mode)) = (is_plain, mode) else { return Err(Status::NOT_SUPPORTED) };

        let [a, b, c, d] = layouts;
        let elements = [a.element()?, b.element()?, d.element()?];
        let (scalar, domain) = compute_type(descriptor.number(M::COMPUTE), elements[2].is_complex())?;
        let scale = Element::parse(descriptor.number(M::SCALE)).map_err(|_| Status::NOT_SUPPORTED)?;
        if scale != scalar || c.element()? != elements[2] || !products_are_built(elements, scalar) {
            return Err(Status::NOT_SUPPORTED);
        }

        let operations = [
            Operation::parse(descriptor.number(M::TRANSPOSE_A))?,
            Operation::parse(descriptor.number(M::TRANSPOSE_B))?,
        ];
        let [m, n] = d.sizes()?;
        let turned = |layout: &MatrixLayout, operation: Operation| {
            layout.sizes().map(|[rows, columns]| match operation.transposes() {
                true => [columns, rows],
                false => [rows, columns],
            })
        };
        let ([a_rows, k], [b_rows, b_columns]) = (turned(a, operations[0])?, turned(b, operations[1])?);
        if [a_rows, b_rows, b_columns] != [m, k, n] || c.sizes()? != [m, n] {
            return Err(Status::INVALID_VALUE);
        }
        let batch = d.number(MatrixLayout::BATCH);
        if batch < 1 || layouts.iter().any(|layout| layout.number(MatrixLayout::BATCH) != batch) {
            return Err(Status::INVALID_VALUE);
        }
        let by_rows = d.is_by_rows()?;
        if c.is_by_rows()? != by_rows {
            return Err(Status::NOT_SUPPORTED);
        }

        let matrix = |layout: &MatrixLayout| {
            let [rows, columns] = layout.sizes()?;
            let leading = layout.value(MatrixLayout::LEADING) as i64;
            let least = if layout.is_by_rows()? { columns } else { rows };
            if leading < least.max(1) {
                return Err(Status::INVALID_VALUE);
            }
            let stride = layout.value(MatrixLayout::STRIDE) as i64;
            Ok(Matrix { address: 0, element: layout.element()?, leading, stride })
        };
        let by_columns = |layout: &MatrixLayout, operation| {
            Ok::<_, Status>(if layout.is_by_rows()? { flipped(operation) } else { operation })
        };
        let mut plan = Plan {
            sizes: [m, n, k],
            operations: [by_columns(a, operations[0])?, by_columns(b, operations[1])?],
            matrices: [matrix(a)?, matrix(b)?, matrix(c)?, matrix(d)?],
            is_exchanged: by_rows,
            scalar,
            domain,
            mode,
            batch: i64::from(batch),
            activation: Activation::None,
            bias: None,
        };
        plan.set_epilogue(descriptor, elements[2])?;
        if by_rows {
            // The transpose of a product is that of the transposes, in the other order.
            plan.sizes = [n, m, k];
            plan.operations = [flipped(plan.operations[1]), flipped(plan.operations[0])];
            plan.matrices.swap(0, 1);
        }
        Ok(plan)
    }

    fn set_epilogue(&mut self, descriptor: &MatmulDescriptor, result: Element) -> Outcome {
        use MatmulDescriptor as M;
        let epilogue = descriptor.value(M::EPILOGUE);
        if epilogue == NO_EPILOGUE {
            return Ok(());
        }
        self.activation = match epilogue & !BIAS {
            0 => Activation::None,
            RELU => Activation::Relu,
            GELU if self.domain.real == Real::F32 => Activation::Gelu,
            _ => return Err(Status::NOT_SUPPORTED),
        };
        if self.domain.is_complex || self.domain.real == Real::I32 {
            return Err(Status::NOT_SUPPORTED);
        }
        if epilogue & BIAS != 0 {
            let element = match descriptor.number(M::BIAS_TYPE) {
                TYPE_OF_RESULT => result,
                number => Element::parse(number).map_err(|_| Status::NOT_SUPPORTED)?,
            };
            if element.is_complex() || matches!(element, Element::I64 | Element::I32 | Element::I8) {
                return Err(Status::NOT_SUPPORTED);
            }
            let stride = descriptor.value(M::BIAS_STRIDE) as i64;
            self.bias = Some(Bias { address: descriptor.value(M::BIAS), element, stride });
        }
        Ok(())
    }

    /// Runs the product in a stream.
    ///
    /// # Safety
    /// Scalars that are neither null nor in device memory are of the type of the scalars.
    pub(super) unsafe fn run(&self, handle: &mut Handle, addresses: Addresses, stream: Stream) -> Outcome {
        // SAFETY: the caller's promise.
        let [alpha, beta] =
            addresses.scalars.map(|address| unsafe { scalar(address, self.scalar, self.mode) });
        if self.bias.is_some_and(|bias| bias.address == 0) {
            return Err(Status::INVALID_VALUE);
        }
        let before = std::mem::replace(&mut handle.stream, stream);
        let outcome = alpha.and_then(|alpha| self.run_with(handle, addresses, [alpha, beta?]));
        handle.stream = before;
        outcome
    }

    fn run_with(&self, handle: &mut Handle, addresses: Addresses, [alpha, beta]: [Words; 2]) -> Outcome {
        let [m, n, k] = self.sizes;
        let [mut a, mut b, mut c, mut d] = self.matrices;
        [a.address, b.address] =
            if self.is_exchanged { [addresses.b, addresses.a] } else { [addresses.a, addresses.b] };
        (c.address, d.address) = (addresses.c, addresses.d);
        let has_epilogue = self.activation != Activation::None || self.bias.is_some();
        let target = if has_epilogue { self.scratch(handle)? } else { d };
        // What C is matters only with a beta; one in device memory is not known here.
        let needs_c = beta != [0; 3];
        let is_in_place =
            c.address == target.address && (c.leading, c.stride) == (target.leading, target.stride);
        if needs_c && !is_in_place {
            if c.address == 0 {
                return Err(Status::INVALID_VALUE);
            }
            self.convert(handle, [c, target], Activation::None, None)?;
        }
        let product = Product {
            m,
            n,
            k,
            operations: self.operations,
            a,
            b,
            c: target,
            alpha,
            beta,
            scalar: self.scalar,
            domain: self.domain,
            batch: self.batch,
            by_pointers: false,
            triangle: None,
            is_hermitian: false,
        };
        product.run(handle)?;
        if has_epilogue { self.convert(handle, [target, d], self.activation, self.bias) } else { Ok(()) }
    }

    /// A matrix in scratch memory, in the numbers that are computed with, so that an epilogue does
    /// not see rounded ones.
    fn scratch(&self, handle: &mut Handle) -> Outcome<Matrix> {
        let [m, n, _] = self.sizes;
        let element = self.domain.element();
        let size = m.checked_mul(n).ok_or(Status::ALLOC_FAILED)?;
        let bytes = size.checked_mul(self.batch).and_then(|all| all.checked_mul(element.bytes() as i64));
        let address = handle.scratch(Use::Epilogue, bytes.ok_or(Status::ALLOC_FAILED)?.max(1) as u64)?;
        Ok(Matrix { address, element, leading: m.max(1), stride: size })
    }

    fn convert(
        &self,
        handle: &Handle,
        [from, to]: [Matrix; 2],
        activation: Activation,
        bias: Option<Bias>,
    ) -> Outcome {
        let [m, n, _] = self.sizes;
        if m == 0 || n == 0 {
            return Ok(());
        }
        let kernel = Epilogue {
            source: from.element,
            destination: to.element,
            domain: self.domain,
            bias: bias.map(|bias| bias.element),
            activation,
        };
        let (address, stride) = bias.map_or((0, 0), |bias| (bias.address, bias.stride));
        let [by_row, by_column] = if self.is_exchanged { [0, 1] } else { [1, 0] };
        let numbers =
            [m, n, self.batch, from.leading, from.stride, to.leading, to.stride, by_row, by_column, stride];
        let mut arguments = vec![from.address, to.address, address];
        arguments.extend(numbers.map(|number| number as u64));
        let at = launch_2d(handle, m, n, self.batch);
        kernels::launch(at, kernel.name(), |name| kernel.source(name), &arguments)
    }
}

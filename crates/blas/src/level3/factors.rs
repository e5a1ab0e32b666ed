//! LU factors of batches of matrices, and what is solved and inverted with them (cuBLAS 2.8).

use std::ffi::{c_int, c_void};

use super::matrices::check;
use crate::abi::{Diagonal, Element, Operation, Outcome, Side, Status, Triangle};
use crate::entry::entry;
use crate::handle::{self, Handle, HandleId};
use crate::kernels::{self, Launch};
use crate::ptx::factor::{Exchange, Factor, Singular, THREADS};
use crate::scalar::constant;
use crate::triangular::System;
use crate::vector::launch_1d;

/// The most matrices of a launch, which are blocks in y or z.
const BATCH_MAX: i64 = 65_535;

/// A batch of matrices: an array of pointers in device memory, and their leading dimension.
type Batch = (*const c_void, i64);

fn getrf(
    handle: HandleId,
    element: Element,
    order: i64,
    (matrices, leading): Batch,
    [pivots, infos]: [*mut c_int; 2],
    batch: i64,
) -> Status {
    let work = |handle: &mut Handle| {
        check(order >= 0 && leading >= order.max(1) && batch >= 0 && !infos.is_null())?;
        if batch == 0 {
            return Ok(());
        }
        let kernel = Factor { element, has_pivots: !pivots.is_null() };
        let grid = [u32::try_from(batch).map_err(|_| Status::INVALID_VALUE)?, 1, 1];
        let at = Launch { stream: handle.stream, grid, block: [THREADS, 1, 1] };
        let arguments = [order as u64, matrices as u64, leading as u64, pivots as u64, infos as u64];
        kernels::launch(at, kernel.name(), |name| kernel.source(name), &arguments)
    };
    entry(|| handle::with(handle, work))
}

/// Exchanges rows of `columns` columns.
fn exchange(
    handle: &Handle,
    kernel: Exchange,
    [order, columns]: [i64; 2],
    (matrices, leading): Batch,
    pivots: *const c_int,
    batch: i64,
) -> Outcome {
    let flat = launch_1d(handle, columns);
    let at = Launch { grid: [flat.grid[0], batch as u32, 1], ..flat };
    let arguments = [order as u64, columns as u64, matrices as u64, leading as u64, pivots as u64];
    kernels::launch(at, kernel.name(), |name| kernel.source(name), &arguments)
}

/// Solves with a factor, for all matrices of the batch.
fn solve(
    handle: &mut Handle,
    element: Element,
    (triangle, operation): (Triangle, Operation),
    [order, columns]: [i64; 2],
    [a, b]: [Batch; 2],
    batch: i64,
) -> Outcome {
    let diagonal = match triangle {
        Triangle::Lower => Diagonal::Unit,
        Triangle::Upper => Diagonal::NonUnit,
    };
    let system = System {
        side: Side::Left,
        triangle,
        operation,
        diagonal,
        m: order,
        n: columns,
        element,
        alpha: constant(1, element),
        a: a.0 as u64,
        a_leading: a.1,
        b: b.0 as u64,
        b_leading: b.1,
        batch: Some(batch),
    };
    system.run(handle)
}

/// # Safety
/// `info` is null or the place of a number.
unsafe fn getrs(
    handle: HandleId,
    element: Element,
    operation: c_int,
    sizes: [i64; 2],
    [a, b]: [Batch; 2],
    (pivots, info): (*const c_int, *mut c_int),
    batch: i64,
) -> Status {
    let work = |handle: &mut Handle| {
        let operation = Operation::parse(operation)?;
        let [order, columns] = sizes;
        check(order >= 0 && columns >= 0 && !info.is_null() && (0..=BATCH_MAX).contains(&batch))?;
        check(a.1 >= order.max(1) && b.1 >= order.max(1))?;
        // SAFETY: the caller's promise.
        unsafe { info.write(0) };
        if order == 0 || columns == 0 || batch == 0 {
            return Ok(());
        }
        let backward = operation.transposes();
        let kernel = Exchange { element, has_pivots: !pivots.is_null(), backward, of_identity: false };
        let exchange = |handle: &Handle| exchange(handle, kernel, sizes, b, pivots, batch);
        let mut factors = [Triangle::Lower, Triangle::Upper];
        if backward {
            factors.reverse();
        } else {
            exchange(handle)?;
        }
        for triangle in factors {
            solve(handle, element, (triangle, operation), sizes, [a, b], batch)?;
        }
        if backward { exchange(handle) } else { Ok(()) }
    };
    entry(|| handle::with(handle, work))
}

fn getri(
    handle: HandleId,
    element: Element,
    order: i64,
    [a, c]: [Batch; 2],
    (pivots, infos): (*const c_int, *mut c_int),
    batch: i64,
) -> Status {
    let work = |handle: &mut Handle| {
        check(order >= 0 && !infos.is_null() && (0..=BATCH_MAX).contains(&batch))?;
        check(a.1 >= order.max(1) && c.1 >= order.max(1))?;
        if order == 0 || batch == 0 {
            return Ok(());
        }
        let sizes = [order, order];
        let has_pivots = !pivots.is_null();
        let kernel = Exchange { element, has_pivots, backward: false, of_identity: true };
        exchange(handle, kernel, sizes, c, pivots, batch)?;
        for triangle in [Triangle::Lower, Triangle::Upper] {
            solve(handle, element, (triangle, Operation::Plain), sizes, [a, c], batch)?;
        }
        let kernel = Singular { element };
        let at = launch_1d(handle, batch);
        let arguments = [order as u64, a.0 as u64, a.1 as u64, infos as u64, batch as u64];
        kernels::launch(at, kernel.name(), |name| kernel.source(name), &arguments)
    };
    entry(|| handle::with(handle, work))
}

macro_rules! factors {
    ($($element:ident: $getrf:ident $getrs:ident $getri:ident;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $getrf(
            handle: HandleId,
            n: c_int,
            a: *const c_void,
            lda: c_int,
            pivots: *mut c_int,
            infos: *mut c_int,
            batch: c_int,
        ) -> Status {
            let (a, batch) = ((a, i64::from(lda)), i64::from(batch));
            getrf(handle, Element::$element, i64::from(n), a, [pivots, infos], batch)
        }

        #[unsafe(no_mangle)]
        unsafe extern "C" fn $getrs(
            handle: HandleId,
            trans: c_int,
            n: c_int,
            nrhs: c_int,
            a: *const c_void,
            lda: c_int,
            pivots: *const c_int,
            b: *const c_void,
            ldb: c_int,
            info: *mut c_int,
            batch: c_int,
        ) -> Status {
            let (sizes, batch) = ([i64::from(n), i64::from(nrhs)], i64::from(batch));
            let batches = [(a, i64::from(lda)), (b, i64::from(ldb))];
            // SAFETY: `info` is in host memory, as the interface says.
            unsafe {
                getrs(handle, Element::$element, trans, sizes, batches, (pivots, info), batch)
            }
        }

        #[unsafe(no_mangle)]
        extern "C" fn $getri(
            handle: HandleId,
            n: c_int,
            a: *const c_void,
            lda: c_int,
            pivots: *const c_int,
            c: *const c_void,
            ldc: c_int,
            infos: *mut c_int,
            batch: c_int,
        ) -> Status {
            let batches = [(a, i64::from(lda)), (c, i64::from(ldc))];
            let batch = i64::from(batch);
            getri(handle, Element::$element, i64::from(n), batches, (pivots, infos), batch)
        }
    )*};
}

factors! {
    F32: cublasSgetrfBatched cublasSgetrsBatched cublasSgetriBatched;
    F64: cublasDgetrfBatched cublasDgetrsBatched cublasDgetriBatched;
    C32: cublasCgetrfBatched cublasCgetrsBatched cublasCgetriBatched;
    C64: cublasZgetrfBatched cublasZgetrsBatched cublasZgetriBatched;
}

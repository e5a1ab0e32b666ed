//! The C functions (cuBLAS 3.4).

use std::ffi::{c_char, c_float, c_int, c_void};

use sluice_library_base::driver::{DevicePtr, Stream};

use super::descriptor::{self, Descriptor, MatmulDescriptor, MatrixLayout, Preference};
use super::multiply::{Addresses, Plan};
use crate::abi::{Outcome, Status};
use crate::entry::{entry, not_supported};
use crate::handle::{self, HandleId};

/// `cublasLtMatmulAlgo_t`, which says nothing, since there is one algorithm.
type Algorithm = [u64; 8];

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
struct HeuristicResult {
    algorithm: Algorithm,
    workspace: usize,
    state: Status,
    waves: c_float,
    reserved: [c_int; 4],
}

/// Gives the caller a descriptor in memory of this library's.
///
/// # Safety
/// The address is null or that of a place for a pointer.
unsafe fn create<D: Descriptor>(place: *mut *mut D, descriptor: D) -> Status {
    entry(|| {
        if place.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: the caller's promise. `destroy` takes the box back.
        unsafe { place.write(Box::into_raw(Box::new(descriptor))) };
        Ok(())
    })
}

/// Places a descriptor in memory of the caller's.
///
/// # Safety
/// The address is null or that of as many bytes.
unsafe fn place<D: Descriptor>(place: *mut D, bytes: usize, descriptor: D) -> Status {
    entry(|| {
        if place.is_null() || bytes < size_of::<D>() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: the caller's promise.
        unsafe { place.write_unaligned(descriptor) };
        Ok(())
    })
}

/// # Safety
/// The address is null or one from `create` that was not destroyed.
unsafe fn destroy<D: Descriptor>(descriptor: *mut D) -> Status {
    entry(|| {
        if !descriptor.is_null() {
            // SAFETY: the caller's promise.
            drop(unsafe { Box::from_raw(descriptor) });
        }
        Ok(())
    })
}

/// A descriptor of the caller's.
///
/// # Safety
/// The address is null or that of a descriptor.
unsafe fn read<D: Descriptor>(descriptor: *const D) -> Outcome<D> {
    if descriptor.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: the caller's promise; the memory may be of any alignment.
    Ok(unsafe { descriptor.read_unaligned() })
}

/// An attribute that is not built is named.
fn named(name: &'static str, outcome: Outcome) -> Outcome {
    match outcome {
        Err(Status::NOT_SUPPORTED) => Err(not_supported(name)),
        other => other,
    }
}

/// Declares the functions that all descriptors have.
macro_rules! attributes {
    ($($descriptor:ident: $destroy:ident $set:ident $get:ident;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $destroy(descriptor: *mut $descriptor) -> Status {
            // SAFETY: the caller's descriptor.
            unsafe { destroy(descriptor) }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C" fn $set(
            descriptor: *mut $descriptor, attribute: u32, value: *const c_void, bytes: usize,
        ) -> Status {
            // SAFETY: the caller's descriptor and value.
            let set = || unsafe { descriptor::set(descriptor, attribute, value, bytes) };
            entry(|| named(concat!(stringify!($set), " of this attribute"), set()))
        }

        #[unsafe(no_mangle)]
        unsafe extern "C" fn $get(
            descriptor: *const $descriptor, attribute: u32, value: *mut c_void, bytes: usize,
            written: *mut usize,
        ) -> Status {
            // SAFETY: the caller's descriptor and places.
            let get = || unsafe { descriptor::get(descriptor, attribute, value, bytes, written) };
            entry(|| named(concat!(stringify!($get), " of this attribute"), get()))
        }
    )*};
}

attributes! {
    MatrixLayout: cublasLtMatrixLayoutDestroy cublasLtMatrixLayoutSetAttribute
        cublasLtMatrixLayoutGetAttribute;
    MatmulDescriptor: cublasLtMatmulDescDestroy cublasLtMatmulDescSetAttribute
        cublasLtMatmulDescGetAttribute;
    Preference: cublasLtMatmulPreferenceDestroy cublasLtMatmulPreferenceSetAttribute
        cublasLtMatmulPreferenceGetAttribute;
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatrixLayoutCreate(
    layout: *mut *mut MatrixLayout,
    element: c_int,
    rows: u64,
    columns: u64,
    leading: i64,
) -> Status {
    // SAFETY: the caller's place for a layout.
    unsafe { create(layout, MatrixLayout::new(element, rows, columns, leading)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatrixLayoutInit_internal(
    layout: *mut MatrixLayout,
    bytes: usize,
    element: c_int,
    rows: u64,
    columns: u64,
    leading: i64,
) -> Status {
    // SAFETY: the caller's place for a layout.
    unsafe { place(layout, bytes, MatrixLayout::new(element, rows, columns, leading)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmulDescCreate(
    descriptor: *mut *mut MatmulDescriptor,
    compute: c_int,
    scale: c_int,
) -> Status {
    // SAFETY: the caller's place for a descriptor.
    unsafe { create(descriptor, MatmulDescriptor::new(compute, scale)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmulDescInit_internal(
    descriptor: *mut MatmulDescriptor,
    bytes: usize,
    compute: c_int,
    scale: c_int,
) -> Status {
    // SAFETY: the caller's place for a descriptor.
    unsafe { place(descriptor, bytes, MatmulDescriptor::new(compute, scale)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmulPreferenceCreate(preference: *mut *mut Preference) -> Status {
    // SAFETY: the caller's place for a preference.
    unsafe { create(preference, Preference::new()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmulPreferenceInit_internal(
    preference: *mut Preference,
    bytes: usize,
) -> Status {
    // SAFETY: the caller's place for a preference.
    unsafe { place(preference, bytes, Preference::new()) }
}

/// The product that the caller's descriptors say.
///
/// # Safety
/// The addresses are null or those of descriptors.
unsafe fn plan(descriptor: *const MatmulDescriptor, layouts: [*const MatrixLayout; 4]) -> Outcome<Plan> {
    // SAFETY: the caller's promise.
    let (descriptor, [a, b, c, d]) = unsafe { (read(descriptor)?, layouts.map(|layout| read(layout))) };
    Plan::new(&descriptor, [&a?, &b?, &c?, &d?])
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmulAlgoGetHeuristic(
    handle: HandleId,
    descriptor: *const MatmulDescriptor,
    a: *const MatrixLayout,
    b: *const MatrixLayout,
    c: *const MatrixLayout,
    d: *const MatrixLayout,
    _preference: *const Preference,
    wanted: c_int,
    results: *mut HeuristicResult,
    found: *mut c_int,
) -> Status {
    entry(|| {
        handle::with(handle, |_| Ok(()))?;
        if wanted < 1 || results.is_null() || found.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: the caller's place for a number.
        unsafe { found.write(0) };
        // SAFETY: the caller's descriptors.
        let plan = unsafe { plan(descriptor, [a, b, c, d]) };
        named("cublasLtMatmul of these types, orders or epilogues", plan.map(|_| ()))?;
        let result = HeuristicResult {
            algorithm: [0; 8],
            workspace: 0,
            state: Status::SUCCESS,
            waves: 1.0,
            reserved: [0; 4],
        };
        // SAFETY: the caller's places for at least one result and for their number.
        unsafe {
            results.write_unaligned(result);
            found.write(1);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmul(
    handle: HandleId,
    descriptor: *const MatmulDescriptor,
    alpha: *const c_void,
    a: DevicePtr,
    a_layout: *const MatrixLayout,
    b: DevicePtr,
    b_layout: *const MatrixLayout,
    beta: *const c_void,
    c: DevicePtr,
    c_layout: *const MatrixLayout,
    d: DevicePtr,
    d_layout: *const MatrixLayout,
    _algorithm: *const Algorithm,
    _workspace: DevicePtr,
    _workspace_bytes: usize,
    stream: Stream,
) -> Status {
    entry(|| {
        handle::with(handle, |handle| {
            // SAFETY: the caller's descriptors.
            let plan = match unsafe { plan(descriptor, [a_layout, b_layout, c_layout, d_layout]) } {
                Ok(plan) => plan,
                Err(Status::NOT_SUPPORTED) => {
                    return Err(not_supported("cublasLtMatmul of these types, orders or epilogues"));
                }
                Err(error) => return Err(error),
            };
            let addresses = Addresses { scalars: [alpha, beta], a, b, c, d };
            // SAFETY: the caller passes scalars as its descriptor says.
            unsafe { plan.run(handle, addresses, stream) }
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtGetStatusName(status: Status) -> *const c_char {
    status.texts().0.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtGetStatusString(status: Status) -> *const c_char {
    status.texts().1.as_ptr()
}

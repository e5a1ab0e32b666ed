//! The C functions (cuFFT, "API Reference").

use std::ffi::{c_int, c_longlong};

use sluice_library_base::driver::{DevicePtr, Stream};
use sluice_library_base::entry::give;
use sluice_library_base::version::loaded_as;

use crate::abi::{Direction, Form, Outcome, Precision, Status, Type, entry};
use crate::execute::execute;
use crate::plan::{self, Advanced, PlanId, RANK_MAX, Shape};

/// The versions that the library stands for, by the file name that the program knows it by.
const VERSIONS: [(&str, [c_int; 3]); 2] = [(".so.11", [11, 4, 0]), ("", [12, 0, 0])];

fn version() -> [c_int; 3] {
    let name = loaded_as(version as *const () as usize);
    let known = VERSIONS.iter().find(|(part, _)| name.contains(part));
    known.map_or([0; 3], |&(_, version)| version)
}

/// Gives a value to the caller.
///
/// # Safety
/// The address is null or that of a place for a `T`.
unsafe fn answer<T>(place: *mut T, value: T) -> Outcome {
    // SAFETY: the caller's promise.
    if unsafe { give(place, value) } { Ok(()) } else { Err(Status::INVALID_VALUE) }
}

/// Reads the sizes that a caller passes by address.
///
/// # Safety
/// The address is null or that of `rank` numbers.
unsafe fn sizes<T: Copy + Into<i64>>(rank: c_int, place: *const T) -> Outcome<Vec<i64>> {
    let rank = usize::try_from(rank).ok().filter(|rank| (1..=RANK_MAX).contains(rank));
    let rank = rank.ok_or(Status::INVALID_VALUE)?;
    if place.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(place, rank) }.iter().map(|&size| size.into()).collect())
}

/// The side of an advanced layout: the sizes of the array, the stride, the distance.
type Side<T> = (*const T, i64, i64);

/// Reads an advanced layout; without the sizes of either side it is the basic one.
///
/// # Safety
/// The addresses are null or those of `rank` numbers.
unsafe fn advanced<T: Copy + Into<i64>>(rank: c_int, sides: [Side<T>; 2]) -> Outcome<Option<[Advanced; 2]>> {
    if sides.iter().any(|(embedding, ..)| embedding.is_null()) {
        return Ok(None);
    }
    let side = |(embedding, stride, distance): Side<T>| {
        // SAFETY: the caller's promise.
        let embedding = unsafe { sizes(rank, embedding) };
        embedding.map(|embedding| Advanced { embedding, stride, distance })
    };
    let [input, output] = sides;
    Ok(Some([side(input)?, side(output)?]))
}

/// Gives a plan its sizes, and the size of its work area to the caller.
///
/// # Safety
/// The address is null or that of a place for a number.
unsafe fn make(plan: PlanId, place: *mut usize, shape: impl FnOnce() -> Outcome<Shape>) -> Status {
    entry(|| {
        let bytes = plan::with(plan, |plan| plan.make(shape()?))?;
        // SAFETY: the caller's promise; only `cufftPlan` functions pass none.
        unsafe { give(place, bytes as usize) };
        Ok(())
    })
}

/// Makes a plan with its sizes.
///
/// # Safety
/// The address is null or that of a place for a plan.
unsafe fn create(place: *mut PlanId, shape: impl FnOnce() -> Outcome<Shape>) -> Status {
    entry(|| {
        if place.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        let id = plan::create()?;
        if let Err(error) = plan::with(id, |plan| plan.make(shape()?)) {
            plan::destroy(id)?;
            return Err(error);
        }
        // SAFETY: the caller's promise.
        unsafe { answer(place, id) }
    })
}

/// Gives the size of the work area of a plan that is not made.
///
/// # Safety
/// The address is null or that of a place for a number.
unsafe fn estimate(place: *mut usize, shape: impl FnOnce() -> Outcome<Shape>) -> Status {
    entry(|| {
        let bytes: u64 = shape()?.work()?.iter().sum();
        // SAFETY: the caller's promise.
        unsafe { answer(place, bytes as usize) }
    })
}

/// Declares the functions that come for one, two and three dimensions. Those for one have a batch.
macro_rules! by_dimension {
    ($(($plan:ident $make:ident $size:ident $estimate:ident: $($n:ident)*, $($batch:ident)?);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $plan(
            plan: *mut PlanId, $($n: c_int,)* kind: c_int, $($batch: c_int,)?
        ) -> Status {
            // SAFETY: the caller's place for a plan.
            unsafe { create(plan, || basic(kind, &[$($n),*], &[$($batch)?])) }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C" fn $make(
            plan: PlanId, $($n: c_int,)* kind: c_int, $($batch: c_int,)? size: *mut usize,
        ) -> Status {
            // SAFETY: the caller's place for a size.
            unsafe { make(plan, size, || basic(kind, &[$($n),*], &[$($batch)?])) }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C" fn $size(
            _plan: PlanId, $($n: c_int,)* kind: c_int, $($batch: c_int,)? size: *mut usize,
        ) -> Status {
            // SAFETY: the caller's place for a size.
            unsafe { estimate(size, || basic(kind, &[$($n),*], &[$($batch)?])) }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C" fn $estimate(
            $($n: c_int,)* kind: c_int, $($batch: c_int,)? size: *mut usize,
        ) -> Status {
            // SAFETY: the caller's place for a size.
            unsafe { estimate(size, || basic(kind, &[$($n),*], &[$($batch)?])) }
        }
    )*};
}

by_dimension! {
    (cufftPlan1d cufftMakePlan1d cufftGetSize1d cufftEstimate1d: nx, batch);
    (cufftPlan2d cufftMakePlan2d cufftGetSize2d cufftEstimate2d: nx ny,);
    (cufftPlan3d cufftMakePlan3d cufftGetSize3d cufftEstimate3d: nx ny nz,);
}

fn basic(kind: c_int, sizes: &[c_int], batch: &[c_int]) -> Outcome<Shape> {
    let sizes: Vec<i64> = sizes.iter().copied().map(i64::from).collect();
    Shape::new(kind, &sizes, None, batch.first().copied().map_or(1, i64::from))
}

/// Declares the functions with an advanced layout, for sizes of one type.
macro_rules! with_layout {
    ($size:ty: $(plan $plan:ident,)? make $make:ident, size $get:ident, $(estimate $estimate:ident)?) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $plan(
                plan: *mut PlanId, rank: c_int, n: *const $size, inembed: *const $size, istride: $size,
                idist: $size, onembed: *const $size, ostride: $size, odist: $size, kind: c_int, batch: $size,
            ) -> Status {
                let sides = [(inembed, istride.into(), idist.into()), (onembed, ostride.into(), odist.into())];
                // SAFETY: the caller's place for a plan, and its sizes.
                unsafe { create(plan, || many(rank, n, sides, Type::parse(kind), batch.into())) }
            }
        )?

        #[unsafe(no_mangle)]
        unsafe extern "C" fn $make(
            plan: PlanId, rank: c_int, n: *const $size, inembed: *const $size, istride: $size, idist: $size,
            onembed: *const $size, ostride: $size, odist: $size, kind: c_int, batch: $size, size: *mut usize,
        ) -> Status {
            let sides = [(inembed, istride.into(), idist.into()), (onembed, ostride.into(), odist.into())];
            // SAFETY: the caller's place for a size, and its sizes.
            unsafe { make(plan, size, || many(rank, n, sides, Type::parse(kind), batch.into())) }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C" fn $get(
            _plan: PlanId, rank: c_int, n: *const $size, inembed: *const $size, istride: $size, idist: $size,
            onembed: *const $size, ostride: $size, odist: $size, kind: c_int, batch: $size, size: *mut usize,
        ) -> Status {
            let sides = [(inembed, istride.into(), idist.into()), (onembed, ostride.into(), odist.into())];
            // SAFETY: the caller's place for a size, and its sizes.
            unsafe { estimate(size, || many(rank, n, sides, Type::parse(kind), batch.into())) }
        }

        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $estimate(
                rank: c_int, n: *const $size, inembed: *const $size, istride: $size, idist: $size,
                onembed: *const $size, ostride: $size, odist: $size, kind: c_int, batch: $size,
                size: *mut usize,
            ) -> Status {
                let sides = [(inembed, istride.into(), idist.into()), (onembed, ostride.into(), odist.into())];
                // SAFETY: the caller's place for a size, and its sizes.
                unsafe { estimate(size, || many(rank, n, sides, Type::parse(kind), batch.into())) }
            }
        )?
    };
}

with_layout! {
    c_int: plan cufftPlanMany, make cufftMakePlanMany, size cufftGetSizeMany, estimate cufftEstimateMany
}
with_layout! { c_longlong: make cufftMakePlanMany64, size cufftGetSizeMany64, }

/// # Safety
/// The addresses are null or those of `rank` numbers.
unsafe fn many<T: Copy + Into<i64>>(
    rank: c_int,
    n: *const T,
    sides: [Side<T>; 2],
    kind: Outcome<Type>,
    batch: i64,
) -> Outcome<Shape> {
    // SAFETY: the caller's promise.
    let (sizes, layouts) = unsafe { (sizes(rank, n)?, advanced(rank, sides)?) };
    Shape::of_type(kind?, &sizes, layouts, batch)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cufftXtMakePlanMany(
    plan: PlanId,
    rank: c_int,
    n: *const c_longlong,
    inembed: *const c_longlong,
    istride: c_longlong,
    idist: c_longlong,
    input: c_int,
    onembed: *const c_longlong,
    ostride: c_longlong,
    odist: c_longlong,
    output: c_int,
    batch: c_longlong,
    size: *mut usize,
    _execution: c_int,
) -> Status {
    let sides = [(inembed, istride, idist), (onembed, ostride, odist)];
    // SAFETY: the caller's place for a size, and its sizes.
    unsafe { make(plan, size, || many(rank, n, sides, Type::of_elements(input, output), batch)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cufftXtGetSizeMany(
    _plan: PlanId,
    rank: c_int,
    n: *const c_longlong,
    inembed: *const c_longlong,
    istride: c_longlong,
    idist: c_longlong,
    input: c_int,
    onembed: *const c_longlong,
    ostride: c_longlong,
    odist: c_longlong,
    output: c_int,
    batch: c_longlong,
    size: *mut usize,
    _execution: c_int,
) -> Status {
    let sides = [(inembed, istride, idist), (onembed, ostride, odist)];
    // SAFETY: the caller's place for a size, and its sizes.
    unsafe { estimate(size, || many(rank, n, sides, Type::of_elements(input, output), batch)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cufftCreate(place: *mut PlanId) -> Status {
    entry(|| {
        if place.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: the caller's place for a plan.
        unsafe { answer(place, plan::create()?) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cufftDestroy(plan: PlanId) -> Status {
    entry(|| plan::destroy(plan))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cufftGetSize(plan: PlanId, place: *mut usize) -> Status {
    entry(|| {
        let bytes: u64 = plan::with(plan, |plan| {
            let made = plan.made.as_ref().ok_or(Status::INVALID_PLAN)?;
            Ok(made.shape.work()?.iter().sum())
        })?;
        // SAFETY: the caller's place for a size.
        unsafe { answer(place, bytes as usize) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cufftSetAutoAllocation(plan: PlanId, allocates: c_int) -> Status {
    entry(|| plan::with(plan, |plan| plan.set_allocates(allocates != 0)))
}

#[unsafe(no_mangle)]
extern "C" fn cufftSetWorkArea(plan: PlanId, work: DevicePtr) -> Status {
    entry(|| {
        plan::with(plan, |plan| {
            plan.set_work(work);
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cufftSetStream(plan: PlanId, stream: Stream) -> Status {
    entry(|| {
        plan::with(plan, |plan| {
            plan.stream = stream;
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cufftGetVersion(place: *mut c_int) -> Status {
    let [major, minor, patch] = version();
    // SAFETY: the caller's place for a number.
    entry(|| unsafe { answer(place, major * 1000 + minor * 100 + patch) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cufftGetProperty(property: c_int, place: *mut c_int) -> Status {
    entry(|| {
        let part = usize::try_from(property).ok().and_then(|part| version().get(part).copied());
        // SAFETY: the caller's place for a number.
        unsafe { answer(place, part.ok_or(Status::INVALID_VALUE)?) }
    })
}

/// Executes a plan whose type has to be this one.
fn run(
    plan: PlanId,
    kind: Type,
    [input, output]: [DevicePtr; 2],
    direction: impl FnOnce() -> Outcome<Direction>,
) -> Status {
    entry(|| {
        plan::with(plan, |plan| {
            if plan.ready()?.0.shape.kind != kind {
                return Err(Status::INVALID_PLAN);
            }
            execute(plan, input, output, direction()?)
        })
    })
}

/// Declares executions whose direction is that of their type.
macro_rules! real {
    ($($name:ident: $form:ident $precision:ident $direction:ident;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(plan: PlanId, input: DevicePtr, output: DevicePtr) -> Status {
            let kind = Type { form: Form::$form, precision: Precision::$precision };
            run(plan, kind, [input, output], || Ok(Direction::$direction))
        }
    )*};
}

real! {
    cufftExecR2C: RealToComplex Float Forward;
    cufftExecD2Z: RealToComplex Double Forward;
    cufftExecC2R: ComplexToReal Float Inverse;
    cufftExecZ2D: ComplexToReal Double Inverse;
}

#[unsafe(no_mangle)]
extern "C" fn cufftExecC2C(plan: PlanId, input: DevicePtr, output: DevicePtr, direction: c_int) -> Status {
    let kind = Type { form: Form::Complex, precision: Precision::Float };
    run(plan, kind, [input, output], || Direction::parse(direction))
}

#[unsafe(no_mangle)]
extern "C" fn cufftExecZ2Z(plan: PlanId, input: DevicePtr, output: DevicePtr, direction: c_int) -> Status {
    let kind = Type { form: Form::Complex, precision: Precision::Double };
    run(plan, kind, [input, output], || Direction::parse(direction))
}

#[unsafe(no_mangle)]
extern "C" fn cufftXtExec(plan: PlanId, input: DevicePtr, output: DevicePtr, direction: c_int) -> Status {
    entry(|| {
        plan::with(plan, |plan| {
            let direction = match plan.ready()?.0.shape.kind.form {
                Form::Complex => Direction::parse(direction)?,
                Form::RealToComplex => Direction::Forward,
                Form::ComplexToReal => Direction::Inverse,
            };
            execute(plan, input, output, direction)
        })
    })
}

//! The C functions (cuRAND, "Host API").

use std::ffi::{c_float, c_int, c_uint, c_ulonglong};

use sluice_library_base::driver::{DevicePtr, Stream};
use sluice_library_base::entry::give;

use crate::abi::{Kind, Outcome, Precision, Status, entry};
use crate::generator::{self, Generator};
use crate::ptx::distribution::Shape;

/// The version that the library stands for.
const VERSION: [c_int; 3] = [10, 4, 0];

/// `curandGenerator_t`: the number of a generator.
type GeneratorId = usize;

/// Gives a value to the caller.
///
/// # Safety
/// The address is null or that of a place for a `T`.
unsafe fn answer<T>(place: *mut T, value: T) -> Outcome {
    // SAFETY: the caller's promise.
    if unsafe { give(place, value) } { Ok(()) } else { Err(Status::OUT_OF_RANGE) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn curandCreateGenerator(place: *mut GeneratorId, kind: c_int) -> Status {
    entry(|| {
        if place.is_null() {
            return Err(Status::NOT_INITIALIZED);
        }
        // SAFETY: the caller's place for a generator.
        unsafe { answer(place, generator::create(Kind::parse(kind)?)?) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn curandDestroyGenerator(generator: GeneratorId) -> Status {
    entry(|| generator::destroy(generator))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn curandGetVersion(place: *mut c_int) -> Status {
    let [major, minor, patch] = VERSION;
    // SAFETY: the caller's place for a number.
    entry(|| unsafe { answer(place, major * 1000 + minor * 100 + patch) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn curandGetProperty(property: c_int, place: *mut c_int) -> Status {
    entry(|| {
        let part = usize::try_from(property).ok().and_then(|part| VERSION.get(part).copied());
        // SAFETY: the caller's place for a number.
        unsafe { answer(place, part.ok_or(Status::OUT_OF_RANGE)?) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn curandSetStream(generator: GeneratorId, stream: Stream) -> Status {
    change(generator, |generator| {
        generator.set_stream(stream);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn curandSetPseudoRandomGeneratorSeed(generator: GeneratorId, seed: c_ulonglong) -> Status {
    change(generator, |generator| {
        if generator.kind.is_quasi() {
            return Err(Status::TYPE_ERROR);
        }
        generator.set_seed(seed);
        Ok(())
    })
}

/// MT19937 has no offset (cuRAND, `curandSetGeneratorOffset`).
#[unsafe(no_mangle)]
extern "C" fn curandSetGeneratorOffset(generator: GeneratorId, offset: c_ulonglong) -> Status {
    change(generator, |generator| {
        if generator.kind == Kind::Mt19937 {
            return Err(Status::TYPE_ERROR);
        }
        generator.set_offset(offset);
        Ok(())
    })
}

/// All orders that cuRAND has give the results in one order here.
#[unsafe(no_mangle)]
extern "C" fn curandSetGeneratorOrdering(generator: GeneratorId, ordering: c_int) -> Status {
    change(generator, |generator| {
        if generator.kind.takes_ordering(ordering) { Ok(()) } else { Err(Status::OUT_OF_RANGE) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn curandSetQuasiRandomGeneratorDimensions(generator: GeneratorId, dimensions: c_uint) -> Status {
    change(generator, |generator| {
        if !generator.kind.is_quasi() {
            return Err(Status::TYPE_ERROR);
        }
        generator.set_dimensions(dimensions)
    })
}

#[unsafe(no_mangle)]
extern "C" fn curandGenerateSeeds(generator: GeneratorId) -> Status {
    change(generator, Generator::prepare)
}

#[unsafe(no_mangle)]
extern "C" fn curandGenerate(generator: GeneratorId, results: DevicePtr, count: usize) -> Status {
    change(generator, |generator| generator.words(results, count as u64))
}

#[unsafe(no_mangle)]
extern "C" fn curandGenerateUniform(generator: GeneratorId, results: DevicePtr, count: usize) -> Status {
    numbers(generator, results, count, (Shape::Uniform, Precision::Float), [0.0; 2])
}

#[unsafe(no_mangle)]
extern "C" fn curandGenerateUniformDouble(
    generator: GeneratorId,
    results: DevicePtr,
    count: usize,
) -> Status {
    numbers(generator, results, count, (Shape::Uniform, Precision::Double), [0.0; 2])
}

#[unsafe(no_mangle)]
extern "C" fn curandGenerateNormal(
    generator: GeneratorId,
    results: DevicePtr,
    count: usize,
    mean: c_float,
    deviation: c_float,
) -> Status {
    let parameters = [mean, deviation].map(f64::from);
    numbers(generator, results, count, (Shape::Normal, Precision::Float), parameters)
}

#[unsafe(no_mangle)]
extern "C" fn curandGenerateNormalDouble(
    generator: GeneratorId,
    results: DevicePtr,
    count: usize,
    mean: f64,
    deviation: f64,
) -> Status {
    numbers(generator, results, count, (Shape::Normal, Precision::Double), [mean, deviation])
}

#[unsafe(no_mangle)]
extern "C" fn curandGenerateLogNormal(
    generator: GeneratorId,
    results: DevicePtr,
    count: usize,
    mean: c_float,
    deviation: c_float,
) -> Status {
    let parameters = [mean, deviation].map(f64::from);
    numbers(generator, results, count, (Shape::LogNormal, Precision::Float), parameters)
}

#[unsafe(no_mangle)]
extern "C" fn curandGenerateLogNormalDouble(
    generator: GeneratorId,
    results: DevicePtr,
    count: usize,
    mean: f64,
    deviation: f64,
) -> Status {
    numbers(generator, results, count, (Shape::LogNormal, Precision::Double), [mean, deviation])
}

#[unsafe(no_mangle)]
extern "C" fn curandGeneratePoisson(
    generator: GeneratorId,
    results: DevicePtr,
    count: usize,
    mean: f64,
) -> Status {
    change(generator, |generator| generator.poisson(results, count as u64, mean))
}

fn numbers(
    generator: GeneratorId,
    results: DevicePtr,
    count: usize,
    what: (Shape, Precision),
    parameters: [f64; 2],
) -> Status {
    change(generator, |generator| generator.numbers(results, count as u64, what, parameters))
}

fn change(generator: GeneratorId, action: impl FnOnce(&mut Generator) -> Outcome) -> Status {
    entry(|| generator::with(generator, action))
}

//! Functions for handles and their settings (cuBLAS 2.4).

use std::ffi::{c_char, c_int};

use sluice_library_base::version::loaded_as;

use crate::abi::{Outcome, PointerMode, Status};
use crate::driver::{DevicePtr, Stream};
use crate::entry::entry;
use crate::handle::{self, Handle, HandleId};

/// The versions that the library stands for, by the file name that the program knows it by: the
/// first releases with the interface that it builds.
const VERSIONS: [(&str, [c_int; 3]); 2] = [(".so.12", [12, 9, 0]), ("", [13, 0, 0])];

/// Math modes (`cublasMath_t`, cuBLAS 2.2.10). All get full precision.
const MATH_MODES: [c_int; 7] = [0, 1, 2, 3, 4, 8, 16];

/// The least alignment of a workspace (cuBLAS 2.4.8).
const WORKSPACE_ALIGNMENT: u64 = 256;

/// Gives a value to the caller.
///
/// # Safety
/// The address is null or that of a place for a `T`.
unsafe fn give<T>(place: *mut T, value: T) -> Outcome {
    // SAFETY: the caller's promise.
    if unsafe { sluice_library_base::entry::give(place, value) } {
        Ok(())
    } else {
        Err(Status::INVALID_VALUE)
    }
}

fn version() -> [c_int; 3] {
    let name = loaded_as(version as *const () as usize);
    let known = VERSIONS.iter().find(|(part, _)| name.contains(part));
    known.map_or([0; 3], |&(_, version)| version)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasCreate_v2(handle: *mut HandleId) -> Status {
    entry(|| {
        if handle.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: the caller's place for a handle.
        unsafe { give(handle, handle::create()?) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cublasDestroy_v2(handle: HandleId) -> Status {
    entry(|| handle::destroy(handle))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasGetVersion_v2(_handle: HandleId, place: *mut c_int) -> Status {
    let [major, minor, patch] = version();
    // SAFETY: the caller's place for a number.
    entry(|| unsafe { give(place, major * 10_000 + minor * 100 + patch) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasGetProperty(property: c_int, place: *mut c_int) -> Status {
    entry(|| {
        let part = usize::try_from(property).ok().and_then(|part| version().get(part).copied());
        // SAFETY: the caller's place for a number.
        unsafe { give(place, part.ok_or(Status::INVALID_VALUE)?) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cublasGetCudartVersion() -> usize {
    let [major, minor, _] = version();
    (major * 1000 + minor * 10) as usize
}

#[unsafe(no_mangle)]
extern "C" fn cublasGetStatusName(status: Status) -> *const c_char {
    status.texts().0.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn cublasGetStatusString(status: Status) -> *const c_char {
    status.texts().1.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn cublasSetStream_v2(handle: HandleId, stream: Stream) -> Status {
    entry(|| {
        handle::with(handle, |handle| {
            handle.stream = stream;
            // A workspace is for one stream (cuBLAS 2.4.8).
            handle.workspace = None;
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasGetStream_v2(handle: HandleId, place: *mut Stream) -> Status {
    // SAFETY: the caller's place for a stream.
    entry(|| handle::with(handle, |handle| unsafe { give(place, handle.stream) }))
}

#[unsafe(no_mangle)]
extern "C" fn cublasSetWorkspace_v2(handle: HandleId, workspace: DevicePtr, bytes: usize) -> Status {
    entry(|| {
        if !workspace.is_multiple_of(WORKSPACE_ALIGNMENT) {
            return Err(Status::INVALID_VALUE);
        }
        handle::with(handle, |handle| {
            handle.workspace = (workspace != 0).then_some((workspace, bytes as u64));
            Ok(())
        })
    })
}

/// Sets a field of a handle to one of the numbers that it may have.
fn set(handle: HandleId, value: c_int, allowed: &[c_int], field: fn(&mut Handle) -> &mut c_int) -> Status {
    entry(|| {
        if !allowed.contains(&value) {
            return Err(Status::INVALID_VALUE);
        }
        handle::with(handle, |handle| {
            *field(handle) = value;
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cublasSetPointerMode_v2(handle: HandleId, mode: c_int) -> Status {
    entry(|| {
        let mode = PointerMode::parse(mode)?;
        handle::with(handle, |handle| {
            handle.pointer_mode = mode;
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasGetPointerMode_v2(handle: HandleId, place: *mut c_int) -> Status {
    // SAFETY: the caller's place for a number.
    entry(|| handle::with(handle, |handle| unsafe { give(place, handle.pointer_mode as c_int) }))
}

#[unsafe(no_mangle)]
extern "C" fn cublasSetMathMode(handle: HandleId, mode: c_int) -> Status {
    let modes: Vec<c_int> = MATH_MODES.into_iter().chain(MATH_MODES.map(|mode| mode | 16)).collect();
    set(handle, mode, &modes, |handle| &mut handle.math_mode)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasGetMathMode(handle: HandleId, place: *mut c_int) -> Status {
    // SAFETY: the caller's place for a number.
    entry(|| handle::with(handle, |handle| unsafe { give(place, handle.math_mode) }))
}

#[unsafe(no_mangle)]
extern "C" fn cublasSetAtomicsMode(handle: HandleId, mode: c_int) -> Status {
    set(handle, mode, &[0, 1], |handle| &mut handle.atomics_mode)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasGetAtomicsMode(handle: HandleId, place: *mut c_int) -> Status {
    // SAFETY: the caller's place for a number.
    entry(|| handle::with(handle, |handle| unsafe { give(place, handle.atomics_mode) }))
}

#[unsafe(no_mangle)]
extern "C" fn cublasSetSmCountTarget(handle: HandleId, count: c_int) -> Status {
    entry(|| {
        if count < 0 {
            return Err(Status::INVALID_VALUE);
        }
        handle::with(handle, |handle| {
            handle.sm_count_target = count;
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasGetSmCountTarget(handle: HandleId, place: *mut c_int) -> Status {
    // SAFETY: the caller's place for a number.
    entry(|| handle::with(handle, |handle| unsafe { give(place, handle.sm_count_target) }))
}

/// Declares a pair of functions for a setting of emulated products (cuBLAS 2.4.26 to 2.4.35).
macro_rules! emulation {
    ($($set:ident $get:ident: $place:literal;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $set(handle: HandleId, value: c_int) -> Status {
            entry(|| {
                handle::with(handle, |handle| {
                    handle.emulation[$place] = value;
                    Ok(())
                })
            })
        }

        #[unsafe(no_mangle)]
        unsafe extern "C" fn $get(handle: HandleId, place: *mut c_int) -> Status {
            // SAFETY: the caller's place for a number.
            entry(|| handle::with(handle, |handle| unsafe { give(place, handle.emulation[$place]) }))
        }
    )*};
}

emulation! {
    cublasSetEmulationStrategy cublasGetEmulationStrategy: 0;
    cublasSetEmulationSpecialValuesSupport cublasGetEmulationSpecialValuesSupport: 1;
    cublasSetFixedPointEmulationMantissaControl cublasGetFixedPointEmulationMantissaControl: 2;
    cublasSetFixedPointEmulationMaxMantissaBitCount cublasGetFixedPointEmulationMaxMantissaBitCount: 3;
    cublasSetFixedPointEmulationMantissaBitOffset cublasGetFixedPointEmulationMantissaBitOffset: 4;
}

/// A function that the documentation does not mention: cuSOLVER says by it which environment
/// variables count. This library reads none, so there is nothing to set.
#[unsafe(no_mangle)]
extern "C" fn cublasSetEnvironmentMode(handle: HandleId, _mode: c_int) -> Status {
    entry(|| handle::with(handle, |_| Ok(())))
}

/// A handle of cuBLASLt, for which a handle of cuBLAS may be used as well (cuBLAS 3.3).
#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtCreate(handle: *mut HandleId) -> Status {
    // SAFETY: the caller's place for a handle.
    unsafe { cublasCreate_v2(handle) }
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtDestroy(handle: HandleId) -> Status {
    cublasDestroy_v2(handle)
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtGetVersion() -> usize {
    let [major, minor, patch] = version();
    (major * 10_000 + minor * 100 + patch) as usize
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtGetCudartVersion() -> usize {
    cublasGetCudartVersion()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtGetProperty(property: c_int, place: *mut c_int) -> Status {
    // SAFETY: the caller's place for a number.
    unsafe { cublasGetProperty(property, place) }
}

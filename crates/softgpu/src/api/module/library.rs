//! Libraries and their kernels.

use std::ffi::{c_char, c_void};

use sluice_cuda::{CUdeviceptr, CUjit_option, CUkernel, CUlibrary, CUlibraryOption, CUmodule, CUresult};

use super::{code_in_file, name_at};
use crate::base::status::{Status, call, put, put_optional, require, require_one};
use crate::compiler::jit_options::Logs;
use crate::compiler::load;
use crate::context::current;
use crate::device::driver;
use crate::module::library::Library;

pub(crate) unsafe extern "C" fn cuLibraryLoadData(
    place: *mut CUlibrary,
    image: *const c_void,
    options: *mut CUjit_option,
    values: *mut *mut c_void,
    count: u32,
    _library_options: *mut CUlibraryOption,
    _library_values: *mut *mut c_void,
    _library_count: u32,
) -> CUresult {
    call(|| {
        driver()?;
        require(place)?;
        // SAFETY: arrays and image by contract.
        let code = unsafe { load::code_at(image, &Logs::find(count, options, values)) }?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUlibrary(Library::create(code).handle)) }
    })
}

pub(crate) unsafe extern "C" fn cuLibraryLoadFromFile(
    place: *mut CUlibrary,
    name: *const c_char,
    options: *mut CUjit_option,
    values: *mut *mut c_void,
    count: u32,
    _library_options: *mut CUlibraryOption,
    _library_values: *mut *mut c_void,
    _library_count: u32,
) -> CUresult {
    call(|| {
        driver()?;
        require(place)?;
        // SAFETY: a C string and arrays by contract.
        let code = unsafe { code_in_file(name, &Logs::find(count, options, values)) }?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUlibrary(Library::create(code).handle)) }
    })
}

pub(crate) unsafe extern "C" fn cuLibraryUnload(library: CUlibrary) -> CUresult {
    call(|| {
        driver()?;
        Library::get(library)?.unload();
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn cuLibraryGetKernel(
    place: *mut CUkernel,
    library: CUlibrary,
    name: *const c_char,
) -> CUresult {
    call(|| {
        driver()?;
        require(place)?;
        // SAFETY: a C string by contract.
        let kernel = Library::get(library)?.kernel(unsafe { name_at(name) }?)?;
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUkernel(kernel.handle)) }
    })
}

pub(crate) unsafe extern "C" fn cuLibraryGetKernelCount(place: *mut u32, library: CUlibrary) -> CUresult {
    call(|| {
        driver()?;
        let count = Library::get(library)?.code.entry_names().len();
        // SAFETY: an output argument by contract.
        unsafe { put(place, count as u32) }
    })
}

pub(crate) unsafe extern "C" fn cuLibraryEnumerateKernels(
    places: *mut CUkernel,
    count: u32,
    library: CUlibrary,
) -> CUresult {
    call(|| {
        driver()?;
        require(places)?;
        let library = Library::get(library)?;
        for (index, name) in library.code.entry_names().into_iter().take(count as usize).enumerate() {
            // SAFETY: an array of `count` elements by contract.
            unsafe { put(places.add(index), CUkernel(library.kernel(name)?.handle)) }?;
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn cuLibraryGetModule(place: *mut CUmodule, library: CUlibrary) -> CUresult {
    call(|| {
        let context = current()?;
        let module = Library::get(library)?.module(&context);
        // SAFETY: an output argument by contract.
        unsafe { put(place, CUmodule(module.handle)) }
    })
}

pub(crate) unsafe extern "C" fn cuLibraryGetGlobal(
    place: *mut CUdeviceptr,
    size: *mut usize,
    library: CUlibrary,
    name: *const c_char,
) -> CUresult {
    call(|| {
        require_one(place, size)?;
        let context = current()?;
        // SAFETY: a C string by contract.
        let placed = Library::get(library)?.module(&context).variable(unsafe { name_at(name) }?)?;
        // SAFETY: output arguments by contract.
        unsafe { put_optional(place, placed.address) };
        // SAFETY: as above.
        unsafe { put_optional(size, placed.bytes as usize) };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn cuLibraryGetManaged(
    place: *mut CUdeviceptr,
    size: *mut usize,
    library: CUlibrary,
    name: *const c_char,
) -> CUresult {
    call(|| {
        require_one(place, size)?;
        let context = current()?;
        // SAFETY: a C string by contract.
        let placed = Library::get(library)?.module(&context).variable(unsafe { name_at(name) }?)?;
        if !placed.is_managed {
            return Err(Status::NOT_FOUND);
        }
        // SAFETY: output arguments by contract.
        unsafe { put_optional(place, placed.address) };
        // SAFETY: as above.
        unsafe { put_optional(size, placed.bytes as usize) };
        Ok(())
    })
}

//! Modules and their functions: loading images, and what clients need to know to launch.

pub(crate) mod builds;
pub(crate) mod code_cache;
pub(crate) mod disk_cache;
pub(crate) mod images;
use std::collections::VecDeque;
use std::ffi::{CStr, CString, c_void};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use foldhash::HashMap;
use sluice_cuda::{
    CUdeviceptr, CUfunction, CUfunction_attribute, CUjit_option, CUmodule, CUpointer_attribute, CUresult,
    DriverTable,
};
use sluice_image::pointer::Linked;
use sluice_image::{FatBinary, Image};
use sluice_wire::{
    FunctionId, FunctionInfo, JitOption, ModuleId, NamedFunction, Parameter, SurfRefId, TexRefId,
};

use crate::memory::host_memory::HostCharge;
use crate::session::checks::{self, PARAMETER_BYTES_MAX};

/// Most parameters of a kernel; CUDA's limit is 32,764 bytes of them.
const PARAMETERS_MAX: usize = 8192;
/// Function attributes that are asked for: all that CUDA 13 names (CUDA Driver API,
/// `CUfunction_attribute`).
const ATTRIBUTES: std::ops::Range<u32> = 0..16;
/// Those of them that every driver has of every function.
const OF_ALL: std::ops::Range<u32> = 0..10;

/// Failed loads that are remembered.
const FAILED_MAX: usize = 64;

/// What belongs to which module.
#[derive(Default)]
pub(crate) struct Modules {
    functions: Mutex<HashMap<ModuleId, Vec<(FunctionId, CUfunction)>>>,
    /// What the driver keeps of each image.
    kept: Mutex<HashMap<ModuleId, HostCharge>>,
    launches: RwLock<HashMap<FunctionId, Launches>>,
    /// Bytes of each function's parameters, by the driver's handle.
    by_handle: RwLock<HashMap<usize, usize>>,
    /// Loads without an answer, and why they failed; the latest.
    failed: Mutex<VecDeque<(ModuleId, CUresult)>>,
    /// What each module's texture and surface references are known by.
    references: Mutex<HashMap<ModuleId, References>>,
}

/// What is known of a function's launches.
#[derive(Debug)]
struct Launches {
    /// Of its parameters.
    bytes: usize,
    /// There was one.
    have_begun: AtomicBool,
}

/// The texture and surface references of a module.
#[derive(Debug, Default)]
pub(crate) struct References {
    pub(crate) textures: Vec<TexRefId>,
    pub(crate) surfaces: Vec<SurfRefId>,
}

impl Modules {
    /// Notes a function of a module.
    pub(crate) fn add(
        &self,
        module: ModuleId,
        (function, handle): (FunctionId, CUfunction),
        info: &FunctionInfo,
    ) {
        let end = |p: &Parameter| p.offset as usize + p.size as usize;
        let bytes = info.parameters.iter().map(end).max().unwrap_or(0);
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        functions.entry(module).or_default().push((function, handle));
        let launches = Launches { bytes, have_begun: AtomicBool::new(false) };
        self.launches.write().unwrap_or_else(PoisonError::into_inner).insert(function, launches);
        self.by_handle.write().unwrap_or_else(PoisonError::into_inner).insert(handle.0, bytes);
    }

    /// Bytes of the parameters that a function has. A node of a graph may name one that is gone,
    /// which no driver may be asked about: then as many as any has.
    pub(crate) fn parameter_bytes(&self, handle: CUfunction) -> usize {
        let sizes = self.by_handle.read().unwrap_or_else(PoisonError::into_inner);
        sizes.get(&handle.0).copied().unwrap_or(PARAMETER_BYTES_MAX)
    }

    /// A load without an answer has failed.
    pub(crate) fn failed(&self, module: ModuleId, error: CUresult) {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if failed.len() >= FAILED_MAX {
            failed.pop_front();
        }
        failed.push_back((module, error));
    }

    /// Why a module is not there, if it failed so.
    pub(crate) fn failure(&self, module: ModuleId) -> Option<CUresult> {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.iter().find(|(of, _)| *of == module).map(|(_, error)| *error)
    }

    /// A module was loaded, for which the driver keeps this memory.
    pub(crate) fn keep(&self, module: ModuleId, held: HostCharge) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).insert(module, held);
    }

    /// A module is gone from the driver.
    pub(crate) fn unload(&self, module: ModuleId) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).remove(&module);
    }

    /// Forgets a module; its functions, which die with it, are returned.
    pub(crate) fn remove(&self, module: ModuleId) -> Vec<FunctionId> {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = functions.remove(&module).unwrap_or_default();
        let mut launches = self.launches.write().unwrap_or_else(PoisonError::into_inner);
        let mut by_handle = self.by_handle.write().unwrap_or_else(PoisonError::into_inner);
        for (function, handle) in &gone {
            launches.remove(function);
            by_handle.remove(&handle.0);
        }
        gone.into_iter().map(|(function, _)| function).collect()
    }

    /// Notes a reference of a module.
    pub(crate) fn add_reference(&self, module: ModuleId, note: impl FnOnce(&mut References)) {
        note(self.references().entry(module).or_default());
    }

    /// Forgets the references of a module, which die with it.
    pub(crate) fn remove_references(&self, module: ModuleId) -> References {
        self.references().remove(&module).unwrap_or_default()
    }

    /// Whether a texture reference is some module's, and no program's own.
    pub(crate) fn has_texture(&self, id: TexRefId) -> bool {
        self.references().values().any(|references| references.textures.contains(&id))
    }

    fn references(&self) -> MutexGuard<'_, HashMap<ModuleId, References>> {
        self.references.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a launch, which is about to be made, brings all parameters that the function reads,
    /// and no more than any could.
    pub(crate) fn check_parameters(&self, function: FunctionId, bytes: usize) -> Result<(), CUresult> {
        let launches = self.launches.read().unwrap_or_else(PoisonError::into_inner);
        let of_it = launches.get(&function).ok_or(CUresult::INVALID_HANDLE)?;
        if !(of_it.bytes..=PARAMETER_BYTES_MAX.max(of_it.bytes)).contains(&bytes) {
            return Err(CUresult::INVALID_VALUE);
        }
        // Written once: other threads read it for each launch.
        if !of_it.have_begun.load(Relaxed) {
            of_it.have_begun.store(true, Relaxed);
        }
        Ok(())
    }

    /// Whether a launch of the function was made before, or is being made.
    pub(crate) fn has_launched(&self, function: FunctionId) -> bool {
        let launches = self.launches.read().unwrap_or_else(PoisonError::into_inner);
        launches.get(&function).is_some_and(|launches| launches.have_begun.load(Relaxed))
    }
}

/// Bytes of what a driver says while it compiles, at most.
const LOG_BYTES: usize = 16 << 10;

/// Loads an image, and says what its compiler said; `image` ends with a NUL, as PTX has to. The
/// driver gets no length: it believes what the image says of itself, and one form of image is
/// nothing but addresses. So only what is known, and whole, gets there, and that form is made here:
/// several containers, one behind the other, are the parts of one program
/// ([`FatBinary::parse_all`]).
pub(crate) fn load(
    table: &DriverTable,
    image: &[u8],
    options: &[JitOption],
) -> (Result<CUmodule, CUresult>, Vec<u8>) {
    let mut logs = Logs { info: vec![0; LOG_BYTES], error: vec![0; LOG_BYTES] };
    let loaded = load_logged(table, image, options, &mut logs);
    let log = if loaded.is_ok() { logs.info } else { logs.error };
    (loaded, log.into_iter().take_while(|byte| *byte != 0).collect())
}

/// What a compiler writes to, each with a NUL behind it.
struct Logs {
    info: Vec<u8>,
    error: Vec<u8>,
}

fn load_logged(
    table: &DriverTable,
    image: &[u8],
    options: &[JitOption],
    logs: &mut Logs,
) -> Result<CUmodule, CUresult> {
    use CUjit_option as O;
    let load = table.cuModuleLoadDataEx.ok_or(CUresult::NOT_SUPPORTED)?;
    checks::jit_options(options)?;
    let linked = match Image::parse(image).map_err(|_| CUresult::INVALID_IMAGE)? {
        Image::FatBinary(_) => {
            let parts = FatBinary::parse_all(image).map_err(|_| CUresult::INVALID_IMAGE)?;
            (parts.len() > 1).then(|| Linked::new(&parts))
        }
        _ => None,
    };
    let start = linked.as_ref().map_or(image.as_ptr().cast(), Linked::image);
    let number = std::ptr::without_provenance_mut::<c_void>;
    let (mut names, mut values): (Vec<_>, Vec<_>) = [
        (O::INFO_LOG_BUFFER, logs.info.as_mut_ptr().cast()),
        (O::INFO_LOG_BUFFER_SIZE_BYTES, number(LOG_BYTES)),
        (O::ERROR_LOG_BUFFER, logs.error.as_mut_ptr().cast()),
        (O::ERROR_LOG_BUFFER_SIZE_BYTES, number(LOG_BYTES)),
    ]
    .into_iter()
    .chain(options.iter().map(|option| (option.option, number(option.value as usize))))
    .unzip();
    let mut module = CUmodule::NULL;
    // SAFETY: the image, or each of its parts, is whole and ends with a NUL, and it outlives the
    // call, as does the record that names the parts; there are as many values as options, which are
    // numbers and two buffers of that size; the driver writes one handle.
    unsafe { load(&mut module, start, names.len() as u32, names.as_mut_ptr(), values.as_mut_ptr()) }.ok()?;
    Ok(module)
}

/// A function of a module, and what launching it takes.
pub(crate) fn function(
    table: &DriverTable,
    module: CUmodule,
    name: &CStr,
) -> Result<(CUfunction, FunctionInfo), CUresult> {
    let get = table.cuModuleGetFunction.ok_or(CUresult::NOT_SUPPORTED)?;
    let mut function = CUfunction::NULL;
    // SAFETY: the module is live, the name is NUL-terminated, and the driver writes one handle.
    unsafe { get(&mut function, module, name.as_ptr()) }.ok()?;
    let info =
        FunctionInfo { parameters: parameters(table, function)?, attributes: attributes(table, function) };
    Ok((function, info))
}

/// Most functions of a module whose names are said.
const NAMES_MAX: u32 = 1 << 16;
/// Most functions of a module whose names are sent when it is loaded, and most bytes of these.
const TOLD_MAX: u32 = 64;
const TOLD_BYTES_MAX: usize = 16 << 10;

/// The names of a module's functions, in the driver's order.
pub(crate) fn names(table: &DriverTable, module: CUmodule) -> Result<Vec<String>, CUresult> {
    let count = count(table, module)?.min(NAMES_MAX);
    handles(table, module, count)?.into_iter().map(|function| name(table, function)).collect()
}

/// What is sent of a module when it is loaded: its function, if it has no other, or the names of
/// some. A driver loads, and the software GPU compiles, a function when it is asked about it: the
/// only one of a module will be used. What is not sent here is asked for by name.
pub(crate) fn told(table: &DriverTable, module: CUmodule) -> (Vec<NamedFunction>, Vec<String>) {
    // An enumerated function may not be loaded yet (CUDA Driver API, `cuModuleEnumerateFunctions`),
    // and NVIDIA's driver answers `FUNCTION_NOT_LOADED` for some of its attributes until it is got
    // by name.
    let only = |enumerated| {
        let (name, attributes) = (name(table, enumerated)?, attributes(table, enumerated));
        let info = if { OF_ALL }.all(|wanted| attributes.iter().any(|(attribute, _)| attribute.0 == wanted)) {
            FunctionInfo { parameters: parameters(table, enumerated)?, attributes }
        } else {
            let name = CString::new(name.as_str()).map_err(|_| CUresult::INVALID_IMAGE)?;
            function(table, module, &name)?.1
        };
        Ok(NamedFunction { name, info })
    };
    let told = || match count(table, module)? {
        count @ 1 => {
            let functions: Result<Vec<_>, CUresult> =
                handles(table, module, count)?.into_iter().map(only).collect();
            Ok((functions?, Vec::new()))
        }
        2..=TOLD_MAX => Ok((Vec::new(), names(table, module)?)),
        _ => Ok((Vec::new(), Vec::new())),
    };
    let (functions, names) = told().unwrap_or_else(|_: CUresult| (Vec::new(), Vec::new()));
    let bytes: usize = names.iter().map(String::len).sum();
    (functions, if bytes <= TOLD_BYTES_MAX { names } else { Vec::new() })
}

fn count(table: &DriverTable, module: CUmodule) -> Result<u32, CUresult> {
    let count = table.cuModuleGetFunctionCount.ok_or(CUresult::NOT_SUPPORTED)?;
    let mut number = 0;
    // SAFETY: the module is live, and the driver writes a number to a local.
    unsafe { count(&mut number, module) }.ok()?;
    Ok(number)
}

fn handles(table: &DriverTable, module: CUmodule, count: u32) -> Result<Vec<CUfunction>, CUresult> {
    let enumerate = table.cuModuleEnumerateFunctions.ok_or(CUresult::NOT_SUPPORTED)?;
    let mut functions = vec![CUfunction::NULL; count as usize];
    // SAFETY: the module is live, and the driver writes no more handles than there is room for.
    unsafe { enumerate(functions.as_mut_ptr(), count, module) }.ok()?;
    Ok(functions)
}

fn name(table: &DriverTable, function: CUfunction) -> Result<String, CUresult> {
    let name = table.cuFuncGetName.ok_or(CUresult::NOT_SUPPORTED)?;
    let mut text = std::ptr::null();
    // SAFETY: the function is one of a live module; the driver writes the address of a text that
    // lives as long.
    unsafe {
        name(&mut text, function).ok()?;
        if text.is_null() {
            return Err(CUresult::UNKNOWN);
        }
        Ok(CStr::from_ptr(text).to_string_lossy().into_owned())
    }
}

/// Whether a variable is `__managed__`.
pub(crate) fn is_managed(table: &DriverTable, address: CUdeviceptr) -> bool {
    let Some(get) = table.cuPointerGetAttribute else { return false };
    // More than any driver writes of it.
    let mut is_managed = 0_u64;
    // SAFETY: the driver writes a truth value to a local.
    let got = unsafe { get((&raw mut is_managed).cast(), CUpointer_attribute::IS_MANAGED, address) };
    got.is_success() && is_managed != 0
}

pub(crate) fn parameters(table: &DriverTable, function: CUfunction) -> Result<Vec<Parameter>, CUresult> {
    let get = table.cuFuncGetParamInfo.ok_or(CUresult::NOT_SUPPORTED)?;
    let mut parameters = Vec::new();
    for index in 0..PARAMETERS_MAX {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: the function is live, and the driver writes two sizes to locals.
        match unsafe { get(function, index, &mut offset, &mut size) } {
            CUresult::SUCCESS => parameters.push(Parameter { offset: offset as u32, size: size as u32 }),
            // How the driver says that there is no such parameter.
            CUresult::INVALID_VALUE => break,
            other => return Err(other),
        }
    }
    Ok(parameters)
}

/// The attributes that the driver has of a function; older drivers know fewer.
fn attributes(table: &DriverTable, function: CUfunction) -> Vec<(CUfunction_attribute, i32)> {
    let Some(get) = table.cuFuncGetAttribute else { return Vec::new() };
    ATTRIBUTES
        .map(CUfunction_attribute)
        .filter_map(|attribute| {
            let mut value = 0;
            // SAFETY: the function is live, and the driver writes one number to a local.
            let result = unsafe { get(&mut value, attribute, function) };
            result.is_success().then_some((attribute, value))
        })
        .collect()
}

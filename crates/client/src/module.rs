//! Modules and libraries, and the functions and kernels in them.
//!
//! An image is named by its content hash, and travels only if the node has not seen it before: its load is one round trip
//! then. With the answer comes the function of a module that has one, or the names of a few: these are had without waiting
//! ([`awaited`]). A library is its
//! module, loaded at once, and a kernel is its function: each pair shares one handle.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_cuda::*;
use sluice_image::pointer::Located;
use sluice_wire::{
    BULK_SIZE_MAX, FunctionId, FunctionInfo, ImageHash, JitOption, ModuleId, NamedFunction, commands,
};

use crate::answers::Answers;
use crate::device::Device;
use crate::ids::{self, Kind, Table};
use crate::image::{self, Jit};
use crate::issue::{Issue, wanted};
use crate::launch_trials::Trials;
use crate::parameters::Layout;
use crate::session::{self, Session};
use crate::staged_launch::Staged;
use crate::{awaited, context, out, texture_reference};

/// What came with a module.
#[derive(Debug, Default)]
struct Told {
    /// Functions that nobody has asked for yet, by name.
    functions: HashMap<CString, FunctionInfo>,
    /// Names of others.
    names: HashSet<CString>,
}

#[derive(Debug)]
pub(crate) struct Module {
    context: CUcontext,
    told: Mutex<Told>,
    /// The functions that programs asked for, by name.
    functions: Mutex<HashMap<CString, u64>>,
    /// Addresses and sizes of the globals that they asked for, by name.
    globals: Mutex<HashMap<CString, (u64, u64)>>,
    /// Of a library: what it takes to have it on other devices, too.
    library: Option<Library>,
}

/// A library is loaded on the device of its first use, and on others when they first use it.
#[derive(Debug)]
struct Library {
    home: CUdevice,
    /// For the devices of each session, by its index; nothing where the library has no code for them.
    images: Vec<Option<ImageHash>>,
    options: Vec<JitOption>,
    elsewhere: Mutex<HashMap<CUdevice, u64>>,
}

#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) id: FunctionId,
    module: u64,
    name: CString,
    pub(crate) layout: Layout,
    /// Threads that one block of this function can have.
    pub(crate) threads_max: u64,
    /// Bytes of dynamic shared memory that a launch may ask for.
    dynamic_shared_max: AtomicU32,
    attributes: Mutex<HashMap<CUfunction_attribute, i32>>,
    /// The device of a library's function; others have their own function for it.
    home: Option<CUdevice>,
    elsewhere: Mutex<HashMap<CUdevice, u64>>,
    /// What the node has said about the function as it is.
    pub(crate) answers: Answers,
    /// Launches of the function as it is that only the driver could judge.
    pub(crate) trials: Trials,
    /// Attributes that the program has set.
    changed: Mutex<HashMap<CUfunction_attribute, i32>>,
    /// What it was given for launches as CUDA 3 has them.
    pub(crate) staged: Staged,
}

static MODULES: Table<Module> = Table::new();
static FUNCTIONS: Table<Function> = Table::new();

pub(crate) fn exists(number: u64) -> bool {
    MODULES.contains(number)
}

/// Forgets the modules of a context that has ended, with their functions.
pub(crate) fn context_ended(context: CUcontext) {
    for module in of_context(context) {
        forget(module);
    }
}

/// The handles of a context's modules.
pub(crate) fn of_context(context: CUcontext) -> Vec<u64> {
    MODULES.find(|module| module.context == context)
}

/// The function or kernel of a handle, described by the node.
pub(crate) fn function(handle: usize) -> Result<Arc<Function>, CUresult> {
    let handle = handle as u64;
    if let Some(function) = FUNCTIONS.get(handle) {
        return Ok(function);
    }
    awaited::settle(handle)?;
    FUNCTIONS.get(handle).ok_or(CUresult::INVALID_HANDLE)
}

/// Enters a function as the node has described it.
pub(crate) fn enter(
    handle: u64,
    module: u64,
    name: CString,
    home: Option<CUdevice>,
    info: FunctionInfo,
) -> Result<(), CUresult> {
    let places = info.parameters.iter().map(|parameter| (parameter.offset, parameter.size)).collect();
    let layout = Layout::new(places).ok_or(CUresult::INVALID_IMAGE)?;
    let attributes = info.attributes.into_iter().collect();
    FUNCTIONS.insert(handle, Function::new(FunctionId(handle), module, name, layout, attributes, home));
    Ok(())
}

fn forget(module: u64) {
    MODULES.remove(module);
    FUNCTIONS.remove_where(|function| function.module == module);
    texture_reference::module_unloaded(module);
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Module {
    fn new(context: CUcontext, told: Told, library: Option<Library>) -> Module {
        Module {
            context,
            told: Mutex::new(told),
            functions: Mutex::new(HashMap::new()),
            globals: Mutex::new(HashMap::new()),
            library,
        }
    }
}

impl Function {
    fn new(
        id: FunctionId,
        module: u64,
        name: CString,
        layout: Layout,
        attributes: HashMap<CUfunction_attribute, i32>,
        home: Option<CUdevice>,
    ) -> Function {
        /// Where the driver does not say, what every device has had since compute capability 2.0.
        const USUAL: (u32, u32) = (1024, 48 << 10);
        let of = |attribute, usual| {
            attributes.get(&attribute).and_then(|value| u32::try_from(*value).ok()).unwrap_or(usual)
        };
        Function {
            threads_max: of(CUfunction_attribute::MAX_THREADS_PER_BLOCK, USUAL.0).into(),
            dynamic_shared_max: of(CUfunction_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES, USUAL.1).into(),
            attributes: Mutex::new(attributes),
            id,
            module,
            name,
            layout,
            home,
            elsewhere: Mutex::new(HashMap::new()),
            answers: Answers::default(),
            trials: Trials::default(),
            changed: Mutex::new(HashMap::new()),
            staged: Staged::default(),
        }
    }

    /// The function to use on the calling thread's device: this one, or a library's for that device.
    pub(crate) fn here(self: Arc<Function>) -> Result<Arc<Function>, CUresult> {
        let device = context::device();
        match self.home {
            Some(home) if home != device => self.on(device),
            _ => Ok(self),
        }
    }

    fn on(&self, device: CUdevice) -> Result<Arc<Function>, CUresult> {
        let mut elsewhere = locked(&self.elsewhere);
        if let Some(&known) = elsewhere.get(&device) {
            return function(known as usize);
        }
        let session = session::get()?;
        let module = session.library_on(self.module, device)?;
        let handle = session.get_function(module, &self.name)?;
        let function = function(handle as usize)?;
        for (&attribute, &value) in locked(&self.changed).iter() {
            function.set_attribute(session, attribute, value)?;
        }
        elsewhere.insert(device, handle);
        Ok(function)
    }

    /// An attribute's value, as it came with the function or as it was set.
    pub(crate) fn attribute(&self, attribute: CUfunction_attribute) -> Result<i32, CUresult> {
        locked(&self.attributes).get(&attribute).copied().ok_or(CUresult::INVALID_VALUE)
    }

    fn set_attribute(
        &self,
        session: &Session,
        attribute: CUfunction_attribute,
        value: i32,
    ) -> Result<(), CUresult> {
        use CUfunction_attribute as A;
        let settable = matches!(
            attribute,
            A::MAX_DYNAMIC_SHARED_SIZE_BYTES
                | A::PREFERRED_SHARED_MEMORY_CARVEOUT
                | A::REQUIRED_CLUSTER_WIDTH
                | A::REQUIRED_CLUSTER_HEIGHT
                | A::REQUIRED_CLUSTER_DEPTH
                | A::NON_PORTABLE_CLUSTER_SIZE_ALLOWED
                | A::CLUSTER_SCHEDULING_POLICY_PREFERENCE
        );
        if !settable {
            return Err(CUresult::INVALID_VALUE);
        }
        // Programs say it before each launch.
        if locked(&self.changed).get(&attribute) == Some(&value) {
            return session.link.check();
        }
        let session = session.of_object(self.id.0);
        let command = commands::cuFuncSetAttribute { hfunc: self.id, attrib: attribute, value };
        match attribute {
            A::MAX_DYNAMIC_SHARED_SIZE_BYTES => {
                let device = session::device(context::device())?;
                let most = device.attribute(CUdevice_attribute::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
                if value < 0 || value > most - self.attribute(A::SHARED_SIZE_BYTES).unwrap_or(0) {
                    return Err(CUresult::INVALID_VALUE);
                }
                session.queue_quietly(&command)?;
            }
            // In per cent, or the default.
            A::PREFERRED_SHARED_MEMORY_CARVEOUT if (-1..=100).contains(&value) => {
                session.queue_quietly(&command)?
            }
            // Of these, and of what they mean together, only the driver knows.
            _ => session.try_out(&command)?,
        }
        self.answers.change();
        self.trials.forget();
        locked(&self.attributes).insert(attribute, value);
        locked(&self.changed).insert(attribute, value);
        for other in locked(&self.elsewhere).values().filter_map(|&handle| FUNCTIONS.get(handle)) {
            other.set_attribute(session, attribute, value)?;
        }
        if attribute == A::MAX_DYNAMIC_SHARED_SIZE_BYTES {
            self.dynamic_shared_max.store(value as u32, Ordering::Release);
        }
        Ok(())
    }

    pub(crate) fn dynamic_shared_max(&self) -> u32 {
        self.dynamic_shared_max.load(Ordering::Acquire)
    }

    fn parameter(&self, index: usize, offset: *mut usize, size: *mut usize) -> Result<(), CUresult> {
        let &(at, bytes) = self.layout.places.get(index).ok_or(CUresult::INVALID_VALUE)?;
        // SAFETY: the program passes a place for the offset, and null or one for the size.
        unsafe {
            out::write(offset, at as usize)?;
            out::write_if_wanted(size, bytes as usize);
        }
        Ok(())
    }
}

impl Session {
    /// Loads an image and gives it a handle.
    fn load(&self, owner: Owner, image: &Located<'_>, jit: &mut Jit) -> Result<u64, CUresult> {
        let (context, device) = match owner {
            Owner::Context => {
                let context = context::current()?;
                (context.owner, context.device)
            }
            Owner::Process => (CUcontext::NULL, context::device()),
        };
        let (hash, code) = image_for(self.device(device)?, image, jit)?;
        let handle = ids::mint(Kind::Module);
        let told = self.load_known(handle, hash, Some(&code), jit)?;
        let library = context.is_null().then(|| Library {
            home: device,
            images: self.provide_everywhere(hash, image),
            options: jit.numbers.clone(),
            elsewhere: Mutex::new(HashMap::new()),
        });
        MODULES.insert(handle, Module::new(context, told, library));
        Ok(handle)
    }

    /// A library's module on the calling thread's device, which is `device`. Any other module is where it is.
    fn library_on(&self, module: u64, device: CUdevice) -> Result<u64, CUresult> {
        let object = MODULES.get(module).ok_or(CUresult::INVALID_HANDLE)?;
        let Some(library) = object.library.as_ref().filter(|library| library.home != device) else {
            return Ok(module);
        };
        let mut elsewhere = locked(&library.elsewhere);
        if let Some(&known) = elsewhere.get(&device) {
            return Ok(known);
        }
        let image = library.images.get(usize::from(self.index)).copied().flatten();
        let handle = ids::mint(Kind::Module);
        let image = image.ok_or(CUresult::NO_BINARY_FOR_GPU)?;
        let mut jit = Jit::none();
        jit.numbers.clone_from(&library.options);
        let told = self.load_known(handle, image, None, &mut jit)?;
        // What is loaded here belongs to the library, and goes with it.
        let images = library.images.clone();
        let library =
            Library { home: device, images, options: jit.numbers, elsewhere: Mutex::new(HashMap::new()) };
        MODULES.insert(handle, Module::new(CUcontext::NULL, told, Some(library)));
        elsewhere.insert(device, handle);
        Ok(handle)
    }

    /// What each session's devices have of a library. Later its image is the program's again, so every node gets it now.
    fn provide_everywhere(&self, here: ImageHash, image: &Located<'_>) -> Vec<Option<ImageHash>> {
        let of = |session: &Session| {
            if session.index == self.index {
                return Some(here);
            }
            let (hash, code) = image_for(session.devices.first()?, image, &mut Jit::none()).ok()?;
            session.provide(hash, &code).ok().map(|()| hash)
        };
        session::all().map_or(Vec::new(), |all| all.list.iter().map(of).collect())
    }

    /// The session of a module or function; what a library has loaded is not always in that of the calling thread.
    fn of_object(&self, handle: u64) -> &Session {
        let home = || ids::device(handle).and_then(|device| session::of(device).ok());
        if self.owns(handle) { self } else { home().unwrap_or(self) }
    }

    /// Makes sure that the node has an image.
    fn provide(&self, image: ImageHash, bytes: &[u8]) -> Result<(), CUresult> {
        let known = self.call(&commands::ImageQuery { image }, |answer| answer.known)?;
        // A log holds the image, for nodes that have not seen it.
        if known && !self.link.is_recorded() { Ok(()) } else { self.send_image(image, bytes) }
    }

    fn send_image(&self, image: ImageHash, bytes: &[u8]) -> Result<(), CUresult> {
        let total = bytes.len() as u64;
        for (i, piece) in bytes.chunks(BULK_SIZE_MAX).enumerate() {
            let offset = (i * BULK_SIZE_MAX) as u64;
            self.queue_quietly(&commands::ImageData { image, offset, total, bytes: piece })?;
        }
        Ok(())
    }

    /// Loads an image, which is sent if the node does not have it. Without its bytes the node was given it before.
    fn load_known(
        &self,
        handle: u64,
        image: ImageHash,
        bytes: Option<&[u8]>,
        jit: &mut Jit,
    ) -> Result<Told, CUresult> {
        // A log holds the image, for nodes that have not seen it.
        let sent = bytes.filter(|_| self.link.is_recorded());
        sent.map_or(Ok(()), |bytes| self.send_image(image, bytes))?;
        let told = match (self.try_load(handle, image, jit)?, bytes) {
            (None, Some(bytes)) => {
                self.send_image(image, bytes)?;
                self.try_load(handle, image, jit)?
            }
            (told, _) => told,
        };
        told.ok_or(CUresult::INVALID_IMAGE)
    }

    /// Nothing if the node does not have the image. A refused load has a log too: it is the compiler's, and what the
    /// program wants to read.
    fn try_load(&self, handle: u64, image: ImageHash, jit: &mut Jit) -> Result<Option<Told>, CUresult> {
        use sluice_wire::{Command, Encode, decode};
        let options = jit.numbers.clone();
        let command = commands::cuModuleLoadDataEx { module: ModuleId(handle), image, options };
        let op = commands::cuModuleLoadDataEx::OP;
        let answer = self.link.call(self.place(), op, |out| command.encode(out))?;
        let reply = decode::<commands::cuModuleLoadDataExReply<'_>>(&answer.payload);
        let said = reply.as_ref().map_or(&[][..], |reply| reply.log);
        answer.result.ok().inspect_err(|error| {
            let refusal = format!("the node's driver refuses the image: {error}");
            jit.write(if said.is_empty() { refusal.as_bytes() } else { said }, false);
        })?;
        jit.write(said, true);
        let reply = reply.map_err(|_| CUresult::UNKNOWN)?;
        let named = |function: NamedFunction| Some((CString::new(function.name).ok()?, function.info));
        Ok(reply.known.then(|| Told {
            functions: reply.functions.into_iter().filter_map(named).collect(),
            names: reply.names.into_iter().filter_map(|name| CString::new(name).ok()).collect(),
        }))
    }

    /// The handle of a module's function, asking the node the first time. Whether there is such a function is known when this returns.
    pub(crate) fn get_function(&self, module: u64, name: &CStr) -> Result<u64, CUresult> {
        let object = MODULES.get(module).ok_or(CUresult::INVALID_HANDLE)?;
        if let Some(&known) = locked(&object.functions).get(name) {
            return Ok(known);
        }
        let handle = ids::mint_on(ids::device(module).unwrap_or_default(), Kind::Function);
        let (hfunc, hmod, session) = (FunctionId(handle), ModuleId(module), self.of_object(module));
        let home = object.library.as_ref().map(|library| library.home);
        let (known, is_named) = {
            let mut told = locked(&object.told);
            (told.functions.remove(name), told.names.contains(name))
        };
        match known {
            Some(info) => {
                session.queue_quietly(&commands::FunctionNamed { hfunc, hmod, name })?;
                enter(handle, module, name.to_owned(), home, info)?;
            }
            None if is_named => session.ask_for_function((handle, module), name.to_owned(), home)?,
            None => {
                let command = commands::cuModuleGetFunction { hfunc, hmod, name };
                let info = session.call(&command, |answer| answer.info)?;
                enter(handle, module, name.to_owned(), home, info)?;
            }
        }
        locked(&object.functions).insert(name.to_owned(), handle);
        Ok(handle)
    }

    fn get_global(&self, module: u64, name: &CStr) -> Result<(u64, u64), CUresult> {
        let object = MODULES.get(module).ok_or(CUresult::INVALID_HANDLE)?;
        if let Some(&known) = locked(&object.globals).get(name) {
            return Ok(known);
        }
        let command = commands::cuModuleGetGlobal_v2 { hmod: ModuleId(module), name };
        let (address, bytes) = self.call(&command, |answer| (answer.dptr.0, answer.bytes))?;
        self.know_global(module, address, bytes);
        locked(&object.globals).insert(name.to_owned(), (address, bytes));
        Ok((address, bytes))
    }

    fn unload(&self, module: u64) -> Result<(), CUresult> {
        let object = MODULES.get(module).ok_or(CUresult::INVALID_HANDLE)?;
        if let Some(library) = &object.library {
            for (_, other) in std::mem::take(&mut *locked(&library.elsewhere)) {
                self.unload(other)?;
            }
        }
        awaited::settle_all(module);
        forget(module);
        let session = self.of_object(module);
        session.forget_globals(module);
        session.queue(&commands::cuModuleUnload { hmod: ModuleId(module) })
    }
}

/// What of an image a device runs, and its hash.
fn image_for<'a>(
    device: &Device,
    image: &Located<'a>,
    jit: &mut Jit,
) -> Result<(ImageHash, Cow<'a, [u8]>), CUresult> {
    let code = image::for_device(image, &device.snapshot, jit)?;
    Ok((ImageHash(sluice_image::ImageHash::of(&code).0), code))
}

/// To whom a module belongs.
#[derive(Clone, Copy)]
enum Owner {
    /// To the calling thread's context: a module proper.
    Context,
    /// To no context: a library, which programs load before they have one.
    Process,
}

/// # Safety
/// `module` is null or valid for writing a handle, and `fname` is null or a string.
unsafe fn load_file(owner: Owner, module: *mut CUmodule, fname: *const c_char) -> Result<(), CUresult> {
    let session = session::get()?;
    wanted(module)?;
    // SAFETY: the caller passes a string.
    let image = image::read_file(unsafe { text(fname)? })?;
    let handle = session.load(owner, &Located { image: &image, parts: Vec::new() }, &mut Jit::none())?;
    // SAFETY: not null, and the caller's to be written.
    unsafe { out::write(module, CUmodule(handle as usize)) }
}

/// # Safety
/// `module` is null or valid for writing a handle, `image` is null or an image, and the options are so many as said.
unsafe fn load_data(
    owner: Owner,
    module: *mut CUmodule,
    image: *const c_void,
    options: (u32, *mut CUjit_option, *mut *mut c_void),
) -> Result<(), CUresult> {
    let session = session::get()?;
    wanted(module)?;
    let (count, names, values) = options;
    // SAFETY: the caller passes an image, and arrays of `count` options.
    let handle = unsafe {
        let mut jit = Jit::from_options(count, names, values);
        session.load(owner, &image::at(image)?, &mut jit)?
    };
    // SAFETY: not null, and the caller's to be written.
    unsafe { out::write(module, CUmodule(handle as usize)) }
}

/// A name that a program passed.
///
/// # Safety
/// `name` is null or a string.
pub(crate) unsafe fn text<'a>(name: *const c_char) -> Result<&'a CStr, CUresult> {
    if name.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: not null, and the caller vouches for the rest.
    Ok(unsafe { CStr::from_ptr(name) })
}

// The entry points. CUDA Driver API, sections "Module Management" and "Library Management".

pub(crate) unsafe fn cuModuleGetLoadingMode(mode: *mut CUmoduleLoadingMode) -> Result<(), CUresult> {
    session::get()?;
    // SAFETY: the program passes a place for the mode.
    unsafe { out::write(mode, CUmoduleLoadingMode::LAZY_LOADING) }
}

pub(crate) unsafe fn cuModuleLoad(module: *mut CUmodule, fname: *const c_char) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { load_file(Owner::Context, module, fname) }
}

pub(crate) unsafe fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuModuleLoadDataEx(module, image, 0, std::ptr::null_mut(), std::ptr::null_mut()) }
}

pub(crate) unsafe fn cuModuleLoadFatBinary(
    module: *mut CUmodule,
    fatCubin: *const c_void,
) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuModuleLoadData(module, fatCubin) }
}

pub(crate) unsafe fn cuModuleLoadDataEx(
    module: *mut CUmodule,
    image: *const c_void,
    numOptions: u32,
    options: *mut CUjit_option,
    optionValues: *mut *mut c_void,
) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { load_data(Owner::Context, module, image, (numOptions, options, optionValues)) }
}

pub(crate) unsafe fn cuModuleUnload(hmod: CUmodule) -> Result<(), CUresult> {
    session::enter()?.unload(hmod.0 as u64)
}

pub(crate) unsafe fn cuModuleGetFunction(
    hfunc: *mut CUfunction,
    hmod: CUmodule,
    name: *const c_char,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    wanted(hfunc)?;
    // SAFETY: the program passes a string.
    let handle = session.get_function(hmod.0 as u64, unsafe { text(name)? })?;
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(hfunc, CUfunction(handle as usize)) }
}

pub(crate) unsafe fn cuModuleGetGlobal_v2(
    dptr: *mut CUdeviceptr,
    bytes: *mut usize,
    hmod: CUmodule,
    name: *const c_char,
) -> Result<(), CUresult> {
    let session = session::enter()?;
    // SAFETY: the program passes a string.
    let (address, size) = session.get_global(hmod.0 as u64, unsafe { text(name)? })?;
    // SAFETY: the program passes null or places for address and size.
    unsafe {
        out::write_if_wanted(dptr, address);
        out::write_if_wanted(bytes, size as usize);
    }
    Ok(())
}

pub(crate) unsafe fn cuLibraryLoadData(
    library: *mut CUlibrary,
    code: *const c_void,
    jitOptions: *mut CUjit_option,
    jitOptionsValues: *mut *mut c_void,
    numJitOptions: u32,
    _: *mut CUlibraryOption,
    _: *mut *mut c_void,
    _: u32,
) -> Result<(), CUresult> {
    // SAFETY: the same contract; both handles are transparent numbers.
    unsafe {
        let options = (numJitOptions, jitOptions, jitOptionsValues);
        load_data(Owner::Process, library.cast(), code, options)
    }
}

pub(crate) unsafe fn cuLibraryLoadFromFile(
    library: *mut CUlibrary,
    fileName: *const c_char,
    _: *mut CUjit_option,
    _: *mut *mut c_void,
    _: u32,
    _: *mut CUlibraryOption,
    _: *mut *mut c_void,
    _: u32,
) -> Result<(), CUresult> {
    // SAFETY: the same contract; both handles are transparent numbers.
    unsafe { load_file(Owner::Process, library.cast(), fileName) }
}

pub(crate) unsafe fn cuLibraryUnload(library: CUlibrary) -> Result<(), CUresult> {
    session::get()?.unload(library.0 as u64)
}

pub(crate) unsafe fn cuLibraryGetKernel(
    pKernel: *mut CUkernel,
    library: CUlibrary,
    name: *const c_char,
) -> Result<(), CUresult> {
    let session = session::get()?;
    wanted(pKernel)?;
    // SAFETY: the program passes a string.
    let handle = session.get_function(library.0 as u64, unsafe { text(name)? })?;
    // SAFETY: not null, and the program's to be written.
    unsafe { out::write(pKernel, CUkernel(handle as usize)) }
}

pub(crate) unsafe fn cuLibraryGetModule(pMod: *mut CUmodule, library: CUlibrary) -> Result<(), CUresult> {
    let module = session::enter()?.library_on(library.0 as u64, context::device())?;
    // SAFETY: the program passes a place for the module.
    unsafe { out::write(pMod, CUmodule(module as usize)) }
}

pub(crate) unsafe fn cuLibraryGetGlobal(
    dptr: *mut CUdeviceptr,
    bytes: *mut usize,
    library: CUlibrary,
    name: *const c_char,
) -> Result<(), CUresult> {
    let module = session::enter()?.library_on(library.0 as u64, context::device())?;
    // SAFETY: the same contract.
    unsafe { cuModuleGetGlobal_v2(dptr, bytes, CUmodule(module as usize), name) }
}

pub(crate) unsafe fn cuKernelGetFunction(pFunc: *mut CUfunction, kernel: CUkernel) -> Result<(), CUresult> {
    session::enter()?;
    let function = function(kernel.0)?.here()?;
    // SAFETY: the program passes a place for the function.
    unsafe { out::write(pFunc, CUfunction(function.id.0 as usize)) }
}

pub(crate) unsafe fn cuKernelGetLibrary(pLib: *mut CUlibrary, kernel: CUkernel) -> Result<(), CUresult> {
    session::get()?;
    let library = CUlibrary(function(kernel.0)?.module as usize);
    // SAFETY: the program passes a place for the library.
    unsafe { out::write(pLib, library) }
}

pub(crate) unsafe fn cuKernelGetName(name: *mut *const c_char, hfunc: CUkernel) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuFuncGetName(name, CUfunction(hfunc.0)) }
}

/// Devices of a lease share one function's attributes: what is set for one is seen for all.
pub(crate) unsafe fn cuKernelGetAttribute(
    pi: *mut i32,
    attrib: CUfunction_attribute,
    kernel: CUkernel,
    dev: CUdevice,
) -> Result<(), CUresult> {
    session::device(dev)?;
    // SAFETY: the program passes a place for the value.
    unsafe { out::write(pi, function(kernel.0)?.attribute(attrib)?) }
}

pub(crate) unsafe fn cuKernelSetAttribute(
    attrib: CUfunction_attribute,
    val: i32,
    kernel: CUkernel,
    dev: CUdevice,
) -> Result<(), CUresult> {
    let session = session::get()?;
    session::device(dev)?;
    function(kernel.0)?.set_attribute(session, attrib, val)
}

/// A preference, which devices with a unified cache ignore.
pub(crate) unsafe fn cuKernelSetCacheConfig(
    kernel: CUkernel,
    _: CUfunc_cache,
    dev: CUdevice,
) -> Result<(), CUresult> {
    session::device(dev)?;
    function(kernel.0).map(drop)
}

pub(crate) unsafe fn cuKernelGetParamInfo(
    kernel: CUkernel,
    paramIndex: usize,
    paramOffset: *mut usize,
    paramSize: *mut usize,
) -> Result<(), CUresult> {
    session::get()?;
    function(kernel.0)?.parameter(paramIndex, paramOffset, paramSize)
}

pub(crate) unsafe fn cuKernelGetParamCount(kernel: CUkernel, paramCount: *mut usize) -> Result<(), CUresult> {
    // SAFETY: the same contract.
    unsafe { cuFuncGetParamCount(CUfunction(kernel.0), paramCount) }
}

// Section "Execution Control".

pub(crate) unsafe fn cuFuncGetAttribute(
    pi: *mut i32,
    attrib: CUfunction_attribute,
    hfunc: CUfunction,
) -> Result<(), CUresult> {
    session::get()?;
    // SAFETY: the program passes a place for the value.
    unsafe { out::write(pi, function(hfunc.0)?.attribute(attrib)?) }
}

pub(crate) unsafe fn cuFuncSetAttribute(
    hfunc: CUfunction,
    attrib: CUfunction_attribute,
    value: i32,
) -> Result<(), CUresult> {
    let session = session::get()?;
    function(hfunc.0)?.set_attribute(session, attrib, value)
}

/// A preference, which devices with a unified cache ignore.
pub(crate) unsafe fn cuFuncSetCacheConfig(hfunc: CUfunction, _: CUfunc_cache) -> Result<(), CUresult> {
    session::get()?;
    function(hfunc.0).map(drop)
}

/// Devices since compute capability 5.0 ignore it.
pub(crate) unsafe fn cuFuncSetSharedMemConfig(
    hfunc: CUfunction,
    config: CUsharedconfig,
) -> Result<(), CUresult> {
    session::get()?;
    function(hfunc.0)?;
    if config.name().is_some() { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
}

pub(crate) unsafe fn cuFuncGetModule(hmod: *mut CUmodule, hfunc: CUfunction) -> Result<(), CUresult> {
    session::get()?;
    let module = CUmodule(function(hfunc.0)?.module as usize);
    // SAFETY: the program passes a place for the module.
    unsafe { out::write(hmod, module) }
}

/// The text lives as long as its module is loaded.
pub(crate) unsafe fn cuFuncGetName(name: *mut *const c_char, hfunc: CUfunction) -> Result<(), CUresult> {
    session::get()?;
    let text = function(hfunc.0)?.name.as_ptr();
    // SAFETY: the program passes a place for the address.
    unsafe { out::write(name, text) }
}

pub(crate) unsafe fn cuFuncGetParamInfo(
    func: CUfunction,
    paramIndex: usize,
    paramOffset: *mut usize,
    paramSize: *mut usize,
) -> Result<(), CUresult> {
    session::get()?;
    function(func.0)?.parameter(paramIndex, paramOffset, paramSize)
}

pub(crate) unsafe fn cuFuncGetParamCount(func: CUfunction, paramCount: *mut usize) -> Result<(), CUresult> {
    session::get()?;
    let count = function(func.0)?.layout.places.len();
    // SAFETY: the program passes a place for the count.
    unsafe { out::write(paramCount, count) }
}

pub(crate) unsafe fn cuFuncIsLoaded(
    state: *mut CUfunctionLoadingState,
    function: CUfunction,
) -> Result<(), CUresult> {
    session::get()?;
    self::function(function.0)?;
    // SAFETY: the program passes a place for the state.
    unsafe { out::write(state, CUfunctionLoadingState::LOADED) }
}

/// A function is loaded with its handle.
pub(crate) unsafe fn cuFuncLoad(function: CUfunction) -> Result<(), CUresult> {
    session::get()?;
    self::function(function.0).map(drop)
}

#[cfg(test)]
mod tests {
    use sluice_transport::Stream;
    use sluice_wire::{Encode, FrameDecoder, Header, Kind as FrameKind, Op};
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::generated::stubs;
    use crate::link::Link;

    fn loaded() -> CUfunction {
        let (module, handle) = (ids::mint(Kind::Module), ids::mint(Kind::Function));
        MODULES.insert(module, Module::new(CUcontext::NULL, Told::default(), None));
        let layout = Layout::new(Vec::new()).unwrap();
        let (id, name) = (FunctionId(handle), c"kernel".to_owned());
        FUNCTIONS.insert(handle, Function::new(id, module, name, layout, HashMap::new(), None));
        CUfunction(handle as usize)
    }

    /// Answers questions with how many commands have come, and returns what these were when the client is gone.
    fn play(mut stream: UnixStream) -> Vec<Op> {
        let (mut decoder, mut seen) = (FrameDecoder::new(), Vec::new());
        loop {
            match stream.read(decoder.space(4096)).unwrap() {
                0 => return seen,
                count => decoder.received(count),
            }
            while let Some(frame) = decoder.next_frame().unwrap() {
                seen.push(Op(frame.header.op));
                if Op(frame.header.op) == Op::of(Fn::cuFuncSetAttribute) {
                    continue;
                }
                let (mut reply, header) = (Vec::new(), Header { kind: FrameKind::Reply, ..frame.header });
                let answer = (0_i32, seen.len() as i32);
                header.frame(&mut reply, |out| (answer.0.encode(out), answer.1.encode(out)).1).unwrap();
                stream.write_all(&reply).unwrap();
            }
        }
    }

    #[test]
    fn a_question_about_a_function_travels_once_until_the_function_is_changed() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let worker = std::thread::spawn(|| play(theirs));
        let link = Link::new(Stream::from(ours), FrameDecoder::new(), (0, 0), None, None);
        let session =
            Session::new((0, sluice_wire::address::Endpoint::Tcp(String::new())), link, Vec::new(), 0..0);
        let handle = loaded();
        let blocks = |function, size| {
            let mut blocks = 0;
            // SAFETY: a place for the answer.
            unsafe {
                stubs::cuOccupancyMaxActiveBlocksPerMultiprocessor(&session, &mut blocks, function, size, 0)
            }
            .map(|()| blocks)
        };
        let set = |value| {
            let carveout = CUfunction_attribute::PREFERRED_SHARED_MEMORY_CARVEOUT;
            function(handle.0).unwrap().set_attribute(&session, carveout, value).unwrap();
        };
        let first = [128, 128, 256, 128].map(|size| blocks(handle, size).unwrap());
        assert_eq!(first, [1, 1, 2, 1]);
        set(50);
        // The change is the third command. To set what is set changes nothing.
        assert_eq!(blocks(handle, 128), Ok(4));
        set(50);
        assert_eq!(blocks(handle, 128), Ok(4));
        forget(function(handle.0).unwrap().module);
        assert_eq!(blocks(handle, 128), Err(CUresult::INVALID_HANDLE));
        drop(session);
        let (ask, change) =
            (Op::of(Fn::cuOccupancyMaxActiveBlocksPerMultiprocessor), Op::of(Fn::cuFuncSetAttribute));
        assert_eq!(worker.join().unwrap(), [ask, ask, change, ask]);
    }
}

//! Modules and libraries, and the functions and kernels in them.
//!
//! A library is its module, loaded at once ([`load`](crate::module::load)), and both have one
//! handle. A kernel is its function, and its handle says that it was had as a kernel
//! ([`ids::kernel_of`]).
//!
//! # In this folder
//!
//! From an image to a function: images ([`image`]), linking ([`linker`]), loading ([`load`]),
//! functions that the node has yet to describe ([`pending`]) and listing them ([`enumeration`]).

pub(crate) mod enumeration;
pub(crate) mod image;
pub(crate) mod linker;
pub(crate) mod load;
pub(crate) mod pending;
pub(crate) mod texture_reference;

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use sluice_cuda::*;
use sluice_image::pointer::Located;
use sluice_wire::{
    Command, Encode, FunctionId, FunctionInfo, ImageFacts, ImageHash, JitOption, ModuleId, NamedFunction,
    commands,
};

use crate::abi::ids::{self, Kind, Table};
use crate::abi::out;
use crate::context;
use crate::host_memory::{mirror, variables};
use crate::launch::parameters::Layout;
use crate::launch::staged::Staged;
use crate::launch::trials::Trials;
use crate::link::command_id::CommandId;
use crate::module::image::Jit;
use crate::module::load::Owner;
use crate::session::answers::Answers;
use crate::session::facts::{self, Facts, Subject};
use crate::session::issue::{Issue, wanted};
use crate::session::{self, Session};

#[derive(Debug)]
pub(crate) struct Module {
    context: CUcontext,
    /// What is known of its image.
    facts: (Arc<Facts>, Subject),
    /// Where the answer to its load comes, unless it has been waited for.
    due: Mutex<Option<CommandId>>,
    /// The functions that programs asked for, by name.
    functions: Mutex<HashMap<CString, u64>>,
    /// Addresses and sizes of the globals that they asked for, by name.
    globals: Mutex<HashMap<CString, (u64, u64)>>,
    /// Of a library: what it takes to have it on other devices, too.
    pub(crate) library: Option<Library>,
}

/// The home of a library whose session was lost: it is to be loaded anew wherever it is used.
const NOWHERE: CUdevice = -1;

/// A library is loaded on the device of its first use, and on others when they first use it.
#[derive(Debug)]
pub(crate) struct Library {
    /// The device that has it under the library's own handle, or [`NOWHERE`].
    home: AtomicI32,
    /// For the devices of each session, by its index; nothing where the library has no code for
    /// them.
    pub(crate) images: Vec<Option<ImageHash>>,
    pub(crate) options: Vec<JitOption>,
    pub(crate) elsewhere: Mutex<HashMap<CUdevice, u64>>,
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
    /// The device of a library's function, or [`NOWHERE`]; others have their own function for it.
    home: Option<AtomicI32>,
    elsewhere: Mutex<HashMap<CUdevice, u64>>,
    /// What the node has said about the function as it is.
    pub(crate) answers: Answers,
    /// Launches of the function as it is that only the driver could judge.
    pub(crate) trials: Trials,
    /// Attributes that the program has set.
    changed: Mutex<HashMap<CUfunction_attribute, i32>>,
    /// What it was given for launches as CUDA 3 has them.
    pub(crate) staged: Staged,
    /// The handle under which a graph got it last: its own, or that of a kernel.
    in_graphs: AtomicU64,
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

/// The context that a module was loaded in; none for a library.
pub(crate) fn owner(handle: u64) -> Option<CUcontext> {
    MODULES.get(handle).map(|module| module.context)
}

/// The context of a function's module.
pub(crate) fn owner_of_function(handle: u64) -> Option<CUcontext> {
    owner(function(handle as usize).ok()?.module)
}

/// The handles of a context's modules.
pub(crate) fn of_context(context: CUcontext) -> Vec<u64> {
    MODULES.find(|module| module.context == context)
}

/// The function or kernel of a handle, described by the node.
pub(crate) fn function(handle: usize) -> Result<Arc<Function>, CUresult> {
    let handle = ids::function_of(handle as u64);
    if let Some(function) = FUNCTIONS.get(handle) {
        return Ok(function);
    }
    pending::settle(handle)?;
    FUNCTIONS.get(handle).ok_or(CUresult::INVALID_HANDLE)
}

/// The function of a graph's node in the form in which the graph got it: as a function, or as a
/// kernel.
pub(crate) fn in_graph(id: FunctionId) -> Result<(CUfunction, CUkernel), CUresult> {
    let handle = function(id.0 as usize)?.in_graphs.load(Ordering::Relaxed);
    let is_kernel = ids::is_of(Kind::Kernel, handle);
    let handle = handle as usize;
    Ok(if is_kernel { (CUfunction::NULL, CUkernel(handle)) } else { (CUfunction(handle), CUkernel::NULL) })
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

/// Enters a library's function that the node had not described when the session was lost, as it is
/// on the calling thread's device now.
pub(crate) fn enter_again(handle: u64, module: u64, name: CString) -> Result<(), CUresult> {
    let session = session::get()?;
    let other = session.get_function(session.present(module)?, &name)?;
    let described = function(other as usize)?;
    let (layout, attributes) = (described.layout.clone(), locked(&described.attributes).clone());
    let again = Function::new(FunctionId(handle), module, name, layout, attributes, Some(NOWHERE));
    locked(&again.elsewhere).insert(context::device(), other);
    FUNCTIONS.insert(handle, again);
    Ok(())
}

/// Libraries and their kernels are nowhere now: the session is lost that had them.
pub(crate) fn leave_libraries() {
    for module in MODULES.find(|module| module.library.is_some()).into_iter().filter_map(|it| MODULES.get(it))
    {
        *locked(&module.due) = None;
        locked(&module.globals).clear();
        if let Some(library) = &module.library {
            library.home.store(NOWHERE, Ordering::Release);
            locked(&library.elsewhere).clear();
        }
    }
    for function in FUNCTIONS.find(|_| true).into_iter().filter_map(|it| FUNCTIONS.get(it)) {
        if let Some(home) = &function.home {
            home.store(NOWHERE, Ordering::Release);
        }
        locked(&function.elsewhere).clear();
        function.answers.change();
        function.trials.forget();
    }
}

impl Library {
    /// On a device, whose images are those of its session's place in the list.
    pub(crate) fn new(home: CUdevice, images: Vec<Option<ImageHash>>, options: Vec<JitOption>) -> Library {
        Library { home: AtomicI32::new(home), images, options, elsewhere: Mutex::new(HashMap::new()) }
    }

    pub(crate) fn home(&self) -> CUdevice {
        self.home.load(Ordering::Acquire)
    }
}

fn forget(module: u64) {
    MODULES.remove(module);
    FUNCTIONS.remove_where(|function| function.module == module);
    texture_reference::module_unloaded(module);
}

impl Session {
    /// Forgets the global variables of a module, and what the program has at their addresses.
    pub(crate) fn forget_globals(&self, module: u64) {
        for address in self.take_globals(module) {
            mirror::forget_variable(self, address);
        }
    }
}

/// Enters a module that is being loaded.
pub(crate) fn insert(handle: u64, module: Module) {
    MODULES.insert(handle, module);
}

pub(crate) fn get(handle: u64) -> Result<Arc<Module>, CUresult> {
    MODULES.get(handle).ok_or(CUresult::INVALID_HANDLE)
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Module {
    pub(crate) fn new(
        context: CUcontext,
        facts: (Arc<Facts>, Subject),
        due: Option<CommandId>,
        library: Option<Library>,
    ) -> Module {
        Module {
            context,
            facts,
            due: Mutex::new(due),
            functions: Mutex::new(HashMap::new()),
            globals: Mutex::new(HashMap::new()),
            library,
        }
    }

    /// What is known of its image.
    pub(crate) fn facts(&self) -> (&Facts, &Subject) {
        (&self.facts.0, &self.facts.1)
    }

    /// What is known of a function, if need be by the answer to the load.
    fn describe(&self, session: &Session, name: &CStr) -> Result<Option<facts::Function>, CUresult> {
        let (facts, of) = self.facts();
        let known = facts.function(of, name);
        let due = if known.is_none() { locked(&self.due).take() } else { None };
        let Some(place) = due else { return Ok(known) };
        session.settle_load(self, place)?;
        Ok(facts.function(of, name))
    }
}

/// The node has described a function.
pub(crate) fn learn(module: u64, name: &CStr, info: &FunctionInfo) {
    if let (Some(module), Ok(name)) = (MODULES.get(module), name.to_str()) {
        let (facts, of) = module.facts();
        let described = NamedFunction { name: name.to_owned(), info: info.clone() };
        facts.learn(ImageFacts { functions: vec![described], ..of.facts() });
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
            home: home.map(AtomicI32::new),
            elsewhere: Mutex::new(HashMap::new()),
            answers: Answers::default(),
            trials: Trials::default(),
            changed: Mutex::new(HashMap::new()),
            staged: Staged::default(),
            in_graphs: AtomicU64::new(id.0),
        }
    }

    /// Notes the handle under which a graph gets the function.
    pub(crate) fn given_to_graph(&self, handle: CUfunction) {
        self.in_graphs.store(handle.0 as u64, Ordering::Relaxed);
    }

    /// The function to use on the calling thread's device: this one, or a library's for that
    /// device.
    pub(crate) fn here(self: Arc<Function>) -> Result<Arc<Function>, CUresult> {
        let device = context::device();
        match &self.home {
            Some(home) if home.load(Ordering::Acquire) != device => self.on(device),
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

    /// The answer to a question about the function as it is: as it is known from another process,
    /// or as `ask` brings it.
    pub(crate) fn answer<C: Command>(
        &self,
        command: &C,
        ask: impl FnOnce() -> Result<Vec<u8>, CUresult>,
    ) -> Result<Vec<u8>, CUresult> {
        let (Some(module), Some(question)) = (MODULES.get(self.module), self.question(command)) else {
            return ask();
        };
        let (facts, of) = module.facts();
        if let Some(answer) = facts.answer(of, &self.name, &question) {
            return Ok(answer);
        }
        let answer = ask()?;
        // Another thread may have changed the function meanwhile.
        if let Ok(name) = self.name.to_str()
            && self.question(command).as_ref() == Some(&question)
        {
            let answers = vec![(name.to_owned(), (question, answer.clone()))];
            facts.learn(ImageFacts { answers, ..of.facts() });
        }
        Ok(answer)
    }

    /// A question about the function without its handle, and with what the program has changed of
    /// it; none where the answer depends on more.
    fn question<C: Command>(&self, command: &C) -> Option<Vec<u8>> {
        if context::green_place(context::device()).is_some() {
            return None;
        }
        let mut text = Vec::new();
        command.encode(&mut text);
        let mut question = text.strip_prefix(&self.id.0.to_le_bytes())?.to_vec();
        question.extend(C::OP.0.to_le_bytes());
        let mut changed: Vec<_> = locked(&self.changed).iter().map(|(set, value)| (set.0, *value)).collect();
        changed.sort_unstable();
        changed.encode(&mut question);
        Some(question)
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
    /// The session of a module or function; what a library has loaded is not always in that of the
    /// calling thread.
    fn of_object(&self, handle: u64) -> &Session {
        let home = || ids::device(handle).and_then(|device| session::of(device).ok());
        if self.owns(handle) { self } else { home().unwrap_or(self) }
    }

    /// The module itself; of a library that was lost with its session, the one on the calling
    /// thread's device.
    pub(crate) fn present(&self, module: u64) -> Result<u64, CUresult> {
        match &get(module)?.library {
            Some(library) if library.home() == NOWHERE => self.library_on(module, context::device()),
            _ => Ok(module),
        }
    }

    /// The handle of a module's function, asking the node the first time. Whether there is such a
    /// function is known when this returns.
    pub(crate) fn get_function(&self, module: u64, name: &CStr) -> Result<u64, CUresult> {
        if let Some(&known) = locked(&get(module)?.functions).get(name) {
            return Ok(known);
        }
        let module = self.present(module)?;
        let object = get(module)?;
        if let Some(&known) = locked(&object.functions).get(name) {
            return Ok(known);
        }
        let handle = ids::mint_on(ids::device(module).unwrap_or_default(), Kind::Function);
        let (hfunc, hmod, session) = (FunctionId(handle), ModuleId(module), self.of_object(module));
        let home = object.library.as_ref().map(Library::home);
        match object.describe(session, name)? {
            Some(facts::Function::Described(info)) => {
                session.queue_quietly(&commands::FunctionNamed { hfunc, hmod, name })?;
                enter(handle, module, name.to_owned(), home, info)?;
            }
            Some(facts::Function::Named) => {
                session.ask_for_function((handle, module), name.to_owned(), home)?
            }
            None => {
                let command = commands::cuModuleGetFunction { hfunc, hmod, name };
                let info = session.call(&command, |answer| answer.info)?;
                learn(module, name, &info);
                enter(handle, module, name.to_owned(), home, info)?;
            }
        }
        locked(&object.functions).insert(name.to_owned(), handle);
        Ok(handle)
    }

    fn get_global(&self, module: u64, name: &CStr) -> Result<(u64, u64), CUresult> {
        let module = self.present(module)?;
        let object = get(module)?;
        if let Some(&known) = locked(&object.globals).get(name) {
            return Ok(known);
        }
        let command = commands::cuModuleGetGlobal_v2 { hmod: ModuleId(module), name };
        let (address, bytes, is_managed) =
            self.call(&command, |answer| (answer.dptr.0, answer.bytes, answer.is_managed))?;
        self.know_global(module, address, bytes);
        if is_managed {
            let device = ids::device(module).unwrap_or_default();
            variables::map(self.of_object(module), device, address, bytes)?;
        }
        locked(&object.globals).insert(name.to_owned(), (address, bytes));
        Ok((address, bytes))
    }

    fn unload(&self, module: u64) -> Result<(), CUresult> {
        let object = get(module)?;
        if let Some(library) = &object.library {
            for (_, other) in std::mem::take(&mut *locked(&library.elsewhere)) {
                self.unload(other)?;
            }
        }
        pending::settle_all(module);
        forget(module);
        if object.library.as_ref().is_some_and(|library| library.home() == NOWHERE) {
            return Ok(());
        }
        let session = self.of_object(module);
        if let Some(place) = locked(&object.due).take() {
            session.forgo_load(&object, place);
        }
        session.forget_globals(module);
        session.queue(&commands::cuModuleUnload { hmod: ModuleId(module) })
    }
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
/// `module` is null or valid for writing a handle, `image` is null or an image, and there are as
/// many options as said.
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
        let (mut jit, begun) = (Jit::from_options(count, names, values), Instant::now());
        let loaded = session.load(owner, &image::at(image)?, &mut jit);
        jit.took(begun.elapsed());
        loaded?
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
    // SAFETY: the program passes a string, and null or places for address and size.
    unsafe {
        out::one_wanted(dptr, bytes)?;
        let (address, size) = session.get_global(hmod.0 as u64, text(name)?)?;
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
    unsafe { out::write(pKernel, CUkernel(ids::kernel_of(handle) as usize)) }
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

/// The variable is that of the device on which it is asked for first.
pub(crate) unsafe fn cuLibraryGetManaged(
    dptr: *mut CUdeviceptr,
    bytes: *mut usize,
    library: CUlibrary,
    name: *const c_char,
) -> Result<(), CUresult> {
    let session = session::get()?;
    out::one_wanted(dptr, bytes)?;
    // SAFETY: the program passes a string.
    let (address, size) = session.get_global(library.0 as u64, unsafe { text(name)? })?;
    if mirror::with_device_address(address, |it| it.is_managed) != Some(true) {
        return Err(CUresult::NOT_FOUND);
    }
    // SAFETY: the program passes null or places for address and size.
    unsafe {
        out::write_if_wanted(dptr, address);
        out::write_if_wanted(bytes, size as usize);
    }
    Ok(())
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
    if hfunc.is_null() || name.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
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
        let (module, handle) = (context::mint(Kind::Module), context::mint(Kind::Function));
        let facts = Arc::new(facts::tests::none());
        let of = Subject::new(ImageHash([0; 32]), &[]);
        insert(module, Module::new(CUcontext::NULL, (facts, of), None, None));
        let layout = Layout::new(Vec::new()).unwrap();
        let (id, name) = (FunctionId(handle), c"kernel".to_owned());
        FUNCTIONS.insert(handle, Function::new(id, module, name, layout, HashMap::new(), None));
        CUfunction(handle as usize)
    }

    /// Answers questions with how many commands have come, and returns what these were when the
    /// client is gone.
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

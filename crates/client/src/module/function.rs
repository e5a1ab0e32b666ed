//! Functions: what is known of them, and their attributes.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use sluice_cuda::*;
use sluice_wire::{Command, Encode, FunctionId, FunctionInfo, ImageFacts, NamedFunction, commands};

use super::{MODULES, locked, owner, pending};
use crate::abi::ids::{Kind, Table};
use crate::abi::{ids, out};
use crate::launch::parameters::Layout;
use crate::launch::staged::Staged;
use crate::launch::trials::Trials;
use crate::session::Session;
use crate::session::answers::Answers;
use crate::{context, session};

#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) id: FunctionId,
    pub(super) module: u64,
    pub(super) name: CString,
    pub(crate) layout: Layout,
    /// Threads that one block of this function can have.
    pub(crate) threads_max: u64,
    /// Bytes of dynamic shared memory that a launch may ask for.
    dynamic_shared_max: AtomicU32,
    pub(super) attributes: Mutex<HashMap<CUfunction_attribute, i32>>,
    /// The device of a library's function, or [`NOWHERE`]; others have their own function for it.
    pub(super) home: Option<AtomicI32>,
    pub(super) elsewhere: Mutex<HashMap<CUdevice, u64>>,
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

pub(super) static FUNCTIONS: Table<Function> = Table::new();

/// The context of a function's module.
pub(crate) fn owner_of_function(handle: u64) -> Option<CUcontext> {
    owner(function(handle as usize).ok()?.module)
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

/// The node has described a function.
pub(crate) fn learn(module: u64, name: &CStr, info: &FunctionInfo) {
    if let (Some(module), Ok(name)) = (MODULES.get(module), name.to_str()) {
        let (facts, of) = module.facts();
        let described = NamedFunction { name: name.to_owned(), info: info.clone() };
        facts.learn(ImageFacts { functions: vec![described], ..of.facts() });
    }
}

impl Function {
    pub(super) fn new(
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

    pub(super) fn set_attribute(
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

    pub(super) fn parameter(
        &self,
        index: usize,
        offset: *mut usize,
        size: *mut usize,
    ) -> Result<(), CUresult> {
        let &(at, bytes) = self.layout.places.get(index).ok_or(CUresult::INVALID_VALUE)?;
        // SAFETY: the program passes a place for the offset, and null or one for the size.
        unsafe {
            out::write(offset, at as usize)?;
            out::write_if_wanted(size, bytes as usize);
        }
        Ok(())
    }
}

//! Code in a context: modules, libraries, functions and their launches. What belongs here needs no
//! compiler: code is behind the seam of [`crate::device::machine`]. This file has modules, with
//! their variables in device memory (CUDA Driver API, Module Management).

pub(crate) mod function;
pub(crate) mod launch;
pub(crate) mod library;
pub(crate) mod occupancy;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_cuda::CUmodule;
use sluice_ir::lower::{Global, GlobalRelocation, Reference as ReferenceKind, function_address};

use crate::base::messages;
use crate::base::status::{Result, Status};
use crate::base::table::Table;
use crate::context::Context;
use crate::device::account;
use crate::device::machine::Code;
use crate::device::{Device, driver};
use crate::image::reference::{Bound, Reference, SurfaceReference, TextureReference};
use crate::memory;
use crate::memory::allocation::{self, Kind};
use crate::module::function::{FUNCTIONS, Function, Settings};

pub(crate) static MODULES: Table<Module> = Table::new(8);

pub(crate) struct Module {
    pub(crate) handle: usize,
    /// Handle of its context.
    pub(crate) context: usize,
    pub(crate) device: &'static Device,
    pub(crate) code: Arc<dyn Code>,
    /// Variables that have their place, by name. The others get theirs when something refers to
    /// them.
    variables: Mutex<BTreeMap<String, Placed>>,
    /// Handles of the functions asked for so far, by name.
    functions: Mutex<BTreeMap<String, usize>>,
    /// What variables that are no memory have stood for so far, by name.
    references: Mutex<BTreeMap<String, Reference>>,
}

/// A variable in device memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) is_managed: bool,
    allocation: u64,
}

/// Variables that are being placed.
struct Placing<'a> {
    placed: &'a mut BTreeMap<String, Placed>,
    /// The names of those that had no place before.
    new: Vec<String>,
}

/// What stands for the variables that a kernel mentions.
#[derive(Clone)]
pub(crate) struct Globals {
    /// Where they lie; 0 for references.
    addresses: Arc<[u64]>,
    /// Those that are no memory, by their place among the addresses.
    references: Arc<[(usize, Reference)]>,
}

impl Globals {
    /// What a launch that is submitted now finds, and what has to be held until it has ended.
    pub(crate) fn now(&self) -> (Arc<[u64]>, Vec<Arc<Bound>>) {
        if self.references.is_empty() {
            return (Arc::clone(&self.addresses), Vec::new());
        }
        let (mut values, mut held) = (self.addresses.to_vec(), Vec::new());
        for (index, reference) in self.references.iter() {
            if let Some(bound) = reference.bound() {
                values[*index] = bound.0;
                held.push(bound);
            }
        }
        (values.into(), held)
    }
}

impl Module {
    pub(crate) fn create(context: &Context, code: Arc<dyn Code>) -> Arc<Self> {
        MODULES.insert(|handle| Self {
            handle,
            context: context.owner(),
            device: context.device,
            code,
            variables: Mutex::default(),
            functions: Mutex::default(),
            references: Mutex::default(),
        })
    }

    pub(crate) fn get(handle: CUmodule) -> Result<Arc<Self>> {
        driver()?;
        MODULES.get(handle.0).ok_or(Status::INVALID_HANDLE)
    }

    fn variables(&self) -> MutexGuard<'_, BTreeMap<String, Placed>> {
        self.variables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Places variables. If one cannot be placed, none is: others may point to it.
    fn placing<T>(&self, act: impl FnOnce(&mut Placing<'_>) -> Result<T>) -> Result<T> {
        let mut placed = self.variables();
        let mut placing = Placing { placed: &mut placed, new: Vec::new() };
        let done = act(&mut placing);
        if done.is_err() {
            for name in placing.new {
                placed.remove(&name).inspect(release);
            }
        }
        done
    }

    /// The variable of this name, placed now if it has no place yet (`cuModuleGetGlobal`).
    pub(crate) fn variable(&self, name: &str) -> Result<Placed> {
        self.placing(|placing| {
            if let Some(&known) = placing.placed.get(name) {
                return Ok(known);
            }
            let global = self.code.global(name)?;
            if global.reference.is_some() { Err(Status::NOT_FOUND) } else { self.place(placing, global, &[]) }
        })
    }

    /// The texture or surface reference of this name, always the same (`cuModuleGetTexRef`,
    /// `cuModuleGetSurfRef`).
    pub(crate) fn reference(&self, name: &str) -> Result<Reference> {
        let mut references = self.references.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = references.get(name) {
            return Ok(known.clone());
        }
        let global = self.code.global(name)?;
        let reference = match global.reference {
            _ if global.is_extern => return Err(Status::NOT_FOUND),
            Some(ReferenceKind::Texture) => {
                Reference::Texture(TextureReference::create_in(self.context, self.device, self.handle))
            }
            Some(ReferenceKind::Surface) => Reference::Surface(SurfaceReference::create()),
            Some(ReferenceKind::Sampler) | None => return Err(Status::NOT_FOUND),
        };
        references.insert(name.to_owned(), reference.clone());
        Ok(reference)
    }

    /// What stands for the variables in `names`, in their order; those that are not the module's
    /// own are in `known`.
    pub(crate) fn globals(&self, names: &[String], known: &[Global]) -> Result<Globals> {
        self.placing(|placing| {
            let (mut addresses, mut references) = (Vec::new(), Vec::new());
            for (index, name) in names.iter().enumerate() {
                if known.iter().any(|global| global.name == *name && global.reference.is_some()) {
                    references.push((index, self.reference(name)?));
                    addresses.push(0);
                } else {
                    addresses.push(self.find_or_place(placing, name, known)?.address);
                }
            }
            Ok(Globals { addresses: addresses.into(), references: references.into() })
        })
    }

    fn find_or_place(&self, placing: &mut Placing<'_>, name: &str, known: &[Global]) -> Result<Placed> {
        if let Some(&there) = placing.placed.get(name) {
            return Ok(there);
        }
        let global = match known.iter().find(|global| global.name == name) {
            Some(global) => global.clone(),
            None => self.code.global(name)?,
        };
        self.place(placing, global, known)
    }

    /// Gives a variable its place and its first contents, and places what its contents point to.
    fn place(&self, placing: &mut Placing<'_>, global: Global, known: &[Global]) -> Result<Placed> {
        if global.is_extern {
            messages::say(format_args!(
                "variable {} is declared in this module and defined in another",
                global.name
            ));
            return Err(Status::NOT_FOUND);
        }
        let bytes = global.bytes.max(1);
        let address = account::allocate(self.device, bytes)?;
        let kind = if global.is_managed { Kind::ManagedGlobal } else { Kind::Global };
        let allocation = allocation::insert(address, bytes, kind, self.context, self.device.ordinal);
        let there = Placed { address, bytes: global.bytes, is_managed: global.is_managed, allocation };
        // Known before its contents are: they may point back here.
        placing.placed.insert(global.name.clone(), there);
        placing.new.push(global.name.clone());
        let init = &global.init[..global.init.len().min(bytes as usize)];
        // SAFETY: the memory was allocated just now with this size; no kernel knows of it yet.
        unsafe {
            std::ptr::write_bytes(address as *mut u8, 0, bytes as usize);
            std::ptr::copy_nonoverlapping(init.as_ptr(), address as *mut u8, init.len());
        }
        for relocation in &global.relocations {
            let target = match self.code.is_function(&relocation.symbol) {
                true => function_address(&relocation.symbol),
                false => self.find_or_place(placing, &relocation.symbol, known)?.address,
            };
            store_address(there, relocation, target)?;
        }
        Ok(there)
    }

    /// The function of this name, always with the same handle.
    pub(crate) fn function(self: &Arc<Self>, name: &str, settings: &Arc<Settings>) -> Result<Arc<Function>> {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = functions.get(name).and_then(|&handle| FUNCTIONS.get(handle)) {
            return Ok(function);
        }
        let function = Function::create(self, name, Arc::clone(settings))?;
        functions.insert(name.to_owned(), function.handle);
        Ok(function)
    }

    /// Takes the handles of the module and of its functions away. Launches under way keep what they
    /// need.
    pub(crate) fn unload(&self) {
        MODULES.remove(self.handle);
        let functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        for &handle in functions.values() {
            FUNCTIONS.remove(handle);
        }
        self.references.lock().unwrap_or_else(PoisonError::into_inner).values().for_each(Reference::end);
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let variables = std::mem::take(self.variables.get_mut().unwrap_or_else(PoisonError::into_inner));
        variables.values().for_each(release);
    }
}

/// Frees a variable, unless its context was destroyed and has freed it already.
fn release(placed: &Placed) {
    if let Some(freed) = allocation::remove(placed.address, |a| a.id == placed.allocation) {
        memory::release(&freed);
    }
}

/// Writes the bits of an address that a relocation asks for.
fn store_address(variable: Placed, relocation: &GlobalRelocation, address: u64) -> Result<()> {
    let value = address.wrapping_add_signed(relocation.addend) & relocation.mask;
    let value = if relocation.mask == 0 { 0 } else { value >> relocation.mask.trailing_zeros() };
    let end = relocation.offset.checked_add(u64::from(relocation.bytes));
    if relocation.bytes > 8 || end.is_none_or(|end| end > variable.bytes) {
        return Err(Status::INVALID_PTX);
    }
    let bytes = value.to_le_bytes();
    // SAFETY: checked to lie in the variable, which no kernel knows of yet.
    unsafe {
        let to = (variable.address + relocation.offset) as *mut u8;
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, relocation.bytes as usize);
    }
    Ok(())
}

/// A module's variable that has its place in device memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    pub module: CUmodule,
    pub name: String,
    pub address: u64,
    /// Its size.
    pub bytes: u64,
}

/// All variables that have their place, in the order in which they got it.
pub fn variables() -> Vec<Variable> {
    let mut found: Vec<(u64, Variable)> = MODULES
        .all()
        .iter()
        .flat_map(|module| {
            let variable = |(name, placed): (&String, &Placed)| {
                let (name, module) = (name.clone(), CUmodule(module.handle));
                let variable = Variable { module, name, address: placed.address, bytes: placed.bytes };
                (placed.allocation, variable)
            };
            module.variables().iter().map(variable).collect::<Vec<_>>()
        })
        .collect();
    found.sort_by_key(|(allocation, _)| *allocation);
    found.into_iter().map(|(_, variable)| variable).collect()
}

/// Gives a variable of a module its place, unless it has it, and says where that is; `None` where
/// there is no such variable, or no memory for it.
pub fn place_variable(module: CUmodule, name: &str) -> Option<u64> {
    let placed = Module::get(module).and_then(|module| module.variable(name));
    placed.ok().map(|placed| placed.address)
}

/// Forgets the modules of a context that is gone.
pub(crate) fn context_destroyed(context: usize) {
    for module in MODULES.remove_all(|module| module.context == context) {
        module.unload();
    }
}

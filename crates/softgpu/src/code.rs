//! The PTX of one image, and its entries compiled on first use.
//!
//! Code belongs to no context: modules of several contexts, and libraries, share it. Loading indexes the text only;
//! real images hold hundreds of entries of which a program uses a few.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use sluice_ir::lower::{Global, lower_kernel, module_globals};
use sluice_ir::passes;
use sluice_jit::CompiledKernel;
use sluice_ptx::ModuleIndex;
use sluice_ptx::ast::Variable;

use crate::execution;
use crate::status::{Result, Status};

/// Texts up to this size are parsed whole on load, so that a mistake shows there, as with the hardware driver. In
/// larger ones a mistake in a body shows when its entry is used.
const PARSED_WHOLE_MAX: usize = 256 << 10;

pub(crate) struct Code {
    index: ModuleIndex,
    entries: Mutex<HashMap<String, Arc<Slot>>>,
}

/// An entry's place: empty until somebody asks, then its code or why there is none.
type Slot = OnceLock<Result<Arc<Entry>>>;

/// A compiled entry.
pub(crate) struct Entry {
    pub(crate) kernel: Arc<CompiledKernel>,
    /// The module variables that it and its functions use, with their first contents.
    pub(crate) globals: Vec<Global>,
}

impl Code {
    /// Indexes a PTX text. The error is a message for the JIT error log.
    pub(crate) fn new(text: &[u8]) -> std::result::Result<Arc<Self>, String> {
        if text.len() <= PARSED_WHOLE_MAX {
            sluice_ptx::parse(text).map_err(|error| error.to_string())?;
        }
        let index = ModuleIndex::new(text).map_err(|error| error.to_string())?;
        if index.address_size() != 64 {
            return Err(format!("{}-bit addresses: only 64-bit PTX runs", index.address_size()));
        }
        Ok(Arc::new(Self { index, entries: Mutex::default() }))
    }

    /// The entry's signature; device functions are not entries.
    pub(crate) fn signature(&self, name: &str) -> Result<&sluice_ptx::ast::Function> {
        self.index.function(name).filter(|function| function.is_entry).ok_or(Status::NOT_FOUND)
    }

    /// Names of all entries, in the order of the text.
    pub(crate) fn entry_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for function in self.index.functions().iter().filter(|function| function.is_entry) {
            if !names.contains(&&*function.name) {
                names.push(&function.name);
            }
        }
        names
    }

    /// Version of the virtual architecture that the text is for: 90 for `sm_90a`.
    pub(crate) fn ptx_version(&self) -> i32 {
        let target = self.index.target().first().map_or("", |target| &**target);
        let digits: String = target.chars().filter(char::is_ascii_digit).collect();
        digits.parse().unwrap_or(0)
    }

    /// Compiles an entry, or returns it compiled. Others who ask for the same one wait.
    pub(crate) fn entry(&self, name: &str) -> Result<Arc<Entry>> {
        let place = {
            let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(entries.entry(name.to_owned()).or_default())
        };
        place.get_or_init(|| self.compile(name)).clone()
    }

    fn compile(&self, name: &str) -> Result<Arc<Entry>> {
        let complain = |error: &dyn std::fmt::Display| eprintln!("sluice: kernel {name}: {error}");
        let module = self.index.closure(name).map_err(|error| {
            complain(&error);
            Status::INVALID_PTX
        })?;
        let mut kernel = lower_kernel(&module, name).map_err(|error| {
            complain(&error);
            Status::INVALID_PTX
        })?;
        passes::pipeline(&mut kernel);
        let compiled = execution::compiler()?.compile(&kernel).map_err(|error| {
            complain(&error);
            Status::INVALID_PTX
        })?;
        Ok(Arc::new(Entry { kernel: Arc::new(compiled), globals: module_globals(&module) }))
    }

    /// Whether the name is a device function's or an entry's.
    pub(crate) fn is_function(&self, name: &str) -> bool {
        self.index.function(name).is_some()
    }

    /// The module variable of this name, with its first contents.
    pub(crate) fn global(&self, name: &str) -> Result<Global> {
        let variable: Variable =
            self.index.parse_variable(name).ok_or(Status::NOT_FOUND)?.map_err(|error| {
                eprintln!("sluice: variable {name}: {error}");
                Status::INVALID_PTX
            })?;
        let module = sluice_ptx::ast::Module { variables: vec![variable], ..Default::default() };
        module_globals(&module).pop().ok_or(Status::NOT_FOUND)
    }
}

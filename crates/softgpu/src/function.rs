//! Functions: entries of a module, with what a program can ask and set about them.

use std::ffi::CString;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use sluice_cuda::CUfunction_attribute;
use sluice_jit::CompiledKernel;
use sluice_ptx::ast;

use crate::launch::{PARAMS_MAX, SHARED_DEFAULT, SHARED_OPT_IN};
use crate::module::Module;
use crate::status::{Result, Status};
use crate::table::Table;

pub(crate) static FUNCTIONS: Table<Function> = Table::new(9);

/// What `cuFuncGetAttribute` answers for registers per thread. Compiled kernels keep values in memory and have no
/// such limit; programs divide the register file by this number, which then limits nothing.
const REGISTERS: i32 = 32;
/// What `cuFuncGetAttribute` answers for the architecture of the machine code: the device's own.
const BINARY_VERSION: i32 = 120;

pub(crate) struct Function {
    pub(crate) handle: usize,
    pub(crate) name: String,
    /// The same for C.
    pub(crate) c_name: CString,
    pub(crate) module: Arc<Module>,
    settings: Arc<Settings>,
    compiled: OnceLock<Result<Compiled>>,
}

/// What can be set about a function; a library's kernel and its functions share it.
#[derive(Debug)]
pub(crate) struct Settings {
    dynamic_shared_max: AtomicU32,
    carveout: AtomicI32,
    non_portable_cluster: AtomicI32,
    cluster_policy: AtomicI32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            dynamic_shared_max: AtomicU32::new(SHARED_DEFAULT),
            carveout: AtomicI32::new(-1),
            non_portable_cluster: AtomicI32::new(0),
            cluster_policy: AtomicI32::new(0),
        }
    }
}

/// Code ready to run in the function's module.
#[derive(Clone)]
pub(crate) struct Compiled {
    pub(crate) code: Arc<CompiledKernel>,
    /// Addresses of the module variables that the code asks for.
    pub(crate) globals: Arc<[u64]>,
}

impl Function {
    pub(crate) fn create(module: &Arc<Module>, name: &str, settings: Arc<Settings>) -> Result<Arc<Self>> {
        module.code.signature(name)?;
        let c_name = CString::new(name).map_err(|_| Status::INVALID_VALUE)?;
        Ok(FUNCTIONS.insert(|handle| Self {
            handle,
            name: name.to_owned(),
            c_name,
            module: Arc::clone(module),
            settings,
            compiled: OnceLock::new(),
        }))
    }

    fn signature(&self) -> Result<&ast::Function> {
        self.module.code.signature(&self.name)
    }

    /// The function's code, compiled on the first call.
    pub(crate) fn compiled(&self) -> Result<&Compiled> {
        let compile = || {
            let entry = self.module.code.entry(&self.name)?;
            let globals = self.module.addresses(entry.kernel.globals(), &entry.globals)?;
            Ok(Compiled { code: Arc::clone(&entry.kernel), globals })
        };
        self.compiled.get_or_init(compile).as_ref().map_err(|&status| status)
    }

    pub(crate) fn is_loaded(&self) -> bool {
        self.compiled.get().is_some()
    }

    /// Offset and size in bytes of each parameter in the parameter buffer.
    pub(crate) fn params(&self) -> Result<Vec<(u64, u64)>> {
        params(self.signature()?)
    }

    /// Dynamic shared memory that a launch may ask for.
    pub(crate) fn dynamic_shared_max(&self) -> u32 {
        self.settings.dynamic_shared_max.load(Ordering::Relaxed)
    }

    /// Threads that a block may have.
    pub(crate) fn threads_max(&self) -> u32 {
        self.signature().map_or(1024, threads_max)
    }

    pub(crate) fn required_threads(&self) -> Option<[u32; 3]> {
        self.signature().ok()?.directives.required_threads
    }

    pub(crate) fn attribute(&self, attribute: CUfunction_attribute) -> Result<i32> {
        let code = || self.compiled().map(|compiled| &compiled.code);
        let settings = &self.settings;
        Ok(match attribute {
            CUfunction_attribute::MAX_THREADS_PER_BLOCK => self.threads_max() as i32,
            CUfunction_attribute::SHARED_SIZE_BYTES => code()?.static_shared_bytes() as i32,
            // Constant variables are counted with their module, not with each function.
            CUfunction_attribute::CONST_SIZE_BYTES => 0,
            CUfunction_attribute::LOCAL_SIZE_BYTES => code()?.local_bytes() as i32,
            CUfunction_attribute::NUM_REGS => REGISTERS,
            CUfunction_attribute::PTX_VERSION => self.module.code.ptx_version(),
            CUfunction_attribute::BINARY_VERSION => BINARY_VERSION,
            CUfunction_attribute::CACHE_MODE_CA => 0,
            CUfunction_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES => {
                settings.dynamic_shared_max.load(Ordering::Relaxed) as i32
            }
            CUfunction_attribute::PREFERRED_SHARED_MEMORY_CARVEOUT => {
                settings.carveout.load(Ordering::Relaxed)
            }
            CUfunction_attribute::CLUSTER_SIZE_MUST_BE_SET => {
                i32::from(self.signature()?.directives.explicit_cluster)
            }
            CUfunction_attribute::REQUIRED_CLUSTER_WIDTH => self.required_cluster(0)?,
            CUfunction_attribute::REQUIRED_CLUSTER_HEIGHT => self.required_cluster(1)?,
            CUfunction_attribute::REQUIRED_CLUSTER_DEPTH => self.required_cluster(2)?,
            CUfunction_attribute::NON_PORTABLE_CLUSTER_SIZE_ALLOWED => {
                settings.non_portable_cluster.load(Ordering::Relaxed)
            }
            CUfunction_attribute::CLUSTER_SCHEDULING_POLICY_PREFERENCE => {
                settings.cluster_policy.load(Ordering::Relaxed)
            }
            _ => return Err(Status::INVALID_VALUE),
        })
    }

    fn required_cluster(&self, dimension: usize) -> Result<i32> {
        let cluster = self.signature()?.directives.required_cluster;
        Ok(cluster.map_or(0, |cluster| cluster[dimension] as i32))
    }

    /// Sets one of the attributes that can be set.
    pub(crate) fn set_attribute(&self, attribute: CUfunction_attribute, value: i32) -> Result<()> {
        if attribute == CUfunction_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES {
            let fixed = self.compiled()?.code.static_shared_bytes();
            let fits = u32::try_from(value).is_ok_and(|value| value.saturating_add(fixed) <= SHARED_OPT_IN);
            if !fits {
                return Err(Status::INVALID_VALUE);
            }
        }
        self.settings.set(attribute, value)
    }
}

impl Settings {
    pub(crate) fn set(&self, attribute: CUfunction_attribute, value: i32) -> Result<()> {
        match attribute {
            CUfunction_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES => {
                let value = u32::try_from(value).ok().filter(|&value| value <= SHARED_OPT_IN);
                self.dynamic_shared_max.store(value.ok_or(Status::INVALID_VALUE)?, Ordering::Relaxed);
            }
            CUfunction_attribute::PREFERRED_SHARED_MEMORY_CARVEOUT if (-1..=100).contains(&value) => {
                self.carveout.store(value, Ordering::Relaxed);
            }
            CUfunction_attribute::NON_PORTABLE_CLUSTER_SIZE_ALLOWED if (0..=1).contains(&value) => {
                self.non_portable_cluster.store(value, Ordering::Relaxed);
            }
            CUfunction_attribute::CLUSTER_SCHEDULING_POLICY_PREFERENCE if (0..=2).contains(&value) => {
                self.cluster_policy.store(value, Ordering::Relaxed);
            }
            _ => return Err(Status::INVALID_VALUE),
        }
        Ok(())
    }
}

/// Threads that a block of this entry may have (`.maxntid`, `.reqntid`), at most 1024.
fn threads_max(function: &ast::Function) -> u32 {
    let directives = &function.directives;
    let limit = directives.required_threads.or(directives.max_threads);
    limit
        .map_or(1024, |limit| limit.iter().fold(1u32, |product, &n| product.saturating_mul(n)).clamp(1, 1024))
}

/// Offset and size in bytes of each parameter of an entry.
pub(crate) fn params(function: &ast::Function) -> Result<Vec<(u64, u64)>> {
    let slots: Vec<(u64, u64)> = function.params.iter().map(|param| (param.offset, param.size)).collect();
    let fit = |&(offset, size): &(u64, u64)| offset.checked_add(size).is_some_and(|end| end <= PARAMS_MAX);
    if slots.iter().all(fit) { Ok(slots) } else { Err(Status::INVALID_PTX) }
}

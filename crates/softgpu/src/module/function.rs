//! Functions: entries of a module, with what a program can ask and set about them.

use std::ffi::CString;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use sluice_cuda::CUfunction_attribute;

use crate::base::status::{Result, Status};
use crate::base::table::Table;
use crate::device::machine::{Kernel, Limits, Resources, Shape, Signature};
use crate::module::{Globals, Module};

pub(crate) static FUNCTIONS: Table<Function> = Table::new(9);

pub(crate) struct Function {
    pub(crate) handle: usize,
    pub(crate) name: String,
    /// The name as a C string.
    pub(crate) c_name: CString,
    pub(crate) module: Arc<Module>,
    pub(crate) signature: Signature,
    settings: Arc<Settings>,
    compiled: OnceLock<Result<Compiled>>,
}

/// What can be set about a function; a library's kernel and its functions share it.
#[derive(Debug)]
pub(crate) struct Settings {
    /// What was asked for; 0 is the usual.
    dynamic_shared_max: AtomicU32,
    carveout: AtomicI32,
    non_portable_cluster: AtomicI32,
    cluster_policy: AtomicI32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            dynamic_shared_max: AtomicU32::new(0),
            carveout: AtomicI32::new(-1),
            non_portable_cluster: AtomicI32::new(0),
            cluster_policy: AtomicI32::new(0),
        }
    }
}

/// Code ready to run in the function's module.
#[derive(Clone)]
pub(crate) struct Compiled {
    pub(crate) code: Arc<dyn Kernel>,
    /// The module variables that the code asks for.
    pub(crate) globals: Globals,
}

impl Function {
    pub(crate) fn create(module: &Arc<Module>, name: &str, settings: Arc<Settings>) -> Result<Arc<Self>> {
        let signature = module.code.signature(name)?;
        let c_name = CString::new(name).map_err(|_| Status::INVALID_VALUE)?;
        Ok(FUNCTIONS.insert(|handle| Self {
            handle,
            name: name.to_owned(),
            c_name,
            module: Arc::clone(module),
            signature,
            settings,
            compiled: OnceLock::new(),
        }))
    }

    /// Of the device that it runs on.
    pub(crate) fn limits(&self) -> &'static Limits {
        &self.module.device.limits
    }

    /// The function's code, compiled on the first call.
    pub(crate) fn compiled(&self) -> Result<&Compiled> {
        let compile = || {
            let code = self.module.code.kernel(&self.name)?;
            let globals = self.module.globals(code.globals(), code.own_globals())?;
            Ok(Compiled { code, globals })
        };
        let compiled = match self.compiled.get() {
            Some(compiled) => compiled,
            None => match compile() {
                // A later call may find memory for the variables.
                Err(Status::OUT_OF_MEMORY) => return Err(Status::OUT_OF_MEMORY),
                done => self.compiled.get_or_init(|| done),
            },
        };
        compiled.as_ref().map_err(|&status| status)
    }

    pub(crate) fn is_loaded(&self) -> bool {
        self.compiled.get().is_some()
    }

    pub(crate) fn resources(&self) -> Result<Resources> {
        Ok(self.compiled()?.code.resources())
    }

    /// Dynamic shared memory that a launch may ask for.
    pub(crate) fn dynamic_shared_max(&self) -> u32 {
        match self.settings.dynamic_shared_max.load(Ordering::Relaxed) {
            0 => self.limits().shared_default,
            asked => asked,
        }
    }

    /// Blocks that a cluster of this function may have.
    pub(crate) fn cluster_max(&self) -> u32 {
        let most = match self.settings.non_portable_cluster.load(Ordering::Relaxed) {
            0 => self.limits().cluster,
            _ => 2 * self.limits().cluster,
        };
        most.min(self.signature.max_cluster_blocks.unwrap_or(most).max(1))
    }

    /// The clusters of a launch: those that the launch states, or that the kernel requires; None
    /// for none. They have to be as the kernel says, and have to divide the grid (CUDA C++
    /// Programming Guide, Thread Block Clusters).
    pub(crate) fn cluster(&self, shape: &Shape) -> Result<Option<[u32; 3]>> {
        let required = self.signature.required_cluster;
        let Some(cluster) = shape.cluster.or(required) else {
            let is_missing = self.signature.explicit_cluster;
            return if is_missing { Err(Status::INVALID_CLUSTER_SIZE) } else { Ok(None) };
        };
        let blocks = cluster.iter().fold(1u32, |product, &n| product.saturating_mul(n));
        if blocks > self.cluster_max() || required.is_some_and(|required| required != cluster) {
            return Err(Status::INVALID_CLUSTER_SIZE);
        }
        let divides = shape.grid.iter().zip(cluster).all(|(&grid, n)| n != 0 && grid.is_multiple_of(n));
        if divides { Ok(Some(cluster)) } else { Err(Status::INVALID_VALUE) }
    }

    pub(crate) fn attribute(&self, attribute: CUfunction_attribute) -> Result<i32> {
        let (settings, signature) = (&self.settings, &self.signature);
        let capability = self.limits().capability;
        Ok(match attribute {
            CUfunction_attribute::MAX_THREADS_PER_BLOCK => signature.threads_max as i32,
            CUfunction_attribute::SHARED_SIZE_BYTES => self.resources()?.shared as i32,
            CUfunction_attribute::CONST_SIZE_BYTES => self.resources()?.constant as i32,
            CUfunction_attribute::LOCAL_SIZE_BYTES => self.resources()?.local as i32,
            CUfunction_attribute::NUM_REGS => self.resources()?.registers as i32,
            CUfunction_attribute::PTX_VERSION => self.module.code.ptx_version(),
            CUfunction_attribute::BINARY_VERSION => (10 * capability.major + capability.minor) as i32,
            CUfunction_attribute::CACHE_MODE_CA => 0,
            CUfunction_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES => self.dynamic_shared_max() as i32,
            CUfunction_attribute::PREFERRED_SHARED_MEMORY_CARVEOUT => {
                settings.carveout.load(Ordering::Relaxed)
            }
            CUfunction_attribute::CLUSTER_SIZE_MUST_BE_SET => i32::from(signature.explicit_cluster),
            CUfunction_attribute::REQUIRED_CLUSTER_WIDTH => self.required_cluster(0),
            CUfunction_attribute::REQUIRED_CLUSTER_HEIGHT => self.required_cluster(1),
            CUfunction_attribute::REQUIRED_CLUSTER_DEPTH => self.required_cluster(2),
            CUfunction_attribute::NON_PORTABLE_CLUSTER_SIZE_ALLOWED => {
                settings.non_portable_cluster.load(Ordering::Relaxed)
            }
            CUfunction_attribute::CLUSTER_SCHEDULING_POLICY_PREFERENCE => {
                settings.cluster_policy.load(Ordering::Relaxed)
            }
            _ => return Err(Status::INVALID_VALUE),
        })
    }

    fn required_cluster(&self, dimension: usize) -> i32 {
        self.signature.required_cluster.map_or(0, |cluster| cluster[dimension] as i32)
    }

    /// Sets one of the attributes that can be set.
    pub(crate) fn set_attribute(&self, attribute: CUfunction_attribute, value: i32) -> Result<()> {
        if attribute == CUfunction_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES {
            let (fixed, most) = (self.resources()?.shared, self.limits().shared_opt_in);
            let fits = u32::try_from(value).is_ok_and(|value| value.saturating_add(fixed) <= most);
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
                let value = u32::try_from(value).map_err(|_| Status::INVALID_VALUE)?;
                self.dynamic_shared_max.store(value, Ordering::Relaxed);
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

//! The hidden tables: what `cuGetExportTable` answers.
//!
//! NVIDIA's runtime and libraries ask the driver for tables of functions by UUID. Nothing documents
//! them; without them no program that links the CUDA runtime gets past its first call. This crate
//! holds one file per table, each slot with its provenance:
//!
//! - *measured*: observed from what the runtime, cuBLAS and cuFFT of CUDA 12.9 and 13.x do with an
//!   answer;
//! - *public*: described by the source of ZLUDA (`dark_api`, MIT/Apache-2.0) or of scuda.
//!
//! The tables ask their surroundings for little, see [`Driver`]; so the client library and the
//! stand-alone software GPU share them. A slot that no program was seen to call answers
//! [`CUresult::NOT_SUPPORTED`], and a table that is not here is not found: its callers continue
//! without it.

mod context_checks;
mod context_local_storage;
mod cudart_interface;
mod cupti;
mod integrity_check;
mod launch_hints;
mod md2;
mod runtime_callback_hooks;
mod tools_context;
mod tools_module;
mod tools_tls;

use std::ffi::c_void;
use std::sync::OnceLock;

use sluice_cuda::{CUcontext, CUdevice, CUfunction, CUmodule, CUresult, CUuuid};

pub use context_local_storage::context_destroyed;

/// What the tables need from the driver they belong to.
pub trait Driver: Sync {
    /// The calling thread's context; `NULL` if it has none.
    fn current_context(&self) -> Result<CUcontext, CUresult>;
    /// A number that no other context of this process has ever had; `ctx` is not `NULL`.
    fn context_number(&self, ctx: CUcontext) -> Result<u64, CUresult>;
    /// The handle of a device's primary context, whether or not it is retained.
    fn primary_context(&self, device: CUdevice) -> Result<CUcontext, CUresult>;
    /// What `cuDriverGetVersion` says, 1000 * major + 10 * minor.
    fn driver_version(&self) -> u32;
    /// Every device of this driver, in the order of their ordinals.
    fn devices(&self) -> Result<Vec<DeviceIdentity>, CUresult>;
    /// Loads a fat binary, or its wrapper, as `cuModuleLoadData` does.
    ///
    /// # Safety
    /// `image` is what a caller would hand to `cuModuleLoadData`.
    unsafe fn load_module(&self, image: *const c_void) -> Result<CUmodule, CUresult>;
    /// Runs what a slot does, as the driver runs its own functions; also inside one of these, in
    /// the destructors of [`context_destroyed`].
    fn enter(&self, slot: &mut dyn FnMut() -> CUresult) -> CUresult {
        slot()
    }
    /// Every function of a module, as `cuModuleEnumerateFunctions` lists them.
    fn module_functions(&self, module: CUmodule) -> Result<Vec<CUfunction>, CUresult>;
}

/// What the integrity answer says about one device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceIdentity {
    pub uuid: CUuuid,
    pub pci_domain: i32,
    pub pci_bus: i32,
    pub pci_device: i32,
}

/// The table that `uuid` names, in the form that `cuGetExportTable` hands out. The first caller's
/// `driver` serves every table of the process.
pub fn table(uuid: &CUuuid, driver: &'static dyn Driver) -> Option<*const c_void> {
    let _ = DRIVER.set(driver);
    let uuid = uuid.bytes;
    let (_, table) = TABLES.iter().find(|(known, _)| *known == uuid)?;
    Some(table())
}

type TableAddress = fn() -> *const c_void;

/// The tables served. UUIDs in the byte order in which callers pass them.
static TABLES: &[([u8; 16], TableAddress)] = &[
    (cudart_interface::UUID, cudart_interface::address),
    (tools_tls::UUID, tools_tls::address),
    (runtime_callback_hooks::UUID, runtime_callback_hooks::address),
    (context_local_storage::UUID, context_local_storage::address),
    (context_checks::UUID, context_checks::address),
    (tools_context::UUID, tools_context::address),
    (tools_module::UUID, tools_module::address),
    (integrity_check::UUID, integrity_check::address),
    (launch_hints::UUID, launch_hints::address),
    (cupti::UUID, cupti::address),
];

static DRIVER: OnceLock<&'static dyn Driver> = OnceLock::new();

/// The driver behind the tables. A slot can be called only after [`table`] has handed its table
/// out.
fn driver() -> Result<&'static dyn Driver, CUresult> {
    DRIVER.get().copied().ok_or(CUresult::NOT_INITIALIZED)
}

/// Runs the body of a slot that uses more than its arguments.
fn entered(mut body: impl FnMut() -> CUresult) -> CUresult {
    match driver() {
        Ok(driver) => driver.enter(&mut body),
        Err(error) => error,
    }
}

/// One table: `N` words, of which most begin with their own size in bytes.
#[repr(transparent)]
struct Table<const N: usize>([*const c_void; N]);

// SAFETY: a table is constant; its words are sizes and addresses of functions, which any thread may
// read.
unsafe impl<const N: usize> Sync for Table<N> {}

impl<const N: usize> Table<N> {
    /// A table that begins with its size and whose other slots answer "not supported".
    const fn sized() -> Self {
        let mut slots = [unknown_slot as *const c_void; N];
        slots[0] = std::ptr::without_provenance(N * size_of::<usize>());
        Table(slots)
    }

    const fn with(mut self, slot: usize, function: *const c_void) -> Self {
        self.0[slot] = function;
        self
    }

    fn address(&'static self) -> *const c_void {
        self.0.as_ptr().cast()
    }
}

/// Stands in every slot that no program has been seen to call.
extern "C" fn unknown_slot() -> CUresult {
    CUresult::NOT_SUPPORTED
}

/// Writes `value` through a caller's pointer, or says that the pointer is null.
///
/// # Safety
/// `to` is null or valid for writing a `T`.
unsafe fn write<T>(to: *mut T, value: Result<T, CUresult>) -> CUresult {
    if to.is_null() {
        return CUresult::INVALID_VALUE;
    }
    match value {
        Ok(value) => {
            // SAFETY: `to` is not null, and the caller vouches for the rest.
            unsafe { to.write(value) };
            CUresult::SUCCESS
        }
        Err(error) => error,
    }
}

#[cfg(test)]
mod tests;

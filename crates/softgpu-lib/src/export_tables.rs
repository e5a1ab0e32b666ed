//! `cuGetExportTable`, and what its tables ask of this driver.

#![allow(non_snake_case)] // CUDA's names

use std::ffi::c_void;

use sluice_cuda::{CUcontext, CUdevice, CUdevice_attribute, CUfunction, CUmodule, CUresult, CUuuid};
use sluice_export_tables::{DeviceIdentity, Driver};

use crate::driver::table;

/// The driver that serves the tables: the functions of its own table.
struct SoftwareGpu;

pub(crate) unsafe extern "C" fn cuGetExportTable(place: *mut *const c_void, id: *const CUuuid) -> CUresult {
    if place.is_null() || id.is_null() {
        return CUresult::INVALID_VALUE;
    }
    // SAFETY: not null, and a UUID by contract.
    let found = sluice_export_tables::table(unsafe { &*id }, &SoftwareGpu);
    // SAFETY: not null, and an output argument by contract.
    unsafe { place.write(found.unwrap_or(std::ptr::null())) };
    found.map_or(CUresult::NOT_FOUND, |_| CUresult::SUCCESS)
}

/// The result of a driver function that the software GPU has.
macro_rules! call {
    ($function:ident($($argument:expr),*)) => {
        match table().$function {
            // SAFETY: outputs are places on the stack, and inputs what the prototype says.
            Some(function) => unsafe { function($($argument),*) }.ok(),
            None => Err(CUresult::NOT_SUPPORTED),
        }
    };
}

impl Driver for SoftwareGpu {
    fn current_context(&self) -> Result<CUcontext, CUresult> {
        let mut context = CUcontext::NULL;
        call!(cuCtxGetCurrent(&mut context))?;
        Ok(context)
    }

    fn context_number(&self, context: CUcontext) -> Result<u64, CUresult> {
        let mut number = 0;
        call!(cuCtxGetId(context, &mut number))?;
        Ok(number)
    }

    fn primary_context(&self, device: CUdevice) -> Result<CUcontext, CUresult> {
        sluice_softgpu::primary_context(device)
    }

    fn driver_version(&self) -> u32 {
        sluice_softgpu::DRIVER_VERSION.cast_unsigned()
    }

    fn devices(&self) -> Result<Vec<DeviceIdentity>, CUresult> {
        let mut count = 0;
        call!(cuDeviceGetCount(&mut count))?;
        (0..count).map(identity).collect()
    }

    unsafe fn load_module(&self, image: *const c_void) -> Result<CUmodule, CUresult> {
        let mut module = CUmodule::NULL;
        call!(cuModuleLoadData(&mut module, image))?;
        Ok(module)
    }

    fn module_functions(&self, module: CUmodule) -> Result<Vec<CUfunction>, CUresult> {
        let mut count = 0;
        call!(cuModuleGetFunctionCount(&mut count, module))?;
        let mut functions = vec![CUfunction::NULL; count as usize];
        call!(cuModuleEnumerateFunctions(functions.as_mut_ptr(), count, module))?;
        Ok(functions)
    }
}

fn identity(device: CUdevice) -> Result<DeviceIdentity, CUresult> {
    let attribute = |attribute| -> Result<i32, CUresult> {
        let mut value = 0;
        call!(cuDeviceGetAttribute(&mut value, attribute, device))?;
        Ok(value)
    };
    let mut uuid = CUuuid::default();
    call!(cuDeviceGetUuid(&mut uuid, device))?;
    Ok(DeviceIdentity {
        uuid,
        pci_domain: attribute(CUdevice_attribute::PCI_DOMAIN_ID)?,
        pci_bus: attribute(CUdevice_attribute::PCI_BUS_ID)?,
        pci_device: attribute(CUdevice_attribute::PCI_DEVICE_ID)?,
    })
}

//! `cuGetExportTable`: the hidden tables, and what they ask of this library.

use std::ffi::c_void;

use sluice_cuda::*;
use sluice_export_tables::{DeviceIdentity, Driver};

use crate::abi::{call, out};
use crate::device::{self, entry_points};
use crate::module::{self, enumeration};
use crate::{context, session};

struct Client;

impl Driver for Client {
    fn current_context(&self) -> Result<CUcontext, CUresult> {
        session::get()?;
        Ok(context::current_or_null())
    }

    fn enter(&self, slot: &mut dyn FnMut() -> CUresult) -> CUresult {
        call::entered_or_inside(slot)
    }

    fn context_number(&self, ctx: CUcontext) -> Result<u64, CUresult> {
        session::get()?;
        context::number_of(ctx)
    }

    fn primary_context(&self, device: CUdevice) -> Result<CUcontext, CUresult> {
        Ok(session::device(device)?.primary.context.handle)
    }

    fn driver_version(&self) -> u32 {
        entry_points::driver_version().unwrap_or(0)
    }

    fn devices(&self) -> Result<Vec<DeviceIdentity>, CUresult> {
        let pci = |device: &device::Device, attribute| device.attribute(attribute).unwrap_or(0);
        Ok(session::all()?
            .ordered_devices()
            .map(|device| DeviceIdentity {
                uuid: device.snapshot.uuid(),
                pci_domain: pci(device, CUdevice_attribute::PCI_DOMAIN_ID),
                pci_bus: pci(device, CUdevice_attribute::PCI_BUS_ID),
                pci_device: pci(device, CUdevice_attribute::PCI_DEVICE_ID),
            })
            .collect())
    }

    unsafe fn load_module(&self, image: *const c_void) -> Result<CUmodule, CUresult> {
        let mut module = CUmodule::NULL;
        // SAFETY: the caller vouches for the image.
        unsafe { module::cuModuleLoadData(&mut module, image)? };
        Ok(module)
    }

    /// Enumerates the functions of a module, which cuFFT does this way.
    fn module_functions(&self, module: CUmodule) -> Result<Vec<CUfunction>, CUresult> {
        enumeration::functions(module.0 as u64, usize::MAX)
    }
}

/// Works before `cuInit`: the runtime asks for its tables first.
pub(crate) unsafe fn cuGetExportTable(
    ppExportTable: *mut *const c_void,
    pExportTableId: *const CUuuid,
) -> Result<(), CUresult> {
    if pExportTableId.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: not null, and the program passes a UUID; nothing says that it is aligned.
    let uuid = unsafe { pExportTableId.read_unaligned() };
    let table = sluice_export_tables::table(&uuid, &Client);
    // SAFETY: the program passes a place for the table.
    unsafe { out::write(ppExportTable, table.unwrap_or(std::ptr::null()))? };
    table.map(drop).ok_or(CUresult::NOT_FOUND)
}

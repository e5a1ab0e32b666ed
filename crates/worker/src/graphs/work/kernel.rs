//! Nodes that launch a kernel.

use std::ffi::c_void;

use sluice_cuda::*;
use sluice_wire::{FunctionId, KernelNode};

use crate::custom::packed;
use crate::session::Session;
use crate::session::checks;
use crate::session::execute::Execute;

/// Copies the parameters that an `extra` argument names, of which there may be more than the
/// function reads, or fewer.
///
/// # Safety
/// `extra` is a list of names and values that ends with `CU_LAUNCH_PARAM_END`, as `cuLaunchKernel`
/// takes it.
unsafe fn unpack(extra: *mut *mut c_void, params: &mut [u8]) -> Result<(), CUresult> {
    /// CUDA has two names: a list that continues has no end.
    const ENTRIES_MAX: usize = 8;
    let (mut start, mut bytes) = (std::ptr::null::<u8>(), None);
    for i in 0..ENTRIES_MAX {
        // SAFETY: the list has not ended yet.
        let name = unsafe { extra.add(2 * i).read_unaligned() } as usize;
        if name == CU_LAUNCH_PARAM_END {
            break;
        }
        // SAFETY: each name but the last has a value behind it.
        let value = unsafe { extra.add(2 * i + 1).read_unaligned() };
        match name {
            CU_LAUNCH_PARAM_BUFFER_POINTER => start = value.cast(),
            CU_LAUNCH_PARAM_BUFFER_SIZE if !value.is_null() => {
                // SAFETY: the value of this name is the address of a size.
                bytes = Some(unsafe { value.cast::<usize>().read_unaligned() });
            }
            _ => return Err(CUresult::NOT_SUPPORTED),
        }
    }
    let given = bytes.ok_or(CUresult::NOT_SUPPORTED)?.min(params.len());
    if start.is_null() && given > 0 {
        return Err(CUresult::NOT_SUPPORTED);
    }
    if given > 0 {
        // SAFETY: the driver's buffer has that many bytes, and so have the parameters.
        unsafe { std::ptr::copy_nonoverlapping(start, params.as_mut_ptr(), given) };
    }
    Ok(())
}

impl Session {
    /// Describes a kernel to `call`, with its parameters in one buffer.
    pub(super) fn with_kernel(
        &self,
        kernel: &KernelNode,
        call: impl FnOnce(*const CUDA_KERNEL_NODE_PARAMS) -> CUresult,
    ) -> Result<(), CUresult> {
        self.modules.check_parameters(kernel.f, kernel.params.len())?;
        checks::shape(kernel.grid, kernel.block)?;
        let size = kernel.params.len();
        let mut extra = packed(&kernel.params, &size);
        let ([gridDimX, gridDimY, gridDimZ], [blockDimX, blockDimY, blockDimZ]) = (kernel.grid, kernel.block);
        call(&CUDA_KERNEL_NODE_PARAMS {
            func: self.find(kernel.f)?,
            gridDimX,
            gridDimY,
            gridDimZ,
            blockDimX,
            blockDimY,
            blockDimZ,
            sharedMemBytes: kernel.shared_bytes,
            kernelParams: std::ptr::null_mut(),
            extra: extra.as_mut_ptr(),
            kern: CUkernel::NULL,
            ctx: CUcontext::NULL,
        })
        .ok()
    }

    pub(super) fn get_kernel(&self, node: CUgraphNode) -> Result<KernelNode, CUresult> {
        let get = self.table.cuGraphKernelNodeGetParams_v2.ok_or(CUresult::NOT_SUPPORTED)?;
        let mut of = std::mem::MaybeUninit::<CUDA_KERNEL_NODE_PARAMS>::zeroed();
        // SAFETY: the node is live, and the driver fills a local, for which zeros are valid too.
        let of = unsafe {
            get(node, of.as_mut_ptr()).ok()?;
            of.assume_init()
        };
        let f: FunctionId = self.objects.number_of(of.func).ok_or(CUresult::NOT_SUPPORTED)?;
        let layout = crate::modules::parameters(&self.table, of.func)?;
        let bytes = layout.iter().map(|p| p.offset.saturating_add(p.size) as usize).max().unwrap_or(0);
        let mut params = vec![0; bytes];
        if of.kernelParams.is_null() && !of.extra.is_null() {
            // SAFETY: the driver's own list, which the node keeps.
            unsafe { unpack(of.extra, &mut params)? };
        } else if of.kernelParams.is_null() && !layout.is_empty() {
            return Err(CUresult::NOT_SUPPORTED);
        }
        let values = if of.kernelParams.is_null() { &[][..] } else { &layout };
        for (index, parameter) in values.iter().enumerate() {
            let place = &mut params[parameter.offset as usize..][..parameter.size as usize];
            // SAFETY: the driver points to as many values as the function has, each of its
            // parameter's size.
            unsafe {
                let value = *of.kernelParams.add(index);
                std::ptr::copy_nonoverlapping(value.cast::<u8>(), place.as_mut_ptr(), place.len());
            }
        }
        Ok(KernelNode {
            f,
            grid: [of.gridDimX, of.gridDimY, of.gridDimZ],
            block: [of.blockDimX, of.blockDimY, of.blockDimZ],
            shared_bytes: of.sharedMemBytes,
            params,
        })
    }
}

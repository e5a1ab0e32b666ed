//! The commands that launch kernels and ask for occupancies, and how a launch is described to the
//! driver.

use std::ffi::c_void;

use sluice_cuda::*;
use sluice_wire::{Dim, Encode, commands};

use crate::session::Session;
use crate::session::checks::{self, plain};
use crate::session::execute::Execute;

impl Session {
    pub(crate) fn launch_kernel(&self, command: commands::cuLaunchKernel<'_>) -> Result<(), CUresult> {
        let launch = self.table.cuLaunchKernel.ok_or(CUresult::NOT_SUPPORTED)?;
        let function = self.find(command.f)?;
        self.modules.check_parameters(command.f, command.params.len())?;
        checks::shape(command.grid, command.block)?;
        let (stream, [gx, gy, gz], [bx, by, bz]) = (self.find(command.hStream)?, command.grid, command.block);
        let size = command.params.len();
        let mut extra = packed(command.params, &size);
        // SAFETY: function and stream are live; the buffer holds every byte of the parameters and
        // is read before the call returns. What the kernel does with them is confined to this
        // process's context.
        unsafe {
            launch(
                function,
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                command.sharedMemBytes,
                stream,
                std::ptr::null_mut(),
                extra.as_mut_ptr(),
            )
        }
        .ok()?;
        self.count_kernel();
        Ok(())
    }

    pub(crate) fn launch_kernel_with(&self, command: commands::cuLaunchKernelEx<'_>) -> Result<(), CUresult> {
        let launch = self.table.cuLaunchKernelEx.ok_or(CUresult::NOT_SUPPORTED)?;
        let function = self.find(command.f)?;
        self.modules.check_parameters(command.f, command.params.len())?;
        checks::shape(command.grid, command.block)?;
        let mut attributes = plain(command.attrs)?;
        let mut config = config(command.grid, command.block, command.sharedMemBytes, &mut attributes);
        config.hStream = self.find(command.hStream)?;
        let size = command.params.len();
        let mut extra = packed(command.params, &size);
        // SAFETY: as for `cuLaunchKernel`; the attributes are plain numbers and outlive the call.
        unsafe { launch(&config, function, std::ptr::null_mut(), extra.as_mut_ptr()) }.ok()?;
        self.count_kernel();
        Ok(())
    }

    pub(crate) fn active_clusters(
        &self,
        command: commands::cuOccupancyMaxActiveClusters,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        let ask = self.table.cuOccupancyMaxActiveClusters.ok_or(CUresult::NOT_SUPPORTED)?;
        let function = self.find(command.func)?;
        checks::shape(command.grid, command.block)?;
        let mut attributes = plain(command.attrs)?;
        let config = config(command.grid, command.block, command.sharedMemBytes, &mut attributes);
        let mut numClusters = 0;
        // SAFETY: the function is live, the attributes outlive the call, and the driver writes to a
        // local.
        unsafe { ask(&mut numClusters, function, &config) }.ok()?;
        commands::cuOccupancyMaxActiveClustersReply { numClusters }.encode(reply);
        Ok(())
    }

    pub(crate) fn cluster_size(
        &self,
        command: commands::cuOccupancyMaxPotentialClusterSize,
        reply: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        let ask = self.table.cuOccupancyMaxPotentialClusterSize.ok_or(CUresult::NOT_SUPPORTED)?;
        let function = self.find(command.func)?;
        checks::shape(command.grid, command.block)?;
        let mut attributes = plain(command.attrs)?;
        let config = config(command.grid, command.block, command.sharedMemBytes, &mut attributes);
        let mut clusterSize = 0;
        // SAFETY: as for the number of clusters.
        unsafe { ask(&mut clusterSize, function, &config) }.ok()?;
        commands::cuOccupancyMaxPotentialClusterSizeReply { clusterSize }.encode(reply);
        Ok(())
    }

    fn count_kernel(&self) {
        self.counters.kernels.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

/// The `extra` argument of a launch: one buffer with all parameters.
pub(crate) fn packed(parameters: &[u8], size: &usize) -> [*mut c_void; 5] {
    let tag = |number: usize| number as *mut c_void;
    [
        tag(CU_LAUNCH_PARAM_BUFFER_POINTER),
        parameters.as_ptr().cast_mut().cast(),
        tag(CU_LAUNCH_PARAM_BUFFER_SIZE),
        std::ptr::from_ref(size).cast_mut().cast(),
        tag(CU_LAUNCH_PARAM_END),
    ]
}

/// A launch as the driver wants it described, in the default stream.
fn config(
    grid: Dim,
    block: Dim,
    sharedMemBytes: u32,
    attributes: &mut [CUlaunchAttribute],
) -> CUlaunchConfig {
    let ([gridDimX, gridDimY, gridDimZ], [blockDimX, blockDimY, blockDimZ]) = (grid, block);
    CUlaunchConfig {
        gridDimX,
        gridDimY,
        gridDimZ,
        blockDimX,
        blockDimY,
        blockDimZ,
        sharedMemBytes,
        hStream: CUstream::NULL,
        attrs: attributes.as_mut_ptr(),
        numAttrs: attributes.len() as u32,
    }
}

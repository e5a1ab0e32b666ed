//! Modules, functions and launches.

#![allow(non_snake_case)] // CUDA's names
#![allow(unused_variables)] // prototypes are those of the list

use std::ffi::{c_char, c_void};

use sluice_cuda::*;

use super::ByHand;
use crate::call::{Call, Violation};
use crate::generated::{Functions, Launches, Modules, Occupancy};
use crate::structures::*;

impl Modules for ByHand {
    fn cuModuleLoadData(call: &Call, module: *mut CUmodule, image: *const c_void) -> Result<(), Violation> {
        call.out(module)?;
        call.image(image)
    }

    fn cuModuleLoadDataEx(
        call: &Call,
        module: *mut CUmodule,
        image: *const c_void,
        numOptions: u32,
        options: *mut CUjit_option,
        optionValues: *mut *mut c_void,
    ) -> Result<(), Violation> {
        call.out(module)?;
        call.image(image)?;
        let names = call.list(options, numOptions.into())?;
        let values = call.list(optionValues, numOptions.into())?;
        call.jit_options(&names, &values)
    }

    fn cuModuleGetFunction(
        call: &Call,
        hfunc: *mut CUfunction,
        hmod: CUmodule,
        name: *const c_char,
    ) -> Result<(), Violation> {
        call.out(hfunc)?;
        call.text(name)
    }

    fn cuModuleGetGlobal_v2(
        call: &Call,
        dptr: *mut CUdeviceptr,
        bytes: *mut usize,
        hmod: CUmodule,
        name: *const c_char,
    ) -> Result<(), Violation> {
        call.out(dptr)?;
        call.out(bytes)?;
        call.text(name)
    }

    fn cuModuleEnumerateFunctions(
        call: &Call,
        functions: *mut CUfunction,
        numFunctions: u32,
        hmod: CUmodule,
    ) -> Result<(), Violation> {
        call.out_list(functions, numFunctions.into())
    }

    fn cuModuleGetSurfRef(
        call: &Call,
        pSurfRef: *mut CUsurfref,
        hmod: CUmodule,
        name: *const c_char,
    ) -> Result<(), Violation> {
        call.live(hmod)?;
        call.out(pSurfRef)?;
        call.text(name)
    }
}

impl Functions for ByHand {
    fn cuFuncGetName(call: &Call, name: *mut *const c_char, hfunc: CUfunction) -> Result<(), Violation> {
        call.out(name)
    }

    fn cuFuncGetAttribute(
        call: &Call,
        pi: *mut i32,
        attrib: CUfunction_attribute,
        hfunc: CUfunction,
    ) -> Result<(), Violation> {
        call.out(pi)
    }

    fn cuFuncGetParamInfo(
        call: &Call,
        func: CUfunction,
        paramIndex: usize,
        paramOffset: *mut usize,
        paramSize: *mut usize,
    ) -> Result<(), Violation> {
        call.out(paramOffset)?;
        call.out(paramSize)
    }

    fn cuFuncSetAttribute(
        call: &Call,
        hfunc: CUfunction,
        attrib: CUfunction_attribute,
        value: i32,
    ) -> Result<(), Violation> {
        call.one_of(attrib, SETTABLE)
    }
}

impl Launches for ByHand {
    fn cuLaunchKernel(
        call: &Call,
        f: CUfunction,
        gridDimX: u32,
        gridDimY: u32,
        gridDimZ: u32,
        blockDimX: u32,
        blockDimY: u32,
        blockDimZ: u32,
        sharedMemBytes: u32,
        hStream: CUstream,
        kernelParams: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> Result<(), Violation> {
        call.shape([gridDimX, gridDimY, gridDimZ], [blockDimX, blockDimY, blockDimZ])?;
        call.parameters(f, kernelParams, extra)
    }

    fn cuLaunchKernelEx(
        call: &Call,
        config: *const CUlaunchConfig,
        f: CUfunction,
        kernelParams: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> Result<(), Violation> {
        call.config(&call.read(config)?)?;
        call.parameters(f, kernelParams, extra)
    }

    fn cuLaunchHostFunc(
        call: &Call,
        hStream: CUstream,
        func: CUhostFn,
        userData: *mut c_void,
    ) -> Result<(), Violation> {
        call.callback(func, userData)
    }
}

impl Occupancy for ByHand {
    fn cuOccupancyMaxActiveClusters(
        call: &Call,
        numClusters: *mut i32,
        func: CUfunction,
        config: *const CUlaunchConfig,
    ) -> Result<(), Violation> {
        call.out(numClusters)?;
        call.config(&call.read(config)?)
    }

    fn cuOccupancyMaxPotentialClusterSize(
        call: &Call,
        clusterSize: *mut i32,
        func: CUfunction,
        config: *const CUlaunchConfig,
    ) -> Result<(), Violation> {
        call.out(clusterSize)?;
        call.config(&call.read(config)?)
    }
}

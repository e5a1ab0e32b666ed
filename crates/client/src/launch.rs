//! Launches: checked as CUDA checks them, then queued. A plain launch costs a few look-ups, one
//! copy of its parameters, and its part of a system call.
//!
//! # In this folder
//!
//! Launches: their limits ([`limits`]), parameters ([`parameters`]), shapes that only the driver
//! can judge ([`trials`]), the launch interface of CUDA 3 ([`staged`]), and occupancy
//! ([`occupancy`]).

pub(crate) mod limits;
pub(crate) mod occupancy;
pub(crate) mod parameters;
pub(crate) mod staged;
pub(crate) mod trials;

use std::ffi::c_void;
use std::sync::Arc;

use sluice_cuda::*;
use sluice_wire::{Dim, FunctionId, StreamId, commands};

use crate::device::Device;
use crate::launch::limits::Geometry;
use crate::module::{self, Function};
use crate::session::issue::Issue;
use crate::session::{self, Session};
use crate::stream::capture;
use crate::{context, host_memory};

impl Geometry {
    /// Refuses what CUDA refuses before anything runs.
    fn check(&self, function: &Function, device: &Device) -> Result<(), CUresult> {
        let limits = &device.launch_limits;
        let within = |dims: Dim, most: Dim| dims.iter().zip(most).all(|(&dim, most)| dim != 0 && dim <= most);
        let threads = self.block.iter().map(|&dim| u64::from(dim)).product::<u64>();
        let threads_max = limits.threads.min(function.threads_max);
        if !within(self.grid, limits.grid) || !within(self.block, limits.block) || threads > threads_max {
            return Err(CUresult::INVALID_VALUE);
        }
        if self.shared_bytes > function.dynamic_shared_max() {
            return Err(CUresult::INVALID_VALUE);
        }
        Ok(())
    }
}

/// What every launch needs, found and checked.
struct Launch {
    session: &'static Session,
    function: Arc<Function>,
    stream: StreamId,
    params: Vec<u8>,
}

/// A kernel with its parameters in one block.
struct Call {
    session: &'static Session,
    function: Arc<Function>,
    params: Vec<u8>,
}

/// # Safety
/// `values` and `extra` are what a program may pass to a launch of `f`.
unsafe fn call(
    f: CUfunction,
    geometry: &Geometry,
    values: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result<Call, CUresult> {
    let session = session::enter()?;
    let function = module::function(f.0)?.here()?;
    if !session.owns(function.id.0) {
        return Err(CUresult::INVALID_HANDLE);
    }
    geometry.check(&function, session.device(context::device())?)?;
    let mut params = Vec::with_capacity(function.layout.bytes);
    // SAFETY: the caller vouches for both.
    unsafe { function.layout.gather(values, extra, &mut params)? };
    Ok(Call { session, function, params })
}

/// # Safety
/// `values` and `extra` are what a program may pass to a launch of `f`.
unsafe fn prepare(
    f: CUfunction,
    geometry: &Geometry,
    stream: CUstream,
    values: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result<Launch, CUresult> {
    // SAFETY: the same contract.
    let Call { session, function, params } = unsafe { call(f, geometry, values, extra)? };
    let number = session.find(stream)?;
    let is_captured = capture::of(stream).is_some();
    if is_captured {
        function.given_to_graph(f);
    }
    host_memory::kernel_takes(session, &params, is_captured)?;
    Ok(Launch { session, function, stream: number, params })
}

/// What a kernel node of a graph needs, found and checked as for a launch.
///
/// # Safety
/// `values` and `extra` are what a program may pass to a launch of `f`.
pub(crate) unsafe fn for_node(
    f: CUfunction,
    geometry: &Geometry,
    values: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result<(FunctionId, Vec<u8>), CUresult> {
    // SAFETY: the same contract.
    let call = unsafe { call(f, geometry, values, extra)? };
    call.function.given_to_graph(f);
    host_memory::kernel_takes(call.session, &call.params, true)?;
    Ok((call.function.id, call.params))
}

/// Where each parameter of a function lies in the block of all.
pub(crate) fn parameter_offsets(f: CUfunction) -> Result<Vec<usize>, CUresult> {
    let function = module::function(f.0)?.here()?;
    Ok(function.layout.places.iter().map(|(offset, _)| *offset as usize).collect())
}

/// Reads a configuration: its geometry, and the attributes that travel.
///
/// # Safety
/// `config` is null or a configuration, with as many attributes as it says.
unsafe fn read(config: *const CUlaunchConfig) -> Result<(CUlaunchConfig, Vec<CUlaunchAttribute>), CUresult> {
    if config.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: not null, and the program passes a configuration.
    let config = unsafe { config.read_unaligned() };
    if config.numAttrs > ATTRIBUTES_MAX || (config.numAttrs > 0 && config.attrs.is_null()) {
        return Err(CUresult::INVALID_VALUE);
    }
    let mut attrs = Vec::new();
    for i in 0..config.numAttrs as usize {
        // SAFETY: the program passes `numAttrs` attributes.
        let attribute = unsafe { config.attrs.add(i).read_unaligned() };
        if travels(&attribute)? {
            attrs.push(attribute);
        }
    }
    Ok((config, attrs))
}

impl From<&CUlaunchConfig> for Geometry {
    fn from(config: &CUlaunchConfig) -> Geometry {
        Geometry {
            grid: [config.gridDimX, config.gridDimY, config.gridDimZ],
            block: [config.blockDimX, config.blockDimY, config.blockDimZ],
            shared_bytes: config.sharedMemBytes,
        }
    }
}

/// Geometry and attributes of a configuration that is only asked about.
///
/// # Safety
/// `config` is null or a configuration, with as many attributes as it says.
pub(crate) unsafe fn planned(
    config: *const CUlaunchConfig,
) -> Result<(Geometry, Vec<CUlaunchAttribute>), CUresult> {
    // SAFETY: the same contract.
    let (config, attrs) = unsafe { read(config)? };
    Ok((Geometry::from(&config), attrs))
}

impl Launch {
    fn plain(&self, geometry: &Geometry) -> Result<(), CUresult> {
        self.session.queue(&commands::cuLaunchKernel {
            f: self.function.id,
            grid: geometry.grid,
            block: geometry.block,
            sharedMemBytes: geometry.shared_bytes,
            hStream: self.stream,
            params: &self.params,
        })
    }

    fn with_attributes(&self, geometry: &Geometry, attrs: Vec<CUlaunchAttribute>) -> Result<(), CUresult> {
        let trial = trials::of(geometry, &attrs);
        let command = commands::cuLaunchKernelEx {
            f: self.function.id,
            grid: geometry.grid,
            block: geometry.block,
            sharedMemBytes: geometry.shared_bytes,
            hStream: self.stream,
            attrs,
            params: &self.params,
        };
        match trial {
            Some(trial) => self.function.trials.make(
                trial,
                || self.session.try_out(&command),
                || self.session.queue(&command),
            ),
            None => self.session.queue(&command),
        }
    }
}

/// Launch attributes are few; a number beyond this is not a count.
const ATTRIBUTES_MAX: u32 = 64;

/// The attributes that mean something on the node. The rest concern what is not there: access
/// windows of a cache, and synchronisation domains.
fn travels(attribute: &CUlaunchAttribute) -> Result<bool, CUresult> {
    use CUlaunchAttributeID as Id;
    match attribute.id {
        Id::COOPERATIVE
        | Id::CLUSTER_DIMENSION
        | Id::CLUSTER_SCHEDULING_POLICY_PREFERENCE
        | Id::PROGRAMMATIC_STREAM_SERIALIZATION
        | Id::PRIORITY
        | Id::PREFERRED_SHARED_MEMORY_CARVEOUT => Ok(true),
        // These name events and nodes that were not minted for this.
        Id::PROGRAMMATIC_EVENT | Id::LAUNCH_COMPLETION_EVENT | Id::DEVICE_UPDATABLE_KERNEL_NODE => {
            Err(CUresult::NOT_SUPPORTED)
        }
        id if id.name().is_some() => Ok(false),
        _ => Err(CUresult::INVALID_VALUE),
    }
}

fn cooperative() -> CUlaunchAttribute {
    let mut attribute = CUlaunchAttribute { id: CUlaunchAttributeID::COOPERATIVE, ..Default::default() };
    attribute.value.words[0] = 1;
    attribute
}

// The entry points. CUDA Driver API, section "Execution Control".

pub(crate) unsafe fn cuLaunchKernel(
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
) -> Result<(), CUresult> {
    let geometry = Geometry {
        grid: [gridDimX, gridDimY, gridDimZ],
        block: [blockDimX, blockDimY, blockDimZ],
        shared_bytes: sharedMemBytes,
    };
    // SAFETY: the same contract.
    unsafe { prepare(f, &geometry, hStream, kernelParams, extra)? }.plain(&geometry)
}

/// `stream` is what the configuration's null stream means: it depends on which variant the program
/// called.
pub(crate) unsafe fn cuLaunchKernelEx(
    config: *const CUlaunchConfig,
    f: CUfunction,
    kernelParams: *mut *mut c_void,
    extra: *mut *mut c_void,
    stream: CUstream,
) -> Result<(), CUresult> {
    // SAFETY: the program passes a configuration.
    let (config, attrs) = unsafe { read(config)? };
    let geometry = Geometry::from(&config);
    let stream = if config.hStream.is_null() { stream } else { config.hStream };
    // SAFETY: the same contract.
    let launch = unsafe { prepare(f, &geometry, stream, kernelParams, extra)? };
    if attrs.is_empty() { launch.plain(&geometry) } else { launch.with_attributes(&geometry, attrs) }
}

pub(crate) unsafe fn cuLaunchCooperativeKernel(
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
) -> Result<(), CUresult> {
    let geometry = Geometry {
        grid: [gridDimX, gridDimY, gridDimZ],
        block: [blockDimX, blockDimY, blockDimZ],
        shared_bytes: sharedMemBytes,
    };
    // SAFETY: the same contract.
    let launch = unsafe { prepare(f, &geometry, hStream, kernelParams, std::ptr::null_mut())? };
    launch.with_attributes(&geometry, vec![cooperative()])
}

//! The seam between this driver and what runs code: everything else about a CUDA driver (contexts,
//! streams, memory, graphs) does not care what a kernel does.
//!
//! A [`Machine`] makes [`Code`] from images; code has entries, each a [`Signature`] at once and a
//! [`Kernel`] when it is first used. The software GPU's own machine compiles PTX
//! ([`crate::compiler::code`]); `sluice-recording` has one that reads images and runs nothing.

use std::sync::Arc;

use sluice_cuda::CUresult;
use sluice_image::ComputeCapability;
use sluice_ir::lower::Global;
use sluice_jit::DeviceHeap;
use sluice_ptx::Tuning;

/// Blocks that a grid may have in x, and in y and z (compute capability 5.0 and higher).
pub(crate) const GRID_MAX: [u32; 3] = [i32::MAX as u32, 65535, 65535];
/// Threads that a block may have in each direction.
pub(crate) const BLOCK_MAX: [u32; 3] = [1024, 1024, 64];
/// Bytes of parameters a kernel may have (PTX ISA, Kernel Function Parameters).
pub(crate) const PARAMS_MAX: u64 = 32764;

/// Local memory that a thread can have (CUDA C++ Programming Guide, "Technical Specifications per
/// Compute Capability").
pub(crate) const LOCAL_BYTES_MAX: u64 = 512 << 10;

/// What makes images into code that can be launched.
pub trait Machine: Send + Sync {
    /// The code in `images`: one image, or several that belong to one program and are linked.
    /// `device` is what it is to run on, and `tuning` what the program demands of all kernels. The
    /// error comes with a message for the JIT log.
    fn load(
        &self,
        images: &[&[u8]],
        device: &Limits,
        tuning: Tuning,
    ) -> Result<Arc<dyn Code>, (CUresult, String)>;

    /// What the user can do about an image that has nothing for this machine.
    fn way_out(&self) -> &'static str;

    /// Threads of a grid for which there is local memory at the same time: on a real GPU as many as
    /// its multiprocessors hold, whatever the grid (CUDA C++ Programming Guide, Device Memory
    /// Accesses).
    fn threads_with_local_memory(&self, device: &Limits, _shape: &Shape, multiprocessors: u32) -> u64 {
        u64::from(device.threads) * u64::from(multiprocessors)
    }

    /// Whether kernels do anything.
    fn runs_code(&self) -> bool {
        true
    }

    /// The smallest part of a device's multiprocessors that a green context can have, and of what
    /// its size is a multiple (CUDA C++ Programming Guide, Green Contexts).
    fn partitions(&self, capability: ComputeCapability) -> (u8, u8) {
        match capability.major {
            9.. => (8, 8),
            8 => (4, 2),
            _ => (2, 2),
        }
    }
}

/// The code of one image. It belongs to no context: modules of several contexts, and libraries,
/// share it.
pub trait Code: Send + Sync {
    /// Names of all entries, each once.
    fn entry_names(&self) -> Vec<&str>;
    /// What can be said of an entry before it is compiled; `NOT_FOUND` for any other name.
    fn signature(&self, name: &str) -> Result<Signature, CUresult>;
    /// The entry ready to run, made on the first call.
    fn kernel(&self, name: &str) -> Result<Arc<dyn Kernel>, CUresult>;
    /// The module variable of this name, with its first contents.
    fn global(&self, name: &str) -> Result<Global, CUresult>;
    /// Whether the name is a device function's or an entry's, so that its address is no variable's.
    fn is_function(&self, name: &str) -> bool;
    /// Version of the virtual architecture, such as 90; 0 where the image does not say.
    fn ptx_version(&self) -> i32;
}

/// How an entry wants to be called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signature {
    /// Offset and size in bytes of each parameter in the parameter buffer.
    pub params: Vec<(u64, u64)>,
    /// Threads that a block may have, 1 to 1024.
    pub threads_max: u32,
    /// The one block size that a launch may have (`.reqntid`).
    pub required_threads: Option<[u32; 3]>,
    /// Whether a launch has to say its cluster size.
    pub explicit_cluster: bool,
    /// The one cluster size that a launch may have (`.reqnctapercluster`).
    pub required_cluster: Option<[u32; 3]>,
    /// Blocks that a cluster may have at most (`.maxclusterrank`).
    pub max_cluster_blocks: Option<u32>,
}

/// What a kernel costs; bytes except for the registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Per block, without what a launch asks for.
    pub shared: u32,
    /// Per thread.
    pub local: u32,
    /// Constant variables that it uses.
    pub constant: u32,
    /// Of 32 bits, per thread.
    pub registers: u32,
    /// The size of the parameter buffer.
    pub params: u32,
}

/// An entry ready to run.
pub trait Kernel: Send + Sync {
    fn resources(&self) -> Resources;
    /// Names of the module variables whose addresses [`Grid::globals`] must hold, in that order.
    fn globals(&self) -> &[String];
    /// Those of [`Kernel::globals`] that [`Code::global`] does not know: variables of bodies.
    fn own_globals(&self) -> &[Global];
    /// Bytes of local memory per thread, with the stack where the kernel needs one of
    /// `stack_bytes`.
    fn local_with_stack(&self, _stack_bytes: u32) -> u32 {
        self.resources().local
    }
    /// Whether the kernel may allocate by device-side `malloc`.
    fn needs_heap(&self) -> bool {
        false
    }
    /// Makes what it takes to run blocks of this shape, so that a launch need not. Nothing is also
    /// an answer.
    fn load(&self, _block: [u32; 3]) -> Result<(), CUresult> {
        Ok(())
    }
    /// Runs a grid to its end. An error is a failure of the context.
    fn run(&self, grid: &Grid<'_>) -> Result<(), CUresult>;
}

/// A launch that has passed all checks, when its turn has come.
pub struct Grid<'a> {
    /// The entry's name.
    pub name: &'a str,
    pub shape: Shape,
    /// The parameter buffer, [`Resources::params`] bytes.
    pub params: &'a [u8],
    pub globals: &'a [u64],
    /// Ordinal of the device that it runs on.
    pub device: usize,
    /// Stack of each thread in bytes, for kernels with functions that call themselves.
    pub stack_bytes: u32,
    /// Threads of the machine that may run its blocks.
    pub threads_max: u32,
    /// Behind device-side `malloc`, if a kernel of the context may need it.
    pub heap: Option<&'a DeviceHeap>,
}

/// Grid, block and the rest of what a launch says besides its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads.
    pub block: [u32; 3],
    /// Blocks of a cluster, where the launch states it.
    pub cluster: Option<[u32; 3]>,
    /// Bytes of shared memory beyond the kernel's own.
    pub dynamic_shared: u32,
    pub cooperative: bool,
}

/// What a device has of everything that bounds a launch. Bytes, or counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Compute capability.
    pub capability: ComputeCapability,
    pub multiprocessors: u32,
    /// Per multiprocessor.
    pub threads: u32,
    pub blocks: u32,
    pub registers: u32,
    pub shared: u32,
    /// Per block: without asking, and with `MAX_DYNAMIC_SHARED_SIZE_BYTES`.
    pub shared_default: u32,
    pub shared_opt_in: u32,
    /// Per block, beyond what it asks for.
    pub shared_reserved: u32,
    /// Blocks of a cluster; 1 where there are none.
    pub cluster: u32,
}

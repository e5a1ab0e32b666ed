//! Kernel launches: checks when they are submitted; the machine runs them when their turn has come.

use std::sync::Arc;

use sluice_cuda::{CUfunction, CUkernel};

use crate::base::status::{Result, Status};
use crate::context::{CONTEXTS, Context};
use crate::device::machine::{BLOCK_MAX, GRID_MAX, Grid, Kernel, Shape};
use crate::image::reference::Bound;
use crate::module::function::Function;

/// A launch that has passed all checks.
pub(crate) struct Launch {
    code: Arc<dyn Kernel>,
    /// Keeps the module's variables where they are.
    function: Arc<Function>,
    globals: Arc<[u64]>,
    /// Images that were bound to its references.
    _bound: Vec<Arc<Bound>>,
    shape: Shape,
    params: Box<[u8]>,
    /// The handle that the program gave: the function's, or that of a library's kernel.
    given: CUfunction,
}

/// Checks a launch and makes it ready to run on this number of multiprocessors; `params` is the
/// parameter buffer.
pub(crate) fn prepare(
    (given, function): (CUfunction, &Arc<Function>),
    mut shape: Shape,
    params: Box<[u8]>,
    multiprocessors: u32,
) -> Result<Arc<Launch>> {
    shape.cluster = function.cluster(&shape)?;
    check_shape(function, shape)?;
    let ready = function.compiled()?;
    let (resources, limits) = (ready.code.resources(), function.limits());
    if params.len() != resources.params as usize {
        return Err(Status::INVALID_VALUE);
    }
    let shared = u64::from(resources.shared) + u64::from(shape.dynamic_shared);
    let allowed = limits.shared_default.max(resources.shared.saturating_add(function.dynamic_shared_max()));
    if shared > u64::from(allowed.min(limits.shared_opt_in)) {
        return Err(Status::INVALID_VALUE);
    }
    ready.code.load(shape.block)?;
    if shape.cooperative {
        check_cooperative(function, shape, multiprocessors)?;
    }
    reserve_memory(function, &*ready.code, &shape)?;
    let (globals, bound) = ready.globals.now();
    Ok(Arc::new(Launch {
        code: Arc::clone(&ready.code),
        function: Arc::clone(function),
        globals,
        _bound: bound,
        shape,
        params,
        given,
    }))
}

/// Charges what the launch needs besides its arguments, as a driver does when it is submitted. The
/// context keeps it.
fn reserve_memory(function: &Function, kernel: &dyn Kernel, shape: &Shape) -> Result<()> {
    let context = CONTEXTS.get(function.module.context).ok_or(Status::CONTEXT_IS_DESTROYED)?;
    if kernel.needs_heap() {
        context.make_device_heap()?;
    }
    context.reserve_local_for(kernel, shape)
}

fn check_shape(function: &Function, shape: Shape) -> Result<()> {
    let within = |size: [u32; 3], max: [u32; 3]| size.iter().zip(max).all(|(&n, max)| n != 0 && n <= max);
    if !within(shape.grid, GRID_MAX) || !within(shape.block, BLOCK_MAX) {
        return Err(Status::INVALID_VALUE);
    }
    let threads: u64 = shape.block.iter().map(|&n| u64::from(n)).product();
    if threads > u64::from(function.signature.threads_max) {
        return Err(Status::INVALID_VALUE);
    }
    match function.signature.required_threads {
        Some(required) if required != shape.block => Err(Status::INVALID_VALUE),
        _ => Ok(()),
    }
}

/// All blocks of a cooperative launch must be there at the same time: as many as the occupancy says
/// for these multiprocessors.
fn check_cooperative(function: &Arc<Function>, shape: Shape, multiprocessors: u32) -> Result<()> {
    let blocks = shape.grid.iter().fold(1u64, |product, &n| product.saturating_mul(u64::from(n)));
    let threads = shape.block.iter().product::<u32>();
    let each = crate::module::occupancy::blocks_per_multiprocessor(function, threads, shape.dynamic_shared)?;
    let together = u64::from(each) * u64::from(multiprocessors);
    if blocks > together { Err(Status::COOPERATIVE_LAUNCH_TOO_LARGE) } else { Ok(()) }
}

impl Launch {
    /// What the program launched: a function, or a kernel.
    pub(crate) fn given(&self) -> (CUfunction, CUkernel) {
        if self.given.0 == self.function.handle {
            (self.given, CUkernel::NULL)
        } else {
            (CUfunction::NULL, CUkernel(self.given.0))
        }
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    /// Returns a launch of this kernel, with its parameters, in another shape.
    pub(crate) fn reshaped(&self, shape: Shape) -> Result<Arc<Launch>> {
        let multiprocessors = self.function.limits().multiprocessors;
        prepare((self.given, &self.function), shape, self.params.clone(), multiprocessors)
    }

    pub(crate) fn parameter_bytes(&self) -> usize {
        self.params.len()
    }

    /// Where each parameter's value lies; good for as long as the launch.
    pub(crate) fn values(&self) -> Vec<*const u8> {
        let offsets = self.function.signature.params.iter().map(|&(offset, _)| offset as usize);
        offsets.map(|offset| self.params[offset..].as_ptr()).collect()
    }

    pub(crate) fn run(&self, context: &Context) -> Result<()> {
        // The stack may have got larger since the launch was submitted.
        context.reserve_local_for(&*self.code, &self.shape)?;
        self.code.run(&Grid {
            name: &self.function.name,
            shape: self.shape,
            params: &self.params,
            globals: &self.globals,
            device: context.device.ordinal,
            stack_bytes: context.stack_bytes(),
            threads_max: context.threads_max(),
            heap: context.device_heap(),
        })
    }
}

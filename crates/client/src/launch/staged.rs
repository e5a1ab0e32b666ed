//! The launch interface of CUDA 3, deprecated since CUDA 4: a function keeps the shape of its
//! blocks, their shared memory and its parameters until a call gives the grid and launches it. Only
//! that call travels, as `cuLaunchKernel` with the parameters in one buffer (CUDA Driver API,
//! "Execution Control [DEPRECATED]").

use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_cuda::*;

use crate::session::issue::wanted;
use crate::{launch, module, session};

/// Most bytes of parameters: those of a kernel since CUDA 12.1.
const BYTES_MAX: usize = 32764;

/// What a function was given for its next launches.
#[derive(Debug, Default)]
pub(crate) struct Staged(Mutex<Settings>);

#[derive(Clone, Debug, Default)]
struct Settings {
    /// Zeros until a shape is set: such a block cannot be launched.
    block: [u32; 3],
    shared_bytes: u32,
    /// As long as the furthest parameter that was set.
    parameters: Vec<u8>,
    /// How many bytes of them the function takes.
    size: usize,
}

impl Staged {
    fn lock(&self) -> MutexGuard<'_, Settings> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Settings {
    /// Sets bytes of the parameters. Those before that were never set are zeros.
    fn put(&mut self, offset: i32, bytes: &[u8]) -> Result<(), CUresult> {
        let start = usize::try_from(offset).map_err(|_| CUresult::INVALID_VALUE)?;
        let end = start.checked_add(bytes.len()).filter(|end| *end <= BYTES_MAX);
        let end = end.ok_or(CUresult::INVALID_VALUE)?;
        if self.parameters.len() < end {
            self.parameters.resize(end, 0);
        }
        self.parameters[start..end].copy_from_slice(bytes);
        Ok(())
    }

    /// The parameters as long as the function was said to take them.
    fn buffer(mut self) -> Vec<u8> {
        self.parameters.resize(self.size, 0);
        self.parameters
    }
}

fn change(f: CUfunction, change: impl FnOnce(&mut Settings) -> Result<(), CUresult>) -> Result<(), CUresult> {
    session::get()?;
    change(&mut module::function(f.0)?.staged.lock())
}

/// Launches a function as it was set up, on a grid of this many blocks in x and y.
fn launch_on(f: CUfunction, grid: [i32; 2], stream: CUstream) -> Result<(), CUresult> {
    session::get()?;
    let [width, height] = grid.map(|blocks| u32::try_from(blocks).unwrap_or(0));
    let settings = module::function(f.0)?.staged.lock().clone();
    let ([x, y, z], shared_bytes) = (settings.block, settings.shared_bytes);
    let mut buffer = settings.buffer();
    let mut size = buffer.len();
    let tag = std::ptr::without_provenance_mut::<c_void>;
    let mut extra = [
        tag(CU_LAUNCH_PARAM_BUFFER_POINTER),
        buffer.as_mut_ptr().cast(),
        tag(CU_LAUNCH_PARAM_BUFFER_SIZE),
        (&raw mut size).cast(),
        tag(CU_LAUNCH_PARAM_END),
    ];
    // SAFETY: the list ends, and its buffer has as many bytes as it says until the call returns.
    unsafe {
        let (values, extra) = (std::ptr::null_mut(), extra.as_mut_ptr());
        launch::cuLaunchKernel(f, width, height, 1, x, y, z, shared_bytes, stream, values, extra)
    }
}

// The entry points.

pub(crate) unsafe fn cuFuncSetBlockShape(hfunc: CUfunction, x: i32, y: i32, z: i32) -> Result<(), CUresult> {
    change(hfunc, |settings| {
        let shape = [x, y, z].map(|threads| u32::try_from(threads).unwrap_or(0));
        if shape.contains(&0) {
            return Err(CUresult::INVALID_VALUE);
        }
        settings.block = shape;
        Ok(())
    })
}

pub(crate) unsafe fn cuFuncSetSharedSize(hfunc: CUfunction, bytes: u32) -> Result<(), CUresult> {
    change(hfunc, |settings| {
        settings.shared_bytes = bytes;
        Ok(())
    })
}

pub(crate) unsafe fn cuParamSetSize(hfunc: CUfunction, numbytes: u32) -> Result<(), CUresult> {
    change(hfunc, |settings| {
        let size = numbytes as usize;
        if size > BYTES_MAX {
            return Err(CUresult::INVALID_VALUE);
        }
        settings.size = size;
        Ok(())
    })
}

pub(crate) unsafe fn cuParamSeti(hfunc: CUfunction, offset: i32, value: u32) -> Result<(), CUresult> {
    change(hfunc, |settings| settings.put(offset, &value.to_ne_bytes()))
}

pub(crate) unsafe fn cuParamSetf(hfunc: CUfunction, offset: i32, value: f32) -> Result<(), CUresult> {
    change(hfunc, |settings| settings.put(offset, &value.to_ne_bytes()))
}

pub(crate) unsafe fn cuParamSetv(
    hfunc: CUfunction,
    offset: i32,
    ptr: *mut c_void,
    numbytes: u32,
) -> Result<(), CUresult> {
    if numbytes == 0 {
        return change(hfunc, |settings| settings.put(offset, &[]));
    }
    wanted(ptr)?;
    if numbytes as usize > BYTES_MAX {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: not null, and the program passes as many bytes.
    let bytes = unsafe { std::slice::from_raw_parts(ptr.cast::<u8>(), numbytes as usize) };
    change(hfunc, |settings| settings.put(offset, bytes))
}

pub(crate) unsafe fn cuLaunch(f: CUfunction) -> Result<(), CUresult> {
    launch_on(f, [1, 1], CUstream::LEGACY)
}

pub(crate) unsafe fn cuLaunchGrid(f: CUfunction, grid_width: i32, grid_height: i32) -> Result<(), CUresult> {
    launch_on(f, [grid_width, grid_height], CUstream::LEGACY)
}

pub(crate) unsafe fn cuLaunchGridAsync(
    f: CUfunction,
    grid_width: i32,
    grid_height: i32,
    hStream: CUstream,
) -> Result<(), CUresult> {
    launch_on(f, [grid_width, grid_height], hStream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_lie_where_they_are_put_and_end_where_the_function_says() {
        let mut settings = Settings::default();
        settings.put(4, &[1, 2]).unwrap();
        settings.put(0, &[3]).unwrap();
        settings.size = 8;
        assert_eq!(settings.clone().buffer(), [3, 0, 0, 0, 1, 2, 0, 0]);
        settings.size = 5;
        assert_eq!(settings.buffer(), [3, 0, 0, 0, 1]);
    }

    #[test]
    fn parameters_outside_of_what_a_kernel_can_have_are_refused() {
        let mut settings = Settings::default();
        let last = BYTES_MAX as i32 - 4;
        settings.put(last, &[0; 4]).unwrap();
        for offset in [-1, last + 1, i32::MAX] {
            assert_eq!(settings.put(offset, &[0; 4]), Err(CUresult::INVALID_VALUE), "at {offset}");
        }
    }
}

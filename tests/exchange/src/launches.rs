//! Launches of kernels whose parameters are laid out at random, in all forms in which programs pass
//! them.

use std::ffi::{CString, c_void};
use std::fmt::Write as _;
use std::ptr::null_mut;

use sluice_cuda::*;

use crate::answer::DEFAULT_STREAM;
use crate::program::{Program, Sent, ok};

pub(crate) const FUNCTIONS: crate::Calls = &[
    ("cuLaunchKernel", cuLaunchKernel),
    ("cuLaunchKernelEx", cuLaunchKernelEx),
    ("cuLaunchCooperativeKernel", cuLaunchCooperativeKernel),
    ("cuLaunch", |p| staged(p, Grid::One)),
    ("cuLaunchGrid", |p| staged(p, Grid::Plain)),
    ("cuLaunchGridAsync", |p| staged(p, Grid::InStream)),
];

const KERNELS: usize = 24;
/// Of a kernel, at most.
const PARAMETERS_MAX: u64 = 20;

/// A kernel that was loaded.
#[derive(Clone)]
pub(crate) struct Kernel {
    pub(crate) function: CUfunction,
    /// By which the driver knows it.
    pub(crate) number: u64,
    /// Offset and size of each parameter, in bytes.
    pub(crate) places: Vec<(usize, usize)>,
}

impl Kernel {
    /// Bytes of all parameters.
    pub(crate) fn bytes(&self) -> usize {
        self.places.last().map_or(0, |(offset, size)| offset + size)
    }

    /// Loads a module of kernels with random parameters.
    pub(crate) fn load(p: &mut Program) {
        let mut text = String::from(".version 7.0\n.target sm_75\n.address_size 64\n");
        let layouts: Vec<_> = (0..KERNELS).map(|index| entry(p, &mut text, index)).collect();
        let text = CString::new(text).expect("no NUL in it");
        let mut module = CUmodule::NULL;
        // SAFETY: text that ends with NUL, and a place for a handle.
        ok(unsafe { p.cuda.cuModuleLoadData.expect("exported")(&mut module, text.as_ptr().cast()) });
        p.module(module);
        for (index, places) in layouts.into_iter().enumerate() {
            let name = CString::new(format!("kernel_{index}")).expect("no NUL in it");
            let mut function = CUfunction::NULL;
            // SAFETY: a live module, a name, and a place for a handle.
            ok(unsafe {
                p.cuda.cuModuleGetFunction.expect("exported")(&mut function, module, name.as_ptr())
            });
            let number = p.function(function);
            p.kernels.push(Kernel { function, number, places });
        }
    }
}

/// Adds a kernel to the text of a module; where its parameters lie (PTX ISA, "Kernel Function
/// Parameters").
fn entry(p: &mut Program, text: &mut String, index: usize) -> Vec<(usize, usize)> {
    let count = if index == 0 { 0 } else { p.within(1, PARAMETERS_MAX) };
    let (mut places, mut list) = (Vec::new(), Vec::new());
    let mut end = 0_usize;
    for number in 0..count {
        let (declared, size, align) = match p.within(0, 6) {
            0 => (format!(".param .u8 p{number}"), 1, 1),
            1 => (format!(".param .u16 p{number}"), 2, 2),
            2 => (format!(".param .u32 p{number}"), 4, 4),
            3 => (format!(".param .f32 p{number}"), 4, 4),
            4 => (format!(".param .u64 p{number}"), 8, 8),
            5 => (format!(".param .f64 p{number}"), 8, 8),
            _ => {
                let (align, size) = (1_usize << p.within(0, 4), p.within(1, 200) as usize);
                (format!(".param .align {align} .b8 p{number}[{size}]"), size, align)
            }
        };
        let offset = end.next_multiple_of(align);
        end = offset + size;
        places.push((offset, size));
        list.push(declared);
    }
    let _ = writeln!(text, ".visible .entry kernel_{index}({}) {{ ret; }}", list.join(", "));
    places
}

/// What a kernel is launched with.
pub(crate) struct Launch {
    pub(crate) kernel: Kernel,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
    /// One behind the other as the program keeps them, each at an odd address now and then.
    pub(crate) values: Vec<Vec<u8>>,
    /// All in one buffer, as `extra` passes them: with what lies between them, and more behind, or
    /// less.
    pub(crate) buffer: Option<Vec<u8>>,
}

impl Launch {
    pub(crate) fn draw(p: &mut Program, may_pack: bool) -> Launch {
        let index = p.within(0, KERNELS as u64 - 1) as usize;
        let kernel = p.kernels[index].clone();
        let grid = [p.within(1, i32::MAX as u64), p.within(1, 65_535), p.within(1, 65_535)].map(|n| n as u32);
        let x = p.within(1, 1024);
        let y = p.within(1, 1024 / x);
        let z = p.within(1, (1024 / x / y).min(64));
        let block = [x, y, z].map(|n| n as u32);
        let shared = p.within(0, 40_000) as u32;
        let values = kernel.places.clone().into_iter().map(|(_, size)| p.bytes(size)).collect();
        let (more, less) = (p.within(0, 40) as usize, p.within(0, kernel.bytes() as u64) as usize);
        let size = if p.once_in(4) { kernel.bytes() - less } else { kernel.bytes() + more };
        let buffer = (may_pack && p.once_in(2)).then(|| p.bytes(size));
        Launch { kernel, grid, block, shared, values, buffer }
    }

    /// What the kernel has to get.
    pub(crate) fn block_of_parameters(&self) -> Vec<u8> {
        let count = self.kernel.bytes();
        if let Some(buffer) = &self.buffer {
            let mut block = buffer.clone();
            block.resize(count, 0);
            return block;
        }
        let mut block = vec![0; count];
        for (&(offset, size), value) in self.kernel.places.iter().zip(&self.values) {
            block[offset..offset + size].copy_from_slice(value);
        }
        block
    }

    /// `kernelParams` and `extra` of a call, one of which is null.
    pub(crate) fn with_parameters<T>(&self, call: impl FnOnce(*mut *mut c_void, *mut *mut c_void) -> T) -> T {
        match &self.buffer {
            None => {
                let mut list: Vec<*mut c_void> =
                    self.values.iter().map(|value| value.as_ptr().cast_mut().cast()).collect();
                call(list.as_mut_ptr(), null_mut())
            }
            Some(buffer) => {
                let mut size = buffer.len();
                let tag = |number: usize| number as *mut c_void;
                let mut list = [
                    tag(CU_LAUNCH_PARAM_BUFFER_POINTER),
                    buffer.as_ptr().cast_mut().cast(),
                    tag(CU_LAUNCH_PARAM_BUFFER_SIZE),
                    (&raw mut size).cast(),
                    tag(CU_LAUNCH_PARAM_END),
                ];
                call(null_mut(), list.as_mut_ptr())
            }
        }
    }

    /// The description; as long as the attributes.
    pub(crate) fn config(&self, stream: CUstream, attributes: &mut [CUlaunchAttribute]) -> CUlaunchConfig {
        CUlaunchConfig {
            gridDimX: self.grid[0],
            gridDimY: self.grid[1],
            gridDimZ: self.grid[2],
            blockDimX: self.block[0],
            blockDimY: self.block[1],
            blockDimZ: self.block[2],
            sharedMemBytes: self.shared,
            hStream: stream,
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        }
    }

    /// The line that has to arrive; with attributes, if the node gets any.
    fn sent(&self, stream: u64, attributes: &[CUlaunchAttribute]) -> Sent {
        let name = if attributes.is_empty() { "cuLaunchKernel" } else { "cuLaunchKernelEx" };
        let mut sent = Sent::new(name);
        sent.number(self.kernel.number);
        sent.values(&self.grid);
        sent.values(&self.block);
        sent.value(self.shared);
        sent.number(stream);
        if !attributes.is_empty() {
            sent.value(attributes.len() as u32);
            for attribute in attributes {
                sent.value(attribute.id.0);
                sent.value(attribute.value);
            }
        }
        let parameters = self.block_of_parameters();
        sent.value(parameters.len());
        sent.values(&parameters);
        sent
    }
}

/// An attribute that a node of a graph or a stream takes.
pub(crate) fn plain_attribute(p: &mut Program) -> CUlaunchAttribute {
    loop {
        if let (attribute, true) = attribute(p) {
            return attribute;
        }
    }
}

/// Any attribute that is a number, with a value that means something; and whether the node hears of
/// it.
fn attribute(p: &mut Program) -> (CUlaunchAttribute, bool) {
    use CUlaunchAttributeID as Id;
    let ids = [
        (Id::COOPERATIVE, true),
        (Id::CLUSTER_DIMENSION, true),
        (Id::CLUSTER_SCHEDULING_POLICY_PREFERENCE, true),
        (Id::PROGRAMMATIC_STREAM_SERIALIZATION, true),
        (Id::PRIORITY, true),
        (Id::PREFERRED_SHARED_MEMORY_CARVEOUT, true),
        (Id::IGNORE, false),
        (Id::ACCESS_POLICY_WINDOW, false),
        (Id::MEM_SYNC_DOMAIN, false),
        (Id::MEM_SYNC_DOMAIN_MAP, false),
    ];
    let (id, travels) = ids[p.within(0, ids.len() as u64 - 1) as usize];
    let mut value: CUlaunchAttributeValue = p.value();
    match id {
        Id::CLUSTER_DIMENSION => {
            (0..3).for_each(|index| value.words[index] = p.within(1, 16) as u32);
        }
        Id::PREFERRED_SHARED_MEMORY_CARVEOUT => value.words[0] = p.within(0, 100) as u32,
        _ => {}
    }
    (CUlaunchAttribute { id, pad: [0; 4], value }, travels)
}

fn cuLaunchKernel(p: &mut Program) {
    let (stream, number) = p.stream();
    launch_in(p, stream, number);
}

/// A launch in a stream, by whose number the driver knows it.
pub(crate) fn launch_in(p: &mut Program, stream: CUstream, number: u64) {
    let launch = Launch::draw(p, true);
    let ([gx, gy, gz], [bx, by, bz], f) = (launch.grid, launch.block, launch.kernel.function);
    let call = p.cuda.cuLaunchKernel.expect("exported");
    // SAFETY: live handles, and as many values as the kernel has parameters.
    let result = launch.with_parameters(|values, extra| unsafe {
        call(f, gx, gy, gz, bx, by, bz, launch.shared, stream, values, extra)
    });
    p.check(launch.sent(number, &[]), false, result, &[]);
}

fn cuLaunchKernelEx(p: &mut Program) {
    let launch = Launch::draw(p, true);
    let (stream, number) = p.stream();
    let count = p.within(0, 5);
    let drawn: Vec<_> = (0..count).map(|_| attribute(p)).collect();
    let mut attributes: Vec<CUlaunchAttribute> = drawn.iter().map(|(attribute, _)| *attribute).collect();
    let config = launch.config(stream, &mut attributes);
    let call = p.cuda.cuLaunchKernelEx.expect("exported");
    // SAFETY: as above, and as many attributes as the configuration says.
    let result = launch
        .with_parameters(|values, extra| unsafe { call(&config, launch.kernel.function, values, extra) });
    let travelling: Vec<_> =
        drawn.iter().filter(|(_, travels)| *travels).map(|(attribute, _)| *attribute).collect();
    p.check(launch.sent(number, &travelling), false, result, &[]);
}

fn cuLaunchCooperativeKernel(p: &mut Program) {
    let launch = Launch::draw(p, false);
    let (stream, number) = p.stream();
    let ([gx, gy, gz], [bx, by, bz], f) = (launch.grid, launch.block, launch.kernel.function);
    let call = p.cuda.cuLaunchCooperativeKernel.expect("exported");
    // SAFETY: as above.
    let result = launch.with_parameters(|values, _| unsafe {
        call(f, gx, gy, gz, bx, by, bz, launch.shared, stream, values)
    });
    let mut cooperative = CUlaunchAttribute { id: CUlaunchAttributeID::COOPERATIVE, ..Default::default() };
    cooperative.value.words[0] = 1;
    p.check(launch.sent(number, &[cooperative]), false, result, &[]);
}

/// The functions of CUDA 3 that launch.
#[derive(Clone, Copy, PartialEq)]
enum Grid {
    One,
    Plain,
    InStream,
}

/// A launch of a function that is told its block, shared memory and parameters before, in pieces of
/// all sizes.
fn staged(p: &mut Program, by: Grid) {
    let mut launch = Launch::draw(p, false);
    let (stream, number) = if by == Grid::InStream { p.stream() } else { (CUstream::LEGACY, DEFAULT_STREAM) };
    launch.grid = match by {
        Grid::One => [1; 3],
        _ => [launch.grid[0], launch.grid[1], 1],
    };
    let (f, [x, y, z], [width, height, _]) =
        (launch.kernel.function, launch.block.map(|n| n as i32), launch.grid.map(|n| n as i32));
    let (cuda, size) = (&p.cuda, launch.kernel.bytes());
    // What other launches have left between the parameters is known to nobody else: zeros take its
    // place.
    let zeros = vec![0_u8; size];
    // SAFETY: a live function, and as many bytes as it says; here and below.
    let put = |offset: usize, bytes: &[u8]| unsafe {
        let (call, count) = (cuda.cuParamSetv.expect("exported"), bytes.len() as u32);
        ok(call(f, offset as i32, bytes.as_ptr().cast_mut().cast(), count));
    };
    put(0, &zeros);
    for (&(offset, _), value) in launch.kernel.places.iter().zip(&launch.values) {
        match <[u8; 4]>::try_from(value.as_slice()) {
            // SAFETY: as above.
            Ok(word) if offset % 8 == 0 => unsafe {
                ok(cuda.cuParamSeti.expect("exported")(f, offset as i32, u32::from_ne_bytes(word)));
            },
            // SAFETY: as above.
            Ok(word) => unsafe {
                ok(cuda.cuParamSetf.expect("exported")(f, offset as i32, f32::from_ne_bytes(word)));
            },
            Err(_) => put(offset, value),
        }
    }
    // SAFETY: as above.
    let result = unsafe {
        ok(cuda.cuParamSetSize.expect("exported")(f, size as u32));
        ok(cuda.cuFuncSetBlockShape.expect("exported")(f, x, y, z));
        ok(cuda.cuFuncSetSharedSize.expect("exported")(f, launch.shared));
        match by {
            Grid::One => cuda.cuLaunch.expect("exported")(f),
            Grid::Plain => cuda.cuLaunchGrid.expect("exported")(f, width, height),
            Grid::InStream => cuda.cuLaunchGridAsync.expect("exported")(f, width, height, stream),
        }
    };
    p.check(launch.sent(number, &[]), false, result, &[]);
}

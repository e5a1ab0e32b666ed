//! A program's view of the driver: its table, with results that panic where a test expects success.

// Every test file is a program of its own and uses a part of this.
#![allow(dead_code, unreachable_pub)]

use std::ffi::{CString, c_void};
use std::ptr::{null, null_mut};
use std::sync::{LazyLock, Once};

use sluice_cuda::*;

/// The driver under test.
pub static DRIVER: LazyLock<DriverTable> = LazyLock::new(sluice_softgpu::table);

/// Memory of each of the three devices.
pub const MEMORY: u64 = 64 << 20;

/// Calls a driver function and returns its result.
#[macro_export]
macro_rules! result {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        let function = $crate::common::DRIVER.$function.expect(stringify!($function));
        // SAFETY: the tests pass what the CUDA Driver API asks for, or what it says is an error.
        // Arguments are places and numbers; what is unsafe is the call.
        #[allow(clippy::macro_metavars_in_unsafe)]
        unsafe { function($($argument),*) }
    }};
}

/// Calls a driver function that must succeed.
#[macro_export]
macro_rules! ok {
    ($function:ident($($argument:expr),* $(,)?)) => {
        assert_eq!($crate::result!($function($($argument),*)), sluice_cuda::CUresult::SUCCESS, stringify!($function))
    };
}

/// Three devices, initialised once per process.
pub fn init() {
    static INIT: Once = Once::new();
    INIT.call_once(|| {
        let devices = vec![sluice_softgpu::SoftDevice::with_memory(MEMORY); 3];
        sluice_softgpu::configure(sluice_softgpu::Config { devices, threads: 2, same_process: true });
        ok!(cuInit(0));
    });
}

/// A context of its own, current in the calling thread, destroyed when it goes.
pub struct Context(pub CUcontext);

impl Context {
    pub fn new(device: CUdevice) -> Self {
        init();
        let mut context = CUcontext::NULL;
        ok!(cuCtxCreate_v2(&mut context, 0, device));
        Self(context)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        ok!(cuCtxDestroy_v2(self.0));
    }
}

/// Loads PTX; the header is added.
pub fn module(body: &str) -> CUmodule {
    let text = CString::new(format!(".version 7.0\n.target sm_75\n.address_size 64\n{body}")).expect("text");
    let mut module = CUmodule::NULL;
    ok!(cuModuleLoadData(&mut module, text.as_ptr().cast()));
    module
}

pub fn function(module: CUmodule, name: &str) -> CUfunction {
    let name = CString::new(name).expect("a name");
    let mut function = CUfunction::NULL;
    ok!(cuModuleGetFunction(&mut function, module, name.as_ptr()));
    function
}

pub fn allocate(bytes: usize) -> CUdeviceptr {
    let mut address = 0;
    ok!(cuMemAlloc_v2(&mut address, bytes));
    address
}

pub fn stream(flags: u32) -> CUstream {
    let mut stream = CUstream::NULL;
    ok!(cuStreamCreate(&mut stream, flags));
    stream
}

pub fn event() -> CUevent {
    let mut event = CUevent::NULL;
    ok!(cuEventCreate(&mut event, 0));
    event
}

/// Launches with one pointer per parameter.
pub fn launch(f: CUfunction, grid: u32, block: u32, s: CUstream, params: &mut [*mut c_void]) -> CUresult {
    result!(cuLaunchKernel(f, grid, 1, 1, block, 1, 1, 0, s, params.as_mut_ptr(), null_mut()))
}

pub fn write<T: Copy>(to: CUdeviceptr, values: &[T]) {
    ok!(cuMemcpyHtoD_v2(to, values.as_ptr().cast(), size_of_val(values)));
}

pub fn read<T: Copy + Default>(from: CUdeviceptr, count: usize) -> Vec<T> {
    let mut values = vec![T::default(); count];
    ok!(cuMemcpyDtoH_v2(values.as_mut_ptr().cast(), from, count * size_of::<T>()));
    values
}

/// A pointer to an argument.
pub fn arg<T>(value: &mut T) -> *mut c_void {
    (value as *mut T).cast()
}

/// No name, where one may be left out.
pub const NO_NAME: *const std::ffi::c_char = null();

/// `add(int* x, int n, int v)`: x[i] += v for every i below n, one thread each.
pub const ADD: &str = "
.visible .entry add(.param .u64 x, .param .u32 n, .param .u32 v)
{
    .reg .pred %p; .reg .b32 %r<8>; .reg .b64 %rd<4>;
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r1, %r2, %r3;
    ld.param.u32 %r5, [n];
    setp.ge.u32 %p, %r4, %r5;
    @%p bra DONE;
    ld.param.u64 %rd1, [x];
    mul.wide.u32 %rd2, %r4, 4;
    add.s64 %rd3, %rd1, %rd2;
    ld.param.u32 %r6, [v];
    ld.global.u32 %r7, [%rd3];
    add.s32 %r7, %r7, %r6;
    st.global.u32 [%rd3], %r7;
DONE:
    ret;
}
";

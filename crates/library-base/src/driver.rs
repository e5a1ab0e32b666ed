//! The functions of `libcuda.so.1` that the libraries call.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

pub type Context = *mut c_void;
pub type Module = *mut c_void;
/// A `CUfunction`: a pointer that only the driver follows, as a number because pointers may not
/// cross threads.
pub type Function = usize;

/// A `CUstream`, as a number for the same reason.
pub type Stream = usize;

pub type DevicePtr = u64;

/// Why a call of the driver failed, as far as the libraries' status codes tell causes apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// There is no driver, or the thread has no context and none can be made.
    NotInitialized,
    OutOfMemory,
    Failed,
}

pub type Outcome<T = ()> = Result<T, Error>;

/// The result of the driver that has an error of its own (`CUresult`).
const OUT_OF_MEMORY: c_int = 2;

/// `CU_STREAM_NON_BLOCKING`: the stream does not wait for the default stream, nor that for it.
const NON_BLOCKING: c_uint = 1;

/// The driver's answer for the default stream while a stream that it waits for is captured
/// (`CUDA_ERROR_STREAM_CAPTURE_IMPLICIT`).
const CAPTURE_IMPLICIT: c_int = 906;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`, in which memory can be allocated while a stream is captured.
const CAPTURE_MODE_RELAXED: c_int = 2;

/// Declares the table of driver functions, which are looked up by name.
macro_rules! functions {
    ($($field:ident = $symbol:literal ($($argument:ty),*);)*) => {
        /// The driver functions. A pointer in here is the driver's function of this signature.
        pub struct Driver {
            $($field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Driver {
            fn find() -> Option<Driver> {
                // SAFETY: a NUL-terminated name. The library that the program itself uses has been
                // loaded by this name, or is found where the program would find it.
                let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
                if library.is_null() {
                    return None;
                }
                Some(Driver {
                    $($field: {
                        let name: &CStr = $symbol;
                        // SAFETY: a handle that was not closed, and a NUL-terminated name.
                        let address = unsafe { libc::dlsym(library, name.as_ptr()) };
                        if address.is_null() {
                            return None;
                        }
                        // SAFETY: the driver's function of this name has this signature (CUDA
                        // Driver API).
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) -> c_int,
                            >(address)
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    init = c"cuInit" (c_uint);
    current = c"cuCtxGetCurrent" (*mut Context);
    make_current = c"cuCtxSetCurrent" (Context);
    context_id = c"cuCtxGetId" (Context, *mut u64);
    retain_primary = c"cuDevicePrimaryCtxRetain" (*mut Context, c_int);
    load_module = c"cuModuleLoadData" (*mut Module, *const c_void);
    module_function = c"cuModuleGetFunction" (*mut Function, Module, *const c_char);
    launch_kernel = c"cuLaunchKernel" (
        Function, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Stream, *mut *mut c_void,
        *mut *mut c_void
    );
    allocate = c"cuMemAlloc_v2" (*mut DevicePtr, usize);
    free = c"cuMemFree_v2" (DevicePtr);
    copy_to_device = c"cuMemcpyHtoDAsync_v2" (DevicePtr, *const c_void, usize, Stream);
    copy_to_host = c"cuMemcpyDtoHAsync_v2" (*mut c_void, DevicePtr, usize, Stream);
    create_stream = c"cuStreamCreate" (*mut Stream, c_uint);
    destroy_stream = c"cuStreamDestroy_v2" (Stream);
    synchronize = c"cuStreamSynchronize" (Stream);
    capture_status = c"cuStreamIsCapturing" (Stream, *mut c_int);
    exchange_capture_mode = c"cuThreadExchangeStreamCaptureMode" (*mut c_int);
}

fn check(result: c_int) -> Outcome {
    match result {
        0 => Ok(()),
        OUT_OF_MEMORY => Err(Error::OutOfMemory),
        _ => Err(Error::Failed),
    }
}

impl Driver {
    /// The driver of this process.
    pub fn get() -> Outcome<&'static Driver> {
        static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
        DRIVER.get_or_init(Driver::find).as_ref().ok_or(Error::NotInitialized)
    }

    /// Makes device 0's primary context current if the thread has no context, as CUDA's runtime
    /// does at its first call.
    pub fn ensure_context(&self) -> Outcome {
        let mut context = std::ptr::null_mut();
        // SAFETY: the places for answers are on the stack; device 0 exists if cuInit succeeded.
        let result = unsafe {
            match (self.current)(&mut context) {
                0 if !context.is_null() => return Ok(()),
                _ => {}
            }
            match (self.init)(0) {
                0 => match (self.retain_primary)(&mut context, 0) {
                    0 => (self.make_current)(context),
                    error => error,
                },
                error => error,
            }
        };
        if result == 0 { Ok(()) } else { Err(Error::NotInitialized) }
    }

    /// The id of the current context, which no other context of the process ever has. A thread
    /// without one gets device 0's primary context, because NVIDIA's libraries work on such a
    /// thread too.
    pub fn context_id(&self) -> Outcome<u64> {
        self.ensure_context()?;
        let mut id = 0;
        // SAFETY: a null context stands for the current one; the answer's place is on the stack.
        check(unsafe { (self.context_id)(std::ptr::null_mut(), &mut id) })
            .map_err(|_| Error::NotInitialized)?;
        Ok(id)
    }

    /// Loads a module of one kernel into the current context, where it stays.
    pub fn load(&self, ptx: &CStr, name: &CStr) -> Outcome<Function> {
        let (mut module, mut function) = (std::ptr::null_mut(), 0);
        self.while_relaxed(|| {
            // SAFETY: PTX text that ends with NUL, and a place on the stack.
            check(unsafe { (self.load_module)(&mut module, ptx.as_ptr().cast()) })?;
            // SAFETY: the module from just now, a NUL-terminated name, and a place on the stack.
            check(unsafe { (self.module_function)(&mut function, module, name.as_ptr()) })
        })?;
        Ok(function)
    }

    /// Launches a kernel whose parameters are all of 64 bits, as many as `arguments`.
    pub fn launch(
        &self,
        function: Function,
        grid: [u32; 3],
        block: [u32; 3],
        stream: Stream,
        arguments: &[u64],
    ) -> Outcome {
        let mut places: Vec<*mut c_void> =
            arguments.iter().map(|argument| std::ptr::from_ref(argument).cast_mut().cast()).collect();
        // SAFETY: the places point to the arguments, which the driver copies before it returns. The
        // kernels that this library writes have this many parameters of 64 bits.
        check(unsafe {
            (self.launch_kernel)(
                function,
                grid[0],
                grid[1],
                grid[2],
                block[0],
                block[1],
                block[2],
                0,
                stream,
                places.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        })
    }

    pub fn allocate(&self, bytes: u64) -> Outcome<DevicePtr> {
        let mut address = 0;
        self.while_relaxed(|| {
            // SAFETY: the place for the answer is on the stack.
            check(unsafe { (self.allocate)(&mut address, bytes as usize) })
        })?;
        Ok(address)
    }

    pub fn free(&self, address: DevicePtr) {
        // An error means that the context has been destroyed, and the memory with it.
        let _ = self.while_relaxed(|| {
            // SAFETY: an address from `allocate`, which the caller gives up.
            check(unsafe { (self.free)(address) })
        });
    }

    /// Copies host memory to device memory that no work uses yet, and waits for the copy.
    ///
    /// The copy has a stream of its own. In the caller's stream, which may be captured, it would
    /// become a node of a graph that reads `from` at each launch, when it has been freed.
    pub fn write(&self, to: DevicePtr, from: &[u8]) -> Outcome {
        self.while_relaxed(|| {
            let mut stream = 0;
            // SAFETY: the place for the answer is on the stack.
            check(unsafe { (self.create_stream)(&mut stream, NON_BLOCKING) })?;
            // SAFETY: the slice has as many bytes as are copied. The new stream is not captured,
            // and the slice is there until the stream has been waited for.
            let copied =
                check(unsafe { (self.copy_to_device)(to, from.as_ptr().cast(), from.len(), stream) })
                    .and_then(|()| self.synchronize(stream));
            // SAFETY: the stream from above, which nothing else uses.
            unsafe { (self.destroy_stream)(stream) };
            copied
        })
    }

    /// Allocates device memory with these contents, which are there when this returns.
    pub fn allocate_with(&self, contents: &[u8]) -> Outcome<DevicePtr> {
        let address = self.allocate(contents.len() as u64)?;
        self.write(address, contents).inspect_err(|_| self.free(address))?;
        Ok(address)
    }

    /// Whether a stream is captured, so that it cannot be waited for. The default stream counts as
    /// captured while the driver refuses it because of a capture in another stream.
    pub fn is_captured(&self, stream: Stream) -> bool {
        let mut status = 0;
        // SAFETY: the driver checks the stream; the place for the answer is on the stack.
        let result = unsafe { (self.capture_status)(stream, &mut status) };
        result == CAPTURE_IMPLICIT || (result == 0 && status != 0)
    }

    /// Copies device memory to the host and waits for it. While the stream is captured that is
    /// refused: the copy would become a node of a graph that writes to `to` at each launch.
    pub fn read(&self, from: DevicePtr, to: &mut [u8], stream: Stream) -> Outcome {
        if self.is_captured(stream) {
            return Err(Error::Failed);
        }
        // SAFETY: the slice has as many bytes as are copied, and is there until the stream is done.
        check(unsafe { (self.copy_to_host)(to.as_mut_ptr().cast(), from, to.len(), stream) })?;
        self.synchronize(stream)
    }

    /// Waits for the work in a stream.
    pub fn synchronize(&self, stream: Stream) -> Outcome {
        // SAFETY: the driver checks the stream.
        check(unsafe { (self.synchronize)(stream) })
    }

    /// Runs what the driver refuses while any thread captures a stream in its strict modes.
    fn while_relaxed<T>(&self, action: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
        let mut mode = CAPTURE_MODE_RELAXED;
        // SAFETY: the mode is on the stack.
        unsafe { (self.exchange_capture_mode)(&mut mode) };
        let outcome = action();
        // SAFETY: the mode is on the stack; it is the one that the thread had.
        unsafe { (self.exchange_capture_mode)(&mut mode) };
        outcome
    }
}

"""The CUDA driver through ctypes, for programs that need nothing from PyPI: any python3 runs them.

The kernels below are PTX written by hand for the tests.
"""

import ctypes

OUT_OF_MEMORY, LAUNCH_TIMEOUT, NO_BINARY_FOR_GPU = 2, 702, 209

HEADER = ".version 7.0\n.target sm_75\n.address_size 64\n"

# Computes for `rounds` rounds in every thread; each block's first thread then adds one to `out[0]`.
SPIN = HEADER + """
.visible .entry spin(.param .u64 out, .param .u32 rounds)
{
    .reg .pred %p<4>;
    .reg .f32 %f<4>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [rounds];
    mov.u32 %r2, %tid.x;
    cvt.rn.f32.u32 %f1, %r2;
    mov.u32 %r4, 0;
ROUND:
    setp.ge.u32 %p1, %r4, %r1;
    @%p1 bra DONE;
    fma.rn.f32 %f1, %f1, 0f3F7FF972, 0f3F800000;
    add.u32 %r4, %r4, 1;
    bra ROUND;
DONE:
    setp.lt.f32 %p2, %f1, 0f00000000;
    setp.eq.u32 %p3, %r2, 0;
    or.pred %p3, %p3, %p2;
    @!%p3 bra END;
    atom.global.add.u32 %r6, [%rd1], 1;
END:
    ret;
}
"""

# Never ends, in a way that no compiler can see: the word it waits for stays zero.
ENDLESS = HEADER + """
.visible .entry endless(.param .u64 word)
{
    .reg .pred %p<2>;
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [word];
AGAIN:
    ld.volatile.global.u32 %r1, [%rd1];
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra AGAIN;
    ret;
}
"""

# Reads a word at any address and writes it to `out`; or writes one there.
PEEK_POKE = HEADER + """
.visible .entry peek(.param .u64 address, .param .u64 out)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [address];
    ld.param.u64 %rd2, [out];
    ld.u32 %r1, [%rd1];
    st.global.u32 [%rd2], %r1;
    ret;
}
.visible .entry poke(.param .u64 address, .param .u64 out)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [address];
    mov.u32 %r1, 7;
    st.u32 [%rd1], %r1;
    ret;
}
"""


class CudaError(RuntimeError):
    def __init__(self, function, code):
        name = ctypes.c_char_p()
        library.cuGetErrorName(code, ctypes.byref(name))
        super().__init__(f"{function}: {code} {(name.value or b'?').decode()}")
        self.function, self.code = function, code


library = ctypes.CDLL("libcuda.so.1")


def call(function, *arguments):
    code = getattr(library, function)(*arguments)
    if code != 0:
        raise CudaError(function, code)


def code_of(function, *arguments):
    """The result code of a call that may fail."""
    return getattr(library, function)(*arguments)


def attach(device=0):
    """Initialises the driver and makes the device's primary context current."""
    call("cuInit", 0)
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    call("cuDeviceGet", ctypes.byref(handle), device)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
    call("cuCtxSetCurrent", context)
    return handle


def allocate(size):
    address = ctypes.c_uint64()
    call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
    return address.value


def free(address):
    call("cuMemFree_v2", ctypes.c_uint64(address))


def memory_info():
    """Free and total bytes."""
    free_bytes, total = ctypes.c_size_t(), ctypes.c_size_t()
    call("cuMemGetInfo_v2", ctypes.byref(free_bytes), ctypes.byref(total))
    return free_bytes.value, total.value


def load(text, name):
    """The function `name` of a module given as PTX text."""
    return function_of(load_module(text), name)


def load_module(text):
    """A module given as PTX text."""
    module = ctypes.c_void_p()
    call("cuModuleLoadData", ctypes.byref(module), text.encode() + b"\0")
    return module


def function_of(module, name):
    function = ctypes.c_void_p()
    call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
    return function


def launch(function, grid, block, *values):
    """Launches with arguments that are ctypes values."""
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in values))
    call("cuLaunchKernel", function, grid, 1, 1, block, 1, 1, 0, None, pointers, None)


def synchronize():
    call("cuCtxSynchronize")


def read_u32(address):
    word = ctypes.c_uint32()
    call("cuMemcpyDtoH_v2", ctypes.byref(word), ctypes.c_uint64(address), ctypes.c_size_t(4))
    return word.value


def clear(address, size):
    call("cuMemsetD8_v2", ctypes.c_uint64(address), ctypes.c_ubyte(0), ctypes.c_size_t(size))

"""Vectors on a GPU, by the CUDA driver alone."""

import ctypes
import pathlib

PTX = pathlib.Path(__file__).with_name("vectors.ptx")
BLOCK = 256


class CudaError(Exception):
    """A driver function has failed."""


class Gpu:
    """The first GPU, with its primary context and the kernels of this library."""

    def __init__(self):
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        self.device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(self.device), 0)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device)
        self.call("cuCtxSetCurrent", context)
        self.module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(self.module), PTX.read_bytes() + b"\0")

    def call(self, function, *arguments):
        """Calls a driver function; its failure is an exception that names both."""
        result = getattr(self.driver, function)(*arguments)
        if result != 0:
            name = ctypes.c_char_p()
            self.driver.cuGetErrorName(result, ctypes.byref(name))
            raise CudaError(f"{function}: {(name.value or b'unknown').decode()}")

    def name(self):
        text = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", text, len(text), self.device)
        return text.value.decode()

    def vector(self, kind, values):
        return Vector(self, kind, values)

    def launch(self, kernel, threads, *arguments):
        """Launches a kernel with at least so many threads, in blocks of at most `BLOCK`."""
        self.launch_blocks(kernel, (threads + BLOCK - 1) // BLOCK, BLOCK, *arguments)

    def launch_blocks(self, kernel, blocks, threads, *arguments):
        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), self.module, kernel.encode())
        pointers = (ctypes.c_void_p * len(arguments))(
            *(ctypes.cast(ctypes.byref(argument), ctypes.c_void_p) for argument in arguments)
        )
        self.call("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, None, pointers, None)

    def synchronize(self):
        self.call("cuCtxSynchronize")


class Vector:
    """Numbers of one kind in the GPU's memory."""

    def __init__(self, gpu, kind, values):
        self.gpu, self.kind, self.length = gpu, kind, len(values)
        self.address = ctypes.c_uint64()
        gpu.call("cuMemAlloc_v2", ctypes.byref(self.address), ctypes.c_size_t(self.bytes()))
        host = (kind * self.length)(*values)
        gpu.call("cuMemcpyHtoD_v2", self.address, host, ctypes.c_size_t(self.bytes()))

    def bytes(self):
        return self.length * ctypes.sizeof(self.kind)

    def values(self):
        host = (self.kind * self.length)()
        self.gpu.call("cuMemcpyDtoH_v2", host, self.address, ctypes.c_size_t(self.bytes()))
        return list(host)

    def free(self):
        self.gpu.call("cuMemFree_v2", self.address)


def saxpy(gpu, factor, x, y):
    """y += factor * x"""
    length = ctypes.c_uint32(x.length)
    gpu.launch("saxpy", x.length, ctypes.c_float(factor), x.address, y.address, length)


def total(gpu, x):
    """The sum of a vector, modulo 2**32."""
    out = gpu.vector(ctypes.c_uint32, [0])
    gpu.launch("total", x.length, x.address, out.address, ctypes.c_uint32(x.length))
    [value] = out.values()
    out.free()
    return value


def histogram(gpu, x):
    """How often each of the lowest four bits is in a vector."""
    bins = gpu.vector(ctypes.c_uint32, [0] * 16)
    gpu.launch("histogram", x.length, x.address, bins.address, ctypes.c_uint32(x.length))
    counts = bins.values()
    bins.free()
    return counts


def reverse(gpu, x):
    """Reverses a vector of at most 1024 numbers."""
    gpu.launch_blocks("reverse", 1, x.length, x.address, ctypes.c_uint32(x.length))


def scan(gpu, x):
    """Replaces each number of at most 1024 by the sum up to it."""
    gpu.launch_blocks("scan", 1, x.length, x.address, ctypes.c_uint32(x.length))

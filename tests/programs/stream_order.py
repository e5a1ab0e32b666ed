"""Copies from page-locked memory read it when their stream gets there, whoever writes it until then: a copy from the device, a function of
the program, or the program itself, which a stream waits for. Of each in turn, small and large, as a line, as a box, and into an array.
"""

import ctypes
from ctypes import byref, c_size_t, c_uint32, c_uint64, c_void_p

from driver import allocate, attach, call, clear, read_u32, synchronize

LARGE = 4 << 20
HOST, DEVICE, ARRAY = 1, 2, 3


class Memcpy2D(ctypes.Structure):
    _fields_ = [
        (name, kind)
        for side in ("src", "dst")
        for name, kind in (
            (side + "XInBytes", c_size_t),
            (side + "Y", c_size_t),
            (side + "MemoryType", ctypes.c_int),
            (side + "Host", c_void_p),
            (side + "Device", c_uint64),
            (side + "Array", c_void_p),
            (side + "Pitch", c_size_t),
        )
    ] + [("WidthInBytes", c_size_t), ("Height", c_size_t)]


class ArrayDescriptor(ctypes.Structure):
    _fields_ = [("Width", c_size_t), ("Height", c_size_t), ("Format", ctypes.c_int), ("NumChannels", ctypes.c_uint)]


def stream():
    handle = c_void_p()
    call("cuStreamCreate", byref(handle), 1)
    return handle


def pinned(size, flags=0):
    start = c_void_p()
    call("cuMemHostAlloc", byref(start), c_size_t(size), flags)
    ctypes.memset(start, 0, size)
    return start


def words(start, size=4):
    return (c_uint32 * (size // 4)).from_address(start.value)


def fill(device, value, size):
    call("cuMemsetD32_v2", c_uint64(device), c_uint32(value), c_size_t(size // 4))


def line(to, source, size, on):
    call("cuMemcpyHtoDAsync_v2", c_uint64(to), source, c_size_t(size), on)


def either_way(to, source, size, on):
    call("cuMemcpyAsync", c_uint64(to), c_uint64(source.value), c_size_t(size), on)


def box(to, source, size, on):
    """Rows that do not touch, so that the ends of the memory count as well as its beginning."""
    copy = Memcpy2D(srcMemoryType=HOST, srcHost=source, srcPitch=1024, dstMemoryType=DEVICE, dstDevice=to, dstPitch=1024)
    copy.WidthInBytes, copy.Height = 512, size // 1024
    call("cuMemcpy2DAsync_v2", byref(copy), on)


def at_once(to, source, size, on):
    """A synchronous copy, of the default stream, which waits for what is before it."""
    event = c_void_p()
    call("cuEventCreate", byref(event), 2)
    call("cuEventRecord", event, on)
    call("cuStreamWaitEvent", None, event, 0)
    call("cuMemcpyHtoD_v2", c_uint64(to), source, c_size_t(size))


def check(what, device, value):
    got = read_u32(device)
    if got != value:
        raise SystemExit(f"{what}: the device has {got}, not {value}")


HostFunction = ctypes.CFUNCTYPE(None, c_void_p)


def main():
    attach()
    on, other, event = stream(), stream(), c_void_p()
    call("cuEventCreate", byref(event), 2)
    first, second, memory = allocate(LARGE), allocate(LARGE), pinned(LARGE)
    flag = pinned(4096, 2)
    device_flag = c_uint64()
    call("cuMemHostGetDevicePointer_v2", byref(device_flag), flag, 0)
    value = 1

    @HostFunction
    def writes(new):
        ctypes.memset(memory, new, LARGE)

    for size in (4096, LARGE):
        for copy in (line, either_way, box, at_once):
            what = f"{copy.__name__} of {size} bytes"
            value += 1
            ctypes.memset(memory, 0, LARGE)
            fill(first, value, LARGE)
            clear(second, LARGE)
            synchronize()
            call("cuMemcpyDtoHAsync_v2", memory, c_uint64(first), c_size_t(size), on)
            copy(second, memory, size, on)
            call("cuStreamSynchronize", on)
            check(f"{what}, after a copy from the device", second, value)

            call("cuLaunchHostFunc", on, writes, c_void_p(value))
            call("cuEventRecord", event, on)
            call("cuStreamWaitEvent", other, event, 0)
            copy(second, memory, size, other)
            call("cuStreamSynchronize", other)
            check(f"{what}, after a function in another stream", second, value * 0x01010101)

    descriptor = ArrayDescriptor(Width=256, Height=1, Format=3, NumChannels=1)
    array = c_void_p()
    call("cuArrayCreate_v2", byref(array), byref(descriptor))
    fill(first, 77, 4096)
    call("cuMemcpyDtoHAsync_v2", memory, c_uint64(first), c_size_t(1024), on)
    call("cuMemcpyHtoAAsync_v2", array, c_size_t(0), memory, c_size_t(1024), on)
    call("cuStreamSynchronize", on)
    call("cuMemcpyAtoD_v2", c_uint64(second), array, c_size_t(0), c_size_t(1024))
    check("an array, after a copy from the device", second, 77)

    for size in (4096, LARGE):
        words(memory)[0], words(flag)[0] = 1, 0
        call("cuStreamWaitValue32_v2", on, device_flag, c_uint32(size), c_uint32(1))
        line(second, memory, size, on)
        words(memory)[0] = size + 1
        words(flag)[0] = size
        call("cuStreamSynchronize", on)
        check("a line, after the program's word", second, size + 1)
    for start in (memory, flag):
        call("cuMemFreeHost", start)
    print("PASS")


main()

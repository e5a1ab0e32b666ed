"""The driver's functions one by one, called as a C program would, each with a result that can be checked.

Programs reach most functions by way of a runtime; here are those that they rarely use. What is checked holds on any
CUDA driver, so the same file runs against NVIDIA's. Needs nothing but Python.
"""

import ctypes
import os
import sys
import tempfile
import threading
import traceback

from ctypes import byref, c_char, c_char_p, c_float, c_int, c_size_t, c_ubyte, c_uint32, c_uint64, c_ushort, c_void_p

from driver import HEADER, allocate, attach, call, code_of, free, library

INVALID_VALUE, NOT_FOUND, NOT_READY, INVALID_HANDLE, INVALID_IMAGE = 1, 500, 600, 400, 200
INVALID_DEVICE, FILE_NOT_FOUND, PEER_ACCESS_NOT_ENABLED = 101, 301, 705
NOT_SUPPORTED, UNSUPPORTED_EXEC_AFFINITY = 801, 224
LEGACY, PER_THREAD = c_void_p(1), c_void_p(2)

# Adds `value` to each of `count` words; `table` is a global that programs find by its name.
ADD = HEADER + """
.visible .global .align 4 .u32 table[4] = {1, 2, 3, 4};

.visible .entry add(.param .u64 words, .param .u32 count, .param .u32 value)
{
    .reg .pred %p<2>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [words];
    ld.param.u32 %r1, [count];
    ld.param.u32 %r2, [value];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.u32 %r6, %r3, %r4, %r5;
    setp.ge.u32 %p1, %r6, %r1;
    @%p1 bra DONE;
    mul.wide.u32 %rd2, %r6, 4;
    add.u64 %rd3, %rd1, %rd2;
    ld.global.u32 %r7, [%rd3];
    add.u32 %r7, %r7, %r2;
    st.global.u32 [%rd3], %r7;
DONE:
    ret;
}
"""

SECTIONS = []


def section(function):
    SECTIONS.append(function)
    return function


def out(kind, function, *arguments, first=True):
    """Calls a function that writes one value through its first (or last) parameter, and returns the value."""
    value = kind()
    call(function, *((byref(value), *arguments) if first else (*arguments, byref(value))))
    return value.value


def equal(got, want, what=""):
    assert got == want, f"{what}: {got!r}, expected {want!r}"


def refused(code, function, *arguments):
    equal(code_of(function, *arguments), code, function)


def address(value):
    return c_uint64(value)


def size(value):
    return c_size_t(value)


def words(device, count):
    """Words of device memory."""
    host = (c_uint32 * count)()
    call("cuMemcpyDtoH_v2", host, address(device), size(4 * count))
    return list(host)


def upload(device, values):
    host = (c_uint32 * len(values))(*values)
    call("cuMemcpyHtoD_v2", address(device), host, size(4 * len(values)))


def module():
    handle = c_void_p()
    call("cuModuleLoadData", byref(handle), ADD.encode() + b"\0")
    return handle


def function(of=None, name=b"add"):
    handle = c_void_p()
    call("cuModuleGetFunction", byref(handle), of or module(), name)
    return handle


def parameters(*values):
    """Keeps the values alive beside the array of pointers to them."""
    pointers = (c_void_p * len(values))(*(ctypes.cast(byref(value), c_void_p) for value in values))
    pointers.values = values
    return pointers


@section
def errors_and_versions():
    for name, code, want in [("cuGetErrorName", 2, b"CUDA_ERROR_OUT_OF_MEMORY"), ("cuGetErrorString", 2, b"out of memory")]:
        text = c_char_p()
        call(name, code, byref(text))
        equal(text.value, want)
    refused(INVALID_VALUE, "cuGetErrorName", 123456, byref(c_char_p()))
    version = out(c_int, "cuDriverGetVersion")
    found = c_void_p()
    call("cuGetProcAddress", b"cuMemAlloc", byref(found), version, c_uint64(0))
    equal(found.value, ctypes.cast(library.cuMemAlloc_v2, c_void_p).value, "cuMemAlloc leads to its _v2")
    call("cuGetProcAddress", b"cuMemcpyHtoD", byref(found), version, c_uint64(2))
    equal(found.value, ctypes.cast(library.cuMemcpyHtoD_v2_ptds, c_void_p).value, "the variant for a thread's own stream")
    status = c_int()
    refused(NOT_FOUND, "cuGetProcAddress_v2", b"cuNoSuchFunction", byref(found), version, c_uint64(0), byref(status))
    equal(status.value, 1, "symbol not found")


@section
def devices():
    device = out(c_int, "cuDeviceGet", 0)
    major, minor = c_int(), c_int()
    call("cuDeviceComputeCapability", byref(major), byref(minor), device)
    equal((major.value, minor.value), (attribute(75, device), attribute(76, device)))
    bus = ctypes.create_string_buffer(32)
    call("cuDeviceGetPCIBusId", bus, 32, device)
    equal(out(c_int, "cuDeviceGetByPCIBusId", bus), device)
    properties = (c_int * 14)()
    call("cuDeviceGetProperties", properties, device)
    equal(properties[0], attribute(1, device), "threads per block")
    equal(properties[9], attribute(10, device), "warp size")
    equal(out(c_int, "cuDeviceCanAccessPeer", device, device), 0)
    luid, mask = ctypes.create_string_buffer(8), c_uint32()
    code_of("cuDeviceGetLuid", luid, byref(mask), device)
    refused(INVALID_DEVICE, "cuDeviceGet", byref(c_int()), 64)
    pool, default = c_void_p(), c_void_p()
    call("cuDeviceGetDefaultMemPool", byref(default), device)
    call("cuDeviceGetMemPool", byref(pool), device)
    equal(pool.value, default.value)


def attribute(number, device):
    return out(c_int, "cuDeviceGetAttribute", number, device)


@section
def contexts():
    device = out(c_int, "cuDeviceGet", 0)
    primary = out(c_void_p, "cuCtxGetCurrent")
    flags, active = c_uint32(), c_int()
    call("cuDevicePrimaryCtxGetState", device, byref(flags), byref(active))
    equal(active.value, 1)
    context = c_void_p()
    call("cuCtxCreate_v2", byref(context), 0, device)
    equal(out(c_void_p, "cuCtxGetCurrent"), context.value, "a created context is current")
    memory = allocate(64)
    call("cuMemsetD32_v2", address(memory), 5, size(16))
    call("cuCtxSynchronize")
    equal(words(memory, 16), [5] * 16)
    free(memory)
    popped = c_void_p()
    call("cuCtxPopCurrent_v2", byref(popped))
    equal(popped.value, context.value)
    equal(out(c_void_p, "cuCtxGetCurrent"), primary)
    call("cuCtxPushCurrent_v2", context)
    equal(out(c_int, "cuCtxGetDevice"), device)
    one = out(c_uint64, "cuCtxGetId", context, first=False)
    other = out(c_uint64, "cuCtxGetId", c_void_p(primary), first=False)
    assert one != other, "two contexts have one id"
    assert out(c_uint32, "cuCtxGetApiVersion", context, first=False) >= 3010
    call("cuCtxSetFlags", 1)
    equal(out(c_uint32, "cuCtxGetFlags") & 7, 1, "scheduling flag")
    call("cuCtxSetCacheConfig", 1)
    out(c_int, "cuCtxGetCacheConfig")
    call("cuCtxSetSharedMemConfig", 0)
    equal(out(c_int, "cuCtxGetSharedMemConfig"), 1, "banks of four bytes")
    call("cuCtxResetPersistingL2Cache")
    refused(INVALID_DEVICE, "cuCtxEnablePeerAccess", c_void_p(primary), 0)
    refused(PEER_ACCESS_NOT_ENABLED, "cuCtxDisablePeerAccess", c_void_p(primary))
    heap = out(c_size_t, "cuCtxGetLimit", 2)
    call("cuCtxSetLimit", 2, size(heap * 2))
    assert out(c_size_t, "cuCtxGetLimit", 2) >= heap * 2
    call("cuCtxDestroy_v2", context)
    equal(out(c_void_p, "cuCtxGetCurrent"), primary)
    call("cuCtxCreate_v4", byref(context), None, 0, device)
    call("cuCtxDestroy", context)
    call("cuCtxPushCurrent", c_void_p(primary))
    call("cuCtxPopCurrent", byref(popped))
    equal(popped.value, primary)
    least, greatest = c_int(), c_int()
    call("cuCtxGetStreamPriorityRange", byref(least), byref(greatest))
    assert least.value >= greatest.value


@section
def modules():
    with tempfile.NamedTemporaryFile(suffix=".ptx") as file:
        file.write(ADD.encode())
        file.flush()
        loaded, library_handle = c_void_p(), c_void_p()
        call("cuModuleLoad", byref(loaded), os.fsencode(file.name))
        call("cuLibraryLoadFromFile", byref(library_handle), os.fsencode(file.name), None, None, 0, None, None, 0)
    refused(301, "cuModuleLoad", byref(c_void_p()), b"/no/such/file")
    refused(NOT_FOUND, "cuModuleGetFunction", byref(c_void_p()), loaded, b"missing")
    check_function(loaded)
    check_table(*global_of("cuModuleGetGlobal_v2", loaded))
    call("cuModuleUnload", loaded)
    refused(INVALID_HANDLE, "cuModuleGetFunction", byref(c_void_p()), loaded, b"add")
    check_kernel(library_handle)
    check_table(*global_of("cuLibraryGetGlobal", library_handle))
    call("cuLibraryUnload", library_handle)
    log, used = ctypes.create_string_buffer(4096), 4096
    options, values = (c_int * 2)(5, 6), (c_void_p * 2)(ctypes.addressof(log), used)
    code = code_of("cuModuleLoadDataEx", byref(c_void_p()), b".version 7.0\n.target sm_75\n.nonsense\n\0", 2, options, values)
    equal(code, 218, "invalid PTX")
    fresh = c_void_p()
    call("cuModuleLoadDataEx", byref(fresh), ADD.encode() + b"\0", 0, None, None)
    call("cuModuleUnload", fresh)


def global_of(function_name, handle):
    place, length = c_uint64(), c_size_t()
    call(function_name, byref(place), byref(length), handle, b"table")
    return place.value, length.value


def check_table(place, length):
    equal(length, 16)
    equal(words(place, 4), [1, 2, 3, 4])
    for attribute, value in [(2, 2), (9, out(c_int, "cuCtxGetDevice"))]:
        equal(out(c_int, "cuPointerGetAttribute", attribute, address(place + 4)), value, "a module's variable")
    for attribute, value in [(11, place), (12, 16)]:
        equal(out(c_uint64, "cuPointerGetAttribute", attribute, address(place + 4)), value, "a module's variable")


def check_function(of):
    add = function(of)
    owner = c_void_p()
    call("cuFuncGetModule", byref(owner), add)
    equal(owner.value, of.value)
    name = c_char_p()
    call("cuFuncGetName", byref(name), add)
    equal(name.value, b"add")
    equal(out(c_size_t, "cuFuncGetParamCount", add, first=False), 3)
    equal([parameter_info("cuFuncGetParamInfo", add, index) for index in range(3)], [(0, 8), (8, 4), (12, 4)])
    refused(INVALID_VALUE, "cuFuncGetParamInfo", add, size(3), byref(c_size_t()), byref(c_size_t()))
    call("cuFuncLoad", add)
    equal(out(c_int, "cuFuncIsLoaded", add), 1)
    assert out(c_int, "cuFuncGetAttribute", 0, add) >= 32, "threads per block"
    call("cuFuncSetAttribute", add, 8, 1024)
    equal(out(c_int, "cuFuncGetAttribute", 8, add), 1024, "dynamic shared memory")
    call("cuFuncSetCacheConfig", add, 1)
    call("cuFuncSetSharedMemConfig", add, 0)


def check_kernel(of):
    kernel, handle = c_void_p(), c_void_p()
    call("cuLibraryGetKernel", byref(kernel), of, b"add")
    call("cuKernelGetLibrary", byref(handle), kernel)
    equal(handle.value, of.value)
    name = c_char_p()
    call("cuKernelGetName", byref(name), kernel)
    equal(name.value, b"add")
    equal(out(c_size_t, "cuKernelGetParamCount", kernel, first=False), 3)
    equal(parameter_info("cuKernelGetParamInfo", kernel, 2), (12, 4))
    call("cuKernelSetAttribute", 8, 2048, kernel, 0)
    equal(out(c_int, "cuKernelGetAttribute", 8, kernel, 0), 2048)
    call("cuKernelSetCacheConfig", kernel, 1, 0)
    call("cuKernelGetFunction", byref(handle), kernel)
    call("cuLibraryGetModule", byref(handle), of)
    check_table(*global_of("cuModuleGetGlobal_v2", handle))


def parameter_info(function_name, handle, index):
    offset, length = c_size_t(), c_size_t()
    call(function_name, handle, size(index), byref(offset), byref(length))
    return offset.value, length.value


@section
def memory():
    place, pitch = c_uint64(), c_size_t()
    call("cuMemAllocPitch_v2", byref(place), byref(pitch), size(100), size(7), 4)
    assert pitch.value >= 100 and pitch.value % 4 == 0
    base, length = c_uint64(), c_size_t()
    call("cuMemGetAddressRange_v2", byref(base), byref(length), address(place.value + 50))
    equal(base.value, place.value)
    assert length.value >= 7 * 100
    equal(out(c_int, "cuPointerGetAttribute", 2, place), 2, "device memory")
    free(place.value)
    refused(INVALID_VALUE, "cuMemFree_v2", place)


@section
def host_memory():
    pinned = c_void_p()
    call("cuMemAllocHost_v2", byref(pinned), size(4096))
    equal(out(c_int, "cuPointerGetAttribute", 2, address(pinned.value)), 1, "host memory")
    call("cuMemFreeHost", pinned)
    call("cuMemHostAlloc", byref(pinned), size(4096), 1)
    equal(out(c_uint32, "cuMemHostGetFlags", pinned) & 1, 1, "portable")
    device = allocate(4096)
    ctypes.memset(pinned.value, 7, 4096)
    call("cuMemcpy", address(device), address(pinned.value), size(4096))
    ctypes.memset(pinned.value, 0, 4096)
    call("cuMemcpyAsync", address(pinned.value), address(device), size(4096), None)
    call("cuStreamSynchronize", None)
    equal(ctypes.string_at(pinned.value, 4096), b"\7" * 4096)
    call("cuMemFreeHost", pinned)
    mapped = c_uint64()
    call("cuMemHostAlloc", byref(pinned), size(4096), 2)
    if code_of("cuMemHostGetDevicePointer_v2", byref(mapped), pinned, 0) == 0:
        equal(out(c_int, "cuPointerGetAttribute", 2, mapped), 1, "mapped host memory")
    call("cuMemFreeHost", pinned)
    free(device)
    page = ctypes.create_string_buffer(3 * 4096)
    start = (ctypes.addressof(page) + 4095) & ~4095
    call("cuMemHostRegister_v2", c_void_p(start), size(4096), 0)
    refused(712, "cuMemHostRegister_v2", c_void_p(start), size(4096), 0)
    call("cuMemHostUnregister", c_void_p(start))
    refused(713, "cuMemHostUnregister", c_void_p(start))


@section
def memsets():
    place = allocate(4096)
    stream = c_void_p()
    call("cuStreamCreate", byref(stream), 1)
    for asynchronous in (False, True):
        end, last = ("Async", [stream]) if asynchronous else ("_v2", [])
        call(f"cuMemsetD8{end}", address(place), c_ubyte(0), size(4096), *last)
        call(f"cuMemsetD16{end}", address(place), c_ushort(0x1234), size(4), *last)
        call(f"cuMemsetD32{end}", address(place + 8), c_uint32(0xdeadbeef), size(2), *last)
        call(f"cuMemsetD2D8{end}", address(place + 64), size(16), c_ubyte(1), size(4), size(2), *last)
        call(f"cuMemsetD2D16{end}", address(place + 128), size(16), c_ushort(2), size(4), size(2), *last)
        call(f"cuMemsetD2D32{end}", address(place + 192), size(16), c_uint32(3), size(2), size(2), *last)
        call("cuStreamSynchronize", stream if asynchronous else None)
        equal(words(place, 4), [0x12341234, 0x12341234, 0xdeadbeef, 0xdeadbeef])
        equal(words(place + 64, 6), [0x01010101, 0, 0, 0, 0x01010101, 0])
        equal(words(place + 128, 6), [0x00020002, 0x00020002, 0, 0, 0x00020002, 0x00020002])
        equal(words(place + 192, 6), [3, 3, 0, 0, 3, 3])
        odd, pitch = address(place + 1), size(17)
        refused(INVALID_VALUE, f"cuMemsetD16{end}", odd, c_ushort(1), size(4), *last)
        refused(INVALID_VALUE, f"cuMemsetD32{end}", address(place + 2), c_uint32(1), size(2), *last)
        refused(INVALID_VALUE, f"cuMemsetD2D16{end}", odd, size(16), c_ushort(1), size(4), size(2), *last)
        refused(INVALID_VALUE, f"cuMemsetD2D16{end}", address(place), pitch, c_ushort(1), size(4), size(2), *last)
        refused(INVALID_VALUE, f"cuMemsetD2D32{end}", address(place), pitch, c_uint32(1), size(2), size(2), *last)
    call("cuStreamDestroy_v2", stream)
    free(place)


class Copy2D(ctypes.Structure):
    _fields_ = [(f"{side}{name}", kind) for side in ("src", "dst") for name, kind in [
        ("XInBytes", c_size_t), ("Y", c_size_t), ("MemoryType", c_int), ("Host", c_void_p), ("Device", c_uint64),
        ("Array", c_void_p), ("Pitch", c_size_t)]] + [("WidthInBytes", c_size_t), ("Height", c_size_t)]


class Copy3D(ctypes.Structure):
    _fields_ = [(f"{side}{name}", kind) for side in ("src", "dst") for name, kind in [
        ("XInBytes", c_size_t), ("Y", c_size_t), ("Z", c_size_t), ("LOD", c_size_t), ("MemoryType", c_int),
        ("Host", c_void_p), ("Device", c_uint64), ("Array", c_void_p), ("reserved", c_void_p), ("Pitch", c_size_t),
        ("Height", c_size_t)]] + [("WidthInBytes", c_size_t), ("Height", c_size_t), ("Depth", c_size_t)]


@section
def copies():
    one, two = allocate(1024), allocate(1024)
    upload(one, list(range(256)))
    context = c_void_p(out(c_void_p, "cuCtxGetCurrent"))
    copy = [address(two), address(one), size(1024)]
    for name, arguments in [
        ("cuMemcpyDtoD_v2", copy),
        ("cuMemcpyDtoDAsync_v2", [*copy, None]),
        ("cuMemcpy", copy),
        ("cuMemcpyPeer", [address(two), context, address(one), context, size(1024)]),
        ("cuMemcpyPeerAsync", [address(two), context, address(one), context, size(1024), None]),
    ]:
        call("cuMemsetD8_v2", address(two), c_ubyte(0), size(1024))
        call(name, *arguments)
        equal(words(two, 256), list(range(256)), name)
    # Three rows of two words, from the second row and column on; rows are eight words on the device.
    for name, last in [("cuMemcpy2D_v2", []), ("cuMemcpy2DUnaligned_v2", []), ("cuMemcpy2DAsync_v2", [None])]:
        host = (c_uint32 * 6)()
        box = Copy2D(srcXInBytes=4, srcY=1, srcMemoryType=2, srcDevice=one, srcPitch=32, dstMemoryType=1,
                     dstHost=ctypes.addressof(host), WidthInBytes=8, Height=3)
        call(name, byref(box), *last)
        call("cuStreamSynchronize", None)
        equal(list(host), [9, 10, 17, 18, 25, 26], name)
    # Two slices of such rows, from device to device: slices are four rows there, and tight here.
    for name, last in [("cuMemcpy3D_v2", []), ("cuMemcpy3DAsync_v2", [None])]:
        call("cuMemsetD8_v2", address(two), c_ubyte(0), size(1024))
        box = Copy3D(srcXInBytes=4, srcY=1, srcMemoryType=2, srcDevice=one, srcPitch=32, srcHeight=4, dstMemoryType=2,
                     dstDevice=two, dstPitch=8, dstHeight=3, WidthInBytes=8, Height=3, Depth=2)
        call(name, byref(box), *last)
        call("cuStreamSynchronize", None)
        equal(words(two, 13), [9, 10, 17, 18, 25, 26, 41, 42, 49, 50, 57, 58, 0], name)
    free(one)
    free(two)


@section
def streams_and_events():
    stream, event, end = c_void_p(), c_void_p(), c_void_p()
    least, greatest = c_int(), c_int()
    call("cuCtxGetStreamPriorityRange", byref(least), byref(greatest))
    call("cuStreamCreateWithPriority", byref(stream), 1, greatest)
    equal(out(c_int, "cuStreamGetPriority", stream, first=False), greatest.value)
    equal(out(c_uint32, "cuStreamGetFlags", stream, first=False), 1)
    equal(out(c_void_p, "cuStreamGetCtx", stream, first=False), out(c_void_p, "cuCtxGetCurrent"))
    assert out(c_uint64, "cuStreamGetId", stream, first=False) != out(c_uint64, "cuStreamGetId", LEGACY, first=False)
    equal(capture_status(stream), 0)
    call("cuEventCreate", byref(event), 0)
    call("cuEventCreate", byref(end), 0)
    place = allocate(64)
    call("cuEventRecordWithFlags", event, stream, 0)
    call("cuMemsetD32Async", address(place), 9, size(16), stream)
    call("cuEventRecord", end, stream)
    call("cuStreamWaitEvent", PER_THREAD, end, 0)
    call("cuEventSynchronize", end)
    equal(code_of("cuEventQuery", end), 0)
    assert out(c_float, "cuEventElapsedTime", event, end) >= 0
    while code_of("cuStreamQuery", stream) == NOT_READY:
        pass
    call("cuStreamWriteValue32_v2", stream, address(place), 77, 0)
    call("cuStreamWaitValue32_v2", stream, address(place), 77, 1)
    equal(out(c_int, "cuStreamGetDevice", stream, first=False), out(c_int, "cuCtxGetDevice"))
    context, green = c_void_p(), c_void_p(1)
    call("cuStreamGetCtx_v2", stream, byref(context), byref(green))
    equal((context.value, green.value), (out(c_void_p, "cuCtxGetCurrent"), None))
    equal(out(c_void_p, "cuStreamGetGreenCtx", stream, first=False), None)
    call("cuStreamWriteValue64_v2", stream, address(place + 8), c_uint64(1 << 40), 0)
    call("cuStreamWaitValue64_v2", stream, address(place + 8), c_uint64(1 << 40), 1)
    call("cuStreamSynchronize", stream)
    equal(words(place, 4), [77, 9, 0, 1 << 8])
    free(place)
    call("cuEventDestroy_v2", event)
    call("cuEventDestroy", end)
    call("cuStreamDestroy", stream)


def capture_status(stream):
    status, number = c_int(), c_uint64()
    call("cuStreamGetCaptureInfo", stream, byref(status), byref(number))
    return status.value


@section
def host_functions():
    seen = []
    host = ctypes.CFUNCTYPE(None, c_void_p)(lambda data: seen.append(("host", data)))
    callback = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_void_p)(
        lambda stream, status, data: seen.append(("callback", stream, status, data)))
    stream = c_void_p()
    call("cuStreamCreate", byref(stream), 0)
    call("cuLaunchHostFunc", stream, host, c_void_p(1))
    call("cuStreamAddCallback", stream, callback, c_void_p(2), 0)
    call("cuStreamSynchronize", stream)
    equal(seen, [("host", 1), ("callback", stream.value, 0, 2)])
    call("cuStreamDestroy_v2", stream)


@section
def launches():
    add, place = function(), allocate(4000)
    call("cuMemsetD32_v2", address(place), 1, size(1000))
    values = parameters(c_uint64(place), c_uint32(1000), c_uint32(41))
    call("cuLaunchKernel", add, 8, 1, 1, 128, 1, 1, 0, None, values, None)
    equal(words(place, 1000), [42] * 1000)
    call("cuLaunchCooperativeKernel", add, 1, 1, 1, 128, 1, 1, 0, None, values)
    equal(words(place, 129), [83] * 128 + [42])
    refused(INVALID_VALUE, "cuLaunchKernel", add, 0, 1, 1, 128, 1, 1, 0, None, values, None)
    refused(INVALID_VALUE, "cuLaunchKernel", add, 1, 1, 1, 4096, 1, 1, 0, None, values, None)
    free(place)


@section
def occupancy():
    add = function()
    blocks = out(c_int, "cuOccupancyMaxActiveBlocksPerMultiprocessor", add, 128, size(0))
    assert blocks >= 1
    equal(out(c_int, "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", add, 128, size(0), 0), blocks)
    assert out(c_size_t, "cuOccupancyAvailableDynamicSMemPerBlock", add, 1, 128) > 0
    grid, block = c_int(), c_int()
    call("cuOccupancyMaxPotentialBlockSize", byref(grid), byref(block), add, None, size(0), 0)
    assert grid.value >= 1 and block.value >= 32
    call("cuOccupancyMaxPotentialBlockSizeWithFlags", byref(grid), byref(block), add, None, size(0), 64, 0)
    assert block.value <= 64


class KernelNode(ctypes.Structure):
    _fields_ = [("func", c_void_p)] + [(name, c_uint32) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")] + [
        ("params", c_void_p), ("extra", c_void_p), ("kern", c_void_p), ("ctx", c_void_p)]


class MemsetNode(ctypes.Structure):
    _fields_ = [("dst", c_uint64), ("pitch", c_size_t), ("value", c_uint32), ("element", c_uint32), ("width", c_size_t),
                ("height", c_size_t)]


@section
def graphs():
    graph, executable, stream = c_void_p(), c_void_p(), c_void_p()
    clear, kernel, empty = c_void_p(), c_void_p(), c_void_p()
    place, add = allocate(400), function()
    context = c_void_p(out(c_void_p, "cuCtxGetCurrent"))
    call("cuStreamCreate", byref(stream), 1)
    call("cuGraphCreate", byref(graph), 0)
    memset = MemsetNode(place, 0, 5, 4, 100, 1)
    call("cuGraphAddMemsetNode", byref(clear), graph, None, size(0), byref(memset), context)
    values = parameters(c_uint64(place), c_uint32(100), c_uint32(2))
    node = KernelNode(add.value, 1, 1, 1, 128, 1, 1, 0, ctypes.addressof(values), None, None, None)
    call("cuGraphAddKernelNode_v2", byref(kernel), graph, byref(clear), size(1), byref(node))
    call("cuGraphAddEmptyNode", byref(empty), graph, None, size(0))
    call("cuGraphAddDependencies", graph, byref(kernel), byref(empty), size(1))
    equal(out(c_size_t, "cuGraphGetNodes", graph, None, first=False), 3)
    call("cuGraphInstantiate_v2", byref(executable), graph, None, None, size(0))
    call("cuGraphUpload", executable, stream)
    for _ in range(2):
        call("cuGraphLaunch", executable, stream)
    call("cuStreamSynchronize", stream)
    equal(words(place, 100), [7] * 100)
    more = parameters(c_uint64(place), c_uint32(50), c_uint32(4))
    node.params = ctypes.addressof(more)
    call("cuGraphExecKernelNodeSetParams_v2", executable, kernel, byref(node))
    call("cuGraphLaunch", executable, stream)
    call("cuStreamSynchronize", stream)
    equal(words(place, 100), [9] * 50 + [5] * 50)
    clone = c_void_p()
    call("cuGraphClone", byref(clone), graph)
    equal(out(c_size_t, "cuGraphGetNodes", clone, None, first=False), 3)
    info = (c_uint64 * 3)()
    call("cuGraphExecUpdate_v2", executable, clone, info)
    equal(info[0] & 0xffffffff, 0)
    call("cuGraphLaunch", executable, stream)
    call("cuStreamSynchronize", stream)
    equal(words(place, 100), [7] * 100)
    outer, event = c_void_p(), c_void_p()
    nodes = [c_void_p() for _ in range(3)]
    call("cuEventCreate", byref(event), 0)
    call("cuGraphCreate", byref(outer), 0)
    call("cuGraphAddChildGraphNode", byref(nodes[0]), outer, None, size(0), clone)
    call("cuGraphAddEventRecordNode", byref(nodes[1]), outer, byref(nodes[0]), size(1), event)
    call("cuGraphAddEventWaitNode", byref(nodes[2]), outer, byref(nodes[1]), size(1), event)
    whole = c_void_p()
    call("cuGraphInstantiateWithFlags", byref(whole), outer, c_uint64(0))
    call("cuMemsetD8_v2", address(place), c_ubyte(0), size(400))
    call("cuGraphLaunch", whole, stream)
    call("cuEventSynchronize", event)
    call("cuStreamSynchronize", stream)
    equal(words(place, 100), [7] * 100, "a graph in a graph")
    call("cuGraphExecDestroy", whole)
    call("cuGraphDestroy", outer)
    call("cuEventDestroy_v2", event)
    for name, handle in [("cuGraphExecDestroy", executable), ("cuGraphDestroy", clone), ("cuGraphDestroy", graph)]:
        call(name, handle)
    call("cuStreamDestroy_v2", stream)
    free(place)


@section
def captures():
    stream, graph, executable = c_void_p(), c_void_p(), c_void_p()
    mode = c_int(2)
    call("cuThreadExchangeStreamCaptureMode", byref(mode))
    equal(mode.value, 0, "global by default")
    call("cuThreadExchangeStreamCaptureMode", byref(mode))
    place = allocate(64)
    call("cuStreamCreate", byref(stream), 1)
    call("cuStreamBeginCapture_v2", stream, 0)
    equal(capture_status(stream), 1, "capturing")
    for name, more in [("cuStreamGetCaptureInfo_v2", 3), ("cuStreamGetCaptureInfo_v3", 4)]:
        status = c_int()
        call(name, stream, byref(status), *([None] * (more + 1)))
        equal(status.value, 1, name)
    equal(out(c_int, "cuStreamIsCapturing", stream, first=False), 1)
    call("cuMemsetD32Async", address(place), 3, size(16), stream)
    call("cuStreamEndCapture", stream, byref(graph))
    equal(capture_status(stream), 0)
    instantiate = (c_uint64 * 4)(2, stream.value, 0, 0)
    call("cuGraphInstantiateWithParams", byref(executable), graph, instantiate)
    call("cuGraphLaunch", executable, stream)
    call("cuStreamSynchronize", stream)
    equal(words(place, 16), [3] * 16)
    call("cuGraphExecDestroy", executable)
    call("cuGraphDestroy", graph)
    call("cuStreamDestroy_v2", stream)
    free(place)


@section
def pools():
    class Properties(ctypes.Structure):
        _fields_ = [("kind", c_int), ("handles", c_int), ("place", c_int), ("device", c_int), ("security", c_void_p),
                    ("most", c_size_t), ("rest", c_ubyte * 56)]

    pool, place = c_void_p(), c_uint64()
    call("cuMemPoolCreate", byref(pool), byref(Properties(kind=1, place=1)))
    call("cuMemAllocFromPoolAsync", byref(place), size(1 << 20), pool, None)
    call("cuMemsetD32Async", address(place.value), 8, size(4), None)
    equal(words(place.value, 4), [8] * 4)
    assert out(c_uint64, "cuMemPoolGetAttribute", pool, 7, first=False) >= 1 << 20, "bytes in use"
    call("cuMemFreeAsync", place, None)
    call("cuStreamSynchronize", None)
    call("cuMemPoolTrimTo", pool, size(0))
    call("cuMemPoolSetAccess", pool, (c_int * 3)(1, 0, 3), size(1))
    equal(out(c_int, "cuMemPoolGetAccess", pool, (c_int * 2)(1, 0)), 3, "read and write")
    equal(out(c_uint64, "cuMemPoolGetAttribute", pool, 7, first=False), 0)
    call("cuMemPoolDestroy", pool)


@section
def virtual_memory():
    """Addresses, memory and mappings apart, as PyTorch's expandable segments use them: grown piece by piece."""
    device = out(c_int, "cuDeviceGet", 0)
    equal(attribute(102, device), 1, "virtual memory management is supported")
    prop = AllocationProp(kind=1, location=Location(1, device))
    granularity = out(c_size_t, "cuMemGetAllocationGranularity", byref(prop), 0)
    assert granularity > 0 and granularity & (granularity - 1) == 0, granularity
    start = out(c_uint64, "cuMemAddressReserve", size(4 * granularity), size(0), address(0), c_uint64(0))
    refused(INVALID_VALUE, "cuMemAddressReserve", byref(c_uint64()), size(granularity + 1), size(0), address(0), c_uint64(0))
    refused(INVALID_VALUE, "cuMemFree_v2", address(start))
    pieces = [out(c_uint64, "cuMemCreate", size(granularity), byref(prop), c_uint64(0)) for _ in range(2)]
    refused(INVALID_VALUE, "cuMemCreate", byref(c_uint64()), size(granularity + 1), byref(prop), c_uint64(0))
    access = AccessDesc(Location(1, device), 3)
    for i, piece in enumerate(pieces):
        place = address(start + i * granularity)
        call("cuMemMap", place, size(granularity), size(0), c_uint64(piece), c_uint64(0))
        refused(INVALID_VALUE, "cuMemMap", place, size(granularity), size(0), c_uint64(piece), c_uint64(0))
        equal(out(c_uint64, "cuMemGetAccess", byref(access.location), place), 0, "no access yet")
        call("cuMemSetAccess", place, size(granularity), byref(access), size(1))
        equal(out(c_uint64, "cuMemGetAccess", byref(access.location), place), 3)
    # A copy over the seam, and a kernel on both sides of it.
    seam = start + granularity - 8
    upload(seam, [1, 2, 3, 4])
    call("cuLaunchKernel", function(), 1, 1, 1, 32, 1, 1, 0, None, parameters(c_uint64(seam), c_uint32(4), c_uint32(5)), None)
    equal(words(seam, 4), [6, 7, 8, 9])
    refused(INVALID_VALUE, "cuMemcpyDtoH_v2", (c_uint32 * 1)(), address(start + 2 * granularity - 2), size(4))
    base, length = c_uint64(), c_size_t()
    call("cuMemGetAddressRange_v2", byref(base), byref(length), address(seam))
    equal((base.value, length.value), (start, granularity))
    retained = out(c_uint64, "cuMemRetainAllocationHandle", c_void_p(seam))
    equal(retained, pieces[0], "the handle that was mapped")
    found = AllocationProp()
    call("cuMemGetAllocationPropertiesFromHandle", byref(found), c_uint64(retained))
    equal((found.kind, found.location.kind, found.location.id), (1, 1, device))
    call("cuMemRelease", c_uint64(retained))
    # Memory outlives its handle while it is mapped, and comes back elsewhere with its contents.
    call("cuMemRelease", c_uint64(pieces[1]))
    equal(words(seam, 4), [6, 7, 8, 9])
    call("cuMemUnmap", address(start), size(granularity))
    refused(INVALID_VALUE, "cuMemcpyDtoH_v2", (c_uint32 * 1)(), address(seam), size(4))
    again = address(start + 3 * granularity)
    call("cuMemMap", again, size(granularity), size(0), c_uint64(pieces[0]), c_uint64(0))
    call("cuMemSetAccess", again, size(granularity), byref(access), size(1))
    equal(words(again.value + granularity - 8, 2), [6, 7])
    refused(INVALID_VALUE, "cuMemAddressFree", address(start), size(4 * granularity))
    # The same memory at a second place.
    twice = address(start + 2 * granularity)
    call("cuMemMap", twice, size(granularity), size(0), c_uint64(pieces[0]), c_uint64(0))
    call("cuMemSetAccess", twice, size(granularity), byref(access), size(1))
    upload(twice.value + granularity - 8, [60])
    equal(words(again.value + granularity - 8, 2), [60, 7], "both places show it")
    call("cuMemUnmap", twice, size(granularity))
    call("cuMemUnmap", address(start + granularity), size(granularity))
    call("cuMemUnmap", again, size(granularity))
    call("cuMemRelease", c_uint64(pieces[0]))
    refused(INVALID_VALUE, "cuMemMap", again, size(granularity), size(0), c_uint64(pieces[0]), c_uint64(0))
    call("cuMemAddressFree", address(start), size(4 * granularity))


class Location(ctypes.Structure):
    _fields_ = [("kind", c_uint32), ("id", c_int)]


class AccessDesc(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", c_uint32)]


class AllocationProp(ctypes.Structure):
    _fields_ = [
        ("kind", c_uint32),
        ("handle_types", c_uint32),
        ("location", Location),
        ("win32", c_void_p),
        ("flags", c_ubyte * 8),
    ]


@section
def logs_and_profiler():
    lines = []
    prototype = ctypes.CFUNCTYPE(None, c_void_p, c_uint32, c_void_p, c_size_t)
    note = prototype(lambda data, level, text, length: lines.append(ctypes.string_at(text, length)))
    handle, position = c_void_p(), c_uint32()
    call("cuLogsRegisterCallback", note, None, byref(handle))
    call("cuLogsCurrent", byref(position), 0)
    room = ctypes.create_string_buffer(1000)
    length = c_size_t(len(room))
    call("cuLogsDumpToMemory", byref(position), room, byref(length), 0)
    equal(length.value, 0, "nothing new")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "log")
        call("cuLogsDumpToFile", None, path.encode(), 0)
        assert os.path.exists(path)
    call("cuLogsUnregisterCallback", handle)
    call("cuProfilerStart")
    call("cuProfilerStop")


@section
def mapped_host_memory():
    """Host memory that a kernel reads and writes: coherent at launches and waits."""
    add = function()
    host = c_void_p()
    call("cuMemHostAlloc", byref(host), size(10000), 2)
    seen = out(c_uint64, "cuMemHostGetDevicePointer_v2", host, 0)
    values = ctypes.cast(host, ctypes.POINTER(c_uint32))
    for i in range(4):
        values[i], values[2000 + i] = i, 100 + i
    call("cuLaunchKernel", add, 1, 1, 1, 32, 1, 1, 0, None, parameters(c_uint64(seen), c_uint32(4), c_uint32(10)), None)
    call("cuCtxSynchronize")
    equal(values[0:4], [10, 11, 12, 13], "what the kernel wrote is here")
    # System calls read and write such memory like any other.
    source, sink = os.pipe()
    buffer = (ctypes.c_ubyte * 16).from_address(host.value)
    equal(os.writev(sink, [buffer]), 16)
    assert os.read(source, 16) == bytes(buffer)
    os.write(sink, bytes((c_uint32 * 4)(1, 2, 3, 4)))
    equal(os.readv(source, [buffer]), 16)
    stream = out(c_void_p, "cuStreamCreate", 1)
    inside = out(c_uint64, "cuMemHostGetDevicePointer_v2", c_void_p(host.value + 8000), 0)
    equal(inside, seen + 8000)
    call("cuLaunchKernel", add, 1, 1, 1, 32, 1, 1, 0, c_void_p(stream), parameters(c_uint64(inside), c_uint32(4), c_uint32(1)), None)
    call("cuLaunchKernel", add, 1, 1, 1, 32, 1, 1, 0, c_void_p(stream), parameters(c_uint64(seen), c_uint32(4), c_uint32(1)), None)
    call("cuStreamSynchronize", c_void_p(stream))
    equal((values[0:4], values[2000:2004]), ([2, 3, 4, 5], [101, 102, 103, 104]))
    call("cuStreamDestroy_v2", c_void_p(stream))
    call("cuMemFreeHost", host)
    refused(INVALID_VALUE, "cuMemcpyDtoH_v2", (c_uint32 * 1)(), address(seen), size(4))

    own = (c_uint32 * 1000)(*range(1000))
    call("cuMemHostRegister_v2", own, size(4000), 2)
    seen = out(c_uint64, "cuMemHostGetDevicePointer_v2", own, 0)
    call("cuLaunchKernel", add, 8, 1, 1, 128, 1, 1, 0, None, parameters(c_uint64(seen), c_uint32(1000), c_uint32(5)), None)
    call("cuCtxSynchronize")
    equal(list(own), list(range(5, 1005)))
    call("cuMemHostUnregister", own)


@section
def pinned_memory():
    """All memory that CUDA allocates on the host is a device address: kernels take it as it is, and before that it is nothing but host memory."""
    stream, graph, executable, node = (c_void_p() for _ in range(4))
    call("cuStreamCreate", byref(stream), 1)
    sizes = (3 << 20, 4096, 4096)
    device = allocate(sizes[0])

    def free_bytes():
        call("cuCtxSynchronize")
        free, total = c_size_t(), c_size_t()
        call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value

    def launch(place, count, stream):
        values = parameters(c_uint64(place), c_uint32(count), c_uint32(10))
        call("cuLaunchKernel", function(), count // 128 + 1, 1, 1, 128, 1, 1, 0, stream, values, None)
        return values

    def at(block, count=4, first=0):
        return (c_uint32 * count).from_address(block.value + 4 * first)

    before = free_bytes()
    blocks = [c_void_p() for _ in sizes]
    call("cuMemAllocHost_v2", byref(blocks[0]), size(sizes[0]))
    call("cuMemHostAlloc", byref(blocks[1]), size(sizes[1]), 1)
    call("cuMemAllocHost", byref(blocks[2]), c_uint32(sizes[2]))
    large, captured, explicit = blocks
    for block, length in zip(blocks, sizes):
        equal(out(c_int, "cuPointerGetAttribute", 2, address(block.value)), 1, "host memory")
        for kind in (3, 4):  # device and host pointer
            equal(out(c_uint64, "cuPointerGetAttribute", kind, address(block.value + 8)), block.value + 8)
        at(block)[:] = range(4)
        call("cuMemcpyAsync", address(device), address(block.value), size(length), stream)
        at(block)[:] = [0] * 4
        call("cuMemcpyDtoHAsync_v2", block, address(device), size(length), stream)
        call("cuStreamSynchronize", stream)
        equal(list(at(block)), [0, 1, 2, 3], "copied there and back")
    equal(free_bytes(), before, "memory that is only copied is nowhere else")

    last = sizes[0] // 4 - 4
    at(large, first=last)[:] = range(4)
    launch(large.value, sizes[0] // 4, None)
    call("cuCtxSynchronize")
    equal((list(at(large)), list(at(large, first=last))), ([10, 11, 12, 13],) * 2, "a kernel takes it as it is")
    at(large)[:] = range(4)
    launch(large.value + 4, 2, stream)
    call("cuStreamSynchronize", stream)
    equal(list(at(large)), [0, 11, 12, 3], "from the middle, and what the program wrote since")
    call("cuMemcpy", address(device), large, size(16))
    equal(words(device, 4), [0, 11, 12, 3], "a copy reads what the program sees")
    launch(large.value, 4, stream)
    call("cuMemcpyHtoDAsync_v2", address(device), large, size(16), stream)
    launch(device, 4, stream)
    call("cuMemcpyDtoHAsync_v2", large, address(device), size(8), stream)
    launch(large.value, 4, stream)
    call("cuStreamSynchronize", stream)
    equal((words(device, 4), list(at(large))), ([20, 31, 32, 23], [30, 41, 32, 23]), "copies are in the order of kernels")
    equal(out(c_uint64, "cuMemHostGetDevicePointer_v2", large, 0), large.value, "one address for both sides")
    equal(out(c_int, "cuPointerGetAttribute", 2, address(large.value)), 1, "host memory still")

    call("cuStreamBeginCapture_v2", stream, 0)
    launch(captured.value, 4, stream)
    call("cuStreamEndCapture", stream, byref(graph))
    values = parameters(c_uint64(explicit.value), c_uint32(4), c_uint32(10))
    kernel = (c_uint64 * 9)(function().value, 1 | 1 << 32, 1 | 128 << 32, 1 | 1 << 32, 0, ctypes.addressof(values), 0, 0, 0)
    call("cuGraphAddKernelNode_v2", byref(node), graph, None, size(0), kernel)
    call("cuGraphInstantiateWithFlags", byref(executable), graph, c_uint64(0))
    for turn in (1, 2):
        call("cuGraphLaunch", executable, stream)
        call("cuStreamSynchronize", stream)
        equal([list(at(block)) for block in (captured, explicit)], [[i + 10 * turn for i in range(4)]] * 2, "in graphs, too")
    call("cuGraphExecDestroy", executable)
    call("cuGraphDestroy", graph)

    place = large.value
    for block in blocks:
        call("cuMemFreeHost", block)
    equal(free_bytes(), before, "what the device had for it is free")
    refused(INVALID_VALUE, "cuMemcpyDtoH_v2", (c_uint32 * 1)(), address(place), size(4))
    refused(INVALID_VALUE, "cuPointerGetAttribute", byref(c_uint64()), 3, address(place))
    call("cuStreamDestroy_v2", stream)
    free(device)


@section
def managed_memory():
    """One address on both sides."""
    device = out(c_int, "cuDeviceGet", 0)
    equal(attribute(83, device), 1, "managed memory")
    count = 3000
    start = out(c_uint64, "cuMemAllocManaged", size(4 * count), 1)
    values = (c_uint32 * count).from_address(start)
    equal(list(values[:3]), [0, 0, 0])
    values[:] = range(count)
    run = parameters(c_uint64(start), c_uint32(count), c_uint32(7))
    for _ in range(2):
        call("cuLaunchKernel", function(), 24, 1, 1, 128, 1, 1, 0, None, run, None)
        call("cuCtxSynchronize")
    equal(list(values), list(range(14, count + 14)))
    call("cuMemsetD32_v2", address(start), c_uint32(9), size(2))
    equal(list(values[:3]), [9, 9, 16], "a memset that is synchronous")
    values[1] = 77
    equal(words(start, 3), [9, 77, 16], "a copy sees what the program wrote")
    is_managed = c_uint32()
    call("cuPointerGetAttribute", byref(is_managed), 8, address(start))
    equal(is_managed.value & 0xFF, 1)
    for place in (device, -1):
        call("cuMemPrefetchAsync", address(start), size(4 * count), place, None)
        for advice in (1, 3, 5, 6):
            call("cuMemAdvise", address(start), size(4 * count), advice, place)
    for nowhere in (99, -2):
        refused(INVALID_DEVICE, "cuMemPrefetchAsync", address(start), size(4 * count), nowhere, None)
    refused(INVALID_VALUE, "cuMemAdvise", address(start), size(4 * count + 1), 1, device)
    free(start)
    refused(INVALID_VALUE, "cuMemFree_v2", address(start))


@section
def functions_and_shared_memory():
    """A host function sees managed and mapped memory as its stream has left it, and its stream what it writes there."""
    stream, other = c_void_p(), c_void_p()
    call("cuStreamCreate", byref(stream), 1)
    call("cuStreamCreate", byref(other), 1)
    managed, mapped, large, beside = c_uint64(), c_void_p(), c_void_p(), c_uint64()
    call("cuMemAllocManaged", byref(managed), size(4096), 1)
    call("cuMemAllocManaged", byref(beside), size(4096), 1)
    call("cuMemHostAlloc", byref(mapped), size(4096), 2)
    call("cuMemHostAlloc", byref(large), size(40 << 20), 2)
    places = [managed.value, mapped.value, large.value]
    seen, permitted, go_on = [], [], threading.Event()

    def add(place, value, on):
        device = out(c_uint64, "cuMemHostGetDevicePointer_v2", c_void_p(place), 0) if place in places[1:] else place
        values = parameters(c_uint64(device), c_uint32(2), c_uint32(value))
        call("cuLaunchKernel", function(), 1, 1, 1, 32, 1, 1, 0, on, values, None)

    def at(place):
        return (c_uint32 * 2).from_address(place)

    @ctypes.CFUNCTYPE(None, c_void_p)
    def look(data):
        seen.append([at(place)[0] for place in places])
        for place in places:
            at(place)[1] = 1000
        permitted.append(code_of("cuMemFree_v2", c_uint64(0)))

    @ctypes.CFUNCTYPE(None, c_void_p)
    def wait(data):
        look(data)
        seen.append(go_on.wait(60))

    def run(host_function, on):
        for place in places:
            add(place, 1, on)
        call("cuLaunchHostFunc", on, host_function, None)
        for place in places:
            add(place, 3, on)

    for place in places:
        at(place)[0] = 10
    run(look, stream)
    call("cuStreamSynchronize", stream)
    equal(seen, [[11, 11, 11]], "what kernels have written is there")
    equal([list(at(place)) for place in places], [[14, 1003]] * 3, "and kernels see what the function has written")
    equal(permitted, [800], "such a function may not call CUDA")

    graph, executable = c_void_p(), c_void_p()
    call("cuStreamBeginCapture_v2", stream, 0)
    run(look, stream)
    call("cuStreamEndCapture", stream, byref(graph))
    call("cuGraphInstantiateWithFlags", byref(executable), graph, c_uint64(0))
    call("cuGraphLaunch", executable, stream)
    call("cuStreamSynchronize", stream)
    equal(seen[1:], [[15, 15, 15]], "in a graph, too")
    equal([list(at(place)) for place in places], [[18, 1003]] * 3)
    call("cuGraphExecDestroy", executable)
    call("cuGraphDestroy", graph)

    # While a function runs, other streams go on, and so do waits for them, which find what the function has written.
    run(wait, stream)
    for turn in range(3):
        add(beside.value, 1, other)
        call("cuStreamSynchronize", other)
        equal(list(at(beside.value)), [turn + 1] * 2)
    go_on.set()
    call("cuStreamSynchronize", stream)
    equal(seen[2:], [[19, 19, 19], True])
    equal([list(at(place)) for place in places], [[22, 1003]] * 3)
    for place in (managed.value, beside.value):
        free(place)
    for place in (mapped, large):
        call("cuMemFreeHost", place)
    for name in (stream, other):
        call("cuStreamDestroy_v2", name)


@section
def abilities():
    """What a device can or cannot do beyond its attributes."""
    device = out(c_int, "cuDeviceGet", 0)
    out(c_int, "cuDeviceGetExecAffinitySupport", 0, device)
    refused(INVALID_VALUE, "cuDeviceGetExecAffinitySupport", byref(c_int()), 77, device)
    operations, able = (c_uint32 * 2)(0, 5), (c_uint32 * 2)(9, 9)
    call("cuDeviceGetHostAtomicCapabilities", able, operations, 2, device)
    assert 9 not in list(able), "every capability is written"
    refused(INVALID_VALUE, "cuDeviceGetHostAtomicCapabilities", able, (c_uint32 * 1)(999), 1, device)
    refused(INVALID_VALUE, "cuDeviceGetHostAtomicCapabilities", able, operations, 0, device)
    refused(INVALID_DEVICE, "cuDeviceGetP2PAtomicCapabilities", able, operations, 2, device, device)
    between = c_int(9)
    refused(INVALID_DEVICE, "cuDeviceGetP2PAttribute", byref(between), 1, device, device)
    if out(c_int, "cuDeviceGetCount") > 1:
        # Devices of a lease reach no memory but their own.
        other = out(c_int, "cuDeviceGet", 1)
        call("cuDeviceGetP2PAtomicCapabilities", able, operations, 2, device, other)
        equal(list(able), [0, 0])
        call("cuDeviceGetP2PAttribute", byref(between), 2, device, other)
        equal(between.value, 0)
        refused(INVALID_VALUE, "cuDeviceGetP2PAttribute", byref(between), 77, device, other)
    # Those are numbers of Windows, and a context has all multiprocessors.
    refused(NOT_SUPPORTED, "cuDeviceGetLuid", ctypes.create_string_buffer(8), byref(c_uint32()), device)
    refused(INVALID_DEVICE, "cuDeviceGetLuid", ctypes.create_string_buffer(8), byref(c_uint32()), 99)
    refused(UNSUPPORTED_EXEC_AFFINITY, "cuCtxGetExecAffinity", (c_uint32 * 2)(), 0)
    refused(INVALID_VALUE, "cuCtxGetExecAffinity", (c_uint32 * 2)(), 77)


@section
def attached_contexts():
    """A context lives until as many detach as have attached."""
    device, context, same = out(c_int, "cuDeviceGet", 0), c_void_p(), c_void_p()
    primary = c_void_p(out(c_void_p, "cuCtxGetCurrent"))
    refused(201, "cuCtxDetach", primary)
    call("cuCtxCreate_v2", byref(context), 0, device)
    call("cuCtxAttach", byref(same), 0)
    equal(same.value, context.value)
    refused(INVALID_VALUE, "cuCtxAttach", byref(same), 1)
    call("cuCtxDetach", context)
    equal(out(c_void_p, "cuCtxGetCurrent"), context.value, "still there")
    call("cuCtxDetach", context)
    equal(out(c_void_p, "cuCtxGetCurrent"), primary.value)
    refused(201, "cuCtxPushCurrent_v2", context)


@section
def managed_batches():
    managed = c_uint64()
    call("cuMemAllocManaged", byref(managed), size(8192), 1)
    ranges, sizes = (c_uint64 * 2)(managed.value, managed.value + 4096), (c_size_t * 2)(4096, 4096)
    host, starts = (c_int * 2)(2, 0), (c_size_t * 1)(0)
    call("cuMemPrefetchBatchAsync", ranges, sizes, size(2), host, starts, size(1), c_uint64(0), None)
    call("cuMemDiscardBatchAsync", ranges, sizes, size(2), c_uint64(0), None)
    call("cuMemDiscardAndPrefetchBatchAsync", ranges, sizes, size(2), host, starts, size(1), c_uint64(0), None)
    late = (c_size_t * 1)(1)
    refused(INVALID_VALUE, "cuMemPrefetchBatchAsync", ranges, sizes, size(2), host, late, size(1), c_uint64(0), None)
    refused(INVALID_VALUE, "cuMemDiscardBatchAsync", ranges, (c_size_t * 2)(4096, 8192), size(2), c_uint64(0), None)
    refused(INVALID_VALUE, "cuMemDiscardBatchAsync", ranges, sizes, size(2), c_uint64(1), None)
    free(managed.value)


@section
def enumeration():
    text = (ADD + "\n.visible .entry nothing() { ret; }\n").encode() + b"\0"
    handle = c_void_p()
    call("cuModuleLoadData", byref(handle), text)
    equal(out(c_uint32, "cuModuleGetFunctionCount", handle), 2)
    functions = (c_void_p * 2)()
    call("cuModuleEnumerateFunctions", functions, 2, handle)
    names = []
    for one in functions:
        name = c_char_p()
        call("cuFuncGetName", byref(name), c_void_p(one))
        names.append(name.value)
    equal(sorted(names), [b"add", b"nothing"])
    equal(function(handle).value in list(functions), True, "the handles are those of cuModuleGetFunction")
    library_handle = c_void_p()
    call("cuLibraryLoadData", byref(library_handle), text, None, None, 0, None, None, 0)
    equal(out(c_uint32, "cuLibraryGetKernelCount", library_handle), 2)
    kernels = (c_void_p * 2)()
    call("cuLibraryEnumerateKernels", kernels, 2, library_handle)
    assert all(kernels) and kernels[0] != kernels[1]
    call("cuLibraryUnload", library_handle)


@section
def device_resources():
    device = out(c_int, "cuDeviceGet", 0)
    resource = (c_ubyte * 144)()
    call("cuDeviceGetDevResource", device, resource, 1)
    multiprocessors = c_uint32.from_buffer(resource, 96).value
    equal(multiprocessors, attribute(16, device), "multiprocessors")
    call("cuCtxGetDevResource", c_void_p(out(c_void_p, "cuCtxGetCurrent")), resource, 1)
    equal(c_uint32.from_buffer(resource, 96).value, multiprocessors)


@section
def batches():
    device = allocate(64)
    clear = (c_uint64 * 2)(device, device + 32)
    host = (c_uint32 * 8)(*range(8))
    sources = (c_uint64 * 2)(ctypes.addressof(host), ctypes.addressof(host) + 16)
    sizes = (c_size_t * 2)(16, 16)
    attributes = (c_uint32 * 8)(1)
    failed = c_size_t(99)
    call("cuMemcpyBatchAsync", clear, sources, sizes, size(2), attributes, (c_size_t * 1)(0), size(1), byref(failed), None)
    call("cuCtxSynchronize")
    equal((words(device, 4), words(device + 32, 4)), ([0, 1, 2, 3], [4, 5, 6, 7]))
    # Write 5 to the first word and 6 to the second, then wait until the first is at least 5.
    operations = (c_uint64 * 18)(*([2, device, 5, 0, 0, 0] + [2, device + 4, 6, 0, 0, 0] + [1, device, 5, 0, 0, 0]))
    call("cuStreamBatchMemOp_v2", None, 3, operations, 0)
    call("cuCtxSynchronize")
    equal(words(device, 3), [5, 6, 2])
    refused(INVALID_VALUE, "cuStreamBatchMemOp_v2", None, 1, (c_uint64 * 6)(55), 0)
    free(device)


@section
def primary_context_is_reset():
    """What belongs to a context ends with it; a new one starts afresh."""
    device = out(c_int, "cuCtxGetDevice")
    lost = allocate(64)
    call("cuDevicePrimaryCtxReset", device)
    call("cuDevicePrimaryCtxReset_v2", device)
    call("cuDevicePrimaryCtxSetFlags_v2", device, 4)
    context = c_void_p()
    call("cuDevicePrimaryCtxRetain", byref(context), device)
    call("cuCtxSetCurrent", context)
    equal(out(c_uint32, "cuCtxGetFlags") & 7, 4, "scheduling flag")
    refused(INVALID_VALUE, "cuMemFree_v2", address(lost))
    free(allocate(64))


@section
def ranges():
    """What is said of managed memory by its range, and by the names that take a place instead of a device."""
    count, host = 1 << 20, c_uint64(2)  # a place is its kind and its number; 2 is the host's memory
    start = out(c_uint64, "cuMemAllocManaged", size(count), 1)
    kinds, never = (c_int * 2)(1, 4), -2  # read mostly; where it was sent last: nowhere
    one = c_int(9)
    for kind, expected in zip(kinds, (0, never)):
        call("cuMemRangeGetAttribute", byref(one), size(4), kind, address(start), size(count))
        equal(one.value, expected, f"attribute {kind}")
    refused(INVALID_VALUE, "cuMemRangeGetAttribute", byref(one), size(3), 1, address(start), size(count))
    refused(INVALID_VALUE, "cuMemRangeGetAttribute", byref(one), size(4), 1, address(start), size(count + 1))
    both = (c_int * 2)(9, 9)
    places = (c_void_p * 2)(ctypes.addressof(both), ctypes.addressof(both) + 4)
    sizes = (c_size_t * 2)(4, 4)
    call("cuMemRangeGetAttributes", places, sizes, kinds, size(2), address(start), size(count))
    equal(list(both), [0, never])
    call("cuMemAdvise_v2", address(start), size(count), 1, host)
    call("cuMemAdvise_v2", address(start), size(count), 2, host)
    refused(INVALID_VALUE, "cuMemAdvise_v2", address(start), size(count), 99, host)
    stream = out(c_void_p, "cuStreamCreate", 1)
    call("cuMemPrefetchAsync_v2", address(start), size(count), host, 0, c_void_p(stream))
    refused(INVALID_VALUE, "cuMemPrefetchAsync_v2", address(start), size(count), host, 1, c_void_p(stream))
    call("cuStreamAttachMemAsync", c_void_p(stream), address(start), size(0), 4)
    refused(INVALID_VALUE, "cuStreamAttachMemAsync", c_void_p(stream), address(start), size(0), 8)
    call("cuStreamSynchronize", c_void_p(stream))
    call("cuStreamDestroy_v2", c_void_p(stream))
    free(start)


@section
def pools_by_place():
    """CUDA 13 has pools of places; a device's are those that older names give."""
    if not hasattr(library, "cuMemGetMemPool"):
        return
    device = out(c_int, "cuDeviceGet", 0)
    place, pinned = (c_int * 2)(1, device), 1
    default = out(c_void_p, "cuDeviceGetDefaultMemPool", device)
    equal(out(c_void_p, "cuMemGetDefaultMemPool", place, pinned), default)
    call("cuMemSetMemPool", place, pinned, c_void_p(default))
    equal(out(c_void_p, "cuMemGetMemPool", place, pinned), default)
    refused(INVALID_VALUE, "cuMemGetMemPool", byref(c_void_p()), (c_int * 2)(0, 0), pinned)
    refused(INVALID_VALUE, "cuMemGetMemPool", byref(c_void_p()), place, 0)


@section
def older_names():
    """What programs of earlier CUDA versions call, and files where others have memory."""
    device = out(c_int, "cuDeviceGet", 0)
    primary = out(c_void_p, "cuCtxGetCurrent")
    flags, active = c_uint32(), c_int()
    call("cuDevicePrimaryCtxGetState", device, byref(flags), byref(active))
    call("cuDevicePrimaryCtxSetFlags", device, flags)
    refused(INVALID_VALUE, "cuDevicePrimaryCtxSetFlags", device, 1 << 20)
    context = c_void_p()
    for create, arguments in (("cuCtxCreate_v3", (None, 0, 0, device)), ("cuCtxCreate", (0, device))):
        call(create, byref(context), *arguments)
        equal(out(c_void_p, "cuCtxGetCurrent"), context.value)
        call("cuCtxDestroy_v2", context)
        equal(out(c_void_p, "cuCtxGetCurrent"), primary)
    pinned = c_void_p()
    call("cuMemAllocHost", byref(pinned), c_uint32(4096))
    call("cuMemFreeHost", pinned)
    own = (c_uint32 * 1024)()
    call("cuMemHostRegister", own, size(4096), 0)
    call("cuMemHostUnregister", own)
    graph, executable = out(c_void_p, "cuGraphCreate", 0), c_void_p()
    call("cuGraphInstantiate", byref(executable), c_void_p(graph), None, None, size(0))
    call("cuGraphLaunch", executable, None)
    call("cuGraphExecDestroy", executable)
    call("cuGraphDestroy", c_void_p(graph))
    call("cuDeviceSetGraphMemAttribute", device, 1, byref(c_uint64(0)))
    refused(INVALID_VALUE, "cuDeviceSetGraphMemAttribute", device, 0, byref(c_uint64(0)))
    for suffix in ("", "_v2"):
        link, image, length = c_void_p(), c_void_p(), c_size_t()
        call(f"cuLinkCreate{suffix}", 0, None, None, byref(link))
        refused(FILE_NOT_FOUND, f"cuLinkAddFile{suffix}", link, 1, b"/nowhere/at/all", 0, None, None)
        with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
            file.write(ADD)
            file.flush()
            call(f"cuLinkAddFile{suffix}", link, 1, file.name.encode(), 0, None, None)
        other = f"{HEADER}.visible .global .u32 beside;\0".encode()
        call(f"cuLinkAddData{suffix}", link, 1, other, size(len(other)), b"beside", 0, None, None)
        call("cuLinkComplete", link, byref(image), byref(length))
        linked = out(c_void_p, "cuModuleLoadData", image)
        call("cuLinkDestroy", link)
        check_table(*global_of("cuModuleGetGlobal_v2", c_void_p(linked)))
        call("cuModuleUnload", c_void_p(linked))


def link_of(texts, code=0):
    """Links PTX; returns a module, or with an error expected what the linker says."""
    log, room = (c_char * 400)(), 400
    options, values = (c_uint32 * 2)(5, 6), (c_void_p * 2)(ctypes.addressof(log), room)  # error log, and its size
    link, image, length = c_void_p(), c_void_p(), c_size_t()
    call("cuLinkCreate_v2", 2, options, values, byref(link))
    for name, text in texts.items():
        data = text.encode() + b"\0"
        call("cuLinkAddData_v2", link, 1, data, size(len(data)), name.encode(), 0, None, None)
    equal(code_of("cuLinkComplete", link, byref(image), byref(length)), code, "cuLinkComplete")
    module = None if code else c_void_p(out(c_void_p, "cuModuleLoadData", image))
    call("cuLinkDestroy", link)
    return log.value.decode() if code else module


@section
def linking():
    """Several PTX texts become one module: weak definitions give way, what is a text's own stays apart, two strong ones are refused."""
    own = ".global .align 4 .u32 own[1] = {%d};\n"
    weak = HEADER + own % 7 + ".weak .global .align 4 .u32 table[4] = {9, 9, 9, 9};\n"
    module = link_of({"weak": weak, "add": ADD + own % 8})
    check_table(*global_of("cuModuleGetGlobal_v2", module))
    call("cuModuleUnload", module)
    strong = HEADER + ".visible .global .align 4 .u32 table[4];\n"
    said = link_of({"add": ADD, "other": strong}, INVALID_IMAGE)
    assert all(word in said for word in ("`table`", "in add ", "in other")), said


@section
def register_limits():
    """A limit of registers holds for what is loaded with it, from memory or a file, and for what was linked with it."""
    max_registers, limit = byref(c_uint32(0)), 38
    count, text = 80, HEADER + ".visible .entry many(.param .u64 p)\n{ .reg .b64 a; .reg .b32 v<80>; ld.param.u64 a, [p];\n"
    text += "".join(f"ld.global.u32 v{i}, [a+{4 * i}];\n" for i in range(count))
    text += "".join(f"st.global.u32 [a+{4 * i}], v{count - 1 - i};\n" for i in range(count)) + "ret; }\n"
    text = text.encode() + b"\0"

    def value():
        return byref(c_void_p(limit))

    def check(handle, of="cuModuleGetFunction"):
        many = c_void_p()
        call(of, byref(many), handle, b"many")
        attribute = "cuKernelGetAttribute" if of == "cuLibraryGetKernel" else "cuFuncGetAttribute"
        registers = out(c_int, attribute, 4, many, *([0] if of == "cuLibraryGetKernel" else []))
        assert 0 < registers <= limit, registers

    loaded = c_void_p()
    call("cuModuleLoadDataEx", byref(loaded), text, 1, max_registers, value())
    check(loaded)
    call("cuModuleUnload", loaded)
    call("cuLibraryLoadData", byref(loaded), text, max_registers, value(), 1, None, None, 0)
    check(loaded, "cuLibraryGetKernel")
    call("cuLibraryUnload", loaded)
    with tempfile.NamedTemporaryFile(suffix=".ptx") as file:
        file.write(text)
        file.flush()
        call("cuLibraryLoadFromFile", byref(loaded), file.name.encode(), max_registers, value(), 1, None, None, 0)
    check(loaded, "cuLibraryGetKernel")
    call("cuLibraryUnload", loaded)
    for options, own in (((1, max_registers, value()), (0, None, None)), ((0, None, None), (1, max_registers, value()))):
        link, image, length = c_void_p(), c_void_p(), c_size_t()
        call("cuLinkCreate_v2", *options, byref(link))
        call("cuLinkAddData_v2", link, 1, text, size(len(text)), b"many", *own)
        call("cuLinkComplete", link, byref(image), byref(length))
        loaded = c_void_p(out(c_void_p, "cuModuleLoadData", image))
        call("cuLinkDestroy", link)
        check(loaded)
        call("cuModuleUnload", loaded)


@section
def libraries_on_every_device():
    """A library is loaded once and used on each device; its variables are each device's own."""
    library_handle, kernel = c_void_p(), c_void_p()
    text = ADD.encode() + b"\0"
    call("cuLibraryLoadData", byref(library_handle), text, None, None, 0, None, None, 0)
    call("cuLibraryGetKernel", byref(kernel), library_handle, b"add")
    first = c_void_p(out(c_void_p, "cuCtxGetCurrent"))
    for device in range(out(c_int, "cuDeviceGetCount")):
        context, function_handle = c_void_p(), c_void_p()
        call("cuDevicePrimaryCtxRetain", byref(context), device)
        call("cuCtxSetCurrent", context)
        place, length = global_of("cuLibraryGetGlobal", library_handle)
        check_table(place, length)
        values = parameters(c_uint64(place), c_uint32(4), c_uint32(10))
        call("cuLaunchKernel", kernel, 1, 1, 1, 32, 1, 1, 0, None, values, None)
        call("cuKernelGetFunction", byref(function_handle), kernel)
        call("cuLaunchKernel", function_handle, 1, 1, 1, 32, 1, 1, 0, None, values, None)
        equal(words(place, 4), [21, 22, 23, 24], f"device {device}")
    call("cuCtxSetCurrent", first)
    call("cuLibraryUnload", library_handle)


def run_sections(sections):
    """Runs them all, says what failed, and returns an exit status."""
    failed = []
    without = os.environ.get("WITHOUT", "").split()
    for run in sections:
        if run.__name__ in without:
            print(f"skipped {run.__name__}", flush=True)
            continue
        print(f"begin {run.__name__}", flush=True)  # who reads only this knows where the process ended
        try:
            run()
            print(f"ok   {run.__name__}", flush=True)
        except Exception:
            failed.append(run.__name__)
            print(f"FAIL {run.__name__}\n{traceback.format_exc(limit=4)}", flush=True)
    print(f"FAIL: {', '.join(failed)}" if failed else f"PASS: {len(sections) - len(without)} sections")
    return 1 if failed else 0


if __name__ == "__main__":
    attach()
    sys.exit(run_sections(SECTIONS))

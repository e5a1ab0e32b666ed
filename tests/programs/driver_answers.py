"""What the driver answers where programs ask for little, too early, from elsewhere, or after a failure.

Tables of calls with their result codes, from CUDA's documentation and from what NVIDIA's driver was seen to answer, so
that the same file runs against NVIDIA's. Needs nothing but Python.
"""

import ctypes
import os
import subprocess
import sys
import threading
import traceback

from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_ubyte, c_uint32, c_uint64, c_void_p

from driver import HEADER, PEEK_POKE, allocate, attach, call, code_of, free, library

INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, INVALID_DEVICE = 1, 2, 3, 101
INVALID_CONTEXT, NOT_FOUND, ILLEGAL_ADDRESS, NOT_SUPPORTED, TOO_LARGE = 201, 500, 700, 801, 720
INVALID_HANDLE = 400

# `many` keeps 40 words in registers, `few` one; both use a part of the constant table.
MANY = HEADER + (
    ".visible .const .align 8 .u64 table[10] = {1, 2, 3};\n"
    ".visible .global .align 4 .u32 words[4];\n"
    ".visible .entry few(.param .u64 out) { .reg .b32 %r<2>; .reg .b64 %d<4>; ld.param.u64 %d1, [out];\n"
    "ld.const.u64 %d2, [table]; st.global.u64 [%d1], %d2; ret; }\n"
    ".visible .entry many(.param .u64 out, .param .u32 n) { .reg .b32 %r<41>; .reg .b64 %d<4>; ld.param.u64 %d1, [out];\n"
    + "".join(f"ld.volatile.global.u32 %r{i}, [%d1+{4 * i}];\n" for i in range(40))
    + "".join(f"st.volatile.global.u32 [%d1+{4 * i}], %r{39 - i};\n" for i in range(40))
    + "ret; }\n"
    ".visible .entry poke(.param .u64 at) { .reg .b64 %d<2>; ld.param.u64 %d1, [at]; st.u32 [%d1], 7; ret; }\n"
)

SECTIONS = []


def section(function):
    SECTIONS.append(function)
    return function


def equal(got, want, what=""):
    assert got == want, f"{what}: {got!r}, expected {want!r}"


def place():
    """Where an answer of any type fits."""
    return byref((c_uint64 * 8)())


class Made:
    """Objects of every kind for the calls below."""

    def __init__(self):
        self.device = attach()
        self.memory = allocate(4096)
        self.context, self.module, self.library = c_void_p(), c_void_p(), c_void_p()
        call("cuCtxGetCurrent", byref(self.context))
        text = c_char_p(MANY.encode())
        call("cuModuleLoadData", byref(self.module), text)
        call("cuLibraryLoadData", byref(self.library), text, None, None, 0, None, None, 0)
        self.function, self.kernel, self.stream = c_void_p(), c_void_p(), c_void_p()
        call("cuModuleGetFunction", byref(self.function), self.module, b"many")
        call("cuLibraryGetKernel", byref(self.kernel), self.library, b"many")
        call("cuStreamCreate", byref(self.stream), 1)
        self.graph, self.link = c_void_p(), c_void_p()
        call("cuGraphCreate", byref(self.graph), 0)
        node = c_void_p()
        call("cuGraphAddEmptyNode", byref(node), self.graph, None, c_size_t(0))
        call("cuGraphAddEmptyNode", byref(c_void_p()), self.graph, byref(node), c_size_t(1))
        call("cuLinkCreate_v2", 0, None, None, byref(self.link))
        call("cuLinkAddData_v2", self.link, 1, text, c_size_t(len(MANY) + 1), None, 0, None, None)


# Function, arguments before its outputs, outputs, arguments behind. An output is `n`eeded, `o`ptional, or `1`: one of those is needed.
OUTPUTS = [
    ("cuMemGetInfo_v2", lambda it: (), "oo", lambda it: ()),
    ("cuMemGetAddressRange_v2", lambda it: (), "oo", lambda it: (c_uint64(it.memory),)),
    ("cuCtxGetStreamPriorityRange", lambda it: (), "oo", lambda it: ()),
    ("cuModuleGetGlobal_v2", lambda it: (), "11", lambda it: (it.module, b"words")),
    ("cuLibraryGetGlobal", lambda it: (), "11", lambda it: (it.library, b"words")),
    ("cuFuncGetParamInfo", lambda it: (it.function, c_size_t(0)), "no", lambda it: ()),
    ("cuKernelGetParamInfo", lambda it: (it.kernel, c_size_t(0)), "no", lambda it: ()),
    ("cuStreamGetCaptureInfo", lambda it: (it.stream,), "no", lambda it: ()),
    ("cuStreamGetCaptureInfo_v2", lambda it: (it.stream,), "noooo", lambda it: ()),
    ("cuStreamGetCaptureInfo_v3", lambda it: (it.stream,), "nooooo", lambda it: ()),
    ("cuLinkComplete", lambda it: (it.link,), "no", lambda it: ()),
    ("cuDeviceComputeCapability", lambda it: (), "nn", lambda it: (it.device,)),
    ("cuDeviceGetAttribute", lambda it: (), "n", lambda it: (16, it.device)),
    ("cuDeviceGetCount", lambda it: (), "n", lambda it: ()),
    ("cuDeviceTotalMem_v2", lambda it: (), "n", lambda it: (it.device,)),
    ("cuDeviceGetUuid", lambda it: (), "n", lambda it: (it.device,)),
    ("cuDeviceGetDefaultMemPool", lambda it: (), "n", lambda it: (it.device,)),
    ("cuDriverGetVersion", lambda it: (), "n", lambda it: ()),
    ("cuCtxGetCurrent", lambda it: (), "n", lambda it: ()),
    ("cuCtxGetDevice", lambda it: (), "n", lambda it: ()),
    ("cuCtxGetFlags", lambda it: (), "n", lambda it: ()),
    ("cuCtxGetId", lambda it: (it.context,), "n", lambda it: ()),
    ("cuCtxGetLimit", lambda it: (), "n", lambda it: (0,)),
    ("cuMemAlloc_v2", lambda it: (), "n", lambda it: (c_size_t(64),)),
    ("cuMemAllocPitch_v2", lambda it: (), "nn", lambda it: (c_size_t(64), c_size_t(4), 4)),
    ("cuMemAllocHost_v2", lambda it: (), "n", lambda it: (c_size_t(64),)),
    ("cuMemAllocAsync", lambda it: (), "n", lambda it: (c_size_t(64), it.stream)),
    ("cuStreamCreate", lambda it: (), "n", lambda it: (1,)),
    ("cuStreamGetFlags", lambda it: (it.stream,), "n", lambda it: ()),
    ("cuStreamGetCtx", lambda it: (it.stream,), "n", lambda it: ()),
    ("cuStreamIsCapturing", lambda it: (it.stream,), "n", lambda it: ()),
    ("cuEventCreate", lambda it: (), "n", lambda it: (0,)),
    ("cuModuleGetFunction", lambda it: (), "n", lambda it: (it.module, b"few")),
    ("cuLibraryGetKernel", lambda it: (), "n", lambda it: (it.library, b"few")),
    ("cuFuncGetAttribute", lambda it: (), "n", lambda it: (4, it.function)),
    ("cuFuncGetName", lambda it: (), "n", lambda it: (it.function,)),
    ("cuFuncGetModule", lambda it: (), "n", lambda it: (it.function,)),
    ("cuKernelGetName", lambda it: (), "n", lambda it: (it.kernel,)),
    ("cuKernelGetFunction", lambda it: (), "n", lambda it: (it.kernel,)),
    ("cuOccupancyMaxActiveBlocksPerMultiprocessor", lambda it: (), "n", lambda it: (it.function, 32, c_size_t(0))),
    ("cuGraphCreate", lambda it: (), "n", lambda it: (0,)),
    ("cuGraphClone", lambda it: (), "n", lambda it: (it.graph,)),
    ("cuGraphInstantiateWithFlags", lambda it: (), "n", lambda it: (it.graph, c_uint64(0))),
    ("cuPointerGetAttribute", lambda it: (), "n", lambda it: (2, c_uint64(it.memory))),
]


@section
def outputs_that_are_null(it):
    for function, before, outputs, behind in OUTPUTS:
        for missing in range(len(outputs)):
            given = [None if number == missing else place() for number in range(len(outputs))]
            want = INVALID_VALUE if outputs[missing] == "n" else 0
            equal(code_of(function, *before(it), *given, *behind(it)), want, f"{function} without output {missing}")
        if outputs == "1" * len(outputs):
            nothing = [None] * len(outputs)
            equal(code_of(function, *before(it), *nothing, *behind(it)), INVALID_VALUE, f"{function} without any output")


# What is answered to arguments that name nothing, or something that does not exist.
CODES = [
    ("cuMemFree_v2", lambda it: (c_uint64(0),), 0),
    ("cuMemFreeAsync", lambda it: (c_uint64(0), it.stream), 0),
    ("cuMemFreeHost", lambda it: (None,), 0),
    ("cuMemHostUnregister", lambda it: (None,), INVALID_VALUE),
    ("cuFuncGetName", lambda it: (place(), None), INVALID_VALUE),
    ("cuKernelGetName", lambda it: (place(), None), INVALID_VALUE),
    ("cuPointerGetAttribute", lambda it: (place(), 9999, c_uint64(it.memory)), INVALID_VALUE),
    ("cuPointerGetAttributes", lambda it: (1, byref(c_int(9999)), byref(c_void_p(ctypes.addressof(it.module))), c_uint64(it.memory)), INVALID_VALUE),
    ("cuDeviceGetP2PAttribute", lambda it: (place(), 2, it.device, it.device), INVALID_DEVICE),
    ("cuDeviceGetP2PAttribute", lambda it: (place(), 9999, it.device, it.device), INVALID_VALUE),
    ("cuGraphGetNodes", lambda it: (it.graph, place(), byref(c_size_t(0))), INVALID_VALUE),
    ("cuGraphGetRootNodes", lambda it: (it.graph, place(), byref(c_size_t(0))), INVALID_VALUE),
    ("cuGraphGetEdges", lambda it: (it.graph, place(), place(), byref(c_size_t(0))), INVALID_VALUE),
    ("cuGraphGetNodes", lambda it: (it.graph, None, byref(c_size_t(0))), 0),
    ("cuGraphGetEdges", lambda it: (it.graph, None, None, byref(c_size_t(0))), 0),
    ("cuGraphGetNodes", lambda it: (it.graph, place(), None), INVALID_VALUE),
    ("cuMemAlloc_v2", lambda it: (place(), c_size_t(0)), INVALID_VALUE),
    ("cuMemcpyHtoD_v2", lambda it: (c_uint64(it.memory), place(), c_size_t(5000)), INVALID_VALUE),
    ("cuMemsetD8_v2", lambda it: (c_uint64(it.memory), c_ubyte(0), c_size_t(5000)), INVALID_VALUE),
    ("cuMemsetD8_v2", lambda it: (c_uint64(it.memory), c_ubyte(0), c_size_t(0)), 0),
    ("cuGetErrorName", lambda it: (12345, place()), INVALID_VALUE),
    ("cuCtxPushCurrent_v2", lambda it: (None,), INVALID_VALUE),
    ("cuCtxGetExecAffinity", lambda it: (None, 0), INVALID_VALUE),
    ("cuCtxGetLimit", lambda it: (place(), 256), INVALID_VALUE),
    ("cuCtxSetLimit", lambda it: (256, c_size_t(1)), INVALID_VALUE),
    ("cuDevicePrimaryCtxGetState", lambda it: (it.device, None, place()), INVALID_VALUE),
    ("cuDevicePrimaryCtxGetState", lambda it: (it.device, place(), None), INVALID_VALUE),
    ("cuDevicePrimaryCtxSetFlags_v2", lambda it: (it.device, 8), INVALID_VALUE),
    ("cuFuncGetAttribute", lambda it: (place(), 0, None), INVALID_VALUE),
    ("cuFuncGetModule", lambda it: (place(), None), INVALID_VALUE),
    ("cuFuncGetParamInfo", lambda it: (None, c_size_t(0), place(), place()), INVALID_VALUE),
    ("cuFuncGetParamCount", lambda it: (None, place()), INVALID_VALUE),
    ("cuKernelGetParamInfo", lambda it: (None, c_size_t(0), place(), place()), INVALID_VALUE),
    ("cuKernelGetParamCount", lambda it: (None, place()), INVALID_VALUE),
    ("cuKernelSetCacheConfig", lambda it: (it.kernel, 9, it.device), INVALID_VALUE),
    ("cuFuncSetCacheConfig", lambda it: (it.function, 9), INVALID_VALUE),
    ("cuGraphNodeGetContainingGraph", lambda it: (None, place()), INVALID_VALUE),
    # Where a handle is used, and not only asked about, null is a wrong handle.
    ("cuFuncSetAttribute", lambda it: (None, 8, 1), INVALID_HANDLE),
    ("cuKernelGetAttribute", lambda it: (place(), 0, None, it.device), INVALID_HANDLE),
]


@section
def codes(it):
    for function, arguments, want in CODES:
        equal(code_of(function, *arguments(it)), want, function)
    attribute = (c_uint32 * 24)()
    attribute[0] = 9999  # the attribute's number
    config = (c_uint64 * 7)()
    words = (c_uint32 * 14).from_buffer(config)
    words[0:6] = [1, 1, 1, 1, 1, 1]
    config[5] = ctypes.addressof(attribute)
    words[12] = 1
    equal(code_of("cuLaunchKernelEx", config, it.function, None, None), INVALID_VALUE, "a launch with an unknown attribute")


@section
def attributes_fill_their_type(it):
    for number, name in [(6, "SYNC_MEMOPS"), (8, "IS_MANAGED"), (10, "IS_LEGACY_CUDA_IPC_CAPABLE"), (13, "MAPPED"), (15, "IS_GPU_DIRECT_RDMA_CAPABLE")]:
        value = c_uint32(0xFFFFFFFF)
        call("cuPointerGetAttribute", byref(value), number, c_uint64(it.memory))
        assert value.value in (0, 1), f"{name} reads {value.value:#x}"
        value, attributes = c_uint32(0xFFFFFFFF), (c_int * 1)(number)
        places = (c_void_p * 1)(ctypes.addressof(value))
        call("cuPointerGetAttributes", 1, attributes, places, c_uint64(it.memory))
        assert value.value in (0, 1), f"{name} reads {value.value:#x} among others"


def in_a_thread(run):
    """Runs in a thread that has no context, and returns what that returns."""
    answers = []

    def thread():
        context = c_void_p(1)
        call("cuCtxGetCurrent", byref(context))
        answers.append("a new thread has a context" if context.value else run())

    started = threading.Thread(target=thread)
    started.start()
    started.join()
    return answers[0]


@section
def a_handle_carries_its_context(it):
    start, end, word, graph, instance = c_void_p(), c_void_p(), c_uint32(), c_void_p(), c_void_p()
    call("cuEventCreate", byref(start), 0)
    call("cuEventCreate", byref(end), 0)
    call("cuEventRecord", start, it.stream)
    call("cuEventRecord", end, it.stream)
    call("cuGraphInstantiateWithFlags", byref(instance), it.graph, c_uint64(0))
    memory, n = c_uint64(it.memory), c_uint32(0)
    arguments = (c_void_p * 2)(ctypes.addressof(memory), ctypes.addressof(n))
    shape = (1, 1, 1, 1, 1, 1, 0)
    calls = [
        ("cuEventSynchronize", end),
        ("cuEventQuery", end),
        ("cuEventElapsedTime", byref(c_float()), start, end),
        ("cuStreamSynchronize", it.stream),
        ("cuStreamQuery", it.stream),
        ("cuStreamGetCtx", it.stream, place()),
        ("cuStreamGetFlags", it.stream, place()),
        ("cuEventRecord", start, it.stream),
        ("cuStreamWaitEvent", it.stream, end, 0),
        ("cuMemsetD8Async", memory, c_ubyte(1), c_size_t(4), it.stream),
        ("cuMemcpyHtoDAsync_v2", memory, byref(word), c_size_t(4), it.stream),
        ("cuMemcpyDtoDAsync_v2", c_uint64(it.memory + 64), memory, c_size_t(4), it.stream),
        ("cuLaunchKernel", it.function, *shape, it.stream, arguments, None),
        ("cuLaunchKernel", it.kernel, *shape, it.stream, arguments, None),
        ("cuGraphLaunch", instance, it.stream),
        ("cuStreamSynchronize", it.stream),
        ("cuModuleGetFunction", place(), it.module, b"few"),
        ("cuModuleGetGlobal_v2", place(), place(), it.module, b"words"),
        ("cuFuncGetAttribute", place(), 4, it.function),
        ("cuGraphGetNodes", it.graph, None, byref(c_size_t())),
        ("cuPointerGetAttribute", place(), 2, memory),
        ("cuEventDestroy_v2", start),
        ("cuEventDestroy_v2", end),
    ]
    for name, *arguments_of in calls:
        equal(in_a_thread(lambda: code_of(name, *arguments_of)), 0, f"{name} in a thread without a context")
    for name, nothing in [("cuMemFree_v2", c_uint64(0)), ("cuMemFreeHost", None)]:
        equal(in_a_thread(lambda: code_of(name, nothing)), 0, f"{name} of nothing in a thread without a context")
    # What has no handle has no context either.
    for name, *arguments_of in [("cuMemAlloc_v2", place(), c_size_t(4)), ("cuCtxSynchronize",), ("cuStreamSynchronize", None)]:
        equal(in_a_thread(lambda: code_of(name, *arguments_of)), INVALID_CONTEXT, f"{name} in a thread without a context")


@section
def functions_that_are_not_there_have_an_address(it):
    version = c_int()
    call("cuDriverGetVersion", byref(version))
    names = [b"cuMemBatchDecompressAsync", b"cuGraphicsMapResources", b"cuGraphicsGLRegisterBuffer", b"cuImportExternalMemory", b"cuProfilerInitialize", b"cuTensorMapEncodeIm2col"]
    for name in names:
        found, status = c_void_p(), c_int(7)
        call("cuGetProcAddress_v2", name, byref(found), version, c_uint64(0), byref(status))
        assert found.value and status.value == 0, f"{name} has no address"
    assert ctypes.cast(library.cuGraphicsGLRegisterBuffer, c_void_p).value, "the symbol is exported as well"
    if os.environ.get("NVIDIA"):
        return
    equal(code_of("cuMemBatchDecompressAsync", place(), c_size_t(1), 0, place(), it.stream), NOT_SUPPORTED, "it is not built")


@section
def a_node_answers_what_it_was_given(it):
    given = []
    call("cuStreamBeginCapture_v2", it.stream, 2)
    memory, n = c_uint64(it.memory), c_uint32(0)
    arguments = (c_void_p * 2)(ctypes.addressof(memory), ctypes.addressof(n))
    for handle in [it.kernel, it.function]:
        call("cuLaunchKernel", handle, 1, 1, 1, 1, 1, 1, 0, it.stream, arguments, None)
        given.append(handle.value)
    graph, count = c_void_p(), c_size_t(2)
    call("cuStreamEndCapture", it.stream, byref(graph))
    nodes = (c_void_p * 2)()
    call("cuGraphGetNodes", graph, nodes, byref(count))
    found = []
    for node in nodes:
        params = (c_uint64 * 10)()
        call("cuGraphKernelNodeGetParams_v2", c_void_p(node), params)
        function, kernel = params[0], params[7]
        found.append(kernel if function == 0 else function)
        equal(function == 0, kernel == it.kernel.value, "a kernel is no function")
    equal(sorted(found), sorted(given), "the kernels of the nodes")


@section
def advice_is_read_back(it):
    managed, location = c_uint64(), (c_int * 2)(1, it.device.value)
    host = (c_int * 2)(2, 0)
    call("cuMemAllocManaged", byref(managed), c_size_t(1 << 20), 1)

    class Location(ctypes.Structure):
        _fields_ = [("kind", c_int), ("id", c_int)]

    device, host = Location(1, it.device.value), Location(2, 0)

    def read(attribute, words=1):
        values = (c_int * words)(*[-9] * words)
        call("cuMemRangeGetAttribute", values, c_size_t(4 * words), attribute, managed, c_size_t(1 << 20))
        return list(values)

    equal([read(1), read(2), read(3, 2), read(4)], [[0], [-2], [-2, -2], [-2]], "without advice")
    call("cuMemAdvise_v2", managed, c_size_t(1 << 20), 1, device)
    call("cuMemAdvise_v2", managed, c_size_t(1 << 20), 3, device)
    call("cuMemAdvise_v2", managed, c_size_t(1 << 20), 5, device)
    call("cuMemPrefetchAsync_v2", managed, c_size_t(1 << 20), host, 0, None)
    equal([read(1), read(2), read(3, 2), read(4)], [[1], [it.device.value], [it.device.value, -2], [-1]], "with advice")
    call("cuMemAdvise_v2", c_uint64(managed.value + 4096), c_size_t(4096), 2, device)
    equal(read(1), [0], "not all of it is mostly read")
    equal(code_of("cuMemAdvise_v2", c_uint64(it.memory), c_size_t(64), 1, device), INVALID_VALUE, "memory that is not managed")
    free(managed.value)


@section
def a_pool_keeps_to_its_size(it):
    class Props(ctypes.Structure):
        _fields_ = [("kind", c_int), ("handles", c_int), ("where", c_int), ("device", c_int), ("security", c_void_p), ("bytes_max", c_size_t), ("rest", c_ubyte * 56)]

    pool, small, large, used, of = c_void_p(), c_uint64(), c_uint64(), c_uint64(), c_void_p()
    call("cuMemPoolCreate", byref(pool), byref(Props(1, 0, 1, it.device.value, None, 8 << 20)))
    call("cuMemAllocFromPoolAsync", byref(small), c_size_t(4 << 20), pool, it.stream)
    equal(code_of("cuMemAllocFromPoolAsync", byref(large), c_size_t(64 << 20), pool, it.stream), OUT_OF_MEMORY, "beyond the pool's size")
    call("cuMemPoolGetAttribute", pool, 7, byref(used))
    equal(used.value, 4 << 20, "bytes in use")
    call("cuPointerGetAttribute", byref(of), 17, small)
    equal(of.value, pool.value, "the pool of an allocation")
    call("cuMemFreeAsync", small, it.stream)
    call("cuMemPoolGetAttribute", pool, 7, byref(used))
    equal(used.value, 0, "bytes in use behind the free")
    current, own = c_void_p(), c_void_p()
    call("cuDeviceGetDefaultMemPool", byref(own), it.device)
    call("cuDeviceSetMemPool", it.device, pool)
    call("cuDeviceGetMemPool", byref(current), it.device)
    equal(current.value, pool.value, "the pool that was set")
    call("cuMemPoolDestroy", pool)
    call("cuDeviceGetMemPool", byref(current), it.device)
    equal(current.value, own.value, "the device's own, as the other is destroyed")


@section
def what_is_known_of_code(it):
    def attribute(number, function):
        value = c_int()
        call("cuFuncGetAttribute", byref(value), number, function)
        return value.value

    few = c_void_p()
    call("cuModuleGetFunction", byref(few), it.module, b"few")
    equal(attribute(2, few), 80, "bytes of constants")
    assert 2 <= attribute(4, few) <= 24, f"few: {attribute(4, few)} registers"
    assert 40 <= attribute(4, it.function) <= 64, f"many: {attribute(4, it.function)} registers"
    options, values = (c_int * 1)(2), (c_void_p * 1)(0)
    call("cuModuleLoadDataEx", byref(c_void_p()), c_char_p(MANY.encode()), 1, options, values)
    taken = c_float.from_buffer(values).value
    assert 0 < taken < 600_000, f"wall time: {taken} ms"


@section
def a_cooperative_launch_takes_what_occupancy_says(it):
    count, blocks = c_int(), c_int()
    call("cuDeviceGetAttribute", byref(count), 16, it.device)
    call("cuOccupancyMaxActiveBlocksPerMultiprocessor", byref(blocks), it.function, 32, c_size_t(0))
    together = count.value * blocks.value
    assert together >= 20, f"{together} blocks"
    memory, n = c_uint64(it.memory), c_uint32(0)
    arguments = (c_void_p * 2)(ctypes.addressof(memory), ctypes.addressof(n))
    launch = lambda blocks: code_of("cuLaunchCooperativeKernel", it.function, blocks, 1, 1, 32, 1, 1, 0, it.stream, arguments)
    equal(launch(together), 0, "as many as fit")
    equal(launch(together + 1), TOO_LARGE, "one more")
    call("cuStreamSynchronize", it.stream)


@section
def host_memory_that_the_program_maps(it):
    class Location(ctypes.Structure):
        _fields_ = [("kind", c_int), ("id", c_int)]

    class Props(ctypes.Structure):
        _fields_ = [("kind", c_int), ("handles", c_int), ("location", Location), ("security", c_void_p), ("flags", c_ubyte * 8)]

    class Access(ctypes.Structure):
        _fields_ = [("location", Location), ("flags", c_int)]

    for kind in [2, 3, 4]:  # HOST, HOST_NUMA, HOST_NUMA_CURRENT
        props, size, memory = Props(1, 0, Location(kind, 0)), c_size_t(), c_uint64()
        call("cuMemGetAllocationGranularity", byref(size), byref(props), 0)
        call("cuMemCreate", byref(memory), size, byref(props), c_uint64(0))
        access = (Access * 2)(Access(Location(1, it.device.value), 3), Access(Location(kind, 0), 3))
        for turn in range(2):
            address, base, length = c_uint64(), c_uint64(), c_size_t()
            call("cuMemAddressReserve", byref(address), size, c_size_t(0), c_uint64(0), c_uint64(0))
            call("cuMemMap", address, size, c_size_t(0), memory, c_uint64(0))
            call("cuMemSetAccess", address, size, access, c_size_t(2))
            here = (c_ubyte * 16).from_address(address.value + 12345)
            if turn == 0:
                call("cuMemsetD8_v2", address, c_ubyte(0x5A), size)
                call("cuCtxSynchronize")
                here[1] = 7
            equal(list(here[:3]), [0x5A, 7, 0x5A], "what the program reads")
            back = (c_ubyte * 3)()
            call("cuMemcpyDtoH_v2", back, c_uint64(address.value + 12345), c_size_t(3))
            equal(list(back), [0x5A, 7, 0x5A], "what the device reads")
            call("cuMemGetAddressRange_v2", byref(base), byref(length), address)
            equal((base.value, length.value), (address.value, size.value), "the range")
            call("cuMemUnmap", address, size)
            call("cuMemAddressFree", address, size)
        call("cuMemRelease", memory)


@section
def mapped_memory_has_a_range_and_flags(it):
    host, device, base, length, flags = c_void_p(), c_uint64(), c_uint64(), c_size_t(), c_uint32()
    call("cuMemHostAlloc", byref(host), c_size_t(4096), 2)
    call("cuMemHostGetDevicePointer_v2", byref(device), host, 0)
    call("cuMemGetAddressRange_v2", byref(base), byref(length), c_uint64(device.value + 100))
    equal((base.value, length.value), (device.value, 4096), "the range")
    call("cuMemHostGetFlags", byref(flags), host)
    equal(flags.value & 2, 2, "it is mapped")
    call("cuMemFreeHost", host)
    call("cuMemAllocHost_v2", byref(host), c_size_t(4096))
    call("cuMemHostGetFlags", byref(flags), host)
    equal(flags.value & 2, 2, "with unified addresses all host memory is")
    call("cuMemFreeHost", host)


@section
def reads_a_little_outside_are_tolerated(it):
    module, peek = c_void_p(), c_void_p()
    call("cuModuleLoadData", byref(module), c_char_p(PEEK_POKE.encode()))
    call("cuModuleGetFunction", byref(peek), module, b"peek")
    for address in [it.memory - 128, it.memory + 4096 + 64]:
        at, out = c_uint64(address), c_uint64(it.memory)
        arguments = (c_void_p * 2)(ctypes.addressof(at), ctypes.addressof(out))
        call("cuLaunchKernel", peek, 1, 1, 1, 1, 1, 1, 0, None, arguments, None)
        call("cuCtxSynchronize")


def before_init():
    for function, *arguments in [
        ("cuCtxPushCurrent_v2", c_void_p(1)),
        ("cuCtxGetCurrent", place()),
        ("cuCtxGetDevice", place()),
        ("cuCtxDestroy_v2", c_void_p(1)),
        ("cuDeviceGetCount", place()),
        ("cuDeviceGet", place(), 0),
        ("cuMemAlloc_v2", place(), c_size_t(4)),
        ("cuMemGetInfo_v2", place(), place()),
        ("cuStreamCreate", place(), 0),
        ("cuEventQuery", c_void_p(1)),
        ("cuModuleLoadData", place(), c_char_p(MANY.encode())),
        ("cuModuleUnload", c_void_p(1)),
        ("cuLibraryLoadData", place(), c_char_p(MANY.encode()), None, None, 0, None, None, 0),
        ("cuFuncGetAttribute", place(), 4, c_void_p(1)),
        ("cuProfilerStart",),
        ("cuProfilerStop",),
    ]:
        equal(code_of(function, *arguments), NOT_INITIALIZED, f"{function} before cuInit")
    equal(code_of("cuGetErrorName", 719, place()), 0, "cuGetErrorName before cuInit")
    equal(code_of("cuDriverGetVersion", place()), 0, "cuDriverGetVersion before cuInit")


def after_a_failure():
    """In a process of its own, whose context is lost."""
    it = Made()
    poke, event = c_void_p(), c_void_p()
    call("cuModuleGetFunction", byref(poke), it.module, b"poke")
    call("cuEventCreate", byref(event), 0)
    address = c_uint64(0x1234560)
    call("cuLaunchKernel", poke, 1, 1, 1, 1, 1, 1, 0, None, (c_void_p * 1)(ctypes.addressof(address)), None)
    lost = code_of("cuCtxSynchronize")
    equal(lost, ILLEGAL_ADDRESS, "the kernel")
    word, memory = c_uint32(), c_uint64(it.memory)
    for name, *arguments in [
        ("cuMemAlloc_v2", place(), c_size_t(4)),
        ("cuMemAlloc_v2", place(), c_size_t(1 << 30)),
        ("cuMemAllocAsync", place(), c_size_t(4096), it.stream),
        ("cuMemAllocManaged", place(), c_size_t(4096), 1),
        ("cuMemAllocHost_v2", place(), c_size_t(4096)),
        ("cuMemGetInfo_v2", place(), place()),
        ("cuMemsetD8_v2", memory, c_ubyte(0), c_size_t(4)),
        ("cuMemsetD8Async", memory, c_ubyte(0), c_size_t(4), it.stream),
        ("cuMemcpyHtoD_v2", memory, byref(word), c_size_t(4)),
        ("cuMemcpyHtoDAsync_v2", memory, byref(word), c_size_t(4), it.stream),
        ("cuMemcpyDtoH_v2", byref(word), memory, c_size_t(4)),
        ("cuMemcpyDtoD_v2", c_uint64(it.memory + 64), memory, c_size_t(4)),
        ("cuStreamCreate", place(), 0),
        ("cuStreamSynchronize", it.stream),
        ("cuStreamQuery", it.stream),
        ("cuEventCreate", place(), 0),
        ("cuEventRecord", event, it.stream),
        ("cuEventQuery", event),
        ("cuEventSynchronize", event),
        ("cuModuleLoadData", place(), c_char_p(MANY.encode())),
        ("cuLaunchKernel", poke, 1, 1, 1, 1, 1, 1, 0, None, (c_void_p * 1)(ctypes.addressof(memory)), None),
        ("cuMemFree_v2", memory),
        ("cuCtxSynchronize",),
    ]:
        equal(code_of(name, *arguments), lost, f"{name} after a failed kernel")
    begin_anew(it)


def begin_anew(it):
    """A reset ends the error with the context. What belongs to no context is still there."""
    gone = c_uint64(it.memory)
    call("cuDevicePrimaryCtxReset_v2", it.device)
    context = c_void_p()
    call("cuDevicePrimaryCtxRetain", byref(context), it.device)
    call("cuCtxSetCurrent", context)
    assert code_of("cuStreamQuery", it.stream) != 0, "a stream of the context that was reset"
    assert code_of("cuMemFree_v2", gone) != 0, "memory of the context that was reset"
    memory, word = allocate(4096), c_uint32()
    call("cuMemsetD32_v2", c_uint64(memory), c_uint32(5), c_size_t(40))
    few = c_void_p()
    call("cuLibraryGetKernel", byref(few), it.library, b"few")
    out = c_uint64(memory)
    for kernel in [it.kernel, few]:
        arguments = (c_void_p * 2)(ctypes.addressof(out), ctypes.addressof(word))
        call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, None, arguments, None)
    call("cuCtxSynchronize")
    call("cuMemcpyDtoH_v2", byref(word), c_uint64(memory), c_size_t(4))
    equal(word.value, 1, "what the kernel of the library wrote")
    module, function = c_void_p(), c_void_p()
    call("cuModuleLoadData", byref(module), c_char_p(MANY.encode()))
    call("cuModuleGetFunction", byref(function), module, b"few")
    equal(code_of("cuModuleUnload", it.module) != 0, True, "a module of the context that was reset")


def main():
    if sys.argv[1:] == ["after-a-failure"]:
        return after_a_failure()
    before_init()
    failed = []
    it = Made()
    for run in SECTIONS:
        try:
            run(it)
            print(f"OK {run.__name__}", flush=True)
        except Exception:
            traceback.print_exc()
            failed.append(run.__name__)
    if subprocess.run([sys.executable, __file__, "after-a-failure"]).returncode != 0:
        failed.append("after_a_failure")
    print(f"FAIL: {failed}" if failed else "PASS")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

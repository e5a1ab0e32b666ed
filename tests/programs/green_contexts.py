"""Green contexts: a device's multiprocessors split into parts, contexts over them, and their streams.

What is checked holds on any CUDA driver, so the same file runs against NVIDIA's. Needs nothing but Python.
"""

import ctypes
import sys

from ctypes import byref, c_float, c_int, c_size_t, c_uint32, c_uint64, c_void_p

from driver import HEADER, allocate, attach, call, code_of, library

INVALID_VALUE, INVALID_CONTEXT, INVALID_HANDLE, NOT_SUPPORTED = 1, 201, 400, 801
CONTEXT_IS_DESTROYED, STREAM_DETACHED = 709, 917
INVALID_RESOURCE_TYPE, INVALID_RESOURCE_CONFIGURATION = 914, 915
SM, NON_BLOCKING, DEFAULT_STREAM, BACKFILL = 1, 1, 1, 1
BLOCKS = 256

# Writes the multiprocessor of each block.
WHERE = HEADER + """
.visible .entry whereabouts(.param .u64 words)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [words];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %smid;
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r2;
    ret;
}
"""


class Resource(ctypes.Structure):
    _fields_ = [
        ("kind", c_uint32),
        ("padding", ctypes.c_ubyte * 92),
        ("count", c_uint32),
        ("least", c_uint32),
        ("alignment", c_uint32),
        ("flags", c_uint32),
        ("rest", ctypes.c_ubyte * 24),
        ("next", c_void_p),
    ]


class Group(ctypes.Structure):
    _fields_ = [
        ("count", c_uint32),
        ("coscheduled", c_uint32),
        ("preferred", c_uint32),
        ("flags", c_uint32),
        ("reserved", c_uint32 * 12),
    ]


def equal(found, expected, what=""):
    assert found == expected, f"{what}: {found!r} is not {expected!r}"


def out(kind, function, *arguments):
    value = kind()
    call(function, byref(value), *arguments)
    return value


def resource_of(function, owner):
    resource = Resource()
    call(function, owner, byref(resource), SM)
    return resource


def split(resource, wanted, least):
    """The groups of a split, and what is left."""
    groups, count, left = (Resource * wanted)(), c_uint32(wanted), Resource()
    call("cuDevSmResourceSplitByCount", groups, byref(count), byref(resource), byref(left), 0, least)
    return list(groups)[: count.value], left


def describe(*resources):
    array = (Resource * len(resources))(*resources)
    return out(c_void_p, "cuDevResourceGenerateDesc", array, len(resources))


def green_context(device, *resources):
    return out(c_void_p, "cuGreenCtxCreate", describe(*resources), device, DEFAULT_STREAM)


def multiprocessors_of_a_grid(function, words, stream):
    """On how many a grid ran in a stream."""
    parameters = (c_void_p * 1)(ctypes.cast(byref(words), c_void_p))
    call("cuLaunchKernel", function, BLOCKS, 1, 1, 32, 1, 1, 0, stream, parameters, None)
    call("cuStreamSynchronize", stream)
    found = (c_uint32 * BLOCKS)()
    call("cuMemcpyDtoH_v2", found, words, c_size_t(ctypes.sizeof(found)))
    return len(set(found))


def splits(device):
    whole = resource_of("cuDeviceGetDevResource", device)
    count = c_int()
    call("cuDeviceGetAttribute", byref(count), 16, device)
    equal(whole.count, count.value, "multiprocessors of the device")
    assert 1 <= whole.least <= whole.count and whole.alignment >= 1
    # As many groups as there can be; then one, the rest of which is left.
    simulated = c_uint32()
    call("cuDevSmResourceSplitByCount", None, byref(simulated), byref(whole), None, 0, whole.least)
    groups, left = split(whole, 1024, whole.least)
    equal(len(groups), simulated.value, "groups")
    sizes = {group.count for group in groups}
    equal(len(sizes), 1, "sizes of groups")
    equal(sum(group.count for group in groups) + left.count, whole.count, "all multiprocessors")
    one, left = split(whole, 1, whole.least)
    equal(one[0].count + left.count, whole.count)
    assert left.kind == (SM if left.count else 0)
    again = c_uint32(1)
    code = code_of("cuDevSmResourceSplitByCount", None, byref(again), byref(whole), None, 0, whole.count + 1)
    equal(code, INVALID_RESOURCE_CONFIGURATION, "more than there are")
    equal(code_of("cuDeviceGetDevResource", device, byref(Resource()), 7), INVALID_RESOURCE_TYPE)
    # A structure that nobody made.
    forged = Resource(kind=SM, count=4, least=1, alignment=1)
    assert code_of("cuDevSmResourceSplitByCount", None, byref(again), byref(forged), None, 0, 1) != 0
    desc = c_void_p()
    assert code_of("cuDevResourceGenerateDesc", byref(desc), byref(forged), 1) != 0
    if find("cuDevSmResourceSplit", 13010):
        wished = (Group * 1)(Group(count=0, coscheduled=0, flags=BACKFILL))
        group, left = Resource(), Resource()
        call("cuDevSmResourceSplit", byref(group), 1, byref(whole), byref(left), 0, wished)
        equal(wished[0].count, group.count, "the size that was left open")
        equal(group.count + left.count, whole.count)
        wished = (Group * 1)(Group(count=2 * whole.count))
        equal(code_of("cuDevSmResourceSplit", None, 1, byref(whole), None, 0, wished), INVALID_VALUE)


def find(name, version):
    """Whether `cuGetProcAddress` knows a function of a version."""
    address, status = c_void_p(), c_int()
    code = library.cuGetProcAddress_v2(name.encode(), byref(address), version, c_uint64(0), byref(status))
    return code == 0 and bool(address.value)


def contexts(device, primary, function, words):
    whole = resource_of("cuDeviceGetDevResource", device)
    groups, left = split(whole, 2, whole.least)
    parts = [*groups, left] if left.count else groups
    greens = [green_context(device, groups[0]), green_context(device, *parts)]
    equal(resource_of("cuGreenCtxGetDevResource", greens[0]).count, groups[0].count)
    equal(resource_of("cuGreenCtxGetDevResource", greens[1]).count, whole.count)
    ids = set()
    for green in greens:
        identity = c_uint64()
        call("cuGreenCtxGetId", green, byref(identity))
        ids.add(identity.value)
    equal(len(ids), 2, "ids")

    streams = [out(c_void_p, "cuGreenCtxStreamCreate", green, NON_BLOCKING, 0) for green in greens]
    assert code_of("cuGreenCtxStreamCreate", byref(c_void_p()), greens[0], 0, 0) == INVALID_VALUE
    for green, stream, most in zip(greens, streams, (groups[0].count, whole.count)):
        ran_on = multiprocessors_of_a_grid(function, words, stream)
        assert 1 <= ran_on <= most, f"a grid ran on {ran_on} multiprocessors of {most}"
        found = c_void_p()
        call("cuStreamGetGreenCtx", stream, byref(found))
        equal(found.value, green.value)
        # The documentation says that this has no answer, and NVIDIA's driver has one.
        assert code_of("cuStreamGetCtx", stream, byref(c_void_p())) in (0, NOT_SUPPORTED)
        context = c_void_p()
        call("cuStreamGetCtx_v2", stream, byref(context), byref(found))
        equal((context.value, found.value), (primary.value, green.value))

    if find("cuStreamGetDevResource", 13010):
        equal(resource_of("cuStreamGetDevResource", streams[0]).count, groups[0].count)
        equal(resource_of("cuStreamGetDevResource", None).count, whole.count)
        equal(code_of("cuStreamGetDevResource", streams[0], byref(Resource()), 7), INVALID_RESOURCE_TYPE)

    # Events order green contexts as they do others.
    event = out(c_void_p, "cuEventCreate", 2)
    call("cuGreenCtxRecordEvent", greens[0], event)
    call("cuGreenCtxWaitEvent", greens[1], event)
    multiprocessors_of_a_grid(function, words, streams[1])
    call("cuEventQuery", event)

    # A green context is not one until it has been converted; then it is current like any other.
    equal(code_of("cuCtxSetCurrent", greens[0]), INVALID_CONTEXT)
    context = out(c_void_p, "cuCtxFromGreenCtx", greens[0])
    assert context.value not in (primary.value, greens[0].value)
    call("cuCtxPushCurrent_v2", context)
    equal(out(c_void_p, "cuCtxGetCurrent").value, context.value)
    equal(resource_of("cuCtxGetDevResource", None).count, groups[0].count)
    for stream in (None, c_void_p(2)):
        ran_on = multiprocessors_of_a_grid(function, words, stream)
        assert 1 <= ran_on <= groups[0].count, f"a default stream used {ran_on} multiprocessors"
    blocking = out(c_void_p, "cuStreamCreate", 0)
    assert multiprocessors_of_a_grid(function, words, blocking) <= groups[0].count
    call("cuMemsetD32_v2", words, 5, c_size_t(BLOCKS))
    call("cuCtxSynchronize")
    mine, own_event = allocate(4096), out(c_void_p, "cuEventCreate", 0)
    call("cuEventRecord", own_event, None)
    call("cuCtxSynchronize_v2", context)
    call("cuCtxPopCurrent_v2", byref(c_void_p()))

    # In the whole device's context again; what was made in the green one is there still.
    assert multiprocessors_of_a_grid(function, c_uint64(mine), None) <= whole.count
    call("cuEventSynchronize", own_event)
    equal(resource_of("cuCtxGetDevResource", None).count, whole.count)

    call("cuCtxSynchronize")
    call("cuGreenCtxDestroy", greens[0])
    for stream in (streams[0], blocking):
        equal(code_of("cuStreamSynchronize", stream), STREAM_DETACHED)
        call("cuStreamDestroy_v2", stream)
    equal(code_of("cuStreamSynchronize", streams[0]), INVALID_HANDLE)
    assert code_of("cuGreenCtxDestroy", greens[0]) in (INVALID_CONTEXT, CONTEXT_IS_DESTROYED)
    assert code_of("cuCtxSetCurrent", context) in (INVALID_CONTEXT, CONTEXT_IS_DESTROYED)
    multiprocessors_of_a_grid(function, words, streams[1])
    call("cuEventElapsedTime", byref(c_float()), own_event, own_event)
    call("cuStreamDestroy_v2", streams[1])
    call("cuGreenCtxDestroy", greens[1])

    # Parts of different splits do not go together, and a group cannot be split again but in a context.
    other, _ = split(whole, 1, whole.least)
    pair = (Resource * 2)(groups[0], other[0])
    code = code_of("cuDevResourceGenerateDesc", byref(c_void_p()), pair, 2)
    # The documentation says so; driver 580 on an H100 takes them.
    assert code in (0, INVALID_RESOURCE_CONFIGURATION), code
    green = green_context(device, groups[0])
    owned, count = resource_of("cuGreenCtxGetDevResource", green), c_uint32()
    call("cuDevSmResourceSplitByCount", None, byref(count), byref(owned), None, 0, owned.least)
    assert count.value >= 1
    call("cuGreenCtxDestroy", green)

    # As many as one likes, one after the other.
    for _ in range(150):
        green = green_context(device, groups[0])
        stream = out(c_void_p, "cuGreenCtxStreamCreate", green, NON_BLOCKING, 0)
        call("cuMemsetD32Async", words, 1, c_size_t(BLOCKS), stream)
        call("cuStreamSynchronize", stream)
        call("cuStreamDestroy_v2", stream)
        call("cuGreenCtxDestroy", green)


def main():
    device = attach()
    primary = out(c_void_p, "cuCtxGetCurrent")
    module = out(c_void_p, "cuModuleLoadData", WHERE.encode())
    function = out(c_void_p, "cuModuleGetFunction", module, b"whereabouts")
    words = c_uint64(allocate(4 * BLOCKS))
    splits(device)
    contexts(device, primary, function, words)
    call("cuCtxSynchronize")
    print("PASS")


if __name__ == "__main__":
    sys.exit(main())

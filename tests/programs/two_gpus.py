"""Copies and fills of memory of two GPUs, of which neither can reach the other's: by every call, in any stream and context. And memory of
the host, which both reach.

With COMPUTES= the driver runs no kernels.
"""

import ctypes
import os
from ctypes import byref, c_int, c_size_t, c_ubyte, c_uint32, c_uint64, c_void_p

from driver import SPIN, call, code_of, launch, load, read_u32

NOT_SUPPORTED, PEER_ACCESS_UNSUPPORTED = 801, 217
BYTES = 1 << 18
address, size = c_uint64, c_size_t
WORDS = BYTES // 4
COMPUTES = bool(os.environ.get("COMPUTES", "1"))

call("cuInit", 0)


class Copy3D(ctypes.Structure):
    _fields_ = [(f"{side}{name}", kind) for side in ("src", "dst") for name, kind in [
        ("XInBytes", c_size_t), ("Y", c_size_t), ("Z", c_size_t), ("LOD", c_size_t), ("MemoryType", c_int),
        ("Host", c_void_p), ("Device", c_uint64), ("Array", c_void_p), ("reserved", c_void_p), ("Pitch", c_size_t),
        ("Height", c_size_t)]] + [("WidthInBytes", c_size_t), ("Height", c_size_t), ("Depth", c_size_t)]


class Fill(ctypes.Structure):
    _fields_ = [("dst", c_uint64), ("pitch", c_size_t), ("value", c_uint32), ("elementSize", c_uint32),
                ("width", c_size_t), ("height", c_size_t)]


class Location(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", c_int)]


class Properties(ctypes.Structure):
    _fields_ = [("type", c_int), ("handleTypes", c_int), ("location", Location), ("meta", c_void_p), ("flags", c_ubyte * 8)]


class Gpu:
    def __init__(self, ordinal):
        self.ordinal, self.context, self.stream = ordinal, c_void_p(), c_void_p()
        call("cuDevicePrimaryCtxRetain", byref(self.context), ordinal)
        self.enter()
        call("cuStreamCreate", byref(self.stream), 1)
        self.memory = c_uint64()
        call("cuMemAlloc_v2", byref(self.memory), size(BYTES))
        self.memory = self.memory.value

    def enter(self):
        call("cuCtxSetCurrent", self.context)


def host(first):
    return (c_uint32 * WORDS)(*range(first, first + WORDS))


def put(gpu, first):
    """Words that count from `first`."""
    gpu.enter()
    call("cuMemcpyHtoD_v2", address(gpu.memory), host(first), size(BYTES))


def expect(gpu, first, what):
    gpu.enter()
    back = (c_uint32 * WORDS)()
    call("cuMemcpyDtoH_v2", back, address(gpu.memory), size(BYTES))
    assert bytes(back) == bytes(host(first)), f"{what}: {list(back[:4])} is not from {first} on"


def one_after_the_other(*gpus):
    """What one has done in its stream and the next waits for there."""
    for gpu in gpus:
        gpu.enter()
        call("cuStreamSynchronize", gpu.stream)
        call("cuStreamSynchronize", None)


ZERO, ONE = Gpu(0), Gpu(1)
BOTH = [(ZERO, ONE), (ONE, ZERO)]


def lines():
    number = 0
    for source, target in BOTH:
        for current, of_stream in [(source, source), (target, target), (source, target), (target, source)]:
            there, here = address(target.memory), address(source.memory)
            calls = {
                "cuMemcpyDtoD_v2": (there, here, size(BYTES)),
                "cuMemcpyDtoDAsync_v2": (there, here, size(BYTES), of_stream.stream),
                "cuMemcpy": (there, here, size(BYTES)),
                "cuMemcpyAsync": (there, here, size(BYTES), of_stream.stream),
                "cuMemcpyPeer": (there, target.context, here, source.context, size(BYTES)),
                "cuMemcpyPeerAsync": (there, target.context, here, source.context, size(BYTES), of_stream.stream),
            }
            for name, arguments in calls.items():
                number += WORDS
                put(source, number)
                current.enter()
                call(name, *arguments)
                one_after_the_other(ZERO, ONE)
                expect(target, number, name)


def boxes():
    """Of four words from each of eight rows, to rows that are half as long."""
    for name, synchronous in [("cuMemcpy3D_v2", True), ("cuMemcpy3DAsync_v2", False), ("cuMemcpy3DPeerAsync", False)]:
        for source, target in BOTH:
            put(source, 1000)
            put(target, 0)
            source.enter()
            box = Copy3D(srcMemoryType=2, srcDevice=source.memory, srcPitch=64, srcHeight=8, dstMemoryType=2, dstDevice=target.memory,
                         dstPitch=32, dstHeight=8, WidthInBytes=16, Height=8, Depth=1)
            call(name, byref(box), *([] if synchronous else [source.stream]))
            one_after_the_other(ZERO, ONE)
            target.enter()
            for row in range(8):
                words = [read_u32(target.memory + 32 * row + 4 * column) for column in range(5)]
                assert words == [1000 + 16 * row + column for column in range(4)] + [8 * row + 4], (name, row, words)


def host_copies():
    """The memory is the other GPU's than the stream's, than the current one's, or than both. In few bytes, which the node stages, and in many."""
    for words in (16, WORDS):
        for current, of_stream, owner in [(a, b, c) for a in (ZERO, ONE) for b in (ZERO, ONE) for c in (ZERO, ONE)]:
            current.enter()
            first = 7 * words + owner.ordinal
            data, back = (c_uint32 * words)(*range(first, first + words)), (c_uint32 * words)()
            call("cuMemcpyHtoDAsync_v2", address(owner.memory), data, size(4 * words), of_stream.stream)
            call("cuMemcpyDtoHAsync_v2", back, address(owner.memory), size(4 * words), of_stream.stream)
            call("cuStreamSynchronize", of_stream.stream)
            assert bytes(back) == bytes(data), (words, list(back[:4]))
            back, pinned = (c_uint32 * words)(), c_void_p()
            call("cuMemcpyDtoH_v2", back, address(owner.memory), size(4 * words))
            assert bytes(back) == bytes(data), (words, list(back[:4]))
            call("cuMemHostAlloc", byref(pinned), size(4 * words), 1)
            call("cuMemcpyDtoHAsync_v2", pinned, address(owner.memory), size(4 * words), of_stream.stream)
            call("cuStreamSynchronize", of_stream.stream)
            assert ctypes.string_at(pinned.value, 4 * words) == bytes(data), words
            call("cuMemFreeHost", pinned)


def fills():
    for current, of_stream, owner in [(a, b, c) for a in (ZERO, ONE) for b in (ZERO, ONE) for c in (ZERO, ONE)]:
        put(owner, 0)
        current.enter()
        call("cuMemsetD32Async", address(owner.memory), c_uint32(5), size(4), of_stream.stream)
        call("cuMemsetD2D8Async", address(owner.memory + 16), size(8), c_ubyte(1), size(4), size(2), of_stream.stream)
        call("cuStreamSynchronize", of_stream.stream)
        owner.enter()
        assert [read_u32(owner.memory + 4 * word) for word in range(7)] == [5, 5, 5, 5, 0x01010101, 5, 0x01010101]


def order():
    """Behind what its stream has to do before, and before what comes after."""
    ZERO.enter()
    data = host(50)
    call("cuMemsetD8Async", address(ZERO.memory), c_ubyte(9), size(BYTES), ZERO.stream)
    for _ in range(8):
        call("cuMemcpyHtoDAsync_v2", address(ZERO.memory), data, size(BYTES), ZERO.stream)
        call("cuMemsetD8Async", address(ONE.memory), c_ubyte(0), size(BYTES), ZERO.stream)
        call("cuMemcpyDtoDAsync_v2", address(ONE.memory), address(ZERO.memory), size(BYTES), ZERO.stream)
        call("cuMemsetD8Async", address(ZERO.memory), c_ubyte(0), size(BYTES), ZERO.stream)
        call("cuMemcpyAsync", address(ZERO.memory), address(ONE.memory), size(BYTES), ZERO.stream)
    call("cuStreamSynchronize", ZERO.stream)
    expect(ONE, 50, "the order of a stream")
    expect(ZERO, 50, "the order of a stream")


def graphs():
    """A node works on one GPU's memory, whichever context is current; one that copies between two is refused, and nothing else is lost."""
    ZERO.enter()
    graph, executable, node = c_void_p(), c_void_p(), c_void_p()
    call("cuGraphCreate", byref(graph), 0)
    between = Copy3D(srcMemoryType=2, srcDevice=ZERO.memory, srcPitch=64, dstMemoryType=2, dstDevice=ONE.memory, dstPitch=64,
                     WidthInBytes=64, Height=1, Depth=1)
    code = code_of("cuGraphAddMemcpyNode", byref(node), graph, None, size(0), byref(between), ZERO.context)
    assert code == NOT_SUPPORTED, code
    fill = Fill(dst=ONE.memory, value=3, elementSize=4, width=16, height=1)
    call("cuGraphAddMemsetNode", byref(node), graph, None, size(0), byref(fill), ZERO.context)
    inside = Copy3D(srcMemoryType=2, srcDevice=ONE.memory, srcPitch=64, dstMemoryType=2, dstDevice=ONE.memory + 64, dstPitch=64,
                    WidthInBytes=64, Height=1, Depth=1)
    call("cuGraphAddMemcpyNode", byref(c_void_p()), graph, byref(node), size(1), byref(inside), ZERO.context)
    put(ONE, 0)
    ZERO.enter()
    call("cuGraphInstantiateWithFlags", byref(executable), graph, c_uint64(0))
    call("cuGraphLaunch", executable, ZERO.stream)
    call("cuStreamSynchronize", ZERO.stream)
    assert read_u32(ONE.memory + 64) == 3 and read_u32(ONE.memory + 128) == 32
    call("cuGraphExecDestroy", executable)
    call("cuGraphDestroy", graph)


def captures():
    put(ZERO, 70)
    put(ONE, 0)
    ZERO.enter()
    graph, executable = c_void_p(), c_void_p()
    call("cuStreamBeginCapture_v2", ZERO.stream, 0)
    call("cuMemcpyPeerAsync", address(ONE.memory), ONE.context, address(ZERO.memory), ZERO.context, size(BYTES), ZERO.stream)
    call("cuStreamEndCapture", ZERO.stream, byref(graph))
    call("cuGraphInstantiateWithFlags", byref(executable), graph, c_uint64(0))
    call("cuGraphLaunch", executable, ZERO.stream)
    call("cuStreamSynchronize", ZERO.stream)
    expect(ONE, 70, "a captured copy between two GPUs")


def access():
    """Memory of the program's own mapping is its own GPU's, too: no other can be given access."""
    ZERO.enter()
    chunk, start, handle = 2 << 20, c_uint64(), c_uint64()
    call("cuMemAddressReserve", byref(start), size(chunk), size(0), c_uint64(0), c_uint64(0))
    here, there = Location(1, ZERO.ordinal), Location(1, ONE.ordinal)
    call("cuMemCreate", byref(handle), size(chunk), byref(Properties(1, 0, there)), c_uint64(0))
    call("cuMemMap", start, size(chunk), size(0), handle, c_uint64(0))
    code = code_of("cuMemSetAccess", start, size(chunk), byref(Access(here, 3)), size(1))
    assert code == PEER_ACCESS_UNSUPPORTED, code
    call("cuMemSetAccess", start, size(chunk), byref(Access(there, 3)), size(1))
    for current in (ZERO, ONE):
        put(current, 300)
        call("cuMemcpyDtoD_v2", start, address(current.memory), size(BYTES))
        call("cuMemsetD32_v2", address(start.value + 4), c_uint32(4), size(1))
        call("cuCtxSynchronize")
        assert [read_u32(start.value + 4 * word) for word in range(3)] == [300, 4, 302]
    call("cuMemUnmap", start, size(chunk))
    call("cuMemRelease", handle)
    call("cuMemAddressFree", start, size(chunk))


def shared_memory():
    """Page-locked, mapped and managed memory is every GPU's, whichever took it first: for kernels, and for copies and fills in a graph."""
    ways = [lambda place, length: call("cuMemAllocHost_v2", place, length), lambda place, length: call("cuMemHostAlloc", place, length, 3),
            lambda place, length: call("cuMemAllocManaged", place, length, 1)]
    spin = {}
    for gpu in (ZERO, ONE):
        gpu.enter()
        spin[gpu] = load(SPIN, "spin")
    # More than 32 MiB are not kept equal while kernels run.
    for way, length, (first, second) in [(way, length, gpus) for way in range(len(ways)) for length in (4096, 40 << 20) for gpus in BOTH]:
        first.enter()
        place = c_void_p()
        ways[way](byref(place), size(length))
        word = c_uint32.from_address(place.value + length - 4)
        for gpu in (first, second, first, second):
            gpu.enter()
            before = word.value = word.value + 10
            launch(spin[gpu], 4, 32, address(place.value + length - 4), c_uint32(1))
            call("cuCtxSynchronize")
            assert word.value == before + 4 * COMPUTES, (way, length, gpu.ordinal, word.value)
        put(second, 500)
        graph, executable = c_void_p(), c_void_p()
        call("cuStreamBeginCapture_v2", second.stream, 0)
        call("cuMemsetD32Async", address(place.value), c_uint32(6), size(4), second.stream)
        call("cuMemcpyDtoDAsync_v2", address(second.memory), address(place.value), size(12), second.stream)
        call("cuMemcpyDtoDAsync_v2", address(place.value), address(second.memory + 8), size(12), second.stream)
        call("cuStreamEndCapture", second.stream, byref(graph))
        call("cuGraphInstantiateWithFlags", byref(executable), graph, c_uint64(0))
        call("cuGraphLaunch", executable, second.stream)
        call("cuStreamSynchronize", second.stream)
        assert list((c_uint32 * 4).from_address(place.value)) == [6, 503, 504, 6], (way, length)
        call("cuGraphExecDestroy", executable)
        call("cuGraphDestroy", graph)
        if ways[way] is ways[-1]:
            # Not while a kernel of the other one uses it.
            launch(spin[second], 4, 32, address(place.value), c_uint32(20_000_000))
            first.enter()
            call("cuMemFree_v2", address(place.value))
            second.enter()
            assert code_of("cuStreamQuery", None) == 0
        else:
            call("cuMemFreeHost", place)


for part in (lines, boxes, host_copies, fills, order, graphs, captures, access, shared_memory):
    part()
    print(part.__name__)
print("PASS")

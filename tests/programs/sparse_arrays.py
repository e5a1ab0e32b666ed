"""Arrays whose memory is mapped later, called as a C program would: sparse ones tile by tile, deferred ones whole; what has no
memory reads as zero, and memory whose handle was released stays charged while an array has it. Needs nothing but Python.
"""

import ctypes
import sys
from ctypes import byref, c_int, c_size_t, c_uint32, c_uint64, c_void_p

from arrays import Shape, array, box, destroy, numbers
from driver import attach, call, memory_info
from driver_functions import INVALID_HANDLE, INVALID_VALUE, equal, out, refused, run_sections, size

U8, U32 = 1, 3
LAYERED, SPARSE, DEFERRED = 1, 0x40, 0x80
SINGLE_TAIL, TILE_POOL, UNSUPPORTED_IN_CAPTURE = 1, 1, 900
TILE, POOL = 64 << 10, 4 << 20
MAP, UNMAP = 1, 2

SECTIONS = []


def section(run):
    SECTIONS.append(run)
    return run


class Location(ctypes.Structure):
    _fields_ = [("type", c_uint32), ("id", c_int)]


class Allocation(ctypes.Structure):
    _fields_ = [("type", c_uint32), ("handleTypes", c_uint32), ("location", Location), ("win32", c_void_p),
                ("compression", ctypes.c_uint8), ("rdma", ctypes.c_uint8), ("usage", ctypes.c_uint16),
                ("reserved", ctypes.c_uint8 * 4)]


class Properties(ctypes.Structure):
    _fields_ = [("tile", c_uint32 * 3), ("tail_level", c_uint32), ("tail_bytes", c_uint64), ("flags", c_uint32),
                ("reserved", c_uint32 * 4)]


class Requirements(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("alignment", c_size_t), ("reserved", c_uint32 * 4)]


class Level(ctypes.Structure):
    _fields_ = [("level", c_uint32), ("layer", c_uint32), ("offset", c_uint32 * 3), ("extent", c_uint32 * 3)]


class Tail(ctypes.Structure):
    _fields_ = [("layer", c_uint32), ("offset", c_uint64), ("size", c_uint64)]


class Part(ctypes.Union):
    _fields_ = [("level", Level), ("tail", Tail)]


class Entry(ctypes.Structure):
    _fields_ = [("resourceType", c_uint32), ("resource", c_void_p), ("partType", c_uint32), ("part", Part),
                ("operation", c_uint32), ("handleType", c_uint32), ("memory", c_uint64), ("offset", c_uint64),
                ("devices", c_uint32), ("flags", c_uint32), ("reserved", c_uint32 * 2)]


def memory(usage=TILE_POOL):
    properties = Allocation(type=1, location=Location(1, 0), usage=usage)
    handle = c_uint64()
    call("cuMemCreate", byref(handle), size(POOL), byref(properties), c_uint64(0))
    return handle


def entry(resource, part, memory=None, offset=0, is_mipmapped=False):
    """`part` is a level or a tail; without memory some is taken away."""
    is_tail = isinstance(part, Tail)
    return Entry(resourceType=int(is_mipmapped), resource=resource.value, partType=int(is_tail),
                 part=Part(tail=part) if is_tail else Part(level=part), operation=MAP if memory else UNMAP,
                 memory=memory.value if memory else 0, offset=offset, devices=1)


def tiles(x, y, width, height, level=0, layer=0):
    return Level(level, layer, (c_uint32 * 3)(x, y, 0), (c_uint32 * 3)(width, height, 1))


def change(*entries, stream=None):
    call("cuMemMapArrayAsync", (Entry * len(entries))(*entries), c_uint32(len(entries)), stream)


def write(plane, width, height, start=1, z=0):
    pitch = {"pitch": 4 * width, "height": height}
    call("cuMemcpy3D_v2", byref(box(plane, numbers(width * height, start), (4 * width, height, 1), {"z": z}, pitch)))


def read(plane, width, height, x=0, y=0, z=0):
    back = (c_uint32 * (width * height))(*[77] * (width * height))
    where = {"x": 4 * x, "y": y, "z": z}
    pitch = {"pitch": 4 * width, "height": height}
    call("cuMemcpy3D_v2", byref(box(back, plane, (4 * width, height, 1), pitch, where)))
    return list(back)


@section
def devices_say_so():
    for attribute in (112, 121):
        equal(out(c_int, "cuDeviceGetAttribute", attribute, 0), 1)


@section
def tiles_have_memory_once_it_is_mapped():
    plane, pool, properties = array(300, 200, flags=SPARSE), memory(), Properties()
    call("cuArrayGetSparseProperties", byref(properties), plane)
    equal((list(properties.tile), properties.tail_bytes, properties.flags), ([128, 128, 1], 0, 0))
    change(entry(plane, tiles(128, 0, 172, 128), pool, TILE), entry(plane, tiles(0, 128, 128, 72), pool))
    write(plane, 300, 200)
    expected = [1 + 300 * y + x if (x < 128) == (y >= 128) else 0 for y in range(200) for x in range(300)]
    equal(read(plane, 300, 200), expected)
    equal(read(plane, 4, 2, 126, 127), [0, 0, *[1 + 300 * 127 + x for x in (128, 129)],
                                        *[1 + 300 * 128 + x for x in (126, 127)], 0, 0])
    change(entry(plane, tiles(128, 0, 128, 128)))
    equal(read(plane, 2, 1, 255, 5), [0, 1 + 300 * 5 + 256])
    # The memory has kept what was in it, wherever it is mapped next, also in another array.
    change(entry(plane, tiles(0, 0, 128, 128), pool, TILE))
    equal(read(plane, 2, 1, 3, 5), [1 + 300 * 5 + x + 128 for x in (3, 4)])
    other = array(128, 128, flags=SPARSE)
    change(entry(other, tiles(0, 0, 128, 128), pool, TILE))
    equal(read(other, 2, 1, 3, 5), [1 + 300 * 5 + x + 128 for x in (3, 4)])
    destroy(plane, other)
    call("cuMemRelease", pool)


@section
def in_the_order_of_a_stream():
    plane, pool, stream = array(256, 256, flags=SPARSE), memory(), c_void_p(out(c_void_p, "cuStreamCreate", 1))
    there, back = numbers(128 * 128, 9), (c_uint32 * 4)()
    pitch = {"pitch": 512, "height": 128}
    for at in (0, 128):
        change(entry(plane, tiles(at, 0, 128, 128), pool), stream=stream)
        call("cuMemcpy3DAsync_v2", byref(box(plane, there, (512, 128, 1), {"x": 4 * at}, pitch)), stream)
        change(entry(plane, tiles(at, 0, 128, 128)), stream=stream)
    change(entry(plane, tiles(0, 128, 128, 128), pool), stream=stream)
    call("cuMemcpy3DAsync_v2", byref(box(back, plane, (16, 1, 1), {"pitch": 16, "height": 1}, {"y": 128})), stream)
    call("cuStreamSynchronize", stream)
    equal(list(back), [9, 10, 11, 12])
    call("cuStreamBeginCapture_v2", stream, 2)
    list_of_one = (Entry * 1)(entry(plane, tiles(0, 0, 128, 128)))
    refused(UNSUPPORTED_IN_CAPTURE, "cuMemMapArrayAsync", list_of_one, c_uint32(1), stream)
    ctypes.CDLL("libcuda.so.1").cuStreamEndCapture(stream, byref(c_void_p()))
    call("cuStreamDestroy_v2", stream)
    destroy(plane)
    call("cuMemRelease", pool)


@section
def levels_and_their_tail():
    pyramid, pool, properties = c_void_p(), memory(), Properties()
    call("cuMipmappedArrayCreate", byref(pyramid), byref(Shape(256, 256, 2, U32, 1, SPARSE | LAYERED)), 4)
    call("cuMipmappedArrayGetSparseProperties", byref(properties), pyramid)
    equal((list(properties.tile), properties.tail_level), ([128, 128, 1], 2))
    equal(properties.tail_bytes % TILE, 0)
    change(entry(pyramid, tiles(0, 0, 128, 128, level=1, layer=1), pool, is_mipmapped=True),
           entry(pyramid, Tail(1, 0, properties.tail_bytes), pool, TILE, is_mipmapped=True))
    for number, side in [(0, 256), (1, 128), (2, 64), (3, 32)]:
        level = c_void_p()
        call("cuMipmappedArrayGetLevel", byref(level), pyramid, number)
        for layer in (0, 1):
            write(level, side, side, 100 * number, layer)
        expected = [100 * number, 100 * number + 1] if number > 0 else [0, 0]
        equal((read(level, 2, 1), read(level, 2, 1, z=1)), ([0, 0], expected))
        refused(INVALID_VALUE, "cuArrayGetSparseProperties", byref(properties), level)
        refused(INVALID_VALUE, "cuMemMapArrayAsync", byref(entry(level, tiles(0, 0, 128, 128), pool)), c_uint32(1), None)
    call("cuMipmappedArrayDestroy", pyramid)

    small = array(100, 100, flags=SPARSE)
    call("cuArrayGetSparseProperties", byref(properties), small)
    equal((properties.tail_level, properties.flags), (0, SINGLE_TAIL))
    change(entry(small, Tail(0, 0, properties.tail_bytes), pool))
    write(small, 100, 100)
    equal(read(small, 2, 1, 98, 99), [9999, 10000])
    destroy(small)
    call("cuMemRelease", pool)


@section
def deferred_arrays():
    plane, pool, wanted, pyramid = array(300, 200, flags=DEFERRED), memory(), Requirements(), c_void_p()
    call("cuArrayGetMemoryRequirements", byref(wanted), plane, 0)
    equal(wanted.size >= 300 * 200 * 4 and wanted.alignment > 0 and TILE % wanted.alignment == 0, True)
    # What part is named does not matter.
    change(entry(plane, Tail(9, 9, 9), pool, TILE))
    write(plane, 300, 200)
    equal(read(plane, 300, 200), list(range(1, 60001)))
    change(entry(plane, Tail(9, 9, 9)))
    call("cuMipmappedArrayCreate", byref(pyramid), byref(Shape(64, 64, 0, U8, 4, DEFERRED)), 3)
    call("cuMipmappedArrayGetMemoryRequirements", byref(wanted), pyramid, 0)
    equal(wanted.size >= 4 * (64 * 64 + 32 * 32 + 16 * 16), True)
    change(entry(pyramid, tiles(0, 0, 0, 0), pool, is_mipmapped=True))
    level = c_void_p()
    call("cuMipmappedArrayGetLevel", byref(level), pyramid, 2)
    write(level, 16, 16)
    equal(read(level, 16, 16), list(range(1, 257)))
    refused(INVALID_VALUE, "cuMipmappedArrayGetSparseProperties", byref(Properties()), pyramid)
    refused(101, "cuArrayGetMemoryRequirements", byref(wanted), plane, 99)
    call("cuMipmappedArrayDestroy", pyramid)
    destroy(plane)
    call("cuMemRelease", pool)


@section
def memory_is_charged_while_an_array_has_it():
    before, _ = memory_info()
    plane = array(1 << 14, 1 << 14, flags=SPARSE)
    equal(memory_info()[0], before)
    pool = memory()
    change(entry(plane, tiles(0, 0, 128, 128), pool))
    call("cuMemRelease", pool)
    refused(INVALID_HANDLE, "cuMemMapArrayAsync", byref(entry(plane, tiles(0, 0, 128, 128), pool)), c_uint32(1), None)
    equal(before - memory_info()[0], POOL, "bytes charged")
    write(plane, 128, 1)
    equal(read(plane, 2, 1), [1, 2])
    # Something else takes its place, and it goes when the stream has come there and something is asked of the node.
    other = memory()
    change(entry(plane, tiles(0, 0, 128, 128), other))
    call("cuCtxSynchronize")
    call("cuMemRelease", other)
    equal(before - memory_info()[0], POOL, "the second one's bytes")
    change(entry(plane, tiles(0, 0, 1 << 14, 1 << 14)))
    call("cuCtxSynchronize")
    call("cuMemRelease", memory())
    equal(memory_info()[0], before)

    pool = memory()
    change(entry(plane, tiles(128, 0, 128, 128), pool))
    call("cuMemRelease", pool)
    equal(before - memory_info()[0], POOL, "bytes charged")
    destroy(plane)
    equal(memory_info()[0], before)


@section
def refusals():
    plane, plain, pool, other = array(300, 200, flags=SPARSE), array(300, 200), memory(), memory(usage=0)
    good = entry(plane, tiles(0, 0, 128, 128), pool)

    def bad(**fields):
        changed = Entry.from_buffer_copy(good)
        for name, value in fields.items():
            setattr(changed, name, value)
        return changed

    for wrong in [
        entry(plain, tiles(0, 0, 128, 128), pool), entry(plane, tiles(1, 0, 128, 128), pool),
        entry(plane, tiles(0, 0, 512, 128), pool), entry(plane, Tail(0, 0, TILE), pool),
        entry(plane, tiles(0, 0, 128, 128, level=1), pool), entry(plane, tiles(0, 0, 128, 128, layer=1), pool),
        entry(plane, tiles(0, 0, 128, 128), other), bad(offset=4096), bad(offset=POOL), bad(offset=(1 << 64) - TILE),
        bad(devices=0), bad(devices=2), bad(devices=3), bad(flags=1), bad(reserved=(0, 1)), bad(operation=3),
        bad(operation=UNMAP), bad(handleType=1), bad(partType=2), bad(resourceType=2),
    ]:
        refused(INVALID_VALUE, "cuMemMapArrayAsync", (Entry * 2)(good, wrong), c_uint32(2), None)
    refused(INVALID_HANDLE, "cuMemMapArrayAsync", byref(bad(resource=99)), c_uint32(1), None)
    refused(INVALID_HANDLE, "cuMemMapArrayAsync", byref(bad(memory=99)), c_uint32(1), None)
    refused(INVALID_VALUE, "cuMemMapArrayAsync", None, c_uint32(1), None)
    write(plane, 128, 1)
    equal(read(plane, 2, 1), [0, 0], "of a list with a bad entry nothing is done")
    refused(INVALID_VALUE, "cuArrayGetSparseProperties", byref(Properties()), plain)
    refused(INVALID_VALUE, "cuArrayGetMemoryRequirements", byref(Requirements()), plane, 0)
    handle = c_void_p()
    for shape in [Shape(300, 0, 0, U32, 1, SPARSE), Shape(256, 256, 6, U32, 1, SPARSE | 4),
                  Shape(300, 200, 0, U32, 1, SPARSE | DEFERRED)]:
        refused(INVALID_VALUE, "cuArray3DCreate_v2", byref(handle), byref(shape))
    destroy(plane, plain)
    call("cuMemRelease", pool)
    call("cuMemRelease", other)


if __name__ == "__main__":
    attach()
    sys.exit(run_sections(SECTIONS))

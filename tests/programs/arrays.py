"""Arrays, called as a C program would: of one to three dimensions, in layers and levels; copies between them, host and device
memory in every direction, boxes out of the middle, graphs; what is asked about them, and what is refused. Needs nothing but
Python.
"""

import ctypes
import sys
from ctypes import byref, c_int, c_size_t, c_uint32, c_uint64, c_void_p

from driver import allocate, attach, call, free, memory_info
from driver_functions import INVALID_HANDLE, INVALID_VALUE, address, equal, out, refused, run_sections, size, upload, words

HOST, DEVICE, ARRAY = 1, 2, 3
U8, U32, HALF, FLOAT = 1, 3, 16, 32
LAYERED, SURFACE, CUBEMAP = 1, 2, 4

SECTIONS = []


def section(run):
    SECTIONS.append(run)
    return run


class Flat(ctypes.Structure):
    _fields_ = [("Width", c_size_t), ("Height", c_size_t), ("Format", c_uint32), ("NumChannels", c_uint32)]


class Shape(ctypes.Structure):
    _fields_ = [("Width", c_size_t), ("Height", c_size_t), ("Depth", c_size_t), ("Format", c_uint32),
                ("NumChannels", c_uint32), ("Flags", c_uint32)]


class Copy2D(ctypes.Structure):
    _fields_ = [(side + name, kind) for side in ("src", "dst") for name, kind in [
        ("XInBytes", c_size_t), ("Y", c_size_t), ("MemoryType", c_uint32), ("Host", c_void_p), ("Device", c_uint64),
        ("Array", c_void_p), ("Pitch", c_size_t)]] + [("WidthInBytes", c_size_t), ("Height", c_size_t)]


class Copy3D(ctypes.Structure):
    _fields_ = [(side + name, kind) for side in ("src", "dst") for name, kind in [
        ("XInBytes", c_size_t), ("Y", c_size_t), ("Z", c_size_t), ("LOD", c_size_t), ("MemoryType", c_uint32),
        ("Host", c_void_p), ("Device", c_uint64), ("Array", c_void_p), ("reserved", c_void_p), ("Pitch", c_size_t),
        ("Height", c_size_t)]] + [("WidthInBytes", c_size_t), ("Height", c_size_t), ("Depth", c_size_t)]


def array(width, height=0, depth=0, kind=U32, channels=1, flags=0):
    handle = c_void_p()
    call("cuArray3DCreate_v2", byref(handle), byref(Shape(width, height, depth, kind, channels, flags)))
    return handle


def destroy(*arrays):
    for each in arrays:
        call("cuArrayDestroy", each)


def side(copy, name, place, x=0, y=0, z=0, pitch=0, height=0):
    """`place` is an array, an address on the device, or memory of this process."""
    setattr(copy, name + "XInBytes", x)
    setattr(copy, name + "Y", y)
    setattr(copy, name + "Pitch", pitch)
    if isinstance(copy, Copy3D):
        setattr(copy, name + "Z", z)
        setattr(copy, name + "Height", height)
    if isinstance(place, c_void_p):
        setattr(copy, name + "MemoryType", ARRAY)
        setattr(copy, name + "Array", place)
    elif isinstance(place, int):
        setattr(copy, name + "MemoryType", DEVICE)
        setattr(copy, name + "Device", place)
    else:
        setattr(copy, name + "MemoryType", HOST)
        setattr(copy, name + "Host", ctypes.addressof(place))
        # The structure alone does not keep it alive.
        setattr(copy, name + "Kept", place)


def box(to, source, extent, to_at={}, from_at={}):
    copy = Copy3D(WidthInBytes=extent[0], Height=extent[1], Depth=extent[2])
    side(copy, "dst", to, **to_at)
    side(copy, "src", source, **from_at)
    return copy


def numbers(count, start=0):
    return (c_uint32 * count)(*range(start, start + count))


@section
def bytes_of_lines():
    """The copies that know one dimension."""
    line, other, device = array(64), array(64), allocate(256)
    call("cuMemcpyHtoA_v2", line, size(0), numbers(64), size(256))
    call("cuMemcpyAtoA_v2", other, size(16), line, size(4), size(40))
    call("cuMemcpyAtoD_v2", address(device), other, size(16), size(40))
    equal(words(device, 10), list(range(1, 11)))
    upload(device, [7, 8, 9])
    call("cuMemcpyDtoA_v2", other, size(252 - 8), address(device), size(12))
    back = (c_uint32 * 3)()
    call("cuMemcpyAtoH_v2", back, other, size(244), size(12))
    equal(list(back), [7, 8, 9])
    stream = c_void_p(out(c_void_p, "cuStreamCreate", 1))
    call("cuMemcpyHtoAAsync_v2", line, size(128), numbers(8, 100), size(32), stream)
    call("cuMemcpyAtoHAsync_v2", back, line, size(132), size(12), stream)
    call("cuStreamSynchronize", stream)
    equal(list(back), [101, 102, 103])
    refused(INVALID_VALUE, "cuMemcpyAtoH_v2", back, other, size(248), size(12))
    refused(INVALID_HANDLE, "cuMemcpyAtoH_v2", back, c_void_p(99), size(0), size(12))
    call("cuStreamDestroy_v2", stream)
    destroy(line, other)
    free(device)


@section
def planes():
    """Two dimensions, with a pitch on the host side and a corner in the array."""
    plane = c_void_p()
    call("cuArrayCreate_v2", byref(plane), byref(Flat(20, 10, U32, 1)))
    flat, shape = Flat(), Shape()
    call("cuArrayGetDescriptor_v2", byref(flat), plane)
    call("cuArray3DGetDescriptor_v2", byref(shape), plane)
    equal((flat.Width, flat.Height, flat.Format, flat.NumChannels), (20, 10, U32, 1))
    equal((shape.Width, shape.Height, shape.Depth, shape.Flags), (20, 10, 0, 0))
    whole = numbers(200)
    copy = Copy2D(WidthInBytes=80, Height=10)
    side(copy, "dst", plane)
    side(copy, "src", whole, pitch=80)
    call("cuMemcpy2D_v2", byref(copy))
    # Three rows of five from the middle, into rows of eight here.
    part = (c_uint32 * 24)()
    copy = Copy2D(WidthInBytes=20, Height=3)
    side(copy, "dst", part, pitch=32)
    side(copy, "src", plane, x=12, y=4)
    call("cuMemcpy2DUnaligned_v2", byref(copy))
    equal(list(part), sum(([*range(20 * y + 3, 20 * y + 8), 0, 0, 0] for y in (4, 5, 6)), []))
    # The same on the device.
    device = allocate(96)
    side(copy, "dst", device, pitch=32)
    call("cuMemcpy2DAsync_v2", byref(copy), None)
    equal(words(device, 5) + words(device + 32, 5), [*range(83, 88), *range(103, 108)])
    side(copy, "src", plane, x=64, y=4)
    refused(INVALID_VALUE, "cuMemcpy2D_v2", byref(copy))
    side(copy, "src", plane, y=8)
    refused(INVALID_VALUE, "cuMemcpy2D_v2", byref(copy))
    destroy(plane)
    refused(INVALID_HANDLE, "cuArrayGetDescriptor_v2", byref(flat), plane)
    refused(INVALID_HANDLE, "cuArrayDestroy", plane)
    free(device)


@section
def boxes_of_arrays():
    solid, other = array(8, 6, 5), array(8, 6, 5)
    call("cuMemcpy3D_v2", byref(box(solid, numbers(240), (32, 6, 5), {}, {"pitch": 32, "height": 6})))
    call("cuMemcpy3D_v2", byref(box(other, solid, (16, 2, 3), {"x": 4, "y": 1, "z": 1}, {"x": 8, "y": 3, "z": 2})))
    back = (c_uint32 * 24)()
    call("cuMemcpy3D_v2", byref(box(back, other, (16, 2, 3), {"pitch": 16, "height": 2}, {"x": 4, "y": 1, "z": 1})))
    expected = [z * 48 + y * 8 + x for z in (2, 3, 4) for y in (3, 4) for x in (2, 3, 4, 5)]
    equal(list(back), expected)
    refused(INVALID_VALUE, "cuMemcpy3D_v2", byref(box(back, other, (16, 2, 3), {}, {"z": 3})))
    destroy(solid, other)


@section
def large_planes():
    """More than one message holds, with rows that touch and with rows that do not."""
    width, height = 3000, 700
    plane, there = array(width, height), numbers(width * height)
    copy = Copy2D(WidthInBytes=4 * width, Height=height)
    side(copy, "dst", plane)
    side(copy, "src", there, pitch=4 * width)
    call("cuMemcpy2D_v2", byref(copy))
    for pitch in (width, width + 8):
        back = (c_uint32 * (pitch * height))()
        copy = Copy2D(WidthInBytes=4 * width, Height=height)
        side(copy, "dst", back, pitch=4 * pitch)
        side(copy, "src", plane)
        call("cuMemcpy2D_v2", byref(copy))
        for y in (0, 1, 349, 699):
            equal(back[y * pitch:y * pitch + width], there[y * width:(y + 1) * width])
            equal(list(back[y * pitch + width:(y + 1) * pitch]), [0] * (pitch - width))
    destroy(plane)


@section
def layers_and_levels():
    layers = array(4, 4, 6, FLOAT, 4, LAYERED | CUBEMAP)
    shape = Shape()
    call("cuArray3DGetDescriptor_v2", byref(shape), layers)
    equal((shape.Depth, shape.NumChannels, shape.Flags), (6, 4, LAYERED | CUBEMAP))
    call("cuMemcpy3D_v2", byref(box(layers, numbers(64), (64, 4, 1), {"z": 5}, {"pitch": 64, "height": 4})))
    back = (c_uint32 * 16)()
    call("cuMemcpy3D_v2", byref(box(back, layers, (64, 1, 1), {"pitch": 64, "height": 1}, {"z": 5, "y": 3})))
    equal(list(back), list(range(48, 64)))
    destroy(layers)

    pyramid, level, again = c_void_p(), c_void_p(), c_void_p()
    call("cuMipmappedArrayCreate", byref(pyramid), byref(Shape(16, 8, 0, U32, 1, 0)), 4)
    call("cuMipmappedArrayGetLevel", byref(level), pyramid, 2)
    call("cuMipmappedArrayGetLevel", byref(again), pyramid, 2)
    equal(level.value, again.value)
    call("cuArray3DGetDescriptor_v2", byref(shape), level)
    equal((shape.Width, shape.Height, shape.Depth), (4, 2, 0))
    call("cuMemcpy3D_v2", byref(box(level, numbers(8, 50), (16, 2, 1), {}, {"pitch": 16, "height": 2})))
    back = (c_uint32 * 8)()
    call("cuMemcpy3D_v2", byref(box(back, level, (16, 2, 1), {"pitch": 16, "height": 2})))
    equal(list(back), list(range(50, 58)))
    refused(INVALID_VALUE, "cuMipmappedArrayGetLevel", byref(again), pyramid, 4)
    refused(INVALID_HANDLE, "cuArrayDestroy", level)
    call("cuMipmappedArrayDestroy", pyramid)
    refused(INVALID_HANDLE, "cuArray3DGetDescriptor_v2", byref(shape), level)
    refused(INVALID_HANDLE, "cuMipmappedArrayDestroy", pyramid)


@section
def copies_of_graphs():
    graph, node, executable = c_void_p(out(c_void_p, "cuGraphCreate", 0)), c_void_p(), c_void_p()
    plane, device, context = array(4, 4), allocate(64), c_void_p(out(c_void_p, "cuCtxGetCurrent"))
    upload(device, range(16))
    copy = box(plane, device, (8, 2, 1), {"x": 4, "y": 1}, {"pitch": 16, "height": 2})
    call("cuGraphAddMemcpyNode", byref(node), graph, None, size(0), byref(copy), context)
    read = Copy3D()
    call("cuGraphMemcpyNodeGetParams", node, byref(read))
    equal((read.dstMemoryType, read.dstArray, read.dstXInBytes, read.dstY), (ARRAY, plane.value, 4, 1))
    call("cuGraphInstantiateWithFlags", byref(executable), graph, c_uint64(0))
    call("cuGraphLaunch", executable, None)
    back = (c_uint32 * 4)()
    call("cuMemcpy3D_v2", byref(box(back, plane, (8, 2, 1), {"pitch": 8, "height": 2}, {"x": 4, "y": 1})))
    equal(list(back), [0, 1, 4, 5])
    call("cuGraphExecDestroy", executable)
    call("cuGraphDestroy", graph)
    destroy(plane)
    free(device)


class Operand(ctypes.Structure):
    _fields_ = [("kind", c_uint32), ("words", c_uint64 * 4)]


class Operation(ctypes.Structure):
    _fields_ = [("src", Operand), ("dst", Operand), ("extent", c_size_t * 3), ("order", c_uint32), ("flags", c_uint32)]


@section
def batches_of_boxes():
    """Sizes are elements of the array, or bytes where there is none."""
    plane, there, back, device = array(8, 8), numbers(16, 300), (c_uint32 * 16)(), allocate(64)
    stream = c_void_p(out(c_void_p, "cuStreamCreate", 1))

    def pointer(to):
        return Operand(1, (c_uint64 * 4)(to if isinstance(to, int) else ctypes.addressof(to), 0, 0, 0))

    place, extent, failed = Operand(2, (c_uint64 * 4)(plane.value, 2, 3, 0)), (c_size_t * 3)(4, 4, 1), c_size_t(7)
    both = (Operation * 2)(Operation(pointer(there), place, extent, 1, 0), Operation(place, pointer(device), extent, 1, 0))
    call("cuMemcpy3DBatchAsync", size(2), both, byref(failed), c_uint64(0), stream)
    call("cuMemcpy3DBatchAsync_v2", size(1), byref(Operation(place, pointer(back), extent, 1, 0)), c_uint64(0), stream)
    call("cuStreamSynchronize", stream)
    equal((list(back), words(device, 16)), (list(range(300, 316)), list(range(300, 316))))
    flat = (c_size_t * 3)(32, 1, 1)
    call("cuMemcpy3DWithAttributesAsync", byref(Operation(pointer(device + 32), pointer(device), flat, 1, 0)), c_uint64(0), stream)
    call("cuStreamSynchronize", stream)
    equal(words(device, 8), list(range(308, 316)))
    both[1].extent[0] = 7
    refused(INVALID_VALUE, "cuMemcpy3DBatchAsync", size(2), both, byref(failed), c_uint64(0), stream)
    equal(failed.value, 1)
    call("cuStreamDestroy_v2", stream)
    destroy(plane)
    free(device)


@section
def limits():
    before, _ = memory_info()
    large = array(4096, 4096)
    during, _ = memory_info()
    equal(before - during >= 64 << 20, True, "bytes charged")
    destroy(large)
    equal(memory_info()[0], before)
    handle = c_void_p()
    if memory_info()[1] < 64 << 30:
        refused(2, "cuArray3DCreate_v2", byref(handle), byref(Shape(1 << 16, 1 << 16, 0, FLOAT, 4, 0)))
    for shape in [Shape(0, 0, 0, U8, 1, 0), Shape(4, 4, 0, U8, 3, 0), Shape(4, 4, 0, 77, 1, 0), Shape(4, 5, 6, U8, 1, CUBEMAP)]:
        assert getattr(ctypes.CDLL("libcuda.so.1"), "cuArray3DCreate_v2")(byref(handle), byref(shape)) != 0
    equal(memory_info()[0], before)
    assert out(c_size_t, "cuDeviceGetTexture1DLinearMaxWidth", FLOAT, 4, out(c_int, "cuCtxGetDevice")) >= 1 << 27


if __name__ == "__main__":
    attach()
    sys.exit(run_sections(SECTIONS))

"""A program's calls on the recording driver: everything answers as on the card that it models, and no kernel runs.

Takes the model's name, its compute capability and the number of its devices. Needs nothing but Python.
"""

import ctypes
import sys

from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint32, c_uint64, c_void_p

from driver import HEADER, allocate, attach, call, code_of

INVALID_VALUE, INVALID_IMAGE, NOT_FOUND = 1, 200, 500

KERNEL = HEADER + """
.visible .global .align 4 .u32 table[4] = {1, 2, 3, 4};
.visible .entry add(.param .u64 words, .param .u32 count, .param .align 8 .b8 rest[24]) .maxntid 256, 1, 1
{
    .shared .align 4 .b8 buffer[4096];
    ret;
}
"""


def attribute(number, device=0):
    value = c_int()
    call("cuDeviceGetAttribute", byref(value), number, device)
    return value.value


def main():
    model, capability, count = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    attach()
    devices = c_int()
    call("cuDeviceGetCount", byref(devices))
    assert devices.value == count, devices.value
    name = ctypes.create_string_buffer(100)
    call("cuDeviceGetName", name, 100, 0)
    assert model.lower() in name.value.decode().lower().replace(" ", ""), name.value
    assert attribute(75) + attribute(76) / 10 == capability
    assert attribute(16) > 100 and attribute(97) > 48 << 10, "as large as the card"

    # Memory is real.
    data = bytes(range(256)) * 16
    words = allocate(len(data))
    call("cuMemcpyHtoD_v2", c_uint64(words), data, c_size_t(len(data)))
    back = ctypes.create_string_buffer(len(data))
    call("cuMemsetD8_v2", c_uint64(words + 16), 7, c_size_t(16))
    call("cuMemcpyDtoH_v2", back, c_uint64(words), c_size_t(len(data)))
    assert back.raw == data[:16] + b"\7" * 16 + data[32:]

    # Code is known by its layout.
    module, function = c_void_p(), c_void_p()
    call("cuModuleLoadData", byref(module), c_char_p(KERNEL.encode()))
    assert code_of("cuModuleGetFunction", byref(function), module, b"none") == NOT_FOUND
    call("cuModuleGetFunction", byref(function), module, b"add")
    value = c_int()
    for number, expected in ((0, 256), (1, 4096)):
        call("cuFuncGetAttribute", byref(value), number, function)
        assert value.value == expected, (number, value.value)
    offset, size = c_size_t(), c_size_t()
    call("cuFuncGetParamInfo", function, c_size_t(2), byref(offset), byref(size))
    assert (offset.value, size.value) == (16, 24)
    table, bytes_of = c_uint64(), c_size_t()
    call("cuModuleGetGlobal_v2", byref(table), byref(bytes_of), module, b"table")
    first = (c_uint32 * 4)()
    call("cuMemcpyDtoH_v2", first, table, bytes_of)
    assert list(first) == [1, 2, 3, 4]
    blocks = c_int()
    call("cuOccupancyMaxActiveBlocksPerMultiprocessor", byref(blocks), function, 256, c_size_t(0))
    assert 4 <= blocks.value <= 8, blocks.value
    assert code_of("cuModuleLoadData", byref(module), c_char_p(b"neither")) == INVALID_IMAGE

    # Launches are checked, and in order with events.
    start, end = c_void_p(), c_void_p()
    call("cuEventCreate", byref(start), 0)
    call("cuEventCreate", byref(end), 0)
    arguments = (c_uint64(words), c_uint32(4), (ctypes.c_ubyte * 24)(*range(24)))
    pointers = (c_void_p * 3)(*(ctypes.addressof(argument) for argument in arguments))
    launch = lambda threads, shared=0: code_of(
        "cuLaunchKernel", function, 2, 3, 1, threads, 1, 1, shared, None, pointers, None
    )
    call("cuEventRecord", start, None)
    assert launch(256) == 0
    call("cuEventRecord", end, None)
    assert launch(512) == INVALID_VALUE and launch(256, 64 << 10) == INVALID_VALUE
    call("cuCtxSynchronize")
    elapsed = c_float(-1)
    call("cuEventElapsedTime", byref(elapsed), start, end)
    assert elapsed.value >= 0
    call("cuMemcpyDtoH_v2", back, c_uint64(words), c_size_t(len(data)))
    assert back.raw == data[:16] + b"\7" * 16 + data[32:], "nothing was computed"

    # The device has what a kernel takes of pinned memory, in a structure of its parameters, too.
    pinned, free, total = c_void_p(), (c_size_t * 3)(), c_size_t()
    call("cuMemAllocHost_v2", byref(pinned), c_size_t(4096))
    ctypes.memmove(pinned, data, 4096)
    for turn, place in enumerate((words, pinned.value)):
        arguments[2][8:16] = c_uint64(place).value.to_bytes(8, "little")
        assert launch(256) == 0
        call("cuCtxSynchronize")
        call("cuMemGetInfo_v2", byref(free, turn * 8), byref(total))
    assert free[1] < free[0], "only what it takes"
    call("cuMemcpyDtoH_v2", back, pinned, c_size_t(4096))
    assert back.raw == data
    call("cuMemFreeHost", pinned)
    call("cuMemGetInfo_v2", byref(free, 16), byref(total))
    assert free[2] == free[0]
    print("PASS")


main()

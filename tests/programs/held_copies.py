"""What is in a stream that waits for something which comes after it holds nobody up, and comes after that."""

import ctypes
import threading
from ctypes import byref, c_size_t, c_uint32, c_uint64, c_void_p

from driver import allocate, attach, call, code_of, free
from driver_functions import out

BYTES = 3 << 20
GEQ = 0

attach()
size, address = c_size_t, c_uint64
held, other = c_void_p(), c_void_p()
call("cuStreamCreate", byref(held), 1)
call("cuStreamCreate", byref(other), 1)
flag = allocate(64)
places = [allocate(BYTES) for _ in range(8)]
call("cuMemsetD32_v2", address(flag), c_uint32(0), size(16))
call("cuCtxSynchronize")


def data(number):
    return bytes([number]) * BYTES


def held_until(value):
    call("cuStreamWaitValue32_v2", held, address(flag), c_uint32(value), GEQ)


def free_with(value):
    call("cuStreamWriteValue32_v2", other, address(flag), c_uint32(value), 0)


def expect(place, number):
    back = ctypes.create_string_buffer(BYTES)
    call("cuMemcpyDtoH_v2", back, address(place), size(BYTES))
    assert back.raw == data(number), (number, back.raw[:8], back.raw[-8:])


# As many as a few steps of a program load, before the one that frees them is sent.
held_until(1)
for number, place in enumerate(places):
    call("cuMemcpyHtoDAsync_v2", address(place), data(number), size(BYTES), held)
free_with(1)
call("cuStreamSynchronize", held)
for number, place in enumerate(places):
    expect(place, number)

# A stream that goes on is not kept waiting by one that does not, however much it copies.
held_until(2)
call("cuMemcpyHtoDAsync_v2", address(places[0]), data(100), size(BYTES), held)
for number in range(40):
    call("cuMemcpyHtoDAsync_v2", address(places[1 + number % 7]), data(number), size(BYTES), other)
free_with(2)
call("cuStreamSynchronize", other)
call("cuStreamSynchronize", held)
expect(places[0], 100)
for number in range(33, 40):
    expect(places[1 + number % 7], number)

# In the default stream as well.
for number in range(40):
    call("cuMemsetD8Async", address(places[0]), 0, size(BYTES), None)
    call("cuMemcpyHtoDAsync_v2", address(places[0]), data(number), size(BYTES), None)
expect(places[0], 39)

# A function that has not returned keeps its stream from being done, though all other work is; and whoever waits for the stream does not keep
# the function from returning, which here it does only after another answer of the driver's.
for turn in range(20):
    gate = threading.Event()
    function = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: gate.wait() and None)
    call("cuMemsetD8_v2", address(places[0]), 0, size(BYTES))
    call("cuLaunchHostFunc", held, function, None)
    for _ in range(20):
        call("cuMemsetD8Async", address(places[1]), 1, size(4096), other)
        call("cuStreamSynchronize", other)
    call("cuMemcpyHtoDAsync_v2", address(places[0]), data(turn + 1), size(BYTES), held)
    first = ctypes.create_string_buffer(1)
    call("cuMemcpyDtoHAsync_v2", first, address(places[0]), size(1), other)
    call("cuStreamSynchronize", other)
    assert first.raw == b"\0", "the copy did not wait for the function"

    def release():
        call("cuCtxSetCurrent", here)
        code_of("cuStreamQuery", held)
        gate.set()

    here = c_void_p(out(c_void_p, "cuCtxGetCurrent"))
    thread = threading.Thread(target=release)
    thread.start()
    call("cuStreamSynchronize", held)
    thread.join()
    expect(places[0], turn + 1)
for place in [flag, *places]:
    free(place)
print("PASS")

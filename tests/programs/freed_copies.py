"""Memory that one thread frees while another copies from it: the free waits for the copy, as every `cuMemFree` waits for the work before it.
Of a size that has pages of its own, and one that shares them with other allocations."""

import ctypes
import mmap
import threading
from ctypes import c_size_t, c_ubyte, c_uint64, c_void_p

from driver import allocate, attach, call, clear, free

LARGE, SMALL = 64 << 20, 512 << 10

attach()
context = c_void_p()
call("cuCtxGetCurrent", ctypes.byref(context))
host = mmap.mmap(-1, LARGE)
start = ctypes.addressof(c_ubyte.from_buffer(host))
first = c_ubyte.from_address(start)


def copy(device, size, failures):
    try:
        call("cuCtxSetCurrent", context)
        call("cuMemcpyDtoH_v2", c_void_p(start), c_uint64(device), c_size_t(size))
    except Exception as failure:  # It is the main thread's to tell.
        failures.append(failure)


def free_while_copying(size, value):
    """Whether the copy was still under way."""
    device, failures = allocate(size), []
    call("cuMemsetD8_v2", c_uint64(device), c_ubyte(value), c_size_t(size))
    copying = threading.Thread(target=copy, args=(device, size, failures))
    copying.start()
    while first.value != value and copying.is_alive():
        pass
    was_copying = copying.is_alive()
    free(device)
    # What comes after has the place of what was freed.
    again = allocate(size)
    assert again == device, (again, device)
    clear(again, size)
    copying.join()
    assert not failures, failures
    assert host[:size].count(value) == size, (size, value, host[:size].count(value))
    free(again)
    return was_copying


for size, rounds in ((LARGE, 12), (SMALL, 200)):
    met = sum(free_while_copying(size, value) for value in range(1, rounds + 1))
    print(size, "bytes: copying still in", met, "of", rounds, "rounds")
print("PASS")

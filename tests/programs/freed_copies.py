"""Memory that one thread frees while another copies from it: the free waits for the copy, as every `cuMemFree` waits for the work before it."""

import ctypes
import mmap
import threading
from ctypes import c_size_t, c_ubyte, c_uint64, c_void_p

from driver import allocate, attach, call, clear, free

SIZE = 64 << 20

attach()
context = c_void_p()
call("cuCtxGetCurrent", ctypes.byref(context))
host = mmap.mmap(-1, SIZE)
start = ctypes.addressof(c_ubyte.from_buffer(host))
last = c_ubyte.from_address(start)


def copy(device, failures):
    try:
        call("cuCtxSetCurrent", context)
        call("cuMemcpyDtoH_v2", c_void_p(start), c_uint64(device), c_size_t(SIZE))
    except Exception as failure:  # It is the main thread's to tell.
        failures.append(failure)


for value in range(1, 13):
    device, failures = allocate(SIZE), []
    call("cuMemsetD8_v2", c_uint64(device), c_ubyte(value), c_size_t(SIZE))
    copying = threading.Thread(target=copy, args=(device, failures))
    copying.start()
    while last.value != value and copying.is_alive():
        pass
    free(device)
    # What comes after has the place of what was freed.
    device = allocate(SIZE)
    clear(device, SIZE)
    copying.join()
    assert not failures, failures
    assert host[:].count(value) == SIZE, (value, host[:].count(value))
    free(device)
print("PASS")

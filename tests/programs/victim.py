"""Connects, loads, copies and computes without end, to be killed anywhere in between."""

import ctypes
import sys

from driver import SPIN, allocate, attach, call, clear, free, launch, load, synchronize


def main():
    print("started", flush=True)
    attach()
    host = ctypes.create_string_buffer(4 << 20)
    while True:
        spin, memory = load(SPIN, "spin"), allocate(len(host))
        call("cuMemcpyHtoD_v2", ctypes.c_uint64(memory), host, ctypes.c_size_t(len(host)))
        clear(memory, 4)
        launch(spin, 64, 64, ctypes.c_uint64(memory), ctypes.c_uint32(100_000))
        call("cuMemcpyDtoH_v2", host, ctypes.c_uint64(memory), ctypes.c_size_t(len(host)))
        synchronize()
        free(memory)


if __name__ == "__main__":
    sys.exit(main())

"""Computes on a node whose driver never returns from one of the calls: an error comes instead, and stays. HANGS=1: it has to come.
STAYS=1: the program waits for its end then.
"""

import ctypes
import os
import signal
import sys

from driver import SPIN, CudaError, allocate, attach, clear, code_of, launch, load, read_u32, synchronize

DEVICE_UNAVAILABLE = 46


def compute():
    attach()
    counter = allocate(4)
    clear(counter, 4)
    launch(load(SPIN, "spin"), 2, 32, ctypes.c_uint64(counter), ctypes.c_uint32(1))
    synchronize()
    assert read_u32(counter) == 2


def main():
    try:
        compute()
    except CudaError as error:
        if not os.environ.get("HANGS"):
            raise
        print(error, flush=True)
        assert error.code == DEVICE_UNAVAILABLE, error
        # Without a session there is nothing that could fail again.
        if error.function != "cuInit":
            assert code_of("cuCtxSynchronize") == DEVICE_UNAVAILABLE, "the error does not stay"
        if os.environ.get("STAYS"):
            signal.pause()
    else:
        # One that stayed may run again.
        assert os.environ.get("STAYS") or not os.environ.get("HANGS"), "nothing hangs"
    print("PASS")


if __name__ == "__main__":
    sys.exit(main())

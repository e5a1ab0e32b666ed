"""Launches a kernel that never ends. EXPECT=timeout: the driver is to end it with CUDA_ERROR_LAUNCH_TIMEOUT."""

import ctypes
import os
import sys

from driver import ENDLESS, LAUNCH_TIMEOUT, allocate, attach, clear, code_of, launch, load


def main():
    attach()
    word = allocate(4)
    clear(word, 4)
    launch(load(ENDLESS, "endless"), 4, 64, ctypes.c_uint64(word))
    print("launched", flush=True)
    code = code_of("cuCtxSynchronize")
    if os.environ.get("EXPECT") == "timeout":
        assert code == LAUNCH_TIMEOUT, f"cuCtxSynchronize gave {code}"
        assert code_of("cuCtxSynchronize") == LAUNCH_TIMEOUT, "the error is not sticky"
        print("PASS")
    else:
        print(f"FAIL: an endless kernel ended with {code}")
        return 1


if __name__ == "__main__":
    sys.exit(main())

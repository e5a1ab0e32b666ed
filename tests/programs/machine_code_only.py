"""An image without PTX is refused by a software GPU with CUDA_ERROR_NO_BINARY_FOR_GPU."""

import ctypes
import struct
import sys

from driver import NO_BINARY_FOR_GPU, attach, code_of

EM_CUDA = 190


def empty_cubin():
    """The header of an ELF file for sm_90, with no sections."""
    ident = b"\x7fELF" + bytes([2, 1, 1, 51, 7]) + bytes(7)
    return ident + struct.pack("<HHIQQQIHHHHHH", 2, EM_CUDA, 1, 0, 0, 0, 90 << 16 | 90, 64, 56, 0, 64, 0, 0)


def main():
    attach()
    module = ctypes.c_void_p()
    code = code_of("cuModuleLoadData", ctypes.byref(module), empty_cubin())
    assert code == NO_BINARY_FOR_GPU, f"cuModuleLoadData gave {code}"
    assert code_of("cuCtxSynchronize") == 0, "a refused image must not harm the context"
    print("PASS")


if __name__ == "__main__":
    sys.exit(main())

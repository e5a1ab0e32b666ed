"""Copies data that can be packed to the device and back, and compares every byte."""

import ctypes
import sys

from driver import allocate, attach, call, synchronize

SIZE = 4 << 20
ROUNDS = 14


def main():
    attach()
    memory = allocate(SIZE)
    back = ctypes.create_string_buffer(SIZE)
    for round in range(ROUNDS):
        # As numbers of tokens are: small ones in much room.
        data = b"".join(((round * 7919 + place * place) % 50257).to_bytes(8, "little") for place in range(8192))
        data = data * (SIZE // len(data))
        call("cuMemcpyHtoD_v2", ctypes.c_uint64(memory), data, ctypes.c_size_t(SIZE))
        call("cuMemcpyDtoH_v2", back, ctypes.c_uint64(memory), ctypes.c_size_t(SIZE))
        if back.raw[:SIZE] != data:
            sys.exit(f"round {round}: other bytes came back")
    synchronize()
    print(f"PASS {ROUNDS} rounds")


if __name__ == "__main__":
    main()

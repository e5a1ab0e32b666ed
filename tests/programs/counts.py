"""Does ROUNDS rounds of work whose result is known exactly: kernels that count what they did, and copies there, on the
device and back. A command that was lost, or that ran twice, shows in the count; a byte in the wrong place in the copies.
"""

import ctypes
import os
import random
import sys

from driver import SPIN, allocate, attach, call, clear, launch, load, read_u32, synchronize

ROUNDS = int(os.environ.get("ROUNDS", "100"))
# More than what either side keeps for a cut.
SIZE = (9 << 20) + 1


def main():
    generator = random.Random(int(os.environ.get("SEED", "1")))
    attach()
    spin, counter, first, second = load(SPIN, "spin"), allocate(4), allocate(SIZE), allocate(SIZE)
    clear(counter, 4)
    print("ready", flush=True)
    back, blocks = ctypes.create_string_buffer(SIZE), 0
    for number in range(ROUNDS):
        for _ in range(generator.randrange(1, 200)):
            grid = generator.randrange(1, 4)
            launch(spin, grid, 32, ctypes.c_uint64(counter), ctypes.c_uint32(1))
            blocks += grid
        size = generator.choice([1, 1000, 70_000, 3 << 20, SIZE])
        data = generator.randbytes(size)
        call("cuMemcpyHtoD_v2", ctypes.c_uint64(first), data, ctypes.c_size_t(size))
        call("cuMemcpyDtoD_v2", ctypes.c_uint64(second), ctypes.c_uint64(first), ctypes.c_size_t(size))
        call("cuMemcpyDtoH_v2", back, ctypes.c_uint64(second), ctypes.c_size_t(size))
        if back.raw[:size] != data:
            sys.exit(f"round {number}: {size} bytes came back different")
        if generator.random() < 0.2:
            synchronize()
    if read_u32(counter) != blocks:
        sys.exit(f"{blocks} blocks were launched and {read_u32(counter)} have counted")
    print(f"PASS {blocks} blocks in {ROUNDS} rounds")


if __name__ == "__main__":
    main()

"""Computes without pause for SECONDS, from the moment START_AT (Unix time) on, and prints how much it finished.

One unit of work is one round of one block. KIND says how it is cut into launches: `even` in kernels of some
milliseconds, `tiny` in very many small ones, `long` in few long ones.
"""

import ctypes
import os
import sys
import time

from driver import SPIN, allocate, attach, clear, launch, load, read_u32, synchronize

KINDS = {"tiny": (4, 2_000), "even": (32, 20_000), "long": (64, 400_000)}


def main():
    blocks, rounds = KINDS[os.environ.get("KIND", "even")]
    seconds = float(os.environ.get("SECONDS", "2"))
    attach()
    spin, counter = load(SPIN, "spin"), allocate(4)
    clear(counter, 4)
    launch(spin, 1, 32, ctypes.c_uint64(counter), ctypes.c_uint32(1))  # compiled before the clock starts
    synchronize()
    clear(counter, 4)

    start = float(os.environ.get("START_AT", "0")) or time.time()
    print("ready", flush=True)
    while time.time() < start:
        time.sleep(0.001)
    end = start + seconds
    # A few launches stay queued, so that the GPU never waits for this program; work is counted when it is done.
    in_flight = 16 if blocks * rounds < 100_000 else 2
    launched = finished = 0
    while time.time() < end:
        for _ in range(in_flight):
            launch(spin, blocks, 64, ctypes.c_uint64(counter), ctypes.c_uint32(rounds))
        launched += in_flight
        if launched >= 2 * in_flight:
            synchronize()
        if time.time() < end:
            finished = launched
    synchronize()
    assert read_u32(counter) == launched, f"{read_u32(counter)} of {launched} kernels counted themselves"
    print(f"finished {finished * blocks * rounds} units in {seconds} s ({finished} launches)")
    print("PASS")


if __name__ == "__main__":
    sys.exit(main())

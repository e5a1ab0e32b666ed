"""Keeps numbers on the GPU, adds 7 to all of them again and again, and checks their sum at the end.

    counts.py MIB SECONDS
"""

import sys
import time

import cupy

mib, seconds = int(sys.argv[1]), float(sys.argv[2])
numbers = cupy.arange(mib << 18, dtype=cupy.uint32)  # four bytes each
print(f"{mib} MiB are ready", flush=True)
rounds, begin = 0, time.monotonic()
while time.monotonic() < begin + seconds:
    numbers += 7
    cupy.cuda.Device().synchronize()
    rounds += 1
total = int(numbers.sum(dtype=cupy.uint64))
expected = numbers.size * (numbers.size - 1) // 2 + 7 * rounds * numbers.size
print(f"{mib} MiB, {rounds} rounds:", "right" if total == expected else f"WRONG: {total}, not {expected}")
sys.exit(total != expected)

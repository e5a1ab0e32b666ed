"""One task of several: computes on its own GPU, says so, and goes on until it reads a line or its input ends.

With $SAY_RANK it says which it is as well.
"""

import ctypes
import os
import sys

from driver import SPIN, allocate, attach, clear, launch, load, read_u32, synchronize


def main():
    attach()
    counter = allocate(4)
    clear(counter, 4)
    launch(load(SPIN, "spin"), 2, 32, ctypes.c_uint64(counter), ctypes.c_uint32(1))
    synchronize()
    assert read_u32(counter) == 2
    rank, tasks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    assert 0 <= rank < tasks
    # One write for the whole line: tasks share a pipe, and an unbuffered print writes the line's end on its own.
    which = f" {rank} of {tasks}" if "SAY_RANK" in os.environ else ""
    sys.stdout.write(f"ready{which}\n")
    sys.stdout.flush()
    sys.stdin.readline()


if __name__ == "__main__":
    sys.exit(main())

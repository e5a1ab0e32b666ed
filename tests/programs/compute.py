"""Computes without pause and prints how much it finished in SECONDS. With START=input it reads the moment to begin at
(Unix time) from its input once it is ready.

One unit of work is one round of one block. KIND says how it is cut into launches: `even` in kernels of some
milliseconds, `tiny` in very many small ones, `long` in few long ones. The next batch is always queued before the one
before it is waited for, so the GPU never waits for this program. It goes on for TAIL seconds after the end, so that a
program beside it meets the same competition to its own end, and counts the batch that runs at the end in part.
"""

import ctypes
import os
import sys
import time

from driver import SPIN, allocate, attach, call, clear, launch, load, read_u32, synchronize

# Blocks of a kernel, rounds of a block, kernels of a batch.
KINDS = {"tiny": (4, 2_000, 300), "even": (32, 20_000, 2), "long": (64, 200_000, 1)}
BATCHES_QUEUED = 3


def new_event():
    event = ctypes.c_void_p()
    call("cuEventCreate", ctypes.byref(event), 2)  # without timing
    return event


def finished_at(moment, completions):
    """Kernels finished at a moment, from (time, kernels finished) in order; between two of them work went on evenly."""
    before = (completions[0][0], 0)
    for after in completions:
        if after[0] >= moment:
            part = (moment - before[0]) / max(after[0] - before[0], 1e-9)
            return before[1] + part * (after[1] - before[1])
        before = after
    raise RuntimeError(f"the last batch was done {moment - before[0]:.1f} s before the end: TAIL is too short")


def main():
    blocks, rounds, batch = KINDS[os.environ.get("KIND", "even")]
    seconds, tail = float(os.environ.get("SECONDS", "2")), float(os.environ.get("TAIL", "0"))
    attach()
    spin, counter = load(SPIN, "spin"), allocate(4)
    clear(counter, 4)
    launch(spin, 1, 32, ctypes.c_uint64(counter), ctypes.c_uint32(1))  # compiled before the clock starts
    synchronize()
    clear(counter, 4)

    print("ready", flush=True)
    start = float(sys.stdin.readline()) if os.environ.get("START") == "input" else 0
    start = start or time.time()
    while time.time() < start:
        time.sleep(0.001)
    end = start + seconds
    events = [new_event() for _ in range(BATCHES_QUEUED)]
    launched, completions = 0, [(start, 0)]
    while completions[-1][0] < end + tail:
        event = events[launched // batch % BATCHES_QUEUED]
        if launched >= BATCHES_QUEUED * batch:
            call("cuEventSynchronize", event)
            completions.append((time.time(), launched - (BATCHES_QUEUED - 1) * batch))
        for _ in range(batch):
            launch(spin, blocks, 64, ctypes.c_uint64(counter), ctypes.c_uint32(rounds))
        call("cuEventRecord", event, None)
        launched += batch
    synchronize()
    assert read_u32(counter) == launched * blocks, f"{read_u32(counter)} of {launched * blocks} blocks counted themselves"
    finished = finished_at(end, completions)
    print(f"finished {finished * blocks * rounds:.0f} units in {seconds} s ({launched} launches)")
    print("PASS")


if __name__ == "__main__":
    sys.exit(main())

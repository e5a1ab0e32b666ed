"""Computes without pause and prints how much it finished in SECONDS. With START=input it reads the moment to begin at
(Unix time) from its input once it is ready.

One unit of work is one round of one block. KIND says how it is cut into launches: `even` in kernels of some
milliseconds, `deep` likewise but with many more queued, `tiny` in very many small ones, `long` in few long ones. The
next batch is always queued before the one before it is waited for, so the GPU never waits for this program. It goes on
for TAIL seconds after the end, so that a program beside it meets the same competition to its own end, and counts the
batch that runs at the end in part.

With BATCHES it finishes so many batches instead, however long that takes.

With END=input it stays, idle, until its input ends.

With PAUSE it rests for so many seconds after each batch, and so leaves the machine to others for most of the time.

ROUNDS makes kernels longer or shorter than their kind; with KIND=measure it says how long a round takes here, and no more.
"""

import ctypes
import os
import sys
import time

from driver import SPIN, allocate, attach, call, clear, launch, load, read_u32, synchronize

# Blocks of a kernel, rounds of a block, kernels of a batch, batches that are queued.
KINDS = {"tiny": (4, 2_000, 300, 3), "even": (32, 20_000, 2, 3), "long": (64, 200_000, 1, 3), "deep": (32, 20_000, 6, 10)}


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


def measure(spin, counter):
    """Prints the time of one round of an `even` kernel, from kernels long enough for their launch not to count."""
    rounds, took = KINDS["even"][1], 0
    while took < 0.05 and rounds < 1 << 30:
        rounds *= 4
        begin = time.perf_counter()
        launch(spin, KINDS["even"][0], 64, ctypes.c_uint64(counter), ctypes.c_uint32(rounds))
        synchronize()
        took = time.perf_counter() - begin
    print(f"round_ns {took / rounds * 1e9:.4f}")


def main():
    kind = os.environ.get("KIND", "even")
    blocks, rounds, batch, queued = KINDS.get(kind, KINDS["even"])
    rounds = int(os.environ.get("ROUNDS", rounds))
    seconds, tail = float(os.environ.get("SECONDS", "2")), float(os.environ.get("TAIL", "0"))
    pause = float(os.environ.get("PAUSE", "0"))
    attach()
    spin, counter = load(SPIN, "spin"), allocate(4)
    clear(counter, 4)
    launch(spin, 1, 32, ctypes.c_uint64(counter), ctypes.c_uint32(1))  # compiled before the clock starts
    synchronize()
    clear(counter, 4)
    if kind == "measure":
        return measure(spin, counter)

    print("ready", flush=True)
    start = float(sys.stdin.readline()) if os.environ.get("START") == "input" else 0
    start = start or time.time()
    while time.time() < start:
        time.sleep(0.001)
    end = start + seconds
    if batches := int(os.environ.get("BATCHES", "0")):
        for _ in range(batches * batch):
            launch(spin, blocks, 64, ctypes.c_uint64(counter), ctypes.c_uint32(rounds))
        synchronize()
        assert read_u32(counter) == batches * batch * blocks
        print(f"took {time.time() - start:.2f} s", flush=True)
        return None
    events = [new_event() for _ in range(queued)]
    launched, completions = 0, [(start, 0)]
    while completions[-1][0] < end + tail:
        event = events[launched // batch % queued]
        if launched >= queued * batch:
            call("cuEventSynchronize", event)
            completions.append((time.time(), launched - (queued - 1) * batch))
        for _ in range(batch):
            launch(spin, blocks, 64, ctypes.c_uint64(counter), ctypes.c_uint32(rounds))
        call("cuEventRecord", event, None)
        launched += batch
        if pause:
            time.sleep(pause)
    synchronize()
    assert read_u32(counter) == launched * blocks, f"{read_u32(counter)} of {launched * blocks} blocks counted themselves"
    finished = finished_at(end, completions)
    until = [finished_at(start + second, completions) for second in range(int(seconds) + 1)]
    print("each second", *(f"{(after - before) * blocks * rounds:.0f}" for before, after in zip(until, until[1:])))
    print(f"finished {finished * blocks * rounds:.0f} units in {seconds} s ({launched} launches)")
    print("PASS", flush=True)
    if os.environ.get("END") == "input":
        sys.stdin.read()


if __name__ == "__main__":
    sys.exit(main())

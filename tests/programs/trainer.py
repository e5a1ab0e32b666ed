"""Computes without pause whenever it is told to, so that one program can be measured many times, alone and beside others.

Says `ready` once it is warm. A line of its input is one of

    run KIND START SECONDS TAIL     computes from START (Unix time) for SECONDS, and goes on for TAIL seconds, so that a program
                                    beside it meets the same competition to its own end; prints `seconds` and the units of work
                                    that it finished in each of them
    job KIND UNITS                  does so many units, rounded up to whole batches; prints `done`, the units and the time
    time                            prints `round_ns`, how long a round of a kernel takes here

A unit of work is one round of one block. KIND says how it is cut into launches: `even` in kernels of 3 ms, `tiny` in very many of
20 us, `long` in kernels of 50 ms, `graph` in graphs of ten kernels of 0.3 ms. `greedy` wants more than its part: it keeps four
kernels of 10 ms queued on each of four streams. The next batches are always queued before the one before them is waited for, so
the GPU never waits for this program. ROUND_NS is the length of a round, as `time` said it.
"""

import collections
import ctypes
import os
import sys
import time

from driver import SPIN, allocate, attach, call, clear, launch, load, read_u32, synchronize

THREADS = 64
# Blocks of a kernel, its milliseconds, kernels of a batch, batches that are queued, streams.
KINDS = {"even": (32, 3.0, 2, 3, 1), "tiny": (4, 0.02, 200, 3, 1), "long": (32, 50.0, 1, 3, 1), "graph": (32, 0.3, 10, 3, 1),
         "greedy": (32, 10.0, 1, 16, 4)}
# Of the kernels whose rounds are timed.
TIMED_BLOCKS, TIMED_S = 32, 0.05


class Trainer:
    def __init__(self):
        attach()
        self.spin, self.counter, self.expected = load(SPIN, "spin"), allocate(4), 0
        clear(self.counter, 4)
        self.round_ns = float(os.environ.get("ROUND_NS", "0"))
        self.streams, self.graphs = [ctypes.c_void_p() for _ in range(4)], {}
        for stream in self.streams:
            call("cuStreamCreate", ctypes.byref(stream), 1)
        self.launch(1, 1, None)
        synchronize()

    def launch(self, blocks, rounds, stream):
        values = ctypes.c_uint64(self.counter), ctypes.c_uint32(rounds)
        pointers = (ctypes.c_void_p * 2)(*(ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in values))
        call("cuLaunchKernel", self.spin, blocks, 1, 1, THREADS, 1, 1, 0, stream, pointers, None)
        self.expected += blocks

    def time_rounds(self):
        """Nanoseconds of one round of a whole kernel, from the fastest of kernels long enough for their launch not to count."""
        rounds, took = 10_000, 0.0
        while took < TIMED_S:
            rounds *= 2
            took = min(self.timed(rounds) for _ in range(3))
        return took / rounds * 1e9

    def timed(self, rounds):
        begin = time.perf_counter()
        self.launch(TIMED_BLOCKS, rounds, None)
        synchronize()
        return time.perf_counter() - begin

    def batch(self, kind):
        """What enqueues a batch on a stream, and the units of one."""
        blocks, ms, kernels, *_ = KINDS[kind]
        rounds = max(1, round(ms * 1e6 / self.round_ns * TIMED_BLOCKS / blocks))
        if kind != "graph":
            return lambda stream: [self.launch(blocks, rounds, stream) for _ in range(kernels)], blocks * rounds * kernels
        if kind not in self.graphs:
            self.graphs[kind] = self.captured(blocks, rounds, kernels)

        def enqueue(stream):
            call("cuGraphLaunch", self.graphs[kind], stream)
            self.expected += blocks * kernels

        return enqueue, blocks * rounds * kernels

    def captured(self, blocks, rounds, kernels):
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        call("cuStreamBeginCapture_v2", self.streams[0], 2)
        for _ in range(kernels):
            self.launch(blocks, rounds, self.streams[0])
        self.expected -= blocks * kernels
        call("cuStreamEndCapture", self.streams[0], ctypes.byref(graph))
        call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_uint64(0))
        return executable

    def compute(self, kind, is_over):
        """Enqueues batches until `is_over` says so of their number and the time; returns (time, batches finished) of each."""
        enqueue, units = self.batch(kind)
        *_, queued, streams = KINDS[kind]
        events = [ctypes.c_void_p() for _ in range(queued)]
        for event in events:
            call("cuEventCreate", ctypes.byref(event), 2)  # without timing
        waiting, completions, enqueued = collections.deque(), [(time.time(), 0)], 0
        while not is_over(enqueued, completions[-1][0]):
            event, stream = events[enqueued % queued], self.streams[enqueued % streams]
            if len(waiting) == queued:
                call("cuEventSynchronize", waiting.popleft())
                if (enqueued - queued + 1) % streams == 0:  # those of all streams, which run side by side
                    completions.append((time.time(), enqueued - queued + 1))
            enqueue(stream)
            call("cuEventRecord", event, stream)
            waiting.append(event)
            enqueued += 1
        synchronize()
        completions.append((time.time(), enqueued))
        counted = read_u32(self.counter)
        assert counted == self.expected % 2**32, f"{counted} of {self.expected} blocks counted themselves"
        for event in events:
            call("cuEventDestroy_v2", event)
        return completions, units

    def run(self, kind, start, seconds, tail):
        time.sleep(max(0.0, start - time.time()))
        end = start + seconds + tail
        completions, units = self.compute(kind, lambda _, now: now >= end)
        until = [finished_at(start + second, completions) * units for second in range(int(seconds) + 1)]
        print("seconds", *(f"{after - before:.0f}" for before, after in zip(until, until[1:])), flush=True)

    def job(self, kind, wanted):
        _, units = self.batch(kind)
        batches = -(-wanted // units)
        begin = time.time()
        self.compute(kind, lambda enqueued, _: enqueued == batches)
        print(f"done {batches * units} {time.time() - begin:.4f}", flush=True)


def finished_at(moment, completions):
    """Batches finished at a moment, from (time, batches finished) in order; between two of them work went on evenly."""
    before = completions[0]
    for after in completions:
        if after[0] >= moment:
            part = (moment - before[0]) / max(after[0] - before[0], 1e-9)
            return before[1] + max(0.0, part) * (after[1] - before[1])
        before = after
    raise RuntimeError(f"the last batch was done {moment - before[0]:.1f} s before the end: TAIL is too short")


def main():
    trainer = Trainer()
    print("ready", flush=True)
    for line in sys.stdin:
        match line.split():
            case ["run", kind, start, seconds, tail]:
                trainer.run(kind, float(start), float(seconds), float(tail))
            case ["job", kind, units]:
                trainer.job(kind, int(units))
            case ["time"]:
                print(f"round_ns {trainer.time_rounds():.4f}", flush=True)
            case words:
                raise RuntimeError(f"not known: {words}")


if __name__ == "__main__":
    sys.exit(main())

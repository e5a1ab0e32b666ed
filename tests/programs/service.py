"""A service: answers requests that come at random moments, and prints how long they took.

Requests arrive as a Poisson process (open loop: a late answer delays no arrival) that would keep an idle GPU busy for
LOAD of the time. Each is one kernel of WORK milliseconds on an idle GPU; it begins when the one before it has been
answered and is measured from its arrival. It prints `ready`, and for each line of its input answers REQUESTS
requests and prints the median, the 95th and 99th percentile, and the maximum in milliseconds. SEED names the arrivals.
"""

import ctypes
import os
import random
import sys
import time

from driver import SPIN, allocate, attach, clear, launch, load, synchronize

BLOCKS, THREADS = 32, 64


def answer(spin, counter, rounds):
    launch(spin, BLOCKS, THREADS, ctypes.c_uint64(counter), ctypes.c_uint32(rounds))
    synchronize()


def rounds_for(spin, counter, seconds):
    """Rounds of a kernel that takes so long on the idle GPU."""
    rounds, took = 1_000, 0.0
    while took < seconds / 2:
        rounds *= 2
        begin = time.perf_counter()
        answer(spin, counter, rounds)
        took = time.perf_counter() - begin
    return max(1, int(rounds * seconds / took))


def serve(spin, counter, rounds, arrivals):
    latencies, start = [], time.perf_counter()
    for arrival in arrivals:
        pause = start + arrival - time.perf_counter()
        if pause > 0:
            time.sleep(pause)
        answer(spin, counter, rounds)
        latencies.append(time.perf_counter() - start - arrival)
    return sorted(latencies)


def main():
    work = float(os.environ.get("WORK", "10")) / 1e3
    load_wanted, count = float(os.environ.get("LOAD", "0.5")), int(os.environ.get("REQUESTS", "400"))
    chance = random.Random(int(os.environ.get("SEED", "1")))
    attach()
    spin, counter = load(SPIN, "spin"), allocate(4)
    clear(counter, 4)
    rounds = rounds_for(spin, counter, work)
    arrivals, now = [], 0.0
    for _ in range(count):
        now += chance.expovariate(load_wanted / work)
        arrivals.append(now)
    print("ready", flush=True)
    for _ in sys.stdin:
        latencies = serve(spin, counter, rounds, arrivals)
        at = [latencies[min(int(part * count), count - 1)] for part in (0.5, 0.95, 0.99, 1.0)]
        print("milliseconds", *(f"{1e3 * latency:.3f}" for latency in at), flush=True)


if __name__ == "__main__":
    sys.exit(main())

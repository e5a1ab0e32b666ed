"""A service: answers requests that come at random moments, and prints how long they took.

Requests arrive as a Poisson process (open loop: a late answer delays no arrival) that would keep an idle GPU busy for
LOAD of the time. Each is one kernel of WORK milliseconds on an idle GPU; it begins when the one before it has been
answered and is measured from its arrival. It prints `ready`, and for each line of its input answers REQUESTS
requests and prints the median, the 95th and 99th percentile, and the maximum in milliseconds. SEED names the arrivals.

With EACH=1 it prints `took` and the seconds until the last answer, and all latencies in their order instead, and a line
of its input may name other arrivals and the moment to begin at: `SEED UNIX_TIME`. ROUNDS says how many rounds its kernel
has, where that is known.
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
    answer(spin, counter, 1)  # compiled before the clock starts
    rounds, took = 1_000, 0.0
    while took < seconds / 2:
        rounds *= 2
        begin = time.perf_counter()
        answer(spin, counter, rounds)
        took = time.perf_counter() - begin
    return max(1, int(rounds * seconds / took))


def arrivals_of(seed, count, rate):
    chance, arrivals, now = random.Random(seed), [], 0.0
    for _ in range(count):
        now += chance.expovariate(rate)
        arrivals.append(now)
    return arrivals


def serve(spin, counter, rounds, arrivals, begin=0.0):
    """Latencies of the requests, and the time until the last answer, in seconds."""
    time.sleep(max(0.0, begin - time.time()))
    latencies, start = [], time.perf_counter()
    for arrival in arrivals:
        pause = start + arrival - time.perf_counter()
        if pause > 0:
            time.sleep(pause)
        answer(spin, counter, rounds)
        latencies.append(time.perf_counter() - start - arrival)
    return latencies, time.perf_counter() - start


def main():
    work = float(os.environ.get("WORK", "10")) / 1e3
    load_wanted, count = float(os.environ.get("LOAD", "0.5")), int(os.environ.get("REQUESTS", "400"))
    seed, each = int(os.environ.get("SEED", "1")), "EACH" in os.environ
    attach()
    spin, counter = load(SPIN, "spin"), allocate(4)
    clear(counter, 4)
    rounds = int(os.environ.get("ROUNDS", "0")) or rounds_for(spin, counter, work)
    answer(spin, counter, 1)
    print("ready", flush=True)
    for line in sys.stdin:
        said = line.split() if each else []
        arrivals = arrivals_of(int(said[0]) if said else seed, count, load_wanted / work)
        latencies, took = serve(spin, counter, rounds, arrivals, float(said[1]) if said[1:] else 0.0)
        if each:
            print(f"took {took:.6f}")
            shown = latencies
        else:
            latencies.sort()
            shown = [latencies[min(int(part * count), count - 1)] for part in (0.5, 0.95, 0.99, 1.0)]
        print("milliseconds", *(f"{1e3 * latency:.3f}" for latency in shown), flush=True)


if __name__ == "__main__":
    sys.exit(main())

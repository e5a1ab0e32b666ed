#!/usr/bin/env python3
"""Measures tiers and shares on this machine's GPU in one run: shares in windows of a second, a hard cap, what the gate costs a program
that is alone, what a fixed job is charged, and a service whose requests arrive in an open loop, alone and beside six trainers.

Starts a control plane with a node of its own and leases from it. What is compared is measured by turns, so that a machine that changes
its pace changes it for both. Needs nothing but Python and Sluice:

    python3 tiers.py --sluice PATH [--programs FOLDER] [--gpus software:1,1GiB] [--native FOLDER_OF_LIBCUDA] [--only PART]... [-o json]
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from tiers_place import Place
from tiers_rows import ERROR_MAX, error_row, percent, points, quantile, row, text_of

# Pairs and triples of programs: (kind, share) each.
SHARES = {
    "30/70": [("even", 0.3), ("even", 0.7)],
    "10/90": [("even", 0.1), ("even", 0.9)],
    "50/25/25": [("even", 0.5), ("even", 0.25), ("even", 0.25)],
    "30/70, graphs beside kernels": [("graph", 0.3), ("even", 0.7)],
    "30/70, tiny beside long kernels": [("tiny", 0.3), ("long", 0.7)],
    "30/70, long beside tiny kernels": [("long", 0.3), ("tiny", 0.7)],
    "30/70, long kernels queued on four streams beside short ones": [("greedy", 0.3), ("even", 0.7)],
}
KINDS = sorted({kind for programs in SHARES.values() for kind, _ in programs})
SHARES_S, TAIL_S = 12, 2.5
# From telling programs when they begin to that moment.
NOTICE_S = 0.3
CAP, CAP_S = 0.25, 6
ALONE_S, TURNS = 2, 3
GATE_TURNS = 5
JOB_S = 1.5
WORK_MS, LOAD, REQUESTS, TRAINERS = 10.0, 0.5, 400, 6
PREEMPTED_WITHIN_S = 100e-6
LIMIT_S = 480


def run_together(programs, seconds, tail=TAIL_S):
    """Has programs compute at the same time; (program, kind) each. Returns what each finished in each second."""
    start = time.time() + NOTICE_S
    for program, kind in programs:
        program.says(f"run {kind} {start:.6f} {seconds} {tail}")
    return [[float(word) for word in program.hears("seconds")] for program, _ in programs]


def rate(program, kind, seconds=ALONE_S):
    return sum(run_together([(program, kind)], seconds, 0.2)[0]) / seconds


def rates_alone(place):
    """Units per second of each kind of a program that has the GPU to itself: the best of some turns, as others only slow it."""
    program = place.trainer(1.0)
    rates = {kind: max(rate(program, kind) for _ in range(2)) for kind in KINDS}
    program.ends()
    return rates


def shares(place):
    alone = rates_alone(place)
    rows = []
    for name, programs in SHARES.items():
        running = [(place.trainer(share), kind) for kind, share in programs]
        seconds = run_together(running, SHARES_S)
        for program, _ in running:
            program.ends()
        parts = [[done / alone[kind] for done in of] for of, (_, kind) in zip(seconds, running)]
        sums = [sum(window) for window in zip(*parts)]
        got = [100 * sum(of) / sum(sums) for of in parts]
        errors = [abs(100 * (done / whole - share)) for of, (_, share) in zip(parts, programs) for done, whole in zip(of, sums)]
        baseline = f"got {' : '.join(f'{part:.1f}' for part in got)}; median error {median(errors):.2f}"
        rows.append(error_row(f"shares {name}: error in windows of 1 s, P99", errors, baseline))
    return rows


def hard_cap(place):
    free, capped = place.trainer(0.7), place.trainer(CAP, options=["--cap", "hard"])
    work, times = [], []
    for _ in range(TURNS):
        # The pace may have changed: that before and after counts.
        before = rate(free, "even")
        start, begin = capped.used_ms(), time.time()
        done = run_together([(capped, "even")], CAP_S, 0.1)[0]
        seconds = time.time() - begin - NOTICE_S
        times.append((capped.used_ms() - start) / seconds / 10)
        pace = (before + rate(free, "even")) / 2
        work += [100 * units / pace for units in done]
    free.ends()
    capped.ends()
    found, cap = median(times), 100 * CAP
    what = f"hard cap of {cap:.0f} %, alone on the GPU"
    return [
        row(f"{what}: GPU time, as the node measures it", f"{found:.1f} %", f"[{min(times):.1f}, {max(times):.1f}] in {TURNS} turns",
            points(ERROR_MAX), abs(found - cap) <= ERROR_MAX),
        error_row(f"{what}: work in windows of 1 s, P99 of the error", [abs(part - cap) for part in work],
                  f"{median(work):.1f} [{min(work):.1f}, {max(work):.1f}] % of the work without a cap"),
    ]


def gate(place):
    """Turns of a leased program and of one that has the driver to itself."""
    if not place.native:
        return [row("cost of the gate for one program alone", "not measured: no native driver was named", "", "1.5 %", None)]
    leased, native = place.trainer(1.0), place.natively()
    ratios, rates = [], []
    for turn in range(GATE_TURNS):
        order = [leased, native] if turn % 2 else [native, leased]
        done = {program: rate(program, "even") for program in order}
        ratios.append(100 * (1 - done[leased] / done[native]))
        rates.append(done[native])
    leased.ends()
    native.ends()
    found = median(ratios)
    baseline = f"[{min(ratios):.1f}, {max(ratios):.1f}] in {GATE_TURNS} turns; the program with the driver to itself"
    return [row("cost of gate and remoting for one program alone", f"{found:.1f} %", baseline, "1.5 %", found <= 1.5)]


def fixed_job(place):
    """GPU time that a job is charged alone and beside three programs that compute without pause."""
    program, *others = [place.trainer(0.25) for _ in range(4)]
    units = int(rate(program, "even") * JOB_S)
    charged = {"alone": [], "beside": []}
    for _ in range(TURNS):
        for where in charged:
            if where == "beside":
                for other in others:
                    other.says(f"run even {time.time():.6f} {4 * JOB_S + 1:.0f} 0.1")
            before = program.used_ms()
            program.says(f"job even {units}")
            program.hears("done")
            charged[where].append(program.used_ms() - before)
            if where == "beside":
                for other in others:
                    other.hears("seconds")
    for one in (program, *others):
        one.ends()
    ratios = [100 * (beside / alone - 1) for alone, beside in zip(charged["alone"], charged["beside"])]
    found = median(ratios)
    baseline = f"[{min(ratios):.1f}, {max(ratios):.1f}] in {TURNS} turns; {median(charged['alone']):.0f} ms of GPU time alone"
    return [row("GPU time charged for a fixed job beside three others, against alone", f"{found:+.1f} %", baseline, "1 %",
                abs(found) <= 1)]


class Service:
    """Turns of the service alone and beside trainers."""

    def __init__(self, place, tier, turns):
        self.alone, self.beside, self.spans, self.normalised = [], [], [], []
        self.place, self.tier = place, tier
        self.service = place.service(tier, WORK_MS, LOAD, REQUESTS)
        self.trainers = [place.trainer(0.06, "basic") for _ in range(TRAINERS)]
        self.waits = {}
        for turn in range(turns):
            self.turn(turn + 1)

    def answers(self, seed, start):
        self.service.says(f"{seed} {start:.6f}")

    def heard(self):
        span = float(self.service.hears("took")[0])
        return span, [float(word) for word in self.service.hears("milliseconds")]

    def turn(self, seed):
        pace = rate(self.trainers[0], "even")
        self.answers(seed, time.time() + NOTICE_S)
        span, latencies = self.heard()
        self.alone += latencies
        before, start = self.service.waits(), time.time() + NOTICE_S
        for trainer in self.trainers:
            trainer.says(f"run even {start:.6f} {int(span)} {TAIL_S}")
        self.answers(seed, start)
        span_beside, latencies = self.heard()
        done = sum(sum(float(word) for word in trainer.hears("seconds")) for trainer in self.trainers)
        self.beside += latencies
        pace = (pace + rate(self.trainers[0], "even")) / 2
        self.normalised.append((span / span_beside, done / int(span) / pace))
        for bound, count in self.service.waits().items():
            self.waits[bound] = self.waits.get(bound, 0) + count - before.get(bound, 0)

    def end(self):
        for program in (self.service, *self.trainers):
            program.ends()

    def rows(self):
        alone, beside = sorted(self.alone), sorted(self.beside)
        of = lambda latencies: f"P50 {quantile(latencies, 0.5):.1f}, P99 {quantile(latencies, 0.99):.1f} ms"
        ratio = quantile(beside, 0.99) / quantile(alone, 0.99)
        slo = 2 * quantile(alone, 0.99)
        kept, kept_alone = (100 * sum(latency <= slo for latency in of) / len(of) for of in (beside, alone))
        served, trained = (median(part) for part in zip(*self.normalised))
        sums = [sum(parts) for parts in self.normalised]
        name = f"{self.tier} service at load {LOAD}"
        rows = [
            row(f"{name} beside {TRAINERS} best-effort trainers: P99 against alone", f"{ratio:.2f}",
                f"{of(beside)}; alone {of(alone)}", "1.05", ratio <= 1.05),
            row(f"{name}: answered within twice the P99 alone ({slo:.0f} ms)", percent(kept), f"alone {percent(kept_alone)}",
                "1 point of alone", kept_alone - kept <= 1),
            row(f"{name} and trainers: summed normalised throughput", f"{median(sums):.2f}",
                f"[{min(sums):.2f}, {max(sums):.2f}]; service {served:.2f}, trainers {trained:.2f}", "1.44", median(sums) >= 1.44),
        ]
        return rows + self.rows_of_waits()

    def rows_of_waits(self):
        total = self.waits.get(float("inf"), 0)
        if not total:
            return []
        within = 100 * self.waits.get(PREEMPTED_WITHIN_S, 0) / total
        bound = min(bound for bound, count in self.waits.items() if count >= 0.99 * total)
        p99 = f"at most {1e6 * bound:.0f} us" if bound != float("inf") else "more than 2 s"
        return [row(f"{self.tier} service has work until it has the GPU, beside trainers: P99", p99,
                    f"{percent(within)} of {total:.0f} waits within 100 us", "100 us", bound <= PREEMPTED_WITHIN_S)]


def service(place):
    premium = Service(place, "premium", TURNS)
    premium.end()
    return premium.rows() + place.costs(len(premium.alone) + len(premium.beside))


def standard_service(place):
    """What the tier is worth: the same service without it."""
    standard = Service(place, "standard", 1)
    standard.end()
    return [{**standard.rows()[0], "goal": "none: for comparison", "met": None}]


PARTS = {"service": service, "shares": shares, "hard cap": hard_cap, "fixed job": fixed_job, "gate": gate,
         "standard service": standard_service}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sluice", required=True, type=Path)
    parser.add_argument("--programs", type=Path, default=Path(__file__).resolve().parent / "programs")
    parser.add_argument("--gpus", default="software:1,1GiB", help="what the node lends, as for `sluice node --gpus`")
    parser.add_argument("--memory", default="64MiB", help="of each lease")
    parser.add_argument("--native", help="the folder of the libcuda.so.1 that the node uses; `system` for the one that programs find")
    parser.add_argument("--only", action="append", default=[], choices=list(PARTS))
    parser.add_argument("-o", dest="output", default="text", choices=["text", "json"])
    options = parser.parse_args()

    def stop(*_):
        raise TimeoutError(f"it took more than {LIMIT_S} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT_S)
    rows = []
    with tempfile.TemporaryDirectory(prefix="tiers-") as folder:
        place = Place(Path(folder), options)
        try:
            for name, measure in PARTS.items():
                if not options.only or name in options.only:
                    begin = time.time()
                    rows += measure(place)
                    print(f"{name}: {time.time() - begin:.0f} s", file=sys.stderr, flush=True)
        except TimeoutError as error:  # what is known is worth having
            rows.append(row(name, f"not measured: {error}", "a machine that is busy with other work takes longer", "", None))
        finally:
            place.close()
    print(json.dumps(rows) if options.output == "json" else text_of(rows))


if __name__ == "__main__":
    main()

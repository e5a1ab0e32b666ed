#!/usr/bin/env python3
"""Checks and measures Sluice on a machine with an NVIDIA GPU. Needs its driver, Python 3, and PyTorch for two steps.

Lies in the folder that `cargo xtask gpu-check --bundle` builds, and uses only what is in it:

    python3 check.py [--quick] [--only PART_OF_A_STEPS_NAME] [--report FILE]

Every program runs natively first, then under a lease on a node of this machine, over TCP, with the same seed. A step passes if
the leased program passes and says of its results what the native one said, up to rounding. If the native one does not pass there is
nothing to compare with: the step is "unmatched". The report (JSON) holds each step's outcome and figures as far as they are known; the
last line counts them.
"""

import argparse
import json
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SLUICE = HERE / "bin" / "sluice"
PROGRAMS = HERE / "programs"
LIMIT_S = 300


class Step:
    """`figures`: whether the program measures itself. `results`: those of its figures that it computes."""

    def __init__(self, name, command, environment=None, needs=None, figures=False, results=()):
        self.name, self.command = name, [str(word) for word in command]
        self.environment = {"SEED": "1", **(environment or {})}
        self.needs, self.figures, self.results = needs, figures, results


def python(name, *arguments):
    return [sys.executable, PROGRAMS / name, *arguments]


STEPS = [
    Step("nvcc program", [HERE / "bin" / "kernels"]),
    Step("cudarc program", [HERE / "bin" / "cudarc-program"]),
    Step("mapped memory while kernels run", [HERE / "bin" / "handover"]),
    Step("tinygrad", python("tinygrad_train.py"), {"PYTHONPATH": str(HERE / "packages")},
         results=("first_loss", "last_loss")),
    Step("compute", python("compute.py"), {"SECONDS": "2"}),
    Step("PyTorch arithmetic", python("torch_check.py"), needs="torch"),
    Step("PyTorch training", python("torch_train.py"), needs="torch", figures=True, results=("first_loss", "last_loss")),
    Step("PyTorch: graph, compile, generation, loader, DDP", python("torch_more.py"), needs="torch", figures=True),
    Step("PyTorch calls", python("sequences/torch_steps.py"), needs="torch"),
    Step("JAX calls", python("sequences/jax_steps.py"), needs="jax"),
    Step("CuPy kernels", python("cupy_kernels.py"), needs="cupy"),
    Step("CuPy arrays", python("cupy_arrays.py"), needs="cupy"),
    Step("driver functions", python("driver_functions.py")),
    Step("graphs", python("graphs.py")),
    Step("calls and copies", [HERE / "bin" / "calls"], figures=True),
    Step("bench kernels", [HERE / "bin" / "bench-kernels"], figures=True),
]


def run(command, environment=None, limit_s=LIMIT_S):
    begin = time.monotonic()
    try:
        done = subprocess.run(command, env={**os.environ, **(environment or {})}, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=limit_s)
        code, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired as late:
        code, output = "timeout", late.stdout.decode(errors="replace") if late.stdout else ""
    except OSError as error:
        code, output = "not started", str(error)
    return {"code": code, "seconds": round(time.monotonic() - begin, 3), "output": output}


def figures_of(output):
    found = {}
    for line in output.splitlines():
        match = re.fullmatch(r"([a-z0-9_]+) ([-+0-9.eE]+)", line)
        if match:
            found[match[1]] = float(match[2])
    return found


# Steps that say something of the card, of which a lease is a part, or of this moment.
OF_THE_CARD = {"props", "mem_get_info", "memory_summary", "nvml util", "ipc", "pmap-free memory_stats"}
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|\b(?:nan|inf)\b")
# Sums of floats depend on the order in which blocks end.
TOLERANCE = 1e-2


def results_of(step, output):
    """What a program says of its results, by name: its steps' words, and those of its figures that it computes."""
    steps = re.findall(r"^OK\t([^\t\n]*)\t(.*)$", output, re.MULTILINE)
    found = {name: "" if name in OF_THE_CARD else words for name, words in steps}
    found.update((name, str(value)) for name, value in figures_of(output).items() if name in step.results)
    return found


def alike(left, right):
    """Whether two texts are the same but for the last digits of their numbers."""
    if left is None or right is None or NUMBER.sub("#", left) != NUMBER.sub("#", right):
        return False
    pairs = zip(map(float, NUMBER.findall(left)), map(float, NUMBER.findall(right)))
    return all(math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE) or (a != a and b != b) for a, b in pairs)


def differences(native, leased):
    """One line for each result that is not the same, or that only one of the two has."""
    names = [*native, *(name for name in leased if name not in native)]
    return [f"{name}: {native.get(name)!r} natively, {leased.get(name)!r} leased" for name in names
            if not alike(native.get(name), leased.get(name))]


def compared(step, native, leased):
    """The outcome of a step, and why."""
    if leased["code"] != 0:
        return {"outcome": "failed", "why": f"ended with {leased['code']}, natively with {native['code']}"}
    if native["code"] != 0:
        return {"outcome": "unmatched", "why": f"the native run ended with {native['code']}"}
    results = [results_of(step, run["output"]) for run in (native, leased)]
    missing = [name for name in step.results if name not in results[0]]
    wrong = [f"{name}: no such figure" for name in missing] + differences(*results)
    return {"outcome": "failed" if wrong else "passed", "results": len(results[0]), "differences": wrong}


def shortened(run):
    return {**run, "output": run["output"][-4000:]}


class Report(list):
    """What came out so far; each step is printed, and the file written, once it is known."""

    def __init__(self, file, only):
        super().__init__()
        self.file, self.only = Path(file), only

    def wants(self, step):
        return self.only in step

    def append(self, entry):
        super().append(entry)
        print(f"{entry['outcome']:9} {entry['step']}{': ' + entry['why'] if 'why' in entry else ''}", flush=True)
        for difference in entry.get("differences", []):
            print(f"          {difference}", flush=True)
        self.file.write_text(json.dumps(self, indent=1))


class Node:
    def __init__(self, *options):
        self.process = subprocess.Popen([SLUICE, "node", "--listen", "127.0.0.1:0", *options],
                                        stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if not line.startswith("listening on "):
            raise RuntimeError(f"the node said {line!r} and ended with {self.process.wait()}")
        self.address = line.split()[-1]

    def lease(self, *options):
        return [SLUICE, "run", "--node", self.address, *options, "--"]

    def close(self):
        self.process.terminate()
        self.process.wait(timeout=20)


def check_programs(node, report):
    for step in STEPS:
        if not report.wants(step.name):
            continue
        if step.needs and run([sys.executable, "-c", f"import {step.needs}"])["code"] != 0:
            report.append({"step": step.name, "outcome": "skipped", "why": f"no {step.needs} here"})
            continue
        native = run(step.command, step.environment)
        leased = run(node.lease("-p", "1", "--memory", "8GiB") + step.command, step.environment)
        entry = {"step": step.name, "native": shortened(native), "leased": shortened(leased), **compared(step, native, leased)}
        if step.figures:
            entry["figures"] = {"native": figures_of(native["output"]), "leased": figures_of(leased["output"])}
        report.append(entry)


def check_limits(node, report):
    memory = 1 << 30
    for name, options, command, environment in [
        ("memory limit", ("-p", "0.1", "--memory", "1GiB"), python("memory_limit.py"), {"MEMORY": str(memory)}),
        ("illegal address", ("-p", "0.5",), python("illegal_address.py"), {}),
        ("kernel timeout", ("--kernel-timeout", "500ms"), python("endless.py"), {"EXPECT": "timeout"}),
        ("timeout while memory is handed over", ("--kernel-timeout", "5s"), [HERE / "bin" / "handover", "unanswered"], {}),
    ]:
        if not report.wants(name):
            continue
        got = run(node.lease(*options) + [str(word) for word in command], environment)
        report.append({"step": name, "leased": shortened(got), "outcome": "passed" if got["code"] == 0 else "failed"})


def units(output):
    match = re.search(r"finished (\d+) units", output)
    return int(match[1]) if match else None


def check_shares(node, report, seconds):
    def compute(share):
        environment = {**os.environ, "KIND": "even", "SECONDS": str(seconds), "TAIL": "4", "START": "input"}
        command = node.lease("-q", "-p", share, "--memory", "256MiB") + [str(w) for w in python("compute.py")]
        return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)

    for left, right in [("0.75", "0.25"), ("0.9", "0.1")]:
        if not report.wants(f"shares {left}/{right}"):
            continue
        programs = [compute(left), compute(right)]
        ready = [program.stdout.readline() for program in programs]  # however long it takes, they begin together
        start = f"{time.time() + 0.5}\n"
        outputs = [line + program.communicate(start, timeout=LIMIT_S)[0] for line, program in zip(ready, programs)]
        done = [units(output) for output in outputs]
        entry = {"step": f"shares {left}/{right}", "units": done}
        if None in done or sum(done) == 0:
            entry.update(outcome="failed", output=[output[-2000:] for output in outputs])
        else:
            part = done[0] / sum(done)
            entry.update(part=round(part, 4), outcome="passed" if abs(part - float(left)) <= 0.05 else "failed")
        report.append(entry)


def print_table(report):
    """Each step's figures beside each other: seconds of the whole program, and what it measured itself."""
    print(f"{'step':52} {'figure':24} {'native':>12} {'leased':>12} {'ratio':>7}")
    for entry in report:
        if "native" not in entry or "leased" not in entry:
            continue
        rows = [("seconds", entry["native"]["seconds"], entry["leased"]["seconds"])]
        figures = entry.get("figures", {"native": {}, "leased": {}})
        rows += [(name, value, figures["leased"].get(name)) for name, value in figures["native"].items()]
        for name, native, leased in rows:
            ratio = f"{leased / native:7.3f}" if leased is not None and native else "      -"
            shown = f"{leased:12.4g}" if leased is not None else "           -"
            print(f"{entry['step']:52} {name:24} {native:12.4g} {shown} {ratio}")
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="shares for 3 s instead of 10 s")
    parser.add_argument("--only", default="", help="the steps whose names contain this")
    parser.add_argument("--report", default="report.json")
    parser.add_argument("--gpus", default="nvidia", help="what the node lends, as for `sluice node --gpus`")
    options = parser.parse_args()
    os.environ["SLUICE_LIB_DIR"] = str(HERE / "lib")
    os.environ.pop("SLUICE_NODE", None)

    report = Report(options.report, options.only)
    report.append({"step": "machine", "outcome": "passed", "nvidia-smi": run(["nvidia-smi"]),
                   "doctor": run([SLUICE, "doctor"]), "gpus": run([SLUICE, "gpus"])})
    try:
        node = Node("--gpus", options.gpus)
    except RuntimeError as error:
        report.append({"step": "node", "outcome": "failed", "why": str(error)})
    else:
        try:
            check_programs(node, report)
            check_limits(node, report)
            check_shares(node, report, 3 if options.quick else 10)
        finally:
            node.close()
    print_table(report)
    outcomes = [entry["outcome"] for entry in report]
    print(", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in ("passed", "failed", "unmatched", "skipped")))
    return 1 if {"failed", "unmatched"} & set(outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())

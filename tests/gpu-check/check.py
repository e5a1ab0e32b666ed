#!/usr/bin/env python3
"""Checks and measures Sluice on a machine with an NVIDIA GPU. Needs its driver, Python 3, and PyTorch for two steps.

Lies in the folder that `cargo xtask gpu-check --bundle` builds, and uses only what is in it:

    python3 check.py [--quick] [--report FILE]

Every program runs natively first, then under a lease on a node of this machine, over TCP. The report (JSON) holds
each step's outcome and figures; the last line counts them.
"""

import argparse
import json
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
    def __init__(self, name, command, environment=None, needs=None, figures=False):
        self.name, self.command, self.environment = name, [str(word) for word in command], environment or {}
        self.needs, self.figures = needs, figures


def python(name, *arguments):
    return [sys.executable, PROGRAMS / name, *arguments]


STEPS = [
    Step("nvcc program", [HERE / "bin" / "kernels"]),
    Step("cudarc program", [HERE / "bin" / "cudarc-program"]),
    Step("tinygrad", python("tinygrad_train.py"), {"PYTHONPATH": str(HERE / "packages")}),
    Step("compute", python("compute.py"), {"SECONDS": "2"}),
    Step("PyTorch arithmetic", python("torch_check.py"), needs="torch"),
    Step("PyTorch training", python("torch_train.py"), needs="torch", figures=True),
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
    return {"code": code, "seconds": round(time.monotonic() - begin, 3), "output": output[-4000:]}


def figures_of(output):
    found = {}
    for line in output.splitlines():
        match = re.fullmatch(r"([a-z0-9_]+) ([-+0-9.eE]+)", line)
        if match:
            found[match[1]] = float(match[2])
    return found


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
        if step.needs and run([sys.executable, "-c", f"import {step.needs}"])["code"] != 0:
            report.append({"step": step.name, "outcome": "skipped", "why": f"no {step.needs} here"})
            continue
        native = run(step.command, step.environment)
        leased = run(node.lease("-p", "1", "--memory", "8GiB") + step.command, step.environment)
        entry = {"step": step.name, "native": native, "leased": leased,
                 "outcome": "passed" if leased["code"] == 0 else "failed"}
        if step.figures:
            entry["figures"] = {"native": figures_of(native["output"]), "leased": figures_of(leased["output"])}
        report.append(entry)


def check_limits(node, report):
    memory = 1 << 30
    for name, options, command, environment in [
        ("memory limit", ("-p", "0.1", "--memory", "1GiB"), python("memory_limit.py"), {"MEMORY": str(memory)}),
        ("illegal address", ("-p", "0.5",), python("illegal_address.py"), {}),
        ("kernel timeout", ("--kernel-timeout", "500ms"), python("endless.py"), {"EXPECT": "timeout"}),
    ]:
        got = run(node.lease(*options) + [str(word) for word in command], environment)
        report.append({"step": name, "leased": got, "outcome": "passed" if got["code"] == 0 else "failed"})


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
    parser.add_argument("--report", default="report.json")
    parser.add_argument("--gpus", default="nvidia", help="what the node lends, as for `sluice node --gpus`")
    options = parser.parse_args()
    os.environ["SLUICE_LIB_DIR"] = str(HERE / "lib")
    os.environ.pop("SLUICE_NODE", None)

    report = [{"step": "machine", "outcome": "passed", "nvidia-smi": run(["nvidia-smi"]),
               "doctor": run([SLUICE, "doctor"]), "gpus": run([SLUICE, "gpus"])}]
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
    Path(options.report).write_text(json.dumps(report, indent=1))
    outcomes = [entry["outcome"] for entry in report]
    for entry in report:
        print(f"{entry['outcome']:8} {entry['step']}  {json.dumps(entry.get('figures', ''))}")
    print(f"{outcomes.count('passed')} passed, {outcomes.count('failed')} failed, {outcomes.count('skipped')} skipped")
    return 1 if "failed" in outcomes else 0


if __name__ == "__main__":
    sys.exit(main())

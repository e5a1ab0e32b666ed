#!/usr/bin/env python3
"""Checks and measures Sluice on a machine with an NVIDIA GPU. Needs its driver and Python 3; PyTorch, JAX, CuPy and nvcc are used where they are.

Lies in the folder that `cargo xtask gpu-check --bundle` builds, and uses only what is in it:

    python3 check.py [--minutes 9] [--only PART_OF_A_STEPS_NAME]... [--skip PART]... [--report FOLDER] [--list]

Every program runs natively first, then under a lease on a node of this machine, over TCP, with the same seed. A step passes if
the leased program passes, launched its kernels through Sluice, and says of its results what the native one said, up to rounding. If the
native one does not pass there is nothing to compare with: the step is "unmatched". What the time does not suffice for is "not reached":
`--only` and `--skip`, as often as wanted, choose what another run does. Goals of speed are "met" or "missed".

The folder (default: $OUT, else this one) gets report.json (outcomes and figures as far as they are known), output.log (all programs),
node.log, machine.txt, table.txt and evidence.txt (driver functions that succeeded under a lease). The last lines printed are a summary.
"""

import argparse
import gzip
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

import elastic
import goals
import machine
import plan
import shares
import tiers_steps
from compare import closing_of, compared, figures_of, took_along, unended
from node import Node, NodeFailed
from report import Report, repeat
from running import Program, python, run

HERE = Path(__file__).resolve().parent
SLUICE = HERE / "bin" / "sluice"
# Left for the end: the node's, and the files.
RESERVE_S = 30
STEP_MIN_S = 12
REPEATS_S = 40
NODES_MAX, CANNOT_ATTACH, CANNOT_ATTACH_MAX, WITHOUT_MAX, RECORDINGS_MAX = 6, 125, 3, 5, 2
RECORDING_MAX = 15 << 20
KEEPER = f"import sys; sys.path.insert(0, {str(plan.PROGRAMS)!r}); import driver; driver.attach(); print('ready', flush=True); sys.stdin.read()"
PROBE = KEEPER.replace("print('ready'", "print('first pointer of a lease', hex(driver.allocate(1 << 20))")
NEEDS = "try:\n import {0}\nexcept ModuleNotFoundError as e:\n if e.name.split('.')[0] != '{0}'.split('.')[0]: raise\n raise SystemExit(77)"


class Check:
    def __init__(self, options, report):
        self.options, self.report, self.sluice = options, report, SLUICE
        self.deadline = time.monotonic() + options.minutes * 60 - RESERVE_S
        self.node, self.nodes_started, self.no_node, self.refused = None, 0, "none was started", 0
        self.known, self.recordings, self.log_seen = {}, 0, len(machine.kernel_log())
        self.driver, self.built = None, []
        self.evidence_folder = Path(tempfile.mkdtemp(prefix="gpu-check-evidence-"))

    def rest(self):
        return self.deadline - time.monotonic()

    def limit(self, seconds):
        return max(1, min(seconds, self.rest()))

    def once(self, name, make):
        if name not in self.known:
            self.known[name] = make()
        return self.known[name]

    def evidence(self):
        return {"SLUICE_EVIDENCE": str(self.evidence_folder)}

    def attempt(self, name, function, *arguments, leased=True):
        """Does one step, if it is wanted and there is time; whatever goes wrong in it, the next one follows."""
        if not self.report.wants(name):
            return
        if self.rest() < STEP_MIN_S:
            self.report.add({"step": name, "outcome": "not reached"})
            return
        try:
            if leased:
                self.free_node()
            if leased == "only" and self.node is None:
                self.report.add({"step": name, "outcome": "not reached", "why": f"no node: {self.no_node}"})
            else:
                function(*arguments)
        except Exception:
            trace = traceback.format_exc(limit=6)
            self.report.add({"step": name, "outcome": "broken", "why": trace.strip().splitlines()[-1], "trace": trace})
            print(trace, flush=True)

    def start_node(self):
        """`--gpus nvidia`, as users have it; where that finds nothing, the library that programs find here."""
        wanted, reasons = [self.options.gpus], []
        if self.options.gpus == "nvidia" and self.driver:
            wanted.append(f"library:{self.driver}")
        for gpus in wanted:
            try:
                self.nodes_started += 1
                self.node = Node(SLUICE, gpus, self.report.file("node.log"))
                print(f"node: --gpus {gpus}, {self.node.address}", flush=True)
                break
            except NodeFailed as why:
                reasons.append(str(why))
                print(f"node: {why}", flush=True)
        if reasons:
            why = machine.why_no_driver()
            with open(self.report.file("machine.txt"), "a") as file:
                file.write(f"=== node\n{chr(10).join(reasons)}\n{why}\n")
            outcome = "failed"
            self.report.add({"step": "node", "outcome": outcome, "why": "; ".join(reasons), "diagnosis": why})
            if self.node is None:
                self.no_node = "it did not start"
                print(why, flush=True)

    def drop_node(self, why):
        tail = self.node.said_since(self.node.begin)[-3000:]
        self.report.add({"step": "node", "outcome": "failed", "why": why, "node": tail, "kernel log": self.new_in_kernel_log()})
        print(tail, flush=True)
        self.node.close()
        self.node = None

    def free_node(self):
        """Before each lease: the node runs, and what was leased before has ended."""
        if self.node is not None and self.node.how_it_ended() is not None:
            self.drop_node(f"it has ended with {self.node.how_it_ended()}")
        elif self.node is not None and not self.node.is_free():
            print(self.node.stacks(), flush=True)
            self.drop_node("what was leased before did not end")
        elif self.node is not None or self.no_node == "refuses":
            return
        if 0 < self.nodes_started < NODES_MAX and self.no_node != "it did not start":
            self.start_node()

    def new_in_kernel_log(self):
        lines = machine.kernel_log()
        new, self.log_seen = lines[self.log_seen:], len(lines)
        return new[-20:]

    def failed(self, entry, mark=None):
        """Reports a failure, with all that may say why."""
        about = {"kernel log": self.new_in_kernel_log()}
        if self.node is not None:
            about |= {"sessions": self.node.ask("sessions"), "node": self.node.said_since(mark)[-2000:] if mark is not None else ""}
        self.report.add({**entry, "diagnosis": about})
        runs = {side: one for side in ("native", "leased", "beside") if isinstance(one := entry.get(side), dict) and "command" in one}
        for side, one in runs.items():
            print(f"  --- {side}, {one['code']} after {one['seconds']} s; again: {repeat(one)}", flush=True)
            if one["code"] != 0:
                print(one["output"][-2000:], one.get("stacks", "")[-1500:], sep="\n", flush=True)
        for title, text in about.items():
            if text:
                print(f"  --- {title}: {text}", flush=True)

    def can(self, name, needs):
        """Whether a package is here; one that is here and cannot be imported is a failure."""
        if needs is None:
            return True
        done = self.once(f"import {needs}", lambda: run(python("-c", NEEDS.format(needs)), {}, self.limit(120)))
        if done["code"] == 77:
            self.report.add({"step": name, "outcome": "skipped", "why": f"no {needs} here"})
        elif done["code"] != 0:
            self.report.add({"step": name, "outcome": "failed", "why": f"import {needs} ended with {done['code']}", "native": done})
        return done["code"] == 0

    def lease(self, step, command, environment, limit_s):
        """One leased run; refusals in a row end all leases."""
        run_of = lambda words, own: run(words + command, {**environment, **own}, self.limit(limit_s), self.node.stacks)
        done = run_of(self.node.lease(*step.options), self.evidence())
        self.refused = self.refused + 1 if done["code"] == CANNOT_ATTACH else 0
        return done

    def stop_leasing(self):
        print(machine.why_no_driver(), self.node.stacks(), flush=True)
        self.drop_node(f"{self.refused} leases in a row were refused or failed to start")
        self.no_node = "refuses"

    def parts(self, step, go):
        """Runs a program again without the part that took the others along."""
        done = go({})
        last, without = done, []
        while step.parts and last["code"] != 0 and len(without) < WITHOUT_MAX and self.rest() > STEP_MIN_S:
            culprit = unended(last["output"]) or took_along(last["output"])
            if culprit is None or culprit in without:
                break
            without.append(culprit)
            last = go({"WITHOUT": " ".join(without)})
            done["output"] += f"\n--- again without {', '.join(without)}: {last['code']}\n{last['output']}"
        return done

    def program(self, step):
        if not self.can(step.name, step.needs):
            return
        built = Path(tempfile.mkdtemp(prefix="gpu-check-built-"))
        self.built.append(built)
        place = lambda words: [word.replace("{out}", str(built)) for word in words]
        if step.build:
            build = run(place(step.build), {}, self.limit(90))
            if build["code"] != 0:
                self.report.add({"step": step.name, "outcome": "failed", "why": "the machine's own compiler failed", "native": build})
                return
        command = place(step.command)
        native = self.parts(step, lambda own: run(command, {**step.environment, **own}, self.limit(step.native_s)))
        if self.node is None:
            why = f"no node: {self.no_node}; natively it ended with {native['code']}"
            self.report.add({"step": step.name, "outcome": "unmatched", "why": why, "native": native})
            return
        mark = self.node.mark()
        limit_s = max(45, 5 * native["seconds"])
        leased = self.parts(step, lambda own: self.lease(step, command, {**step.environment, **own}, limit_s))
        entry = {"step": step.name, "native": native, "leased": leased, **compared(step, native, leased)}
        outputs, begin = [leased["output"]], time.monotonic()
        for _ in range(step.repeats - 1):
            if leased["code"] == 0 and self.rest() > STEP_MIN_S and time.monotonic() - begin < REPEATS_S:
                self.node.is_free()
                outputs.append(self.lease(step, command, step.environment, limit_s)["output"])
        if step.figures:
            entry["figures"] = {"native": figures_of(native["output"]), "leased": goals.medians(outputs)}
        if entry["outcome"] in ("failed", "unmatched"):
            self.failed(entry, mark)
            if native["code"] == 0:
                self.record(step, command)
        else:
            self.report.add(entry)
        if step.name in goals.OF_STEPS and leased["code"] == 0:
            for one in goals.OF_STEPS[step.name](entry["figures"]["leased"]):
                self.report.add(one)
        if self.refused >= CANNOT_ATTACH_MAX:
            self.stop_leasing()

    def record(self, step, command):
        """Once more, with all that was asked and answered in a file that can be replayed elsewhere."""
        if not self.options.record or self.recordings >= RECORDINGS_MAX or self.rest() < 60 or not self.node.is_free():
            return
        self.recordings += 1
        file = self.report.file(f"recording-{self.recordings}.sluice")
        words = [SLUICE, "record", "--output", file, "--node", self.node.address, *step.options, "--"]
        run([str(word) for word in words] + command, step.environment, self.limit(60))
        if file.exists() and file.stat().st_size > RECORDING_MAX:
            file.unlink()

    def alone(self, step):
        """A program that makes sense under a lease only."""
        if not self.can(step.name, step.needs):
            return
        mark = self.node.mark()
        done = self.lease(step, step.command, step.environment, 60)
        entry = {"step": step.name, "leased": done, "closing": None}
        closing = closing_of(done["output"])
        if done["code"] != 0:
            return self.failed({**entry, "outcome": "failed", "why": f"ended with {done['code']}"}, mark)
        if step.kernels and not (closing and closing["kernels"]):
            return self.failed({**entry, "outcome": "failed", "why": "it launched nothing through Sluice"}, mark)
        self.report.add({**entry, "outcome": "passed"})

    def facts(self, name):
        """What the driver does, natively: printed, and nothing of it judged."""
        file = "memory_facts.py" if name.startswith("memory") else "driver_facts.py"
        done = run(plan.program(file, "all" if name == "memory" else name), {}, self.limit(100))
        facts = "\n".join(line for line in done["output"].splitlines() if line.startswith("fact "))
        print(facts, flush=True)
        self.report.add({"step": f"driver facts: {name}", "outcome": "passed" if done["code"] == 0 else "failed", "facts": facts,
                         "native": done, **({"why": f"ended with {done['code']}"} if done["code"] != 0 else {})})

    def machine(self):
        """Which card the node lends, and whether that is the one that programs find natively."""
        gpus, doctor = self.node.ask("gpus") or [], run([str(SLUICE), "doctor", "--node", self.node.address], {}, self.limit(30))
        probe = Program(self.node.lease("-p", "0.1", "--memory", "1GiB") + python("-c", PROBE), self.evidence(), input=True)
        probe.line("first pointer", self.limit(60))
        libraries = machine.libcuda_of(self.node.workers())
        probe.end_input()
        probe = probe.wait(self.limit(20), self.node.stacks)
        cards = ", ".join(f"{gpu['name']}, CC {gpu['compute_capability']}, driver {gpu['driver_version']}" for gpu in gpus)
        print(f"lent: {cards}\nnatively: {self.driver}; of the node: {', '.join(libraries)}\n{probe['output'].strip()}\n{doctor['output']}", flush=True)
        entry = {"step": "machine", "outcome": "passed", "gpus": gpus, "doctor": doctor, "first lease": probe, "libraries": libraries}
        wrong = [f"the node lends {gpu['name']}" for gpu in gpus if gpu["software"] or "NVIDIA" not in gpu["name"]] or ([] if gpus else ["no GPU"])
        if self.options.gpus != "nvidia":
            wrong = []  # somebody asked for it
        wrong += [f"doctor ended with {doctor['code']}"] if doctor["code"] != 0 else []
        wrong += [f"a first lease ended with {probe['code']}"] if probe["code"] != 0 else []
        if wrong:
            return self.failed({**entry, "outcome": "failed", "why": "; ".join(wrong)}, self.node.begin)
        self.report.add(entry)



def everything(check):
    """In the order of worth, so that what is not reached is what matters least."""
    check.attempt("driver facts: init", check.facts, "init", leased=False)
    keeper = Program(python("-c", KEEPER), input=True)  # the GPU stays initialised, and at its clocks
    try:
        keeper.line("ready", 60)
        check.start_node()
        check.attempt("machine", check.machine, leased="only")
        steps = {step.name: step for step in plan.worthy()}
        programs = lambda steps: [check.attempt(step.name, check.program, step) for step in steps]
        programs(steps.values())
        for what, limit in goals.TRAINING:
            check.attempt(f"by turns: {what}", lambda: by_turns(check, what, limit), leased="only")
        for left, right, seconds in shares.SHARES:
            check.attempt(f"shares {left}/{right}", shares.check_shares, check, left, right, seconds, check.options.quick, leased="only")
        check.attempt("driver facts: all", check.facts, "all", leased=False)
        check.attempt("driver facts: memory", check.facts, "memory", leased=False)
        for name, step in elastic.STEPS.items():
            check.attempt(name, step, check, leased="only")
        for step in plan.ALONE:
            check.attempt(step.name, check.alone, step, leased="only")
        check.attempt("bench remoting", goals.remoting, check, leased="only")
        for name, part in zip(tiers_steps.STEPS, tiers_steps.PARTS):
            check.attempt(name, tiers_steps.measure, check, part, leased="only")
        programs(plan.more())
        programs(plan.risky())
        for step in plan.LAST_ALONE:
            check.attempt(step.name, check.alone, step, leased="only")
    finally:
        keeper.ended("no longer needed")
    check.attempt("driver facts: kill", check.facts, "kill", leased=False)


def by_turns(check, what, limit):
    if what == "launches" or check.can(f"by turns: {what}", "torch"):
        goals.by_turns(check, what, limit)


def names():
    steps = [*plan.worthy(), *plan.ALONE, *plan.more(), *plan.risky(), *plan.LAST_ALONE]
    return ["machine", *(step.name for step in steps), *elastic.STEPS, *(f"by turns: {what}" for what, _ in goals.TRAINING),
            *(f"shares {left}/{right}" for left, right, _ in shares.SHARES), "bench remoting",
            *tiers_steps.STEPS, *(f"driver facts: {name}" for name in ("init", "all", "memory", "kill"))]


def prepare():
    """Unpacks what came packed. A copy of a folder may have lost who may execute what."""
    packed = SLUICE.with_name("sluice.gz")
    if packed.exists() and not SLUICE.exists():
        half = SLUICE.with_name("sluice.part")
        with gzip.open(packed) as source, half.open("wb") as target:
            shutil.copyfileobj(source, target)
        half.rename(SLUICE)
    for file in (HERE / "bin").iterdir():
        try:
            file.chmod(0o755)
        except OSError:
            pass
    os.environ["SLUICE_LIB_DIR"] = str(HERE / "lib")
    for name in ("SLUICE_NODE", "SLUICE_SERVER", "SLUICE_EVIDENCE"):
        os.environ.pop(name, None)
    # Ended from outside, the check still says what it knows.
    signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))


def evidence(gpus, real, found):
    """What `cargo xtask gpu-check --record` reads: on what functions succeeded, and which."""
    driver, card = real or ("", "")
    head = {"gpus": gpus, "driver": driver, "card": card, "date": time.strftime("%Y-%m-%d", time.gmtime())}
    return "".join(f"# {name}: {value}\n" for name, value in head.items()) + "".join(f"{name}\n" for name in found)


def finish(check):
    report = check.report
    found = sorted({line for file in check.evidence_folder.iterdir() for line in file.read_text(errors="replace").splitlines()})
    report.file("evidence.txt").write_text(evidence(check.options.gpus, machine.real_driver(), found))
    table = report.table()
    report.file("table.txt").write_text(f"{table}\n\n{report.summary()}\n")
    print(f"\n{table}\n\n{report.summary()}\n{len(found)} driver functions succeeded under a lease; files in {report.folder}", flush=True)
    report.close()
    if check.node is not None and not check.node.close():
        print("the node did not end", flush=True)
    for folder in [check.evidence_folder, *check.built]:
        shutil.rmtree(folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=9, help="for all; what does not fit is not reached")
    parser.add_argument("--quick", action="store_true", help="shares for 5 s")
    parser.add_argument("--only", action="append", default=[], metavar="PART", help="the steps whose names contain this (again for more)")
    parser.add_argument("--skip", action="append", default=[], metavar="PART", help="not those whose names contain this")
    parser.add_argument("--report", default=os.environ.get("OUT", "."), metavar="FOLDER")
    parser.add_argument("--record", action="store_true", help="run what fails under a lease only once more with `sluice record`")
    parser.add_argument("--gpus", default="nvidia", help="what the node lends, as for `sluice node --gpus`")
    parser.add_argument("--list", action="store_true", help="print the steps' names")
    options = parser.parse_args()
    if options.list:
        print("\n".join(names()))
        return 0
    # What is compared is what a program on another machine gets.
    os.environ["SLUICE_SHARED_MEMORY"] = "off"
    prepare()
    Path(options.report).mkdir(parents=True, exist_ok=True)

    def wants(name):
        return (not options.only or any(part in name for part in options.only)) and not any(part in name for part in options.skip)

    check = Check(options, Report(options.report, wants))
    try:
        check.driver, said = machine.native_driver()
        print(f"{machine.in_short()}\ndriver, natively: {said}", flush=True)
        check.report.file("machine.txt").write_text(machine.in_full(said), errors="replace")
        everything(check)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    finally:
        finish(check)
    return check.report.code()


if __name__ == "__main__":
    sys.exit(main())

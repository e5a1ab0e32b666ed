"""Whatever programs and nodes do, the check ends with a summary. No GPU is needed: `sluice` is a script here."""

import contextlib
import io
import json
import os
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

import check
import machine
import plan
from plan import Step
from running import Program, members, python, run

# As far as the check can tell: a node that lends one free GPU, and leases that run the program.
SLUICE = r"""#!/usr/bin/env python3
import json, os, subprocess, sys, time
words = sys.argv[1:]
if words[0] == "node":
    if os.environ.get("NO_NODE"):
        sys.exit("no libcuda.so.1 is installed")
    open(os.environ["NODE_PID"], "w").write(str(os.getpid()))
    print("listening on 127.0.0.1:1", flush=True)
    time.sleep(600)
if words[0] == "run":
    code = subprocess.call(words[words.index("--") + 1:])
    print("sluice: 1 s, 3 kernels, 1 s of GPU time, 2 MiB of memory at most, 1 KiB in, 2 KiB out")
    sys.exit(code)
print(json.dumps([{"name": "NVIDIA", "software": False, "share_leased_ppm": 0, "compute_capability": "9.0", "driver_version": 1}]))
"""


def ending_in(code):
    return python("-c", code)


class Running(unittest.TestCase):
    def test_a_program_that_hangs_is_ended_and_says_where_it_was(self):
        done = run(ending_in("import time\ndef stuck():\n  time.sleep(600)\nstuck()"), {}, 3)
        self.assertEqual(done["code"], "timeout")
        self.assertIn("in stuck", done["output"])

    def test_a_crash_and_odd_bytes_are_told(self):
        done = run(ending_in("import os\nos.write(1, b'\\xff\\xfe ok')\nos.kill(os.getpid(), 11)"), {}, 30)
        self.assertEqual(done["code"], "signal 11")
        self.assertIn("\ufffd ok", done["output"])
        self.assertEqual(run(["/nonexistent"])["code"], "not started")

    def test_what_a_program_leaves_behind_is_ended(self):
        program = Program(ending_in("import subprocess; print(subprocess.Popen(['sleep', '600']).pid)"))
        begin, session = time.monotonic(), program.process.pid
        self.assertEqual(program.wait(60)["code"], 0)
        self.assertLess(time.monotonic() - begin, 50)  # sleep holds the output open for ten minutes
        deadline = time.monotonic() + 20
        while members(session) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertEqual(members(session), [])

    def test_programs_that_are_told_to_go_on_answer_line_by_line(self):
        program = Program(ending_in("print('ready', flush=True)\nfor line in __import__('sys').stdin: print('took', line, flush=True)"), input=True)
        self.assertEqual(program.line("ready", 30), "ready")
        self.assertTrue(program.say(7))
        self.assertEqual(program.line("took", 30), "took 7")
        self.assertIsNone(program.line("took", 0.2))
        program.end_input()
        self.assertEqual(program.wait(30)["code"], 0)

    def test_each_run_has_caches_of_its_own(self):
        homes = [run(ending_in("import os; print(os.environ['HOME'], os.environ['CUDA_CACHE_PATH'])"))["output"] for _ in range(2)]
        self.assertNotEqual(*homes)


class Whole(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        (self.folder / "sluice").write_text(SLUICE)
        (self.folder / "sluice").chmod(0o755)
        os.environ["NODE_PID"] = str(self.folder / "pid")

    def checked(self, steps, minutes=5, **environment):
        """The outcomes of these steps, and what was printed last."""
        words = ["check.py", "--report", str(self.folder), "--minutes", str(minutes)]
        for name in ("machine", "driver facts", "by turns", "shares", "bench", "tiers", "memory limit", "NVML", "timeout"):
            words += ["--skip", name]
        patches = [mock.patch.object(sys, "argv", words), mock.patch.object(check, "SLUICE", self.folder / "sluice"),
                   mock.patch.object(check, "prepare", lambda: None), mock.patch.object(check, "KEEPER", "print('ready')"),
                   mock.patch.object(plan, "worthy", lambda: steps), mock.patch.object(plan, "more", list),
                   mock.patch.object(plan, "risky", list), mock.patch.object(check.elastic, "STEPS", {}), mock.patch.object(machine, "in_full", lambda said: said),
                   mock.patch.dict(os.environ, environment)]
        printed = io.StringIO()
        with contextlib.ExitStack() as stack:
            for patch in patches:
                stack.enter_context(patch)
            stack.enter_context(contextlib.redirect_stdout(printed))
            code = check.main()
        entries = json.loads((self.folder / "report.json").read_text())
        for name in ("output.log", "node.log", "machine.txt", "table.txt", "evidence.txt"):
            self.assertTrue((self.folder / name).exists(), name)
        return code, [(entry["step"], entry["outcome"]) for entry in entries], printed.getvalue()

    def test_a_hang_a_crash_odd_bytes_and_a_dead_node_leave_the_other_steps_and_the_summary(self):
        kill_node = "import os; os.environ.get('SLUICE_EVIDENCE') and os.kill(int(open(os.environ['NODE_PID']).read()), 9)"
        steps = [
            Step("hangs", ending_in("import time; time.sleep(600)"), native_s=1),
            Step("crashes", ending_in("import os; os.kill(os.getpid(), 11)")),
            Step("odd", ending_in("import os; os.write(1, b'\\xff\\n')")),
            Step("kills the node", ending_in(kill_node)),
            Step("breaks the check", ["true"], results=None),
            Step("last", ["true"]),
        ]
        with mock.patch.object(check.Check, "lease", shortened(check.Check.lease)):
            code, outcomes, printed = self.checked(steps)
        self.assertEqual(code, 1)
        self.assertEqual(outcomes, [("hangs", "unmatched"), ("crashes", "unmatched"), ("odd", "passed"), ("kills the node", "passed"),
                                    ("node", "failed"), ("breaks the check", "broken"), ("last", "passed")])
        self.assertIn("3 passed", printed.splitlines()[-2])

    def test_without_a_node_the_native_halves_run(self):
        code, outcomes, printed = self.checked([Step("s", ["true"])], NO_NODE="1")
        self.assertEqual((code, outcomes), (1, [("node", "failed"), ("s", "unmatched")]))
        self.assertIn("natively it ended with 0", printed)
        self.assertIn("no libcuda.so.1 is installed", printed)

    def test_what_there_is_no_time_for_is_not_reached(self):
        code, outcomes, _ = self.checked([Step("s", ["true"])], minutes=0.5)
        self.assertEqual((code, outcomes), (1, [("s", "not reached")]))


def shortened(lease):
    """A leased run that hangs need not take 45 s here."""
    return lambda self, step, command, environment, limit_s: lease(self, step, command, environment, min(limit_s, 2 if step.name == "hangs" else 45))


if __name__ == "__main__":
    unittest.main()

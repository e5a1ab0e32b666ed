"""Runs a program step by step: a step that raises is a failure, the others still run.

Each step is a line of three parts between tabs: OK or FAILED, its name, and what it says. `tests/e2e/src/outcomes.tsv` names steps
that have to be among them.
"""

import sys
import traceback


class Steps:
    """Collects the steps of one program."""

    def __init__(self):
        self.steps = []

    def __call__(self, name):
        def keep(function):
            self.steps.append((name, function))
            return function

        return keep

    def run(self):
        failed = []
        for name, function in self.steps:
            print(f"begin {name}", flush=True)
            try:
                print(f"OK\t{name}\t{one_line(function())}", flush=True)
            except Exception as error:  # noqa: BLE001: the point is to go on
                failed.append(name)
                print(f"FAILED\t{name}\t{type(error).__name__}: {one_line(error)}", flush=True)
                traceback.print_exc(limit=3)
        print(f"{len(self.steps) - len(failed)} of {len(self.steps)} steps")
        print("PASS" if not failed else f"FAIL: {', '.join(failed)}")
        sys.exit(1 if failed else 0)


def one_line(value):
    return " ".join(str(value).split())[:300]

"""Runs a program step by step: a step that raises is a failure, the others still run."""

import sys
import traceback


class Steps:
    """Collects the steps of one program. `values`: whether the back end computes, so that results can be checked."""

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
            try:
                print(f"OK {name} {str(function())[:100]!r}", flush=True)
            except Exception as error:  # noqa: BLE001: the point is to go on
                failed.append(name)
                print(f"FAILED {name} {type(error).__name__}: {str(error)[:300]}", flush=True)
                traceback.print_exc(limit=3)
        print(f"{len(self.steps) - len(failed)} of {len(self.steps)} steps")
        print("PASS" if not failed else f"FAIL: {', '.join(failed)}")
        sys.exit(1 if failed else 0)

"""What all test programs share: a seed that is printed, comparisons that count, one last line."""

import os
import sys

import numpy as np

SEED = int(os.environ.get("SEED") or int.from_bytes(os.urandom(4), "little"))
rng = np.random.default_rng(SEED)
print(f"seed {SEED} (repeat with SEED={SEED})", flush=True)

_passed = 0
_failed = []


def check(name, got, want, rtol=0.0, atol=0.0):
    """Counts a comparison: exact, NaN equal to NaN, unless a tolerance is given."""
    global _passed
    got, want = np.asarray(got), np.asarray(want)
    problem = None
    if got.shape != want.shape:
        problem = f"shape {got.shape}, expected {want.shape}"
    elif got.dtype != want.dtype:
        problem = f"dtype {got.dtype}, expected {want.dtype}"
    elif rtol == 0.0 and atol == 0.0:
        equal = (got == want) | ((got != got) & (want != want))
        if not np.all(equal):
            at = tuple(int(i[0]) for i in np.nonzero(~np.atleast_1d(equal)))
            problem = f"{np.size(equal) - np.count_nonzero(equal)} of {np.size(equal)} differ, first at {at}: " \
                      f"{np.atleast_1d(got)[at]!r}, expected {np.atleast_1d(want)[at]!r}"
    elif not np.allclose(got, want, rtol=rtol, atol=atol, equal_nan=True):
        difference = np.abs(got.astype(np.complex128) - want.astype(np.complex128))
        problem = f"off by up to {np.nanmax(difference)} (rtol {rtol}, atol {atol})"
    if problem:
        _failed.append(name)
        print(f"FAIL {name}: {problem}", flush=True)
    else:
        _passed += 1


def section(name, function):
    """Runs one part; an exception is one failure and the next part goes on."""
    before = len(_failed)
    try:
        function()
    except Exception as exception:  # noqa: BLE001 - whatever a program raises is a failed check
        _failed.append(name)
        print(f"FAIL {name}: {type(exception).__name__}: {exception}", flush=True)
    print(f"{'ok  ' if len(_failed) == before else 'FAIL'} {name}", flush=True)


def finish():
    print(f"{'PASS' if not _failed else 'FAIL'}: {_passed} checks passed, {len(_failed)} failed", flush=True)
    sys.exit(1 if _failed else 0)

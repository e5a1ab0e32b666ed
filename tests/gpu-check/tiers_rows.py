"""Rows of the table that `tiers.py` prints."""

import math

ERROR_MAX = 2.0


def row(what, figure, baseline, goal, met):
    """`met` is None where nothing is demanded or nothing was measured."""
    return {"what": what, "figure": figure, "baseline": baseline, "goal": goal, "met": met}


def error_row(what, errors, baseline):
    """Of errors in points."""
    found = quantile(sorted(errors), 0.99)
    return row(what, points(found), f"{baseline}; {len(errors)} windows", points(ERROR_MAX), found <= ERROR_MAX)


def quantile(ordered, part):
    """The least value that so many of the values do not exceed."""
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


def points(value):
    return f"{value:.2f} points"


def percent(value):
    return f"{value:.2f} %"


def text_of(rows):
    said = {True: "met", False: "MISSED", None: ""}
    return "\n".join(f"{one['what']}: {one['figure']} ({one['baseline']}); goal {one['goal']}: {said[one['met']]}" for one in rows)

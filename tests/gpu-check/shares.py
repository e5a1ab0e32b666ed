"""Two programs that compute without pause at the same time, each on a share of the GPU."""

import re
import time

from plan import program
from running import Program, run

# Long enough to queue well ahead of a round trip, shorter than the units of work that the goal speaks of.
KERNEL_MS = 3.0
SHARES = [("0.7", "0.3", 20), ("0.75", "0.25", 8), ("0.9", "0.1", 8)]


def rounds_here():
    """How many rounds make a kernel of that length on this card, and what was said if that is not known."""
    done = run(program("compute.py"), {"KIND": "measure"}, 60)
    match = re.search(r"^round_ns ([0-9.]+)$", done["output"], re.MULTILINE)
    return (max(1, round(KERNEL_MS * 1e6 / float(match[1]))) if match and float(match[1]) > 0 else None), done


def start(check, share, rounds, seconds):
    environment = {"KIND": "even", "ROUNDS": str(rounds), "SECONDS": str(seconds), "TAIL": "4", "START": "input", **check.evidence()}
    return Program(check.node.lease("-p", share, "--memory", "256MiB") + program("compute.py"), environment, input=True)


def together(check, shares, rounds, seconds):
    """Runs one program for each share at the same time; their runs, with the units that each finished in each second."""
    programs = [start(check, share, rounds, seconds) for share in shares]
    ready = [one.line("ready", check.limit(60)) for one in programs]  # however long it takes, they begin together
    begin = time.time() + 0.5
    if None not in ready:
        for one in programs:
            one.say(begin)
    runs = [one.wait(check.limit(seconds + 34) if None not in ready else 1, check.node.stacks) for one in programs]
    for done in runs:
        line = re.search(r"^each second ([0-9 ]+)$", done["output"], re.MULTILINE)
        done["units"] = [int(word) for word in line[1].split()] if line and done["code"] == 0 else None
    return runs


def check_shares(check, left, right, seconds, quick):
    name, seconds = f"shares {left}/{right}", 5 if quick else seconds
    rounds, measured = check.once("rounds", rounds_here)
    if rounds is None:
        return check.failed({"step": name, "outcome": "failed", "why": "a kernel could not be timed natively", "native": measured})
    runs = together(check, (left, right), rounds, seconds)
    entry = {"step": name, "rounds": rounds, "leased": runs[0], "beside": runs[1]}
    units = [done["units"] for done in runs]
    if None in units or not all(map(sum, zip(*units))):
        codes = [done["code"] for done in runs]
        return check.failed({**entry, "outcome": "failed", "why": f"the programs ended with {codes[0]} and {codes[1]}"})
    parts = [one / (one + other) for one, other in zip(*units)]
    part, worst = sum(units[0]) / sum(map(sum, units)), max(abs(part - float(left)) for part in parts)
    rate = sum(map(sum, units)) / seconds
    entry.update(part=part, parts=parts, worst_second=worst, units_per_s=rate)
    entry["outcome"] = "passed" if abs(part - float(left)) <= 0.05 else "failed"
    entry["why"] = f"{part:.4f}, worst second off by {worst:.4f}; by second " + " ".join(f"{part:.3f}" for part in parts)
    (check.report.add if entry["outcome"] == "passed" else check.failed)(entry)
    if left == "0.7":
        goals_of_shares(check, entry, rounds, rate, worst)


def goals_of_shares(check, entry, rounds, rate, worst):
    from goals import goal

    check.report.add(goal("shares 70/30, worst second", worst, 0.02))
    check.free_node()
    alone = together(check, ("0.7",), rounds, 5)[0]
    if alone["units"]:
        cost = 1 - rate / (sum(alone["units"]) / 5)
        check.report.add({**goal("shares, cost of two instead of one", cost, 0.015), "leased": alone})

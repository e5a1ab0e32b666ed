"""Steps of `check.py` that `tiers.py` measures, each of them with a control plane of its own."""

import json
from pathlib import Path

from running import python, run

HERE = Path(__file__).resolve().parent
# What each part takes, in the order of what it is worth, in seconds.
PARTS = {"service": 120, "shares": 190, "hard cap": 60, "fixed job": 60, "gate": 40, "standard service": 50}
STEPS = [f"tiers: {part}" for part in PARTS]


def entries_of(name, rows):
    """A row of the measurement is a goal where something is demanded."""
    outcome = {True: "met", False: "missed", None: "passed"}
    return [{"step": f"{name}: {row['what']}", "outcome": outcome[row["met"]], "why": f"{row['figure']} ({row['baseline']}); goal {row['goal']}"}
            for row in rows]


def rows_in(output):
    begin = output.find('[{"what"')
    try:
        return json.JSONDecoder().raw_decode(output[max(begin, 0):])[0] if begin >= 0 else None
    except json.JSONDecodeError:
        return None


def measure(check, part):
    name = f"tiers: {part}"
    if check.rest() < PARTS[part]:
        return check.report.add({"step": name, "outcome": "not reached", "why": f"it takes {PARTS[part]} s"})
    command = python(HERE / "tiers.py", "--sluice", check.sluice, "--gpus", check.node.gpus, "--memory", "1GiB", "--native", "system",
                     "--only", part, "-o", "json")
    done = run(command, {}, check.limit(2 * PARTS[part]))
    rows = rows_in(done["output"])
    if done["code"] != 0 or not rows:
        return check.failed({"step": name, "outcome": "failed", "why": f"ended with {done['code']}", "leased": done})
    check.report.add({"step": name, "outcome": "passed", "alone": done})
    for entry in entries_of(name, rows):
        check.report.add(entry)

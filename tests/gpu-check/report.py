"""What came out: kept in files while the check goes on, and printed at its end, what matters most last."""

import json
import shlex
from pathlib import Path

OUTCOMES = ("passed", "failed", "broken", "unmatched", "met", "missed", "skipped", "not reached")
BAD = {"failed", "broken", "unmatched", "missed"}
KEPT, LOG_MAX = 20_000, 15 << 20


def repeat(run):
    """The command to type to run a program again."""
    return shlex.join([*(f"{name}={value}" for name, value in run["environment"].items()), *run["command"]])


def kept(value):
    """A run without most of its output, which is in output.log."""
    return {**value, "output": value["output"][-KEPT:]} if isinstance(value, dict) and "output" in value else value


class Report(list):
    def __init__(self, folder, wants):
        super().__init__()
        self.folder, self.wants = Path(folder), wants
        self.log = open(self.file("output.log"), "wb")

    def file(self, name):
        return self.folder / name

    def add(self, entry):
        self.append({name: kept(value) for name, value in entry.items()})
        print(f"{entry['outcome']:11} {entry['step']}{': ' + entry['why'][:600] if entry.get('why') else ''}", flush=True)
        for key in ("native only", "leased only", "neither"):
            if entry.get(key):
                print(f"            {key}: {', '.join(entry[key])[:1500]}", flush=True)
        for difference in entry.get("differences", [])[:20]:
            print(f"            {difference[:300]}", flush=True)
        self.file("report.json").write_text(json.dumps(self, indent=1, default=str))
        for side, run in entry.items():
            for one in run if isinstance(run, list) else [run]:
                if isinstance(one, dict) and "output" in one and "command" in one:
                    self.log_run(f"{entry['step']}, {side}", one)

    def log_run(self, title, run):
        text = f"=== {title}: {run['code']} after {run['seconds']} s\n$ {repeat(run)}\n{run['output']}\n{run.get('stacks', '')}\n"
        room = LOG_MAX - self.log.tell()
        self.log.write(text.encode(errors="replace")[:max(room, 0)])
        self.log.flush()

    def table(self):
        """Each step's figures beside each other: seconds of the whole program with cold caches, and what it measured itself."""
        lines = [f"{'step':40} {'figure':24} {'native':>12} {'leased':>12} {'ratio':>7}"]
        for entry in self:
            sides = [entry.get(side) for side in ("native", "leased")]
            figures = entry.get("figures", {})
            rows = [("seconds", *(side["seconds"] for side in sides))] if all(isinstance(side, dict) for side in sides) else []
            names = {**figures.get("native", {}), **figures.get("leased", {})}
            rows += [(name, *(figures.get(side, {}).get(name) for side in ("native", "leased"))) for name in names]
            for name, native, leased in rows:
                shown = [f"{value:12.4g}" if isinstance(value, (int, float)) else f"{'-':>12}" for value in (native, leased)]
                if shown == [f"{'-':>12}"] * 2:
                    continue
                both = all(isinstance(value, (int, float)) for value in (native, leased)) and native
                lines.append(f"{entry['step'][:40]:40} {name:24} {shown[0]} {shown[1]} {leased / native if both else 0:7.3f}"
                             if both else f"{entry['step'][:40]:40} {name:24} {shown[0]} {shown[1]} {'-':>7}")
            if closing := entry.get("closing"):
                lines.append(f"{entry['step'][:40]:40} leased: {closing['kernels']} kernels, {closing['gpu_time']} GPU time, "
                             f"{closing['bytes_in']} in, {closing['bytes_out']} out; {entry['identical']} of {entry['results']} results identical")
        return "\n".join(lines)

    def summary(self):
        """One short line for each step, and the counts."""
        lines = [f"{entry['outcome']:11} {entry['step'][:45]}{': ' + entry['why'][:70] if entry.get('why') and entry['outcome'] != 'passed' else ''}"
                 for entry in self]
        outcomes = [entry["outcome"] for entry in self]
        counts = [f"{outcomes.count(outcome)} {outcome}" for outcome in OUTCOMES if outcome in outcomes]
        return "\n".join([*lines, ", ".join(counts)])

    def code(self):
        outcomes = {entry["outcome"] for entry in self}
        return 1 if BAD & outcomes or not {"passed", "met"} & outcomes else 0

    def close(self):
        self.log.close()

"""What the project promises of speed, and whether it holds here."""

import json
import math
from statistics import mean, median, stdev

from compare import alike, figures_of
from plan import program
from running import Program, run

# Two-sided 95 % of Student's distribution, by degrees of freedom.
T_95 = {4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 11: 2.201, 12: 2.179, 13: 2.160, 14: 2.145}
PAIRS, PAIRS_MIN = 15, 5
TRAINING = [("gpt2", 1.01), ("11m", 1.03), ("toy", 2.0), ("launches", None)]


def goal(what, value, limit, unit="", most=True):
    """An entry of the report: `value` has to be at most `limit`, or at least it."""
    met = value <= limit if most else value >= limit
    why = f"{value:.4g} {unit} ({'at most' if most else 'at least'} {limit:g})"
    return {"step": f"goal: {what}", "outcome": "met" if met else "missed", "value": value, "limit": limit, "why": why}


def medians(outputs):
    runs = [figures_of(output) for output in outputs]
    return {name: median(figures[name] for figures in runs if name in figures) for name in runs[0]} if runs else {}


def of_calls(figures):
    return [
        goal("queued call, CPU of the client", figures["queued_launch_cpu_us"], 0.5, "us"),
        goal("queued calls", 1e6 / figures["queued_launch_done_wall_us"], 1e6, "calls/s", most=False),
        goal("waiting call, above a ping-pong", figures["waiting_call_us"] - figures["waiting_ping_us"], 8, "us"),
        goal("copies in, of a plain socket", figures["bulk_in_gib_s"] / figures["bulk_in_plain_gib_s"], 0.9, most=False),
        goal("copies out, of a plain socket", figures["bulk_out_gib_s"] / figures["bulk_out_plain_gib_s"], 0.9, most=False),
    ]


def of_start(figures):
    return [
        goal("start to context", figures["context_ms"], 15, "ms"),
        goal("exit", figures["exit_ms"], 5, "ms"),
        goal("memory of a client", figures["context_mib"], 16, "MiB"),
    ]


def of_remoting(links):
    entries = []
    for name, link in links.items():
        if not isinstance(link, dict) or "htod_bytes_per_s" not in link:
            continue
        limit = 0.9 if name in ("tcp", "tls") else 0.8
        for way in ("htod", "dtoh"):
            part = link[f"{way}_bytes_per_s"] / link[f"{way}_baseline_bytes_per_s"]
            entries.append(goal(f"{name}: {way}, of the same bytes without CUDA", part, limit, most=False))
        entries.append(goal(f"{name}: queued call, CPU of the client", link["queued_call_client_cpu_us"], 0.5, "us"))
        entries.append(goal(f"{name}: waiting call, above a round trip", link["waiting_call_us"] - link["round_trip_us"], 8, "us"))
    return entries


OF_STEPS = {"calls and copies": of_calls, "start": of_start}


def remoting(check):
    """The product's own measurement, over TCP, TLS and shared memory."""
    done = run([check.sluice, "bench", "remoting", "--gpus", check.node.gpus, "--runs", "3", "-o", "json"], {}, check.limit(150))
    begin = done["output"].find("{\n")
    try:
        found = json.JSONDecoder().raw_decode(done["output"][max(begin, 0):])[0]
    except json.JSONDecodeError:
        found = None
    if done["code"] != 0 or not isinstance(found, dict):
        return check.report.add({"step": "bench remoting", "outcome": "failed", "why": f"ended with {done['code']}", "alone": done})
    check.report.add({"step": "bench remoting", "outcome": "passed", "figures": {"leased": found}, "alone": done})
    for entry in of_remoting(found):
        check.report.add(entry)


def interval(ratios):
    """Mean of ratios and its 95 % interval, by their logarithms."""
    logs = [math.log(ratio) for ratio in ratios]
    half = T_95[len(logs) - 1] * stdev(logs) / math.sqrt(len(logs))
    return tuple(math.exp(value) for value in (mean(logs), mean(logs) - half, mean(logs) + half))


class Stopped(Exception):
    """One of the two programs said nothing more."""


def turn(program, steps, limit_s):
    line = program.line("took ", limit_s) if program.say(steps) else None
    if line is None:
        raise Stopped
    _, seconds, last = line.split()
    return float(seconds), last


def by_turns(check, what, limit):
    """Two processes, one natively and one leased, take turns of about a second, in the same minute on the same clocks."""
    name = f"by turns: {what}"
    sides = {"native": Program(program("turns.py"), {"WHAT": what}, input=True),
             "leased": Program(check.node.lease("-p", "1", "--memory", "8GiB") + program("turns.py"),
                               {"WHAT": what, **check.evidence()}, input=True)}
    pairs, lasts, why = [], {}, None
    try:
        for side, one in sides.items():
            if one.line("ready", check.limit(90)) is None:
                raise Stopped
        first, _ = turn(sides["native"], 5, check.limit(30))
        turn(sides["leased"], 5, check.limit(30))
        steps = max(5, min(1000, round(5 / first)))
        while len(pairs) < PAIRS and (check.rest() > 15 or len(pairs) < PAIRS_MIN):
            order = ["native", "leased"] if len(pairs) % 2 == 0 else ["leased", "native"]
            took = {}
            for side in order:
                took[side], lasts[side] = turn(sides[side], steps, check.limit(60))
            pairs.append((took["native"] / steps, took["leased"] / steps))
        for one in sides.values():
            one.end_input()
    except Stopped:
        why = f"a program stopped after {len(pairs)} pairs"
    runs = {side: one.wait(check.limit(10) if why is None else 1, check.node.stacks) for side, one in sides.items()}
    entry = {"step": name, "outcome": "passed", "pairs": pairs, **runs}
    if why is None and not alike(lasts["native"], lasts["leased"], (1e-2, 0)):
        why = f"the last result is {lasts['native']} natively, {lasts['leased']} leased"
    if why is None and any(one["code"] != 0 for one in runs.values()):
        why = f"ended with {runs['leased']['code']}, natively with {runs['native']['code']}"
    if len(pairs) >= PAIRS_MIN:
        ratio, low, high = interval([leased / native for native, leased in pairs])
        entry.update(ratio=ratio, interval=[low, high])
        entry["figures"] = {"native": {"step_ms": median(native for native, _ in pairs) * 1e3},
                            "leased": {"step_ms": median(leased for _, leased in pairs) * 1e3}}
    if why:
        return check.failed({**entry, "outcome": "failed", "why": why})
    entry["why"] = f"{ratio:.4f} times native, 95 % in [{low:.4f}, {high:.4f}], {len(pairs)} pairs"
    check.report.add(entry)
    if limit is not None:
        check.report.add(goal(f"training by turns, {what}", high, limit, "times native, upper end of 95 %"))

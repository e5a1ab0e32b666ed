"""What two runs of a program say of their results, and whether that is the same."""

import math
import re

# Steps that say something of the card, of which a lease is a part, or of this moment.
OF_THE_CARD = {"props", "mem_get_info", "memory_summary", "nvml util", "ipc", "pmap-free memory_stats"}
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|\b(?:nan|inf)\b")
# Sums of floats depend on the order in which blocks end, and losses on many of them.
TOLERANCES = {"loss": (1e-2, 0.0), "": (1e-4, 1e-5)}
CLOSING = re.compile(r"^sluice: (?P<age>.*?), (?P<kernels>\d+) kernels, (?P<gpu_time>.*?) of GPU time, (?P<memory>.*?) of memory at most, "
                     r"(?P<bytes_in>.*?) in, (?P<bytes_out>.*?) out$", re.MULTILINE)


def figures_of(output):
    """Lines of a name and a number: what a program has measured itself."""
    found = {}
    for line in output.splitlines():
        match = re.fullmatch(r"([a-z0-9_]+) (\S+)", line)
        try:
            found.update({match[1]: float(match[2])} if match else {})
        except ValueError:
            continue
    return found


def results_of(step, output):
    """What a program says of its results, by name: its steps' words, and those of its figures that it computes."""
    steps = re.findall(r"^OK\t([^\t\n]*)\t(.*)$", output, re.MULTILINE)
    found = {name: "" if name in OF_THE_CARD else words for name, words in steps}
    found.update((name, str(value)) for name, value in figures_of(output).items() if name in step.results)
    return found


def alike(left, right, tolerance=TOLERANCES[""]):
    """Whether two texts are the same but for the last digits of their numbers."""
    if left is None or right is None or NUMBER.sub("#", left) != NUMBER.sub("#", right):
        return False
    pairs = zip(map(float, NUMBER.findall(left)), map(float, NUMBER.findall(right)))
    return all(math.isclose(a, b, rel_tol=tolerance[0], abs_tol=tolerance[1]) or (a != a and b != b) for a, b in pairs)


def differences(native, leased):
    """One line for each result of both that is not the same."""
    return [f"{name}: {native[name]!r} natively, {leased[name]!r} leased" for name in native if name in leased
            and not alike(native[name], leased[name], TOLERANCES["loss" if "loss" in name else ""])]


def parts_of(output):
    """Whether each part of a program has passed, by name. A part that has begun and was not ended has not."""
    found = {}
    for line in output.splitlines():
        if match := re.match(r"(OK|FAILED)\t([^\t]*)\t", line):
            word, name = match[1], match[2]
        elif match := re.match(r"(ok|FAIL|FAILED|begin) +([^:\s][^:]*)", line):
            word, name = match[1], match[2].strip()
        else:
            continue
        if word == "begin":
            found.setdefault(name, False)
        else:
            found[name] = word in ("OK", "ok")
    return found


def unended(output):
    """The part in which a program was when it ended."""
    last = None
    for line in output.splitlines():
        if match := re.match(r"begin +(.*)", line):
            last = match[1].strip()
        elif last and re.match(r"(ok|OK|FAIL|FAILED)[ \t]+" + re.escape(last) + r"\b", line):
            last = None
    return last


def took_along(output):
    """The part after which all others have failed, three at least: its error may have been one that stays."""
    parts = list(parts_of(output).items())
    after = len(parts)
    while after > 0 and not parts[after - 1][1]:
        after -= 1
    return parts[after][0] if 0 < after and len(parts) - after > 3 else None


def closing_of(output):
    """What `sluice run` says at a program's end of what it did; None if it does not."""
    found = list(CLOSING.finditer(output))
    return {**found[-1].groupdict(), "kernels": int(found[-1]["kernels"])} if found else None


def went_through(step, closing):
    """Whether the program's calls came to the node: its kernels, or the bytes of one that launches none."""
    return bool(closing) and (closing["kernels"] > 0 or not step.kernels and closing["bytes_in"] != "0 B")


def compared(step, native, leased):
    """The outcome of a step, and why. What only one of the two can do is told apart from what neither can."""
    parts = [parts_of(run["output"]) for run in (native, leased)]
    names = list(dict.fromkeys([*parts[0], *parts[1]]))
    passed = {name: [part.get(name, False) for part in parts] for name in names}
    told = {"native only": [name for name, (here, there) in passed.items() if here and not there],
            "leased only": [name for name, (here, there) in passed.items() if there and not here],
            "neither": [name for name, (here, there) in passed.items() if not here and not there]}
    results = [results_of(step, run["output"]) for run in (native, leased)]
    wrong = [f"{name}: no such figure" for name in step.results if name not in results[0] or name not in results[1]]
    wrong += differences(*results)
    closing = closing_of(leased["output"])
    entry = {"results": len(results[0]), "identical": sum(results[0][name] == results[1].get(name) for name in results[0]),
             "parts": len(names), "differences": wrong, "closing": closing, **{key: value for key, value in told.items() if value}}

    if told["native only"]:
        outcome, why = "failed", f"{len(told['native only'])} of {len(names)} parts pass natively only"
    elif leased["code"] != 0 and native["code"] == 0:
        outcome, why = "failed", f"ended with {leased['code']}, natively with 0"
    elif native["code"] == 0 and wrong:
        outcome, why = "failed", f"{len(wrong)} results differ"
    elif leased["code"] == 0 and not went_through(step, closing):
        outcome = "failed"
        why = "it launched nothing through Sluice: it has found another driver" if closing else "`sluice run` did not say what it used"
    elif native["code"] != 0:
        outcome, why = "unmatched", f"the native run ended with {native['code']}, the leased one with {leased['code']}"
        ways = {"leased only": "pass leased only", "neither": "pass in neither"}
        why += "".join(f"; {len(told[key])} parts {words}" for key, words in ways.items() if told[key])
        if wrong:
            outcome, why = "failed", f"{len(wrong)} results differ; {why}"
    else:
        return {"outcome": "passed", **entry}
    return {"outcome": outcome, "why": why, **entry}

"""Runs a project's own tests, each of its modules in a process of its own, and writes a page about what does not pass.

A kernel that fails ends the use of CUDA in its process, so that modules do not share one. The results
of a module are kept in a folder as one XML file. A module that has one is not run again, so a run can
be continued.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Suite:
    # The page's first line.
    title: str
    # What was tested, in the place of a sentence's subject after "Results of N tests".
    tested: str
    # The program that writes the page.
    program: str
    # The names of all modules.
    modules: list
    # From a module's name and the state's folder to the arguments of pytest.
    arguments: object
    # Why a test does not pass, by what its message or its name has.
    reasons: list
    # A module gets this long, in seconds, unless `--limit` says otherwise: most of it is compile time.
    limit: int = 1800
    # From a module's name to the group that it is counted in; without it there is no such table.
    group: object = None
    # What the page says below its table of counts.
    notes: list = field(default_factory=list)


def parser(description):
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--state", required=True, help="the folder for results")
    options.add_argument("--page", help="the page to write")
    options.add_argument("--limit", type=int, help="seconds for each module; what has run by then counts")
    options.add_argument("modules", nargs="*", help="parts of the names of modules to run, instead of all")
    return options


def run(suite, options):
    """Runs what has no result yet, and writes the page."""
    # A shell's background jobs ignore this signal, and so would pytest.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for module in suite.modules:
        if not options.modules or any(part in module for part in options.modules):
            run_module(suite, module, options.state, options.limit or suite.limit)
    results = {module: outcomes(module, options.state) for module in suite.modules}
    print(dict(count(results.values())))
    if options.page:
        with open(options.page, "w") as file:
            file.write(page(suite, results))


def run_module(suite, module, state, limit):
    result = os.path.join(state, module + ".xml")
    if os.path.exists(result):
        return
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={result}.part"]
    words += suite.arguments(module, state)
    with open(os.path.join(state, module + ".log"), "w") as log:
        tests = subprocess.Popen([sys.executable, *words], stdout=log, stderr=subprocess.STDOUT, cwd=state)
        try:
            tests.wait(limit)
        except subprocess.TimeoutExpired:
            log.write(f"\nstopped after {limit} s\n")
            stop(tests)
    if os.path.exists(result + ".part"):
        os.rename(result + ".part", result)
    print(module, dict(count([outcomes(module, state)])) or "no result", flush=True)


def stop(tests):
    """Interrupts pytest, which then writes the results that it has; ends it if that takes long."""
    tests.send_signal(signal.SIGINT)
    try:
        tests.wait(60)
    except subprocess.TimeoutExpired:
        tests.kill()
        tests.wait()


def outcomes(module, state):
    """Of each test of a module: what became of it, and the message. None if the module has no result."""
    path = os.path.join(state, module + ".xml")
    if not os.path.exists(path):
        return None
    found = {}
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = f"{case.get('classname', '').split('.')[-1]}.{case.get('name')}"
        outcome, message = "passed", ""
        for kind, word in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
            element = case.find(kind)
            if element is not None:
                outcome, message = word, f"{element.get('message') or ''}\n{element.text or ''}"
        found[name] = (outcome, message)
    return found


def count(results):
    """How many tests have passed, failed and been skipped."""
    return Counter(outcome for tests in results if tests is not None for outcome, _ in tests.values())


def page(suite, results):
    have = {module: tests for module, tests in results.items() if tests is not None}
    counts = count(have.values())
    run_tests = counts["passed"] + counts["failed"]
    share = 100 * counts["failed"] / max(run_tests, 1)
    lines = [
        f"# {suite.title}",
        "",
        f"Results of {sum(counts.values())} tests {suite.tested}.",
        f"`tests/programs/{suite.program}` runs them and writes this page; its head says how.",
        "",
        "| tests | |",
        "|---|---|",
        f"| pass | {counts['passed']} |",
        f"| do not pass | {counts['failed']} ({share:.1f} % of those that ran) |",
        f"| skipped by the suite itself | {counts['skipped']} |",
    ]
    missing = sorted(set(results) - set(have))
    if missing:
        lines += [f"| modules without a result | {len(missing)} of {len(results)} |"]
    if suite.group:
        lines += ["", *groups(suite, have)]
    if suite.notes:
        lines += ["", *suite.notes]
    lines += ["", "## Tests that do not pass", "", "| module | test | reason |", "|---|---|---|"]
    for module, tests in sorted(have.items()):
        for name, (outcome, message) in sorted(tests.items()):
            if outcome == "failed":
                lines.append(f"| {module} | `{name}` | {reason(suite, name, message)} |")
    if missing:
        lines += ["", "## Modules without a result", "", "They take longer than the limit of time, or were not run.", ""]
        lines += [f"- {module}" for module in missing]
    return "\n".join(lines) + "\n"


def groups(suite, have):
    """A table of how many tests of each group pass."""
    lines = ["| part | pass | do not pass | share |", "|---|---|---|---|"]
    for group in sorted({suite.group(module) for module in have}):
        counts = count(tests for module, tests in have.items() if suite.group(module) == group)
        passed, failed = counts["passed"], counts["failed"]
        lines.append(f"| {group} | {passed} | {failed} | {100 * passed / max(passed + failed, 1):.1f} % |")
    return lines


def reason(suite, name, message):
    for pattern, text in suite.reasons:
        if re.search(pattern, name) or re.search(pattern, message):
            return text
    first = (message.strip().splitlines() or ["no message"])[0]
    return first[:160].replace("|", "\\|")

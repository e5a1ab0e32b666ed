"""Leases that change while their programs run: suspended and resumed, resized, and more of them than the GPU has memory for."""

import json
import subprocess
import time

from compare import compared
from machine import said
from node import Node
from plan import Step, program
from running import Program, run

GIB = 1 << 30
HELD = 16 * GIB
MOVES = 3
# Of the GPU's memory, by each of the two programs that do not fit together.
PART = 0.55
ALONE_S = 12.0
TRAINING = Step("training that is suspended", program("torch_train.py"), {"STEPS": "600"}, needs="torch", figures=True,
                results=("first_loss", "last_loss"))


class Wrong(Exception):
    """What the step was to show does not hold."""


def tell(node, *words, limit_s=60):
    """The exit code of a `sluice` command of the node, and what it printed."""
    done = subprocess.run([node.sluice, *map(str, words), "--node", node.address], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=limit_s)
    return done.returncode, (done.stdout + done.stderr).strip()


def must(node, *words, **more):
    code, text = tell(node, *words, **more)
    if code != 0:
        raise Wrong(f"sluice {' '.join(map(str, words))} ended with {code}: {text}")
    return text


def session(node, place=0):
    sessions = node.ask("sessions") or []
    if place >= len(sessions):
        raise Wrong(f"the node has {len(sessions)} sessions")
    return sessions[place]


def used_on_card():
    """MiB, as NVIDIA's own tool sees it; None without one."""
    text = said(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]).splitlines()
    return int(text[0]) if text and text[0].strip().isdigit() else None


def held(node, memory, bytes_held, seed, evidence, share="0.4"):
    command = node.lease("-p", share, "--memory", memory) + program("held.py", bytes_held, seed)
    return Program(command, evidence, input=True)


def heard(one, word, limit_s):
    """`word` within the limit, or why not."""
    if one.line(word, limit_s) is None:
        raise Wrong(f"no {word!r}: it ended with {one.code()}: {one.output()[-600:]}")


def finished(check, name, programs, function):
    """Runs the body of a step, ends its programs, and reports."""
    why, figures, mark = None, {}, check.node.mark()
    try:
        figures = function()
    except (Wrong, subprocess.TimeoutExpired, KeyError) as error:
        why = f"{type(error).__name__}: {error}"
    for one in programs:
        one.end_input()
    runs = [one.wait(check.limit(30 if why is None else 1), check.node.stacks) for one in programs]
    codes = [one["code"] for one in runs]
    if why is None and any(codes):
        why = f"its programs ended with {codes}"
    entry = {"step": name, "outcome": "failed" if why else "passed", "figures": {"leased": figures}, "programs": runs}
    if why:
        return check.failed({**entry, "why": why, "leased": runs[0] if runs else {}}, mark)
    print(json.dumps({name: figures}), flush=True)
    check.report.add(entry)


def suspended_training(check):
    """PyTorch computes the same losses when it has left the GPU in between."""
    if not check.can(TRAINING.name, TRAINING.needs):
        return
    native = run(TRAINING.command, TRAINING.environment, check.limit(60))
    one = Program(check.node.lease("-p", "1", "--memory", "8GiB") + TRAINING.command, {**TRAINING.environment, **check.evidence()})
    figures, why = {}, None
    try:
        until = time.monotonic() + check.limit(60)
        while not (sessions := check.node.ask("sessions")) or sessions[0]["kernels"] < 5_000:
            if one.code() is not None or time.monotonic() > until:
                raise Wrong(f"it ended with {one.code()} before it had launched 5,000 kernels")
            time.sleep(0.05)
        lease, before = sessions[0]["lease"], used_on_card()
        begin = time.monotonic()
        must(check.node, "suspend", lease)
        figures["suspend_ms"] = 1e3 * (time.monotonic() - begin)
        away = session(check.node)
        figures |= {"moved_mib": away["memory_swapped"] / 2**20, "card_mib_before": before, "card_mib_suspended": used_on_card()}
        kernels = away["kernels"]
        time.sleep(1)
        if session(check.node)["kernels"] != kernels or not away["suspended"]:
            raise Wrong("it computed while it was suspended")
        begin = time.monotonic()
        must(check.node, "resume", lease)
        figures["resume_ms"] = 1e3 * (time.monotonic() - begin)
    except (Wrong, KeyError, subprocess.TimeoutExpired) as error:
        why = f"{type(error).__name__}: {error}"
    leased = one.wait(check.limit(90) if why is None else 5, check.node.stacks)
    entry = {"step": TRAINING.name, "native": native, "leased": leased, **compared(TRAINING, native, leased), "figures": {"leased": figures}}
    if why:
        entry |= {"outcome": "failed", "why": why}
    print(json.dumps({TRAINING.name: figures}), flush=True)
    check.report.add(entry) if entry["outcome"] == "passed" else check.failed(entry, None)


def moving(check):
    """16 GiB leave and return, and a lease is resized around them."""
    node, amount = check.node, min(HELD, int(total_memory(check) * 0.4) >> 20 << 20)
    one = held(node, f"{(amount >> 20) + 64}MiB", amount, 1, check.evidence())

    def body():
        heard(one, "ready", check.limit(60))
        lease, figures = session(node)["lease"], {"gib": amount / GIB}
        before = used_on_card()
        for number in range(MOVES):
            moved, begin = session(node)["memory_moving_us"], time.monotonic()
            must(node, "suspend", lease)
            out = session(node)
            figures[f"suspend_ms_{number}"] = 1e3 * (time.monotonic() - begin)
            figures[f"out_gb_s_{number}"] = amount / 1e3 / (out["memory_moving_us"] - moved)
            figures.update(card_mib=before, card_mib_suspended=used_on_card())
            if out["memory_swapped"] < amount:
                raise Wrong(f"of {amount} bytes {out['memory_swapped']} have left: {out}")
            begin = time.monotonic()
            must(node, "resume", lease)
            figures[f"resume_ms_{number}"] = 1e3 * (time.monotonic() - begin)
            one.say("compute 1")
            heard(one, "computed", check.limit(60))
            figures[f"in_gb_s_{number}"] = amount / 1e3 / (session(node)["memory_moving_us"] - out["memory_moving_us"])
        one.say("check")
        heard(one, "right", check.limit(60))
        code, text = tell(node, "resize", lease, "--memory", f"{amount >> 21}MiB")
        if code == 0 or "a lease cannot have less" not in text:
            raise Wrong(f"less memory than the program holds: ended with {code}: {text}")
        must(node, "resize", lease, "-p", "0.5", "--memory", f"{(amount >> 20) * 5 // 4}MiB")
        if session(node)["share_ppm"] != 500_000:
            raise Wrong(f"resized to half of the GPU: {session(node)}")
        one.say("check")
        heard(one, "right", check.limit(60))
        return figures

    finished(check, "memory that leaves and returns", [one], body)


def total_memory(check):
    return (check.node.ask("gpus") or [{"memory": 0}])[0]["memory"]


def overcommitted(check):
    """Two programs of more than half of the GPU's memory each take turns, and both are right."""
    name, total = "programs that do not fit together", total_memory(check)
    amount = int(total * PART) >> 30 << 30 or int(total * PART) >> 20 << 20
    room = int(dict(line.split(":")[:2] for line in open("/proc/meminfo"))["MemAvailable"].split()[0]) * 1024
    if 2.1 * amount > room:
        return check.report.add({"step": name, "outcome": "skipped", "why": f"{room >> 30} GiB of host memory do not hold both"})
    options = ("--overcommit", "1.3", "--swap-memory", f"{2 * (amount >> 20) + 256}MiB")
    own = Node(check.node.sluice, check.node.gpus, check.report.file("node-overcommit.log"), options)
    memory, programs = f"{(amount >> 20) + 64}MiB", []

    def all_do(words, heard_is, limit_s):
        for one in programs:
            one.say(words)
        for one in programs:
            heard(one, heard_is, check.limit(limit_s))

    def body():
        programs.append(held(own, memory, amount, 1, check.evidence()))
        heard(programs[0], "ready", check.limit(60))
        all_do("compute 10", "computed", 60)
        begin = time.monotonic()
        all_do("compute 10", "computed", 60)
        rounds = max(1, int(10 * ALONE_S / (time.monotonic() - begin)))
        begin = time.monotonic()
        all_do(f"compute {rounds}", "computed", 60)
        alone = time.monotonic() - begin
        begin = time.monotonic()
        programs.append(held(own, memory, amount, 2, check.evidence()))
        heard(programs[1], "ready", check.limit(90))
        came = time.monotonic() - begin
        begin = time.monotonic()
        all_do(f"compute {rounds}", "computed", 120)
        together = time.monotonic() - begin
        moving = lambda: sum(one["memory_moving_us"] for one in own.ask("sessions") or []) / 1e6
        # Again, now that the host memory of both has been made.
        moved, begin = moving(), time.monotonic()
        all_do(f"compute {rounds}", "computed", 120)
        again, moved_again = time.monotonic() - begin, moving() - moved
        sessions = own.ask("sessions") or []
        all_do("check", "right", 60)
        return {"gib_each": amount / GIB, "alone_s": alone, "second_came_s": came, "together_s": together,
                "together_of_one_by_one": together / (2 * alone), "again_of_one_by_one": again / (2 * alone),
                "moving_again_s": moved_again, "moves": sum(one["memory_moves"] for one in sessions),
                "moving_s": sum(one["memory_moving_us"] for one in sessions) / 1e6}

    try:
        finished(check, name, programs, body)
        print(own.said_since(own.begin)[-1500:], flush=True)
    finally:
        own.close()


STEPS = {TRAINING.name: suspended_training, "memory that leaves and returns": moving, "programs that do not fit together": overcommitted}

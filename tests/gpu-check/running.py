"""Runs programs so that whatever they do, the check goes on: output in a file, a session of their own, a limit on everything."""

import os
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import stacks_of

OUTPUT_MAX = 8 << 20
# A program that writes more than this to its output is ended.
FILE_MAX = 256 << 20
END_S = 10


def fresh_environment(folder):
    """Caches and temporary files of one run alone: else the second run of a program would be another one than the first."""
    places = {"HOME": "home", "XDG_CACHE_HOME": "cache", "CUPY_CACHE_DIR": "cupy", "TRITON_CACHE_DIR": "triton",
              "TORCHINDUCTOR_CACHE_DIR": "inductor", "CUDA_CACHE_PATH": "cuda", "NUMBA_CACHE_DIR": "numba", "TMPDIR": "tmp"}
    for place in places.values():
        (folder / place).mkdir(parents=True, exist_ok=True)
    environment = {name: str(folder / place) for name, place in places.items()}
    # Packages that a user has installed stay where they are.
    return {**environment, "PYTHONUSERBASE": site.getuserbase(), "PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1", "NCCL_DEBUG": "WARN", "RUST_BACKTRACE": "1"}


def members(session):
    """The processes of a session, which is what a program started, wherever its children went."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[3]) == session:
                found.append(int(entry.name))
        except (OSError, ValueError, IndexError):
            continue  # it has just ended
    return found


def send(pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            pass


class Program:
    """A program with its output in a file. It is ended with all that it started, at the latest when it is closed."""

    def __init__(self, command, environment=None, input=False):
        self.command = [str(word) for word in command]
        self.own = environment or {}
        self.folder = Path(tempfile.mkdtemp(prefix="gpu-check-"))
        self.path, self.read, self.begin = self.folder / "output", 0, time.monotonic()
        self.process, self.error = None, ""
        try:
            with open(self.path, "wb") as output:
                self.process = subprocess.Popen(
                    self.command, env={**os.environ, **fresh_environment(self.folder), **self.own}, stdout=output, stderr=output,
                    stdin=subprocess.PIPE if input else subprocess.DEVNULL, start_new_session=True)
        except OSError as error:
            self.error = str(error)

    def code(self):
        """How it ended, or None while it runs."""
        if self.process is None:
            return "not started"
        code = self.process.poll()
        return code if code is None or code >= 0 else f"signal {-code}"

    def output(self):
        if self.process is None:
            return self.error
        with open(self.path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - OUTPUT_MAX))
            return file.read().decode(errors="replace").replace("\0", "\\0")

    def say(self, line):
        try:
            self.process.stdin.write(f"{line}\n".encode())
            self.process.stdin.flush()
            return True
        except (OSError, AttributeError, ValueError):
            return False

    def end_input(self):
        try:
            self.process.stdin.close()
        except (OSError, AttributeError):
            pass

    def line(self, begins, limit_s):
        """The next line of its output that begins so; None if it ends before, or the limit does."""
        until = time.monotonic() + limit_s
        while True:
            over = self.code() is not None or time.monotonic() > until
            if self.process is not None:
                with open(self.path, "rb") as file:
                    file.seek(self.read)
                    for line in file:
                        if not line.endswith(b"\n"):
                            break
                        self.read += len(line)
                        if line.startswith(begins.encode()):
                            return line.decode(errors="replace").strip()
            if over:
                return None
            time.sleep(0.0005)

    def wait(self, limit_s, others=None):
        """Waits for its end; says what its processes did if it has to be ended, and what `others` says of those of the node."""
        until, stacks = time.monotonic() + limit_s, ""
        while self.code() is None and time.monotonic() < until and self.path.stat().st_size < FILE_MAX:
            try:
                self.process.wait(0.2)
            except subprocess.TimeoutExpired:
                pass
        code = self.code()
        if code is None:
            code = "timeout" if time.monotonic() >= until else "too much output"
            pids = members(self.process.pid)
            stacks = stacks_of(pids, [pid for pid in pids if pid != self.process.pid][:1])
            stacks += f"\n--- node\n{others()}" if others else ""
            # Python says where its threads are.
            send([pid for pid in pids if pid != self.process.pid] or pids, signal.SIGABRT)
            self.ends_within(3)
        return self.ended(code, stacks)

    def ends_within(self, seconds):
        try:
            self.process.wait(seconds)
            return True
        except subprocess.TimeoutExpired:
            return False

    def ended(self, code, stacks=""):
        seconds = time.monotonic() - self.begin
        self.kill()
        run = {"code": code, "seconds": round(seconds, 3), "command": self.command, "environment": self.own, "output": self.output()}
        if stacks:
            run["stacks"] = stacks
        shutil.rmtree(self.folder, ignore_errors=True)
        return run

    def kill(self):
        """Ends what is left of its session. What hangs in the driver is left to itself."""
        if self.process is None:
            return
        send(members(self.process.pid), signal.SIGKILL)
        self.ends_within(END_S)
        self.end_input()


def run(command, environment=None, limit_s=60, others=None):
    program = Program(command, environment)
    if program.process is None:
        return program.ended("not started")
    return program.wait(limit_s, others)


def python(*arguments):
    return [sys.executable, *map(str, arguments)]

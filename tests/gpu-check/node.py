"""The node that leases this machine's GPU to the programs of the check."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from machine import children_of, said, stacks_of
from running import send

START_S = 60
STOP_S = 20
FREE_S = 30


class NodeFailed(Exception):
    """It did not start."""


class Node:
    def __init__(self, sluice, gpus, log, options=()):
        self.sluice, self.gpus, self.log = str(sluice), gpus, Path(log)
        folder = self.folder = tempfile.mkdtemp(prefix="gpu-check-node-")
        output = Path(folder) / "output"
        environment = {**os.environ, "RUST_BACKTRACE": "1", "XDG_CACHE_HOME": folder, "CUDA_CACHE_PATH": f"{folder}/cuda",
                       "XDG_DATA_HOME": folder}
        command = [self.sluice, "node", "--listen", "127.0.0.1:0", "--linger", "5s", "--gpus", gpus, *options]
        with open(self.log, "ab") as errors, open(output, "wb") as out:
            errors.write(f"--- {' '.join(command)}\n".encode())
            errors.flush()
            self.begin = errors.tell()
            try:
                self.process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=errors,
                                                start_new_session=True)
            except OSError as error:
                raise NodeFailed(str(error)) from error
        until = time.monotonic() + START_S
        while not (line := output.read_text(errors="replace")).endswith("\n"):
            if self.process.poll() is not None or time.monotonic() > until:
                code = self.process.poll()
                self.close()
                ended = f"ended with {code}" if code is not None else f"said nothing for {START_S} s"
                raise NodeFailed(f"--gpus {gpus}: it {ended}: {self.said_since(self.begin)[-1500:]}")
            time.sleep(0.02)
        self.address = line.split()[-1]

    def mark(self):
        return self.log.stat().st_size

    def said_since(self, mark):
        with open(self.log, "rb") as file:
            file.seek(mark)
            return file.read().decode(errors="replace").strip()

    def lease(self, *options):
        return [self.sluice, "run", "--node", self.address, *options, "--"]

    def ask(self, *words):
        """What `sluice WORDS --node … -o json` says, or None."""
        try:
            return json.loads(said([self.sluice, *words, "--node", self.address, "-o", "json"], 15))
        except json.JSONDecodeError:
            return None

    def how_it_ended(self):
        """None while it runs."""
        return self.process.poll()

    def is_free(self):
        """Waits until nothing is leased: a lease ends when its last worker has, which takes a while after a kill."""
        until = time.monotonic() + FREE_S
        while self.how_it_ended() is None:
            gpus = self.ask("gpus")
            if gpus is not None and not any(gpu["share_leased_ppm"] for gpu in gpus):
                return True
            if time.monotonic() > until:
                return False
            time.sleep(0.1)
        return False

    def workers(self):
        return children_of(self.process.pid)

    def stacks(self):
        workers = self.workers()
        return stacks_of(workers + [self.process.pid], workers[:1])

    def close(self):
        """Never raises: the summary comes after this."""
        send([self.process.pid], signal.SIGTERM)
        for number in (signal.SIGKILL, None):
            try:
                self.process.wait(STOP_S)
                shutil.rmtree(self.folder, ignore_errors=True)
                return True
            except subprocess.TimeoutExpired:
                if number is not None:
                    send([*self.workers(), self.process.pid], number)
        return False

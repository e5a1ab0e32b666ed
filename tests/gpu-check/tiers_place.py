"""A control plane with a node for `tiers.py`, and the programs that lease from it."""

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request

from tiers_rows import row

# Prices make costs comparable: a premium share costs twice a standard one, best effort a quarter of it.
PRICES = {"premium": 4.0, "standard": 2.0, "basic": 0.5}
DECLARATION = """
currency: EUR
issuer: measurement
tenants: [{path: service, quota: {guaranteed: 1.0}}, {path: trainers}]
""" + "prices:\n" + "".join(f"  - {{meter: reserved, tier: {tier}, price: {price}}}\n" for tier, price in PRICES.items())
REPORTED_S, END_S = 30, 10
# A node counts once a second, and reports what it counted.
COUNTED_S = 2.2


class Place:
    def __init__(self, folder, options):
        self.folder, self.options, self.sluice, self.native = folder, options, str(options.sluice), options.native
        self.running, self.round_ns = [], None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.metrics = f"127.0.0.1:{free.getsockname()[1]}"
        command = [self.sluice, "up", "--listen", "127.0.0.1:0", "--node-listen", "127.0.0.1:0", "--name", "gpu1", "--gpus", options.gpus,
                   "--node-metrics", self.metrics, "--journal", folder / "journal", "--data", folder / "data"]
        environment = {name: value for name, value in os.environ.items() if name not in ("SLUICE_SERVER", "SLUICE_NODE", "SLUICE_TOKEN")}
        self.environment = {**environment, "XDG_DATA_HOME": str(folder)}
        self.log = open(folder / "up.log", "w+b")
        self.up = subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log, text=True)
        server = self.up.stdout.readline().split()[-1:]
        if not server or not self.up.stdout.readline():
            self.log.seek(0)
            raise RuntimeError(f"{' '.join(map(str, command))}: {self.log.read().decode(errors='replace')[-2000:]}")
        self.environment["SLUICE_SERVER"] = server[0]
        self.tokens = {"admin": json.loads((folder / "data/admin.json").read_text())["token"]}
        declaration = folder / "declaration.yaml"
        declaration.write_text(DECLARATION)
        self.ask("apply", "-f", declaration)
        for tenant in ("service", "trainers"):
            self.tokens[tenant] = self.ask("token", "create", "--tenant", tenant).strip()

    def as_user(self, user):
        return {**self.environment, "SLUICE_TOKEN": self.tokens[user]}

    def ask(self, *words):
        return subprocess.run([self.sluice, *words], env=self.as_user("admin"), stdout=subprocess.PIPE, text=True, check=True,
                              stderr=subprocess.DEVNULL, timeout=60).stdout

    def json(self, *words):
        return json.loads(self.ask(*words, "-o", "json"))

    def leased(self, user, program, tier, share, options=(), own=None):
        if self.round_ns is None and program == "trainer.py":
            self.time_rounds()
        own = {"ROUND_NS": str(self.round_ns), **(own or {})}
        command = [self.sluice, "run", "--tier", tier, "-p", str(share), "--memory", self.options.memory, *options, "--"]
        return Program(self, command + self.python(program), {**self.as_user(user), **own})

    def python(self, program):
        return [sys.executable, str(self.options.programs / program)]

    def trainer(self, share, tier="standard", options=()):
        return self.leased("trainers", "trainer.py", tier, share, options)

    def service(self, tier, work_ms, load, requests):
        if self.round_ns is None:
            self.time_rounds()
        own = {"EACH": "1", "WORK": str(work_ms), "LOAD": str(load), "REQUESTS": str(requests),
               "ROUNDS": str(round(work_ms * 1e6 / self.round_ns))}
        return self.leased("service", "service.py", tier, 0.6, (), own)

    def time_rounds(self):
        """How long a round takes here: the programs' kernels have lengths in milliseconds."""
        self.round_ns = 1.0
        program = self.trainer(1.0)
        program.says("time")
        self.round_ns = float(program.hears("round_ns")[0])
        program.ends()

    def natively(self):
        own = {} if self.native == "system" else {"LD_LIBRARY_PATH": self.native}
        return Program(self, self.python("trainer.py"), {**self.environment, "ROUND_NS": str(self.round_ns), **own})

    def histogram(self, lease):
        """Waits of a lease for the GPU, by bound in seconds: how many did not exceed it."""
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=20) as page:
            text = page.read().decode()
        buckets = re.findall(r"^sluice_lease_turn_wait_seconds_bucket\{([^}]*)\} ([0-9.e+]+)", text, re.MULTILINE)
        found = {}
        for labels, count in buckets:
            if f'lease="{lease}"' in labels:
                bound = re.search(r'le="([^"]+)"', labels)[1]
                found[float(bound.replace("+Inf", "inf"))] = float(count)
        return found

    def costs(self, requests):
        """What the bill says of the programs that have ended, once all of it is there."""
        until, before = time.time() + REPORTED_S, None
        while True:
            lines = self.json("bill")["lines"]
            costs = {(line["tenant"], line.get("tier")): line["cost_micro"] / 1e6 for line in lines if line["meter"] == "reserved"}
            if costs == before or time.time() > until:
                break
            before = costs
            time.sleep(2)
        served, trained = costs.get(("service", "premium"), 0), costs.get(("trainers", "basic"), 0)
        prices = ", ".join(f"{tier} {price:g}" for tier, price in PRICES.items())
        return [row("cost by the bill: the premium service, per 1,000 requests, alone and beside", f"{1e3 * served / requests:.6f} EUR",
                    f"the trainers in that time {trained:.6f} EUR; per GPU-hour held: {prices}", "none", None)]

    def close(self):
        for program in self.running:
            program.process.kill()
        self.up.terminate()
        try:
            self.up.wait(END_S)
        except subprocess.TimeoutExpired:
            self.up.kill()
        self.log.close()


class Program:
    """It is told by lines of its input, and answers by lines that begin with a known word."""

    def __init__(self, place, command, environment):
        self.place = place
        self.errors = open(place.folder / f"program-{len(place.running)}-{time.monotonic_ns()}", "w+")
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True)
        place.running.append(self)
        self.hears("ready")
        named = re.search(r"\blease (\d+)\b", self.said())
        self.lease = named[1] if named else None

    def said(self):
        self.errors.flush()
        self.errors.seek(0)
        return self.errors.read()

    def says(self, line):
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def hears(self, word):
        for line in self.process.stdout:
            if line.split()[:1] == [word]:
                return line.split()[1:]
        raise RuntimeError(f"{' '.join(self.process.args)} ended before it said {word!r}: {self.said()[-2000:]}")

    def gpu_time(self):
        """The age of its session and the GPU time that it has used, in seconds, as its node says."""
        sessions = [one for one in self.place.json("sessions") if str(one["lease"]) == self.lease]
        return sessions[0]["age_ms"] / 1e3, sessions[0]["busy_us"] / 1e6

    def used_ms(self):
        """GPU time that it has used, once its node has counted all of it."""
        time.sleep(COUNTED_S)
        return 1e3 * self.gpu_time()[1]

    def waits(self):
        time.sleep(COUNTED_S)
        return self.place.histogram(self.lease)

    def ends(self):
        self.process.stdin.close()
        code = self.process.wait(60)
        if code != 0:
            raise RuntimeError(f"{' '.join(self.process.args)} ended with {code}: {self.said()[-2000:]}")
        self.place.running.remove(self)
        self.errors.close()

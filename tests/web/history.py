"""Gives a stopped server a month of usage, so that pictures of spending, earnings and plans show some.

The records are what nodes would have delivered, in the server's own database; everything that is shown follows from them.
"""

import hashlib
import math
import random
import sqlite3
import sys
import time

HOUR_MS = 3_600_000
DAYS = 45

# Tenant, its share of a GPU in the first days and how much of that it has at the end, the hours of a day, days of the week.
USERS = [
    ("acme/research", 0.30, 1.7, range(7, 20), range(0, 5)),
    ("acme/sales", 0.15, 1.2, range(9, 17), range(0, 5)),
    ("globex", 0.40, 1.4, range(0, 24), range(0, 7)),
]


def records(now_ms):
    """One for each hour of each tenant; they end before the hour that has not ended."""
    chance = random.Random(28)
    first = now_ms // HOUR_MS - DAYS * 24
    for user, (tenant, share, growth, hours, days) in enumerate(USERS):
        for hour in range(first, now_ms // HOUR_MS - 1):
            at = time.gmtime(hour * HOUR_MS / 1000)
            if at.tm_hour not in hours or at.tm_wday not in days:
                continue
            grown = share * (1 + (growth - 1) * (hour - first) / (DAYS * 24))
            ppm = int(grown * 1_000_000 * chance.uniform(0.85, 1.15))
            busy = 0.55 + 0.25 * math.sin(hour / 5) * chance.random()
            yield user, tenant, hour * HOUR_MS, ppm, int(ppm * busy)


def main(path):
    base = sqlite3.connect(path)
    now_ms = int(time.time() * 1000)
    for number, (user, tenant, from_ms, ppm, used_ppm) in enumerate(records(now_ms)):
        identity = hashlib.sha256(f"{tenant} {from_ms}".encode()).hexdigest()[:32]
        memory_mib = ppm * 15_000 // 1_000_000
        row = {
            "id": identity, "node": user % 2 + 1, "lease": 1_000_000 + user, "attempt": 1, "sequence": number, "tenant": tenant,
            "from_ms": from_ms, "until_ms": from_ms + HOUR_MS, "share_ppm": ppm, "gpus": 1, "memory_mib": memory_mib,
            "reserved_ppm_ms": ppm * HOUR_MS, "used_ppm_ms": used_ppm * HOUR_MS, "memory_mib_ms": memory_mib * HOUR_MS,
            "kernels": 1, "bytes_in": 1 << 30, "bytes_out": 1 << 28, "memory_peak": memory_mib << 20, "last": 0,
            "received_at_ms": from_ms + HOUR_MS, "tier": "standard", "pool": "default", "model": "Sluice Software GPU",
        }
        names, places = ", ".join(row), ", ".join("?" for _ in row)
        base.execute(f"INSERT INTO usage_record ({names}) VALUES ({places})", list(row.values()))
    base.commit()
    base.close()


main(sys.argv[1])

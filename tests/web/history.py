"""Gives a stopped server six weeks of usage: of a month that is over, for invoices, and for pictures of spending and plans.

The records are what nodes would have delivered, in the server's own database; everything that is shown follows from them.
With a number after the database, so many tenants (`team00` and on) have used something in each hour; that server may run.
"""

import hashlib
import math
import random
import sqlite3
import sys
import time

HOUR_MS = 3_600_000
DAYS = 45
# Hours before now of which a tenant has a record every ten seconds, as nodes deliver them: more than a page reads at once.
FINE_TENANT = "globex"
FINE_HOURS = range(49, 65)
FINE_MS = 10_000

# Tenant, its share of a GPU in the first days and how much of that it has at the end, the hours of a day, days of the week.
USERS = [
    ("acme/research", 0.30, 1.7, range(7, 20), range(0, 5)),
    ("acme/sales", 0.15, 1.2, range(9, 17), range(0, 5)),
    ("globex", 0.40, 1.4, range(0, 24), range(0, 7)),
]


def records(now_ms):
    """One for each hour of each tenant, of some hours more; they end before the hour that has not ended."""
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
            is_fine = tenant == FINE_TENANT and now_ms // HOUR_MS - hour in FINE_HOURS
            step_ms = FINE_MS if is_fine else HOUR_MS
            for from_ms in range(hour * HOUR_MS, (hour + 1) * HOUR_MS, step_ms):
                yield user, tenant, from_ms, step_ms, ppm, int(ppm * busy)


# A server that runs writes in between.
COMMIT_AFTER = 500


def main(path, teams=0):
    if teams:
        USERS[:] = [(f"team{team:02}", 0.40, 1.4, range(0, 24), range(0, 7)) for team in range(int(teams))]
    base = sqlite3.connect(path, timeout=30)
    now_ms = int(time.time() * 1000)
    for number, (user, tenant, from_ms, held_ms, ppm, used_ppm) in enumerate(records(now_ms)):
        identity = hashlib.sha256(f"{tenant} {from_ms}".encode()).hexdigest()[:32]
        memory_mib = ppm * 15_000 // 1_000_000
        row = {
            "id": identity, "node": user % 2 + 1, "lease": 1_000_000 + user, "attempt": 1, "sequence": number, "tenant": tenant,
            "from_ms": from_ms, "until_ms": from_ms + held_ms, "share_ppm": ppm, "gpus": 1, "memory_mib": memory_mib,
            "reserved_ppm_ms": ppm * held_ms, "used_ppm_ms": used_ppm * held_ms, "memory_mib_ms": memory_mib * held_ms,
            "kernels": 1, "bytes_in": held_ms << 8, "bytes_out": held_ms << 6, "memory_peak": memory_mib << 20, "last": 0,
            "received_at_ms": from_ms + held_ms, "tier": "standard", "pool": "default", "model": "Sluice Software GPU",
        }
        names, places = ", ".join(row), ", ".join("?" for _ in row)
        base.execute(f"INSERT INTO usage_record ({names}) VALUES ({places})", list(row.values()))
        if number % COMMIT_AFTER == 0:
            base.commit()
    base.commit()
    base.close()


main(*sys.argv[1:])

"""A kernel that leaves its session's memory gets a sticky CUDA_ERROR_ILLEGAL_ADDRESS, whatever lies there.

Each access is made by a process of its own, since the error ends the context. What each place gave is printed in a line of three
parts between tabs, as `sequences/steps.py` does. CODES: other codes that are accepted as well; GPUs tell some places apart.
"""

import ctypes
import os
import random
import subprocess
import sys

SEED = int(os.environ.get("SEED", random.randrange(1 << 30)))
ACCEPTED = {700, *map(int, os.environ.get("CODES", "").split())}


def access(kernel, where):
    from driver import PEEK_POKE, allocate, attach, code_of, launch, load

    attach()
    own = allocate(1 << 20)
    address = {"after": own + (64 << 20), "before": own - (64 << 20), "null": 0}.get(where)
    if address is None:
        address = int(where, 0)
    launch(load(PEEK_POKE, kernel), 1, 1, ctypes.c_uint64(address), ctypes.c_uint64(own))
    first = code_of("cuCtxSynchronize")
    print(first, flush=True)
    assert first in ACCEPTED, f"{kernel} at {address:#x} gave {first}"
    word = ctypes.c_uint32()
    for again in [("cuCtxSynchronize",), ("cuMemcpyDtoH_v2", ctypes.byref(word), ctypes.c_uint64(own), ctypes.c_size_t(4))]:
        code = code_of(*again)
        assert code == first, f"the error is not sticky: {again[0]} gave {code}"


def places():
    """Null, next to the program's own memory, and where an x86-64 process has its program, heap, libraries, stack."""
    yield from [(where, where) for where in ["null", "before", "after", "0x10", hex((1 << 47) - 4096), hex((1 << 64) - 8)]]
    # In a worker forked from the same machine image the layout resembles ours.
    for line in open("/proc/self/maps"):
        if "r" in line.split()[1] and "[v" not in line:
            yield "own memory", "0x" + line.split("-")[0]


def main():
    if len(sys.argv) == 3:
        return access(sys.argv[1], sys.argv[2])
    print(f"seed {SEED}")
    generator = random.Random(SEED)
    tried = list(places())[:6] + generator.sample(list(places())[6:], 4)
    failed = 0
    for number, (name, where) in enumerate(tried):
        for kernel in ["peek", "poke"]:
            done = subprocess.run([sys.executable, __file__, kernel, where], capture_output=True, text=True, errors="replace")
            code, failed = done.stdout.strip() or "nothing", failed + (done.returncode != 0)
            print(f"{'FAILED' if done.returncode else 'OK'}\t{kernel} {number} {name}\t{code}", flush=True)
            if done.returncode != 0:
                print(f"at {where}: {done.stderr.strip().splitlines()[-1:]}")
    print(f"FAIL: {failed} accesses" if failed else f"PASS ({len(tried)} places)")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

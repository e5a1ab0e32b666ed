"""A kernel that leaves its session's memory gets a sticky CUDA_ERROR_ILLEGAL_ADDRESS, whatever lies there.

Each access is made by a process of its own, since the error ends the context.
"""

import ctypes
import os
import random
import subprocess
import sys

SEED = int(os.environ.get("SEED", random.randrange(1 << 30)))


def access(kernel, where):
    from driver import ILLEGAL_ADDRESS, PEEK_POKE, allocate, attach, code_of, launch, load

    attach()
    own = allocate(1 << 20)
    address = {"after": own + (64 << 20), "before": own - (64 << 20), "null": 0}.get(where)
    if address is None:
        address = int(where, 0)
    launch(load(PEEK_POKE, kernel), 1, 1, ctypes.c_uint64(address), ctypes.c_uint64(own))
    code = code_of("cuCtxSynchronize")
    assert code == ILLEGAL_ADDRESS, f"{kernel} at {address:#x} gave {code}"
    word = ctypes.c_uint32()
    for again in [("cuCtxSynchronize",), ("cuMemcpyDtoH_v2", ctypes.byref(word), ctypes.c_uint64(own), ctypes.c_size_t(4))]:
        code = code_of(*again)
        assert code == ILLEGAL_ADDRESS, f"the error is not sticky: {again[0]} gave {code}"


def places():
    """Null, next to the program's own memory, and where an x86-64 process has its program, heap, libraries, stack."""
    yield from ["null", "before", "after", "0x10", hex((1 << 47) - 4096), hex((1 << 64) - 8)]
    # In a worker forked from the same machine image the layout resembles ours.
    for line in open("/proc/self/maps"):
        if "r" in line.split()[1] and "[v" not in line:
            yield "0x" + line.split("-")[0]


def main():
    if len(sys.argv) == 3:
        return access(sys.argv[1], sys.argv[2])
    print(f"seed {SEED}")
    generator = random.Random(SEED)
    tried = list(places())[:6] + generator.sample(list(places())[6:], 4)
    for where in tried:
        for kernel in ["peek", "poke"]:
            done = subprocess.run([sys.executable, __file__, kernel, where], capture_output=True, text=True)
            if done.returncode != 0:
                print(f"FAIL {kernel} {where}: {done.stderr.strip().splitlines()[-1:]}")
                return 1
    print(f"PASS ({len(tried)} places)")


if __name__ == "__main__":
    sys.exit(main())

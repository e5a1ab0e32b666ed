"""Stands for a training run: a kernel a step, and a line of metrics for each in $SLUICE_METRICS.

training.py STEP FILE: the loss falls until STEP and is NaN from then on; the run ends when FILE exists. Says PASS if all
launches have counted.
"""

import ctypes
import json
import os
import sys

from driver import SPIN, allocate, attach, clear, launch, load, read_u32


def main():
    diverges_at, last = int(sys.argv[1]), sys.argv[2]
    attach()
    spin, counter = load(SPIN, "spin"), allocate(4)
    clear(counter, 4)
    step = 0
    with open(os.environ["SLUICE_METRICS"], "a", buffering=1) as metrics:
        while not os.path.exists(last):
            step += 1
            launch(spin, 1, 32, ctypes.c_uint64(counter), ctypes.c_uint32(1))
            counted = read_u32(counter)
            assert counted == step, f"{step} launches have counted to {counted}"
            loss = 4.0 / step if step < diverges_at else float("nan")
            metrics.write(json.dumps({"step": step, "loss": loss, "drift": step / 1000}) + "\n")
    print("PASS")


if __name__ == "__main__":
    main()

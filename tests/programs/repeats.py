"""Repeats one step STEPS times, as training does: launches, fills and small copies that differ in a few bytes, or not at all.
Each leaves a trace that is known exactly, so that a command that was lost, came twice or came changed shows.
"""

import ctypes
import os
import sys

from driver import SPIN, allocate, attach, call, clear, launch, load, read_u32, synchronize

STEPS = int(os.environ.get("STEPS", "60"))
LAYERS, WORDS = 25, 64


def word(step, layer):
    return (step * 1_000_003 + layer * 7919) & 0xFFFFFFFF


def main():
    attach()
    spin, counter = load(SPIN, "spin"), allocate(4)
    layers = [allocate(4 * WORDS) for _ in range(LAYERS)]
    clear(counter, 4)
    back = ctypes.create_string_buffer(4 * WORDS)
    for step in range(STEPS):
        for layer, memory in enumerate(layers):
            for grid in (1, 2, 3):
                launch(spin, grid, 32, ctypes.c_uint64(counter), ctypes.c_uint32(layer % 3))
            call("cuMemsetD32_v2", ctypes.c_uint64(memory), ctypes.c_uint32(layer), ctypes.c_size_t(WORDS))
            # What changes in each step.
            data = word(step, layer).to_bytes(4, "little")
            call("cuMemcpyHtoD_v2", ctypes.c_uint64(memory + 4 * (step % WORDS)), data, ctypes.c_size_t(4))
        layer = step % LAYERS
        call("cuMemcpyDtoH_v2", back, ctypes.c_uint64(layers[layer]), ctypes.c_size_t(len(back)))
        expected = [layer] * WORDS
        expected[step % WORDS] = word(step, layer)
        if [int.from_bytes(back.raw[4 * i:4 * i + 4], "little") for i in range(WORDS)] != expected:
            sys.exit(f"step {step}: layer {layer} is not what was written")
    synchronize()
    if read_u32(counter) != STEPS * LAYERS * 6:
        sys.exit(f"{STEPS * LAYERS * 6} blocks were launched and {read_u32(counter)} have counted")
    print(f"PASS {STEPS} steps")


if __name__ == "__main__":
    main()

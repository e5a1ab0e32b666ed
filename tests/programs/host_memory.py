"""Loads modules until the node keeps no more of its own memory, makes room, and goes on. LIMIT is what the node allows, in bytes."""

import ctypes
import os
from ctypes import byref

from driver import HEADER, OUT_OF_MEMORY, attach, call, code_of, synchronize

LIMIT = int(os.environ["LIMIT"])
BYTES = 4 << 20


def load(number):
    module = ctypes.c_void_p()
    text = f"{HEADER}.visible .entry kernel() {{ ret; }}\n// {number} ".encode().ljust(BYTES, b"x")
    return code_of("cuModuleLoadData", byref(module), text), module


attach()
modules = []
while True:
    code, module = load(len(modules))
    if code != 0:
        break
    modules.append(module)
    if len(modules) * BYTES > LIMIT:
        raise SystemExit(f"{len(modules)} modules of {BYTES} bytes are kept within {LIMIT}")
if code != OUT_OF_MEMORY:
    raise SystemExit(f"module {len(modules)} fails with {code}")
if (len(modules) + 3) * BYTES < LIMIT:
    raise SystemExit(f"there is room for {len(modules)} modules only")
# It is an error of that load alone.
synchronize()
call("cuModuleUnload", modules.pop())
code, _ = load(len(modules))
if code != 0:
    raise SystemExit(f"with room for one more: {code}")
print("PASS")

"""Does some work, says so, and does nothing until its input ends."""

import ctypes
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "programs"))

from driver import SPIN, allocate, attach, launch, load, read_u32, synchronize

attach()
word = allocate(4)
launch(load(SPIN, "spin"), 1, 32, ctypes.c_uint64(word), ctypes.c_uint32(1))
synchronize()
read_u32(word)
print("ready", flush=True)
sys.stdin.read()

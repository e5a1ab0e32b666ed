"""NVIDIA's device files seem to be there for whoever asks, and what else was preloaded still sees its calls."""

import os
import subprocess

from driver import allocate, attach

SHOWN = ["/dev/nvidiactl", "/dev/nvidia0"]

for path in SHOWN:
    assert os.path.exists(path), path
    assert os.path.lexists(path), path
    assert os.access(path, os.F_OK), path
    assert os.stat(path).st_rdev == os.stat("/dev/null").st_rdev, path
    subprocess.run(["test", "-c", path], check=True)
    if path not in (f"/dev/{name}" for name in os.listdir("/dev")):
        try:
            open(path)
            raise AssertionError(f"{path} could be opened")
        except FileNotFoundError:
            pass
assert not os.path.exists("/dev/nvidia999")

# The test preloads a library that makes this one up.
assert os.path.exists("/nowhere/preloaded"), "the other preloaded library is not asked"
attach()
allocate(4)
print("PASS")

"""A host function runs until the driver, on the same machine, has a question of this program's that waits for the function to return.
WAITS is the file by which the driver tells so (`tests/hanging-driver`).
"""

import ctypes
import os
import threading
import time

from driver import attach, call, code_of

NOT_READY = 600
LIMIT_S = 60

attach()
begun, heard = threading.Event(), []


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def function(_):
    begun.set()
    until = time.monotonic() + LIMIT_S
    while not os.path.exists(os.environ["WAITS"]) and time.monotonic() < until:
        time.sleep(0.001)
    heard.append(os.path.exists(os.environ["WAITS"]))


stream, event = ctypes.c_void_p(), ctypes.c_void_p()
call("cuStreamCreate", ctypes.byref(stream), 1)
call("cuEventCreate", ctypes.byref(event), 0)
call("cuLaunchHostFunc", stream, function, None)
call("cuEventRecord", event, stream)
assert begun.wait(LIMIT_S), "the function does not begin"
code = code_of("cuEventQuery", event)
assert code in (0, NOT_READY), code
call("cuStreamSynchronize", stream)
assert heard == [True], "the driver had nothing that waits"
print("PASS")

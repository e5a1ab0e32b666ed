"""Callbacks of a stream that fails are called with the error, in their order; host functions are not called."""

import ctypes
import threading

from driver import PEEK_POKE, attach, call, code_of, load

LIMIT_S = 60
NOWHERE = 0x10

attach()
poke = load(PEEK_POKE, "poke")
failed, told, called = threading.Event(), threading.Event(), []


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def hold(_):
    called.append(failed.wait(LIMIT_S))


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def never(_):
    called.append("a host function")


@ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
def callback(_, status, number):
    called.append((number, status))
    if number >= 2:
        told.set()


stream, other = ctypes.c_void_p(), ctypes.c_void_p()
call("cuStreamCreate", ctypes.byref(stream), 1)
call("cuStreamCreate", ctypes.byref(other), 1)
# Until everything has been asked for, the stream comes to none of it.
call("cuLaunchHostFunc", stream, hold, None)
values = [ctypes.c_uint64(NOWHERE), ctypes.c_uint64(NOWHERE)]
pointers = (ctypes.c_void_p * 2)(*(ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in values))
call("cuLaunchKernel", poke, 1, 1, 1, 1, 1, 1, 0, stream, pointers, None)
call("cuStreamAddCallback", stream, callback, ctypes.c_void_p(1), 0)
call("cuLaunchHostFunc", stream, never, None)
call("cuStreamAddCallback", stream, callback, ctypes.c_void_p(2), 0)
failed.set()
error = code_of("cuStreamSynchronize", stream)
assert error == 700, error
assert told.wait(LIMIT_S), f"nobody is told: {called}"
assert called == [True, (1, error), (2, error)], called
# One that comes too late is refused, or called with the error as well.
told.clear()
code = code_of("cuStreamAddCallback", other, callback, ctypes.c_void_p(3), 0)
assert code == error or (code == 0 and told.wait(LIMIT_S)), (code, called)
assert called[3:] == ([] if code else [(3, error)]), called
print("PASS")

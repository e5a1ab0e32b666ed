"""Asks COUNT times about events and streams that are known to be done, and says what is not done when it is not.

Each event and stream is held back by a word that another stream writes, so what is asked is certain and needs no clock.
"""

import ctypes
import os
from ctypes import byref, c_uint32, c_uint64

from driver import HEADER, allocate, attach, call, clear, code_of, synchronize

COUNT = int(os.environ.get("COUNT", "1000"))
NOT_READY = 600
GEQ = 0
NON_BLOCKING = 1

# One function comes with its module when that is loaded, and many do not.
KERNELS = "".join(f".visible .entry k{i}(.param .u64 p) {{ ret; }}\n" for i in range(20))
ONE = ".visible .entry one(.param .u32 a, .param .u64 b) { ret; }\n"


def created(function, flags):
    handle = ctypes.c_void_p()
    call(function, byref(handle), flags)
    return handle


def equal(got, wanted, what):
    if got != wanted:
        raise SystemExit(f"{what}: {got}, not {wanted}")


def all_done(what, function, handle):
    for _ in range(COUNT):
        equal(code_of(function, handle), 0, what)


class Gate:
    """Holds a stream back until it is opened."""

    def __init__(self):
        self.word, self.next, self.opener = allocate(4), 0, created("cuStreamCreate", NON_BLOCKING)
        clear(self.word, 4)

    def close(self, stream):
        self.next += 1
        call("cuStreamWaitValue32_v2", stream, c_uint64(self.word), c_uint32(self.next), GEQ)

    def open(self):
        call("cuStreamWriteValue32_v2", self.opener, c_uint64(self.word), c_uint32(self.next), 0)


def events(gate, stream):
    event = created("cuEventCreate", 0)
    all_done("an event that was never recorded", "cuEventQuery", event)
    waits = {
        "the event": lambda: call("cuEventSynchronize", event),
        "the stream": lambda: call("cuStreamSynchronize", stream),
        "the context": synchronize,
    }
    for what, wait in waits.items():
        gate.close(stream)
        call("cuEventRecord", event, stream)
        equal(code_of("cuEventQuery", event), NOT_READY, f"an event before {what} was waited for")
        gate.open()
        wait()
        all_done(f"an event after {what} was waited for", "cuEventQuery", event)
        all_done(f"the same, waited for", "cuEventSynchronize", event)
    # Waiting for one stream says nothing of another.
    other = created("cuStreamCreate", NON_BLOCKING)
    gate.close(stream)
    call("cuEventRecord", event, stream)
    call("cuStreamSynchronize", other)
    equal(code_of("cuEventQuery", event), NOT_READY, "an event after another stream was waited for")
    equal(code_of("cuStreamQuery", stream), NOT_READY, "a stream that is held back")
    gate.open()
    synchronize()
    all_done("a stream of a context that was waited for", "cuStreamQuery", stream)
    all_done("the default stream of that context", "cuStreamQuery", None)


def functions():
    for text, names in ((ONE, ("one",)), (KERNELS, [f"k{i}" for i in range(20)])):
        module = ctypes.c_void_p()
        call("cuModuleLoadData", byref(module), (HEADER + text).encode() + b"\0")
        for name in names:
            function = ctypes.c_void_p()
            call("cuModuleGetFunction", byref(function), module, name.encode())
            values = [c_uint64(0), c_uint64(0)]
            pointers = (ctypes.c_void_p * 2)(*(ctypes.cast(byref(v), ctypes.c_void_p) for v in values))
            call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, pointers, None)
        equal(code_of("cuModuleGetFunction", byref(ctypes.c_void_p()), module, b"none"), 500, "a name that is not there")
    synchronize()


def recorded_by_a_graph(gate, stream):
    """A graph records its events whenever it is launched."""
    event, graph, node = created("cuEventCreate", 0), created("cuGraphCreate", 0), ctypes.c_void_p()
    call("cuGraphAddEventRecordNode", byref(node), graph, None, ctypes.c_size_t(0), event)
    executable = ctypes.c_void_p()
    call("cuGraphInstantiateWithFlags", byref(executable), graph, c_uint64(0))
    call("cuEventRecord", event, stream)
    call("cuEventSynchronize", event)
    gate.close(stream)
    call("cuGraphLaunch", executable, stream)
    equal(code_of("cuEventQuery", event), NOT_READY, "an event that a graph is to record")
    gate.open()
    call("cuEventSynchronize", event)


def main():
    attach()
    stream, gate = created("cuStreamCreate", NON_BLOCKING), Gate()
    events(gate, stream)
    functions()
    recorded_by_a_graph(gate, stream)
    print("PASS")


if __name__ == "__main__":
    main()

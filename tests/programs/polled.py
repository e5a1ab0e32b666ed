"""Does what it is told, one word a line, and says `done` after each, so that whoever tells it can keep its node from answering meanwhile:

hold     gives a stream something that takes until `open`, records an event behind it, and sees that it is not done
poll     asks about the event many times: it is not done
open     lets the stream go on, and asks until the event is done
ended    asks about the event many times: it is done
follows  sees that an event is done which is before one that another stream, and then the program, has waited for

At the end of its input it says PASS.
"""

import ctypes
import os
import sys
import time
from ctypes import c_uint32, c_uint64

from driver import allocate, attach, call, clear, code_of
from known import Gate, NON_BLOCKING, NOT_READY, created, equal

COUNT = 100


class Polled:
    def __init__(self):
        attach()
        self.gate, self.stream, self.event = Gate(), created("cuStreamCreate", NON_BLOCKING), created("cuEventCreate", 0)

    def ask(self):
        return code_of("cuEventQuery", self.event)

    def hold(self):
        self.gate.close(self.stream)
        call("cuEventRecord", self.event, self.stream)
        equal(self.ask(), NOT_READY, "an event that is held back")
        self.asked = time.monotonic()

    def poll(self):
        for _ in range(COUNT):
            # What the node said holds for three seconds, and on a busy machine those pass.
            if time.monotonic() > self.asked + 2:
                return
            equal(self.ask(), NOT_READY, "an event that is held back, polled")

    def open(self):
        self.gate.open()
        deadline = time.monotonic() + 60
        while (code := self.ask()) == NOT_READY:
            if time.monotonic() > deadline:
                raise SystemExit("the event is never done")
        equal(code, 0, "an event that is done")

    def ended(self):
        for _ in range(COUNT):
            equal(self.ask(), 0, "an event that is done, polled")

    def follows(self):
        """Whoever has waited for what is behind an event knows that it is done, whatever was said of it before."""
        other, late = created("cuStreamCreate", NON_BLOCKING), created("cuEventCreate", 0)
        for wait in ("cuStreamSynchronize", "cuEventSynchronize"):
            self.hold()
            call("cuStreamWaitEvent", other, self.event, c_uint32(0))
            call("cuEventRecord", late, other)
            self.gate.open()
            call(wait, other if wait == "cuStreamSynchronize" else late)
            equal(self.ask(), 0, f"an event before {wait} of what waits for it")
        # So does who reads what was copied behind it.
        word, host = allocate(4), c_uint32(7)
        clear(word, 4)
        self.hold()
        call("cuStreamWaitEvent", None, self.event, c_uint32(0))
        self.gate.open()
        call("cuMemcpyDtoH_v2", ctypes.byref(host), c_uint64(word), ctypes.c_size_t(4))
        equal((host.value, self.ask()), (0, 0), "an event before a copy that waits for it")


def main():
    polled = Polled()
    print(f"ready {os.getpid()}", flush=True)
    for word in sys.stdin:
        getattr(polled, word.strip())()
        print("done", flush=True)
    print("PASS")


if __name__ == "__main__":
    main()

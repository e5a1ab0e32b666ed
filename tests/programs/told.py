"""Does what it is told, one word a line, and says `done` after each, so that whoever tells it decides when its session asks for
something:

count    launches, and reads how often
read     copies much to the host
reads    does so again and again, in threads of its own that do hardly anything else, until
enough   is said
queue    launches what computes for a good while, and queues more behind it than a node takes

Every result is checked. At the end of its input it says PASS.
"""

import ctypes
import os
import sys
import threading
import time

from driver import SPIN, allocate, attach, call, clear, launch, load, read_u32

SIZE = 64 << 20
# Between two copies of one thread another's is under way.
READERS = 3
# Longer than a worker may be silent.
WHILE_S = 15


class Session:
    def __init__(self):
        attach()
        call("cuCtxGetCurrent", ctypes.byref(context := ctypes.c_void_p()))
        self.context = context
        self.spin, self.counter, self.data = load(SPIN, "spin"), allocate(4), allocate(SIZE)
        clear(self.counter, 4)
        call("cuMemsetD8_v2", ctypes.c_uint64(self.data), ctypes.c_ubyte(7), ctypes.c_size_t(SIZE))
        self.launched, self.expected = 0, b"\x07" * SIZE
        self.readers, self.has_read, self.is_enough, self.wrong = [], threading.Event(), threading.Event(), []

    def count(self):
        launch(self.spin, 1, 32, ctypes.c_uint64(self.counter), ctypes.c_uint32(1))
        self.launched += 1
        counted = read_u32(self.counter)
        assert counted == self.launched, f"{self.launched} launches have counted to {counted}"

    def read(self):
        back = ctypes.create_string_buffer(SIZE)
        call("cuMemcpyDtoH_v2", back, ctypes.c_uint64(self.data), ctypes.c_size_t(SIZE))
        assert back.raw == self.expected, "what came back is not what is there"

    def read_on(self):
        try:
            call("cuCtxSetCurrent", self.context)
            back = ctypes.create_string_buffer(SIZE)
            while not self.is_enough.is_set():
                call("cuMemcpyDtoH_v2", back, ctypes.c_uint64(self.data), ctypes.c_size_t(SIZE))
                self.has_read.set()
            assert back.raw == self.expected, "what came back is not what is there"
        except Exception as error:
            self.wrong.append(error)

    def reads(self):
        self.readers = [threading.Thread(target=self.read_on) for _ in range(READERS)]
        for reader in self.readers:
            reader.start()
        assert self.has_read.wait(60), self.wrong

    def enough(self):
        self.is_enough.set()
        for reader in self.readers:
            reader.join()
        assert not self.wrong, self.wrong

    def spin_blocks(self, blocks):
        launch(self.spin, blocks, 32, ctypes.c_uint64(self.counter), ctypes.c_uint32(1 << 24))
        self.launched += blocks

    def queue(self):
        self.count()
        begin = time.monotonic()
        self.spin_blocks(8)
        call("cuCtxSynchronize")
        self.spin_blocks(8 * max(1, int(WHILE_S / (time.monotonic() - begin))))
        piece = self.expected[: 1 << 20]
        for number in range(400):
            to = self.data + (number % 64 << 20)
            call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(to), piece, ctypes.c_size_t(len(piece)), None)
        self.count()


def main():
    session = Session()
    print(f"ready {os.getpid()}", flush=True)
    for word in sys.stdin:
        getattr(session, word.strip())()
        print("done", flush=True)
    print(f"PASS {session.launched} launches")


if __name__ == "__main__":
    main()

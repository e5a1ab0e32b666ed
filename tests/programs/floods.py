"""Gives its worker more than anybody keeps, when it is told, one word a line, and says `done` after each:

launches VOLUME  queues launches until their parameters are so many MiB
copies VOLUME    queues copies to the device of so many MiB together
answers VOLUME   queues copies to the host of so many MiB together and kernels that print, says `queued`, and waits for all of it

Results are checked. At the end of its input it says PASS.
"""

import ctypes
import os
import sys

from driver import HEADER, allocate, attach, call, launch, load, synchronize

MIB = 1 << 20
PIECE = 32 * MIB
PARAMETERS = 4000
BLOCKS = 64

# Takes many bytes of parameters and does nothing with them.
IDLE = HEADER + f"""
.visible .entry idle(.param .align 8 .b8 many[{PARAMETERS}])
{{
    ret;
}}
"""

# Each thread prints a line.
PRINTS = HEADER + """
.extern .func (.param .b32 status) vprintf(.param .b64 format, .param .b64 arguments);
.global .align 1 .b8 text[40] = {76, 111, 110, 103, 32, 108, 105, 110, 101, 115, 32, 111, 102, 32, 116, 101, 120, 116, 44, 32,
    119, 104, 105, 99, 104, 32, 110, 111, 98, 111, 100, 121, 32, 116, 97, 107, 101, 115, 10, 0};
.visible .entry prints(.param .u64 nothing)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<4>;
    mov.u64 %rd1, text;
    cvta.global.u64 %rd2, %rd1;
    {
        .param .b64 format;
        st.param.b64 [format], %rd2;
        .param .b64 arguments;
        mov.u64 %rd3, 0;
        st.param.b64 [arguments], %rd3;
        .param .b32 status;
        call.uni (status), vprintf, (format, arguments);
        ld.param.b32 %r1, [status];
    }
    ret;
}
"""


class Flood:
    def __init__(self):
        attach()
        self.idle, self.prints = load(IDLE, "idle"), load(PRINTS, "prints")
        self.data = allocate(PIECE)
        # A copy to any other memory is over when its call returns.
        self.pinned = ctypes.c_void_p()
        call("cuMemHostAlloc", ctypes.byref(self.pinned), ctypes.c_size_t(PIECE), 0)
        self.host = ctypes.create_string_buffer(b"\x05" * PIECE, PIECE)
        call("cuMemsetD8_v2", ctypes.c_uint64(self.data), ctypes.c_ubyte(7), ctypes.c_size_t(PIECE))
        self.many = (ctypes.c_char * PARAMETERS)()
        launch(self.idle, 1, 1, self.many)
        synchronize()

    def launches(self, volume):
        for _ in range(volume * MIB // PARAMETERS):
            launch(self.idle, 1, 1, self.many)
        synchronize()

    def copies(self, volume):
        to, size = ctypes.c_uint64(self.data), ctypes.c_size_t(MIB)
        for _ in range(volume):
            call("cuMemcpyHtoDAsync_v2", to, self.host, size, None)
        synchronize()

    def answers(self, volume):
        size = ctypes.c_size_t(PIECE)
        call("cuMemsetD8_v2", ctypes.c_uint64(self.data), ctypes.c_ubyte(7), size)
        for _ in range(volume * MIB // PIECE):
            call("cuMemcpyDtoHAsync_v2", self.pinned, ctypes.c_uint64(self.data), size, None)
            launch(self.prints, BLOCKS, 1024, ctypes.c_uint64(0))
        print("queued", flush=True)
        synchronize()
        assert ctypes.string_at(self.pinned, PIECE) == b"\x07" * PIECE, "what came back is not what is there"


def main():
    flood = Flood()
    print(f"ready {os.getpid()}", flush=True)
    for line in sys.stdin:
        word, volume = line.split()
        getattr(flood, word)(int(volume))
        print("done", flush=True)
    print("PASS")


if __name__ == "__main__":
    main()

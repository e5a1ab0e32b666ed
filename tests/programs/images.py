"""Does what it is told, one word a line, and says `done` after each, so that whoever tells it can keep its node from answering meanwhile:

begin    loads one image
use      loads others, one of them large and one twice, takes their functions and asks how many blocks of each fit on a multiprocessor
check    runs what was loaded, and unloads it

At the end of its input it says PASS.
"""

import os
import sys
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

from driver import HEADER, allocate, attach, call, code_of, launch, read_u32

NOT_FOUND = 500
SHARED_MAX = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
LARGE = 100


def image(number, functions=1):
    """Its functions write the number and their own."""
    return HEADER + "".join(
        f".visible .entry k{i}(.param .u64 p) {{ .reg .b64 %a; .reg .b32 %v; ld.param.u64 %a, [p]; mov.u32 %v, {100 * number + i}; "
        "st.global.u32 [%a], %v; ret; }\n" + "// \n" * (1000 if functions > 1 else 0)
        for i in range(functions))


class Session:
    def __init__(self):
        attach()
        self.place = allocate(4)
        self.loaded = []

    def load(self, number, functions=1):
        module = c_void_p()
        call("cuModuleLoadData", byref(module), image(number, functions).encode() + b"\0")
        for i in {0, functions - 1}:
            function, blocks, before = c_void_p(), c_int(), c_int()
            call("cuModuleGetFunction", byref(function), module, f"k{i}".encode())
            call("cuOccupancyMaxActiveBlocksPerMultiprocessor", byref(before), function, c_int(128), c_size_t(0))
            call("cuFuncSetAttribute", function, c_int(SHARED_MAX), c_int(1024))
            call("cuOccupancyMaxActiveBlocksPerMultiprocessor", byref(blocks), function, c_int(128), c_size_t(1024))
            assert before.value >= blocks.value > 0
            self.loaded.append((module, function, 100 * number + i))

    def begin(self):
        self.load(0)

    def use(self):
        for number in range(1, 5):
            self.load(number)
        self.load(5, LARGE)
        self.load(1)

    def check(self):
        for module, function, value in self.loaded:
            launch(function, 1, 1, c_uint64(self.place))
            assert read_u32(self.place) == value
            assert code_of("cuModuleGetFunction", byref(c_void_p()), module, b"none") == NOT_FOUND
        for module in {module.value for module, _, _ in self.loaded}:
            call("cuModuleUnload", c_void_p(module))
        # One whose load nobody has waited for.
        module = c_void_p()
        call("cuModuleLoadData", byref(module), image(2).encode() + b"\0")
        call("cuModuleUnload", module)
        self.loaded.clear()


def main():
    session = Session()
    print(f"ready {os.getpid()}", flush=True)
    for word in sys.stdin:
        getattr(session, word.strip())()
        print("done", flush=True)
    print("PASS")


if __name__ == "__main__":
    main()

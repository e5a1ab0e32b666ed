"""Does what it is told, one word a line, and says `done` after each, so that whoever tells it can keep its node from answering meanwhile:

use      makes what needs no answer: memory of each kind, an array, handles of functions; copies to the device, beside a stream that does not wait
         for the default stream
check    looks whether all of it is there, and gives it back
fill     allocates until there is no more, by the very call that is refused, and gives all back

ALLOWED is how much of the lease may be used unasked, in bytes. At the end of its input it says PASS.
"""

import ctypes
import os
import sys
import time
from ctypes import byref, c_int, c_size_t, c_uint32, c_uint64, c_void_p

from driver import HEADER, OUT_OF_MEMORY, CudaError, allocate, attach, call, free, launch, memory_info, read_u32, synchronize

CHUNK = 2 << 20
ALLOWED = int(os.environ["ALLOWED"])
COUNT = 20
# Each writes its number.
KERNELS = "".join(
    f".visible .entry k{i}(.param .u64 p) {{ .reg .b64 %a; .reg .b32 %v; ld.param.u64 %a, [p]; mov.u32 %v, {i}; "
    "st.global.u32 [%a], %v; ret; }\n"
    for i in range(COUNT))
HostFunction = ctypes.CFUNCTYPE(None, c_void_p)
NON_BLOCKING = 1
U32, PINNED, DEVICE, READ_WRITE = 3, 1, 1, 3


class Location(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


class Properties(ctypes.Structure):
    _fields_ = [("type", c_int), ("handles", c_int), ("location", Location), ("windows", c_void_p), ("flags", c_uint64)]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", c_int)]


class Shape(ctypes.Structure):
    _fields_ = [("Width", c_size_t), ("Height", c_size_t), ("Depth", c_size_t), ("Format", c_uint32),
                ("NumChannels", c_uint32), ("Flags", c_uint32)]


class Session:
    def __init__(self):
        attach()
        self.module = c_void_p()
        call("cuModuleLoadData", byref(self.module), (HEADER + KERNELS).encode() + b"\0")
        self.free_stream = c_void_p()
        # Of the highest priority there is.
        call("cuStreamCreateWithPriority", byref(self.free_stream), NON_BLOCKING, -100)
        self.free_bytes, self.total = memory_info()
        assert self.free_bytes == self.total, "what is kept for this session counts as free"

    def use(self):
        location = Location(DEVICE, 0)
        self.blocks = [allocate(CHUNK // 4), allocate(CHUNK // 4), allocate(2 * CHUNK)]
        self.physical, self.mapped, self.array = c_void_p(), c_uint64(), c_void_p()
        call("cuMemCreate", byref(self.physical), c_size_t(CHUNK), byref(Properties(PINNED, 0, location, None, 0)), c_uint64(0))
        call("cuMemAddressReserve", byref(self.mapped), c_size_t(CHUNK), c_size_t(0), c_uint64(0), c_uint64(0))
        call("cuMemMap", self.mapped, c_size_t(CHUNK), c_size_t(0), self.physical, c_uint64(0))
        call("cuMemSetAccess", self.mapped, c_size_t(CHUNK), byref(Access(location, READ_WRITE)), c_size_t(1))
        call("cuArray3DCreate_v2", byref(self.array), byref(Shape(256, 64, 0, U32, 1, 0)))
        self.used = 4 * CHUNK + 256 * 64 * 4
        for i in range(100):
            call("cuMemcpyHtoD_v2", c_uint64(self.blocks[2] + CHUNK + 4 * i), byref(c_uint32(i)), c_size_t(4))
        self.functions = []
        for i in range(COUNT):
            function = c_void_p()
            call("cuModuleGetFunction", byref(function), self.module, f"k{i}".encode())
            self.functions.append(function)

    def check_order(self, copied):
        assert [read_u32(copied + 4 * i) for i in range(100)] == list(range(100))
        # The default stream has something to do first; the other one sees what was copied behind it all the same.
        slow = HostFunction(lambda _: time.sleep(0.05))
        call("cuLaunchHostFunc", None, slow, None)
        call("cuMemcpyHtoD_v2", c_uint64(copied), byref(c_uint32(12345)), c_size_t(4))
        call("cuMemcpyDtoDAsync_v2", c_uint64(copied + 4), c_uint64(copied), c_size_t(4), self.free_stream)
        call("cuStreamSynchronize", self.free_stream)
        assert read_u32(copied + 4) == 12345, "a stream has overtaken a copy"
        # So does one that is made after it.
        call("cuLaunchHostFunc", None, slow, None)
        call("cuMemcpyHtoD_v2", c_uint64(copied), byref(c_uint32(54321)), c_size_t(4))
        late = c_void_p()
        call("cuStreamCreateWithPriority", byref(late), NON_BLOCKING, -100)
        call("cuMemcpyDtoDAsync_v2", c_uint64(copied + 8), c_uint64(copied), c_size_t(4), late)
        call("cuStreamSynchronize", late)
        assert read_u32(copied + 8) == 54321, "a new stream has overtaken a copy"
        call("cuStreamDestroy_v2", late)

    def check(self):
        left, _ = memory_info()
        assert self.free_bytes - left == self.used, f"{self.free_bytes - left} bytes are used, not {self.used}"
        for at in self.blocks + [self.mapped.value]:
            call("cuMemsetD32_v2", c_uint64(at), c_uint32(99), c_size_t(CHUNK // 16))
            for i, function in enumerate(self.functions):
                launch(function, 1, 1, c_uint64(at))
                assert read_u32(at) == i
        self.check_order(self.blocks[2] + CHUNK)
        call("cuMemcpyDtoA_v2", self.array, c_size_t(0), c_uint64(self.blocks[0]), c_size_t(256))
        synchronize()
        call("cuArrayDestroy", self.array)
        call("cuMemUnmap", self.mapped, c_size_t(CHUNK))
        call("cuMemRelease", self.physical)
        call("cuMemAddressFree", self.mapped, c_size_t(CHUNK))
        for block in self.blocks:
            free(block)
        left, _ = memory_info()
        assert left == self.free_bytes, "not all came back"
        missing = c_void_p()
        code = ctypes.CDLL("libcuda.so.1").cuModuleGetFunction(byref(missing), self.module, b"none")
        assert code == 500, f"a function that is not there: {code}"

    def fill(self):
        """All of the lease but what is kept for others."""
        for size in (CHUNK, 3 * CHUNK, ALLOWED + CHUNK):
            blocks, (left, _) = [], memory_info()
            for _ in range(left // size):
                blocks.append(allocate(size))
            rest, _ = memory_info()
            assert rest == left % size, f"{rest} bytes are left of {left} in steps of {size}"
            try:
                allocate(rest + 1)
                raise AssertionError("more was had than there is")
            except CudaError as error:
                assert error.code == OUT_OF_MEMORY, error
            if rest:
                blocks.append(allocate(rest))
            assert memory_info()[0] == 0
            call("cuMemsetD8_v2", c_uint64(blocks[-1]), ctypes.c_ubyte(7), c_size_t(CHUNK))
            assert read_u32(blocks[-1]) == 0x07070707
            for block in blocks:
                free(block)
            assert memory_info()[0] == left, "not all came back"
        # Now there is nothing that may be used unasked. Who has waited once may use some again.
        free(allocate(CHUNK))


def main():
    session = Session()
    print(f"ready {os.getpid()}", flush=True)
    for word in sys.stdin:
        getattr(session, word.strip())()
        print("done", flush=True)
    print("PASS")


if __name__ == "__main__":
    main()

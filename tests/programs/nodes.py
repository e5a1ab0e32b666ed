"""GPUs of two nodes as one list: identity, computing on each, copies among all pairs, order, and what cannot be.

With KILL=PID the process of the last device's node is killed in the middle: its devices fail, the others go on. With
KILL_IN_COPY=PID that happens while copies run. With TRAFFIC=1 only large copies between nodes run, for whoever counts this
program's bytes. Needs nothing but Python.
"""

import ctypes
import os
import signal
import threading
import time

from ctypes import byref, c_char, c_int, c_size_t, c_ubyte, c_uint32, c_uint64, c_void_p

from driver import HEADER, CudaError, allocate, call, code_of, free, library, load, launch, read_u32, synchronize

COUNT = int(os.environ.get("GPUS", "4"))
INVALID_VALUE, INVALID_HANDLE, NOT_SUPPORTED, CAPTURE_UNSUPPORTED = 1, 400, 801, 900
WORDS = 3 << 20
BYTES = 4 * WORDS

# out[i] = in[i] + add, or what stands there later, after `rounds` rounds of waiting.
ADD = HEADER + """
.visible .entry add(.param .u64 to, .param .u64 from, .param .u32 count, .param .u32 add, .param .u32 rounds)
{
    .reg .pred %p<3>;
    .reg .b32 %r<12>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [to];
    ld.param.u64 %rd2, [from];
    ld.param.u32 %r1, [count];
    ld.param.u32 %r2, [add];
    ld.param.u32 %r3, [rounds];
    mov.u32 %r4, %ctaid.x;
    mov.u32 %r5, %ntid.x;
    mov.u32 %r6, %tid.x;
    mad.lo.s32 %r7, %r4, %r5, %r6;
    setp.ge.u32 %p1, %r7, %r1;
    @%p1 bra END;
    mov.u32 %r8, 0;
    mov.u32 %r9, %r7;
ROUND:
    setp.ge.u32 %p2, %r8, %r3;
    @%p2 bra WRITE;
    mad.lo.u32 %r9, %r9, 1664525, 1013904223;
    add.u32 %r8, %r8, 1;
    bra ROUND;
WRITE:
    mul.wide.u32 %rd3, %r7, 4;
    add.u64 %rd4, %rd2, %rd3;
    add.u64 %rd5, %rd1, %rd3;
    ld.global.u32 %r10, [%rd4];
    add.u32 %r10, %r10, %r2;
    // What the waiting computed makes no difference, and no compiler can know that.
    setp.eq.u32 %p2, %r9, 123456789;
    selp.u32 %r11, 1, 0, %p2;
    and.b32 %r11, %r11, 0;
    add.u32 %r10, %r10, %r11;
    st.global.u32 [%rd5], %r10;
END:
    ret;
}
"""


class Device:
    """A device's primary context with a kernel, a stream, and memory."""

    def __init__(self, ordinal):
        self.ordinal = ordinal
        self.context, self.stream = c_void_p(), c_void_p()
        call("cuDevicePrimaryCtxRetain", byref(self.context), ordinal)
        self.enter()
        self.add = load(ADD, "add")
        call("cuStreamCreate", byref(self.stream), 1)
        self.memory, self.other = allocate(BYTES), allocate(BYTES)

    def enter(self):
        call("cuCtxSetCurrent", self.context)

    def fill(self, value):
        self.enter()
        call("cuMemsetD32_v2", c_uint64(self.memory), c_uint32(value), c_size_t(WORDS))
        synchronize()

    def run(self, to, source, add, stream=None, rounds=0):
        """out = in + add, in the order of a stream."""
        values = (c_uint64(to), c_uint64(source), c_uint32(WORDS), c_uint32(add), c_uint32(rounds))
        pointers = (c_void_p * 5)(*(ctypes.cast(byref(value), c_void_p) for value in values))
        grid = (WORDS + 255) // 256
        call("cuLaunchKernel", self.add, grid, 1, 1, 256, 1, 1, 0, stream, pointers, None)


def words(address, count=WORDS):
    host = (c_uint32 * count)()
    call("cuMemcpyDtoH_v2", host, c_uint64(address), c_size_t(4 * count))
    return host


def expect_all(address, value, what):
    host = words(address)
    assert host[0] == host[WORDS // 2] == host[WORDS - 1] == value, (what, host[0], host[WORDS - 1], value)
    assert bytes(host) == value.to_bytes(4, "little") * WORDS, what


def identity():
    count = c_int()
    call("cuDeviceGetCount", byref(count))
    assert count.value == COUNT, count.value
    uuids, buses = set(), set()
    for ordinal in range(COUNT):
        uuid, bus, peer = (c_char * 16)(), (c_char * 32)(), c_int(7)
        call("cuDeviceGetUuid", uuid, ordinal)
        call("cuDeviceGetPCIBusId", bus, 32, ordinal)
        uuids.add(bytes(uuid))
        buses.add(bus.value)
        found = c_int(-1)
        call("cuDeviceGetByPCIBusId", byref(found), bus.value)
        assert found.value == ordinal
        for other in range(COUNT):
            call("cuDeviceCanAccessPeer", byref(peer), ordinal, other)
            assert peer.value == 0
    assert len(uuids) == len(buses) == COUNT, (uuids, buses)
    assert code_of("cuDeviceGet", byref(count), COUNT) == 101


def nvml_agrees():
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    assert nvml.nvmlInit_v2() == 0
    count = c_int()
    assert nvml.nvmlDeviceGetCount_v2(byref(count)) == 0 and count.value == COUNT, count.value
    for index in range(COUNT):
        handle, text, uuid = c_void_p(), (c_char * 96)(), (c_char * 16)()
        assert nvml.nvmlDeviceGetHandleByIndex_v2(index, byref(handle)) == 0
        assert nvml.nvmlDeviceGetUUID(handle, text, 96) == 0
        call("cuDeviceGetUuid", uuid, index)
        assert text.value.decode().replace("-", "") == "GPU" + bytes(uuid).hex(), index
    assert nvml.nvmlShutdown() == 0


def computes_on_all(devices):
    for device in devices:
        device.fill(1000 * device.ordinal)
    for device in devices:
        device.enter()
        device.run(device.other, device.memory, 7, device.stream)
    for device in devices:
        # From whichever context: the stream says where.
        call("cuStreamSynchronize", device.stream)
    devices[0].enter()
    for device in devices:
        expect_all(device.other, 1000 * device.ordinal + 7, f"device {device.ordinal}")


def an_address_says_where(devices):
    devices[0].enter()
    for device in devices:
        ordinal, context = c_int(-1), c_void_p()
        call("cuPointerGetAttribute", byref(ordinal), 9, c_uint64(device.memory + 100))
        assert ordinal.value == device.ordinal
        call("cuPointerGetAttribute", byref(context), 1, c_uint64(device.memory))
        assert context.value == device.context.value
        base, size = c_uint64(), c_size_t()
        call("cuMemGetAddressRange_v2", byref(base), byref(size), c_uint64(device.memory + 8))
        assert (base.value, size.value) == (device.memory, BYTES)
        # Made in the context of another device, and freed from this one.
        device.enter()
        address = allocate(1 << 20)
        devices[0].enter()
        call("cuMemcpyHtoD_v2", c_uint64(address), b"abcd", c_size_t(4))
        assert read_u32(address) == int.from_bytes(b"abcd", "little")
        free(address)
        assert code_of("cuMemFree_v2", c_uint64(address)) == INVALID_VALUE


def copies_among_all_pairs(devices):
    for source in devices:
        for target in devices:
            if source is target:
                continue
            source.fill(10 * source.ordinal + target.ordinal + 1)
            value = 10 * source.ordinal + target.ordinal + 1
            ways = [
                ("cuMemcpyPeer", c_uint64(target.memory), target.context, c_uint64(source.memory), source.context, c_size_t(BYTES)),
                ("cuMemcpy", c_uint64(target.memory), c_uint64(source.memory), c_size_t(BYTES)),
                ("cuMemcpyDtoD_v2", c_uint64(target.memory), c_uint64(source.memory), c_size_t(BYTES)),
            ]
            for current, way in zip((source, target, devices[0]), ways):
                target.enter()
                call("cuMemsetD8_v2", c_uint64(target.memory), c_ubyte(255), c_size_t(BYTES))
                if way[0] != "cuMemcpyPeer":
                    # Only that one is serialised with the work of both contexts.
                    synchronize()
                current.enter()
                call(*way)
                synchronize()
                expect_all(target.memory, value, (source.ordinal, target.ordinal, way[0]))


def copies_keep_the_order_of_streams(devices):
    """Kernel, copy and kernel over two devices, with events between their streams and nothing that waits here."""
    for source in devices:
        for target in devices:
            if source is target:
                continue
            for in_target in (False, True):
                source.fill(5)
                target.fill(0)
                done, copied = c_void_p(), c_void_p()
                source.enter()
                call("cuEventCreate", byref(done), 0)
                source.run(source.other, source.memory, 1, source.stream, rounds=200)
                call("cuEventRecord", done, source.stream)
                target.enter()
                call("cuEventCreate", byref(copied), 2)
                peers = (c_uint64(target.memory), target.context, c_uint64(source.other), source.context, c_size_t(BYTES))
                if in_target:
                    call("cuStreamWaitEvent", target.stream, done, 0)
                    call("cuMemcpyPeerAsync", *peers, target.stream)
                    target.run(target.other, target.memory, 10, target.stream)
                    call("cuEventRecord", copied, target.stream)
                    source.enter()
                    call("cuStreamWaitEvent", source.stream, copied, 0)
                else:
                    source.enter()
                    call("cuMemcpyPeerAsync", *peers, source.stream)
                    call("cuEventRecord", done, source.stream)
                    target.enter()
                    call("cuStreamWaitEvent", target.stream, done, 0)
                    target.run(target.other, target.memory, 10, target.stream)
                    call("cuEventRecord", copied, target.stream)
                    source.enter()
                    call("cuStreamWaitEvent", source.stream, copied, 0)
                # Overwrites what was copied: after the copy, by the events.
                call("cuMemsetD32Async", c_uint64(source.other), c_uint32(0), c_size_t(WORDS), source.stream)
                call("cuEventSynchronize", copied)
                expect_all(target.other, 16, (source.ordinal, target.ordinal, in_target))
                call("cuStreamSynchronize", source.stream)
                expect_all(source.other, 0, "overwritten")
                call("cuEventDestroy_v2", done)
                call("cuEventDestroy_v2", copied)


class Copy2D(ctypes.Structure):
    _fields_ = [
        ("src_x", c_size_t), ("src_y", c_size_t), ("src_kind", c_int), ("src_host", c_void_p), ("src", c_uint64),
        ("src_array", c_void_p), ("src_pitch", c_size_t),
        ("dst_x", c_size_t), ("dst_y", c_size_t), ("dst_kind", c_int), ("dst_host", c_void_p), ("dst", c_uint64),
        ("dst_array", c_void_p), ("dst_pitch", c_size_t),
        ("width", c_size_t), ("height", c_size_t),
    ]


def boxes_cross(first, last):
    first.fill(0x01010101)
    last.fill(0)
    last.enter()
    call("cuMemcpy2D_v2", byref(Copy2D(
        src_kind=2, src=first.memory, src_pitch=64, dst_kind=2, dst=last.memory, dst_pitch=16, width=8, height=3,
    )))
    assert bytes(words(last.memory, 12)) == (b"\1" * 8 + b"\0" * 8) * 3


def what_cannot_be(first, last):
    events = []
    for device in (first, last):
        device.enter()
        event = c_void_p()
        call("cuEventCreate", byref(event), 0)
        call("cuEventRecord", event, device.stream)
        call("cuStreamSynchronize", device.stream)
        events.append(event)
    milliseconds = ctypes.c_float()
    assert code_of("cuEventElapsedTime", byref(milliseconds), *events) == INVALID_HANDLE
    assert code_of("cuEventRecord", events[0], last.stream) == INVALID_HANDLE
    # A kernel of one node in a stream of another.
    first.enter()
    try:
        first.run(first.other, first.memory, 1, last.stream)
        raise AssertionError("a kernel of one node ran in a stream of another")
    except CudaError as error:
        assert error.code == INVALID_HANDLE, error
    # A kernel of one node with page-locked memory of another.
    place = c_void_p()
    for mapped in (0, 2):
        last.enter()
        call("cuMemHostAlloc", byref(place), c_size_t(4096), mapped)
        first.enter()
        try:
            first.run(first.memory, place.value, 1)
            raise AssertionError("another node's page-locked memory")
        except CudaError as error:
            assert error.code == NOT_SUPPORTED, error
        call("cuMemsetD32Async", c_uint64(place.value), 7, c_size_t(1024), first.stream)
        call("cuCtxSynchronize")
        assert c_uint32.from_address(place.value + 4092).value == 7
        last.enter()
        call("cuMemFreeHost", place)
    first.enter()
    # A graph lies on one node.
    graph = c_void_p()
    call("cuStreamBeginCapture_v2", first.stream, 2)
    assert code_of("cuStreamWaitEvent", first.stream, events[1], 0) == CAPTURE_UNSUPPORTED
    assert code_of("cuStreamEndCapture", first.stream, byref(graph)) != 0
    call("cuStreamBeginCapture_v2", first.stream, 2)
    peers = (c_uint64(last.memory), last.context, c_uint64(first.memory), first.context, c_size_t(64))
    assert code_of("cuMemcpyPeerAsync", *peers, first.stream) == CAPTURE_UNSUPPORTED
    call("cuStreamEndCapture", first.stream, byref(graph))
    # More than there is, on either side.
    for more in ((last.memory, first.memory, BYTES + (8 << 20)), (last.memory + BYTES, first.memory, 1 << 30)):
        assert code_of("cuMemcpyDtoD_v2", c_uint64(more[0]), c_uint64(more[1]), c_size_t(more[2])) == INVALID_VALUE
    call("cuCtxSynchronize")
    for event in events:
        call("cuEventDestroy_v2", event)


def a_library_is_everywhere(devices):
    """A kernel without a context runs on the device of whoever launches it."""
    image, kernel, handle = ADD.encode() + b"\0", c_void_p(), c_void_p()
    devices[0].enter()
    call("cuLibraryLoadData", byref(handle), image, None, None, 0, None, None, 0)
    devices[-1].enter()
    call("cuLibraryGetKernel", byref(kernel), handle, b"add")
    for device in devices:
        device.fill(3)
        launch(kernel, (WORDS + 255) // 256, 256, c_uint64(device.other), c_uint64(device.memory), c_uint32(WORDS), c_uint32(9), c_uint32(0))
        expect_all(device.other, 12, f"library on {device.ordinal}")
    call("cuLibraryUnload", handle)


def loses_a_node(devices, process):
    for device in devices:
        device.fill(device.ordinal)
    os.kill(process, signal.SIGKILL)
    lost = devices[-1]
    lost.enter()
    deadline = time.monotonic() + 120
    code = 0
    while code == 0:
        assert time.monotonic() < deadline, "the loss of a node is not noticed"
        code = code_of("cuCtxSynchronize")
    assert code_of("cuCtxSynchronize") == code, "the error stays"
    assert code_of("cuMemcpyDtoH_v2", byref(c_uint32()), c_uint64(lost.memory), c_size_t(4)) == code
    first = devices[0]
    first.enter()
    assert code_of("cuMemcpyDtoD_v2", c_uint64(first.memory), c_uint64(lost.memory), c_size_t(BYTES)) == code
    first.run(first.other, first.memory, 4)
    expect_all(first.other, first.ordinal + 4, "the other node goes on")


def copies_much(first, last):
    """Large and odd copies, both ways; what is looked at here is little beside what is copied."""
    size, parts = 64 << 20, 64
    addresses = {}
    for device in (first, last):
        device.enter()
        addresses[device] = allocate(size)
    for source, target, salt in ((first, last, 0x5EED00), (last, first, 0xFEED00)):
        source.enter()
        for part in range(parts):
            at = c_uint64(addresses[source] + part * (size // parts))
            call("cuMemsetD32_v2", at, c_uint32(salt + part), c_size_t(size // parts // 4))
        peers = c_uint64(addresses[target]), target.context, c_uint64(addresses[source]), source.context
        for _ in range(2):
            call("cuMemcpyPeer", *peers, c_size_t(size))
        for part in range(parts):
            for at in (0, size // parts - 4):
                assert read_u32(addresses[target] + part * (size // parts) + at) == salt + part, (salt, part, at)
        for count, to, start in ((1, 3, 5), (7, 0, 1), (12345, 1, 0), ((1 << 20) - 1, 0, 3), ((3 << 20) + 5, 9, 2)):
            data = bytes((7 * at + (at >> 8) + salt) & 255 for at in range(count))
            back = (c_ubyte * (count + 2))()
            call("cuMemsetD8_v2", c_uint64(addresses[target]), c_ubyte(0xEE), c_size_t(to + count + 1))
            call("cuMemcpyHtoD_v2", c_uint64(addresses[source] + start), data, c_size_t(count))
            call("cuMemcpyDtoD_v2", c_uint64(addresses[target] + to), c_uint64(addresses[source] + start), c_size_t(count))
            # With a byte on either side.
            first_byte = max(to, 1) - 1
            around = to + count + 1 - first_byte
            call("cuMemcpyDtoH_v2", back, c_uint64(addresses[target] + first_byte), c_size_t(around))
            assert bytes(back)[:around] == b"\xee" * (to - first_byte) + data + b"\xee", (count, to, start)


def loses_a_node_in_a_copy(first, last, process):
    """Whoever copies gets an error, and that soon."""
    copied, codes = threading.Semaphore(0), []

    def copy(target, source):
        target.enter()
        code = 0
        while code == 0:
            code = code_of("cuMemcpyDtoD_v2", c_uint64(target.memory), c_uint64(source.memory), c_size_t(BYTES))
            copied.release()
        codes.append(code)

    threads = [threading.Thread(target=copy, args=pair, daemon=True) for pair in ((first, last), (last, first))]
    for thread in threads:
        thread.start()
    for _ in range(6):
        assert copied.acquire(timeout=120)
    os.kill(process, signal.SIGKILL)
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a copy from or to a node that is gone does not end"
    assert len(codes) == 2 and 0 not in codes, codes
    first.enter()
    first.fill(4)
    expect_all(first.memory, 4, "the other node goes on")


call("cuInit", 0)
identity()
nvml_agrees()
devices = [Device(ordinal) for ordinal in range(COUNT)]
if process := os.environ.get("KILL_IN_COPY"):
    loses_a_node_in_a_copy(devices[0], devices[-1], int(process))
elif process := os.environ.get("KILL"):
    loses_a_node(devices, int(process))
elif os.environ.get("TRAFFIC"):
    copies_much(devices[0], devices[-1])
else:
    computes_on_all(devices)
    an_address_says_where(devices)
    copies_among_all_pairs(devices)
    copies_keep_the_order_of_streams(devices)
    boxes_cross(devices[0], devices[-1])
    what_cannot_be(devices[0], devices[-1])
    a_library_is_everywhere(devices)
    for device in devices:
        device.enter()
        synchronize()
print("PASS")

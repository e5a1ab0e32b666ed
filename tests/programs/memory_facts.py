"""Measures what elastic memory rests on: copies, the cost of mapping memory, pinned arenas, memory of the host at device addresses.

    memory_facts.py all | NAME      every question; one of them

Prints lines "fact NAME VALUE" and judges nothing. Each question is asked by a process of its own, since some end badly. Needs nothing but
Python and a CUDA driver.
"""

import ctypes
import mmap
import os
import sys
import time
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

import driver_facts
from driver import HEADER, allocate, attach, call, code_of, free, load, memory_info, synchronize
from driver_facts import Access, Properties, POSIX, launch_on, ms, say, stream

FACTS = []
MIB, GIB = 1 << 20, 1 << 30
PINNED, DEVICE, HOST, HOST_NUMA = 1, 1, 2, 3

# Adds one to each of the words of a range, by ordinary loads and stores, 16 bytes a thread and step.
ADD_ONE = HEADER + """
.visible .entry add_one(.param .u64 at, .param .u64 bytes)
{
    .reg .pred %p<2>;
    .reg .b32 %r<12>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [at];
    ld.param.u64 %rd2, [bytes];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %nctaid.x;
    mad.lo.u32 %r5, %r2, %r3, %r1;
    mul.lo.u32 %r6, %r3, %r4;
    mul.wide.u32 %rd3, %r5, 16;
    mul.wide.u32 %rd4, %r6, 16;
NEXT:
    setp.ge.u64 %p1, %rd3, %rd2;
    @%p1 bra DONE;
    add.u64 %rd5, %rd1, %rd3;
    ld.global.v4.u32 {%r7, %r8, %r9, %r10}, [%rd5];
    add.u32 %r7, %r7, 1;
    add.u32 %r8, %r8, 1;
    add.u32 %r9, %r9, 1;
    add.u32 %r10, %r10, 1;
    st.global.v4.u32 [%rd5], {%r7, %r8, %r9, %r10};
    add.u64 %rd3, %rd3, %rd4;
    bra NEXT;
DONE:
    ret;
}
"""

# Each thread adds one to a word, atomically: as an integer, as a float, and by compare and swap.
ATOMICS = HEADER + """
.visible .entry atomics(.param .u64 at)
{
    .reg .pred %p<2>;
    .reg .b32 %r<6>;
    .reg .f32 %f<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [at];
    atom.global.add.u32 %r1, [%rd1], 1;
    atom.global.add.f32 %f1, [%rd1 + 4], 0f3F800000;
AGAIN:
    ld.volatile.global.u32 %r2, [%rd1 + 8];
    add.u32 %r3, %r2, 1;
    atom.global.cas.b32 %r4, [%rd1 + 8], %r2, %r3;
    setp.ne.u32 %p1, %r4, %r2;
    @%p1 bra AGAIN;
    ret;
}
"""


def fact(function):
    FACTS.append(function)
    return function


def rate(size, seconds):
    return f"{size / seconds / 1e9:.2f} GB/s"


def timed(work, repeats=3):
    """The least of some runs, in seconds, each waited for."""
    took = []
    for _ in range(repeats):
        synchronize()
        begin = time.perf_counter()
        work()
        synchronize()
        took.append(time.perf_counter() - begin)
    return min(took)


def pinned(size):
    address = c_void_p()
    call("cuMemHostAlloc", byref(address), c_size_t(size), 0)
    return address


def up(to, origin, size, on=None):
    call("cuMemcpyHtoDAsync_v2", c_uint64(to), origin, c_size_t(size), on)


def down(to, origin, size, on=None):
    call("cuMemcpyDtoHAsync_v2", to, c_uint64(origin), c_size_t(size), on)


@fact
def copies():
    """The rates that each figure of swapping is compared with."""
    attach()
    size = GIB
    begin = time.perf_counter()
    one, other = pinned(size), pinned(size)
    say("pinning 2 GiB with cuMemHostAlloc", ms(begin), rate(2 * size, time.perf_counter() - begin))
    first, second = allocate(size), allocate(size)
    there, back = stream(), stream()
    say("copy of 1 GiB, pinned, to the device", rate(size, timed(lambda: up(first, one, size))))
    say("copy of 1 GiB, pinned, from the device", rate(size, timed(lambda: down(one, first, size))))

    def both():
        up(first, one, size, there)
        down(other, second, size, back)

    say("copies of 1 GiB both ways at once, each", rate(size, timed(both)))
    pageable = ctypes.create_string_buffer(256 * MIB)
    say("copy of 256 MiB, pageable, to the device", rate(256 * MIB, timed(lambda: up(first, pageable, 256 * MIB))))
    say("copy of 256 MiB, pageable, from the device", rate(256 * MIB, timed(lambda: down(pageable, first, 256 * MIB))))

    def inside():
        call("cuMemcpyDtoDAsync_v2", c_uint64(second), c_uint64(first), c_size_t(size), None)

    say("copy of 1 GiB on the device, bytes read and written", rate(2 * size, timed(inside)))
    for piece in (2 * MIB, 16 * MIB, 64 * MIB):
        def pieces():
            for at in range(0, size, piece):
                up(first + at, c_void_p(one.value + at), piece)

        say(f"copy of 1 GiB, pinned, in pieces of {piece // MIB} MiB", rate(size, timed(pieces)))


@fact
def extents():
    """What one piece of memory costs at each size: create, map, give access, unmap, release, export, import."""
    attach()
    for size in (2 * MIB, 16 * MIB, 64 * MIB, 128 * MIB, 512 * MIB):
        count = min(32, 4 * GIB // size)
        place, handles = c_uint64(), [c_uint64() for _ in range(count)]
        call("cuMemAddressReserve", byref(place), c_size_t(size * count), c_size_t(0), c_uint64(0), c_uint64(0))
        took = {}

        def step(name, work):
            begin = time.perf_counter()
            for number in range(count):
                work(number)
            took[name] = (time.perf_counter() - begin) / count * 1e6

        properties = Properties(PINNED, POSIX, DEVICE, 0)
        step("create", lambda n: call("cuMemCreate", byref(handles[n]), c_size_t(size), byref(properties), c_uint64(0)))
        step("map", lambda n: call("cuMemMap", c_uint64(place.value + n * size), c_size_t(size), c_size_t(0), handles[n], c_uint64(0)))
        begin = time.perf_counter()
        call("cuMemSetAccess", place, c_size_t(size * count), byref(Access(DEVICE, 0, 3)), c_size_t(1))
        took["access, one call for all"] = (time.perf_counter() - begin) / count * 1e6
        descriptors = [c_int() for _ in range(count)]
        step("export", lambda n: call("cuMemExportToShareableHandle", byref(descriptors[n]), handles[n], POSIX, c_uint64(0)))
        imported = [c_uint64() for _ in range(count)]
        step("import", lambda n: call("cuMemImportFromShareableHandle", byref(imported[n]), c_void_p(descriptors[n].value), POSIX))
        step("release the import", lambda n: call("cuMemRelease", imported[n]))
        step("close", lambda n: os.close(descriptors[n].value))
        step("unmap", lambda n: call("cuMemUnmap", c_uint64(place.value + n * size), c_size_t(size)))
        step("map again", lambda n: call("cuMemMap", c_uint64(place.value + n * size), c_size_t(size), c_size_t(0), handles[n], c_uint64(0)))
        step("access, each", lambda n: call("cuMemSetAccess", c_uint64(place.value + n * size), c_size_t(size), byref(Access(DEVICE, 0, 3)), c_size_t(1)))
        step("unmap again", lambda n: call("cuMemUnmap", c_uint64(place.value + n * size), c_size_t(size)))
        step("release", lambda n: call("cuMemRelease", handles[n]))
        call("cuMemAddressFree", place, c_size_t(size * count))
        say(f"extents of {size // MIB} MiB, microseconds each", ", ".join(f"{name} {value:.1f}" for name, value in took.items()))


@fact
def unmap_beside_a_kernel():
    """Whether a kernel that runs survives that other memory of its context is unmapped, and what the unmapping waits for."""
    attach()
    size, place, memory = 64 * MIB, c_uint64(), c_uint64()
    call("cuMemAddressReserve", byref(place), c_size_t(size), c_size_t(0), c_uint64(0), c_uint64(0))
    call("cuMemCreate", byref(memory), c_size_t(size), byref(Properties(PINNED, POSIX, DEVICE, 0)), c_uint64(0))
    call("cuMemMap", place, c_size_t(size), c_size_t(0), memory, c_uint64(0))
    call("cuMemSetAccess", place, c_size_t(size), byref(Access(DEVICE, 0, 3)), c_size_t(1))
    on, counter = stream(), allocate(4)
    driver_facts.busy(on, counter, 0.5)
    begin = time.perf_counter()
    code = code_of("cuMemUnmap", place, c_size_t(size))
    took, running = ms(begin), code_of("cuStreamQuery", on)
    say("unmapping other memory beside a kernel", f"code {code}", took, "the kernel still ran" if running == 600 else f"query {running}")
    say("the kernel ended with", code_of("cuStreamSynchronize", on), "after", ms(begin))


@fact
def arena():
    """Shared host memory, registered with the driver: how long that takes, and whether copies are as quick as pinned ones."""
    attach()
    size = 2 * GIB
    if size > os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4:
        size = 256 * MIB
    device = allocate(size)
    for name, flags in (("memfd", 0), ("memfd, huge pages", 4)):
        try:
            file = os.memfd_create("arena", flags)
            os.ftruncate(file, size)
            area = mmap.mmap(file, size)
        except OSError as error:
            say(f"{name}:", error.strerror)
            continue
        begin = time.perf_counter()
        for at in range(0, size, 4096):
            area[at] = 1
        touched = ms(begin)
        address = c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(area)))
        begin = time.perf_counter()
        code = code_of("cuMemHostRegister_v2", address, c_size_t(size), c_uint(1))
        say(f"{name} of {size // MIB} MiB: touched by Python in", touched, "registered, code", code, "in", ms(begin))
        if code == 0:
            say(f"{name}: to the device", rate(size, timed(lambda: up(device, address, size))))
            say(f"{name}: from the device", rate(size, timed(lambda: down(address, device, size))))
            call("cuMemHostUnregister", address)
    free(device)


@fact
def host_at_device_addresses():
    """Memory of the host mapped where device memory was: the same answers, at which rate, and whether atomics count right."""
    attach()
    size = 256 * MIB
    add_one, atomics = load(ADD_ONE, "add_one"), load(ATOMICS, "atomics")
    place = c_uint64()
    call("cuMemAddressReserve", byref(place), c_size_t(size), c_size_t(0), c_uint64(0), c_uint64(0))
    for name, location in (("device", DEVICE), ("host", HOST), ("host, by NUMA node", HOST_NUMA)):
        memory = c_uint64()
        code = code_of("cuMemCreate", byref(memory), c_size_t(size), byref(Properties(PINNED, POSIX, location, 0)), c_uint64(0))
        if code != 0:
            say(f"memory of the {name}: created, code", code)
            continue
        call("cuMemMap", place, c_size_t(size), c_size_t(0), memory, c_uint64(0))
        code = code_of("cuMemSetAccess", place, c_size_t(size), byref(Access(DEVICE, 0, 3)), c_size_t(1))
        if code == 0:
            call("cuMemsetD8_v2", place, ctypes.c_ubyte(0), c_size_t(size))
            took = timed(lambda: launch_on(add_one, None, place, c_uint64(size), blocks=528, threads=256))
            word = c_uint()
            call("cuMemcpyDtoH_v2", byref(word), c_uint64(place.value + size - 4), c_size_t(4))
            say(f"memory of the {name}: read and written", rate(2 * size, took), "right" if word.value == 3 else f"wrong: {word.value}")
            call("cuMemsetD8_v2", place, ctypes.c_ubyte(0), c_size_t(64))
            launch_on(atomics, None, place, blocks=64, threads=64)
            words = (c_uint * 3)()
            call("cuMemcpyDtoH_v2", words, place, c_size_t(12))
            counted = [words[0], ctypes.c_float.from_buffer(words, 4).value, words[2]]
            say(f"memory of the {name}: atomics (integer, float, compare and swap) of 4096 threads", *counted)
        else:
            say(f"memory of the {name}: access, code", code)
        call("cuMemUnmap", place, c_size_t(size))
        call("cuMemRelease", memory)


@fact
def large_allocations():
    """How the driver gives large memory, and what is left beside it."""
    attach()
    before, total = memory_info()
    for size in (GIB, 8 * GIB):
        if size > before - GIB:
            break
        begin = time.perf_counter()
        address = allocate(size)
        took, begin = ms(begin), time.perf_counter()
        free(address)
        say(f"cuMemAlloc of {size // GIB} GiB", took, "freed in", ms(begin))
    say("memory free and in all", before, total)


@fact
def checkpoint():
    """What the driver's own checkpoint of a process leaves on the GPU, and how long it takes, with no data mapped and with 1 GiB."""
    import subprocess

    attach()
    child = [sys.executable, __file__, "checkpointed"]
    for name, size in (("no data", 0), ("1 GiB", GIB)):
        other = subprocess.Popen([*child, str(size)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert other.stdout.readline() == b"ready\n", "the other process did not start"
            with_it = memory_info()[0]
            for function in ("cuCheckpointProcessLock", "cuCheckpointProcessCheckpoint", "cuCheckpointProcessRestore", "cuCheckpointProcessUnlock"):
                begin = time.perf_counter()
                code = code_of(function, other.pid, None)
                say(f"{function}, {name}: code", code, ms(begin), "freed", (memory_info()[0] - with_it) // MIB, "MiB")
                if code != 0:
                    break
        finally:
            other.kill()
            other.wait()


def checkpointed():
    attach()
    size = int(sys.argv[2])
    if size:
        allocate(size)
    print("ready", flush=True)
    sys.stdin.read()


def main():
    named = {function.__name__: function for function in [*FACTS, checkpointed]}
    if sys.argv[1] != "all":
        return named[sys.argv[1]]()
    return driver_facts.ask_all(__file__, FACTS)


if __name__ == "__main__":
    sys.exit(main())

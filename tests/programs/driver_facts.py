"""Asks a driver what its documentation leaves open, and prints lines "fact NAME VALUE". Nothing is judged.

    driver_facts.py init | all | kill | NAME      what a fresh process pays; all the others; how a killed process leaves the GPU; one

Each question is asked by a process of its own, since some end badly. Needs nothing but Python.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

from driver import ENDLESS, HEADER, SPIN, allocate, attach, call, clear, code_of, launch, library, load, memory_info, synchronize

LIMIT_S = 20
EMPTY = HEADER + ".visible .entry empty(.param .u64 p) { ret; }\n"
POSIX = 1

FACTS = []


def fact(function):
    FACTS.append(function)
    return function


def say(name, *values):
    print("fact", name, *values, flush=True)


def ms(begin):
    return f"{(time.perf_counter() - begin) * 1e3:.3f} ms"


def init():
    """Of a process: the driver, then a context."""
    begin = time.perf_counter()
    call("cuInit", 0)
    say("cuInit", ms(begin))
    begin = time.perf_counter()
    attach()
    say("context", ms(begin))
    begin = time.perf_counter()
    load(SPIN, "spin")
    say("module of PTX, cold cache", ms(begin))


@fact
def warm():
    """The same beside a process that holds the GPU, and the memory that a context takes."""
    used = "nvidia-smi --query-gpu=memory.used --format=csv,noheader"
    before = subprocess.getoutput(used)
    init()
    say("memory used before and with one more context", before, subprocess.getoutput(used))


@fact
def attributes():
    """As JSON, for the cards of the recording driver; 88, 89 and 100 say whether kernels reach the host's pageable memory."""
    handle, values, value = attach(), {}, c_int()
    for number in range(1, 161):
        if code_of("cuDeviceGetAttribute", byref(value), number, handle) == 0:
            values[number] = value.value
    name = ctypes.create_string_buffer(256)
    call("cuDeviceGetName", name, 256, handle)
    say("attributes", "{" + ", ".join(f'"{key}": {value}' for key, value in values.items()) + "}")
    say("pageable access, by the host's tables, direct", *(values.get(number) for number in (88, 100, 101)), name.value.decode())
    say("memory free and in all", *memory_info())


class Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = [("kind", c_int), ("handles", c_int), ("location", c_int), ("device", c_int), ("meta", c_void_p), ("flags", c_uint64)]


class Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = [("location", c_int), ("device", c_int), ("flags", c_int)]


@fact
def reservations():
    attach()
    place = c_uint64()
    for bits in (40, 36, 30):
        for hint in (0x10_0000_0000 << 6, 0x4000_0000_0000, 0x7000_0000_0000, 0x2_0000_0000):
            begin = time.perf_counter()
            code = code_of("cuMemAddressReserve", byref(place), c_size_t(1 << bits), c_size_t(0), c_uint64(hint), c_uint64(0))
            took = ms(begin)
            say(f"reservation of 1 << {bits} at {hint:#x}:", f"code {code} {place.value:#x}", "honoured" if place.value == hint else "moved", took)
            if code == 0:
                call("cuMemAddressFree", place, c_size_t(1 << bits))
    say("first pointer", hex(allocate(1 << 20)))


@fact
def mapping():
    """What 2 MiB of memory of one's own cost, with and without a handle for other processes."""
    attach()
    granularity = c_size_t()
    for handles in (0, POSIX):
        properties, place, memory = Properties(1, handles, 1, 0), c_uint64(), c_uint64()
        code = code_of("cuMemGetAllocationGranularity", byref(granularity), byref(properties), 0)
        say(f"granularity, handles {handles}", granularity.value, f"code {code}")
        size = c_size_t(max(granularity.value, 2 << 20))
        call("cuMemAddressReserve", byref(place), size, c_size_t(0), c_uint64(0), c_uint64(0))
        took = []
        for _ in range(20):
            begin = time.perf_counter()
            call("cuMemCreate", byref(memory), size, byref(properties), c_uint64(0))
            call("cuMemMap", place, size, c_size_t(0), memory, c_uint64(0))
            call("cuMemSetAccess", place, size, byref(Access(1, 0, 3)), c_size_t(1))
            took.append(time.perf_counter() - begin)
            call("cuMemUnmap", place, size)
            call("cuMemRelease", memory)
        say(f"create, map and give access, handles {handles}", f"{sorted(took)[10] * 1e3:.3f} ms in the median")


def stream():
    made = c_void_p()
    call("cuStreamCreate", byref(made), 1)
    return made


def launch_on(function, on, *values, blocks=1, threads=1):
    pointers = (c_void_p * len(values))(*(ctypes.cast(byref(value), c_void_p) for value in values))
    return code_of("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, on, pointers, None)


def busy(on, counter, seconds):
    """Keeps a stream busy for about so long."""
    spin, rounds, took = load(SPIN, "spin"), 1 << 14, 0
    while took < 0.02 and rounds < 1 << 31:
        rounds *= 2
        begin = time.perf_counter()
        launch(spin, 1, 32, c_uint64(counter), ctypes.c_uint32(rounds))
        synchronize()
        took = time.perf_counter() - begin
    launch_on(spin, on, c_uint64(counter), ctypes.c_uint32(min(int(rounds * seconds / took), (1 << 32) - 1)), threads=32)


@fact
def pending_launches():
    """How many launches pend in a stream before one blocks, and whether another stream's launch blocks then."""
    attach()
    context, one, other, counter = c_void_p(), stream(), stream(), allocate(4)
    call("cuCtxGetCurrent", byref(context))
    empty = load(EMPTY, "empty")
    launch_on(empty, one, c_uint64(counter))
    busy(one, counter, 2.0)
    begun, waited = time.perf_counter(), []

    def elsewhere():
        call("cuCtxSetCurrent", context)
        for _ in range(20):
            begin = time.perf_counter()
            launch_on(empty, other, c_uint64(counter))
            waited.append(time.perf_counter() - begin)
            time.sleep(0.05)

    beside = threading.Thread(target=elsewhere)
    beside.start()
    for number in range(100_000):
        begin = time.perf_counter()
        launch_on(empty, one, c_uint64(counter))
        if time.perf_counter() - begin > 0.1:
            say("launches that pend before one blocks", number, "which blocked for", ms(begin))
            break
        if time.perf_counter() - begun > 1.5:
            say("no launch blocked", number, "pending")
            break
    beside.join()
    synchronize()
    say("longest launch in another stream meanwhile", f"{max(waited) * 1e3:.3f} ms")


@fact
def blocking_host_function():
    """Whether a host function that sleeps in one stream holds up launches in another."""
    attach()
    one, other, counter, empty = stream(), stream(), allocate(4), load(EMPTY, "empty")
    sleeps = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: time.sleep(0.5))
    launch_on(empty, other, c_uint64(counter))
    synchronize()
    call("cuLaunchHostFunc", one, sleeps, None)
    begin = time.perf_counter()
    launch_on(empty, other, c_uint64(counter))
    say("a launch beside a blocking host function", ms(begin))
    call("cuStreamSynchronize", other)
    say("its end", ms(begin))
    launch_on(empty, one, c_uint64(counter))
    say("a launch behind a blocking host function", ms(begin))
    synchronize()


@fact
def codes():
    """Of mistakes and of what not all cards do."""
    attach()
    empty, counter = load(EMPTY, "empty"), allocate(4)
    for threads in (1024, 1025, 2048):
        say(f"code of a launch of {threads} threads a block", launch_on(empty, None, c_uint64(counter), threads=threads))
    say("code of a launch of no block", launch_on(empty, None, c_uint64(counter), blocks=0))
    say("code of cuStreamWaitValue32", code_of("cuStreamWaitValue32_v2", None, c_uint64(counter), ctypes.c_uint32(0), 0))
    say("code of cuStreamQuery after it", code_of("cuStreamQuery", None))
    word = ctypes.c_uint32()
    say("code of a copy from an address that nobody gave", code_of("cuMemcpyDtoH_v2", byref(word), c_uint64(0x1000), c_size_t(4)))
    say("code of cuMemFree of it", code_of("cuMemFree_v2", c_uint64(0x1000)))
    say("code of cuMemFree twice", code_of("cuMemFree_v2", c_uint64(counter)), code_of("cuMemFree_v2", c_uint64(counter)))


@fact
def turns_of_two_contexts():
    """A kernel and its end in one context, and the same by turns in two: the difference is the cost of a turn."""
    handle = attach()
    contexts = [c_void_p(), c_void_p()]
    call("cuCtxGetCurrent", byref(contexts[0]))
    call("cuCtxCreate_v2", byref(contexts[1]), 0, handle)
    kernels = []
    for context in contexts:
        call("cuCtxSetCurrent", context)
        kernels.append((load(EMPTY, "empty"), c_uint64(allocate(4))))
    for name, order in (("one context", (0, 0)), ("two contexts by turns", (0, 1))):
        begin = time.perf_counter()
        for number in range(1000):
            at = order[number % 2]
            call("cuCtxSetCurrent", contexts[at])
            launch_on(kernels[at][0], None, kernels[at][1])
            call("cuCtxSynchronize")
        say(f"launch and wait, {name}", f"{(time.perf_counter() - begin) * 1e3:.3f} us each")


def endless():
    attach()
    word = allocate(4)
    clear(word, 4)
    launch(load(ENDLESS, "endless"), 4, 64, c_uint64(word))
    print("launched", flush=True)
    synchronize()


def kill():
    """From the SIGKILL of a process whose kernel never ends to a kernel of another process that has ended."""
    attach()
    empty, counter = load(EMPTY, "empty"), allocate(4)
    launch_on(empty, None, c_uint64(counter))
    synchronize()
    victim = subprocess.Popen([sys.executable, __file__, "endless"], stdout=subprocess.PIPE)
    try:
        assert victim.stdout.readline() == b"launched\n", "the endless kernel was not launched"
        begin = time.perf_counter()
        launch_on(empty, None, c_uint64(counter))
        synchronize()
        say("a kernel beside an endless one of another process", ms(begin))
    finally:
        begin = time.perf_counter()
        victim.send_signal(signal.SIGKILL)
    victim.wait()
    say("the killed process has ended after", ms(begin))
    launch_on(empty, None, c_uint64(counter))
    synchronize()
    say("a kernel has ended after", ms(begin))


def ask_all(file, facts):
    """Each question by a process of its own; fails if no question was answered."""
    failed = 0
    for function in facts:
        child = subprocess.Popen([sys.executable, file, function.__name__])
        try:
            code = child.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            code = f"nothing for {LIMIT_S} s"
        if code != 0:
            failed += 1
            say(function.__name__, "ended with", code)
    print(f"{len(facts) - failed} of {len(facts)} answered")
    return 1 if failed == len(facts) else 0


def main():
    named = {function.__name__: function for function in [*FACTS, init, kill, endless]}
    if sys.argv[1] != "all":
        return named[sys.argv[1]]()
    return ask_all(__file__, FACTS)


if __name__ == "__main__":
    sys.exit(main())

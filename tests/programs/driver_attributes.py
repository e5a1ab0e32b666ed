"""Attributes of streams, contexts, pointers and the process, and what is asked of a graph's node: set, read back, and what
they change. Needs nothing but Python.
"""

import ctypes
import os
import sys
import threading
from ctypes import byref, c_int, c_size_t, c_uint32, c_uint64, c_void_p

from driver import allocate, attach, call, code_of, free
from driver_functions import INVALID_VALUE, NOT_READY, address, equal, out, refused, run_sections, size, words

NOT_SUPPORTED, INVALID_CONTEXT = 801, 201
WINDOW, POLICY, PRIORITY, DOMAIN = 1, 3, 8, 10
ANY_STREAM = 1

SECTIONS = []


def section(run):
    SECTIONS.append(run)
    return run


def stream(flags=ANY_STREAM):
    return c_void_p(out(c_void_p, "cuStreamCreate", flags))


def event():
    return c_void_p(out(c_void_p, "cuEventCreate", 0))


def value(*numbers):
    """A launch attribute's value: 64 bytes."""
    return (c_uint32 * 16)(*numbers)


def attribute(of, number):
    read = value()
    call("cuStreamGetAttribute", of, number, read)
    return list(read)


def window(place, length):
    """Half of the lines of some memory persist, the others stream."""
    half = c_uint32.from_buffer(ctypes.c_float(0.5)).value
    return value(place & 0xFFFFFFFF, place >> 32, length, 0, half, 2, 1)


class Held:
    """A stream that does nothing until it is let go."""

    def __init__(self):
        self.stream, self.gate = stream(), threading.Event()
        self.function = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: self.gate.wait() and None)
        call("cuLaunchHostFunc", self.stream, self.function, None)

    def let_go(self):
        self.gate.set()
        call("cuStreamSynchronize", self.stream)


@section
def attributes_of_streams():
    place = allocate(1 << 16)
    one, other = stream(), stream()
    equal(attribute(one, PRIORITY)[0], 0)
    call("cuStreamSetAttribute", one, POLICY, value(2))
    call("cuStreamSetAttribute", one, DOMAIN, value(1))
    call("cuStreamSetAttribute", one, PRIORITY, value(0xFFFFFFFF))
    call("cuStreamSetAttribute", one, WINDOW, window(place, 4096))
    equal(out(c_int, "cuStreamGetPriority", one, first=False), -1)
    equal((attribute(one, POLICY)[0], attribute(one, DOMAIN)[0]), (2, 1))
    equal(attribute(one, WINDOW), list(window(place, 4096)))
    equal(attribute(other, WINDOW), [0] * 16)
    call("cuStreamCopyAttributes", other, one)
    equal((attribute(other, POLICY)[0], attribute(other, WINDOW)), (2, list(window(place, 4096))))
    equal(out(c_int, "cuStreamGetPriority", other, first=False), -1)
    # Neither memory that is nobody's, nor an attribute of launches alone, nor a policy that there is not.
    refused(INVALID_VALUE, "cuStreamSetAttribute", one, WINDOW, window(place, 1 << 30))
    assert code_of("cuStreamSetAttribute", one, 4, value(1, 1, 1)) != 0
    refused(INVALID_VALUE, "cuStreamSetAttribute", one, POLICY, value(77))
    refused(INVALID_VALUE, "cuStreamSetAttribute", one, POLICY, None)
    call("cuStreamSetAttribute", one, WINDOW, value())
    equal(attribute(one, WINDOW), [0] * 16)
    call("cuStreamDestroy_v2", one)
    call("cuStreamDestroy_v2", other)
    free(place)


@section
def events_of_contexts():
    """An event of a context stands for the work of all of its streams, and all of them wait for one."""
    here = c_void_p(out(c_void_p, "cuCtxGetCurrent"))
    place, all_done, gate = allocate(4), event(), event()
    held, busy = Held(), stream()
    call("cuMemsetD32Async", address(place), 1, size(1), busy)
    call("cuCtxRecordEvent", here, all_done)
    equal(code_of("cuEventQuery", all_done), NOT_READY)
    held.let_go()
    call("cuEventSynchronize", all_done)

    held = Held()
    call("cuEventRecord", gate, held.stream)
    call("cuCtxWaitEvent", here, gate)
    call("cuMemsetD32Async", address(place), 2, size(1), busy)
    later = stream()
    call("cuMemsetD32Async", address(place), 2, size(1), later)
    equal((code_of("cuStreamQuery", busy), code_of("cuStreamQuery", later)), (NOT_READY, NOT_READY))
    held.let_go()
    call("cuStreamSynchronize", busy)
    call("cuStreamSynchronize", later)
    equal(words(place, 1), [2])
    # An event that was never recorded holds nothing back.
    call("cuCtxWaitEvent", here, event())
    call("cuStreamSynchronize", busy)
    refused(INVALID_CONTEXT, "cuCtxRecordEvent", c_void_p(12345), gate)
    for used in (busy, later):
        call("cuStreamDestroy_v2", used)
    free(place)


@section
def contexts_with_captures():
    here, on, some = c_void_p(out(c_void_p, "cuCtxGetCurrent")), stream(), event()
    for function in ("cuCtxRecordEvent", "cuCtxWaitEvent"):
        call("cuStreamBeginCapture_v2", on, 2)
        refused(900, function, here, some)
        refused(901, "cuStreamEndCapture", on, byref(c_void_p()))
    call("cuStreamDestroy_v2", on)


@section
def memory_that_always_waits():
    place = allocate(1 << 12)
    always, asked = c_uint32(1), c_uint32(0)
    refused(INVALID_VALUE, "cuPointerSetAttribute", byref(always), 2, address(place))
    call("cuPointerSetAttribute", byref(always), 6, address(place + 16))
    call("cuPointerGetAttribute", byref(asked), 6, address(place))
    equal(asked.value & 1, 1)
    call("cuMemsetD32_v2", address(place), 7, size(1024))
    call("cuMemcpyDtoD_v2", address(place + 2048), address(place), size(2048))
    equal(code_of("cuStreamQuery", c_void_p(1)), 0)
    call("cuPointerSetAttribute", byref(c_uint32(0)), 6, address(place))
    call("cuPointerGetAttribute", byref(asked), 6, address(place))
    equal(asked.value & 1, 0)
    free(place)


@section
def graph_of_a_node():
    graph, node = c_void_p(out(c_void_p, "cuGraphCreate", 0)), c_void_p()
    call("cuGraphAddEmptyNode", byref(node), graph, None, size(0))
    equal(out(c_void_p, "cuGraphNodeGetContainingGraph", node, first=False), graph.value)
    call("cuGraphDestroy", graph)


def setting(number, function="cuCoredumpGetAttribute"):
    length = c_size_t()
    call(function, number, None, byref(length))
    read = ctypes.create_string_buffer(length.value)
    call(function, number, read, byref(length))
    return read.raw[:length.value]


@section
def core_dumps_of_device_code():
    """No dump is ever written; the settings are there, and cannot be set so that one would be."""
    equal([setting(number) for number in (1, 2, 3, 4)], [b"\0", b"\1", b"\0", b"\0"])
    assert setting(5).startswith(b"core.cuda.") and str(os.getpid()).encode() in setting(5)
    name = ctypes.create_string_buffer(b"elsewhere")
    call("cuCoredumpSetAttribute", 5, name, byref(c_size_t(10)))
    equal((setting(5), setting(5, "cuCoredumpGetAttributeGlobal")[:9]), (b"elsewhere\0", b"core.cuda"))
    refused(NOT_SUPPORTED, "cuCoredumpSetAttribute", 1, ctypes.create_string_buffer(b"\1", 1), byref(c_size_t(1)))
    call("cuCoredumpSetAttributeGlobal", 1, ctypes.create_string_buffer(b"\0", 1), byref(c_size_t(1)))
    refused(INVALID_VALUE, "cuCoredumpGetAttribute", 99, None, byref(c_size_t()))


@section
def checkpoints():
    equal(out(c_int, "cuCheckpointProcessGetState", os.getpid(), first=False), 0)
    refused(NOT_SUPPORTED, "cuCheckpointProcessGetState", 1, byref(c_int()))
    for function in ("Lock", "Checkpoint", "Restore", "Unlock"):
        refused(NOT_SUPPORTED, f"cuCheckpointProcess{function}", os.getpid(), None)


if __name__ == "__main__":
    attach()
    sys.exit(run_sections(SECTIONS))

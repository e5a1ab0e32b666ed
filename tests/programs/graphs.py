"""Graphs and captures, called as a C program would: every kind of node, copies and functions of the program inside,
captures over several streams, memory of graphs, and the errors of captures. Results are compared after each launch.
Needs nothing but Python.
"""

import ctypes
import sys
import tempfile
from ctypes import byref, c_int, c_size_t, c_ubyte, c_uint32, c_uint64, c_void_p

from driver import allocate, attach, call, code_of, free
from driver_functions import (LEGACY, INVALID_VALUE, KernelNode, MemsetNode, address, equal, function, out, parameters,
                              refused, run_sections, size, words)

UNSUPPORTED, INVALIDATED, MERGE, UNMATCHED, UNJOINED, ISOLATION, IMPLICIT, CAPTURED_EVENT, WRONG_THREAD = range(900, 909)
ILLEGAL_STATE = 401
GLOBAL, THREAD_LOCAL, RELAXED = range(3)
KERNEL, MEMCPY, MEMSET, HOST, GRAPH, EMPTY, WAIT_EVENT, EVENT_RECORD, _, _, MEM_ALLOC, MEM_FREE, BATCH = range(13)
HOST_FUNCTION = ctypes.CFUNCTYPE(None, c_void_p)

SECTIONS = []


def section(run):
    SECTIONS.append(run)
    return run


def stream(flags=1):
    return c_void_p(out(c_void_p, "cuStreamCreate", flags))


def event():
    return c_void_p(out(c_void_p, "cuEventCreate", 0))


def end(of):
    return c_void_p(out(c_void_p, "cuStreamEndCapture", of, first=False))


def instantiate(graph, flags=0):
    return c_void_p(out(c_void_p, "cuGraphInstantiateWithFlags", graph, c_uint64(flags)))


def launch(executable, on, times=1):
    for _ in range(times):
        call("cuGraphLaunch", executable, on)
    call("cuStreamSynchronize", on)


def add(place, count, value, on, kernel=[]):
    """Adds a number to each of some words."""
    kernel or kernel.append(function())
    values = parameters(c_uint64(place), c_uint32(count), c_uint32(value))
    call("cuLaunchKernel", kernel[0], 1, 1, 1, 128, 1, 1, 0, on, values, None)


def nodes_of(graph):
    count = c_size_t(out(c_size_t, "cuGraphGetNodes", graph, None, first=False))
    nodes = (c_void_p * count.value)()
    call("cuGraphGetNodes", graph, nodes, byref(count))
    return [c_void_p(node) for node in nodes]


def kinds_of(graph):
    return sorted(out(c_int, "cuGraphNodeGetType", node, first=False) for node in nodes_of(graph))


def edges_of(graph):
    count = c_size_t(out(c_size_t, "cuGraphGetEdges", graph, None, None, first=False))
    here, there = (c_void_p * count.value)(), (c_void_p * count.value)()
    call("cuGraphGetEdges", graph, here, there, byref(count))
    return list(zip(here, there))


class HostNode(ctypes.Structure):
    _fields_ = [("function", HOST_FUNCTION), ("data", c_void_p)]


class Allocation(ctypes.Structure):
    """CUDA_MEM_ALLOC_NODE_PARAMS: a pool's properties, then who has access, how much, and the address that the driver fills in."""

    _fields_ = [("kind", c_int), ("handles", c_int), ("location", c_int), ("device", c_int), ("rest", c_uint64 * 9),
                ("access", c_void_p), ("access_count", c_size_t), ("bytes", c_size_t), ("address", c_uint64)]


class AnyNode(ctypes.Structure):
    """CUgraphNodeParams: a kind, and the structure of that kind."""

    _fields_ = [("kind", c_int), ("reserved0", c_int * 3), ("words", c_uint64 * 29), ("reserved2", c_uint64)]

    def take(self, kind):
        return kind.from_buffer(self, AnyNode.words.offset)


def any_params(node):
    params = AnyNode()
    call("cuGraphNodeGetParams", node, byref(params))
    equal(params.kind, out(c_int, "cuGraphNodeGetType", node, first=False))
    return params


class Copy3D(ctypes.Structure):
    _fields_ = [("src_x", c_size_t), ("src_y", c_size_t), ("src_z", c_size_t), ("src_lod", c_size_t), ("src_kind", c_int),
                ("src_host", c_void_p), ("src", c_uint64), ("src_array", c_void_p), ("reserved0", c_void_p),
                ("src_pitch", c_size_t), ("src_height", c_size_t), ("dst_x", c_size_t), ("dst_y", c_size_t),
                ("dst_z", c_size_t), ("dst_lod", c_size_t), ("dst_kind", c_int), ("dst_host", c_void_p), ("dst", c_uint64),
                ("dst_array", c_void_p), ("reserved1", c_void_p), ("dst_pitch", c_size_t), ("dst_height", c_size_t),
                ("width", c_size_t), ("height", c_size_t), ("depth", c_size_t)]


def linear(dst, src, size):
    """A copy of one row; addresses of this process are `ctypes` arrays."""
    copy = Copy3D(width=size, height=1, depth=1)
    for name, side in [("src", src), ("dst", dst)]:
        on_host = not isinstance(side, int)
        setattr(copy, f"{name}_kind", 1 if on_host else 2)
        setattr(copy, f"{name}_host" if on_host else name, ctypes.addressof(side) if on_host else side)
    return copy


@section
def captured_copies_move_what_is_there_at_launch():
    place, on = allocate(400), stream()
    source, result = (c_uint32 * 100)(*range(100)), (c_uint32 * 100)()
    call("cuStreamBeginCapture_v2", on, RELAXED)
    call("cuMemcpyHtoDAsync_v2", address(place), source, size(400), on)
    add(place, 100, 5, on)
    call("cuMemcpyDtoHAsync_v2", result, address(place), size(400), on)
    graph = end(on)
    equal(kinds_of(graph), sorted([MEMCPY, KERNEL, MEMCPY]))
    executable = instantiate(graph)
    equal(list(result), [0] * 100, "nothing runs in a capture")
    launch(executable, on)
    equal(list(result), [n + 5 for n in range(100)])
    source[:] = [1000] * 100
    launch(executable, on, 2)
    equal(list(result), [1005] * 100, "the data of the launch")
    call("cuGraphExecDestroy", executable)
    call("cuGraphDestroy", graph)
    call("cuStreamDestroy_v2", on)
    free(place)


@section
def host_functions_run_in_the_order_of_the_graph():
    """A function writes what a later copy of the same graph takes to the device."""
    place, on = allocate(4), stream()
    source, result, calls = (c_uint32 * 1)(), (c_uint32 * 1)(), []

    @HOST_FUNCTION
    def fill(data):
        calls.append(data)
        source[0] = 40 + len(calls)

    call("cuStreamBeginCapture_v2", on, THREAD_LOCAL)
    call("cuLaunchHostFunc", on, fill, c_void_p(7))
    call("cuMemcpyHtoDAsync_v2", address(place), source, size(4), on)
    call("cuMemcpyDtoHAsync_v2", result, address(place), size(4), on)
    graph = end(on)
    executable = instantiate(graph)
    for turn in range(1, 4):
        launch(executable, on)
        equal((result[0], calls), (40 + turn, [7] * turn))
    node = next(n for n in nodes_of(graph) if out(c_int, "cuGraphNodeGetType", n, first=False) == HOST)
    params = HostNode()
    call("cuGraphHostNodeGetParams", node, byref(params))
    equal(params.data, 7)
    params.data = 8
    call("cuGraphExecHostNodeSetParams", executable, node, byref(params))
    launch(executable, on)
    equal(calls[-1], 8)
    clone = c_void_p(out(c_void_p, "cuGraphClone", graph))
    call("cuGraphDestroy", graph)
    again = instantiate(clone)
    launch(again, on)
    equal((calls[-1], result[0]), (7, 45), "the clone has the function, too")
    for name, handle in [("cuGraphExecDestroy", executable), ("cuGraphExecDestroy", again), ("cuGraphDestroy", clone)]:
        call(name, handle)
    call("cuStreamDestroy_v2", on)
    free(place)


@section
def a_capture_follows_events_to_other_streams():
    place = allocate(400)
    first, second, fork, join = stream(), stream(), event(), event()
    call("cuStreamBeginCapture_v2", first, RELAXED)
    call("cuMemsetD32Async", address(place), 1, size(100), first)
    call("cuEventRecord", fork, first)
    call("cuStreamWaitEvent", second, fork, 0)
    equal(out(c_int, "cuStreamIsCapturing", second, first=False), 1, "joined")
    add(place, 50, 10, first)
    add(place + 200, 50, 20, second)
    call("cuEventRecord", join, second)
    call("cuStreamWaitEvent", first, join, 0)
    add(place, 100, 100, first)
    status, number, graph_now, before, count = c_int(), c_uint64(), c_void_p(), c_void_p(), c_size_t()
    call("cuStreamGetCaptureInfo_v2", first, byref(status), byref(number), byref(graph_now), byref(before), byref(count))
    equal((status.value, count.value), (1, 1), "the last node alone")
    graph = end(first)
    equal(graph.value, graph_now.value, "the graph has its handle from the beginning")
    equal(out(c_int, "cuStreamIsCapturing", second, first=False), 0, "left")
    equal(kinds_of(graph), sorted([MEMSET, KERNEL, KERNEL, KERNEL]))
    equal(len(edges_of(graph)), 4, "a diamond")
    executable = instantiate(graph)
    launch(executable, first, 2)
    equal(words(place, 100), [111] * 50 + [121] * 50)
    call("cuGraphExecDestroy", executable)
    call("cuGraphDestroy", graph)
    for handle in (fork, join):
        call("cuEventDestroy_v2", handle)
    for handle in (first, second):
        call("cuStreamDestroy_v2", handle)
    free(place)


@section
def captures_say_what_they_do_not_allow():
    on, other, mark = stream(), stream(), event()
    graph = c_void_p()
    refused(ILLEGAL_STATE, "cuStreamEndCapture", on, byref(graph))
    refused(UNSUPPORTED, "cuStreamBeginCapture_v2", LEGACY, GLOBAL)
    # Waiting for a stream that captures ends the capture's worth.
    call("cuStreamBeginCapture_v2", on, RELAXED)
    refused(ILLEGAL_STATE, "cuStreamBeginCapture_v2", on, RELAXED)
    refused(UNSUPPORTED, "cuStreamSynchronize", on)
    status = c_int()
    call("cuStreamGetCaptureInfo", on, byref(status), None)
    equal(status.value, 2, "invalidated")
    refused(INVALIDATED, "cuStreamEndCapture", on, byref(graph))
    equal(graph.value, None)
    # Work of before the capture cannot be waited for inside.
    call("cuEventRecord", mark, other)
    call("cuStreamBeginCapture_v2", on, RELAXED)
    refused(ISOLATION, "cuStreamWaitEvent", on, mark, 0)
    refused(INVALIDATED, "cuStreamEndCapture", on, byref(graph))
    # A stream that joined must be joined back, and only the first can end it.
    call("cuStreamBeginCapture_v2", on, RELAXED)
    call("cuEventRecord", mark, on)
    call("cuStreamWaitEvent", other, mark, 0)
    refused(UNMATCHED, "cuStreamEndCapture", other, byref(graph))
    # Whether the capture has failed by that, or can go on, is the driver's choice.
    if code_of("cuStreamEndCapture", on, byref(graph)) == 0:
        call("cuGraphDestroy", graph)
    call("cuStreamBeginCapture_v2", on, RELAXED)
    call("cuEventRecord", mark, on)
    call("cuStreamWaitEvent", other, mark, 0)
    nothing = HOST_FUNCTION(lambda _: None)
    call("cuLaunchHostFunc", other, nothing, None)
    # A capture into a graph that is there, as under a lease, may leave the stream out.
    code = code_of("cuStreamEndCapture", on, byref(graph))
    assert code in (0, UNJOINED), code
    if code == 0:
        call("cuGraphDestroy", graph)
    # An event of a capture stands for nothing outside.
    assert code_of("cuEventQuery", mark) in (INVALID_VALUE, CAPTURED_EVENT)
    # Allocating is for threads that have said so, while somebody captures globally.
    call("cuStreamBeginCapture_v2", on, GLOBAL)
    place = c_uint64()
    refused(UNSUPPORTED, "cuMemAlloc_v2", byref(place), size(64))
    refused(INVALIDATED, "cuStreamEndCapture", on, byref(graph))
    mode = c_int(RELAXED)
    call("cuThreadExchangeStreamCaptureMode", byref(mode))
    call("cuStreamBeginCapture_v2", on, GLOBAL)
    call("cuMemAlloc_v2", byref(place), size(64))
    call("cuThreadExchangeStreamCaptureMode", byref(mode))
    call("cuGraphDestroy", end(on))
    call("cuMemFree_v2", place)
    # The legacy stream waits for blocking streams, and so would be part of their captures.
    blocking = stream(0)
    call("cuStreamBeginCapture_v2", blocking, RELAXED)
    refused(IMPLICIT, "cuStreamQuery", LEGACY)
    refused(INVALIDATED, "cuStreamEndCapture", blocking, byref(graph))
    call("cuEventDestroy_v2", mark)
    for handle in (on, other, blocking):
        call("cuStreamDestroy_v2", handle)


@section
def a_capture_goes_into_a_graph_behind_nodes_of_it():
    place, on = allocate(400), stream()
    context, graph, clear = c_void_p(out(c_void_p, "cuCtxGetCurrent")), c_void_p(), c_void_p()
    call("cuGraphCreate", byref(graph), 0)
    call("cuGraphAddMemsetNode", byref(clear), graph, None, size(0), byref(MemsetNode(place, 0, 1, 4, 100, 1)), context)
    call("cuStreamBeginCaptureToGraph", on, graph, byref(clear), None, size(1), RELAXED)
    add(place, 100, 2, on)
    between = c_void_p()
    before, count = c_void_p(), c_size_t()
    call("cuStreamGetCaptureInfo_v2", on, byref(c_int()), None, None, byref(before), byref(count))
    last = ctypes.cast(before, ctypes.POINTER(c_void_p))[0]
    call("cuGraphAddEmptyNode", byref(between), graph, byref(c_void_p(last)), size(1))
    call("cuStreamUpdateCaptureDependencies", on, byref(between), size(1), 1)
    add(place, 100, 30, on)
    # To what is there already, without saying what the edge carries; then anew, with an edge that carries nothing.
    aside = c_void_p()
    call("cuGraphAddEmptyNode", byref(aside), graph, byref(clear), size(1))
    call("cuStreamUpdateCaptureDependencies_v2", on, byref(aside), None, size(1), 0)
    call("cuStreamGetCaptureInfo_v2", on, byref(c_int()), None, None, byref(before), byref(count))
    equal(count.value, 2, "the kernel and the node beside it")
    kernel = next(n for n in (ctypes.cast(before, ctypes.POINTER(c_void_p))[i] for i in range(2)) if n != aside.value)
    plain = (c_uint64 * 1)()
    call("cuStreamUpdateCaptureDependencies_v2", on, byref(c_void_p(kernel)), plain, size(1), 1)
    call("cuStreamGetCaptureInfo_v2", on, byref(c_int()), None, None, byref(before), byref(count))
    equal((count.value, ctypes.cast(before, ctypes.POINTER(c_void_p))[0]), (1, kernel))
    equal(end(on).value, graph.value)
    equal(kinds_of(graph), sorted([MEMSET, KERNEL, EMPTY, KERNEL, EMPTY]))
    equal(len(edges_of(graph)), 4, "a chain, and the node beside it")
    roots = (c_void_p * 1)()
    call("cuGraphGetRootNodes", graph, roots, byref(c_size_t(1)))
    equal(roots[0], clear.value)
    executable = instantiate(graph)
    launch(executable, on)
    equal(words(place, 100), [33] * 100)
    call("cuGraphExecDestroy", executable)
    call("cuGraphDestroy", graph)
    call("cuStreamDestroy_v2", on)
    free(place)


@section
def nodes_are_added_to_what_is_being_captured():
    """As libraries do that find themselves in somebody's capture: they ask for its graph, and go on behind a node of theirs."""
    place, on = allocate(400), stream()
    call("cuMemsetD32_v2", address(place), 0, size(100))
    context, mine = c_void_p(out(c_void_p, "cuCtxGetCurrent")), c_void_p()
    call("cuStreamBeginCapture_v2", on, GLOBAL)
    add(place, 100, 1000, on)
    graph, before, count = c_void_p(), c_void_p(), c_size_t()
    call("cuStreamGetCaptureInfo_v2", on, byref(c_int()), None, byref(graph), byref(before), byref(count))
    last, memset = ctypes.cast(before, ctypes.POINTER(c_void_p)), MemsetNode(place, 0, 6, 4, 100, 1)
    call("cuGraphAddMemsetNode", byref(mine), graph, last, count, byref(memset), context)
    call("cuStreamUpdateCaptureDependencies", on, byref(mine), size(1), 1)
    add(place, 100, 30, on)
    assert code_of("cuGraphDestroy", graph) != 0, "it is not finished"
    equal(end(on).value, graph.value)
    equal((kinds_of(graph), len(edges_of(graph))), (sorted([KERNEL, MEMSET, KERNEL]), 2))
    executable = instantiate(graph)
    launch(executable, on)
    equal(words(place, 100), [36] * 100)
    call("cuGraphExecDestroy", executable)
    call("cuGraphDestroy", graph)
    # With a capture that fails its graph goes, and with it what was added.
    call("cuStreamBeginCapture_v2", on, RELAXED)
    call("cuStreamGetCaptureInfo_v2", on, byref(c_int()), None, byref(graph), None, None)
    call("cuGraphAddEmptyNode", byref(mine), graph, None, size(0))
    refused(UNSUPPORTED, "cuStreamSynchronize", on)
    refused(INVALIDATED, "cuStreamEndCapture", on, byref(c_void_p()))
    assert code_of("cuGraphGetNodes", graph, None, byref(count)) != 0, "the graph is gone"
    assert code_of("cuGraphNodeGetType", mine, byref(c_int())) != 0, "and its node"
    call("cuStreamDestroy_v2", on)
    free(place)


@section
def nodes_are_read_and_changed():
    place, there, on = allocate(400), allocate(400), stream()
    context, graph = c_void_p(out(c_void_p, "cuCtxGetCurrent")), c_void_p()
    fill, kernel, copy, back, mark = (c_void_p() for _ in range(5))
    host, moment = (c_uint32 * 100)(), event()
    call("cuGraphCreate", byref(graph), 0)
    call("cuGraphAddMemsetNode", byref(fill), graph, None, size(0), byref(MemsetNode(place, 0, 3, 4, 100, 1)), context)
    values = parameters(c_uint64(place), c_uint32(100), c_uint32(4))
    params = KernelNode(function().value, 1, 1, 1, 128, 1, 1, 0, ctypes.addressof(values), None, None, None)
    call("cuGraphAddKernelNode_v2", byref(kernel), graph, byref(fill), size(1), byref(params))
    call("cuGraphAddMemcpyNode", byref(copy), graph, byref(kernel), size(1), byref(linear(there, place, 400)), context)
    call("cuGraphAddMemcpyNode", byref(back), graph, byref(copy), size(1), byref(linear(host, there, 400)), context)
    call("cuGraphAddEventRecordNode", byref(mark), graph, byref(back), size(1), moment)
    executable = instantiate(graph)
    launch(executable, on)
    equal(list(host), [7] * 100)
    # What was said comes back.
    memset = MemsetNode()
    call("cuGraphMemsetNodeGetParams", fill, byref(memset))
    equal((memset.dst, memset.value, memset.width, memset.height), (place, 3, 100, 1))
    known = KernelNode()
    call("cuGraphKernelNodeGetParams_v2", kernel, byref(known))
    pointers = ctypes.cast(known.params, ctypes.POINTER(c_void_p))
    equal(ctypes.cast(pointers[2], ctypes.POINTER(c_uint32))[0], 4, "a parameter's value")
    told = Copy3D()
    call("cuGraphMemcpyNodeGetParams", back, byref(told))
    equal((told.dst_host, told.src, told.width), (ctypes.addressof(host), there, 400))
    call("cuGraphMemcpyNodeGetParams", copy, byref(told))
    equal((told.dst, told.src), (there, place))
    equal(out(c_void_p, "cuGraphEventRecordNodeGetEvent", mark, first=False), moment.value)
    refused(INVALID_VALUE, "cuGraphMemsetNodeGetParams", kernel, byref(memset))
    # The same from the function for all kinds.
    equal(any_params(fill).take(MemsetNode).dst, place)
    equal(any_params(kernel).take(KernelNode).bx, 128)
    equal((Copy3D.from_buffer(any_params(copy), AnyNode.words.offset + 16).dst, any_params(mark).words[0]), (there, moment.value))
    # Changed in the graph, for what is instantiated from then on; and in an executable graph, for its next launch.
    memset.value = 10
    call("cuGraphMemsetNodeSetParams", fill, byref(memset))
    call("cuGraphExecMemsetNodeSetParams", executable, fill, byref(MemsetNode(place, 0, 20, 4, 100, 1)), context)
    launch(executable, on)
    equal(list(host), [24] * 100)
    other = (c_uint32 * 100)()
    call("cuGraphMemcpyNodeSetParams", back, byref(linear(other, there, 400)))
    second = instantiate(graph)
    launch(second, on)
    equal((list(other), host[0]), ([14] * 100, 24), "the memset and the copy that were changed")
    call("cuGraphExecMemcpyNodeSetParams", second, back, byref(linear(host, there, 400)), context)
    call("cuGraphNodeSetEnabled", second, kernel, 0)
    equal(out(c_uint32, "cuGraphNodeGetEnabled", second, kernel, first=False), 0)
    launch(second, on)
    equal(list(host), [10] * 100, "without the kernel")
    # Edges and neighbours.
    equal(len(edges_of(graph)), 4)
    count, around = c_size_t(1), (c_void_p * 1)()
    call("cuGraphNodeGetDependencies", copy, around, byref(count))
    equal(around[0], kernel.value)
    call("cuGraphNodeGetDependentNodes", copy, around, byref(count))
    equal(around[0], back.value)
    clone = c_void_p(out(c_void_p, "cuGraphClone", graph))
    twin = out(c_void_p, "cuGraphNodeFindInClone", copy, clone)
    equal(twin in [n.value for n in nodes_of(clone)], True)
    equal(kinds_of(clone), kinds_of(graph))
    call("cuGraphDestroyNode", mark)
    equal((len(nodes_of(graph)), len(nodes_of(clone))), (4, 5))
    with tempfile.NamedTemporaryFile() as file:
        call("cuGraphDebugDotPrint", graph, file.name.encode(), 0)
        drawn = file.read().decode()
    equal(drawn.count("->"), 3, drawn)
    # A graph within a graph.
    outer, child, inner = c_void_p(), c_void_p(), c_void_p()
    call("cuGraphCreate", byref(outer), 0)
    call("cuGraphAddChildGraphNode", byref(child), outer, None, size(0), graph)
    call("cuGraphChildGraphNodeGetGraph", child, byref(inner))
    equal(kinds_of(inner), kinds_of(graph))
    whole = instantiate(outer)
    other[:] = [0] * 100
    launch(whole, on)
    equal(list(other), [14] * 100)
    for handle in (executable, second, whole):
        call("cuGraphExecDestroy", handle)
    for handle in (outer, clone, graph):
        call("cuGraphDestroy", handle)
    call("cuEventDestroy_v2", moment)
    call("cuStreamDestroy_v2", on)
    free(place)
    free(there)


@section
def a_child_of_an_executable_graph_is_exchanged():
    """The nodes of the other graph have the same kinds and edges, and do something else."""
    place, on, context = allocate(400), stream(), c_void_p(out(c_void_p, "cuCtxGetCurrent"))
    inner, other, lopsided, outer, child = (c_void_p() for _ in range(5))
    for graph, values in ((inner, (1, 2)), (other, (30, 40)), (lopsided, (5,))):
        call("cuGraphCreate", byref(graph), 0)
        last = c_void_p()
        for at, value in enumerate(values):
            memset, before = MemsetNode(place + 200 * at, 0, value, 4, 50, 1), byref(c_void_p(last.value))
            call("cuGraphAddMemsetNode", byref(last), graph, before, size(min(at, 1)), byref(memset), context)
    call("cuGraphCreate", byref(outer), 0)
    call("cuGraphAddChildGraphNode", byref(child), outer, None, size(0), inner)
    executable = instantiate(outer)
    launch(executable, on)
    equal(words(place, 100), [1] * 50 + [2] * 50)
    call("cuGraphExecChildGraphNodeSetParams", executable, child, other)
    launch(executable, on)
    equal(words(place, 100), [30] * 50 + [40] * 50)
    assert code_of("cuGraphExecChildGraphNodeSetParams", executable, child, lopsided) != 0, "one node less"
    launch(executable, on)
    equal(words(place, 100), [30] * 50 + [40] * 50, "as it was")
    second = instantiate(outer)
    launch(second, on)
    equal(words(place, 100), [1] * 50 + [2] * 50, "the graph itself has not changed")
    embedded = c_void_p(any_params(child).words[0])
    equal(kinds_of(embedded), [MEMSET, MEMSET])
    for handle in (executable, second):
        call("cuGraphExecDestroy", handle)
    for handle in (outer, inner, other, lopsided):
        call("cuGraphDestroy", handle)
    call("cuStreamDestroy_v2", on)
    free(place)


@section
def memory_and_functions_of_graphs_are_added_by_hand():
    on, calls, result = stream(), [], (c_uint32 * 100)()
    first, second = (HOST_FUNCTION(lambda data, name=name: calls.append((name, data))) for name in "ab")
    context, graph, made, fill, back, told, gone = c_void_p(out(c_void_p, "cuCtxGetCurrent")), *(c_void_p() for _ in range(6))
    call("cuGraphCreate", byref(graph), 0)
    wanted = Allocation(kind=1, location=1, device=0, bytes=400)
    call("cuGraphAddMemAllocNode", byref(made), graph, None, size(0), byref(wanted))
    assert wanted.address, "the address is known at once"
    known = Allocation()
    call("cuGraphMemAllocNodeGetParams", made, byref(known))
    equal((known.address, known.bytes, known.device, known.location), (wanted.address, 400, 0, 1))
    equal(any_params(made).take(Allocation).address, wanted.address)
    memset = MemsetNode(wanted.address, 0, 9, 4, 100, 1)
    call("cuGraphAddMemsetNode", byref(fill), graph, byref(made), size(1), byref(memset), context)
    call("cuGraphAddMemcpyNode", byref(back), graph, byref(fill), size(1), byref(linear(result, wanted.address, 400)), context)
    call("cuGraphAddHostNode", byref(told), graph, byref(back), size(1), byref(HostNode(first, 5)))
    call("cuGraphAddMemFreeNode", byref(gone), graph, byref(told), size(1), address(wanted.address))
    equal(any_params(gone).words[0], wanted.address)
    equal(any_params(told).take(HostNode).data, 5)
    equal(kinds_of(graph), sorted([MEM_ALLOC, MEMSET, MEMCPY, HOST, MEM_FREE]))
    executable = instantiate(graph)
    launch(executable, on, 2)
    equal((list(result), calls), ([9] * 100, [("a", 5)] * 2))
    # Changed in the graph: what was instantiated before calls what it did.
    call("cuGraphHostNodeSetParams", told, byref(HostNode(second, 6)))
    launch(executable, on)
    equal(calls.pop(), ("a", 5))
    call("cuGraphExecDestroy", executable)
    executable = instantiate(graph)
    launch(executable, on)
    equal(calls.pop(), ("b", 6))
    refused(INVALID_VALUE, "cuGraphMemAllocNodeGetParams", fill, byref(known))
    refused(INVALID_VALUE, "cuGraphAddMemAllocNode", byref(c_void_p()), graph, None, size(0), byref(Allocation(kind=1, location=1)))
    call("cuGraphExecDestroy", executable)
    call("cuGraphDestroy", graph)
    call("cuStreamDestroy_v2", on)


@section
def memory_of_graphs():
    on = stream()
    place = c_uint64()
    call("cuStreamBeginCapture_v2", on, RELAXED)
    call("cuMemAllocAsync", byref(place), size(400), on)
    call("cuMemsetD32Async", place, 6, size(100), on)
    result = (c_uint32 * 100)()
    call("cuMemcpyDtoHAsync_v2", result, place, size(400), on)
    call("cuMemFreeAsync", place, on)
    graph = end(on)
    equal(kinds_of(graph), sorted([MEM_ALLOC, MEMSET, MEMCPY, MEM_FREE]))
    node = next(n for n in nodes_of(graph) if out(c_int, "cuGraphNodeGetType", n, first=False) == MEM_FREE)
    equal(out(c_uint64, "cuGraphMemFreeNodeGetParams", node, first=False), place.value)
    executable = instantiate(graph)
    launch(executable, on, 2)
    equal(list(result), [6] * 100)
    call("cuGraphExecDestroy", executable)
    call("cuGraphDestroy", graph)
    # What a graph does not free itself is the program's to free before the next launch.
    call("cuStreamBeginCapture_v2", on, RELAXED)
    call("cuMemAllocAsync", byref(place), size(64), on)
    graph = end(on)
    executable, automatic = instantiate(graph), instantiate(graph, 1)
    launch(executable, on)
    refused(INVALID_VALUE, "cuGraphLaunch", executable, on)
    call("cuMemFreeAsync", place, on)
    launch(executable, on)
    call("cuMemFree_v2", place)
    refused(INVALID_VALUE, "cuMemFree_v2", place)
    launch(automatic, on, 2)
    equal(out(c_uint64, "cuDeviceGetGraphMemAttribute", 0, 0, first=False) > 0, True)
    for handle in (executable, automatic):
        call("cuGraphExecDestroy", handle)
    call("cuGraphDestroy", graph)
    equal(out(c_uint64, "cuDeviceGetGraphMemAttribute", 0, 0, first=False), 0, "given back")
    call("cuDeviceGraphMemTrim", 0)
    call("cuStreamDestroy_v2", on)


@section
def graphs_keep_objects_alive():
    gone, on = [], stream()
    destroy = HOST_FUNCTION(lambda data: gone.append(data))
    graph, node = c_void_p(), c_void_p()
    call("cuGraphCreate", byref(graph), 0)
    call("cuGraphAddEmptyNode", byref(node), graph, None, size(0))
    held = c_void_p(out(c_void_p, "cuUserObjectCreate", c_void_p(11), destroy, 1, 1))
    call("cuUserObjectRetain", held, 2)
    call("cuGraphRetainUserObject", graph, held, 1, 1)
    # The graph has three references, gives two back, and keeps one.
    call("cuUserObjectRetain", held, 2)
    call("cuGraphRetainUserObject", graph, held, 2, 1)
    call("cuGraphReleaseUserObject", graph, held, 2)
    call("cuUserObjectRelease", held, 2)
    executable = instantiate(graph)
    call("cuGraphDestroy", graph)
    launch(executable, on)
    equal(gone, [], "the executable graph holds it")
    call("cuGraphExecDestroy", executable)
    call("cuStreamSynchronize", on)
    # The destructor runs on a thread of its own: wait for it with a function of the same thread.
    nothing = HOST_FUNCTION(lambda _: None)
    call("cuLaunchHostFunc", on, nothing, None)
    call("cuStreamSynchronize", on)
    equal(gone, [11])
    refused(INVALID_VALUE, "cuUserObjectCreate", byref(held), c_void_p(1), destroy, 1, 0)
    call("cuStreamDestroy_v2", on)


@section
def captures_fill_memory_that_is_not_there():
    """cuDNN captures work on addresses of its own making to look at the graph, and never launches it."""
    on, graph = stream(), c_void_p()
    for fill, value, there in (("cuMemsetD8Async", c_ubyte(7), 0x100), ("cuMemsetD32Async", c_uint32(7), 1 << 40)):
        call("cuStreamBeginCapture_v2", on, RELAXED)
        code = code_of(fill, c_uint64(there), value, size(64), on)
        # The software GPU asks for memory that is there.
        assert code in (0, INVALID_VALUE), code
        print(f"{fill} at {there:#x} in a capture: {code}")
        ended = code_of("cuStreamEndCapture", on, byref(graph))
        assert ended == 0 or code != 0, ended
        if ended == 0:
            assert code != 0 or len(nodes_of(graph)) == 1, "one node"
            call("cuGraphDestroy", graph)
    call("cuStreamDestroy_v2", on)


if __name__ == "__main__":
    attach()
    sys.exit(run_sections(SECTIONS))

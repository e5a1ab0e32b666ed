"""Memory and events between two processes of one lease, as CUDA's programs share them.

The parent makes and exports; the child, a process of its own, imports, looks, writes and records. Handles of 64 bytes go
over a pipe, file descriptors over a socket. Needs nothing but Python.
"""

import array
import ctypes
import os
import socket
import subprocess
import sys
import time

from ctypes import POINTER, byref, c_int, c_size_t, c_ubyte, c_uint32, c_uint64, c_ushort, c_void_p

from driver import allocate, attach, call, code_of, free, library, memory_info

INVALID_VALUE, INVALID_CONTEXT, INVALID_HANDLE = 1, 201, 400
POSIX = 1
MIB = 1 << 20


class Handle(ctypes.Structure):
    _fields_ = [("bytes", c_ubyte * 64)]


class Location(ctypes.Structure):
    _fields_ = [("kind", c_int), ("id", c_int)]


class Properties(ctypes.Structure):
    _fields_ = [
        ("kind", c_int),
        ("handle_types", c_int),
        ("location", Location),
        ("windows", c_void_p),
        ("compression", c_ubyte),
        ("rdma", c_ubyte),
        ("usage", c_ushort),
        ("reserved", c_ubyte * 4),
    ]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", c_int)]


class PoolProperties(ctypes.Structure):
    _fields_ = [
        ("kind", c_int),
        ("handle_types", c_int),
        ("location", Location),
        ("windows", c_void_p),
        ("most", c_size_t),
        ("usage", c_ushort),
        ("reserved", c_ubyte * 54),
    ]


library.cuIpcOpenMemHandle.argtypes = [POINTER(c_uint64), Handle, c_uint32]
library.cuIpcOpenMemHandle_v2.argtypes = [POINTER(c_uint64), Handle, c_uint32]
library.cuIpcOpenEventHandle.argtypes = [POINTER(c_void_p), Handle]

MINE = Location(1, 0)
NON_BLOCKING, INTERPROCESS = 1, 6


def words(address, count):
    host = (c_uint32 * count)()
    call("cuMemcpyDtoH_v2", host, c_uint64(address), c_size_t(4 * count))
    return list(host)


def fill(address, value, count, stream=None):
    call("cuMemsetD32Async", c_uint64(address), c_uint32(value), c_size_t(count), stream)


def stream():
    made = c_void_p()
    call("cuStreamCreate", byref(made), NON_BLOCKING)
    return made


def map_all(handle, size):
    """Maps physical memory and returns the address."""
    address = c_uint64()
    call("cuMemAddressReserve", byref(address), c_size_t(size), c_size_t(0), c_uint64(0), c_uint64(0))
    call("cuMemMap", address, c_size_t(size), c_size_t(0), handle, c_uint64(0))
    call("cuMemSetAccess", address, c_size_t(size), byref(Access(MINE, 3)), c_size_t(1))
    return address.value


def used():
    free_bytes, total = memory_info()
    return total - free_bytes


def settles(expected, what):
    """Waits until so many bytes are in use: the node hears of what the other process gives back a moment after that process."""
    deadline = time.monotonic() + 30
    while used() != expected:
        assert time.monotonic() < deadline, f"{what}: {used()} bytes are in use, and not {expected}"


# What the two processes say to each other: bytes, or a file descriptor, each in a packet of its own.


def say(link, data=b".", descriptor=None):
    rights = [] if descriptor is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
    link.sendmsg([bytes(data)], rights)


def hear(link):
    data, rights, _, _ = link.recvmsg(4096, socket.CMSG_SPACE(4))
    assert data, "the other process has ended"
    return data, array.array("i", rights[0][2][:4])[0] if rights else None


def hear_handle(link):
    data, _ = hear(link)
    return Handle.from_buffer_copy(data)


def parent(link):
    attach()
    before = used()
    # An allocation of its own chunks, and two that share one.
    large, small, neighbour = allocate(6 * MIB), allocate(4096), allocate(4096)
    fill(large, 7, 6 * MIB // 4)
    fill(small, 8, 1024)
    fill(neighbour, 9, 1024)
    call("cuCtxSynchronize")
    held = used()
    handles = []
    for address in (large, small, small):
        handle = Handle()
        call("cuIpcGetMemHandle", byref(handle), c_uint64(address))
        handles.append(bytes(handle))
    assert handles[1] == handles[2], "one allocation has one handle"
    assert used() == held, "exported memory still counts once"
    refused = c_uint64()
    assert code_of("cuIpcOpenMemHandle_v2", byref(refused), Handle.from_buffer_copy(handles[0]), 1) == INVALID_CONTEXT
    assert code_of("cuIpcGetMemHandle", byref(Handle()), c_uint64(0x1234)) == INVALID_VALUE

    event, work = c_void_p(), stream()
    assert code_of("cuEventCreate", byref(event), 4) == INVALID_VALUE, "shared events have no time"
    call("cuEventCreate", byref(event), INTERPROCESS)
    event_handle = Handle()
    call("cuIpcGetEventHandle", byref(event_handle), event)

    # The child waits for the event before the work that it marks is allowed to go on.
    gate = allocate(4)
    fill(gate, 0, 1)
    call("cuCtxSynchronize")
    call("cuStreamWaitValue32_v2", work, c_uint64(gate), c_uint32(1), 1)
    fill(large, 70, 6 * MIB // 4, work)
    call("cuEventRecord", event, work)
    assert code_of("cuEventQuery", event) == 600, "not ready"
    for handle in handles[:2]:
        say(link, handle)
    say(link, bytes(event_handle))
    hear(link)
    call("cuStreamWriteValue32_v2", None, c_uint64(gate), c_uint32(1), 0)
    hear(link)
    call("cuEventSynchronize", event)
    assert used() == held, "opened memory counts once"
    assert words(large + 4, 2) == [71, 71] and words(large, 1) == [70], "what the child wrote"
    assert words(small, 1) == [80] and words(neighbour, 1) == [9]

    # The child's record is seen here.
    say(link)
    hear(link)
    call("cuStreamWaitEvent", work, event, 0)
    call("cuStreamSynchronize", work)
    assert words(large, 2) == [700, 700]

    # Physical memory, by descriptor.
    size = 4 * MIB
    handle, descriptor = c_uint64(), c_int(-1)
    plain = Properties(1, 0, MINE)
    call("cuMemCreate", byref(handle), c_size_t(size), byref(plain), c_uint64(0))
    assert code_of("cuMemExportToShareableHandle", byref(descriptor), handle, POSIX, c_uint64(0)) == INVALID_VALUE
    call("cuMemRelease", handle)
    shareable = Properties(1, POSIX, MINE)
    call("cuMemCreate", byref(handle), c_size_t(size), byref(shareable), c_uint64(0))
    mapped = map_all(handle, size)
    fill(mapped, 5, size // 4)
    call("cuCtxSynchronize")
    held = used()
    call("cuMemExportToShareableHandle", byref(descriptor), handle, POSIX, c_uint64(0))
    say(link, descriptor=descriptor.value)
    os.close(descriptor.value)
    hear(link)
    assert words(mapped, 2) == [6, 6] and used() == held
    # The child keeps what its maker lets go of.
    call("cuMemUnmap", c_uint64(mapped), c_size_t(size))
    call("cuMemRelease", handle)
    call("cuMemAddressFree", c_uint64(mapped), c_size_t(size))
    assert used() == held, "the child has it"
    say(link)
    hear(link)
    settles(held - size, "nobody has it")
    reader, writer = os.pipe()
    assert code_of("cuMemImportFromShareableHandle", byref(handle), c_void_p(reader), POSIX) == INVALID_VALUE

    # A pool and an allocation of it.
    pool = c_void_p()
    call("cuMemPoolCreate", byref(pool), byref(PoolProperties(1, POSIX, MINE)))
    pooled = c_uint64()
    call("cuMemAllocFromPoolAsync", byref(pooled), c_size_t(MIB), pool, None)
    fill(pooled.value, 11, MIB // 4)
    call("cuCtxSynchronize")
    data = Handle()
    call("cuMemPoolExportToShareableHandle", byref(descriptor), pool, POSIX, c_uint64(0))
    call("cuMemPoolExportPointer", byref(data), pooled)
    assert code_of("cuMemPoolExportPointer", byref(Handle()), c_uint64(large)) == INVALID_VALUE
    say(link, bytes(data), descriptor.value)
    hear(link)
    assert words(pooled.value, 1) == [12]
    call("cuMemFreeAsync", pooled, None)
    call("cuMemPoolTrimTo", pool, c_size_t(0))
    call("cuMemPoolDestroy", pool)

    for address in (large, small, neighbour, gate):
        free(address)
    say(link)
    hear(link)
    settles(before, "all is given back")


def child(link):
    attach()
    large, small = c_uint64(), c_uint64()
    handle = hear_handle(link)
    call("cuIpcOpenMemHandle_v2", byref(large), handle, 1)
    again = c_uint64()
    # As programs of CUDA before 11 open it.
    call("cuIpcOpenMemHandle", byref(again), handle, 1)
    assert again.value == large.value, "opened twice, mapped once"
    call("cuIpcOpenMemHandle_v2", byref(small), hear_handle(link), 1)
    base, size = c_uint64(), c_size_t()
    call("cuMemGetAddressRange_v2", byref(base), byref(size), c_uint64(small.value + 8))
    assert (base.value, size.value) == (small.value, 4096)
    forged = Handle.from_buffer_copy(handle)
    forged.bytes[20] ^= 1
    assert code_of("cuIpcOpenMemHandle_v2", byref(again), forged, 1) == INVALID_HANDLE
    assert code_of("cuIpcOpenMemHandle_v2", byref(again), Handle(), 1) == INVALID_VALUE

    event = c_void_p()
    call("cuIpcOpenEventHandle", byref(event), hear_handle(link))
    assert code_of("cuEventQuery", event) == 600, "the parent's work waits"
    work = stream()
    call("cuStreamWaitEvent", work, event, 0)
    fill(large.value + 4, 71, 2, work)
    fill(small.value, 80, 1, work)
    say(link)
    call("cuStreamSynchronize", work)
    assert code_of("cuEventQuery", event) == 0
    assert words(large.value, 4) == [70, 71, 71, 70]
    say(link)
    hear(link)
    fill(large.value, 700, 2, work)
    call("cuEventRecord", event, work)
    say(link)
    assert code_of("cuMemFree_v2", large) == INVALID_VALUE, "another process's"
    call("cuIpcCloseMemHandle", large)
    assert words(large.value, 1) == [700], "open once more"
    call("cuIpcCloseMemHandle", large)
    assert code_of("cuIpcCloseMemHandle", large) == INVALID_VALUE
    call("cuIpcCloseMemHandle", small)
    call("cuEventDestroy_v2", event)

    _, descriptor = hear(link)
    imported, size = c_uint64(), 4 * MIB
    call("cuMemImportFromShareableHandle", byref(imported), c_void_p(descriptor), POSIX)
    os.close(descriptor)
    mapped = map_all(imported, size)
    assert words(mapped + size - 4, 1) == [5]
    fill(mapped, 6, 2)
    call("cuCtxSynchronize")
    say(link)
    hear(link)
    assert words(mapped, 3) == [6, 6, 5], "it outlives its maker's handle"
    call("cuMemUnmap", c_uint64(mapped), c_size_t(size))
    call("cuMemRelease", imported)
    call("cuCtxSynchronize")
    say(link)

    data, descriptor = hear(link)
    pool, pooled = c_void_p(), c_uint64()
    call("cuMemPoolImportFromShareableHandle", byref(pool), c_void_p(descriptor), POSIX, c_uint64(0))
    call("cuMemPoolImportPointer", byref(pooled), pool, byref(Handle.from_buffer_copy(data)))
    assert words(pooled.value, 1) == [11]
    fill(pooled.value, 12, 1)
    call("cuCtxSynchronize")
    assert code_of("cuMemAllocFromPoolAsync", byref(again), c_size_t(64), pool, None) == INVALID_VALUE
    call("cuMemFreeAsync", pooled, None)
    call("cuCtxSynchronize")
    say(link)
    hear(link)
    say(link)


def main():
    if len(sys.argv) > 1:
        return child(socket.socket(fileno=int(sys.argv[1])))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    arguments = [sys.executable, __file__, str(theirs.fileno())]
    with subprocess.Popen(arguments, pass_fds=[theirs.fileno()]) as process:
        theirs.close()
        parent(ours)
        assert process.wait() == 0
    print("PASS")


main()

"""What the driver refuses is an error that one call returns, and the program goes on: the call itself where programs try things out,
and for a plain launch, which nobody waits for, the next call that works or waits.
"""

import ctypes
import os
import threading

from driver import HEADER, allocate, attach, call, code_of, load

INVALID_VALUE, COOPERATIVE_LAUNCH_TOO_LARGE, CAPTURE_INVALIDATED, INVALID_PTX = 1, 720, 901, 218
REFUSALS = {INVALID_VALUE, 701}

# Its blocks have 64 threads, as the compiler was told; each adds `value` to the word of its number.
ADD = HEADER + """
.visible .entry add(.param .u64 out, .param .u32 value)
.reqntid 64, 1, 1
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [value];
    mov.u32 %r2, %tid.x;
    mul.wide.u32 %rd2, %r2, 4;
    add.s64 %rd1, %rd1, %rd2;
    atom.global.add.u32 %r3, [%rd1], %r1;
    ret;
}
"""
BLOCK = 64
STACK_SIZE = 0


def launch_code(function, block, out, value, stream=None, cooperative_grid=None):
    values = [ctypes.c_uint64(out), ctypes.c_uint32(value)]
    parameters = (ctypes.c_void_p * 2)(*[ctypes.addressof(value) for value in values])
    grid = cooperative_grid or 1
    if cooperative_grid:
        return code_of("cuLaunchCooperativeKernel", function, grid, 1, 1, block, 1, 1, 0, stream, parameters)
    return code_of("cuLaunchKernel", function, grid, 1, 1, block, 1, 1, 0, stream, parameters, None)


def words(out):
    data = (ctypes.c_uint32 * BLOCK)()
    call("cuMemcpyDtoH_v2", data, ctypes.c_uint64(out), ctypes.c_size_t(ctypes.sizeof(data)))
    return set(data)


def refused_once(function, out, what, check):
    """A refused launch, then calls until one says so; after that all is as before."""
    codes = [launch_code(function, 32, out, 100), check()]
    assert sum(code in REFUSALS for code in codes) == 1, f"{what}: {codes}"
    assert all(code in REFUSALS | {0} for code in codes), f"{what}: {codes}"
    assert code_of("cuCtxSynchronize") == 0, f"{what}: it is told twice"


def one_call(function, out):
    refused_once(function, out, "synchronisation", lambda: code_of("cuCtxSynchronize"))
    event = ctypes.c_void_p()
    call("cuEventCreate", ctypes.byref(event), 0)
    call("cuEventRecord", event, None)
    refused_once(function, out, "event", lambda: code_of("cuEventSynchronize", event))
    word = ctypes.c_uint32()
    copy = lambda: code_of("cuMemcpyDtoH_v2", ctypes.byref(word), ctypes.c_uint64(out), ctypes.c_size_t(4))
    refused_once(function, out, "copy", copy)

    # The error of another thread's launch, if that has not heard of it.
    thread_codes = []
    thread = threading.Thread(target=lambda: thread_codes.append((call_in_thread(), launch_code(function, 32, out, 100))[1]))
    thread.start()
    thread.join()
    codes = [*thread_codes, code_of("cuCtxSynchronize")]
    assert sum(code in REFUSALS for code in codes) == 1, codes


def call_in_thread():
    device, context = ctypes.c_int(), ctypes.c_void_p()
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)


def at_once(function, out):
    """What programs try out is refused by the call itself."""
    for _ in range(2):
        assert launch_code(function, BLOCK, out, 100, cooperative_grid=1 << 24) == COOPERATIVE_LAUNCH_TOO_LARGE
        assert code_of("cuCtxSetLimit", STACK_SIZE, ctypes.c_size_t(1 << 50)) != 0
    assert code_of("cuCtxSetLimit", STACK_SIZE, ctypes.c_size_t(2048)) == 0
    size = ctypes.c_size_t()
    call("cuCtxGetLimit", ctypes.byref(size), STACK_SIZE)
    assert size.value >= 2048, size.value
    assert code_of("cuCtxSynchronize") == 0


def captured(function, out):
    """A refused launch in a capture is the capture's."""
    stream, graph = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuStreamCreate", ctypes.byref(stream), 1)
    call("cuStreamBeginCapture_v2", stream, 2)
    codes = [launch_code(function, BLOCK, out, 100, stream), launch_code(function, 32, out, 100, stream)]
    codes.append(code_of("cuStreamEndCapture", stream, ctypes.byref(graph)))
    assert codes[0] == 0 and any(code in REFUSALS | {CAPTURE_INVALIDATED} for code in codes[1:]), codes
    # Natively the launch may be refused alone, and the capture is of what is left.
    assert not graph.value or codes[1] != 0, codes
    assert code_of("cuStreamSynchronize", stream) == 0
    # The stream captures again.
    call("cuStreamBeginCapture_v2", stream, 2)
    assert launch_code(function, BLOCK, out, 1, stream) == 0
    call("cuStreamEndCapture", stream, ctypes.byref(graph))
    executable = ctypes.c_void_p()
    call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
    call("cuGraphLaunch", executable, stream)
    call("cuStreamSynchronize", stream)


def compiler_log():
    """Text that is no PTX is refused with a reason, whose place is in the text."""
    ERROR_LOG, ERROR_LOG_BYTES, MAX_REGISTERS = 5, 6, 0
    text, module = (HEADER + "\n.visible .entry broken(.param .u64 out\n{ ret; }\n").encode(), ctypes.c_void_p()
    log = ctypes.create_string_buffer(1000)
    names = (ctypes.c_uint * 3)(MAX_REGISTERS, ERROR_LOG_BYTES, ERROR_LOG)
    values = (ctypes.c_void_p * 3)(64, len(log), ctypes.addressof(log))
    code = code_of("cuModuleLoadDataEx", ctypes.byref(module), text, 3, names, values)
    assert code == INVALID_PTX, code
    print("the compiler said:", log.value.decode().strip())
    assert "line" in log.value.decode() and "refuses the image" not in log.value.decode(), log.value


def main():
    attach()
    compiler_log()
    out = allocate(4 * BLOCK)
    call("cuMemsetD32_v2", ctypes.c_uint64(out), 0, ctypes.c_size_t(BLOCK))
    function = load(ADD, "add")
    assert launch_code(function, BLOCK, out, 1) == 0
    one_call(function, out)
    assert launch_code(function, BLOCK, out, 1) == 0
    at_once(function, out)
    assert launch_code(function, BLOCK, out, 1, cooperative_grid=1) == 0
    captured(function, out)
    assert launch_code(function, BLOCK, out, 1) == 0
    # COMPUTES: whether the driver runs kernels.
    assert not os.environ.get("COMPUTES") or words(out) == {5}, words(out)
    print("PASS")


main()

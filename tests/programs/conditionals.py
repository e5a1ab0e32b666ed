"""Conditional nodes of graphs: loops, branches and switches that device code decides, also inside each other.

What is checked holds on any CUDA driver, so the same file runs against NVIDIA's. Needs nothing but Python.
"""

import ctypes
import sys

from ctypes import byref, c_int32, c_size_t, c_uint32, c_uint64, c_void_p

from driver import HEADER, allocate, attach, call, code_of

INVALID_VALUE = 1
KERNEL, MEMSET, HOST, CONDITIONAL = 0, 2, 3, 13
IF, WHILE, SWITCH = 0, 1, 2
ASSIGN_DEFAULT = 1

# Kernels as nvcc compiles them: the device runtime's function is left to the linker.
CODE = HEADER + """
.extern .func cudaGraphSetConditional
(
    .param .b64 cudaGraphSetConditional_param_0,
    .param .b32 cudaGraphSetConditional_param_1
)
;
.visible .entry countdown(.param .u64 word, .param .u64 handle)
{
    .reg .pred %p<2>;
    .reg .b32 %r<4>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [word];
    ld.param.u64 %rd2, [handle];
    ld.global.u32 %r1, [%rd1];
    add.s32 %r2, %r1, -1;
    st.global.u32 [%rd1], %r2;
    setp.gt.s32 %p1, %r2, 0;
    selp.u32 %r3, 1, 0, %p1;
    { // callseq 0, 0
    .param .b64 param0;
    st.param.b64 [param0+0], %rd2;
    .param .b32 param1;
    st.param.b32 [param1+0], %r3;
    call.uni
    cudaGraphSetConditional,
    (
    param0,
    param1
    );
    } // callseq 0
    ret;
}
.visible .entry choose(.param .u64 word, .param .u64 handle)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [word];
    ld.param.u64 %rd2, [handle];
    ld.global.u32 %r1, [%rd1];
    { // callseq 1, 0
    .param .b64 param0;
    st.param.b64 [param0+0], %rd2;
    .param .b32 param1;
    st.param.b32 [param1+0], %r1;
    call.uni
    cudaGraphSetConditional,
    (
    param0,
    param1
    );
    } // callseq 1
    ret;
}
.visible .entry add(.param .u64 word, .param .u64 value)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [word];
    ld.param.u64 %rd2, [value];
    cvt.u32.u64 %r2, %rd2;
    ld.global.u32 %r1, [%rd1];
    add.u32 %r3, %r1, %r2;
    st.global.u32 [%rd1], %r3;
    ret;
}
"""


class Params(ctypes.Structure):
    _fields_ = [("kind", c_uint32), ("reserved0", c_int32 * 3), ("words", c_uint64 * 29), ("reserved2", c_uint64)]


def equal(found, expected, what=""):
    assert found == expected, f"{what}: {found!r} is not {expected!r}"


def out(kind, function, *arguments):
    value = kind()
    call(function, byref(value), *arguments)
    return value


class Program:
    def __init__(self):
        attach()
        module = out(c_void_p, "cuModuleLoadData", CODE.encode())
        names = ("countdown", "choose", "add")
        self.functions = {name: out(c_void_p, "cuModuleGetFunction", module, name.encode()) for name in names}
        self.words = allocate(64)
        self.context = out(c_void_p, "cuCtxGetCurrent")
        self.stream = out(c_void_p, "cuStreamCreate", 1)

    def word(self, index):
        return self.words + 4 * index

    def set(self, *values):
        data = (c_uint32 * 16)(*values)
        call("cuMemcpyHtoD_v2", c_uint64(self.words), data, c_size_t(64))

    def get(self, count):
        data = (c_uint32 * 16)()
        call("cuMemcpyDtoH_v2", data, c_uint64(self.words), c_size_t(64))
        return list(data)[:count]

    def handle(self, graph, default=0, flags=0):
        return out(c_uint64, "cuGraphConditionalHandleCreate", graph, self.context, default, flags)

    def kernel(self, graph, before, name, *values):
        params, arguments = Params(kind=KERNEL), [c_uint64(value) for value in values]
        pointers = (c_void_p * len(arguments))(*(ctypes.addressof(value) for value in arguments))
        params.words[0] = self.functions[name].value
        sizes = (c_uint32 * 7).from_buffer(params, Params.words.offset + 8)
        sizes[:] = [1, 1, 1, 1, 1, 1, 0]
        params.words[5] = ctypes.addressof(pointers)
        list_of = (c_void_p * len(before))(*(node.value for node in before))
        start = c_void_p(ctypes.addressof(params) + Params.words.offset)
        return out(c_void_p, "cuGraphAddKernelNode_v2", graph, list_of, c_size_t(len(before)), start)

    def node(self, graph, before, params):
        list_of = (c_void_p * len(before))(*(node.value for node in before))
        return out(c_void_p, "cuGraphAddNode_v2", graph, list_of, None, c_size_t(len(before)), byref(params))

    def conditional(self, graph, before, handle, kind, size):
        params = Params(kind=CONDITIONAL)
        params.words[0], params.words[1], params.words[3] = handle.value, kind | size << 32, self.context.value
        node = self.node(graph, before, params)
        bodies = (c_void_p * size).from_address(params.words[2])
        return node, [c_void_p(body) for body in bodies]

    def run(self, graph, times=1):
        executable = out(c_void_p, "cuGraphInstantiateWithFlags", graph, c_uint64(0))
        for _ in range(times):
            call("cuGraphLaunch", executable, self.stream)
        call("cuStreamSynchronize", self.stream)
        return executable


def loop(program):
    """A loop of which a kernel counts the rounds, twice launched."""
    graph = out(c_void_p, "cuGraphCreate", 0)
    handle = program.handle(graph, 1, ASSIGN_DEFAULT)
    node, (body,) = program.conditional(graph, [], handle, WHILE, 1)
    kind = c_uint32()
    call("cuGraphNodeGetType", node, byref(kind))
    equal(kind.value, CONDITIONAL)
    first = program.kernel(body, [], "add", program.word(1), 1)
    program.kernel(body, [first], "countdown", program.word(0), handle.value)
    program.kernel(graph, [node], "add", program.word(2), 7)
    program.set(10)
    executable = program.run(graph)
    equal(program.get(3), [0, 10, 7], "rounds of a loop")
    program.set(3)
    call("cuGraphLaunch", executable, program.stream)
    call("cuStreamSynchronize", program.stream)
    equal(program.get(3), [0, 3, 7], "the same again")
    # One instantiation at a time, and no copies.
    assert code_of("cuGraphInstantiateWithFlags", byref(c_void_p()), graph, c_uint64(0)) != 0
    assert code_of("cuGraphClone", byref(c_void_p()), graph) != 0
    call("cuGraphExecDestroy", executable)
    call("cuGraphDestroy", graph)


def branch(program):
    """A branch with another way, decided in the same graph."""
    graph = out(c_void_p, "cuGraphCreate", 0)
    handle = program.handle(graph)
    decide = program.kernel(graph, [], "choose", program.word(0), handle.value)
    _, (then, otherwise) = program.conditional(graph, [decide], handle, IF, 2)
    program.kernel(then, [], "add", program.word(1), 5)
    program.kernel(otherwise, [], "add", program.word(2), 6)
    executable = out(c_void_p, "cuGraphInstantiateWithFlags", graph, c_uint64(0))
    for value, expected in ((1, [1, 5, 0]), (0, [0, 0, 6]), (9, [9, 5, 0])):
        program.set(value)
        call("cuGraphLaunch", executable, program.stream)
        call("cuStreamSynchronize", program.stream)
        equal(program.get(3), expected, f"a branch of {value}")
    call("cuGraphExecDestroy", executable)
    call("cuGraphDestroy", graph)


def switch(program):
    """One of several, or none; the bodies are captured."""
    graph = out(c_void_p, "cuGraphCreate", 0)
    handle = program.handle(graph)
    decide = program.kernel(graph, [], "choose", program.word(0), handle.value)
    _, bodies = program.conditional(graph, [decide], handle, SWITCH, 3)
    for index, body in enumerate(bodies):
        call("cuStreamBeginCaptureToGraph", program.stream, body, None, None, c_size_t(0), 2)
        call("cuMemsetD32Async", c_uint64(program.word(1 + index)), 40 + index, c_size_t(1), program.stream)
        call("cuStreamEndCapture", program.stream, byref(c_void_p()))
    executable = out(c_void_p, "cuGraphInstantiateWithFlags", graph, c_uint64(0))
    for value in range(5):
        program.set(value)
        call("cuGraphLaunch", executable, program.stream)
        call("cuStreamSynchronize", program.stream)
        expected = [value, 0, 0, 0]
        if value < 3:
            expected[1 + value] = 40 + value
        equal(program.get(4), expected, f"a switch of {value}")
    call("cuGraphExecDestroy", executable)
    call("cuGraphDestroy", graph)


def nested(program):
    """A loop in which a branch decides by what is left: below three, five is added each time."""
    graph = out(c_void_p, "cuGraphCreate", 0)
    outer, inner = program.handle(graph, 1, ASSIGN_DEFAULT), program.handle(graph)
    _, (body,) = program.conditional(graph, [], outer, WHILE, 1)
    count = program.kernel(body, [], "countdown", program.word(0), outer.value)
    decide = program.kernel(body, [count], "choose", program.word(0), inner.value)
    _, (then, otherwise) = program.conditional(body, [decide], inner, IF, 2)
    program.kernel(then, [], "add", program.word(1), 1)
    program.kernel(otherwise, [], "add", program.word(2), 100)
    program.set(4)
    executable = program.run(graph)
    equal(program.get(3), [0, 3, 100], "a branch in a loop")
    call("cuGraphExecDestroy", executable)
    call("cuGraphDestroy", graph)


def mistakes(program):
    graph = out(c_void_p, "cuGraphCreate", 0)
    handle = program.handle(graph)
    equal(code_of("cuGraphConditionalHandleCreate", byref(c_uint64()), graph, program.context, 0, 2), INVALID_VALUE)
    for kind, size in ((IF, 3), (IF, 0), (WHILE, 2), (SWITCH, 0), (7, 1)):
        params = Params(kind=CONDITIONAL)
        params.words[0], params.words[1], params.words[3] = handle.value, kind | size << 32, program.context.value
        code = code_of("cuGraphAddNode_v2", byref(c_void_p()), graph, None, None, c_size_t(0), byref(params))
        equal(code, INVALID_VALUE, f"kind {kind} with {size}")
    params = Params(kind=CONDITIONAL)
    params.words[0], params.words[1], params.words[3] = handle.value + 8, IF | 1 << 32, program.context.value
    assert code_of("cuGraphAddNode_v2", byref(c_void_p()), graph, None, None, c_size_t(0), byref(params)) != 0
    call("cuGraphDestroy", graph)


def main():
    program = Program()
    for part in (loop, branch, switch, nested, mistakes):
        part(program)
    call("cuCtxSynchronize")
    print("PASS")


if __name__ == "__main__":
    sys.exit(main())

"""CuPy's calls, one kind after the other. Results are not looked at: this also runs where kernels are only recorded."""

import tempfile

import cupy as cp
import cupyx.scipy.sparse
import numpy as np
from steps import Steps

step = Steps()

PTX = """
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .u32 table[4] = {1, 2, 3, 4};
.visible .entry nothing() { ret; }
"""


class State:
    """What one step leaves to the next."""


state = State()


@step("count")
def _():
    return cp.cuda.runtime.getDeviceCount()


@step("props")
def _():
    return cp.cuda.runtime.getDeviceProperties(0)["name"]


@step("arange")
def _():
    state.x = cp.arange(1000, dtype=cp.float32)
    return "made"


@step("add")
def _():
    return float((state.x + state.x)[1])


@step("rawkernel")
def _():
    source = 'extern "C" __global__ void scale(float *x, float by) { x[blockIdx.x * blockDim.x + threadIdx.x] *= by; }'
    return cp.RawKernel(source, "scale")((10,), (100,), (state.x, cp.float32(2)))


@step("rawmodule-ptx-global")
def _():
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(PTX)
        file.flush()
        state.module = cp.RawModule(path=file.name)
        state.module.get_function("nothing")((1,), (1,), ())
        table = state.module.get_global("table")
    words = cp.ndarray((4,), cp.uint32, table).get()
    assert words.tolist() == [1, 2, 3, 4], words
    return words


@step("sum")
def _():
    return float(state.x.sum())


@step("matmul")
def _():
    m = cp.ones((64, 64), cp.float32)
    return float((m @ m)[0, 0])


@step("sort")
def _():
    return cp.sort(state.x)[:3]


@step("fft")
def _():
    return cp.fft.fft(cp.ones(64))[:2]


@step("rand")
def _():
    return cp.random.rand(2)


@step("svd")
def _():
    return cp.linalg.svd(cp.eye(8), compute_uv=False)[:2]


@step("spmv")
def _():
    values, columns, rows = cp.ones(3), cp.arange(3, dtype=cp.int32), cp.asarray([0, 1, 2, 3], dtype=cp.int32)
    matrix = cupyx.scipy.sparse.csr_matrix((values, columns, rows), shape=(3, 3))
    return (matrix @ cp.ones(3))[:2]


@step("stream")
def _():
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        y = state.x * 3
    stream.synchronize()
    assert y.shape == state.x.shape
    return stream.done


@step("pinned")
def _():
    pinned = cp.cuda.alloc_pinned_memory(4096)
    host = np.frombuffer(pinned, np.uint8, 4096)
    host[:] = np.arange(4096) % 256
    there = cp.empty(4096, cp.uint8)
    there.set(host)
    assert np.array_equal(there.get(), host)
    with cp.cuda.using_allocator(cp.cuda.MemoryAsyncPool().malloc):
        cp.empty(1000).fill(0)
    return pinned.size()


@step("graph")
def _():
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        x = cp.zeros(1000, cp.float32)
        x += 1  # compiled before the capture
        stream.begin_capture()
        x += 1
        graph = stream.end_capture()
        graph.launch(stream)
        stream.synchronize()


step.run()

"""numba-cuda's calls, one kind after the other. Results are not looked at: this also runs where kernels are only recorded."""

import numpy as np
from numba import cuda, float32
from steps import Steps

step = Steps()
X = np.arange(256, dtype=np.float32)


@cuda.jit
def add(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]


@cuda.jit
def block_sums(x, out):
    shared = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    shared[i] = x[cuda.grid(1)]
    cuda.syncthreads()
    if i == 0:
        for other in range(64):
            cuda.atomic.add(out, 0, shared[other])


@step("available")
def _():
    return cuda.is_available()


@step("gpus")
def _():
    assert len(cuda.gpus) == 1
    return cuda.gpus.lst


@step("host arrays")
def _():
    out = np.zeros_like(X)
    add[4, 64](X, X, out)
    return out[1]


@step("device arrays")
def _():
    x, out = cuda.to_device(X), cuda.device_array_like(X)
    assert np.array_equal(x.copy_to_host(), X)
    add[4, 64](x, x, out)
    return out.copy_to_host()[1]


@step("shared/atomic")
def _():
    out = cuda.to_device(np.zeros(1, np.float32))
    block_sums[4, 64](cuda.to_device(X), out)
    return out.copy_to_host()


@step("stream")
def _():
    stream, event = cuda.stream(), cuda.event()
    x = cuda.to_device(X, stream=stream)
    add[4, 64, stream](x, x, x)
    event.record(stream)
    event.synchronize()
    stream.synchronize()


@step("pinned")
def _():
    pinned = cuda.pinned_array(256, np.float32)
    pinned[:] = X
    assert np.array_equal(cuda.to_device(pinned).copy_to_host(), X)
    return pinned[:4]


@step("mapped")
def _():
    mapped = cuda.mapped_array(256, np.float32)
    mapped[:] = X
    add[4, 64](mapped, mapped, mapped)
    cuda.synchronize()
    return mapped[:4]


@step("managed")
def _():
    managed = cuda.managed_array(256, np.float32)
    managed[:] = X
    add[4, 64](managed, managed, managed)
    cuda.synchronize()
    return managed[:4]


@step("meminfo")
def _():
    info = cuda.current_context().get_memory_info()
    assert 0 < info.free <= info.total, info
    return info


step.run()

"""numba-cuda: kernels written in Python, compiled to PTX by numba."""

import math

import numpy as np
from check import check, finish, rng, section
from numba import cuda, float32, int32

BLOCK = 128


@cuda.jit
def add(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]


@cuda.jit
def tile_reverse(x, out):
    tile = cuda.shared.array(BLOCK, int32)
    i = cuda.grid(1)
    tile[cuda.threadIdx.x] = x[i]
    cuda.syncthreads()
    out[i] = tile[BLOCK - 1 - cuda.threadIdx.x]


@cuda.jit
def histogram(x, bins):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        cuda.atomic.add(bins, x[i], 1)


@cuda.jit
def atomics(x, out):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.max(out, 0, x[i])
        cuda.atomic.min(out, 1, x[i])
        cuda.atomic.add(out, 2, x[i])


@cuda.jit
def warp_sums(x, out):
    i = cuda.grid(1)
    value = x[i]
    offset = 16
    while offset > 0:
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, offset)
        offset //= 2
    if cuda.laneid == 0:
        out[i // 32] = value


@cuda.jit
def votes(x, out):
    i = cuda.grid(1)
    out[i] = cuda.ballot_sync(0xFFFFFFFF, x[i] > 0)


@cuda.jit(device=True)
def polynomial(x, coefficients):
    total = 0.0
    for k in range(coefficients.size - 1, -1, -1):
        total = total * x + coefficients[k]
    return total


@cuda.jit
def device_function(x, coefficients, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = polynomial(x[i], coefficients)


@cuda.jit
def local_array(x, out):
    window = cuda.local.array(8, float32)
    i = cuda.grid(1)
    if i < out.size:
        for k in range(8):
            window[k] = x[i + k]
        for a in range(8):
            for b in range(7 - a):
                if window[b] > window[b + 1]:
                    window[b], window[b + 1] = window[b + 1], window[b]
        out[i] = window[3]


@cuda.jit
def transcendental(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i, 0] = math.sin(x[i])
        out[i, 1] = math.exp(x[i])
        out[i, 2] = math.log(x[i])
        out[i, 3] = math.sqrt(x[i])
        out[i, 4] = math.pow(x[i], 1.7)
        out[i, 5] = math.tanh(x[i])
        out[i, 6] = math.erf(x[i])
        out[i, 7] = math.atan2(x[i], 2.0)


@cuda.jit
def matmul(a, b, c):
    ta = cuda.shared.array((16, 16), float32)
    tb = cuda.shared.array((16, 16), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.grid(2)
    total = float32(0)
    for t in range(a.shape[1] // 16):
        ta[tx, ty] = a[row, t * 16 + ty]
        tb[tx, ty] = b[t * 16 + tx, col]
        cuda.syncthreads()
        for k in range(16):
            total += ta[tx, k] * tb[k, ty]
        cuda.syncthreads()
    c[row, col] = total


def grid_for(n):
    return (n + BLOCK - 1) // BLOCK


def elementwise():
    for dtype in [np.int32, np.int64, np.float32, np.float64]:
        for n in [1, 33, 10_000]:
            x, y = (rng.uniform(-1e6, 1e6, size=n).astype(dtype) for _ in range(2))
            out = np.zeros(n, dtype)
            add[grid_for(n), BLOCK](x, y, out)
            check(f"add {dtype.__name__} {n}", out, x + y)


def shared_memory():
    x = rng.integers(0, 10**6, size=8 * BLOCK).astype(np.int32)
    out = cuda.device_array_like(x)
    tile_reverse[8, BLOCK](cuda.to_device(x), out)
    check("shared memory", out.copy_to_host(), x.reshape(8, BLOCK)[:, ::-1].reshape(-1))
    a, b = rng.random((64, 48), np.float32), rng.random((48, 80), np.float32)
    c = np.zeros((64, 80), np.float32)
    matmul[(4, 5), (16, 16)](a, b, c)
    check("tiled matmul", c, a @ b, rtol=1e-5)


def atomic_operations():
    x = rng.integers(0, 16, size=20_000).astype(np.int32)
    bins = np.zeros(16, np.int32)
    histogram[8, BLOCK](x, bins)
    check("histogram", bins, np.bincount(x, minlength=16).astype(np.int32))
    values = rng.integers(-10**6, 10**6, size=5000).astype(np.float64)
    out = np.array([-1e9, 1e9, 0.0])
    atomics[grid_for(5000), BLOCK](values, out)
    check("max, min, add", out, np.array([values.max(), values.min(), values.sum()]))


def warps():
    x = rng.integers(-1000, 1000, size=1024).astype(np.int32)
    out = np.zeros(32, np.int32)
    warp_sums[8, BLOCK](x, out)
    check("shuffles", out, x.reshape(32, 32).sum(axis=1).astype(np.int32))
    ballots = np.zeros(1024, np.uint32)
    votes[8, BLOCK](x, ballots)
    want = ((x.reshape(32, 32) > 0) * (1 << np.arange(32, dtype=np.uint64))).sum(axis=1).astype(np.uint32)
    check("votes", ballots, np.repeat(want, 32))


def functions_and_local_memory():
    x, coefficients = rng.uniform(-1, 1, size=3000), rng.uniform(-1, 1, size=7)
    out = np.zeros(3000)
    device_function[grid_for(3000), BLOCK](x, coefficients, out)
    check("device function", out, np.polyval(coefficients[::-1], x), rtol=1e-12, atol=1e-12)
    samples = rng.random(1007, np.float32)
    medians = np.zeros(1000, np.float32)
    local_array[grid_for(1000), BLOCK](samples, medians)
    check("local array", medians, np.sort(np.lib.stride_tricks.sliding_window_view(samples, 8), axis=1)[:, 3])


def mathematics():
    x = rng.uniform(0.1, 5, size=2000)
    out = np.zeros((2000, 8))
    transcendental[grid_for(2000), BLOCK](x, out)
    erf = np.array([math.erf(v) for v in x])
    want = [np.sin(x), np.exp(x), np.log(x), np.sqrt(x), np.power(x, 1.7), np.tanh(x), erf, np.arctan2(x, 2.0)]
    check("float64 functions", out, np.stack(want, axis=1), rtol=1e-12, atol=1e-14)


def streams():
    stream = cuda.stream()
    x = cuda.pinned_array(5000, np.float64)
    x[:] = rng.random(5000)
    start, end = cuda.event(), cuda.event()
    start.record(stream)
    d = cuda.to_device(x, stream=stream)
    out = cuda.device_array(5000, np.float64, stream=stream)
    add[grid_for(5000), BLOCK, stream](d, d, out)
    result = out.copy_to_host(stream=stream)
    end.record(stream)
    stream.synchronize()
    check("stream", result, x + x)
    check("elapsed time", np.bool_(start.elapsed_time(end) >= 0), np.bool_(True))


def memory_of_both():
    """Mapped and managed arrays: the kernel and the program use the same ones."""
    for array in [cuda.mapped_array, cuda.managed_array]:
        x, out = array(3000, np.float32), array(3000, np.float32)
        x[:] = rng.random(3000)
        for _ in range(2):
            add[grid_for(3000), BLOCK](x, x, out)
            cuda.synchronize()
            check(array.__name__, out, x + x)
            x[:] = out


PARTS = [elementwise, shared_memory, atomic_operations, warps, functions_and_local_memory, mathematics, streams]
for part in [*PARTS, memory_of_both]:
    section(part.__name__, part)
finish()

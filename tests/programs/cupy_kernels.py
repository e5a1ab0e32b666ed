"""CuPy's own-kernel interfaces, streams, events and memory: what a CUDA programmer writes by hand."""

import cupy as cp
import numpy as np
from check import check, finish, rng, section

SOURCE = r"""
extern "C" __global__ void saxpy(float a, const float* x, const float* y, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a * x[i] + y[i];
}
extern "C" __global__ void reverse_blocks(const int* in, int* out) {
    extern __shared__ int tile[];
    int base = blockIdx.x * blockDim.x;
    tile[threadIdx.x] = in[base + threadIdx.x];
    __syncthreads();
    out[base + threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
}
__constant__ float weights[4];
__device__ int counter = 5;
extern "C" __global__ void weighted(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] * weights[i % 4];
    if (i == 0) atomicAdd(&counter, 37);
}
template <typename T> __global__ void twice(const T* x, T* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] + x[i];
}
extern "C" __global__ void warp_sum(const int* in, int* out) {
    int v = in[blockIdx.x * blockDim.x + threadIdx.x];
    for (int d = 16; d > 0; d >>= 1) v += __shfl_down_sync(0xffffffff, v, d);
    if (threadIdx.x % 32 == 0) atomicAdd(out, v);
}
extern "C" __global__ void divergent(const int* in, int* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int v = in[i], steps = 0;
    while (v != 1) {
        if (v & 1) { v = 3 * v + 1; if (steps > 1000) break; }
        else v >>= 1;
        steps++;
    }
    unsigned same = __activemask();
    out[i] = steps + 0 * __popc(same);
}
extern "C" __global__ void matmul(const float* a, const float* b, float* c, int n) {
    __shared__ float ta[16][16], tb[16][16];
    int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    float acc = 0;
    for (int t = 0; t < n; t += 16) {
        ta[threadIdx.y][threadIdx.x] = a[row * n + t + threadIdx.x];
        tb[threadIdx.y][threadIdx.x] = b[(t + threadIdx.y) * n + col];
        __syncthreads();
        for (int k = 0; k < 16; k++) acc += ta[threadIdx.y][k] * tb[k][threadIdx.x];
        __syncthreads();
    }
    c[row * n + col] = acc;
}
"""


def raw_kernel():
    for n in [1, 32, 100, 10_007]:
        x, y = rng.random(n, np.float32), rng.random(n, np.float32)
        out = cp.empty(n, cp.float32)
        cp.RawKernel(SOURCE, "saxpy")(((n + 127) // 128,), (128,),
                                      (np.float32(2.5), cp.asarray(x), cp.asarray(y), out, np.int32(n)))
        check(f"saxpy {n}", out.get(), np.float32(2.5) * x + y, rtol=1e-6)


def raw_module():
    module = cp.RawModule(code=SOURCE, options=("-std=c++17",), name_expressions=["twice<int>", "twice<double>"])
    data = rng.integers(0, 10**6, size=2048).astype(np.int32)
    out = cp.empty(2048, cp.int32)
    module.get_function("reverse_blocks")((8,), (256,), (cp.asarray(data), out), shared_mem=256 * 4)
    check("dynamic shared memory", out.get(), data.reshape(8, 256)[:, ::-1].reshape(-1))
    for name, dtype in [("twice<int>", np.int32), ("twice<double>", np.float64)]:
        x = rng.integers(0, 1000, size=999).astype(dtype)
        result = cp.empty(999, dtype)
        module.get_function(name)((8,), (128,), (cp.asarray(x), result, np.int32(999)))
        check(name, result.get(), x + x)
    weights = cp.ndarray(4, cp.float32, module.get_global("weights"))
    weights[...] = cp.asarray([1, 2, 3, 4], cp.float32)
    x, result = rng.random(1000, np.float32), cp.empty(1000, cp.float32)
    module.get_function("weighted")((8,), (128,), (cp.asarray(x), result, np.int32(1000)))
    check("constant memory", result.get(), x * np.tile(np.array([1, 2, 3, 4], np.float32), 250))
    counter = cp.ndarray(1, cp.int32, module.get_global("counter"))
    check("module global", counter.get(), np.array([42], np.int32))
    total = cp.zeros(1, cp.int32)
    module.get_function("warp_sum")((8,), (256,), (cp.asarray(data), total))
    check("warp shuffles", total.get(), np.array([data.sum()], np.int32))
    steps = cp.empty(2000, cp.int32)
    module.get_function("divergent")((16,), (128,), (cp.arange(1, 2001, dtype=cp.int32), steps, np.int32(2000)))
    check("divergent loops", steps.get(), np.array([collatz(i) for i in range(1, 2001)], np.int32))
    a, b = rng.random((96, 96), np.float32), rng.random((96, 96), np.float32)
    c = cp.empty((96, 96), cp.float32)
    module.get_function("matmul")((6, 6), (16, 16), (cp.asarray(a), cp.asarray(b), c, np.int32(96)))
    check("tiled matmul", c.get(), a @ b, rtol=1e-5)


def collatz(value):
    steps = 0
    while value != 1:
        value = 3 * value + 1 if value & 1 else value >> 1
        steps += 1
    return steps


def elementwise_kernel():
    squared_difference = cp.ElementwiseKernel("T x, T y", "T z", "z = (x - y) * (x - y)", "squared_difference")
    for dtype in [np.int32, np.float32, np.float64]:
        x, y = (rng.uniform(-99, 99, size=(50, 60)).astype(dtype) for _ in range(2))
        check(f"elementwise {dtype.__name__}", squared_difference(cp.asarray(x), cp.asarray(y)).get(),
              (x - y) * (x - y), **({"rtol": 1e-6, "atol": 1e-6} if dtype != np.int32 else {}))


def reduction_kernel():
    norm = cp.ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "l2norm")
    x = rng.random((300, 40), np.float32)
    check("reduction kernel", norm(cp.asarray(x), axis=1).get(), np.sqrt((x * x).sum(axis=1)), rtol=1e-5)


def fused():
    @cp.fuse()
    def gelu_like(x):
        return 0.5 * x * (1 + cp.tanh(0.8 * (x + 0.044 * x * x * x)))

    x = rng.uniform(-3, 3, size=5000)
    check("fused", gelu_like(cp.asarray(x)).get(), 0.5 * x * (1 + np.tanh(0.8 * (x + 0.044 * x**3))), rtol=1e-12)


def streams_and_events():
    x = rng.random(50_000)
    first, second = cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)
    with first:
        a = cp.asarray(x) * 2
        produced = first.record()
    second.wait_event(produced)
    with second:
        b = a + 1
        result = b.get()
    check("stream order", result, x * 2 + 1)
    start, end = cp.cuda.Event(), cp.cuda.Event()
    start.record()
    for _ in range(10):
        b = b * 1.0
    end.record()
    end.synchronize()
    check("event done", np.bool_(end.done), np.bool_(True))
    check("elapsed time is not negative", np.bool_(cp.cuda.get_elapsed_time(start, end) >= 0), np.bool_(True))
    called = []
    first.launch_host_func(lambda argument: called.append(argument), 7)
    first.synchronize()
    check("host function", np.array(called), np.array([7]))


def captured_graph():
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        x = cp.arange(1000, dtype=cp.float32)
        y = cp.zeros_like(x)
        cp.multiply(x, 3, out=y)  # compiled before the capture
        stream.begin_capture()
        cp.multiply(x, 3, out=y)
        cp.add(y, x, out=y)
        graph = stream.end_capture()
        y.fill(0)
        graph.launch(stream)
        x += 1
        graph.launch(stream)
        stream.synchronize()
    check("captured graph", y.get(), (np.arange(1000, dtype=np.float32) + 1) * 4)


def memory():
    pool = cp.get_default_memory_pool()
    pool.free_all_blocks()
    block = cp.empty(1 << 20, cp.uint8)
    check("pool holds it", np.bool_(pool.used_bytes() >= 1 << 20), np.bool_(True))
    del block
    pool.free_all_blocks()
    check("pool gives it back", np.int64(pool.total_bytes()), np.int64(0))
    free, total = cp.cuda.runtime.memGetInfo()
    check("free memory within total", np.bool_(0 < free <= total), np.bool_(True))
    pinned = cp.cuda.alloc_pinned_memory(8000)
    host = np.frombuffer(pinned, np.float64, 1000)
    host[...] = rng.random(1000)
    device = cp.empty(1000)
    stream = cp.cuda.Stream(non_blocking=True)
    device.set(host, stream=stream)
    doubled = (device * 1).copy() if stream.synchronize() is None else None
    back = doubled.get()
    check("pinned memory", back, host)
    with cp.cuda.using_allocator(cp.cuda.MemoryAsyncPool().malloc):
        a = cp.arange(12_345)
        check("asynchronous pool", (a + a).get(), np.arange(12_345) * 2)
        del a
    grid = cp.asarray(rng.random((64, 100)))
    check("pitched copy", grid[:, 10:50].copy().get(), grid.get()[:, 10:50])


for name, part in [(n, f) for n, f in list(globals().items())
                   if callable(f) and getattr(f, "__module__", None) == "__main__" and n != "collatz"]:
    section(name, part)
finish()

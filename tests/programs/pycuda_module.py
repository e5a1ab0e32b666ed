"""PyCUDA: a module that nvcc compiles, and arrays whose kernels it writes itself, against NumPy."""

import numpy as np
import pycuda.autoinit  # noqa: F401 - makes the context
import pycuda.driver as cuda
import pycuda.gpuarray as gpuarray
from check import check, finish, rng, section
from pycuda.compiler import SourceModule
from pycuda.elementwise import ElementwiseKernel
from pycuda.reduction import ReductionKernel

SOURCE = """
__constant__ float factor;
__global__ void multiply(float *out, const float *a, const float *b, int count)
{
    int at = threadIdx.x + blockIdx.x * blockDim.x;
    if (at < count) out[at] = factor * a[at] * b[at];
}
"""


def source_module():
    a, b = (rng.standard_normal(1000).astype(np.float32) for _ in range(2))
    out = np.empty_like(a)
    module = SourceModule(SOURCE)
    factor, _ = module.get_global("factor")
    cuda.memcpy_htod(factor, np.float32(2))
    module.get_function("multiply")(
        cuda.Out(out), cuda.In(a), cuda.In(b), np.int32(1000), block=(256, 1, 1), grid=(4, 1)
    )
    check("products", out, 2 * a * b)


def arrays():
    a = rng.standard_normal(5000).astype(np.float32)
    on_gpu = gpuarray.to_gpu(a)
    check("doubled", (2 * on_gpu).get(), 2 * a)
    check("sum", gpuarray.sum(on_gpu).get(), a.sum(), rtol=1e-3, atol=1e-3)


def own_kernels():
    a, b = (rng.standard_normal(3000).astype(np.float32) for _ in range(2))
    x, y, out = gpuarray.to_gpu(a), gpuarray.to_gpu(b), gpuarray.empty(3000, np.float32)
    ElementwiseKernel("float *x, float *y, float *out", "out[i] = x[i] + 3 * y[i]")(x, y, out)
    check("elementwise", out.get(), a + 3 * b, rtol=1e-6, atol=1e-6)
    dot = ReductionKernel(np.float32, neutral="0", reduce_expr="a+b", map_expr="x[i]*y[i]", arguments="float *x, float *y")
    check("reduction", dot(x, y).get(), a @ b, rtol=1e-3, atol=1e-2)


section("a module of source", source_module)
section("arrays", arrays)
section("kernels of expressions", own_kernels)
finish()

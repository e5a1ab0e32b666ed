"""CuPy's textures and surfaces: a kernel of the user reads a picture through them, and paints one."""

import cupy as cp
import numpy as np
from check import check, finish, section
from cupy.cuda import runtime
from cupy.cuda.texture import (ChannelFormatDescriptor, CUDAarray, ResourceDescriptor, SurfaceObject, TextureDescriptor,
                               TextureObject)

WIDTH, HEIGHT = 48, 32
KERNELS = r"""
extern "C" __global__ void read(float* out, cudaTextureObject_t picture, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < width && y < height) out[y * width + x] = tex2D<float>(picture, x + 0.5f, y + 0.5f);
}
extern "C" __global__ void paint(cudaSurfaceObject_t canvas, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < width && y < height) surf2Dwrite((float)(x + 10 * y), canvas, x * 4, y);
}
"""
FLOATS = ChannelFormatDescriptor(32, 0, 0, 0, runtime.cudaChannelFormatKindFloat)


def launch(name, *arguments):
    cp.RawModule(code=KERNELS).get_function(name)((3, 2), (16, 16), (*arguments, WIDTH, HEIGHT))


def read_through(resource):
    sampling = TextureDescriptor((runtime.cudaAddressModeClamp,) * 2, runtime.cudaFilterModePoint,
                                 runtime.cudaReadModeElementType)
    out = cp.zeros((HEIGHT, WIDTH), dtype=cp.float32)
    launch("read", out, TextureObject(resource, sampling))
    return out.get()


def pictures():
    picture = cp.arange(HEIGHT * WIDTH, dtype=cp.float32).reshape(HEIGHT, WIDTH)
    array = CUDAarray(FLOATS, WIDTH, HEIGHT)
    array.copy_from(picture)
    got = read_through(ResourceDescriptor(runtime.cudaResourceTypeArray, cuArr=array))
    check("array", got, picture.get())
    rows = cp.arange(HEIGHT * 64, dtype=cp.float32).reshape(HEIGHT, 64)
    resource = ResourceDescriptor(runtime.cudaResourceTypePitch2D, arr=rows, chDesc=FLOATS, width=WIDTH, height=HEIGHT,
                                  pitchInBytes=64 * 4)
    check("rows with a pitch", read_through(resource), rows.get()[:, :WIDTH])


def surfaces():
    array = CUDAarray(FLOATS, WIDTH, HEIGHT, 0, runtime.cudaArraySurfaceLoadStore)
    launch("paint", SurfaceObject(ResourceDescriptor(runtime.cudaResourceTypeArray, cuArr=array)))
    got = np.zeros((HEIGHT, WIDTH), np.float32)
    array.copy_to(got)
    check("painted", got, np.arange(WIDTH, dtype=np.float32) + 10 * np.arange(HEIGHT, dtype=np.float32)[:, None])


section("pictures", pictures)
section("surfaces", surfaces)
finish()

"""cuda.core with NVRTC to PTX: compile, launch, copy, compare."""

import numpy as np
from check import check, finish, rng, section
from cuda.bindings import driver
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

SOURCE = r"""
template <typename T>
__global__ void saxpy(const T a, const T* x, const T* y, T* out, size_t n) {
    const unsigned int first = threadIdx.x + blockIdx.x * blockDim.x;
    for (size_t i = first; i < n; i += gridDim.x * blockDim.x) out[i] = a * x[i] + y[i];
}
"""


def ok(result):
    if result[0] != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(str(result[0]))
    return result[1] if len(result) == 2 else result[1:]


def saxpy():
    device = Device()
    device.set_current()
    stream = device.create_stream()
    options = ProgramOptions(std="c++17", arch="sm_" + "".join(map(str, device.compute_capability)))
    program = Program(SOURCE, code_type="c++", options=options)
    module = program.compile("ptx", name_expressions=("saxpy<float>", "saxpy<double>"))
    for name, dtype, scalar in [("saxpy<float>", np.float32, np.float32), ("saxpy<double>", np.float64, np.float64)]:
        kernel = module.get_kernel(name)
        for n in [1, 1000, 65_537]:
            x, y, out = rng.random(n).astype(dtype), rng.random(n).astype(dtype), np.empty(n, dtype)
            buffers = [device.allocate(x.nbytes, stream=stream) for _ in range(3)]
            addresses = [int(buffer.handle) for buffer in buffers]
            ok(driver.cuMemcpyHtoDAsync(addresses[0], x.ctypes.data, x.nbytes, int(stream.handle)) + (None,))
            ok(driver.cuMemcpyHtoDAsync(addresses[1], y.ctypes.data, y.nbytes, int(stream.handle)) + (None,))
            launch(stream, LaunchConfig(grid=32, block=128), kernel, scalar(2.0), *addresses, np.uint64(n))
            ok(driver.cuMemcpyDtoHAsync(out.ctypes.data, addresses[2], out.nbytes, int(stream.handle)) + (None,))
            stream.sync()
            check(f"{name} {n}", out, scalar(2.0) * x + y, rtol=1e-6)
            for buffer in buffers:
                buffer.close(stream)
    stream.close()


def properties():
    device = Device()
    check("one device", np.int64(ok(driver.cuDeviceGetCount())), np.int64(1))
    check("warp size", np.int64(device.properties.warp_size), np.int64(32))
    check("name", np.bool_(len(device.name) > 0), np.bool_(True))


section("saxpy", saxpy)
section("properties", properties)
finish()

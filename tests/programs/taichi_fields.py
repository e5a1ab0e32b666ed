"""Taichi: kernels on the GPU against NumPy."""

import numpy as np
import taichi as ti
from check import check, finish, rng, section

ti.init(arch=ti.cuda, offline_cache=False, log_level=ti.WARN)
assert ti.cfg.arch == ti.cuda, f"Taichi has chosen {ti.cfg.arch}"


@ti.kernel
def mandelbrot(out: ti.types.ndarray(dtype=ti.i32, ndim=2), limit: ti.i32):
    for i, j in out:
        c = ti.Vector([(i - 96.0) / 64.0, (j - 64.0) / 64.0])
        z = ti.Vector([0.0, 0.0])
        n = 0
        while z.norm_sqr() < 4.0 and n < limit:
            z = ti.Vector([z[0] * z[0] - z[1] * z[1] + c[0], 2.0 * z[0] * z[1] + c[1]])
            n += 1
        out[i, j] = n


@ti.kernel
def histogram(values: ti.types.ndarray(dtype=ti.i32, ndim=1), bins: ti.types.ndarray(dtype=ti.i32, ndim=1)):
    for i in values:
        ti.atomic_add(bins[values[i]], 1)


@ti.kernel
def total(values: ti.types.ndarray(dtype=ti.f32, ndim=1)) -> ti.f32:
    result = 0.0
    for i in values:
        result += values[i]
    return result


def escape_times():
    out = ti.ndarray(ti.i32, shape=(128, 128))
    mandelbrot(out, 50)
    i, j = np.mgrid[0:128, 0:128].astype(np.float32)
    c = ((i - 96) / 64) + 1j * ((j - 64) / 64)
    z, n = np.zeros_like(c), np.zeros(c.shape, dtype=np.int32)
    for _ in range(50):
        inside = np.abs(z) < 2
        z[inside] = z[inside] ** 2 + c[inside]
        n[inside] += 1
    differ = np.count_nonzero(out.to_numpy() != n)
    # Points on the border may go either way with the last bit of a rounding.
    check("escape times differ at a few points", np.array(differ <= 40), np.array(True))


def atomics():
    values = rng.integers(0, 50, 100_000).astype(np.int32)
    bins = ti.ndarray(ti.i32, shape=50)
    bins.fill(0)
    device = ti.ndarray(ti.i32, shape=len(values))
    device.from_numpy(values)
    histogram(device, bins)
    check("histogram", bins.to_numpy(), np.bincount(values, minlength=50).astype(np.int32))


def reductions():
    values = rng.uniform(0, 1, 50_000).astype(np.float32)
    device = ti.ndarray(ti.f32, shape=len(values))
    device.from_numpy(values)
    check("sum", np.float64(total(device)), values.astype(np.float64).sum(), rtol=1e-4)


@ti.data_oriented
class Springs:
    """Masses on a line, in fields."""

    def __init__(self, count):
        self.x = ti.field(ti.f64, shape=count)
        self.v = ti.field(ti.f64, shape=count)

    @ti.kernel
    def step(self, dt: ti.f64):
        for i in self.x:
            force = -self.x[i]
            if i > 0:
                force += self.x[i - 1] - self.x[i]
            if i < self.x.shape[0] - 1:
                force += self.x[i + 1] - self.x[i]
            self.v[i] += dt * force
        for i in self.x:
            self.x[i] += dt * self.v[i]


def fields():
    springs = Springs(200)
    x = rng.uniform(-1, 1, 200)
    v = np.zeros(200)
    springs.x.from_numpy(x)
    for _ in range(50):
        springs.step(0.01)
        force = -x
        force[1:] += x[:-1] - x[1:]
        force[:-1] += x[1:] - x[:-1]
        v = v + 0.01 * force
        x = x + 0.01 * v
    check("springs", springs.x.to_numpy(), x, rtol=1e-9, atol=1e-12)


def sparse_structures():
    """A dynamic list in a pointer block: memory that the device allocates."""
    block = ti.root.pointer(ti.i, 32)
    cells = block.dense(ti.i, 32)
    value = ti.field(ti.i32)
    cells.place(value)

    @ti.kernel
    def fill():
        for i in range(1024):
            if i % 96 == 0:
                value[i] = i + 1

    @ti.kernel
    def count() -> ti.i32:
        n = 0
        for i in value:
            n += 1
        return n

    fill()
    check("active cells", np.array(count()), np.array(11 * 32), rtol=1e-9)
    check("values", value.to_numpy()[::96], np.arange(0, 1024, 96, dtype=np.int32) + 1)


if __name__ == "__main__":
    section("escape times", escape_times)
    section("atomics", atomics)
    section("reductions", reductions)
    section("fields", fields)
    section("sparse structures", sparse_structures)
    finish()

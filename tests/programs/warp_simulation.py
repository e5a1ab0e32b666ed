"""NVIDIA Warp: its kernels on the GPU against the same kernels on the CPU, and against NumPy."""

import numpy as np
import warp as wp
from check import check, finish, rng, section

GPU, CPU = "cuda:0", "cpu"


@wp.struct
class Body:
    position: wp.vec3
    velocity: wp.vec3
    mass: float


@wp.kernel
def saxpy(x: wp.array(dtype=float), y: wp.array(dtype=float), a: float):
    i = wp.tid()
    y[i] = a * x[i] + wp.sin(y[i])


@wp.kernel
def attract(bodies: wp.array(dtype=Body), forces: wp.array(dtype=wp.vec3)):
    i = wp.tid()
    force = wp.vec3()
    for j in range(bodies.shape[0]):
        if i != j:
            way = bodies[j].position - bodies[i].position
            force += way * (bodies[i].mass * bodies[j].mass / (wp.length_sq(way) + 0.01))
    forces[i] = force


@wp.kernel
def count(values: wp.array(dtype=int), bins: wp.array(dtype=int)):
    wp.atomic_add(bins, values[wp.tid()], 1)


@wp.kernel
def spread(grid: wp.array2d(dtype=float), out: wp.array2d(dtype=float)):
    i, j = wp.tid()
    n = grid.shape[0]
    total = grid[i, j]
    if i > 0 and j > 0 and i < n - 1 and j < n - 1:
        total = 0.25 * (grid[i - 1, j] + grid[i + 1, j] + grid[i, j - 1] + grid[i, j + 1])
    out[i, j] = total


@wp.kernel
def energy(x: wp.array(dtype=wp.vec3), total: wp.array(dtype=float)):
    i = wp.tid()
    wp.atomic_add(total, 0, wp.dot(x[i], x[i]) * 0.5)


def elements():
    x, y = (rng.uniform(-2, 2, 10_007).astype(np.float32) for _ in range(2))
    device = wp.array(y, device=GPU)
    wp.launch(saxpy, dim=len(x), inputs=[wp.array(x, device=GPU), device, 2.5], device=GPU)
    check("saxpy", device.numpy(), (2.5 * x + np.sin(y)).astype(np.float32), rtol=1e-5, atol=1e-5)


def structures():
    count_of_bodies = 300
    values = np.zeros(count_of_bodies, dtype=Body.numpy_dtype())
    values["position"] = rng.uniform(-1, 1, (count_of_bodies, 3))
    values["mass"] = rng.uniform(0.1, 1, count_of_bodies)
    forces = {}
    for device in (CPU, GPU):
        bodies = wp.array(values, dtype=Body, device=device)
        out = wp.zeros(count_of_bodies, dtype=wp.vec3, device=device)
        wp.launch(attract, dim=count_of_bodies, inputs=[bodies, out], device=device)
        forces[device] = out.numpy()
    check("forces", forces[GPU], forces[CPU], rtol=1e-4, atol=1e-4)


def atomics():
    values = rng.integers(0, 37, 100_000).astype(np.int32)
    bins = wp.zeros(37, dtype=int, device=GPU)
    wp.launch(count, dim=len(values), inputs=[wp.array(values, device=GPU), bins], device=GPU)
    check("histogram", bins.numpy(), np.bincount(values, minlength=37).astype(np.int32))


def graph_of_launches():
    grid = rng.uniform(0, 1, (64, 64)).astype(np.float32)
    a, b = wp.array(grid, device=GPU), wp.zeros((64, 64), dtype=float, device=GPU)
    wp.load_module(device=GPU)
    with wp.ScopedCapture(device=GPU) as capture:
        wp.launch(spread, dim=(64, 64), inputs=[a, b], device=GPU)
        wp.launch(spread, dim=(64, 64), inputs=[b, a], device=GPU)
    for _ in range(10):
        wp.capture_launch(capture.graph)
    want = grid.copy()
    for _ in range(20):
        inner = (want[:-2, 1:-1] + want[2:, 1:-1] + want[1:-1, :-2] + want[1:-1, 2:]) * np.float32(0.25)
        want = want.copy()
        want[1:-1, 1:-1] = inner
    check("captured graph", a.numpy(), want, rtol=1e-5, atol=1e-5)


def gradients():
    x = rng.uniform(-1, 1, (500, 3)).astype(np.float32)
    device = wp.array(x, dtype=wp.vec3, device=GPU, requires_grad=True)
    total = wp.zeros(1, dtype=float, device=GPU, requires_grad=True)
    with wp.Tape() as tape:
        wp.launch(energy, dim=len(x), inputs=[device, total], device=GPU)
    tape.backward(total)
    check("energy", total.numpy(), np.array([0.5 * np.sum(x.astype(np.float64) ** 2)], dtype=np.float32), rtol=1e-4)
    check("gradient", device.grad.numpy(), x, rtol=1e-6)


def library_functions():
    values = rng.integers(-1000, 1000, 5000).astype(np.int32)
    out = wp.zeros(5000, dtype=int, device=GPU)
    wp.utils.array_scan(wp.array(values, device=GPU), out, inclusive=True)
    check("scan", out.numpy(), np.cumsum(values, dtype=np.int32))
    keys = wp.array(np.concatenate([values, np.zeros_like(values)]), dtype=int, device=GPU)
    order = wp.array(np.arange(10_000, dtype=np.int32), dtype=int, device=GPU)
    wp.utils.radix_sort_pairs(keys, order, 5000)
    check("sorted keys", keys.numpy()[:5000], np.sort(values))
    points = rng.uniform(-1, 1, (1000, 3)).astype(np.float32)
    total = wp.utils.array_sum(wp.array(points[:, 0].copy(), device=GPU))
    check("sum", np.float64(total), np.float64(points[:, 0].astype(np.float64).sum()), rtol=1e-4, atol=1e-3)


if __name__ == "__main__":
    section("elements", elements)
    section("structures", structures)
    section("atomics", atomics)
    section("graph of launches", graph_of_launches)
    section("gradients", gradients)
    section("library functions", library_functions)
    finish()

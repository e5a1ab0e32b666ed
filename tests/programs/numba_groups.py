"""numba: cooperative groups, arrays made in kernels, recursion, and reductions, against NumPy."""

import numpy as np
from check import check, finish, rng, section
from numba import config, cuda, int32, int64

BLOCK = 64


@cuda.jit("void(int32[:,::1])")
def rows_follow_each_other(rows):
    """Each row is the one before with its columns reversed, plus one; blocks wait for each other."""
    column = cuda.grid(1)
    grid = cuda.cg.this_grid()
    opposite = rows.shape[1] - column - 1
    for row in range(1, rows.shape[0]):
        if column < rows.shape[1]:
            rows[row, column] = rows[row - 1, opposite] + 1
        grid.sync()


@cuda.jit
def factorial(n):
    return 1 if n <= 1 else n * factorial(n - 1)


@cuda.jit
def factorials(out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = factorial(int64(i % 20))


@cuda.jit
def binomials(out):
    """An array on the heap of the device, of a size that only the thread knows."""
    i = cuda.grid(1)
    if i < out.size:
        row = np.ones(i + 1, dtype=np.float64)
        for n in range(2, i + 1):
            for k in range(n - 1, 0, -1):
                row[k] = row[k] + row[k - 1]
        total = 0.0
        for k in range(i + 1):
            total += row[k] * (k + 1)
        out[i] = total


@cuda.reduce
def total(a, b):
    return a + b


def groups():
    limit = rows_follow_each_other.overloads[(int32[:, ::1],)].max_cooperative_grid_blocks(BLOCK)
    blocks = min(limit, 12)
    rows = np.zeros((24, blocks * BLOCK), dtype=np.int32)
    rows[0] = np.arange(rows.shape[1])
    expected = rows.copy()
    for row in range(1, len(expected)):
        expected[row] = expected[row - 1][::-1] + 1
    rows_follow_each_other[blocks, BLOCK](rows)
    check("grid.sync", rows, expected)


def arrays():
    config.CUDA_ENABLE_NRT = True
    out = np.zeros(40)
    binomials[1, 40](out)
    check("arrays in kernels", out, np.array([2.0 ** (n - 1) * (n + 2) for n in range(40)]))


def recursion():
    out = np.zeros(100, dtype=np.int64)
    factorials[2, 64](out)
    expected = [1]
    for n in range(1, 20):
        expected.append(expected[-1] * n)
    check("recursion", out, np.resize(np.array(expected), 100))


def reductions():
    values = rng.integers(-1000, 1000, 100_001).astype(np.float64)
    check("reduction", total(values), values.sum())


if __name__ == "__main__":
    section("cooperative groups", groups)
    section("recursion", recursion)
    section("reductions", reductions)
    section("arrays in kernels", arrays)
    finish()

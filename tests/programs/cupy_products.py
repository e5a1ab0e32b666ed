"""CuPy's products of matrices against NumPy's: they come from cuBLAS."""

import cupy as cp
import numpy as np
from cupy import cublas
from check import check, finish, rng, section

# Types and the tolerance of a sum of some hundred products.
TYPES = {"e": 4e-3, "f": 3e-5, "d": 1e-12, "F": 3e-5, "D": 1e-12}


def array(dtype, *shape):
    values = rng.uniform(-1, 1, shape)
    if dtype in "FD":
        values = values + 1j * rng.uniform(-1, 1, shape)
    return values.astype(dtype)


def wide(array):
    """For references: NumPy multiplies halves one by one and rounds each step."""
    return array.astype(np.float32) if array.dtype == np.float16 else array


def compare(name, function, *arrays, got=None, rounding=0.0):
    dtype = arrays[0].dtype.char
    want = np.asarray(function(np, *[wide(array) for array in arrays])).astype(arrays[0].dtype)
    if got is None:
        got = function(cp, *[cp.asarray(array) for array in arrays]).get()
    scale = max(1.0, float(np.abs(want).max(initial=0)))
    check(f"{name} {dtype}", got, want, rtol=TYPES[dtype], atol=TYPES[dtype] * scale + rounding)


def products():
    for dtype in TYPES:
        for m, k, n in [(1, 1, 1), (5, 7, 3), (64, 64, 64), (33, 129, 65), (200, 3, 170), (1, 300, 40), (257, 130, 1)]:
            compare(f"{m}x{k}x{n}", lambda xp, a, b: a @ b, array(dtype, m, k), array(dtype, k, n))


def large_products():
    """As large as takes the path through packed panels."""
    for dtype in TYPES:
        for m, k, n in [(256, 256, 256), (301, 270, 259), (128, 1000, 96)]:
            compare(f"large {m}x{k}x{n}", lambda xp, a, b: a @ b, array(dtype, m, k), array(dtype, k, n))


def empty_products():
    for dtype in TYPES:
        compare("no sums", lambda xp, a, b: a @ b, array(dtype, 4, 0), array(dtype, 0, 5))
        compare("no rows", lambda xp, a, b: a @ b, array(dtype, 0, 6), array(dtype, 6, 5))


def views():
    """Transposed, strided and conjugated operands."""
    for dtype in TYPES:
        a, b = array(dtype, 60, 41), array(dtype, 60, 53)
        compare("a.T @ b", lambda xp, a, b: a.T @ b, a, b)
        compare("b.T @ a", lambda xp, a, b: b.T @ a, a, b)
        compare("fortran", lambda xp, a, b: xp.asfortranarray(a).T @ xp.asfortranarray(b), a, b)
        compare("steps", lambda xp, a, b: a[::2].T @ b[1::2], a, b)
        compare("reversed", lambda xp, a, b: a[::-1].T @ b, a, b)
        compare("adjoint", lambda xp, a, b: a.conj().T @ b, a, b)
        compare("block", lambda xp, a, b: a[3:40, 5:20].T @ b[3:40, 1:50], a, b)


def batches():
    for dtype in TYPES:
        a, b = array(dtype, 7, 12, 33), array(dtype, 7, 33, 20)
        compare("batch", lambda xp, a, b: xp.matmul(a, b), a, b)
        compare("one with many", lambda xp, a, b: xp.matmul(a[0], b), a, b)
        compare("batch transposed", lambda xp, a, b: xp.matmul(b.transpose(0, 2, 1), a.transpose(0, 2, 1)), a, b)
        compare("matrices and vectors", lambda xp, a, b: xp.matmul(a, b[:, :, 0][..., None]), a, b)
        four = array(dtype, 2, 3, 9, 8), array(dtype, 2, 3, 8, 11)
        compare("batch of batches", lambda xp, a, b: xp.matmul(a, b), *four)
    compare("large batch", lambda xp, a, b: xp.matmul(a, b), array("f", 300, 20, 17), array("f", 300, 17, 5))
    compare("large matrices", lambda xp, a, b: xp.matmul(a, b), array("f", 3, 200, 210), array("f", 3, 210, 190))


def sums_of_indices():
    for dtype in TYPES:
        a, b, c = array(dtype, 6, 8, 10), array(dtype, 8, 10, 7), array(dtype, 7, 9)
        compare("tensordot", lambda xp, a, b: xp.tensordot(a, b, 2), a, b)
        compare("tensordot of axes", lambda xp, a, b: xp.tensordot(a, b, ([1], [0])), a, b)
        compare("einsum", lambda xp, a, b, c: xp.einsum("ijk,jkl,lm->im", a, b, c), a, b, c)
        compare("einsum of a batch", lambda xp, a, b: xp.einsum("bij,bjk->bik", a, b), array(dtype, 4, 5, 6),
                array(dtype, 4, 6, 7))
        compare("inner", lambda xp, a, b: xp.inner(a, b), array(dtype, 5, 30), array(dtype, 6, 30))
        compare("outer", lambda xp, a, b: xp.outer(a, b), array(dtype, 40), array(dtype, 50))
        compare("kron", lambda xp, a, b: xp.kron(a, b), array(dtype, 3, 4), array(dtype, 5, 2))


def vectors():
    for dtype in TYPES:
        for count in (1, 2, 1000, 5000):
            x, y = array(dtype, count), array(dtype, count)
            # CuPy adds products of halves by a kernel of its own, whose sums are halves.
            rounding = 2**-9 * count**0.5 if dtype == "e" else 0.0
            compare(f"dot {count}", lambda xp, x, y: xp.dot(x, y), x, y, rounding=rounding)
            compare(f"vdot {count}", lambda xp, x, y: xp.vdot(x, y), x, y, rounding=rounding)
        a = array(dtype, 70, 90)
        compare("matrix and vector", lambda xp, a, x: a @ x, a, array(dtype, 90))
        compare("vector and matrix", lambda xp, a, x: x @ a, a, array(dtype, 70))
        compare("transposed and vector", lambda xp, a, x: a.T @ x, a, array(dtype, 70))


def norms():
    for dtype in "fdFD":
        x = cp.asarray(array(dtype, 3000))
        check(f"norm {dtype}", cp.linalg.norm(x).get(), np.linalg.norm(x.get()), rtol=TYPES[dtype])
        for name in ("nrm2", "asum"):
            got = getattr(cublas, name)(x).get()
            parts = np.concatenate([x.get().real, x.get().imag]).astype(np.float64)
            want = np.linalg.norm(parts) if name == "nrm2" else np.abs(parts).sum()
            check(f"{name} {dtype}", got, np.asarray(want, x.real.dtype), rtol=TYPES[dtype])
        sizes = np.abs(x.get().real) + np.abs(x.get().imag)
        check(f"iamax {dtype}", int(cublas.iamax(x).get()), int(sizes.argmax()) + 1)
        check(f"iamin {dtype}", int(cublas.iamin(x).get()), int(sizes.argmin()) + 1)
    for tiny, huge in [(1e-320, 1e-310), (1e-200, 1e200), (1e150, 1e300)]:
        values = np.array([tiny, huge, -huge, 0.5])
        got = cublas.nrm2(cp.asarray(values)).get()
        check(f"norm of {tiny} to {huge}", got, np.asarray(np.hypot(np.hypot(huge, huge), 0.5)), rtol=1e-12)


def updates():
    """What CuPy's own wrapper of cuBLAS has beside products."""
    for dtype in "fdFD":
        tolerance = dict(rtol=TYPES[dtype], atol=TYPES[dtype] * 50)
        a, b = array(dtype, 30, 40), array(dtype, 30, 40)
        x, y = array(dtype, 30), array(dtype, 40)
        gpu = [cp.asarray(value, order="F") for value in (a, b)]
        for alpha, beta in [(2, 0.5), (0, 1), (1, 0)]:
            got = cublas.geam("N", "N", alpha, gpu[0], beta, gpu[1]).get()
            check(f"geam {dtype} {alpha} {beta}", got, (alpha * a + beta * b).astype(dtype), **tolerance)
        got = cublas.geam("T", "H", 1, cp.asarray(a), 2, cp.asarray(b)).get()
        check(f"geam transposed {dtype}", got, a.T + 2 * b.conj().T, **tolerance)
        got = cublas.dgmm("L", cp.asarray(a), cp.asarray(x)).get()
        check(f"dgmm left {dtype}", got, x[:, None] * a, **tolerance)
        got = cublas.dgmm("R", gpu[0], cp.asarray(y)).get()
        check(f"dgmm right {dtype}", got, a * y, **tolerance)
        target = cp.asarray(a, order="F")
        (cublas.ger if dtype in "fd" else cublas.geru)(3, cp.asarray(x), cp.asarray(y), target)
        check(f"ger {dtype}", target.get(), (a + 3 * np.outer(x, y)).astype(dtype), **tolerance)
        target = cp.asarray(a, order="F")
        cublas.gerc(3, cp.asarray(x), cp.asarray(y), target)
        check(f"gerc {dtype}", target.get(), (a + 3 * np.outer(x, y.conj())).astype(dtype), **tolerance)
        for alpha in (0.5, cp.asarray(0.5, dtype)):
            target = cp.asarray(x)
            cublas.axpy(alpha, cp.asarray(y[:30]), target)
            check(f"axpy {dtype}", target.get(), (x + 0.5 * y[:30]).astype(dtype), **tolerance)
            target = cp.asarray(x)
            cublas.scal(alpha, target)
            check(f"scal {dtype}", target.get(), (0.5 * x).astype(dtype), **tolerance)
        for lower in (False, True):
            got = cublas.syrk("N", gpu[0], alpha=2.0, lower=lower).get()
            want = 2 * (np.tril if lower else np.triu)(a @ a.T)
            check(f"syrk {dtype} {lower}", got, want.astype(dtype), **tolerance)
        if dtype in "fd":
            bands = array(dtype, 3, 40)
            full = sum(np.diag(bands[2 - d, d:], d) + (np.diag(bands[2 - d, d:], -d) if d else 0) for d in range(3))
            matrix = np.zeros((40, 40), dtype, order="F")
            matrix[:3] = bands
            target = cp.asarray(y)
            cublas.sbmv(2, 2.0, cp.asarray(matrix, order="F"), cp.asarray(b[0]), 1.0, target)
            check(f"sbmv {dtype}", target.get(), (2 * full @ b[0] + y).astype(dtype), **tolerance)


def streams():
    """Products wait for what their stream computes, and nothing else."""
    a, b = array("f", 120, 120), array("f", 120, 120)
    results = []
    for _ in range(4):
        with cp.cuda.Stream(non_blocking=True):
            x, y = cp.asarray(a), cp.asarray(b)
            for _ in range(3):
                x = x @ y / 10
            results.append(x)
    cp.cuda.Device().synchronize()
    want = a
    for _ in range(3):
        want = want @ b / 10
    for result in results:
        check("streams", result.get(), want, rtol=1e-4, atol=1e-4)


if __name__ == "__main__":
    section("products", products)
    section("large products", large_products)
    section("empty products", empty_products)
    section("views", views)
    section("batches", batches)
    section("sums of indices", sums_of_indices)
    section("vectors", vectors)
    section("norms", norms)
    section("updates", updates)
    section("streams", streams)
    finish()

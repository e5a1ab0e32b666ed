"""CuPy's linear algebra against NumPy's: NVIDIA's cuSOLVER, whose kernels are PTX, over cuBLAS."""

import cupy as cp
import numpy as np
from check import check, finish, rng, section

# Types and tolerances of results.
TYPES = {"f": 2e-3, "d": 1e-10, "F": 2e-3, "D": 1e-10}
ORDER = 60


def matrix(dtype, *shape):
    values = rng.standard_normal(shape)
    if dtype in "FD":
        values = values + 1j * rng.standard_normal(shape)
    return values.astype(dtype)


def regular(dtype, *batch):
    """Matrices that are far from singular."""
    return matrix(dtype, *batch, ORDER, ORDER) + (3 * ORDER**0.5 * np.eye(ORDER)).astype(dtype)


def compare(name, dtype, got, want):
    got = np.asarray(got.get())
    check(f"{name} {dtype}", got, np.asarray(want).astype(got.dtype), rtol=TYPES[dtype], atol=TYPES[dtype])


def systems():
    for dtype in TYPES:
        a, b = regular(dtype), matrix(dtype, ORDER, 4)
        compare("solve", dtype, cp.linalg.solve(cp.asarray(a), cp.asarray(b)), np.linalg.solve(a, b))
        compare("inv", dtype, cp.linalg.inv(cp.asarray(a)), np.linalg.inv(a))
        compare("slogdet", dtype, cp.linalg.slogdet(cp.asarray(a))[1], np.linalg.slogdet(a)[1])
        tall = matrix(dtype, ORDER, 7)
        got = cp.linalg.lstsq(cp.asarray(tall), cp.asarray(b), rcond=None)[0]
        compare("lstsq", dtype, got, np.linalg.lstsq(tall, b, rcond=None)[0])
        compare("pinv", dtype, cp.linalg.pinv(cp.asarray(tall)), np.linalg.pinv(tall))


def batches():
    for dtype in TYPES:
        a, b = regular(dtype, 3), matrix(dtype, 3, ORDER, 2)
        compare("batch solve", dtype, cp.linalg.solve(cp.asarray(a), cp.asarray(b)), np.linalg.solve(a, b))
        compare("batch inv", dtype, cp.linalg.inv(cp.asarray(a)), np.linalg.inv(a))


def decompositions():
    for dtype in TYPES:
        a = matrix(dtype, ORDER, ORDER)
        definite = a @ a.conj().T + ORDER * np.eye(ORDER, dtype=dtype)
        lower = cp.linalg.cholesky(cp.asarray(definite))
        compare("cholesky", dtype, (lower @ lower.conj().T) / ORDER, definite / ORDER)
        q, r = cp.linalg.qr(cp.asarray(a))
        compare("qr", dtype, q @ r, a)
        compare("orthogonal", dtype, q.conj().T @ q, np.eye(ORDER))
        u, s, v = cp.linalg.svd(cp.asarray(a))
        compare("svd", dtype, (u * s) @ v, a)
        compare("singular values", dtype, s, np.linalg.svd(a, compute_uv=False))
        hermitian = (a + a.conj().T) / 2
        values, vectors = cp.linalg.eigh(cp.asarray(hermitian))
        compare("eigh", dtype, (vectors * values) @ vectors.conj().T, hermitian)
        compare("eigenvalues", dtype, values, np.linalg.eigvalsh(hermitian))


if __name__ == "__main__":
    section("systems", systems)
    section("batches", batches)
    section("decompositions", decompositions)
    finish()

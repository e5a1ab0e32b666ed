"""cuBLAS's C interface through ctypes, for what CuPy does not reach. CuPy holds the memory."""

import ctypes
import os
import tempfile
import threading
from ctypes import byref, c_double, c_float, c_int, c_int64, c_longlong, c_uint16, c_void_p

import cupy as cp
import numpy as np
from check import check, finish, rng, section

for name in ("libcublas.so.13", "libcublas.so.12"):
    try:
        blas = ctypes.CDLL(name)
        break
    except OSError as error:
        last = error
else:
    raise last

SUCCESS, NOT_INITIALIZED, INVALID_VALUE, EXECUTION_FAILED, NOT_SUPPORTED = 0, 1, 7, 13, 15
PLAIN, TRANSPOSE, ADJOINT = 0, 1, 2
HOST, DEVICE = 0, 1
# cudaDataType
R_32F, R_64F, R_16F, R_8I, C_32F, R_32I, R_16BF = 0, 1, 2, 3, 4, 10, 14
# cublasComputeType_t
COMPUTE_16F, COMPUTE_32F, COMPUTE_32F_TF32, COMPUTE_64F, COMPUTE_32I = 64, 68, 77, 70, 72

handle = c_void_p()


def ok(name, *arguments):
    status = getattr(blas, name)(handle, *arguments)
    check(f"{name} answers", status, SUCCESS)


def gpu(array):
    """In column-major order, as BLAS has matrices."""
    return cp.asarray(np.asfortranarray(array))


class Address(c_void_p):
    """The address of an array, which stays as long as this does: until the call is queued."""


def at(array):
    address = Address(array.data.ptr)
    address.array = array
    return address


def handles():
    check("no handle", blas.cublasSgemm_v2(None, *[0] * 13), NOT_INITIALIZED)
    check("an unknown handle", blas.cublasSetMathMode(c_void_p(12345), 0), NOT_INITIALIZED)
    check("create", blas.cublasCreate_v2(byref(handle)), SUCCESS)
    number = c_int()
    ok("cublasGetVersion_v2", byref(number))
    check("version", number.value >= 120000, True)
    parts = [c_int() for _ in range(3)]
    for place, part in enumerate(parts):
        check("property", blas.cublasGetProperty(place, byref(part)), SUCCESS)
    check("version of parts", parts[0].value * 10000 + parts[1].value * 100 + parts[2].value, number.value)
    for mode in (DEVICE, HOST):
        ok("cublasSetPointerMode_v2", mode)
        ok("cublasGetPointerMode_v2", byref(number))
        check("pointer mode", number.value, mode)
    check("a wrong mode", blas.cublasSetPointerMode_v2(handle, 5), INVALID_VALUE)
    ok("cublasSetMathMode", 3)
    ok("cublasGetMathMode", byref(number))
    check("math mode", number.value, 3)
    stream, found = cp.cuda.Stream(), c_void_p()
    ok("cublasSetStream_v2", c_void_p(stream.ptr))
    ok("cublasGetStream_v2", byref(found))
    check("stream", found.value, stream.ptr)
    ok("cublasSetStream_v2", None)
    blas.cublasGetStatusName.restype = ctypes.c_char_p
    check("status name", blas.cublasGetStatusName(15).decode(), "CUBLAS_STATUS_NOT_SUPPORTED")


def special_scalars():
    """Without beta C is not read, and without alpha neither A nor B (BLAS: GEMM)."""
    for size in (8, 100):
        a, b = rng.uniform(-1, 1, (2, size, size)).astype("f")
        nan = np.full((size, size), np.nan, "f")
        for pointers in (HOST, DEVICE):
            ok("cublasSetPointerMode_v2", pointers)

            def scalar(value):
                return byref(c_float(value)) if pointers == HOST else at(cp.asarray(value, "f"))

            c = gpu(nan)
            ok("cublasSgemm_v2", 0, 0, size, size, size, scalar(1), at(gpu(a)), size, at(gpu(b)), size, scalar(0), at(c), size)
            check("without beta", c.get(), a @ b, rtol=1e-5, atol=1e-5)
            c = gpu(a)
            ok("cublasSgemm_v2", 0, 0, size, size, size, scalar(0), at(gpu(nan)), size, at(gpu(nan)), size, scalar(2), at(c), size)
            check("without alpha", c.get(), 2 * a)
            c = gpu(a)
            ok("cublasSgemm_v2", 0, 0, size, size, size, scalar(1), at(gpu(nan)), size, at(gpu(b)), size, scalar(1), at(c), size)
            check("not a number", bool(np.isnan(c.get()).all()), True)
        ok("cublasSetPointerMode_v2", HOST)


def leading_dimensions():
    """Blocks of larger matrices; what lies between their columns stays."""
    for m, n, k in [(5, 7, 9), (33, 40, 70), (130, 90, 128)]:
        for transa in (PLAIN, TRANSPOSE):
            for transb in (PLAIN, TRANSPOSE):
                a = rng.uniform(-1, 1, (m + k, m + k))
                b = rng.uniform(-1, 1, (n + k, n + k))
                c = rng.uniform(-1, 1, (m + 3, n))
                want = c.copy()
                left = a[:k, :m].T if transa else a[:m, :k]
                right = b[:n, :k].T if transb else b[:k, :n]
                want[:m] = 1.5 * left @ right - 0.5 * c[:m]
                target = gpu(c)
                ok("cublasDgemm_v2", transa, transb, m, n, k, byref(c_double(1.5)), at(gpu(a)), m + k, at(gpu(b)), n + k,
                   byref(c_double(-0.5)), at(target), m + 3)
                check(f"{m} {n} {k} {transa}{transb}", target.get(), want, rtol=1e-12, atol=1e-12)
    check("a short column", blas.cublasDgemm_v2(handle, 0, 0, 4, 4, 4, byref(c_double(1)), None, 3, None, 4,
                                                byref(c_double(0)), None, 4), INVALID_VALUE)
    ok("cublasDgemm_v2_64", 0, 0, c_int64(0), c_int64(3), c_int64(3), byref(c_double(1)), None, c_int64(1), None, c_int64(3),
       byref(c_double(0)), None, c_int64(1))


def bfloat(array):
    """The nearest bfloat16, as its bits."""
    bits = array.astype("f").view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bfloat(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def types():
    one, none = byref(c_float(1)), byref(c_float(0))
    for m, n, k in [(20, 12, 33), (96, 80, 64)]:
        a, b = rng.uniform(-1, 1, (m, k)).astype("f"), rng.uniform(-1, 1, (k, n)).astype("f")
        packed = [gpu(bfloat(a)), gpu(bfloat(b))]
        exact = from_bfloat(bfloat(a)) @ from_bfloat(bfloat(b))
        c = gpu(np.zeros((m, n), "f"))
        ok("cublasGemmEx", 0, 0, m, n, k, one, at(packed[0]), R_16BF, m, at(packed[1]), R_16BF, k, none, at(c), R_32F, m,
           COMPUTE_32F, -1)
        check("bfloat16 to float", c.get(), exact, rtol=1e-5, atol=1e-5)
        c = gpu(np.zeros((m, n), np.uint16))
        ok("cublasGemmEx", 0, 0, m, n, k, one, at(packed[0]), R_16BF, m, at(packed[1]), R_16BF, k, none, at(c), R_16BF, m,
           COMPUTE_32F, -1)
        check("bfloat16", from_bfloat(np.asfortranarray(c.get())), exact, rtol=1e-2, atol=1e-2)
        halves = [gpu(a.astype(np.float16)), gpu(b.astype(np.float16))]
        want = a.astype(np.float16).astype("f") @ b.astype(np.float16).astype("f")
        c = gpu(np.zeros((m, n), np.float16))
        scalars = [byref(c_uint16(int(np.float16(value).view(np.uint16)))) for value in (2, 0)]
        ok("cublasHgemm", 0, 0, m, n, k, scalars[0], at(halves[0]), m, at(halves[1]), k, scalars[1], at(c), m)
        check("half", c.get(), (2 * want).astype(np.float16), rtol=4e-3, atol=4e-3)
        ok("cublasGemmEx", 0, 0, m, n, k, one, at(halves[0]), R_16F, m, at(halves[1]), R_16F, k, none, at(c), R_16F, m,
           COMPUTE_32F, -1)
        check("half by floats", c.get(), want.astype(np.float16), rtol=4e-3, atol=4e-3)
        left, right = rng.integers(-128, 128, (m, k), np.int8), rng.integers(-128, 128, (k, n), np.int8)
        c = gpu(np.full((m, n), 7, np.int32))
        ok("cublasGemmEx", 0, 0, m, n, k, byref(c_int(2)), at(gpu(left)), R_8I, m, at(gpu(right)), R_8I, k, byref(c_int(1)),
           at(c), R_32I, m, COMPUTE_32I, -1)
        check("int8", c.get(), 2 * left.astype(np.int32) @ right.astype(np.int32) + 7)
        c = gpu(np.zeros((m, n), "f"))
        ok("cublasGemmEx", 0, 0, m, n, k, one, at(gpu(left)), R_8I, m, at(gpu(right)), R_8I, k, none, at(c), R_32F, m,
           COMPUTE_32F, -1)
        check("int8 to float", c.get(), (left.astype("f") @ right.astype("f")))
        c = gpu(np.zeros((m, n), "f"))
        ok("cublasGemmEx", 0, 0, m, n, k, one, at(gpu(a)), R_32F, m, at(gpu(b)), R_32F, k, none, at(c), R_32F, m,
           COMPUTE_32F_TF32, -1)
        check("tf32 allowed", c.get(), a @ b, rtol=1e-5, atol=1e-5)
    check("types that do not go together", blas.cublasGemmEx(
        handle, 0, 0, 1, 1, 1, one, None, R_16F, 1, None, R_32F, 1, none, None, R_32F, 1, COMPUTE_32F, -1), NOT_SUPPORTED)


def batches():
    count, m, n, k = 5, 40, 30, 50
    a, b = rng.uniform(-1, 1, (count, m, k)), rng.uniform(-1, 1, (count, k, n))
    arrays = [cp.asarray(value.transpose(0, 2, 1).copy()) for value in (a, b)]
    c = cp.zeros((count, n, m))
    pointers = [cp.asarray([part.data.ptr for part in array], cp.uint64) for array in (*arrays, c)]
    one, none = byref(c_double(1)), byref(c_double(0))
    ok("cublasDgemmBatched", 0, 0, m, n, k, one, at(pointers[0]), m, at(pointers[1]), k, none, at(pointers[2]), m, count)
    check("by pointers", c.get().transpose(0, 2, 1), a @ b, rtol=1e-12, atol=1e-12)
    c[:] = 0
    ok("cublasGemmBatchedEx", 0, 0, m, n, k, one, at(pointers[0]), R_64F, m, at(pointers[1]), R_64F, k, none, at(pointers[2]),
       R_64F, m, count, COMPUTE_64F, -1)
    check("by pointers with types", c.get().transpose(0, 2, 1), a @ b, rtol=1e-12, atol=1e-12)
    c[:] = 0
    ok("cublasDgemmStridedBatched", 0, 0, m, n, k, one, at(arrays[0]), m, c_longlong(0), at(arrays[1]), k, c_longlong(k * n),
       none, at(c), m, c_longlong(m * n), count)
    check("one with many", c.get().transpose(0, 2, 1), a[0] @ b, rtol=1e-12, atol=1e-12)


def triangular_systems():
    for dtype, letter in (("f", "S"), ("d", "D"), ("F", "C"), ("D", "Z")):
        two = gpu(np.full(1, 2, dtype))
        ok("cublasSetPointerMode_v2", DEVICE)
        tolerance = 2e-3 if dtype in "fF" else 1e-9
        for order, count in [(7, 5), (150, 40)]:
            a = rng.uniform(-1, 1, (order, order)) / order + 2 * np.eye(order)
            if dtype in "FD":
                a = a + 1j * rng.uniform(-1, 1, (order, order)) / order
            a = a.astype(dtype)
            for uplo in (0, 1):
                for trans in (PLAIN, TRANSPOSE, ADJOINT):
                    for diag in (0, 1):
                        triangle = np.triu(a) if uplo else np.tril(a)
                        if diag:
                            triangle = triangle - np.diag(np.diag(triangle)) + np.eye(order, dtype=dtype)
                        used = [triangle, triangle.T, triangle.conj().T][trans]
                        for side in (0, 1):
                            b = rng.uniform(-1, 1, (order, count) if side == 0 else (count, order)).astype(dtype)
                            target = gpu(b)
                            ok(f"cublas{letter}trsm_v2", side, uplo, trans, diag, *b.shape, at(two), at(gpu(a)), order,
                               at(target), b.shape[0])
                            x = target.get()
                            got = used @ x if side == 0 else x @ used
                            name = f"trsm {dtype} {order} {uplo}{trans}{diag}{side}"
                            check(name, got.astype(dtype), 2 * b, rtol=tolerance, atol=tolerance)
    ok("cublasSetPointerMode_v2", HOST)


def symmetric():
    for dtype, letter in (("F", "C"), ("D", "Z")):
        tolerance = 1e-4 if dtype == "F" else 1e-11
        real = c_float if dtype == "F" else c_double
        n, k = 90, 130
        a = (rng.uniform(-1, 1, (n, k)) + 1j * rng.uniform(-1, 1, (n, k))).astype(dtype)
        c = (rng.uniform(-1, 1, (n, n)) + 1j * rng.uniform(-1, 1, (n, n))).astype(dtype)
        c = c + c.conj().T
        target = gpu(c)
        ok(f"cublas{letter}herk_v2", 0, PLAIN, n, k, byref(real(2)), at(gpu(a)), n, byref(real(0.5)), at(target), n)
        got, want = target.get(), 2 * a @ a.conj().T + 0.5 * c
        check(f"herk {dtype}", np.tril(got), np.tril(want).astype(dtype), rtol=tolerance, atol=tolerance)
        check(f"the other triangle {dtype}", np.triu(got, 1), np.triu(c, 1))
        check(f"the diagonal is real {dtype}", bool((np.diag(got).imag == 0).all()), True)


def triangles():
    """Products with a matrix of which a triangle is stored, and updates of one."""
    for dtype, letter in (("f", "S"), ("d", "D"), ("F", "C"), ("D", "Z")):
        tolerance = dict(rtol=1e-4, atol=1e-4) if dtype in "fF" else dict(rtol=1e-11, atol=1e-11)
        real = c_float if dtype in "fF" else c_double
        kind = real * 2 if dtype in "FD" else real * 1
        two, half, one = (byref(kind(value)) for value in (2, 0.5, 1))
        m, n = 70, 60

        def random(*shape):
            values = rng.uniform(-1, 1, shape)
            return (values + 1j * rng.uniform(-1, 1, shape) if dtype in "FD" else values).astype(dtype)

        b, c = random(m, n), random(m, n)
        for side, order in ((0, m), (1, n)):
            a = random(order, order)
            for uplo in (0, 1):
                part = np.triu(a) if uplo else np.tril(a)
                strict = np.triu(a, 1) if uplo else np.tril(a, -1)
                shapes = {f"cublas{letter}symm_v2": part + strict.T}
                if dtype in "FD":
                    shapes[f"cublas{letter}hemm_v2"] = strict + strict.conj().T + np.diag(np.diag(a).real)
                for name, whole in shapes.items():
                    target = gpu(c)
                    ok(name, side, uplo, m, n, two, at(gpu(a)), order, at(gpu(b)), m, half, at(target), m)
                    product = whole @ b if side == 0 else b @ whole
                    check(f"{name} {uplo}{side}", target.get(), (2 * product + 0.5 * c).astype(dtype), **tolerance)
                for trans in (PLAIN, TRANSPOSE, ADJOINT):
                    for diag in (0, 1):
                        whole = strict + np.eye(order, dtype=dtype) if diag else part
                        whole = [whole, whole.T, whole.conj().T][trans]
                        target = gpu(b)
                        ok(f"cublas{letter}trmm_v2", side, uplo, trans, diag, m, n, two, at(gpu(a)), order, at(target), m,
                           at(target), m)
                        product = whole @ b if side == 0 else b @ whole
                        check(f"trmm {dtype} {uplo}{trans}{diag}{side}", target.get(), (2 * product).astype(dtype), **tolerance)
                        x, a_of_vector = random(3 * order), a + 4 * np.eye(order, dtype=dtype)
                        target = cp.asarray(x)
                        arguments = (uplo, trans, diag, order, at(gpu(a_of_vector)), order, at(target), 3)
                        whole = whole if diag else whole + 4 * np.eye(order, dtype=dtype)
                        ok(f"cublas{letter}trmv_v2", *arguments)
                        check(f"trmv {dtype} {uplo}{trans}{diag}", target[::3].get(), (whole @ x[::3]).astype(dtype), **tolerance)
                        if not diag:
                            ok(f"cublas{letter}trsv_v2", *arguments)
                            check(f"trsv {dtype} {uplo}{trans}", target.get(), x, rtol=1e-2 if dtype in "fF" else 1e-9)
        a, b, c = random(m, n), random(m, n), random(m, m)
        target = gpu(c)
        ok(f"cublas{letter}syr2k_v2", 1, PLAIN, m, n, two, at(gpu(a)), m, at(gpu(b)), m, half, at(target), m)
        want = 2 * (a @ b.T + b @ a.T) + 0.5 * c
        check(f"syr2k {dtype}", np.triu(target.get()), np.triu(want).astype(dtype), **tolerance)
        target = gpu(c)
        ok(f"cublas{letter}syr_v2", 0, m, one, at(cp.asarray(a[:, 0])), 1, at(target), m)
        check(f"syr {dtype}", np.tril(target.get()), np.tril(c + np.outer(a[:, 0], a[:, 0])), **tolerance)
        batch, vectors, target = random(3, m, n), random(3, n), cp.asarray(random(3, m))
        before = target.get()
        ok(f"cublas{letter}gemvStridedBatched", PLAIN, m, n, two, at(cp.asarray(batch.transpose(0, 2, 1).copy())), m,
           c_longlong(m * n), at(cp.asarray(vectors)), 1, c_longlong(n), half, at(target), 1, c_longlong(m), 3)
        want = 2 * np.einsum("bij,bj->bi", batch, vectors) + 0.5 * before
        check(f"gemv of a batch {dtype}", target.get(), want.astype(dtype), **tolerance)
        if dtype in "FD":
            c = c + c.conj().T
            target, complex_two = gpu(c), byref(kind(2, 1))
            ok(f"cublas{letter}her2k_v2", 0, PLAIN, m, n, complex_two, at(gpu(a)), m, at(gpu(b)), m, byref(real(0.5)),
               at(target), m)
            want = (2 + 1j) * a @ b.conj().T + (2 - 1j) * b @ a.conj().T + 0.5 * c
            check(f"her2k {dtype}", np.tril(target.get()), np.tril(want).astype(dtype), **tolerance)
            target = gpu(c)
            ok(f"cublas{letter}her_v2", 0, m, byref(real(3)), at(cp.asarray(a[:, 0])), 1, at(target), m)
            want = c + 3 * np.outer(a[:, 0], a[:, 0].conj())
            check(f"her {dtype}", np.tril(target.get()), np.tril(want).astype(dtype), **tolerance)


def factors():
    """LU factors of batches: solved and inverted, one of them singular."""
    for dtype, letter in (("f", "S"), ("d", "D"), ("F", "C"), ("D", "Z")):
        tolerance = 1e-3 if dtype in "fF" else 1e-9
        for order, columns, count in [(1, 2, 3), (9, 4, 6), (50, 3, 2)]:
            a = (rng.uniform(-1, 1, (count, order, order)) + 1j * rng.uniform(-1, 1, (count, order, order))).astype(dtype) \
                if dtype in "FD" else rng.uniform(-1, 1, (count, order, order)).astype(dtype)
            a += 2 * np.eye(order, dtype=dtype)[::-1]
            b = rng.uniform(-1, 1, (count, order, columns)).astype(dtype)
            factored = cp.asarray(a.transpose(0, 2, 1).copy())
            addresses = cp.asarray([part.data.ptr for part in factored], cp.uint64)
            pivots, infos = cp.zeros((count, order), cp.int32), cp.full(count, 9, cp.int32)
            ok(f"cublas{letter}getrfBatched", order, at(addresses), order, at(pivots), at(infos), count)
            check(f"regular {dtype} {order}", infos.get(), np.zeros(count, np.int32))
            for trans in (PLAIN, TRANSPOSE, ADJOINT):
                right = cp.asarray(b.transpose(0, 2, 1).copy())
                places, info = cp.asarray([part.data.ptr for part in right], cp.uint64), c_int(9)
                ok(f"cublas{letter}getrsBatched", trans, order, columns, at(addresses), order, at(pivots), at(places), order,
                   byref(info), count)
                x = right.get().transpose(0, 2, 1)
                used = [a, a.transpose(0, 2, 1), a.conj().transpose(0, 2, 1)][trans]
                check(f"getrs {dtype} {order} {trans}", (used @ x).astype(dtype), b, rtol=tolerance, atol=tolerance)
            inverses = cp.zeros_like(factored)
            places = cp.asarray([part.data.ptr for part in inverses], cp.uint64)
            ok(f"cublas{letter}getriBatched", order, at(addresses), order, at(pivots), at(places), order, at(infos), count)
            got = a @ inverses.get().transpose(0, 2, 1)
            check(f"getri {dtype} {order}", got.astype(dtype), np.broadcast_to(np.eye(order, dtype=dtype), a.shape),
                  rtol=tolerance, atol=tolerance)
    singular = cp.asarray(np.array([[[1.0, 2, 3], [2, 4, 6], [0, 1, 1]]]))
    infos = cp.zeros(1, cp.int32)
    ok("cublasDgetrfBatched", 3, at(cp.asarray([singular.data.ptr], cp.uint64)), 3, None, at(infos), 1)
    check("singular", int(infos[0]) > 0, True)


def steps():
    """Vectors with distances, also negative ones."""
    x, y = rng.uniform(-1, 1, 300), rng.uniform(-1, 1, 300)
    target = cp.asarray(y)
    ok("cublasDaxpy_v2", 100, byref(c_double(3)), at(cp.asarray(x)), 3, at(target), -2)
    want = y.copy()
    want[:200:2][::-1] += 3 * x[::3]
    check("axpy", target.get(), want, rtol=1e-14)
    result = c_double()
    ok("cublasDdot_v2", 100, at(cp.asarray(x)), -1, at(cp.asarray(y)), 2, byref(result))
    check("dot", np.float64(result.value), x[:100][::-1] @ y[:200:2], rtol=1e-12, atol=1e-12)
    place = c_int()
    values = np.array([0.5, -3, 3, 1, 3, -3.0])
    ok("cublasIdamax_v2", 6, at(cp.asarray(values)), 1, byref(place))
    check("the first of equals", place.value, 2)
    ok("cublasIdamax_v2", 0, at(cp.asarray(values)), 1, byref(place))
    check("of none", place.value, 0)
    swapped = [cp.asarray(x), cp.asarray(y)]
    ok("cublasDswap_v2", 300, at(swapped[0]), 1, at(swapped[1]), 1)
    check("swap", np.array([part.get() for part in swapped]), np.array([y, x]))
    ok("cublasDrot_v2", 300, at(swapped[0]), 1, at(swapped[1]), 1, byref(c_double(0.6)), byref(c_double(0.8)))
    check("rot", swapped[0].get(), 0.6 * y + 0.8 * x, rtol=1e-12, atol=1e-15)
    a = rng.uniform(-1, 1, (30, 20))
    for trans, length in ((PLAIN, 20), (TRANSPOSE, 30)):
        target = cp.asarray(y)
        ok("cublasDgemv_v2", trans, 30, 20, byref(c_double(2)), at(gpu(a)), 30, at(cp.asarray(x)), 2, byref(c_double(1)), at(target), -3)
        rows = 50 - length
        want = y.copy()
        want[: 3 * rows : 3][::-1] += 2 * (a.T if trans else a) @ x[: 2 * length : 2]
        check(f"gemv {trans}", target.get(), want, rtol=1e-12, atol=1e-12)


def captures():
    """A result for the host is refused in a capture, where the copy would be one of each launch."""
    x, result, stream = cp.arange(100.0), c_double(-1), cp.cuda.Stream(non_blocking=True)
    on_device = cp.zeros(1)
    cp.cuda.Device().synchronize()
    ok("cublasSetStream_v2", c_void_p(stream.ptr))
    with stream:
        stream.begin_capture()
        check("a result for the host", blas.cublasDdot_v2(handle, 100, at(x), 1, at(x), 1, byref(result)), EXECUTION_FAILED)
        ok("cublasSetPointerMode_v2", DEVICE)
        ok("cublasDdot_v2", 100, at(x), 1, at(x), 1, at(on_device))
        graph = stream.end_capture()
    graph.launch(stream)
    stream.synchronize()
    check("a result on the device", cp.asnumpy(on_device), np.array([328350.0]))
    check("the host's place", result.value, -1.0)
    ok("cublasSetPointerMode_v2", HOST)
    ok("cublasSetStream_v2", None)


def threads_without_a_context():
    x, y, statuses = cp.arange(100.0), cp.zeros(100), []
    cp.cuda.Device().synchronize()
    arguments = (handle, 100, at(x), 1, at(y), 1)
    thread = threading.Thread(target=lambda: statuses.append(blas.cublasDcopy_v2(*arguments)))
    thread.start()
    thread.join()
    check("status in a thread without a context", statuses, [SUCCESS])
    cp.cuda.Device().synchronize()
    check("a copy", cp.asnumpy(y), np.arange(100.0))


def paths():
    """Who loads NVIDIA's file by its path gets the same library."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "libcublas.so.13")
        open(path, "w").close()
        other = ctypes.CDLL(path)
    addresses = [ctypes.cast(library.cublasCreate_v2, c_void_p).value for library in (blas, other)]
    check("by a path", addresses[0], addresses[1])


def missing():
    check("a function that is not built", blas.cublasSmatinvBatched(handle), NOT_SUPPORTED)


def closed_standard_error():
    """A message that cannot be written is no reason to end the program."""
    reader, writer = os.pipe()
    os.close(reader)
    kept = os.dup(2)
    os.dup2(writer, 2)
    try:
        status = blas.cublasDmatinvBatched(handle, *[None] * 7)
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(writer)
    check("a missing function", status, NOT_SUPPORTED)


def end():
    check("destroy", blas.cublasDestroy_v2(handle), SUCCESS)
    check("destroyed", blas.cublasDestroy_v2(handle), NOT_INITIALIZED)


if __name__ == "__main__":
    section("handles", handles)
    section("special scalars", special_scalars)
    section("leading dimensions", leading_dimensions)
    section("types", types)
    section("batches", batches)
    section("triangular systems", triangular_systems)
    section("symmetric", symmetric)
    section("triangles", triangles)
    section("factors", factors)
    section("steps", steps)
    section("captures", captures)
    section("threads without a context", threads_without_a_context)
    section("paths", paths)
    section("missing", missing)
    section("closed standard error", closed_standard_error)
    section("end", end)
    finish()

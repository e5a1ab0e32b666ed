"""cuBLASLt's products through ctypes against NumPy: types, orders, batches, scalars, epilogues.
CuPy holds the memory."""

import ctypes
import math
from ctypes import byref, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

import cupy as cp
import numpy as np
from check import check, finish, rng, section

for name in ("libcublasLt.so.13", "libcublasLt.so.12"):
    try:
        lt = ctypes.CDLL(name)
        break
    except OSError as error:
        last = error
else:
    raise last

SUCCESS, NOT_INITIALIZED, INVALID_VALUE, NOT_SUPPORTED = 0, 1, 7, 15
R_32F, R_64F, R_16F, R_8I, C_32F, C_64F, R_32I, R_16BF = 0, 1, 2, 3, 4, 5, 10, 14
COMPUTE_16F, COMPUTE_32F, COMPUTE_32F_TF32, COMPUTE_64F, COMPUTE_32I = 64, 68, 77, 70, 72
PLAIN, TRANSPOSE, ADJOINT = 0, 1, 2
COLUMNS, ROWS = 0, 1
RELU, BIAS, GELU, RELU_AUX = 2, 4, 32, 130
# Attributes of layouts, of products and of preferences.
ORDER, BATCH, STRIDE = 1, 5, 6
POINTER_MODE, TRANSPOSE_A, TRANSPOSE_B, EPILOGUE, BIAS_POINTER, BIAS_STRIDE, A_SCALE, BIAS_TYPE = 2, 3, 4, 7, 8, 10, 17, 26
MAX_WORKSPACE = 1

handle = c_void_p()


class Heuristic(ctypes.Structure):
    _fields_ = [("algorithm", c_uint64 * 8), ("workspace", c_size_t), ("state", c_int), ("waves", c_float),
                ("reserved", c_int * 4)]


class Descriptor:
    """A descriptor and the functions that set and destroy it."""

    def __init__(self, kind, *arguments):
        self.kind, self.id = kind, c_void_p()
        check(f"{kind} create", getattr(lt, f"cublasLt{kind}Create")(byref(self.id), *arguments), SUCCESS)

    def set(self, attribute, value):
        return getattr(lt, f"cublasLt{self.kind}SetAttribute")(self.id, attribute, byref(value),
                                                              c_size_t(ctypes.sizeof(value)))

    def get(self, attribute, value):
        written = c_size_t()
        status = getattr(lt, f"cublasLt{self.kind}GetAttribute")(self.id, attribute, byref(value),
                                                                 c_size_t(ctypes.sizeof(value)), byref(written))
        check("size", (status, written.value), (SUCCESS, ctypes.sizeof(value)))
        return value.value

    def __del__(self):
        getattr(lt, f"cublasLt{self.kind}Destroy")(self.id)


TYPES = {  # of elements in memory, as numbers to compute a reference with, as numpy's
    R_32F: np.float32, R_64F: np.float64, R_16F: np.float16, R_8I: np.int8, C_32F: np.complex64,
    C_64F: np.complex128, R_32I: np.int32, R_16BF: np.uint16,
}


def bfloat16(values):
    """The nearest bfloat16 of floats, as bits."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def numbers(kind, array):
    if kind == R_16BF:
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if kind in (R_8I, R_32I):
        return array.astype(np.int64)
    return array.astype(np.complex128 if kind in (C_32F, C_64F) else np.float64)


def elements(kind, shape):
    if kind in (R_8I, R_32I):
        return rng.integers(-100, 100, shape).astype(TYPES[kind])
    values = rng.standard_normal(shape)
    if kind in (C_32F, C_64F):
        values = values + 1j * rng.standard_normal(shape)
    return bfloat16(values) if kind == R_16BF else values.astype(TYPES[kind])


class Matrix:
    """A batch of matrices in device memory, with room between columns (or rows) and matrices."""

    def __init__(self, kind, rows, columns, batch=1, order=COLUMNS):
        self.kind, self.order, self.shape = kind, order, (batch, rows, columns)
        outer, inner = (columns, rows) if order == COLUMNS else (rows, columns)
        self.host = elements(kind, (batch, outer + 1, inner + 3))
        self.device = cp.asarray(self.host)
        self.layout = Descriptor("MatrixLayout", kind, c_uint64(rows), c_uint64(columns), c_int64(inner + 3))
        self.layout.set(ORDER, c_int32(order))
        self.layout.set(BATCH, c_int32(batch))
        self.layout.set(STRIDE, c_int64((outer + 1) * (inner + 3)))

    def numbers(self):
        _, rows, columns = self.shape
        outer, inner = (columns, rows) if self.order == COLUMNS else (rows, columns)
        part = numbers(self.kind, cp.asnumpy(self.device))[:, :outer, :inner]
        return part.transpose(0, 2, 1) if self.order == COLUMNS else part

    @property
    def address(self):
        return c_void_p(self.device.data.ptr)


def scalar(kind, value):
    return ctypes.create_string_buffer(np.asarray(value, TYPES[kind]).tobytes())


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def product(name, kinds, compute, scale, sizes, operations=(PLAIN, PLAIN), orders=(0, 0, 0), batch=1, alpha=1, beta=0,
            epilogue=0, apart=False, device_scalars=False):
    m, n, k = sizes
    shapes = [(m, k) if operations[0] == PLAIN else (k, m), (k, n) if operations[1] == PLAIN else (n, k)]
    a = Matrix(kinds[0], *shapes[0], batch, orders[0])
    b = Matrix(kinds[0], *shapes[1], batch, orders[1])
    d = Matrix(kinds[1], m, n, batch, orders[2])
    c = Matrix(kinds[1], m, n, batch, orders[2]) if apart else d
    old, untouched = c.numbers(), d.device.copy()
    descriptor = Descriptor("MatmulDesc", compute, scale)
    descriptor.set(TRANSPOSE_A, c_int32(operations[0]))
    descriptor.set(TRANSPOSE_B, c_int32(operations[1]))
    bias = None
    if epilogue:
        check("epilogue", descriptor.set(EPILOGUE, c_uint32(epilogue)), SUCCESS)
        if epilogue & BIAS:
            bias = cp.asarray(elements(kinds[1], (batch, m)))
            descriptor.set(BIAS_POINTER, c_void_p(bias.data.ptr))
            descriptor.set(BIAS_STRIDE, c_int64(m))

    results, found = (Heuristic * 2)(), c_int()
    preference = Descriptor("MatmulPreference")
    check("preference", preference.set(MAX_WORKSPACE, c_uint64(0)), SUCCESS)
    status = lt.cublasLtMatmulAlgoGetHeuristic(handle, descriptor.id, a.layout.id, b.layout.id, c.layout.id,
                                               d.layout.id, preference.id, 2, results, byref(found))
    check(f"{name}: one algorithm", (status, found.value, results[0].state, results[0].workspace), (SUCCESS, 1, 0, 0))
    scalars = [scalar(scale, alpha), scalar(scale, beta)]
    if device_scalars:
        check("pointer mode", descriptor.set(POINTER_MODE, c_int32(1)), SUCCESS)
        kept = cp.asarray(np.array([alpha, beta], TYPES[scale]))
        scalars = [c_void_p(kept.data.ptr), c_void_p(kept.data.ptr + kept.itemsize)]
    stream = cp.cuda.Stream(non_blocking=True)
    cp.cuda.Device().synchronize()
    status = lt.cublasLtMatmul(handle, descriptor.id, scalars[0], a.address, a.layout.id, b.address, b.layout.id,
                               scalars[1], c.address, c.layout.id, d.address, d.layout.id, byref(results[0]), None,
                               c_size_t(0), c_void_p(stream.ptr))
    check(f"{name} answers", status, SUCCESS)
    stream.synchronize()

    turned = [matrix.numbers() if operation == PLAIN else matrix.numbers().transpose(0, 2, 1)
              for matrix, operation in zip((a, b), operations)]
    turned = [matrix.conj() if operation == ADJOINT else matrix for matrix, operation in zip(turned, operations)]
    want = alpha * (turned[0] @ turned[1]) + beta * old
    if epilogue & BIAS:
        want = want + numbers(kinds[1], cp.asnumpy(bias))[:, :, None]
    if epilogue & RELU:
        want = np.maximum(want, 0)
    if epilogue & GELU:
        want = gelu(want)
    tolerance = {R_32F: 1e-5, R_64F: 1e-13, R_16F: 2e-3, R_16BF: 1e-2, C_32F: 1e-5, C_64F: 1e-13, R_32I: 0}[kinds[1]]
    if tolerance:
        check(name, d.numbers(), want, rtol=tolerance, atol=tolerance * math.sqrt(k) * 4)
    else:
        check(name, d.numbers(), want)
    # What lies between columns and between matrices stays.
    inside = np.zeros(d.host.shape, bool)
    _, rows, columns = d.shape
    outer, inner = (columns, rows) if d.order == COLUMNS else (rows, columns)
    inside[:, :outer, :inner] = True
    check(f"{name}: the rest stays", cp.asnumpy(d.device)[~inside], cp.asnumpy(untouched)[~inside])


KINDS = {
    "float": ((R_32F, R_32F), COMPUTE_32F, R_32F),
    "float by tf32": ((R_32F, R_32F), COMPUTE_32F_TF32, R_32F),
    "double": ((R_64F, R_64F), COMPUTE_64F, R_64F),
    "half": ((R_16F, R_16F), COMPUTE_32F, R_32F),
    "half by halves": ((R_16F, R_16F), COMPUTE_16F, R_16F),
    "half to float": ((R_16F, R_32F), COMPUTE_32F, R_32F),
    "bfloat16": ((R_16BF, R_16BF), COMPUTE_32F, R_32F),
    "bfloat16 to float": ((R_16BF, R_32F), COMPUTE_32F, R_32F),
    "int8": ((R_8I, R_32I), COMPUTE_32I, R_32I),
    "complex": ((C_32F, C_32F), COMPUTE_32F, C_32F),
    "double complex": ((C_64F, C_64F), COMPUTE_64F, C_64F),
}


def types():
    for name, types in KINDS.items():
        alpha, beta = (2, 3) if types[2] == R_32I else (0.5, -0.25)
        for sizes in ((5, 7, 3), (64, 48, 70), (1, 9, 17)):
            product(f"{name} {sizes}", *types, sizes)
            product(f"{name} {sizes}, C apart", *types, sizes, alpha=alpha, beta=beta, apart=True)
            product(f"{name} {sizes}, in place", *types, sizes, alpha=alpha, beta=beta)


def operations_and_orders():
    for kind in ("double", "complex"):
        for a in (PLAIN, TRANSPOSE, ADJOINT):
            for b in (PLAIN, TRANSPOSE, ADJOINT):
                for orders in ((0, 0, 0), (1, 0, 0), (0, 1, 1), (1, 1, 1), (1, 1, 0), (0, 0, 1)):
                    product(f"{kind} {a} {b} {orders}", *KINDS[kind], (6, 5, 4), (a, b), orders, 2, 2, -1)


def batches_and_scalars():
    for kind in ("float", "half", "double"):
        product(f"{kind}, batch", *KINDS[kind], (33, 20, 40), (TRANSPOSE, PLAIN), batch=5, alpha=2, beta=1, apart=True)
        product(f"{kind}, scalars on the device", *KINDS[kind], (9, 8, 7), alpha=2, beta=0.5, device_scalars=True)


def epilogues():
    for kind in ("float", "half", "bfloat16", "half to float", "double"):
        for epilogue in (RELU, BIAS, RELU | BIAS, GELU, GELU | BIAS):
            if kind == "double" and epilogue & GELU:
                continue
            for orders in ((0, 0, 0), (1, 1, 1)):
                for batch in (1, 3):
                    product(f"{kind}, epilogue {epilogue}, orders {orders}, batch {batch}", *KINDS[kind], (20, 30, 25),
                            orders=orders, batch=batch, alpha=0.5, beta=0.5, epilogue=epilogue, apart=batch == 3)


def answers():
    matrices = [Matrix(R_32F, 4, 4) for _ in range(4)]
    descriptor = Descriptor("MatmulDesc", COMPUTE_32F, R_32F)
    one = scalar(R_32F, 1)

    def call(descriptor=descriptor, matrices=matrices, handle=handle):
        a, b, c, d = matrices
        return lt.cublasLtMatmul(handle, descriptor.id, one, a.address, a.layout.id, b.address, b.layout.id, one,
                                 c.address, c.layout.id, d.address, d.layout.id, None, None, c_size_t(0), None)

    check("a product", call(), SUCCESS)
    check("no handle", call(handle=None), NOT_INITIALIZED)
    other = Matrix(R_32F, 5, 4)
    check("sizes that do not fit", call(matrices=[other, *matrices[1:]]), INVALID_VALUE)
    other = Matrix(R_32F, 4, 4, 2)
    check("batches that do not fit", call(matrices=[other, *matrices[1:]]), INVALID_VALUE)
    other = Matrix(R_64F, 4, 4)
    check("types that do not fit", call(matrices=[other, *matrices[1:]]), NOT_SUPPORTED)
    for attribute, value in ((EPILOGUE, c_uint32(RELU_AUX)), (A_SCALE, c_uint64(4096)), (POINTER_MODE, c_int32(2))):
        special = Descriptor("MatmulDesc", COMPUTE_32F, R_32F)
        check("set", special.set(attribute, value), SUCCESS)
        check(f"attribute {attribute} is not built", call(special), NOT_SUPPORTED)
    special = Descriptor("MatmulDesc", COMPUTE_32F, R_32F)
    special.set(EPILOGUE, c_uint32(BIAS))
    check("no bias", call(special), INVALID_VALUE)
    check("an attribute of another size", special.set(EPILOGUE, c_uint64(BIAS)), INVALID_VALUE)
    check("an unknown attribute", special.set(31, c_int32(0)), NOT_SUPPORTED)
    check("an attribute", special.get(EPILOGUE, c_uint32()), BIAS)
    check("the default type of a bias", special.get(BIAS_TYPE, c_int32()), -1)
    # Descriptors in memory of the program's own, as the header's inline functions have them.
    own = (c_uint64 * 8)()
    status = lt.cublasLtMatrixLayoutInit_internal(own, c_size_t(64), R_32F, c_uint64(4), c_uint64(4), c_int64(7))
    check("a layout in place", status, SUCCESS)
    status = lt.cublasLtMatrixLayoutInit_internal(own, c_size_t(8), R_32F, c_uint64(4), c_uint64(4), c_int64(7))
    check("too small a place", status, INVALID_VALUE)
    own = (c_uint64 * 23)()
    status = lt.cublasLtMatmulDescInit_internal(own, c_size_t(23 * 8), COMPUTE_32F, R_32F)
    check("a product in place of an earlier header's size", status, SUCCESS)
    status = lt.cublasLtMatmulPreferenceInit_internal(own, c_size_t(64))
    check("a preference in place of an earlier header's size", status, SUCCESS)
    check("transforms", lt.cublasLtMatrixTransform(*[None] * 10), NOT_SUPPORTED)


check("create", lt.cublasLtCreate(byref(handle)), SUCCESS)
for part in (answers, types, operations_and_orders, batches_and_scalars, epilogues):
    section(part.__name__, part)
check("destroy", lt.cublasLtDestroy(handle), SUCCESS)
finish()

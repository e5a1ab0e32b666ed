"""CuPy's fft module against NumPy's: all functions, lengths, shapes, axes; and what CuPy does not
reach of cuFFT's interface, through ctypes."""

import ctypes
import threading
from ctypes import byref, c_int, c_longlong, c_size_t, c_void_p

import cupy as cp
import numpy as np
from check import check, finish, rng, section

# Deviations of a transform grow with the logarithm of its length.
TOLERANCE = {np.dtype(np.complex64): 2e-6, np.dtype(np.complex128): 1e-14,
             np.dtype(np.float32): 2e-6, np.dtype(np.float64): 1e-14}
DTYPES = (np.complex64, np.complex128)


def real(shape, dtype=np.float64):
    return rng.standard_normal(shape).astype(dtype)


def mixed(shape, dtype=np.complex128):
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)


def close(name, got, want):
    """As close as the precision allows, in the norm of the whole result."""
    got = cp.asnumpy(got)
    if got.shape != want.shape:
        check(f"{name}: shape", got.shape, want.shape)
        return
    limit = TOLERANCE[got.dtype] * (1 + np.log2(max(want.size, 2)))
    error = np.linalg.norm((got - want).ravel()) / max(np.linalg.norm(want.ravel()), 1e-30)
    check(f"{name}: error {error:.1e}, limit {limit:.1e}", bool(error <= limit), True)


def lengths():
    for dtype in DTYPES:
        for n in range(1, 301):
            a = mixed((2, n), dtype)
            g = cp.asarray(a)
            close(f"fft {n} {dtype.__name__}", cp.fft.fft(g), np.fft.fft(a.astype(np.complex128)))
            close(f"ifft {n} {dtype.__name__}", cp.fft.ifft(g), np.fft.ifft(a.astype(np.complex128)))


def real_lengths():
    for dtype in (np.float32, np.float64):
        for n in (1, 2, 3, 4, 5, 8, 12, 17, 30, 97, 100, 128, 243, 251, 255, 1000, 1009, 4096):
            a = real((3, n), dtype)
            wide = a.astype(np.float64)
            close(f"rfft {n}", cp.fft.rfft(cp.asarray(a)), np.fft.rfft(wide))
            close(f"ihfft {n}", cp.fft.ihfft(cp.asarray(a)), np.fft.ihfft(wide))
            # Imaginary parts of what has none in the transform of real numbers do not count.
            half = mixed((3, n // 2 + 1), np.complex64 if dtype is np.float32 else np.complex128)
            close(f"irfft {n}", cp.fft.irfft(cp.asarray(half), n), np.fft.irfft(half.astype(np.complex128), n))
            close(f"hfft {n}", cp.fft.hfft(cp.asarray(half), n), np.fft.hfft(half.astype(np.complex128), n))


def long_lines():
    for dtype in DTYPES:
        for n in (1 << 12, 1 << 16, 1 << 20, 3**10, 5**6, 7**5, 11**4, 13**4, 10**5, 9973, 65537, 2 * 49999):
            a = mixed(n, dtype)
            close(f"fft {n}", cp.fft.fft(cp.asarray(a)), np.fft.fft(a.astype(np.complex128)))


def axes_and_batches():
    a = mixed((5, 6, 7, 4))
    g = cp.asarray(a)
    for axis in range(4):
        close(f"fft along {axis}", cp.fft.fft(g, axis=axis), np.fft.fft(a, axis=axis))
        close(f"ifft along {axis}", cp.fft.ifft(g, 9, axis=axis), np.fft.ifft(a, 9, axis=axis))
        close(f"rfft along {axis}", cp.fft.rfft(g.real, axis=axis), np.fft.rfft(a.real, axis=axis))
        close(f"irfft along {axis}", cp.fft.irfft(g, axis=axis), np.fft.irfft(a, axis=axis))
    for axes in ((0, 1), (1, 2), (2, 3), (0, 3), (3, 1), (1,), (0, 1, 2), (1, 2, 3), (3, 0, 2), (0, 1, 2, 3), None):
        close(f"fftn along {axes}", cp.fft.fftn(g, axes=axes), np.fft.fftn(a, axes=axes))
        close(f"ifftn along {axes}", cp.fft.ifftn(g, axes=axes), np.fft.ifftn(a, axes=axes))
        close(f"rfftn along {axes}", cp.fft.rfftn(g.real, axes=axes), np.fft.rfftn(a.real, axes=axes))
        close(f"irfftn along {axes}", cp.fft.irfftn(g, axes=axes), np.fft.irfftn(a, axes=axes))
    for order in (a[::2], a[:, ::-1], a.transpose(2, 0, 3, 1), np.asfortranarray(a)):
        close("another order", cp.fft.fftn(cp.asarray(order), axes=(1, 2)), np.fft.fftn(order, axes=(1, 2)))
    close("many lines", cp.fft.fft(cp.asarray(a.reshape(-1, 4))), np.fft.fft(a.reshape(-1, 4)))


def planes_and_solids():
    for shape in ((8, 8), (16, 12), (17, 19), (1, 30), (30, 1), (64, 100), (4, 5, 6), (8, 16, 32), (7, 11, 17), (1, 1, 9)):
        for dtype in DTYPES:
            a = mixed(shape, dtype)
            wide = a.astype(np.complex128)
            close(f"fftn {shape}", cp.fft.fftn(cp.asarray(a)), np.fft.fftn(wide))
            close(f"rfftn {shape}", cp.fft.rfftn(cp.asarray(a.real)), np.fft.rfftn(wide.real))
            if shape[-1] > 1:
                close(f"irfftn {shape}", cp.fft.irfftn(cp.asarray(a)), np.fft.irfftn(wide))
    a = mixed((3, 12, 10))
    g = cp.asarray(a)
    for name in ("fft2", "ifft2", "irfft2"):
        close(name, getattr(cp.fft, name)(g), getattr(np.fft, name)(a))
    close("rfft2", cp.fft.rfft2(g.real), np.fft.rfft2(a.real))
    for norm in ("ortho", "forward", "backward"):
        close(f"norm {norm}", cp.fft.fft2(g, norm=norm), np.fft.fft2(a, norm=norm))
    close("there and back", cp.fft.irfftn(cp.fft.rfftn(g.real), a.shape), a.real)
    close("in a stream", in_a_stream(g), np.fft.fft(a))


def in_a_stream(g):
    stream = cp.cuda.Stream(non_blocking=True)
    cp.cuda.Device().synchronize()
    with stream:
        result = cp.fft.fft(g)
    stream.synchronize()
    return result


def interface():
    for name in ("libcufft.so.12", "libcufft.so.11"):
        try:
            fft = ctypes.CDLL(name)
            break
        except OSError as error:
            last = error
    else:
        raise last
    C2C, R2C, C2R = 0x29, 0x2A, 0x2C
    SUCCESS, INVALID_PLAN, ALLOC_FAILED, INVALID_TYPE, INVALID_VALUE = 0, 1, 2, 3, 4
    INVALID_SIZE, NOT_SUPPORTED = 8, 16
    plan, size, version = c_int(), c_size_t(), c_int()
    check("version", (fft.cufftGetVersion(byref(version)), version.value >= 11000), (SUCCESS, True))
    check("an unknown plan", fft.cufftExecC2C(99, None, None, -1), INVALID_PLAN)
    check("a wrong type", fft.cufftPlan1d(byref(plan), 8, 0x33, 1), INVALID_TYPE)
    check("a wrong size", fft.cufftPlan1d(byref(plan), 0, C2C, 1), INVALID_SIZE)
    check("a wrong rank", fft.cufftPlanMany(byref(plan), 4, (c_int * 4)(2, 2, 2, 2), None, 1, 0, None, 1, 0, C2C, 1),
          INVALID_VALUE)
    check("too long a dimension", fft.cufftPlan1d(byref(plan), 1 << 30, C2C, 1), INVALID_SIZE)
    check("more than the memory", fft.cufftPlan1d(byref(plan), 1 << 18, C2C, 1 << 20), ALLOC_FAILED)
    check("an estimate", (fft.cufftEstimate1d(64, C2C, 2, byref(size)), size.value >= 64 * 2 * 8), (SUCCESS, True))
    check("several GPUs", fft.cufftXtSetGPUs(0, 2, (c_int * 2)(0, 1)), NOT_SUPPORTED)

    # A real transform in its own place, whose rows are padded.
    a = real((6, 10), np.float32)
    padded = np.zeros((6, 12), np.float32)
    padded[:, :10] = a
    g = cp.asarray(padded)
    check("plan2d", fft.cufftPlan2d(byref(plan), 6, 10, R2C), SUCCESS)
    address = c_void_p(g.data.ptr)
    check("another type", fft.cufftExecC2C(plan, address, address, -1), INVALID_PLAN)
    check("execute", fft.cufftExecR2C(plan, address, address), SUCCESS)
    close("real to complex in place", g.view(np.complex64), np.fft.rfft2(a))
    check("destroy", fft.cufftDestroy(plan), SUCCESS)
    check("destroy again", fft.cufftDestroy(plan), INVALID_PLAN)
    check("plan2d", fft.cufftPlan2d(byref(plan), 6, 10, C2R), SUCCESS)
    check("execute", fft.cufftExecC2R(plan, address, address), SUCCESS)
    close("complex to real in place", g[:, :10], a * np.float64(60))
    fft.cufftDestroy(plan)

    # Every third element of rows of 20, 16 of them apart; the output is dense and transposed.
    a = mixed((3, 20), np.complex64)
    g, out = cp.asarray(a), cp.zeros((6, 3), np.complex64)
    sizes, embedding = (c_longlong * 1)(6), (c_longlong * 1)(20)
    check("create", fft.cufftCreate(byref(plan)), SUCCESS)
    check("without sizes", fft.cufftExecC2C(plan, c_void_p(g.data.ptr), c_void_p(out.data.ptr), -1), INVALID_PLAN)
    check("manual", fft.cufftSetAutoAllocation(plan, 0), SUCCESS)
    check("make", fft.cufftMakePlanMany64(plan, 1, sizes, embedding, c_longlong(3), c_longlong(20), embedding,
                                          c_longlong(3), c_longlong(1), C2C, c_longlong(3), byref(size)), SUCCESS)
    check("without a work area", fft.cufftExecC2C(plan, c_void_p(g.data.ptr), c_void_p(out.data.ptr), -1), INVALID_PLAN)
    work = cp.zeros(size.value, np.uint8)
    check("work area", fft.cufftSetWorkArea(plan, c_void_p(work.data.ptr)), SUCCESS)
    check("a wrong direction", fft.cufftExecC2C(plan, c_void_p(g.data.ptr), c_void_p(out.data.ptr), 0), INVALID_VALUE)
    check("execute", fft.cufftExecC2C(plan, c_void_p(g.data.ptr), c_void_p(out.data.ptr), 1), SUCCESS)
    close("strides", out, (np.fft.ifft(a[:, 0:18:3].astype(np.complex128)) * 6).T)
    fft.cufftDestroy(plan)

    # Types as those of elements.
    a = real((2, 9))
    g, out = cp.asarray(a), cp.zeros((2, 5), np.complex128)
    check("create", fft.cufftCreate(byref(plan)), SUCCESS)
    long = c_longlong
    sizes = (c_longlong * 1)(9)
    check("halves", fft.cufftXtMakePlanMany(plan, 1, sizes, None, long(1), long(0), 6, None, long(1), long(0), 6,
                                            long(2), byref(size), 6), NOT_SUPPORTED)
    check("make", fft.cufftXtMakePlanMany(plan, 1, sizes, None, long(1), long(0), 1, None, long(1), long(0), 5,
                                          long(2), byref(size), 5), SUCCESS)
    check("execute", fft.cufftXtExec(plan, c_void_p(g.data.ptr), c_void_p(out.data.ptr), -1), SUCCESS)
    close("double to complex", out, np.fft.rfft(a))
    fft.cufftDestroy(plan)


def captured_plans():
    """Plans that are made while their stream is captured; the graph runs after their creation."""
    from cupy.cuda import cufft

    for n in (60, 1009):
        a = [mixed(n, np.complex64) for _ in range(2)]
        g, out = cp.asarray(a[0]), cp.zeros(n, np.complex64)
        stream = cp.cuda.Stream(non_blocking=True)
        cp.cuda.Device().synchronize()
        with stream:
            stream.begin_capture()
            plan = cufft.Plan1d(n, cufft.CUFFT_C2C, 1)
            plan.fft(g, out, cufft.CUFFT_FORWARD)
            graph = stream.end_capture()
        for values in a:
            g.set(values)
            cp.cuda.Device().synchronize()
            graph.launch(stream)
            stream.synchronize()
            close(f"captured {n}", out, np.fft.fft(values.astype(np.complex128)))


def threads_without_a_context():
    from cupy.cuda import cufft

    a = mixed(30, np.complex64)
    g, out = cp.asarray(a), cp.zeros(30, np.complex64)
    plan = cufft.Plan1d(30, cufft.CUFFT_C2C, 1)
    cp.cuda.Device().synchronize()
    failures = []

    def execute():
        try:
            cufft.execC2C(plan.handle, g.data.ptr, out.data.ptr, cufft.CUFFT_FORWARD)
        except cufft.CuFFTError as error:
            failures.append(str(error))

    thread = threading.Thread(target=execute)
    thread.start()
    thread.join()
    check("failures in a thread without a context", failures, [])
    cp.cuda.Device().synchronize()
    close("result", out, np.fft.fft(a.astype(np.complex128)))


for part in (interface, captured_plans, threads_without_a_context, lengths, real_lengths, long_lines, axes_and_batches, planes_and_solids):
    section(part.__name__, part)
finish()

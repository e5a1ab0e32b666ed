"""CuPy's array functions against NumPy: integers exact, floats within bounds."""

import cupy as cp
import numpy as np
from check import check, finish, rng, section

SIZES = [1, 31, 32, 33, 1000, 4096, 100_003]
INTS = [np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64, np.uint64]
FLOATS = [np.float16, np.float32, np.float64]
EPS = {np.float16: 2e-3, np.float32: 2e-6, np.float64: 1e-14}


def random(dtype, shape):
    if np.issubdtype(dtype, np.integer):
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, size=shape, dtype=dtype, endpoint=True)
    return rng.uniform(-2, 2, size=shape).astype(dtype)


def arithmetic():
    for size in SIZES:
        for dtype in INTS + FLOATS:
            a, b = random(dtype, size), random(dtype, size)
            da, db = cp.asarray(a), cp.asarray(b)
            tolerance = {} if dtype in INTS else {"rtol": EPS[dtype], "atol": EPS[dtype]}
            with np.errstate(all="ignore"):
                check(f"add {dtype.__name__} {size}", (da + db).get(), a + b, **tolerance)
                check(f"mul {dtype.__name__} {size}", (da * db).get(), a * b, **tolerance)
                check(f"sub {dtype.__name__} {size}", (da - db).get(), a - b, **tolerance)
                check(f"less {dtype.__name__} {size}", (da < db).get(), a < b)
                check(f"max {dtype.__name__} {size}", cp.maximum(da, db).get(), np.maximum(a, b))


def integer_functions():
    for dtype in INTS:
        a, b = random(dtype, 5000), random(dtype, 5000)
        b[b == 0] = 3
        b[b == np.array(-1).astype(dtype)] = 5
        da, db = cp.asarray(a), cp.asarray(b)
        check(f"floor_divide {dtype.__name__}", (da // db).get(), a // b)
        check(f"remainder {dtype.__name__}", (da % db).get(), a % b)
        check(f"xor {dtype.__name__}", (da ^ db).get(), a ^ b)
        check(f"and-not {dtype.__name__}", (da & ~db).get(), a & ~b)
        shift = rng.integers(0, np.iinfo(dtype).bits, size=5000).astype(dtype)
        check(f"left_shift {dtype.__name__}", (da << cp.asarray(shift)).get(), a << shift)
        check(f"right_shift {dtype.__name__}", (da >> cp.asarray(shift)).get(), a >> shift)


def float_functions():
    for dtype in FLOATS[1:]:
        a = rng.uniform(0.01, 4, size=10_007).astype(dtype)
        da = cp.asarray(a)
        for name in ["sqrt", "exp", "log", "sin", "cos", "tanh", "arctan", "log1p", "expm1", "cbrt", "exp2", "log2"]:
            got, want = getattr(cp, name)(da).get(), getattr(np, name)(a)
            check(f"{name} {dtype.__name__}", got, want, rtol=4 * EPS[dtype], atol=4 * EPS[dtype])
        check(f"power {dtype.__name__}", (da ** cp.asarray(dtype(2.5))).get(), a ** dtype(2.5), rtol=8 * EPS[dtype])
        check(f"divide {dtype.__name__}", (da / da[::-1]).get(), a / a[::-1], rtol=EPS[dtype])
        check(f"floor {dtype.__name__}", cp.floor(da).get(), np.floor(a))
        check(f"rint {dtype.__name__}", cp.rint(da).get(), np.rint(a))
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 1.0], np.float32)
    check("isnan", cp.isnan(cp.asarray(special)).get(), np.isnan(special))
    check("isinf", cp.isinf(cp.asarray(special)).get(), np.isinf(special))
    check("signbit", cp.signbit(cp.asarray(special)).get(), np.signbit(special))


def conversions():
    wide = rng.uniform(-100, 100, size=3001)
    for source in FLOATS:
        a = wide.astype(source)
        for target in [np.int8, np.int32, np.int64, np.float16, np.float32, np.float64, np.bool_]:
            check(f"{source.__name__} to {np.dtype(target)}", cp.asarray(a).astype(target).get(), a.astype(target))
    ints = rng.integers(-(2**31), 2**31, size=3001)
    for target in INTS + FLOATS[1:]:
        check(f"int64 to {np.dtype(target)}", cp.asarray(ints).astype(target).get(), ints.astype(target))
    a, b = random(np.float32, 500), random(np.float32, 500)
    z = (a + 1j * b).astype(np.complex64)
    check("complex multiply", (cp.asarray(z) * cp.asarray(z)).get(), z * z, rtol=1e-5, atol=1e-5)
    check("complex abs", cp.abs(cp.asarray(z)).get(), np.abs(z), rtol=1e-5)


def broadcasting():
    a, b = random(np.float32, (37, 1, 53)), random(np.float32, (1, 29, 53))
    check("broadcast add", (cp.asarray(a) + cp.asarray(b)).get(), a + b, rtol=1e-6, atol=1e-6)
    c = random(np.int32, (64, 65))
    dc = cp.asarray(c)
    check("transpose add", (dc.T + dc.T).get(), c.T + c.T)
    check("strided", (dc[::3, 1::2] - dc[::3, :-1:2]).get(), c[::3, 1::2] - c[::3, :-1:2])
    check("where", cp.where(dc > 0, dc, -1).get(), np.where(c > 0, c, np.int32(-1)))
    check("concatenate", cp.concatenate([dc, dc[:3]]).get(), np.concatenate([c, c[:3]]))
    check("tile", cp.tile(dc, (2, 3)).get(), np.tile(c, (2, 3)))
    check("clip", cp.clip(dc, -1000, 1000).get(), np.clip(c, -1000, 1000))


def reductions():
    for size in SIZES:
        for dtype in [np.int32, np.int64, np.float32, np.float64]:
            a = random(dtype, size) if dtype in FLOATS else rng.integers(-1000, 1000, size=size).astype(dtype)
            d = cp.asarray(a)
            tolerance = {} if dtype in INTS else {"rtol": 50 * EPS[dtype], "atol": 50 * EPS[dtype] * size**0.5}
            check(f"sum {dtype.__name__} {size}", d.sum().get(), a.sum(), **tolerance)
            check(f"max {dtype.__name__} {size}", d.max().get(), a.max())
            check(f"argmin {dtype.__name__} {size}", d.argmin().get(), a.argmin())
            check(f"mean {dtype.__name__} {size}", d.mean().get(), a.mean(), rtol=1e-4, atol=1e-4)
        flags = rng.random(size) < 0.5
        check(f"any {size}", cp.asarray(flags).any().get(), flags.any())
        check(f"count_nonzero {size}", cp.count_nonzero(cp.asarray(flags)).get(), np.int64(np.count_nonzero(flags)))
    m = rng.uniform(-1, 1, size=(123, 77, 5)).astype(np.float32)
    for axis in [0, 1, 2, (0, 2)]:
        check(f"sum axis {axis}", cp.asarray(m).sum(axis=axis).get(), m.sum(axis=axis), rtol=1e-4, atol=1e-4)
        check(f"min axis {axis}", cp.asarray(m).min(axis=axis).get(), m.min(axis=axis))
    check("var", cp.asarray(m).var().get(), m.var(), rtol=1e-4)
    check("bincount", cp.bincount(cp.asarray([3, 1, 1, 7, 0])).get(), np.bincount([3, 1, 1, 7, 0]))
    a = rng.integers(0, 100, size=10_000)
    check("histogram", cp.histogram(cp.asarray(a), bins=10)[0].get(), np.histogram(a, bins=10)[0])


def scans():
    for size in SIZES:
        a = rng.integers(-1000, 1000, size=size)
        check(f"cumsum int64 {size}", cp.cumsum(cp.asarray(a)).get(), np.cumsum(a))
        f = rng.uniform(0, 1, size=size)
        check(f"cumsum float64 {size}", cp.cumsum(cp.asarray(f)).get(), np.cumsum(f), rtol=1e-10)
    m = rng.integers(-9, 9, size=(40, 50))
    check("cumsum axis", cp.cumsum(cp.asarray(m), axis=1).get(), np.cumsum(m, axis=1))
    p = rng.uniform(0.99, 1.01, size=300)
    check("cumprod", cp.cumprod(cp.asarray(p)).get(), np.cumprod(p), rtol=1e-10)


def indexing():
    a = random(np.float64, (200, 30))
    d = cp.asarray(a)
    rows = rng.integers(0, 200, size=77)
    mask = rng.random(200) < 0.3
    check("take", d[cp.asarray(rows)].get(), a[rows])
    check("mask", d[cp.asarray(mask)].get(), a[mask])
    check("nonzero", cp.nonzero(cp.asarray(mask))[0].get(), np.nonzero(mask)[0])
    check("slice", d[5:150:7, ::-1].get(), a[5:150:7, ::-1])
    b = a.copy()
    b[rows] = 1.5
    d[cp.asarray(rows)] = 1.5
    check("put", d.get(), b)
    counts, index = np.zeros(10, np.int32), rng.integers(0, 10, size=5000)
    np.add.at(counts, index, 1)
    dcounts = cp.zeros(10, cp.int32)
    cp.add.at(dcounts, cp.asarray(index), 1)
    check("add.at (atomics)", dcounts.get(), counts)
    check("diag", cp.diag(d[:30]).get(), np.diag(b[:30]))
    check("searchsorted", cp.searchsorted(cp.arange(0, 100, 3), cp.asarray(rows)).get(),
          np.searchsorted(np.arange(0, 100, 3), rows))


def sorting():
    for size in SIZES:
        for dtype in [np.int32, np.int64, np.float32, np.float64, np.uint8]:
            a = random(dtype, size)
            check(f"sort {dtype.__name__} {size}", cp.sort(cp.asarray(a)).get(), np.sort(a))
        keys = rng.permutation(size).astype(np.int32)
        check(f"argsort {size}", cp.argsort(cp.asarray(keys)).get(), np.argsort(keys))
    m = random(np.int32, (50, 60))
    check("sort axis 0", cp.sort(cp.asarray(m), axis=0).get(), np.sort(m, axis=0))
    check("sort axis 1", cp.sort(cp.asarray(m), axis=1).get(), np.sort(m, axis=1))
    a = rng.integers(0, 50, size=3000)
    check("unique", cp.unique(cp.asarray(a)).get(), np.unique(a))
    keys = np.stack([rng.integers(0, 5, size=400), rng.integers(0, 5, size=400)])
    check("lexsort", cp.lexsort(cp.asarray(keys)).get(), np.lexsort(keys))
    check("partition", cp.sort(cp.partition(cp.asarray(a), 100)[:100]).get(), np.sort(a)[:100])


for name, part in list(globals().items()):
    if callable(part) and getattr(part, "__module__", None) == "__main__" and name != "random":
        section(name, part)
finish()

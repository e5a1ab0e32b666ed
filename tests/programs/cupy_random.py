"""CuPy's random module by its defaults: shapes, ranges, and statistics with a fixed seed."""

import math

import cupy as cp
import numpy as np
from check import check, finish, section

COUNT = 1 << 16


def is_near(name, sample, mean, variance):
    error = (float(cp.asnumpy(sample).astype(np.float64).mean()) - mean) / math.sqrt(variance / sample.size)
    check(f"{name}: mean off by {error:.2f} deviations", bool(abs(error) < 5), True)


def seeds():
    cp.random.seed(1)
    first = cp.random.rand(1000)
    check("another part of the sequence", bool((cp.random.rand(1000) == first).any()), False)
    cp.random.seed(1)
    check("the same seed", cp.asnumpy(cp.random.rand(1000)), cp.asnumpy(first))


def uniform_and_normal():
    cp.random.seed(2)
    for dtype in (np.float32, np.float64):
        u = cp.random.random_sample((COUNT // 64, 64)) if dtype is np.float64 else cp.random.rand(COUNT, dtype=dtype)
        check("type", u.dtype, np.dtype(dtype))
        check("range", bool((u >= 0).all() and (u < 1).all()), True)
        is_near("rand", u, 0.5, 1 / 12)
        n = cp.random.randn(COUNT + 1, dtype=dtype)
        check("an odd shape", n.shape, (COUNT + 1,))
        is_near("randn", n, 0, 1)
        is_near("randn, squares", n * n, 1, 2)
        log = cp.log(cp.random.lognormal(1, 0.5, COUNT, dtype=dtype))
        is_near("lognormal", log, 1, 0.25)
    is_near("exponential", cp.random.exponential(2.0, COUNT), 2, 4)
    is_near("poisson", cp.random.poisson(4.0, COUNT), 4, 4)
    is_near("gamma", cp.random.gamma(3.0, 1.0, COUNT), 3, 3)
    is_near("binomial", cp.random.binomial(20, 0.25, COUNT), 5, 3.75)


def integers():
    cp.random.seed(3)
    for low, high, dtype in ((0, 10, np.int32), (-5, 1 << 40, np.int64), (7, 8, np.int64)):
        values = cp.random.randint(low, high, COUNT, dtype=dtype)
        check("integers in their range", bool((values >= low).all() and (values < high).all()), True)
        if high - low > 1:
            is_near("integers", values, (low + high - 1) / 2, ((high - low) ** 2 - 1) / 12)
    counts = cp.asnumpy(cp.bincount(cp.random.randint(0, 10, COUNT)))
    statistic = float(np.sum((counts - COUNT / 10) ** 2) / (COUNT / 10))
    check(f"chi-squared {statistic:.1f} of 9 degrees", bool(statistic < 50), True)


def permutations_and_choices():
    cp.random.seed(4)
    order = cp.random.permutation(1000)
    check("a permutation", cp.asnumpy(cp.sort(order)), np.arange(1000))
    check("is shuffled", bool((order == cp.arange(1000)).sum() < 50), True)
    array = cp.arange(1000)
    cp.random.shuffle(array)
    check("shuffle", cp.asnumpy(cp.sort(array)), np.arange(1000))
    drawn = cp.asnumpy(cp.random.choice(1000, 500, replace=False))
    check("a choice without repetition", len(set(drawn.tolist())), 500)
    drawn = cp.random.choice(cp.array([1.0, 2.0, 4.0]), COUNT, p=cp.array([0.5, 0.25, 0.25]))
    is_near("a choice by probabilities", drawn, 2, 0.5 + 1 + 4 - 4)


def methods():
    from cupy_backends.cuda.libs import curand

    for method in (curand.CURAND_RNG_PSEUDO_XORWOW, curand.CURAND_RNG_PSEUDO_MRG32K3A,
                   curand.CURAND_RNG_PSEUDO_MT19937, curand.CURAND_RNG_PSEUDO_PHILOX4_32_10):
        state = cp.random.RandomState(5, method=method)
        is_near(f"method {method}", state.random_sample(COUNT), 0.5, 1 / 12)
        is_near(f"method {method}, normal", state.standard_normal(COUNT), 0, 1)
    rng = cp.random.default_rng(6)
    is_near("default_rng", rng.random(COUNT), 0.5, 1 / 12)
    is_near("default_rng, normal", rng.standard_normal(COUNT), 0, 1)
    is_near("default_rng, integers", rng.integers(0, 100, COUNT), 49.5, 9999 / 12)


for part in (seeds, uniform_and_normal, integers, permutations_and_choices, methods):
    section(part.__name__, part)
finish()

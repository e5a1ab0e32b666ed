"""cuRAND's host interface through ctypes: sequences against published algorithms, distributions by
statistics with fixed seeds. CuPy holds the memory."""

import ctypes
import math
import threading
from ctypes import byref, c_double, c_float, c_int, c_size_t, c_uint, c_ulonglong, c_void_p

import cupy as cp
import numpy as np
from check import check, finish, section

rand = ctypes.CDLL("libcurand.so.10")

SUCCESS, NOT_INITIALIZED, TYPE_ERROR, OUT_OF_RANGE, LENGTH_NOT_MULTIPLE = 0, 101, 103, 104, 105
XORWOW, MRG32K3A, MTGP32, MT19937, PHILOX = 101, 121, 141, 142, 161
SOBOL32, SCRAMBLED_SOBOL32 = 201, 202
PSEUDO = {"xorwow": XORWOW, "mrg32k3a": MRG32K3A, "mt19937": MT19937, "philox": PHILOX}
STREAMS = 4096


class Generator:
    def __init__(self, kind, seed=None, offset=None, dimensions=None):
        self.id = c_void_p()
        check("create", rand.curandCreateGenerator(byref(self.id), kind), SUCCESS)
        if seed is not None:
            self.ok("curandSetPseudoRandomGeneratorSeed", c_ulonglong(seed))
        if offset is not None:
            self.ok("curandSetGeneratorOffset", c_ulonglong(offset))
        if dimensions is not None:
            self.ok("curandSetQuasiRandomGeneratorDimensions", c_uint(dimensions))

    def call(self, name, *arguments):
        return getattr(rand, name)(self.id, *arguments)

    def ok(self, name, *arguments):
        check(f"{name} answers", self.call(name, *arguments), SUCCESS)

    def take(self, name, count, dtype, *arguments):
        out = cp.zeros(count, dtype)
        self.ok(name, c_void_p(out.data.ptr), c_size_t(count), *arguments)
        return cp.asnumpy(out)

    def words(self, count):
        return self.take("curandGenerate", count, np.uint32)

    def __del__(self):
        if self.id:
            rand.curandDestroyGenerator(self.id)


FLOAT = [c_float(0), c_float(1)]
DOUBLE = [c_double(0), c_double(1)]
DISTRIBUTIONS = {
    "curandGenerate": (np.uint32, []),
    "curandGenerateUniform": (np.float32, []),
    "curandGenerateUniformDouble": (np.float64, []),
    "curandGenerateNormal": (np.float32, FLOAT),
    "curandGenerateNormalDouble": (np.float64, DOUBLE),
    "curandGenerateLogNormal": (np.float32, FLOAT),
    "curandGenerateLogNormalDouble": (np.float64, DOUBLE),
    "curandGeneratePoisson": (np.uint32, [c_double(3.5)]),
}


def philox(counter, key):
    """Philox4x32-10 of Salmon and others, 2011."""
    for _ in range(10):
        a, b = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [b >> 32 ^ counter[1] ^ key[0], b & 0xFFFFFFFF, a >> 32 ^ counter[3] ^ key[1], a & 0xFFFFFFFF]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return counter


def published_philox():
    # A known answer of the algorithm's authors (their library's kat_vectors).
    check("the reference", [f"{word:08x}" for word in philox([0] * 4, [0] * 2)],
          ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"])
    for seed in (0, 1, 0x0123456789ABCDEF):
        key = [seed & 0xFFFFFFFF, seed >> 32]
        want = [word for block in range(8) for word in philox([block, 0, 0, 0], key)]
        check("philox", Generator(PHILOX, seed).words(32), np.array(want, np.uint32))
    far = (5 << 34) + 6
    want = [word for block in range(2) for word in philox([1 + block, 5, 0, 0], [9, 0])][2:7]
    check("philox far on", Generator(PHILOX, 9, far).words(5), np.array(want, np.uint32))


def published_mt19937():
    for seed in (0, 1, 5489, 2**32 - 1):
        bits = np.random.MT19937()
        bits._legacy_seeding(seed)
        check("mt19937", Generator(MT19937, seed).words(5000), bits.random_raw(5000).astype(np.uint32))
    # A seed of two words is the key of init_by_array.
    bits = np.random.MT19937()
    bits._legacy_seeding([0x89ABCDEF, 0x01234567])
    generator = Generator(MT19937, 0x0123456789ABCDEF)
    got = np.concatenate([generator.words(count) for count in (1, 622, 1, 1, 623, 700)])
    check("mt19937 in parts", got, bits.random_raw(1948).astype(np.uint32))


def split_mix(seed, count):
    words = []
    for _ in range(count):
        seed = (seed + 0x9E3779B97F4A7C15) & (2**64 - 1)
        z = (seed ^ seed >> 30) * 0xBF58476D1CE4E5B9 & (2**64 - 1)
        z = (z ^ z >> 27) * 0x94D049BB133111EB & (2**64 - 1)
        words.append(z ^ z >> 31)
    return words


def published_xorwow():
    """The first of the streams that take turns is Marsaglia's sequence from the state of the seed."""
    x, y, z, u, v, counter = [word >> 32 for word in split_mix(42, 6)]
    want = []
    for _ in range(20):
        t = x ^ x >> 2
        t ^= t << 1
        x, y, z, u, v = y, z, u, v, (v ^ v << 4 ^ t) & 0xFFFFFFFF
        counter = (counter + 362437) & 0xFFFFFFFF
        want.append((v + counter) & 0xFFFFFFFF)
    check("xorwow", Generator(XORWOW, 42).words(20 * STREAMS)[::STREAMS], np.array(want, np.uint32))


def published_mrg32k3a():
    m1, m2 = 4294967087, 4294944443
    seeds = split_mix(42, 3)
    a = [1 + word % (m1 - 1) for word in seeds]
    seeds = split_mix(42, 6)[3:]
    b = [1 + word % (m2 - 1) for word in seeds]
    del seeds
    words, uniform = [], []
    for _ in range(20):
        a = a[1:] + [(1403580 * a[1] - 810728 * a[0]) % m1]
        b = b[1:] + [(527612 * b[2] - 1370589 * b[0]) % m2]
        z = (a[2] - b[2]) % m1 or m1
        words.append(z)
        uniform.append(z / (m1 + 1))
    check_streams("mrg32k3a", MRG32K3A, words, uniform)


def check_streams(name, kind, words, uniform):
    check(name, Generator(kind, 42).words(20 * STREAMS)[::STREAMS], np.array(words, np.uint32))
    got = Generator(kind, 42).take("curandGenerateUniformDouble", 20 * STREAMS, np.float64)
    check(f"{name} as doubles", got[::STREAMS], np.array(uniform), rtol=1e-15)


def published_sobol():
    # The first points of the Sobol' sequence in Gray-code order with the numbers of Joe and Kuo.
    want = np.array([[0, 0, 0], [0.5, 0.5, 0.5], [0.75, 0.25, 0.25], [0.25, 0.75, 0.75],
                     [0.375, 0.375, 0.625], [0.875, 0.875, 0.125], [0.625, 0.125, 0.875], [0.125, 0.625, 0.375]])
    got = Generator(SOBOL32, dimensions=3).words(24).reshape(3, 8).T / 2**32
    check("sobol in three dimensions", got, want)
    try:
        from scipy.stats import qmc
    except ImportError:
        pass
    else:
        points = qmc.Sobol(21, scramble=False, bits=32).random(1024)
        got = Generator(SOBOL32, dimensions=21).words(21 * 1024).reshape(21, 1024).T / 2**32
        check("sobol in 21 dimensions", got, points)
    whole = Generator(SOBOL32, dimensions=3)
    whole = whole.take("curandGenerateUniformDouble", 3 * 600, np.float64).reshape(3, 600)
    later = Generator(SOBOL32, offset=500, dimensions=3)
    check("sobol at an offset", later.take("curandGenerateUniformDouble", 300, np.float64).reshape(3, 100),
          whole[:, 500:])
    # Quasirandom normal numbers are quantiles, so they keep the order of the uniform ones.
    from statistics import NormalDist
    uniform = Generator(SOBOL32).take("curandGenerateUniformDouble", 2000, np.float64)
    normal = Generator(SOBOL32).take("curandGenerateNormalDouble", 2000, np.float64, *DOUBLE)
    check("quantiles", normal, np.array([NormalDist().inv_cdf(p) for p in uniform]), rtol=1e-13)
    check("not whole points", Generator(SOBOL32, dimensions=3).call("curandGenerate", None, c_size_t(4)),
          LENGTH_NOT_MULTIPLE)


def parts_agree():
    for kind_name, kind in PSEUDO.items():
        for name, (dtype, arguments) in DISTRIBUTIONS.items():
            count = 3 * STREAMS + 50
            whole = Generator(kind, 5).take(name, count, dtype, *arguments)
            parts = Generator(kind, 5)
            sizes = [2, 6, 4000, 100, 1000, 5000]
            sizes.append(count - sum(sizes))
            got = np.concatenate([parts.take(name, size, dtype, *arguments) for size in sizes])
            check(f"{kind_name} {name} in parts", got, whole)
            again = Generator(kind, 6).take(name, count, dtype, *arguments)
            check(f"{kind_name} {name} by seed", bool(np.mean(again == whole) < 0.5), True)
            if kind == MT19937:
                continue
            words = 2 if dtype == np.float64 and kind in (XORWOW, PHILOX) else 1
            later = Generator(kind, 5, offset=5002 * words)
            check(f"{kind_name} {name} at an offset", later.take(name, 400, dtype, *arguments), whole[5002:5402])


def z_test(name, sample, mean, variance):
    """The mean of so many independent numbers is normal; five deviations are one in two million."""
    error = (np.mean(sample) - mean) / math.sqrt(variance / sample.size)
    check(f"{name}: mean off by {error:.2f} deviations", bool(abs(error) < 5), True)


def chi_squared(name, counts, expected):
    degrees = counts.size - 1
    statistic = float(np.sum((counts - expected) ** 2 / expected))
    # By Wilson and Hilferty, as a normal number.
    z = ((statistic / degrees) ** (1 / 3) - (1 - 2 / (9 * degrees))) / math.sqrt(2 / (9 * degrees))
    check(f"{name}: chi-squared off by {z:.2f} deviations", bool(abs(z) < 5), True)


def statistics_of_distributions():
    count = 1 << 18
    for kind_name, kind in PSEUDO.items():
        for precision in ("", "Double"):
            dtype, arguments = (np.float64, DOUBLE) if precision else (np.float32, FLOAT)
            name = f"{kind_name} uniform{precision}"
            u = Generator(kind, 1).take("curandGenerateUniform" + precision, count, dtype).astype(np.float64)
            check(f"{name}: range", bool(u.min() > 0 and u.max() <= 1), True)
            z_test(name, u, 0.5, 1 / 12)
            z_test(f"{name}, squares", (u - 0.5) ** 2, 1 / 12, 1 / 180)
            chi_squared(name, np.bincount(np.minimum((u * 256).astype(int), 255), minlength=256), count / 256)
            for lag in (1, 2, 64, STREAMS):
                z_test(f"{name}, correlation at {lag}", (u[lag:] - 0.5) * (u[:-lag] - 0.5), 0, 1 / 144)
            pairs = (u[0::2] * 16).astype(int).clip(0, 15) * 16 + (u[1::2] * 16).astype(int).clip(0, 15)
            chi_squared(f"{name}, pairs", np.bincount(pairs, minlength=256), count / 512)

            name = f"{kind_name} normal{precision}"
            n = Generator(kind, 2).take("curandGenerateNormal" + precision, count, dtype, *arguments)
            n = n.astype(np.float64)
            for power, (mean, variance) in {1: (0, 1), 2: (1, 2), 3: (0, 15), 4: (3, 96)}.items():
                z_test(f"{name}, power {power}", n**power, mean, variance)
            for lag in (1, 2, STREAMS):
                z_test(f"{name}, correlation at {lag}", n[lag:] * n[:-lag], 0, 1)
            probability = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in n])
            chi_squared(name, np.bincount((probability * 128).astype(int).clip(0, 127), minlength=128), count / 128)

            shifted = [type(argument)(value) for argument, value in zip(arguments, (2.0, 0.5))]
            other = Generator(kind, 2).take("curandGenerateNormal" + precision, count, dtype, *shifted)
            check(f"{name}: mean and deviation", other, (2 + 0.5 * n).astype(dtype), rtol=1e-6, atol=1e-6)
            log = Generator(kind, 2).take("curandGenerateLogNormal" + precision, count, dtype, *shifted)
            tolerance = 1e-14 if precision else 1e-6
            check(f"{name}: logarithms", log, np.exp(other.astype(np.float64)).astype(dtype), rtol=tolerance)
        for mean in (0.01, 3.5, 70.0, 5000.0, 400000.0):
            p = Generator(kind, 3).take("curandGeneratePoisson", count, np.uint32, c_double(mean))
            p = p.astype(np.float64)
            z_test(f"{kind_name} poisson {mean}", p, mean, mean)
            z_test(f"{kind_name} poisson {mean}, squares", (p - mean) ** 2, mean, mean + 2 * mean**2)


def answers():
    number = c_int()
    check("version", (rand.curandGetVersion(byref(number)), number.value >= 10300), (SUCCESS, True))
    out = cp.zeros(8, np.float32)
    check("an unknown generator", rand.curandGenerate(c_void_p(5), c_void_p(out.data.ptr), c_size_t(8)),
          NOT_INITIALIZED)
    generator = c_void_p()
    for kind in (MTGP32, SCRAMBLED_SOBOL32, 7):
        check("a kind that is not built", rand.curandCreateGenerator(byref(generator), kind), TYPE_ERROR)
    normal = Generator(XORWOW, 1)
    check("an odd number of normal numbers",
          normal.call("curandGenerateNormal", c_void_p(out.data.ptr), c_size_t(7), *FLOAT), LENGTH_NOT_MULTIPLE)
    for mean in (0.0, -1.0, 400001.0, float("nan")):
        check("a wrong mean", normal.call("curandGeneratePoisson", c_void_p(out.data.ptr), c_size_t(8),
                                          c_double(mean)), OUT_OF_RANGE)
    check("a wrong order", normal.call("curandSetGeneratorOrdering", 201), OUT_OF_RANGE)
    normal.ok("curandSetGeneratorOrdering", 103)
    check("an offset of mt19937", Generator(MT19937, 1).call("curandSetGeneratorOffset", c_ulonglong(3)), TYPE_ERROR)
    check("a seed of sobol", Generator(SOBOL32).call("curandSetPseudoRandomGeneratorSeed", c_ulonglong(3)), TYPE_ERROR)
    check("dimensions of xorwow", normal.call("curandSetQuasiRandomGeneratorDimensions", 2), TYPE_ERROR)
    check("too many dimensions", Generator(SOBOL32).call("curandSetQuasiRandomGeneratorDimensions", 22), OUT_OF_RANGE)
    check("long words", normal.call("curandGenerateLongLong", c_void_p(out.data.ptr), c_size_t(4)), TYPE_ERROR)
    stream = cp.cuda.Stream(non_blocking=True)
    normal.ok("curandSetStream", c_void_p(stream.ptr))
    normal.ok("curandGenerateSeeds")
    normal.ok("curandGenerateUniform", c_void_p(out.data.ptr), c_size_t(8))
    stream.synchronize()
    check("in a stream", cp.asnumpy(out), Generator(XORWOW, 1).take("curandGenerateUniform", 8, np.float32))


def captured_calls():
    """A generator's first calls in a capture: the graph's first launch gives what the calls give
    outside, and later ones give numbers in range, with tables that are still there."""
    uniform, poisson = cp.zeros(10000, np.float32), cp.zeros(10000, np.uint32)

    def launch(graph, stream):
        uniform.fill(-1)
        poisson.fill(1 << 30)
        cp.cuda.Device().synchronize()
        graph.launch(stream)
        stream.synchronize()
        return cp.asnumpy(uniform), cp.asnumpy(poisson)

    for name, kind in {**PSEUDO, "sobol": SOBOL32}.items():
        generator, plain = Generator(kind), Generator(kind)
        stream, other = cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)
        generator.ok("curandSetStream", c_void_p(stream.ptr))
        with stream:
            stream.begin_capture(cp.cuda.runtime.streamCaptureModeGlobal)
            generator.ok("curandGenerateUniform", c_void_p(uniform.data.ptr), c_size_t(uniform.size))
            generator.ok("curandGeneratePoisson", c_void_p(poisson.data.ptr), c_size_t(poisson.size), c_double(3.5))
            generator.ok("curandSetStream", c_void_p(other.ptr))
            graph = stream.end_capture()
        first = launch(graph, stream)
        check(f"{name}: uniform of the first launch", first[0],
              plain.take("curandGenerateUniform", uniform.size, np.float32))
        check(f"{name}: poisson of the first launch", first[1],
              plain.take("curandGeneratePoisson", poisson.size, np.uint32, c_double(3.5)))
        # Another mean and another seed replace the table and the state that the graph uses.
        generator.take("curandGeneratePoisson", 100, np.uint32, c_double(1000.0))
        if kind != SOBOL32:
            generator.ok("curandSetPseudoRandomGeneratorSeed", c_ulonglong(9))
        generator.take("curandGenerateUniform", 100, np.float32)
        for _ in range(2):
            u, p = launch(graph, stream)
            check(f"{name}: range", bool((u > 0).all() and (u <= 1).all() and (p < 40).all()), True)
            z_test(f"{name}: uniform of a later launch", u.astype(np.float64), 0.5, 1 / 12)
            z_test(f"{name}: poisson of a later launch", p.astype(np.float64), 3.5, 3.5)


def threads_without_a_context():
    out, statuses = cp.zeros(1000, np.float32), []
    cp.cuda.Device().synchronize()
    generator = Generator(MRG32K3A, 4)

    def generate():
        statuses.append(generator.call("curandGenerateUniform", c_void_p(out.data.ptr), c_size_t(out.size)))

    thread = threading.Thread(target=generate)
    thread.start()
    thread.join()
    check("status in a thread without a context", statuses, [SUCCESS])
    check("numbers", cp.asnumpy(out), Generator(MRG32K3A, 4).take("curandGenerateUniform", out.size, np.float32))


for part in (published_philox, published_mt19937, published_xorwow, published_mrg32k3a, published_sobol, parts_agree,
             statistics_of_distributions, captured_calls, threads_without_a_context, answers):
    section(part.__name__, part)
finish()

"""CuPy's special functions against SciPy's."""

import cupy as cp
import cupyx.scipy.special as on_gpu
import numpy as np
import scipy.special as on_cpu
from check import check, finish, rng, section

COUNT = 2000

# Names, and the range of each argument.
ONE = {
    "any": (["i0", "i1", "i0e", "i1e", "j0", "j1", "erf", "erfcx", "ndtr", "log_ndtr", "expit"], (-6, 6)),
    "positive": (["gamma", "gammaln", "digamma", "y0", "y1", "k0", "k1", "entr"], (0.1, 12)),
    "a probability": (["ndtri", "erfinv", "logit", "ellipk", "ellipkm1", "ellipe"], (0.01, 0.99)),
}
TWO = [
    ("beta", (0.2, 8), (0.2, 8)),
    ("betaln", (0.2, 8), (0.2, 8)),
    ("binom", (1, 20), (0.5, 10)),
    ("gammainc", (0.2, 10), (0.1, 20)),
    ("gammaincc", (0.2, 10), (0.1, 20)),
    ("zeta", (1.2, 8), (0.5, 10)),
    ("xlogy", (0.0, 5), (0.1, 5)),
    ("rel_entr", (0.1, 5), (0.1, 5)),
    ("kl_div", (0.1, 5), (0.1, 5)),
    ("chdtr", (0.5, 10), (0.1, 20)),
    ("chdtrc", (0.5, 10), (0.1, 20)),
    ("pdtr", (0, 12), (0.1, 12)),
]
THREE = [
    ("betainc", (0.2, 8), (0.2, 8), (0.01, 0.99)),
    ("betaincinv", (0.5, 8), (0.5, 8), (0.05, 0.95)),
    ("fdtr", (0.5, 8), (0.5, 8), (0.1, 6)),
    ("fdtrc", (0.5, 8), (0.5, 8), (0.1, 6)),
    ("fdtri", (0.5, 8), (0.5, 8), (0.05, 0.95)),
    ("btdtr", (0.2, 8), (0.2, 8), (0.01, 0.99)),
    ("gdtr", (0.2, 4), (0.2, 8), (0.1, 6)),
]


def compare(name, *ranges):
    function, reference = getattr(on_gpu, name, None), getattr(on_cpu, name, None)
    if function is None or reference is None:
        return 0
    arguments = [rng.uniform(low, high, COUNT) for low, high in ranges]
    with np.errstate(all="ignore"):
        want = reference(*arguments)
    got = function(*[cp.asarray(argument) for argument in arguments]).get()
    check(name, got, want, rtol=2e-7, atol=1e-9)
    return 1


def one_argument():
    for names, limits in ONE.values():
        count = sum(compare(name, limits) for name in names)
        assert count > len(names) // 2, names


def several_arguments():
    count = sum(compare(*row) for row in TWO + THREE)
    assert count > 14, count


def sums():
    """Functions that call each other, and reductions."""
    x = rng.uniform(0.5, 5, 500)
    for order in range(1, 8):
        got = on_gpu.polygamma(cp.asarray(order), cp.asarray(x)).get()
        check(f"polygamma {order}", got, on_cpu.polygamma(order, x), rtol=1e-6)
    values = rng.uniform(-5, 5, (50, 40))
    check("logsumexp", on_gpu.logsumexp(cp.asarray(values), axis=1).get(), on_cpu.logsumexp(values, axis=1), rtol=1e-10)
    check("softmax", on_gpu.softmax(cp.asarray(values), axis=1).get(), on_cpu.softmax(values, axis=1), rtol=1e-10)
    check("factorials", on_gpu.gamma(cp.arange(1.0, 20)).get(), on_cpu.gamma(np.arange(1.0, 20)), rtol=1e-10)


if __name__ == "__main__":
    section("one argument", one_argument)
    section("several arguments", several_arguments)
    section("sums", sums)
    finish()

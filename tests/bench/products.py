"""Products of matrices of order 1,024 by CuPy, and by NumPy with OpenBLAS on the same cores, by turns.

Prints lines "NAME MILLISECONDS"; halves are compared with floats, since OpenBLAS has none.
"""

import time

import cupy as cp
import numpy as np

ORDER, TURNS = 1024, 7


def milliseconds(action):
    begin = time.perf_counter()
    action()
    return (time.perf_counter() - begin) * 1e3


for name, dtype in [("sgemm", np.float32), ("dgemm", np.float64), ("hgemm", np.float16)]:
    rng = np.random.default_rng(1)
    host = [rng.uniform(-1, 1, (ORDER, ORDER)).astype(dtype) for _ in range(2)]
    device = [cp.asarray(array) for array in host]
    host = [array.astype(np.float32) if dtype == np.float16 else array for array in host]

    def on_gpu():
        global product
        product = device[0] @ device[1]
        cp.cuda.Device().synchronize()

    def on_cpu():
        global reference
        reference = host[0] @ host[1]

    on_gpu(), on_cpu()
    tolerance = {np.float32: 1e-4, np.float64: 1e-11, np.float16: 2e-1}[dtype]
    assert np.abs(product.get() - reference).max() < tolerance, name
    times = [(milliseconds(on_gpu), milliseconds(on_cpu)) for _ in range(TURNS)]
    for side, column in (("gpu", 0), ("openblas", 1)):
        print(f"{name}_{side}", np.median([turn[column] for turn in times]))

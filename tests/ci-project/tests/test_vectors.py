import ctypes
import itertools
import pathlib
import random
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import vectors  # noqa: E402


@pytest.fixture(scope="session")
def gpu():
    return vectors.Gpu()


@pytest.fixture
def numbers():
    return random.Random(7).choices(range(1000), k=1000)


def test_the_gpu_has_a_name(gpu):
    assert gpu.name()


def test_values_come_back_as_they_were_sent(gpu, numbers):
    assert gpu.vector(ctypes.c_uint32, numbers).values() == numbers


@pytest.mark.parametrize("length", [1, 255, 256, 1000])
def test_saxpy(gpu, length):
    x, y = [float(i) for i in range(length)], [0.5 * i for i in range(length)]
    on_gpu = [gpu.vector(ctypes.c_float, values) for values in (x, y)]
    vectors.saxpy(gpu, 2.0, *on_gpu)
    assert on_gpu[1].values() == [2.0 * a + b for a, b in zip(x, y)]


def test_total_adds_up_all_blocks(gpu, numbers):
    assert vectors.total(gpu, gpu.vector(ctypes.c_uint32, numbers)) == sum(numbers)


def test_histogram_counts_every_number_once(gpu, numbers):
    counts = vectors.histogram(gpu, gpu.vector(ctypes.c_uint32, numbers))
    assert counts == [sum(number % 16 == bin for number in numbers) for bin in range(16)]


def test_reverse_waits_at_its_barrier(gpu, numbers):
    vector = gpu.vector(ctypes.c_uint32, numbers)
    vectors.reverse(gpu, vector)
    assert vector.values() == numbers[::-1]


def test_scan_adds_up_to_each_number(gpu, numbers):
    vector = gpu.vector(ctypes.c_uint32, numbers)
    vectors.scan(gpu, vector)
    assert vector.values() == list(itertools.accumulate(numbers))


def test_too_much_memory_is_refused(gpu):
    address = ctypes.c_uint64()
    with pytest.raises(vectors.CudaError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        gpu.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(1 << 50))
    gpu.synchronize()

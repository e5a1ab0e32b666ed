"""JAX's calls, one kind after the other. Results are not looked at: this also runs where kernels are only recorded."""

import jax
import jax.numpy as jnp
from steps import Steps

step = Steps()


@step("devices")
def _():
    devices = jax.devices()
    assert devices[0].platform == "gpu", devices
    return devices


@step("arithmetic")
def _():
    return (jnp.ones(1000) + 1)[0].item()


@step("jit")
def _():
    return jax.jit(lambda x: (x * 2 + 1).sum())(jnp.ones(100)).item()


@step("matrix product, bfloat16")
def _():
    m = jnp.ones((128, 128), jnp.bfloat16)
    return (m @ m)[0, 0].item()


@step("gradient")
def _():
    return jax.grad(lambda x: (x ** 2).sum())(jnp.ones(10))[0].item()


@step("sort")
def _():
    return jnp.sort(jnp.arange(100)[::-1])[:2]


@step("random numbers")
def _():
    return jax.random.normal(jax.random.key(0), (4,))


@step("fft")
def _():
    return jnp.fft.fft(jnp.ones(64))[:2]


@step("singular values")
def _():
    return jnp.linalg.svd(jnp.eye(8), compute_uv=False)


@step("memory")
def _():
    return jax.devices()[0].memory_stats()["num_allocs"]


step.run()

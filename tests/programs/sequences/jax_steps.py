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


@step("ones")
def _():
    return jnp.ones(1000)[0].item()


@step("add")
def _():
    return (jnp.ones(1000) + 1)[0].item()


@step("jit")
def _():
    return jax.jit(lambda x: (x * 2 + 1).sum())(jnp.ones(100)).item()


@step("bf16 matmul")
def _():
    m = jnp.ones((128, 128), jnp.bfloat16)
    return (m @ m)[0, 0].item()


@step("grad")
def _():
    return jax.grad(lambda x: (x ** 2).sum())(jnp.ones(10))[0].item()


@step("sort")
def _():
    return jnp.sort(jnp.arange(100)[::-1])[:2]


@step("random")
def _():
    return jax.random.normal(jax.random.key(0), (4,))


@step("fft")
def _():
    return jnp.fft.fft(jnp.ones(64))[:2]


@step("svd")
def _():
    return jnp.linalg.svd(jnp.eye(8), compute_uv=False)


@step("conv")
def _():
    # cuDNN decides by what kernels computed; where they are only recorded it may stop at that.
    convolution = lambda x, w: jax.lax.conv(x, w, (1, 1), "SAME").sum()
    try:
        return jax.jit(convolution)(jnp.ones((2, 3, 32, 32)), jnp.ones((16, 3, 3, 3))).item()
    except jax.errors.JaxRuntimeError as error:
        assert "cudnn" in str(error).lower(), error
        return f"as far as cuDNN: {error}"


@step("pmap-free memory_stats")
def _():
    return jax.devices()[0].memory_stats()["num_allocs"]


step.run()

"""JAX: functions and a training step of a small transformer on the GPU, against the same on the CPU."""

import jax
import jax.numpy as jnp
import numpy as np
from check import SEED, check, finish, section

CPU = jax.devices("cpu")[0]
GPU = jax.devices("cuda")[0]
KEYS = jax.random.split(jax.random.PRNGKey(SEED), 16)


def on(device, function, arguments):
    with jax.default_device(device):
        results = jax.jit(function)(*(jax.device_put(argument, device) for argument in arguments))
    return [np.asarray(result, dtype=np.float32) for result in jax.tree.leaves(results)]


def both(name, function, *arguments, tolerance=1e-4):
    for got, want in zip(on(GPU, function, arguments), on(CPU, function, arguments), strict=True):
        check(name, got, want, rtol=tolerance, atol=tolerance)


def normal(index, *shape):
    with jax.default_device(CPU):
        return jax.random.normal(KEYS[index], shape)


def elementwise():
    x = normal(0, 1000)
    both("sines", lambda x: jnp.sin(x) * 2 + jnp.sum(x), x)
    both("softmax", jax.nn.softmax, normal(1, 37, 300))
    both("gelu", jax.nn.gelu, x)


def products():
    a, b = normal(2, 64, 48), normal(3, 48, 32)
    highest = jax.lax.Precision.HIGHEST
    both("floats", lambda a, b: jnp.dot(a, b, precision=highest), a, b)
    # The GPU's default is TF32, with 10 bits.
    both("by default", lambda a, b: a @ b, a, b, tolerance=3e-2)
    for kind in [jnp.bfloat16, jnp.float16]:
        both(f"of {kind.__name__}", lambda a, b: a.astype(kind) @ b.astype(kind), a, b, tolerance=6e-2)
    both("batched", lambda a: jnp.einsum("bij,bkj->bik", a, a, precision=highest), normal(4, 5, 20, 30))


def transformations():
    a, b = normal(2, 64, 48), normal(3, 48, 32)
    both("vmap", jax.vmap(jnp.cumsum), a, tolerance=1e-3)
    both("grad", jax.grad(lambda a: jnp.sum(jnp.tanh(jnp.dot(a, b, precision="highest")))), a)
    both("scan", lambda a: jax.lax.scan(lambda sum, x: (sum + x, sum * x), jnp.zeros(48), a), a)
    both("while", lambda x: jax.lax.while_loop(lambda x: jnp.sum(x) < 1e4, lambda x: x * 2, jnp.abs(x)), a[0])


def order():
    a = normal(5, 64, 48)
    both("sort", jnp.sort, a)
    both("argsort", lambda a: jnp.argsort(a, axis=0), a)
    both("gather", lambda a: a[jnp.array([3, 1, 2])], a)
    both("scatter", lambda a: a.at[jnp.array([3, 1, 3])].add(1.0), a)


def random_numbers():
    key = jax.device_put(KEYS[6], CPU)
    both("uniform", lambda key: jax.random.uniform(key, (1000,)), key)
    both("normal", lambda key: jax.random.normal(key, (1000,)), key)
    both("permutation", lambda key: jax.random.permutation(key, 1000), key)


def linear_algebra():
    a = normal(7, 24, 24)
    both("cholesky", lambda a: jnp.linalg.cholesky(jnp.dot(a, a.T, precision="highest") + 24 * jnp.eye(24)), a)
    both("solve", lambda a: jnp.linalg.solve(a + 24 * jnp.eye(24), a), a)


def parameters(width):
    shapes = {"embedding": (50, width), "query": (width, width), "key": (width, width), "value": (width, width),
              "up": (width, 4 * width), "down": (4 * width, width), "out": (width, 50)}
    return {name: 0.1 * normal(8 + index, *shape) for index, (name, shape) in enumerate(shapes.items())}


def loss(weights, tokens):
    def dot(a, b):
        return jnp.matmul(a, b, precision="highest")

    def norm(x):
        return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)

    x = weights["embedding"][tokens[:, :-1]]
    q, k, v = (dot(norm(x), weights[name]) for name in ["query", "key", "value"])
    scores = dot(q, k.swapaxes(1, 2)) / jnp.sqrt(x.shape[-1])
    causal = jnp.tril(jnp.ones(scores.shape[1:], bool))
    x = x + dot(jax.nn.softmax(jnp.where(causal, scores, -1e9)), v)
    x = x + dot(jax.nn.gelu(dot(norm(x), weights["up"])), weights["down"])
    chances = jax.nn.log_softmax(dot(norm(x), weights["out"]))
    return -jnp.take_along_axis(chances, tokens[:, 1:, None], axis=-1).mean()


def transformer():
    tokens = np.random.default_rng(SEED).integers(0, 50, (4, 17))

    def train(weights, tokens):
        def step(weights, _):
            now, gradients = jax.value_and_grad(loss)(weights, tokens)
            return jax.tree.map(lambda weight, gradient: weight - 0.5 * gradient, weights, gradients), now

        return jax.lax.scan(step, weights, length=5)[1]

    both("losses of five steps", train, parameters(32), tokens, tolerance=1e-3)


section("elementwise", elementwise)
section("products", products)
section("transformations", transformations)
section("order", order)
section("random numbers", random_numbers)
section("linear algebra", linear_algebra)
section("a transformer's training", transformer)
finish()

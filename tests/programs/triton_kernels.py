"""Triton: the kernels of its tutorials on tensors that the CPU has filled, against PyTorch on the CPU.

PyTorch's own kernels are machine code, so tensors are only allocated and copied on the GPU.
"""

import torch
import triton
import triton.language as tl
from check import SEED, check, finish, section

torch.manual_seed(SEED)


def on_gpu(*tensors):
    return [tensor.cuda() for tensor in tensors]


def close(name, got, expected, tolerance=1e-5):
    check(name, got.cpu().float().numpy(), expected.float().numpy(), rtol=tolerance, atol=tolerance)


@triton.jit
def add(x, y, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


def vector_addition():
    x, y = torch.rand(98432), torch.rand(98432)
    a, b, out = *on_gpu(x, y), torch.empty(98432, device="cuda")
    add[(triton.cdiv(98432, 1024),)](a, b, out, 98432, BLOCK=1024)
    close("sums", out, x + y)


@triton.jit
def softmax(out, rows, stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(rows + row * stride + at, mask=at < columns, other=-float("inf"))
    power = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * stride + at, power / tl.sum(power, axis=0), mask=at < columns)


def fused_softmax():
    x = torch.randn(123, 781)
    (rows,), out = on_gpu(x), torch.empty(123, 781, device="cuda")
    softmax[(123,)](out, rows, 781, 781, BLOCK=1024)
    close("rows", out, torch.softmax(x, dim=1))


@triton.jit
def product(a, b, c, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows = tl.program_id(0) * M + tl.arange(0, M)
    columns = tl.program_id(1) * N + tl.arange(0, N)
    total = tl.zeros((M, N), dtype=tl.float32)
    for start in range(0, k, K):
        inner = start + tl.arange(0, K)
        of_left = (rows[:, None] < m) & (inner[None, :] < k)
        of_right = (inner[:, None] < k) & (columns[None, :] < n)
        left = tl.load(a + rows[:, None] * k + inner[None, :], mask=of_left, other=0.0)
        right = tl.load(b + inner[:, None] * n + columns[None, :], mask=of_right, other=0.0)
        total = tl.dot(left, right, total)
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(c + rows[:, None] * n + columns[None, :], total, mask=inside)


def matrix_products():
    for kind, tolerance in [(torch.float16, 1e-2), (torch.bfloat16, 5e-2), (torch.float32, 5e-2)]:
        x, y = torch.randn(100, 70).to(kind), torch.randn(70, 130).to(kind)
        (a, b), out = on_gpu(x, y), torch.empty(100, 130, device="cuda")
        product[(triton.cdiv(100, 32), triton.cdiv(130, 64))](a, b, out, 100, 130, 70, M=32, N=64, K=32)
        close(f"of {kind}", out, x.float() @ y.float(), tolerance)


@triton.jit
def dropout(x, out, count, p, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    keep = tl.rand(seed, at) > p
    tl.store(out + at, tl.where(keep, tl.load(x + at, mask=inside) / (1 - p), 0.0), mask=inside)


def seeded_dropout():
    x = torch.ones(4096)
    (ones,) = on_gpu(x)
    outs = [torch.empty(4096, device="cuda") for _ in range(3)]
    for out, seed in zip(outs, [123, 123, 512]):
        dropout[(4,)](ones, out, 4096, 0.5, seed, BLOCK=1024)
    same, again, other = (out.cpu() for out in outs)
    check("the same seed", same.numpy(), again.numpy())
    check("another seed", torch.equal(same, other), False)
    check("what is kept", same.unique().tolist(), [0.0, 2.0])
    check("the part that is kept", same.mean().item(), 1.0, atol=0.1)


@triton.jit
def layer_norm(x, out, weight, bias, columns, epsilon, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row * columns + at, mask=inside, other=0.0)
    mean = tl.sum(values, axis=0) / columns
    centred = tl.where(inside, values - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, axis=0) / columns + epsilon)
    result = centred * scale * tl.load(weight + at, mask=inside) + tl.load(bias + at, mask=inside)
    tl.store(out + row * columns + at, result, mask=inside)


def layer_norms():
    x, weight, bias = torch.randn(37, 300), torch.rand(300), torch.rand(300)
    (a, w, b), out = on_gpu(x, weight, bias), torch.empty(37, 300, device="cuda")
    layer_norm[(37,)](a, out, w, b, 300, 1e-5, BLOCK=512)
    close("rows", out, torch.nn.functional.layer_norm(x, (300,), weight, bias), 1e-4)


@triton.jit
def attention(q, k, v, out, count, scale, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    head = tl.program_id(1) * count * D
    rows, inner = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, D)
    query = tl.load(q + head + rows[:, None] * D + inner[None, :])
    highest = tl.full((M,), -float("inf"), dtype=tl.float32)
    total, result = tl.zeros((M,), dtype=tl.float32), tl.zeros((M, D), dtype=tl.float32)
    for start in range(0, count, N):
        others = start + tl.arange(0, N)
        key = tl.load(k + head + others[None, :] * D + inner[:, None])
        scores = tl.dot(query, key) * scale
        now = tl.maximum(highest, tl.max(scores, axis=1))
        power, decay = tl.exp(scores - now[:, None]), tl.exp(highest - now)
        total = total * decay + tl.sum(power, axis=1)
        value = tl.load(v + head + others[:, None] * D + inner[None, :])
        result = tl.dot(power.to(value.dtype), value, result * decay[:, None])
        highest = now
    tl.store(out + head + rows[:, None] * D + inner[None, :], result / total[:, None])


def fused_attention():
    q, k, v = (torch.randn(2, 128, 64).half() for _ in range(3))
    (a, b, c), out = on_gpu(q, k, v), torch.empty(2, 128, 64, device="cuda")
    attention[(4, 2)](a, b, c, out, 128, 0.125, D=64, M=32, N=32)
    close("heads", out, torch.softmax(q.float() @ k.float().transpose(1, 2) * 0.125, dim=2) @ v.float(), 1e-2)


section("vector addition", vector_addition)
section("fused softmax", fused_softmax)
section("matrix products", matrix_products)
section("dropout", seeded_dropout)
section("layer normalisation", layer_norms)
section("fused attention", fused_attention)
finish()

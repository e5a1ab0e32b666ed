"""PyTorch: functions and training steps that `torch.compile` makes Triton kernels of, against the same on the CPU.

PyTorch's own kernels are machine code. So tensors are filled on the CPU, gradients come from `torch.func`, and what Inductor would run
by itself while it compiles is switched off.
"""

import torch
from check import SEED, check, finish, section

torch.manual_seed(SEED)
OPTIONS = {"deterministic": True, "joint_graph_constant_folding": False, "triton.autotune_pointwise": False}


def compiled(function):
    return torch.compile(function, options=OPTIONS)


def both(name, function, *arguments, tolerance=1e-4):
    want = function(*arguments)
    got = compiled(function)(*[argument.cuda() for argument in arguments])
    for a, b in zip(got, want, strict=True):
        check(name, a.detach().cpu().numpy(), b.detach().numpy(), rtol=tolerance, atol=tolerance)


def layers():
    def function(x, weight, bias):
        y = torch.nn.functional.gelu(torch.nn.functional.layer_norm(x, (128,), weight, bias))
        return torch.softmax(y, 1), y.mean(0)

    both("norm, GELU, softmax, sums", function, torch.randn(32, 128), torch.rand(128), torch.rand(128))


def linear_layers():
    def function(x, first, bias, second):
        return (torch.addmm(bias, x, first).relu() @ second,)

    shapes = [(32, 64), (64, 128), (128,), (128, 10)]
    both("addmm, ReLU, product", function, *(torch.randn(shape) * 0.3 for shape in shapes), tolerance=1e-3)


def loss(weights, x, target):
    hidden = torch.nn.functional.gelu(x @ weights[0] + weights[1])
    chances = torch.log_softmax(hidden @ weights[2] + weights[3], 1)
    return -chances.gather(1, target[:, None]).mean()


def step(weights, x, target):
    gradients, now = torch.func.grad_and_value(loss)(weights, x, target)
    return [weight - 0.5 * gradient for weight, gradient in zip(weights, gradients)], now


def losses(step, weights, x, target):
    found = []
    for _ in range(5):
        weights, now = step(weights, x, target)
        found.append(now.item())
    return found


def training():
    weights = [torch.randn(16, 32) * 0.3, torch.zeros(32), torch.randn(32, 8) * 0.3, torch.zeros(8)]
    x, target = torch.randn(64, 16), torch.randint(0, 8, (64,))
    want = losses(step, weights, x, target)
    got = losses(compiled(step), [weight.cuda() for weight in weights], x.cuda(), target.cuda())
    check("losses of five steps", got, want, rtol=1e-4, atol=1e-4)


section("layers", layers)
section("linear layers", linear_layers)
section("training", training)
finish()

"""PyTorch on the GPU against PyTorch on the CPU: integers exact, floats within bounds. Needs machine code: no software GPU."""

import os
import sys

import torch

SEED = int(os.environ.get("SEED") or int.from_bytes(os.urandom(4), "little"))


def close(name, got, want, tolerance):
    assert torch.allclose(got.cpu(), want, rtol=tolerance, atol=tolerance), f"{name} is off by " \
        f"{(got.cpu() - want).abs().max().item()}"


def main():
    print(f"seed {SEED}")
    torch.manual_seed(SEED)
    torch.backends.cuda.matmul.allow_tf32 = False
    for size in [1, 33, 1000, 1 << 20]:
        a, b = torch.randint(-1000, 1000, (size,)), torch.randint(1, 1000, (size,))
        assert torch.equal((a.cuda() * 3 - b.cuda()).cpu(), a * 3 - b), f"integers of size {size}"
        assert torch.equal(torch.sort(a.cuda()).values.cpu(), torch.sort(a).values), f"sort of size {size}"
        x = torch.randn(size)
        close(f"exp {size}", torch.exp(x.cuda()), torch.exp(x), 1e-5)
        close(f"sum {size}", x.cuda().double().sum(), x.double().sum(), 1e-9)
    m = torch.randn(257, 129)
    close("matmul", m.cuda() @ m.cuda().T, m @ m.T, 1e-4)
    print("PASS")


if __name__ == "__main__":
    sys.exit(main())

"""Trains a small transformer with PyTorch and prints steps per second. STEPS, WIDTH and LAYERS change its size."""

import os
import sys
import time

import torch
from torch import nn

STEPS, WIDTH, LAYERS = (int(os.environ.get(name, default)) for name, default in
                        [("STEPS", 60), ("WIDTH", 384), ("LAYERS", 6)])


def main():
    # Sums whose order differs from run to run would make every loss but the first a matter of luck.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(int(os.environ.get("SEED", "1")))
    layer = nn.TransformerEncoderLayer(WIDTH, 6, 4 * WIDTH, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Embedding(256, WIDTH), nn.TransformerEncoder(layer, LAYERS), nn.Linear(WIDTH, 256)).cuda()
    tokens = torch.randint(0, 256, (16, 257), device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, warm = [], STEPS // 4
    for step in range(STEPS):
        if step == warm:
            torch.cuda.synchronize()
            begin = time.perf_counter()
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step in (0, STEPS - 1):
            losses.append(loss.item())
    torch.cuda.synchronize()
    print(f"steps_per_s {(STEPS - warm) / (time.perf_counter() - begin):.3f}")
    print(f"first_loss {losses[0]:.4f}")
    print(f"last_loss {losses[-1]:.4f}")
    print("PASS" if losses[-1] < losses[0] else "FAIL: the loss did not fall")
    return 0 if losses[-1] < losses[0] else 1


if __name__ == "__main__":
    sys.exit(main())

"""Takes steps when it is told to, so that two of it, one natively and one under a lease, can take turns in the same minute.

Says `ready` once it is warm. For each line on its input, a number of steps, it takes so many and prints how long they took. At the end
of its input it says PASS. WHAT: `launches` (a step is 100 launches of a tiny kernel; needs nothing but Python), or a transformer that
PyTorch trains: `gpt2` (the size of GPT-2-small), `11m` or `toy`.
"""

import os
import sys
import time

# Width, layers, heads.
MODELS = {"gpt2": (768, 12, 12), "11m": (384, 6, 6), "toy": (48, 2, 6)}


def launches():
    import ctypes

    from driver import SPIN, allocate, attach, clear, launch, load, read_u32

    attach()
    spin, counter = load(SPIN, "spin"), allocate(4)
    clear(counter, 4)
    done = 0

    def take(steps):
        nonlocal done
        for _ in range(100 * steps):
            launch(spin, 1, 32, ctypes.c_uint64(counter), ctypes.c_uint32(1))
        done += 100 * steps
        counted = read_u32(counter)
        assert counted == done, f"{counted} of {done} kernels counted themselves"
        return counted

    return take


def training(width, layers, heads):
    import torch
    from torch import nn

    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Embedding(256, width), nn.TransformerEncoder(layer, layers), nn.Linear(width, 256)).cuda()
    tokens = torch.randint(0, 256, (16, 257), device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def take(steps):
        for _ in range(steps):
            loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        value = loss.item()  # waits for the last step
        assert value == value, "the loss is not a number"
        return value

    return take


def main():
    what = os.environ.get("WHAT", "launches")
    take = launches() if what == "launches" else training(*MODELS[what])
    take(10)
    print("ready", flush=True)
    for line in sys.stdin:
        begin = time.perf_counter()
        last = take(int(line))
        print(f"took {time.perf_counter() - begin:.6f} {last:.6f}", flush=True)
    print("PASS", flush=True)


if __name__ == "__main__":
    main()

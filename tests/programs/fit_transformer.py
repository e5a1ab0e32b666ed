"""Trains and asks transformers, and compares the memory that PyTorch takes with what `sluice fit` says.

What is compared is PyTorch's peak of reserved memory with all parts but the context. No result is looked at, so it runs
where nothing is computed, too. It prints a table, and PASS if no estimate is too low by more than LOW or too high
by more than HIGH, in per cent.
"""

import json
import os
import subprocess
import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

LOW, HIGH = 10, 40

# Layers, hidden numbers, heads, heads of keys and values, words; batch and tokens; further options of `sluice fit`.
CASES = [
    ((12, 768, 12, 12, 32000), (8, 512), "--optimizer adamw --precision fp32"),
    ((12, 768, 12, 12, 32000), (8, 512), "--optimizer adamw --precision fp32 --checkpointing"),
    ((24, 1024, 16, 16, 8000), (4, 1024), "--optimizer adamw --precision bf16"),
    ((24, 1024, 16, 16, 8000), (16, 1024), "--optimizer adamw --precision bf16 --checkpointing"),
    ((16, 2048, 16, 4, 64000), (4, 1024), "--optimizer adamw --precision bf16 --lora 16"),
    ((16, 2048, 16, 4, 64000), (8, 2048), "--optimizer sgd --precision bf16 --checkpointing"),
    ((16, 2048, 16, 4, 64000), (8, 4096), "--precision bf16"),
    ((24, 1024, 16, 16, 8000), (32, 2048), "--precision bf16"),
]


class Layer(nn.Module):
    """A layer of a decoder; with a rank, adapters are beside its attention matrices."""

    def __init__(self, hidden, heads, kv_heads, rank):
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, hidden // heads
        keys = kv_heads * self.size
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(2))
        self.query, self.key = nn.Linear(hidden, hidden), nn.Linear(hidden, keys)
        self.value, self.out = nn.Linear(hidden, keys), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.adapters = nn.ModuleDict()
        if rank:
            for name in ("query", "key", "value", "out"):
                matrix = getattr(self, name)
                self.adapters[name] = nn.Sequential(
                    nn.Linear(matrix.in_features, rank, bias=False), nn.Linear(rank, matrix.out_features, bias=False))

    def apply_matrix(self, name, x):
        result = getattr(self, name)(x)
        return result + self.adapters[name](x) if name in self.adapters else result

    def split(self, x, heads):
        return x.unflatten(-1, (heads, self.size)).transpose(1, 2)

    def forward(self, x, cache=None):
        normed = self.norms[0](x)
        query = self.split(self.apply_matrix("query", normed), self.heads)
        key = self.split(self.apply_matrix("key", normed), self.kv_heads)
        value = self.split(self.apply_matrix("value", normed), self.kv_heads)
        if cache is not None:
            place, at = cache
            place[0, :, :, at:at + x.shape[1]], place[1, :, :, at:at + x.shape[1]] = key, value
            key, value = place[0, :, :, :at + x.shape[1]], place[1, :, :, :at + x.shape[1]]
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=x.shape[1] > 1, enable_gqa=self.kv_heads < self.heads)
        x = x + self.apply_matrix("out", mixed.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class Model(nn.Module):
    def __init__(self, shape, rank=None):
        super().__init__()
        layers, hidden, heads, kv_heads, words = shape
        self.words = nn.Embedding(words, hidden)
        self.layers = nn.ModuleList(Layer(hidden, heads, kv_heads, rank) for _ in range(layers))
        self.out = nn.Linear(hidden, words, bias=False)
        self.out.weight = self.words.weight


def train(model, shape, batch, tokens, option):
    """Two steps. Trained weights of 16 bits have a copy of 32 bits, on which the optimizer works."""
    trained = [weight for name, weight in model.named_parameters() if option("--lora") is None or "adapters" in name]
    for weight in model.parameters():
        weight.requires_grad = any(weight is other for other in trained)
    copies = [weight.detach().float() if weight.dtype != torch.float32 else weight for weight in trained]
    kinds = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    optimizer = kinds[option("--optimizer")](copies, lr=1e-4)
    text = torch.zeros((batch, tokens + 1), dtype=torch.long, device="cuda")
    for _ in range(2):
        x = model.words(text[:, :-1])
        if not x.requires_grad:
            x = x.requires_grad_()
        for layer in model.layers:
            x = checkpoint(layer, x, use_reentrant=False) if option("--checkpointing") is not None else layer(x)
        loss = functional.cross_entropy(model.out(x).float().flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        del x, loss
        for weight, copy in zip(trained, copies):
            if copy is not weight:
                copy.grad = weight.grad.float()
        optimizer.step()
        for weight, copy in zip(trained, copies):
            if copy is not weight:
                weight.data.copy_(copy.detach())
                copy.grad = None
            weight.grad = None


@torch.no_grad()
def answer(model, shape, batch, tokens):
    """Takes a question in, 2048 tokens of it at a time, and answers two tokens."""
    layers, hidden, heads, kv_heads, _ = shape
    cache = [torch.empty((2, batch, kv_heads, tokens, hidden // heads), dtype=torch.bfloat16, device="cuda")
             for _ in range(layers)]
    each = 2048
    for sequence in range(batch):
        for at in range(0, tokens - 2, each):
            x = model.words(torch.zeros((1, min(each, tokens - 2 - at)), dtype=torch.long, device="cuda"))
            for layer, place in zip(model.layers, cache):
                x = layer(x, (place[:, sequence:sequence + 1], at))
    for at in range(tokens - 2, tokens):
        x = model.words(torch.zeros((batch, 1), dtype=torch.long, device="cuda"))
        for layer, place in zip(model.layers, cache):
            x = layer(x, (place, at))
        model.out(x[:, -1]).float()


def estimate(shape, parameters, batch, tokens, options):
    layers, hidden, heads, kv_heads, words = shape
    sizes = [("params", parameters), ("layers", layers), ("hidden", hidden), ("heads", heads),
             ("kv-heads", kv_heads), ("vocabulary", words), ("batch", batch), ("sequence", tokens)]
    command = [os.environ["SLUICE"], "fit", "-o", "json"]
    command += [word for name, value in sizes for word in (f"--{name}", str(value))]
    found = json.loads(subprocess.check_output(command + options, text=True))
    return sum(part["bytes"] for part in found["parts"] if part["name"] != "context")


def compare(shape, size, options):
    words = options.split()

    def option(name):
        return words[words.index(name) + 1] if name in words[:-1] else ("" if name in words else None)

    batch, tokens = size
    dtype = torch.float32 if option("--precision") == "fp32" else torch.bfloat16
    model = Model(shape, option("--lora") and int(option("--lora"))).to(dtype).cuda()
    parameters = sum(weight.numel() for name, weight in model.named_parameters() if "adapters" not in name)
    torch.cuda.reset_peak_memory_stats()
    if option("--optimizer") is None:
        answer(model, shape, batch, tokens)
    else:
        train(model, shape, batch, tokens, option)
    torch.cuda.synchronize()
    measured = torch.cuda.max_memory_reserved()
    del model
    torch.cuda.empty_cache()
    estimated = estimate(shape, parameters, batch, tokens, words)
    off = 100 * (estimated / measured - 1)
    print(f"| {parameters / 1e6:.0f} M | {batch} x {tokens} | `{options}` | {measured / 2**30:.2f} | "
          f"{estimated / 2**30:.2f} | {off:+.0f} % |", flush=True)
    return off


def main():
    print("| parameters | batch x tokens | options | measured, GiB | `sluice fit`, GiB | error |")
    print("|---|---|---|---|---|---|", flush=True)
    errors = [compare(*case) for case in CASES]
    wrong = [error for error in errors if not -LOW <= error <= HIGH]
    print("PASS" if not wrong else f"FAIL: errors of {wrong} %")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

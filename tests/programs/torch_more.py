"""What PyTorch programs do beside plain training: a CUDA graph, torch.compile, generation token by token, a DataLoader
with workers, and DistributedDataParallel with one rank. Prints the time of each, and checks results against the CPU or against
the same computation without the feature. Needs machine code: no software GPU.
"""

import os
import sys
import tempfile
import time

import torch
from torch import nn


def timed(name, run):
    run()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    result = run()
    torch.cuda.synchronize()
    print(f"{name}_ms {(time.perf_counter() - begin) * 1e3:.3f}", flush=True)
    return result


def close(name, got, want, tolerance=1e-3):
    got, want = got.detach().float().cpu(), want.detach().float().cpu()
    assert torch.allclose(got, want, rtol=tolerance, atol=tolerance), f"{name} is off by {(got - want).abs().max()}"


def graph():
    model, x = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256)).cuda(), torch.randn(64, 256, device="cuda")
    with torch.no_grad():
        model(x)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            y = model(x)
        for seed in range(3):
            x.copy_(torch.randn(64, 256, generator=torch.Generator().manual_seed(seed)))
            captured.replay()
            close("graph", y, model(x))
        timed("graph_replay_100", lambda: [captured.replay() for _ in range(100)])


def compiled():
    function = lambda x: (x * 2 + 1).relu().sum(dim=1)
    fast, x = torch.compile(function), torch.randn(512, 512, device="cuda")
    close("compile", fast(x), function(x))
    timed("compiled_100", lambda: [fast(x) for _ in range(100)])


def generation():
    torch.manual_seed(0)
    width = 128
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Embedding(100, width), nn.TransformerEncoder(layer, 2), nn.Linear(width, 100)).cuda().eval()

    @torch.no_grad()
    def tokens(model, device):
        text = torch.tensor([[1]], device=device)
        for _ in range(32):
            text = torch.cat([text, model(text)[:, -1:].argmax(dim=-1)], dim=1)
        return text.cpu()

    found = timed("generate_32", lambda: tokens(model, "cuda"))
    want = tokens(model.cpu(), "cpu")
    same = (found == want).float().mean().item()
    assert same > 0.9, f"{same:.0%} of the tokens are those of the CPU"


def loader():
    data = torch.utils.data.TensorDataset(torch.arange(4096.0))
    batches = torch.utils.data.DataLoader(data, batch_size=64, num_workers=2, pin_memory=True)
    total = timed("loader", lambda: sum(batch.cuda(non_blocking=True).sum().item() for (batch,) in batches))
    assert total == 4096 * 4095 / 2, total


def distributed():
    import torch.distributed as dist

    # Which ports `tcp://` takes differs between releases of PyTorch; a file does in all.
    store = os.path.join(tempfile.mkdtemp(), "store")
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=0, world_size=1, device_id=torch.device("cuda:0"))
    plain = nn.Linear(64, 64).cuda()
    model = nn.parallel.DistributedDataParallel(plain, device_ids=[0])
    x = torch.randn(16, 64, device="cuda")
    timed("ddp_step", lambda: model(x).sum().backward())
    plain.zero_grad()
    model(x).sum().backward()
    close("gradient", plain.bias.grad, torch.full((64,), 16.0))
    dist.destroy_process_group()


def main():
    failed = []
    for step in (graph, compiled, generation, loader, distributed):
        print(f"begin {step.__name__}", flush=True)
        try:
            step()
            print(f"ok {step.__name__}", flush=True)
        except Exception as error:  # noqa: BLE001: the others still run
            failed.append(step.__name__)
            print(f"FAILED {step.__name__}: {type(error).__name__}: {str(error)[:300]}", flush=True)
    print(f"FAIL: {', '.join(failed)}" if failed else "PASS")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

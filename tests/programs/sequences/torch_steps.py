"""PyTorch's calls, one kind after the other. Results are not looked at: this also runs where kernels are only recorded."""

import torch
from torch import nn
from steps import Steps

step = Steps()


class State:
    """What one step leaves to the next."""


state = State()


@step("device")
def _():
    assert torch.cuda.is_available()
    return torch.cuda.device_count(), torch.cuda.get_device_properties(0)


@step("copies")
def _():
    x = torch.arange(16.0)
    state.x = x.cuda()
    back = state.x.cpu()
    assert torch.equal(back, x), f"copied to the GPU and back: {back}"
    return back.sum()


@step("fill and add")
def _():
    state.a = torch.ones(1024, 1024, device="cuda")
    return (state.a + state.a)[0, 0].cpu()


@step("reduction")
def _():
    return state.a.sum().item()


@step("matrix product")
def _():
    return (state.a @ state.a)[0, 0].cpu()


@step("matrix product, bfloat16")
def _():
    b = state.a.bfloat16()
    return (b @ b)[0, 0].cpu()


@step("random numbers")
def _():
    return torch.randn(1000, device="cuda").mean().cpu()


@step("sort")
def _():
    return torch.sort(torch.randn(1000, device="cuda")).values[:2].cpu()


@step("training step")
def _():
    state.model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.LayerNorm(64), nn.Linear(64, 10)).cuda()
    optimizer = torch.optim.AdamW(state.model.parameters())
    loss = nn.functional.cross_entropy(state.model(torch.randn(32, 64, device="cuda")),
                                       torch.zeros(32, dtype=torch.long, device="cuda"))
    loss.backward()
    optimizer.step()
    return loss.item()


@step("mixed precision")
def _():
    scaler = torch.amp.GradScaler("cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        loss = state.model(torch.randn(32, 64, device="cuda")).float().square().mean()
    scaler.scale(loss).backward()
    return loss.item()


@step("convolution")
def _():
    conv = nn.Conv2d(3, 16, 3).cuda()
    out = conv(torch.randn(2, 3, 32, 32, device="cuda"))
    out.sum().backward()
    return out.shape


@step("attention")
def _():
    q = torch.randn(2, 4, 64, 32, device="cuda", dtype=torch.float16)
    return nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).float().sum().item()


@step("fft")
def _():
    return torch.fft.fft(torch.randn(256, device="cuda")).abs().sum().item()


@step("linear algebra")
def _():
    m = torch.eye(16, device="cuda")
    return torch.linalg.solve(m, torch.ones(16, device="cuda")).sum().item()


@step("streams and events")
def _():
    stream, start, end = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(stream):
        start.record()
        y = state.a * 2
        end.record()
    torch.cuda.current_stream().wait_stream(stream)
    stream.synchronize()
    assert stream.query() and end.query()
    return start.elapsed_time(end) >= 0, y.shape


@step("pinned memory")
def _():
    pinned = torch.arange(4096.0).pin_memory()
    there = pinned.to("cuda", non_blocking=True)
    back = torch.empty(4096).pin_memory()
    back.copy_(there, non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(back, pinned)


@step("CUDA graph")
def _():
    static = torch.zeros(128, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = static * 2 + 1
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    return out.shape


@step("memory information")
def _():
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total
    torch.cuda.empty_cache()
    return free, total, len(torch.cuda.memory_summary())


@step("utilization")
def _():
    return torch.cuda.utilization()


@step("handle for another process")
def _():
    return len(state.a.untyped_storage()._share_cuda_())


@step("synchronize")
def _():
    torch.cuda.synchronize()


step.run()

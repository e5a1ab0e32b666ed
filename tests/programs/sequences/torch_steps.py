"""PyTorch's calls, one kind after the other. Results are not looked at: this also runs where kernels are only recorded."""

import torch
from torch import nn
from steps import Steps

step = Steps()
torch.manual_seed(0)


class State:
    """What one step leaves to the next."""


state = State()


@step("is_available")
def _():
    return torch.cuda.is_available()


@step("count")
def _():
    return torch.cuda.device_count()


@step("props")
def _():
    return torch.cuda.get_device_properties(0)


@step("tocuda")
def _():
    x = torch.arange(16.0)
    state.x = x.cuda()
    back = state.x.cpu()
    assert torch.equal(back, x), f"copied to the GPU and back: {back}"
    return state.x


@step("mk")
def _():
    state.a = torch.ones(1024, 1024, device="cuda")
    return "ok"


@step("add")
def _():
    return (state.a + state.a)[0, 0].cpu()


@step("sum.item")
def _():
    return state.a.sum().item()


@step("matmul")
def _():
    return (state.a @ state.a)[0, 0].cpu()


@step("bf16 matmul")
def _():
    b = state.a.bfloat16()
    return (b @ b)[0, 0].cpu()


@step("randn")
def _():
    return torch.randn(1000, device="cuda").mean().cpu()


@step("sort")
def _():
    return torch.sort(torch.randn(1000, device="cuda")).values[:2].cpu()


@step("nn fwd/bwd/step")
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


@step("conv2d cudnn")
def _():
    conv = nn.Conv2d(3, 16, 3).cuda()
    out = conv(torch.randn(2, 3, 32, 32, device="cuda"))
    out.sum().backward()
    return out.shape


@step("sdpa")
def _():
    q = torch.randn(2, 4, 64, 32, device="cuda", dtype=torch.float16)
    return nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).float().sum().item()


@step("fft")
def _():
    return torch.fft.fft(torch.randn(256, device="cuda")).abs().sum().item()


@step("linalg.solve")
def _():
    # Whether a matrix was singular is in memory that a kernel writes. Where kernels are only recorded that is whatever it held, and a
    # stream's memory held nothing before.
    with torch.cuda.stream(torch.cuda.Stream()):
        m = torch.eye(16, device="cuda")
        return torch.linalg.solve(m, torch.ones(16, device="cuda")).sum().item()


@step("stream")
def _():
    stream, start, end = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(stream):
        start.record()
        y = state.a * 2
        end.record()
    torch.cuda.current_stream().wait_stream(stream)
    stream.synchronize()
    assert end.query() and start.elapsed_time(end) >= 0 and y.shape == state.a.shape
    return stream.query()


@step("pin")
def _():
    pinned = torch.arange(4096.0).pin_memory()
    there = pinned.to("cuda", non_blocking=True)
    back = torch.empty(4096).pin_memory()
    back.copy_(there, non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(back, pinned)


@step("cudagraph")
def _():
    static = torch.zeros(128, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = static * 2 + 1
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert out.shape == static.shape
    return "ok"


@step("mem_get_info")
def _():
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total
    return free, total


@step("empty_cache")
def _():
    return torch.cuda.empty_cache()


@step("memory_summary")
def _():
    assert "Allocated memory" in torch.cuda.memory_summary()
    return torch.cuda.memory_allocated()


@step("nvml util")
def _():
    part = torch.cuda.utilization()
    assert 0 <= part <= 100
    return part


@step("ipc")
def _():
    device, handle, *_ = shared = state.a.untyped_storage()._share_cuda_()
    assert device == 0 and len(shared) == 8 and any(handle), shared
    return len(handle)


@step("compile")
def _():
    function = torch.compile(lambda x: (x * 2).relu().sum())
    return function(torch.ones(1000, device="cuda")).item()


@step("compile nn bwd")
def _():
    model = torch.compile(nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 1)).cuda())
    loss = model(torch.randn(8, 32, device="cuda")).mean()
    loss.backward()
    return loss.item()


@step("sync")
def _():
    torch.cuda.synchronize()


step.run()

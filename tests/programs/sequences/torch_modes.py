"""PyTorch in another mode: expandable, mallocasync, loader, two-devices, nccl or profiler."""

import os
import sys

MODE = sys.argv[1]
ALLOCATOR = {"expandable": "expandable_segments:True", "mallocasync": "backend:cudaMallocAsync"}
if MODE in ALLOCATOR:
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = ALLOCATOR[MODE]

import torch
from steps import Steps

step = Steps()

if MODE in ALLOCATOR:

    @step("x")
    def _():
        x = torch.arange(3.0).cuda()
        big = [torch.empty(30 << 20, device="cuda") for _ in range(3)]
        del big
        torch.cuda.empty_cache()
        return x.tolist()

    @step("empty")
    def _():
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() == 0

elif MODE == "loader":

    @step("loader")
    def _():
        data = torch.utils.data.TensorDataset(torch.arange(64.0))
        loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=2, pin_memory=True)
        seen = sum(batch.cuda(non_blocking=True).cpu().sum().item() for (batch,) in loader)
        assert seen == 64 * 63 / 2, seen
        return seen

elif MODE == "two-devices":

    @step("n")
    def _():
        return torch.cuda.device_count()

    @step("d1")
    def _():
        return torch.arange(4.0).to("cuda:0").to("cuda:1")

    @step("p2p")
    def _():
        return torch.cuda.can_device_access_peer(0, 1)

elif MODE == "nccl":
    import tempfile

    import torch.distributed as dist

    @step("init")
    def _():
        store = os.path.join(tempfile.mkdtemp(), "store")
        dist.init_process_group("nccl", init_method=f"file://{store}", rank=0, world_size=1, device_id=torch.device("cuda:0"))

    @step("allreduce")
    def _():
        x = torch.arange(16.0).cuda()
        dist.all_reduce(x)
        return x.cpu()[:3]

    @step("DDP")
    def _():
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4).cuda(), device_ids=[0])
        model(torch.ones(2, 4, device="cuda")).sum().backward()
        torch.cuda.synchronize()
        return model.module.weight.grad.shape

    @step("destroy")
    def _():
        dist.destroy_process_group()

elif MODE == "profiler":

    @step("profile")
    def _():
        with torch.profiler.profile() as profile:
            (torch.ones(64, device="cuda") * 2).sum().item()
        events = len(profile.key_averages())
        assert events > 0
        return events

else:
    sys.exit(f"no mode {MODE!r}")

step.run()

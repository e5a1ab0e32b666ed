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

    @step("allocate, free, allocate")
    def _():
        x = torch.arange(3.0).cuda()
        big = [torch.empty(30 << 20, device="cuda") for _ in range(3)]
        del big
        torch.cuda.empty_cache()
        assert x.tolist() == [0.0, 1.0, 2.0]

elif MODE == "loader":

    @step("loader with two workers and pinned memory")
    def _():
        data = torch.utils.data.TensorDataset(torch.arange(64.0))
        loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=2, pin_memory=True)
        seen = sum(batch.cuda(non_blocking=True).cpu().sum().item() for (batch,) in loader)
        assert seen == 64 * 63 / 2, seen

elif MODE == "two-devices":

    @step("copies between two devices")
    def _():
        assert torch.cuda.device_count() == 2
        there = torch.arange(4.0).to("cuda:0").to("cuda:1")
        assert there.tolist() == [0.0, 1.0, 2.0, 3.0], there
        return torch.cuda.can_device_access_peer(0, 1)

elif MODE == "nccl":

    @step("one rank of NCCL")
    def _():
        import torch.distributed as dist

        dist.init_process_group("nccl", init_method="tcp://127.0.0.1:0", rank=0, world_size=1,
                                device_id=torch.device("cuda:0"))
        x = torch.ones(16, device="cuda")
        dist.all_reduce(x)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4).cuda(), device_ids=[0])
        model(torch.ones(2, 4, device="cuda")).sum().backward()
        torch.cuda.synchronize()
        dist.destroy_process_group()

elif MODE == "profiler":

    @step("profiler")
    def _():
        with torch.profiler.profile() as profile:
            (torch.ones(64, device="cuda") * 2).sum().item()
        return len(profile.key_averages())

else:
    sys.exit(f"no mode {MODE!r}")

step.run()

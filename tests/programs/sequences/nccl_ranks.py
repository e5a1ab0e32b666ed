"""Two ranks of NCCL, each with a GPU of another node, over NCCL's sockets.

    nccl_ranks.py RANK RANKS STORE [ORDINAL]     one rank; STORE is a file by which they find each other
    nccl_ranks.py all RANKS STORE                starts them all, each with the device of its number

What is shown: the ranks exchange who they are, connect to each other, and launch the kernels of collectives and of a copy from one
to the other. A driver that computes nothing ends those kernels at once. NCCL's own threads still have to send what these were to
hand over, and would wait for it if they were asked to finish, so each rank aborts its communicator.
"""

import os
import subprocess
import sys

if sys.argv[1] == "all":
    count, store = sys.argv[2:4]
    ranks = [subprocess.Popen([sys.executable, __file__, str(rank), count, store, str(rank)]) for rank in range(int(count))]
    codes = [rank.wait() for rank in ranks]
    print("PASS" if not any(codes) else f"FAIL: {codes}")
    sys.exit(any(codes))

import torch
import torch.distributed as dist
from steps import Steps

rank, ranks = int(sys.argv[1]), int(sys.argv[2])
device = torch.device("cuda", int(sys.argv[4]) if len(sys.argv) > 4 else 0)
step = Steps()


@step("communicator")
def _():
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", init_method=f"file://{sys.argv[3]}", rank=rank, world_size=ranks, device_id=device)
    return dist.get_world_size()


@step("all-reduce")
def _():
    x = torch.full((1 << 20,), float(rank), device=device)
    dist.all_reduce(x)
    torch.cuda.synchronize()


@step("broadcast, all-gather, reduce-scatter")
def _():
    x = torch.ones(1024, device=device)
    dist.broadcast(x, src=0)
    parts = torch.empty(1024 * ranks, device=device)
    dist.all_gather_into_tensor(parts, x)
    dist.reduce_scatter_tensor(x, parts)
    torch.cuda.synchronize()


@step("send and receive")
def _():
    x = torch.ones(1024, device=device)
    dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
    torch.cuda.synchronize()


@step("the other rank got as far")
def _():
    store = dist.distributed_c10d._get_default_store()
    store.set(f"done {rank}", "")
    store.wait([f"done {other}" for other in range(ranks)])


@step("abort")
def _():
    dist.distributed_c10d._abort_process_group()


step.run()

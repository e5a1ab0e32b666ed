"""Two ranks of NCCL whose own kernels run and whose sums are right, without PyTorch: NCCL and the CUDA runtime through ctypes.

    nccl_sums.py PACKAGES RANK RANKS STORE

PACKAGES is the folder that holds the Python packages of NCCL and of the CUDA runtime, STORE a file by which the ranks find each other.
One channel with small buffers, since what a kernel and NCCL's threads hand to each other has to fit into the memory that is live; and
the protocol whose kernels do not go through NCCL's table of all functions.
"""

import ctypes
import glob
import os
import sys
import time
from ctypes import byref, c_char, c_char_p, c_float, c_int, c_size_t, c_void_p

os.environ.update(NCCL_PROTO="LL", NCCL_ALGO="Ring", NCCL_MAX_NCHANNELS="1", NCCL_BUFFSIZE="1048576", NCCL_SOCKET_IFNAME="lo")

packages, rank, ranks, store = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
runtime = ctypes.CDLL(glob.glob(f"{packages}/nvidia/*/lib/libcudart.so.1*")[0])
nccl = ctypes.CDLL(f"{packages}/nvidia/nccl/lib/libnccl.so.2")
nccl.ncclGetLastError.restype = c_char_p

FLOAT = 7
SUM = 0
TO_DEVICE, TO_HOST = 1, 2


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", c_char * 128)]


nccl.ncclCommInitRank.argtypes = [c_void_p, c_int, UniqueId, c_int]


def ok(code, what):
    if code:
        sys.exit(f"FAIL: rank {rank}: {what}: {code}, {nccl.ncclGetLastError(None)}")


def unique_id():
    """Rank 0 makes it and the others read it."""
    made = UniqueId()
    if rank == 0:
        ok(nccl.ncclGetUniqueId(byref(made)), "ncclGetUniqueId")
        with open(store + ".new", "wb") as file:
            file.write(bytes(made))
        os.rename(store + ".new", store)
        return made
    while not os.path.exists(store):
        time.sleep(0.02)
    with open(store, "rb") as file:
        return UniqueId.from_buffer_copy(file.read())


ok(runtime.cudaSetDevice(0), "cudaSetDevice")
communicator = c_void_p()
ok(nccl.ncclCommInitRank(byref(communicator), ranks, unique_id(), rank), "ncclCommInitRank")

for count in [10, 10_000]:
    mine = (c_float * count)(*[(index % 1000) * (rank + 1) for index in range(count)])
    device = c_void_p()
    size = c_size_t(ctypes.sizeof(mine))
    ok(runtime.cudaMalloc(byref(device), size), "cudaMalloc")
    ok(runtime.cudaMemcpy(device, mine, size, TO_DEVICE), "cudaMemcpy")
    ok(nccl.ncclAllReduce(device, device, c_size_t(count), FLOAT, SUM, communicator, None), "ncclAllReduce")
    ok(runtime.cudaDeviceSynchronize(), "cudaDeviceSynchronize")
    ok(runtime.cudaMemcpy(mine, device, size, TO_HOST), "cudaMemcpy")
    all_ranks = ranks * (ranks + 1) // 2
    wrong = [index for index in range(count) if mine[index] != (index % 1000) * all_ranks]
    if wrong:
        sys.exit(f"FAIL: rank {rank}: {len(wrong)} of {count} sums are wrong, the first at {wrong[0]}: {mine[wrong[0]]}")
    ok(runtime.cudaFree(device), "cudaFree")
    print(f"{count} sums of {ranks} ranks", flush=True)

ok(nccl.ncclCommDestroy(communicator), "ncclCommDestroy")
print("PASS")

"""nvidia-ml-py shows the lease: as many GPUs as were asked for, each with the leased memory.

Expects the memory of the lease in bytes as the first argument.
"""

import sys

import numpy as np
import pynvml
from check import check, finish


def text(value):
    return value.decode() if isinstance(value, bytes) else value


pynvml.nvmlInit()
check("one GPU", np.int64(pynvml.nvmlDeviceGetCount()), np.int64(1))
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
memory = pynvml.nvmlDeviceGetMemoryInfo(gpu)
check("leased memory", np.int64(memory.total), np.int64(sys.argv[1]))
check("free and used add up", np.int64(memory.free + memory.used), np.int64(memory.total))
name, uuid = text(pynvml.nvmlDeviceGetName(gpu)), text(pynvml.nvmlDeviceGetUUID(gpu))
print(f"{name} {uuid}, driver {text(pynvml.nvmlSystemGetDriverVersion())}")
check("name", np.bool_(len(name) > 0), np.bool_(True))
check("uuid", np.bool_(uuid.startswith("GPU-")), np.bool_(True))
for known in (uuid, uuid.removeprefix("GPU-")):
    check(f"same GPU by {known}", np.int64(pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(known))), np.int64(0))
check("compute capability", np.bool_(pynvml.nvmlDeviceGetCudaComputeCapability(gpu)[0] >= 7), np.bool_(True))
utilization = pynvml.nvmlDeviceGetUtilizationRates(gpu)
check("utilization", np.bool_(0 <= utilization.gpu <= 100), np.bool_(True))
pynvml.nvmlShutdown()
finish()

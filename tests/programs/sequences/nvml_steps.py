"""What asks NVML: nvidia-ml-py itself, gpustat or nvitop, as the first argument says. The second is the memory of the lease in
MiB, the third the name of its GPU."""

import subprocess
import sys

from steps import Steps

step = Steps()
PROGRAM, MEMORY_MIB, NAME = sys.argv[1], int(sys.argv[2]), sys.argv[3]


def text(value):
    return value.decode() if isinstance(value, bytes) else value


def shown(*command):
    done = subprocess.run([sys.executable, "-m", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout)
    assert done.returncode == 0, f"ended with {done.returncode}"
    return done.stdout


if PROGRAM == "nvidia-ml-py":
    import pynvml

    def gpu():
        return pynvml.nvmlDeviceGetHandleByIndex(0)

    def where_there(ask):
        """The answer, or that the lease has none: it shows nothing of the card that others use, too."""
        try:
            return ask(gpu())
        except pynvml.NVMLError_NotSupported as absent:
            return absent

    @step("init")
    def _():
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetCount() == 1

    @step("versions")
    def _():
        version = pynvml.nvmlSystemGetCudaDriverVersion()
        assert version >= 12000, version
        return text(pynvml.nvmlSystemGetDriverVersion()), version

    @step("name")
    def _():
        assert text(pynvml.nvmlDeviceGetName(gpu())) == NAME
        assert text(pynvml.nvmlDeviceGetUUID(gpu())).startswith("GPU-")
        return pynvml.nvmlDeviceGetCudaComputeCapability(gpu()), text(pynvml.nvmlDeviceGetPciInfo(gpu()).busId)

    @step("memory")
    def _():
        memory = pynvml.nvmlDeviceGetMemoryInfo(gpu())
        assert memory.total == MEMORY_MIB << 20 and memory.free + memory.used == memory.total, memory
        return memory

    @step("utilization")
    def _():
        assert 0 <= pynvml.nvmlDeviceGetUtilizationRates(gpu()).gpu <= 100

    @step("power")
    def _():
        return where_there(pynvml.nvmlDeviceGetPowerUsage)

    @step("processes")
    def _():
        return len(pynvml.nvmlDeviceGetComputeRunningProcesses(gpu()))

    @step("shutdown")
    def _():
        pynvml.nvmlShutdown()

elif PROGRAM == "gpustat":

    @step("gpustat")
    def _():
        table = shown("gpustat", "--no-color", "--show-all")
        assert NAME in table and f"/ {MEMORY_MIB} MB" in table, table

    @step("gpustat --json")
    def _():
        assert f'"memory.total": {MEMORY_MIB}' in shown("gpustat", "--json")

elif PROGRAM == "nvitop":

    @step("nvitop --once")
    def _():
        table = shown("nvitop", "--once", "--no-unicode")
        assert f"/ {MEMORY_MIB}MiB" in table or f"/ {MEMORY_MIB / 1024:.2f}GiB" in table, table

else:
    sys.exit(f"no program {PROGRAM!r}")

step.run()

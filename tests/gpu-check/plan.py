"""The programs of the check, in the order of what they are worth; those that may leave the GPU unwell come last."""

import shutil
from pathlib import Path

from running import python

HERE = Path(__file__).resolve().parent
BIN, PROGRAMS, SOURCES = HERE / "bin", HERE / "programs", HERE / "sources"


class Step:
    """`figures`: whether the program measures itself. `results`: those of its figures that it computes. `kernels`: whether it launches
    any. `parts`: whether it takes the names of parts to leave out in WITHOUT. `build`: what has to be run first, in a folder that
    `{out}` stands for. `repeats`: how often it runs leased, for medians."""

    def __init__(self, name, command, environment=None, needs=None, figures=False, results=(), kernels=True, parts=False, build=None,
                 repeats=1, native_s=90, options=("-p", "1", "--memory", "8GiB")):
        self.name, self.command = name, [str(word) for word in command]
        self.environment = {"SEED": "1", **(environment or {})}
        self.needs, self.figures, self.results, self.kernels, self.parts = needs, figures, results, kernels, parts
        self.build, self.repeats, self.native_s, self.options = build, repeats, native_s, options


def program(name, *arguments):
    return python(PROGRAMS / name, *arguments)


def nvcc():
    return shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")


def built_here(name, *sources, options=()):
    """With the machine's own compiler and its defaults, whose PTX the driver compiles."""
    files = [str(SOURCES / source) for source in sources]
    return Step(f"nvcc here: {name}", ["{out}/program"], build=[nvcc(), *options, "-o", "{out}/program", *files])


def worthy():
    losses = ("first_loss", "last_loss")
    steps = [
        Step("PyTorch arithmetic", program("torch_check.py"), needs="torch"),
        Step("PyTorch training", program("torch_train.py"), needs="torch", figures=True, results=losses),
        Step("cudarc program", [BIN / "cudarc-program"]),
        Step("compute", program("compute.py"), {"SECONDS": "2"}),
        Step("nvcc program", [BIN / "kernels"]),
        Step("PyTorch: graph, compile, generation, loader, DDP", program("torch_more.py"), needs="torch", figures=True, native_s=150),
        Step("calls and copies", [BIN / "calls"], figures=True, repeats=5),
        Step("start", [BIN / "start"], figures=True, repeats=5, kernels=False),
        Step("PyTorch calls", program("sequences/torch_steps.py"), needs="torch"),
        Step("CuPy kernels", program("cupy_kernels.py"), needs="cupy"),
        Step("Transformers generation", program("sequences/transformers_steps.py"), needs="transformers", native_s=120),
        Step("tinygrad", program("tinygrad_train.py"), {"PYTHONPATH": str(HERE / "packages")}, results=losses),
    ]
    return steps + ([built_here("kernels", "kernels.cu")] if nvcc() else [])


def more():
    steps = [
        Step("PyTorch expandable segments", program("sequences/torch_modes.py", "expandable"), needs="torch", kernels=False),
        Step("PyTorch cudaMallocAsync", program("sequences/torch_modes.py", "mallocasync"), needs="torch", kernels=False),
        Step("PyTorch DataLoader", program("sequences/torch_modes.py", "loader"), needs="torch", kernels=False),
        Step("PyTorch NCCL", program("sequences/torch_modes.py", "nccl"), needs="torch"),
        Step("PyTorch profiler", program("sequences/torch_modes.py", "profiler"), needs="torch"),
        Step("numba kernels", program("numba_kernels.py"), needs="numba.cuda"),
        Step("cuda.core", program("cuda_core.py"), needs="cuda.core"),
        Step("JAX calls", program("sequences/jax_steps.py"), needs="jax", native_s=120),
        Step("CuPy calls", program("sequences/cupy_steps.py"), needs="cupy"),
        Step("CuPy textures", program("cupy_textures.py"), needs="cupy"),
        Step("bench kernels", [BIN / "bench-kernels"], figures=True),
        Step("textures", [BIN / "textures"]),
        Step("linked program", [BIN / "linked"]),
        Step("conditional nodes, nvcc", [BIN / "conditionals"]),
        Step("staged launches", [BIN / "staged-launches"]),
        Step("sharing between processes", program("sharing.py"), kernels=False),
        Step("CuPy arrays", program("cupy_arrays.py"), needs="cupy", native_s=180),
    ]
    return steps


def risky():
    """What was written after documentation alone, or ends badly on purpose."""
    return [
        Step("mapped memory while kernels run", [BIN / "handover"]),
        Step("tensor maps", [BIN / "tensor-maps"]),
        Step("driver functions", program("driver_functions.py"), parts=True),
        Step("graphs", program("graphs.py"), parts=True),
        Step("driver attributes", program("driver_attributes.py"), parts=True, kernels=False),
        Step("green contexts", program("green_contexts.py"), kernels=False),
        Step("conditional nodes", program("conditionals.py"), kernels=False),
        Step("processes", [BIN / "processes"], kernels=False),
        Step("refused calls", program("refused.py"), {"COMPUTES": "1"}),
        Step("illegal address", program("illegal_address.py"), {"CODES": "717 719"}, options=("-p", "0.5", "--memory", "2GiB")),
    ]


# Programs of a lease alone, which natively would fail or never end: their options, and whether they launch kernels.
ALONE = [
    Step("memory limit", program("memory_limit.py"), {"MEMORY": str(1 << 30)}, options=("-p", "0.1", "--memory", "1GiB"), kernels=False),
    Step("NVML of a lease", program("nvml_lease.py", 2 << 30), needs="pynvml", options=("-p", "0.5", "--memory", "2GiB"), kernels=False),
]
LAST_ALONE = [
    Step("kernel timeout", program("endless.py"), {"EXPECT": "timeout"}, options=("--kernel-timeout", "500ms")),
    Step("timeout while memory is handed over", [BIN / "handover", "unanswered"], options=("--kernel-timeout", "5s")),
]

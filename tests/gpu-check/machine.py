"""What this machine is like, and what its processes and its driver were doing when something went wrong."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

# Prints the real path of the libcuda.so.1 that a program finds here, what its cuInit says, and its version.
FIND_DRIVER = r"""
import ctypes
library = ctypes.CDLL("libcuda.so.1")
address = ctypes.cast(library.cuInit, ctypes.c_void_p).value
for line in open("/proc/self/maps"):
    low, high = (int(end, 16) for end in line.split()[0].split("-"))
    if low <= address < high:
        print("path", line.split(None, 5)[5].strip())
version = ctypes.c_int()
print("cuInit", library.cuInit(0), flush=True)
library.cuDriverGetVersion(ctypes.byref(version))
print("version", version.value)
"""

PACKAGES = ["torch", "triton", "jax", "jaxlib", "cupy-cuda13x", "cupy-cuda12x", "numba", "numba-cuda", "cuda-core", "cuda-bindings",
            "transformers", "nvidia-ml-py", "numpy"]


def said(command, limit_s=20):
    """What a command of the system prints; never raises."""
    try:
        done = subprocess.run(command, shell=isinstance(command, str), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=limit_s, start_new_session=True)
        return done.stdout.decode(errors="replace").strip()
    except (OSError, subprocess.SubprocessError) as error:
        return f"({error})"


def native_driver():
    """The path of the driver's library that programs find, and what was said of it."""
    output = said([sys.executable, "-c", FIND_DRIVER], 60)
    path = re.search(r"^path (/.*)$", output, re.MULTILINE)
    return path[1] if path else None, output


def versions():
    from importlib import metadata

    lines = [f"python {sys.version.split()[0]} {sys.executable}"]
    for name in PACKAGES:
        try:
            lines.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            lines.append(f"{name} -")
    return "\n".join(lines)


def real_driver():
    """NVIDIA's driver and the card, as NVIDIA's own tool tells them; `None` where there is none."""
    told = said(["nvidia-smi", "--query-gpu=driver_version,name", "--format=csv,noheader"]).splitlines()
    driver = re.fullmatch(r"(\d+(?:\.\d+)+), (.+)", told[0].strip()) if told else None
    return driver.groups() if driver else None


def in_short():
    """A few lines for the top of the output."""
    card = said(["nvidia-smi", "--query-gpu=name,driver_version,memory.total,compute_mode,persistence_mode", "--format=csv,noheader"])
    kernel = os.uname().release
    return f"card: {card}\nkernel {kernel}, {os.confstr('CS_GNU_LIBC_VERSION')}, {os.cpu_count()} CPUs, user {os.getuid()}"


def in_full(driver):
    variables = {name: value for name, value in sorted(os.environ.items())
                 if name.startswith(("CUDA", "NVIDIA", "SLUICE")) or name in ("LD_LIBRARY_PATH", "LD_PRELOAD", "HOME", "TMPDIR", "PATH")}
    parts = [("driver, natively", driver), ("versions", versions()), ("environment", "\n".join(f"{k}={v}" for k, v in variables.items()))]
    for command in ["nvidia-smi -q", "nvidia-smi", "uname -a", "cat /etc/os-release", "id", "lscpu", "free -m", "df -h / /tmp /dev/shm",
                    "bash -c 'ulimit -a'", "nvcc --version", "gcc --version", "ldconfig -p | grep -E 'cuda|nv'", "ls -la /dev/nvidia*",
                    "cat /proc/driver/nvidia/version /proc/driver/nvidia/params", "mount", "cat /proc/sys/kernel/core_pattern",
                    "cat /proc/sys/kernel/yama/ptrace_scope"]:
        parts.append((command, said(command)))
    return "".join(f"=== {title}\n{text}\n" for title, text in parts)


def why_no_driver():
    """For when the node does not start."""
    commands = ["ldconfig -p | grep -E 'cuda|nvidia'", "ls -la /dev/nvidia*", "echo $LD_LIBRARY_PATH",
                "find / -xdev -name 'libcuda.so*' 2>/dev/null | head -20", "find /usr/local/nvidia /usr/lib64-nvidia -name 'libcuda.so*' | head",
                "nvidia-smi -L"]
    return "\n".join(f"$ {command}\n{said(command, 30)}" for command in commands)


def kernel_log():
    """Lines of the kernel's log that matter here."""
    lines = said("dmesg").splitlines()
    return [line for line in lines if re.search(r"NVRM|Xid|segfault|oom|Out of memory|general protection", line)]


def children_of(pid):
    """The processes below one, as /proc has them."""
    below, found = {}, []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit():
                parent = int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
                below.setdefault(parent, []).append(int(entry.name))
        except (OSError, ValueError, IndexError):
            continue
    waiting = [pid]
    while waiting:
        children = below.get(waiting.pop(), [])
        found += children
        waiting += children
    return found


def libcuda_of(pids):
    """The drivers' libraries in these processes' memory."""
    found = set()
    for pid in pids:
        try:
            maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
        except OSError:
            continue
        found.update(re.findall(r"(/\S*cuda\S*\.so\S*)", maps))
    return sorted(found)


def stacks_of(pids, debugged=()):
    """Where the threads of these processes are: as the kernel sees it, and with a debugger where there is one."""
    lines = []
    for pid in pids[:8]:
        lines.append(f"process {pid}: {read(f'/proc/{pid}/cmdline')}")
        try:
            threads = sorted(Path(f"/proc/{pid}/task").iterdir())[:64]
        except OSError:
            continue
        for thread in threads:
            what = [read(thread / name) for name in ("comm", "wchan", "syscall")]
            lines.append(f"  {thread.name} {' | '.join(what)}")
            lines += [f"      {line}" for line in read(thread / "stack").splitlines()[:6]]
    tool = shutil.which("gdb") or shutil.which("cuda-gdb")
    for pid in debugged if tool else ():
        lines.append(said([tool, "-p", str(pid), "-batch", "-ex", "thread apply all bt 12"], 20)[-30_000:])
    return "\n".join(lines)


def read(path):
    try:
        return Path(path).read_bytes()[:4096].decode(errors="replace").replace("\0", " ").strip()
    except OSError as error:
        return f"({error.strerror})"

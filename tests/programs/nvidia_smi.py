"""The stand-in for nvidia-smi: what it says is what CUDA and NVML say, in the layouts that programs read."""

import ctypes
import os
import re
import subprocess
import xml.etree.ElementTree as XML
from ctypes import byref, c_int, c_size_t, c_uint, c_void_p

from driver import allocate, attach, call

GPUTIL = ("index,uuid,utilization.gpu,memory.total,memory.used,memory.free,driver_version,name,gpu_serial,display_active,display_mode,"
          "temperature.gpu")
MIB = 1 << 20


def smi(*arguments, code=0):
    done = subprocess.run(["nvidia-smi", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.returncode == code, (arguments, done)
    return done.stdout if code == 0 else done.stderr


def rows(*arguments):
    return [line.split(", ") for line in smi(*arguments).splitlines()]


attach()
held = allocate(64 * MIB)
count = c_int()
call("cuDeviceGetCount", byref(count))
count = count.value
attach(count - 1)
held_by_last = allocate(128 * MIB)
attach()
buses, totals = [], []
for ordinal in range(count):
    bus, total = ctypes.create_string_buffer(20), c_size_t()
    call("cuDeviceGetPCIBusId", bus, 20, ordinal)
    call("cuDeviceTotalMem_v2", byref(total), ordinal)
    buses.append("0000" + bus.value.decode())
    totals.append(str(total.value // MIB))
nvml = ctypes.CDLL("libnvidia-ml.so.1")
assert nvml.nvmlInit_v2() == 0
for ordinal, bus in enumerate(buses):
    device, index = c_void_p(), c_uint()
    assert nvml.nvmlDeviceGetHandleByPciBusId_v2(bus.encode(), byref(device)) == 0
    assert nvml.nvmlDeviceGetIndex(device, byref(index)) == 0 and index.value == ordinal

found = rows("--query-gpu=index,count,pci.bus_id,memory.total", "--format=csv,noheader,nounits")
assert found == [[str(i), str(count), buses[i], totals[i]] for i in range(count)], found
found = rows(f"--query-gpu={GPUTIL}", "--format=csv,noheader,nounits")
assert [len(row) for row in found] == [12] * count and found[0][8:] == ["[N/A]"] * 4, found
assert 64 <= int(found[0][4]) < 128 <= int(found[-1][4]) and int(found[0][3]) - int(found[0][4]) == int(found[0][5]), found
assert rows("-i", buses[-1], "--query-gpu=index", "--format=csv,noheader") == [[str(count - 1)]]

found = rows("--query-compute-apps=pid,used_memory,gpu_bus_id", "--format=csv")
assert found[0] == ["pid", "used_gpu_memory [MiB]", "gpu_bus_id"], found
used = {(int(pid), bus): int(memory.removesuffix(" MiB")) for pid, memory, bus in found[1:]}
assert 64 <= used[(os.getpid(), buses[0])] < 128 <= used[(os.getpid(), buses[-1])], used

text = smi("-q", "-d", "MEMORY,UTILIZATION")
assert re.search(r"^Attached GPUs +: (\d+)$", text, re.MULTILINE)[1] == str(count), text
assert re.findall(r"^GPU (\S+)$", text, re.MULTILINE) == buses, text
assert re.findall(r"^        Total +: (\d+) MiB$", text, re.MULTILINE) == totals and "Product Name" not in text, text
log = XML.fromstring(smi("-q", "-x"))
assert [gpu.get("id") for gpu in log.iter("gpu")] == buses
assert str(os.getpid()) in [pid.text for pid in log.iter("pid")]
assert len(smi("topo", "-m").split("\n\n")[0].splitlines()) == 1 + count
assert "memory.total" in smi("--help-query-gpu")
# As torch.utils.collect_env looks for it.
assert re.search(r"Driver Version: (.*?) ", smi())[1] == rows("--query-gpu=driver_version", "--format=csv,noheader")[0][0]

# Again and again, until nobody reads any more.
with subprocess.Popen(["nvidia-smi", "--query-gpu=index", "--format=csv,noheader", "-i", "0", "--loop=1"], stdout=subprocess.PIPE) as again:
    assert [again.stdout.readline() for _ in range(2)] == [b"0\n"] * 2
    again.stdout.close()
    assert again.wait() == 0

for wrong in (["--nonsense"], ["dmon"], ["-q", "-d", "NONSENSE"], ["--format=csv"], ["-x"], ["topo"]):
    assert "Usage:" in smi(*wrong, code=2) or "--help" in smi(*wrong, code=2), wrong
assert "nonsense" in smi("--query-gpu=nonsense", "--format=csv", code=1)
assert "no leased GPU is 7" in smi("-i", "7", code=1)
print("PASS")

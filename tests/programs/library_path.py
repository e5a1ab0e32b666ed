"""Uses CUDA and NVML though its library path names neither: NVIDIA's libraries are found without."""

import ctypes
import os

if os.environ["LD_LIBRARY_PATH"] != "/nowhere":
    raise SystemExit("the library path is not the one that this is about")
for library, calls in (("libcuda.so.1", ["cuInit"]), ("libnvidia-ml.so.1", ["nvmlInit_v2", "nvmlShutdown"])):
    loaded = ctypes.CDLL(library)
    for name in calls:
        code = getattr(loaded, name)(0)
        if code != 0:
            raise SystemExit(f"{name}: {code}")
print("PASS")

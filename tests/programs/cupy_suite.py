"""CuPy's own test suite, from its repository, and a page about what does not pass.

    git clone --branch v14.2.0 CUPY'S REPOSITORY cupy
    sluice run -- python tests/programs/cupy_suite.py --tests cupy/tests --state FOLDER [--page docs/cupy.md] [MODULE...]

The environment needs CuPy of that release with its libraries, nvcc (`nvidia-cuda-nvcc`, with `CUDA_PATH`
at its folder and `nvcc` in `PATH`), SciPy and pytest. Most tests run once for each combination of many
parameters. `--sample N` runs about N of each module's, the same ones each time: those whose names have
the smallest hashes.
"""

import os
from importlib import metadata

import suite

# What is tested, as folders of `cupy_tests`.
FOLDERS = ["core", "creation", "indexing", "linalg", "math", "sorting", "statistics", "random", "fft"]

# Takes the sample, in the process of the tests.
PLUGIN = '''import hashlib


def pytest_collection_modifyitems(config, items):
    def place(item):
        return hashlib.sha256(item.nodeid.encode()).digest()

    kept = set(map(id, sorted(items, key=place)[:{sample}]))
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
    items[:] = [item for item in items if id(item) in kept]
'''

REASONS = [
    (r"float128|longdouble", "NumPy's result has the machine's long double."),
    (r"CUFFT_NOT_SUPPORTED", "The test uses callbacks, which our cuFFT does not have."),
    (
        r"test_inplace_same_memory_space",
        "The test adds `x.T` to `x` in place: threads read what others write, without synchronisation. It relies on "
        "all threads of a warp doing each step together.",
    ),
]


def main():
    options = suite.parser("Runs CuPy's own tests.")
    options.add_argument("--tests", required=True, help="the folder `tests` of CuPy's repository")
    options.add_argument("--sample", type=int, help="how many tests of each module to run, instead of all")
    options = options.parse_args()
    options.state = os.path.abspath(options.state)
    os.makedirs(options.state, exist_ok=True)
    plugin = []
    if options.sample:
        with open(os.path.join(options.state, "sluice_sample.py"), "w") as file:
            file.write(PLUGIN.format(sample=options.sample))
        plugin = ["-p", "sluice_sample"]
    # CuPy's tests are imported from here, and CuPy itself is not: there is no such folder.
    os.environ["PYTHONPATH"] = options.state
    folder = os.path.abspath(options.tests)

    def arguments(module, _state):
        file = os.path.join(folder, "cupy_tests", *module.split(".")) + ".py"
        return [*plugin, "--rootdir", folder, "-m", "not slow and not multi_gpu", file]

    sample = f", at most {options.sample} of each module" if options.sample else ""
    tests = suite.Suite(
        title="CuPy's own tests",
        tested=f"of CuPy {metadata.version('cupy-cuda13x')} on the software GPU{sample}",
        program="cupy_suite.py",
        modules=modules(folder),
        arguments=arguments,
        reasons=REASONS,
        group=lambda module: module.split("_tests")[0],
    )
    suite.run(tests, options)


def modules(folder):
    """The names of the test modules, below `cupy_tests`."""
    names = []
    for part in FOLDERS:
        for path, _, files in os.walk(os.path.join(folder, "cupy_tests", part + "_tests")):
            for file in files:
                if file.startswith("test_") and file.endswith(".py"):
                    whole = os.path.join(path, file)
                    names.append(os.path.relpath(whole, os.path.join(folder, "cupy_tests"))[:-3].replace(os.sep, "."))
    return sorted(names)


if __name__ == "__main__":
    main()

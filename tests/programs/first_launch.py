"""How long a program waits until a kernel has run for the first time, and for the second: milliseconds in two lines.

    first_launch.py straight|branches N

The kernel has N multiply-adds one after the other, or N branches that some threads take.
"""

import ctypes
import struct
import sys
import time

from driver import HEADER, allocate, attach, call, launch, load, synchronize

THREADS = 64


def main():
    shape, count = sys.argv[1], int(sys.argv[2])
    attach()
    out = allocate(4 * THREADS)
    begin = time.perf_counter()
    kernel = load(text({"straight": straight, "branches": branches}[shape](count)), "k")
    launch(kernel, 1, THREADS, ctypes.c_uint64(out))
    synchronize()
    first = time.perf_counter()
    launch(kernel, 1, THREADS, ctypes.c_uint64(out))
    synchronize()
    second = time.perf_counter()
    back = ctypes.create_string_buffer(4 * THREADS)
    call("cuMemcpyDtoH_v2", back, ctypes.c_uint64(out), ctypes.c_size_t(4 * THREADS))
    expected = [result(shape, count, thread) for thread in range(THREADS)]
    if list(struct.unpack(f"{THREADS}I", back.raw)) != expected:
        sys.exit("the kernel computed something else")
    print(1e3 * (first - begin), 1e3 * (second - first), sep="\n")


def text(body):
    return (
        HEADER
        + """.visible .entry k(.param .u64 out) {
    .reg .pred %p; .reg .b32 %r<4>; .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd1, %rd1, %rd2;
    mov.u32 %r2, %r1;
"""
        + body
        + "    st.global.u32 [%rd1], %r2;\n    ret;\n}\n"
    )


def straight(count):
    return "".join(f"    mad.lo.u32 %r2, %r2, 3, {step};\n" for step in range(count))


def branches(count):
    step = "    setp.eq.u32 %p, %r1, {0};\n    @%p bra L{1};\n    add.u32 %r2, %r2, {1};\nL{1}:\n"
    return "".join(step.format(number % THREADS, number) for number in range(count))


def result(shape, count, thread):
    value = thread
    for step in range(count):
        if shape == "straight":
            value = value * 3 + step
        elif step % THREADS != thread:
            value += step
    return value % 2**32


if __name__ == "__main__":
    main()

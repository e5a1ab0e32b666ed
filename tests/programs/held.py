"""Holds much memory whose contents it knows, and does what it is told, line by line. Kernels fill and check it, so that it may be
as large as the GPU's.

    held.py BYTES SEED

    check         reads all of it, and says `right`
    compute N     changes all of it N times, and says `computed`
"""

import ctypes
import sys

from driver import HEADER, allocate, attach, clear, launch, load, read_u32, synchronize

# Of `count` words at `words`: `fill` writes word i as i * 2654435761 + start, `add` adds `start` to each, and `verify` counts at
# `wrong` those that are not what `fill` would write.
PROLOGUE = """
    .reg .pred %p<3>;
    .reg .b32 %r<10>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [words];
    ld.param.u32 %r1, [count];
    ld.param.u32 %r2, [start];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.u32 %r6, %r3, %r4, %r5;
    setp.ge.u32 %p1, %r6, %r1;
    @%p1 bra END;
    mul.wide.u32 %rd2, %r6, 4;
    add.u64 %rd1, %rd1, %rd2;
    mad.lo.u32 %r7, %r6, 0x9E3779B1, %r2;
"""
PARAMETERS = ".param .u64 words, .param .u32 count, .param .u32 start"
CODE = HEADER + f"""
.visible .entry fill({PARAMETERS})
{{{PROLOGUE}
    st.global.u32 [%rd1], %r7;
END:
    ret;
}}
.visible .entry add({PARAMETERS})
{{{PROLOGUE}
    ld.global.u32 %r8, [%rd1];
    add.u32 %r8, %r8, %r2;
    st.global.u32 [%rd1], %r8;
END:
    ret;
}}
.visible .entry verify({PARAMETERS}, .param .u64 wrong)
{{{PROLOGUE}
    ld.global.u32 %r8, [%rd1];
    setp.eq.u32 %p2, %r8, %r7;
    @%p2 bra END;
    ld.param.u64 %rd3, [wrong];
    red.global.add.u32 [%rd3], 1;
END:
    ret;
}}
"""
BLOCK = 1 << 30
STEP = 7


def main():
    total, seed = int(sys.argv[1]), int(sys.argv[2])
    attach()
    fill, add, verify = (load(CODE, name) for name in ("fill", "add", "verify"))
    wrong = allocate(4)
    clear(wrong, 4)
    blocks = [(allocate(size), size // 4) for size in (min(BLOCK, total - at) for at in range(0, total, BLOCK))]
    start = seed

    def over_all(kernel, number, *more):
        for address, words in blocks:
            launch(kernel, -(-words // 256), 256, ctypes.c_uint64(address), ctypes.c_uint32(words), ctypes.c_uint32(number), *more)
        synchronize()

    over_all(fill, start)
    print("ready", flush=True)
    for line in sys.stdin:
        if line.startswith("compute"):
            times = int(line.split()[1])
            for _ in range(times):
                over_all(add, STEP)
            start += times * STEP
            print("computed", flush=True)
        else:
            over_all(verify, start, ctypes.c_uint64(wrong))
            if bad := read_u32(wrong):
                sys.exit(f"{bad} words are wrong")
            print("right", flush=True)


if __name__ == "__main__":
    main()

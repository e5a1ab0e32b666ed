"""Launches kernels that succeed and are wrong, for `sluice run --sanitize`.

The argument says what is wrong: nothing, bounds, uninitialized, race, or leak.
"""

import ctypes
import sys

from driver import HEADER, allocate, attach, call, clear, free, launch, load, synchronize

THREADS = 64

# Written by hand with the line information that compilers write.
SCALE = HEADER + """
.visible .entry _Z5scalePfi(.param .u64 x, .param .u32 n)
{
    .reg .pred %p<2>;
    .reg .f32 %f<2>;
    .reg .b32 %r<3>;
    .reg .b64 %rd<4>;
    .loc 1 8 0
    ld.param.u64 %rd1, [x];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %tid.x;
    setp.gt.s32 %p1, %r2, %r1;
    @%p1 bra DONE;
    .loc 1 11 0
    mul.wide.s32 %rd2, %r2, 4;
    add.s64 %rd3, %rd1, %rd2;
    ld.global.f32 %f1, [%rd3];
    .loc 1 12 0
    mul.f32 %f1, %f1, 0f40000000;
    st.global.f32 [%rd3], %f1;
DONE:
    ret;
}
    .file 1 "scale.cu"
"""

REVERSE = HEADER + """
.visible .entry reverse(.param .u64 x)
{
    .reg .b32 %r<8>;
    .reg .b64 %rd<4>;
    .shared .align 4 .b8 s[256];
    ld.param.u64 %rd1, [x];
    mov.u32 %r1, s;
    mov.u32 %r2, %tid.x;
    mad.lo.u32 %r3, %r2, 4, %r1;
    st.shared.u32 [%r3], %r2;
    xor.b32 %r4, %r2, 63;
    mad.lo.u32 %r5, %r4, 4, %r1;
    ld.shared.u32 %r6, [%r5];
    mul.wide.u32 %rd2, %r2, 4;
    add.u64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r6;
    ret;
}
"""

what = sys.argv[1]
attach()
x = allocate(4 * THREADS)
if what != "uninitialized":
    clear(x, 4 * THREADS)
if what == "race":
    launch(load(REVERSE, "reverse"), 1, THREADS, ctypes.c_uint64(x))
else:
    # The guard lets one thread more through than it should.
    count = THREADS if what == "bounds" else THREADS - 1
    launch(load(SCALE, "_Z5scalePfi"), 1, THREADS + 1, ctypes.c_uint64(x), ctypes.c_int32(count))
synchronize()
results = (ctypes.c_uint32 * THREADS)()
call("cuMemcpyDtoH_v2", results, ctypes.c_uint64(x), ctypes.c_size_t(4 * THREADS))
if what != "leak":
    free(x)
synchronize()
print("PASS")

"""Launches a kernel with two branches, for `sluice run --coverage`.

`covered.py source 15` launches it with the limit 15, above which threads take the second branch;
`plain` instead of `source` leaves the line information out of its PTX.
"""

import ctypes
import sys

from driver import HEADER, allocate, attach, call, launch, load, synchronize

THREADS = 64

# Written by hand with the line information that compilers write.
LIMIT = HEADER + """
.visible .entry _Z5limitPjj(.param .u64 x, .param .u32 most)
{
    .reg .pred %p<2>;
    .reg .b32 %r<3>;
    .reg .b64 %rd<4>;
    .loc 1 3 0
    ld.param.u64 %rd1, [x];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd3, %rd1, %rd2;
    .loc 1 4 0
    ld.param.u32 %r2, [most];
    setp.gt.u32 %p1, %r1, %r2;
    @%p1 bra MORE;
    .loc 1 5 0
    st.global.u32 [%rd3], %r1;
    bra DONE;
MORE:
    .loc 1 7 0
    st.global.u32 [%rd3], %r2;
DONE:
    .loc 1 9 0
    ret;
}
.visible .entry _Z6unusedv()
{
    .loc 1 13 0
    ret;
}
    .file 1 "limit.cu"
"""

form, most = sys.argv[1], int(sys.argv[2])
text = LIMIT
if form == "plain":
    text = "".join(line for line in LIMIT.splitlines(True) if not line.lstrip().startswith((".loc", ".file")))
attach()
x = allocate(4 * THREADS)
launch(load(text, "_Z5limitPjj"), 1, THREADS, ctypes.c_uint64(x), ctypes.c_uint32(most))
synchronize()
results = (ctypes.c_uint32 * THREADS)()
call("cuMemcpyDtoH_v2", results, ctypes.c_uint64(x), ctypes.c_size_t(4 * THREADS))
assert list(results) == [min(thread, most) for thread in range(THREADS)], list(results)
print("PASS")

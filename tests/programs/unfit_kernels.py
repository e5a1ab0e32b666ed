"""Kernels that the software GPU cannot run. Why is for the program's user to read, wherever the kernel was to run: this
program only gets the codes.
"""

import ctypes

from driver import HEADER, allocate, attach, call, code_of, load

INVALID_PTX, ILLEGAL_INSTRUCTION = 218, 715

# Each thread has more local memory than CUDA has for one. The loop keeps all of it in use.
LARGE = HEADER + """
.visible .entry large(.param .u64 out)
{
    .local .align 4 .b8 many[1048576];
    .reg .pred %p<2>;
    .reg .b32 %r<3>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [out];
    mov.u64 %rd2, many;
    mov.u32 %r1, 0;
again:
    st.local.u32 [%rd2], %r1;
    add.u64 %rd2, %rd2, 4096;
    add.u32 %r1, %r1, 1;
    setp.lt.u32 %p1, %r1, 256;
    @%p1 bra again;
    ld.local.u32 %r2, [many+4096];
    st.global.u32 [%rd1], %r2;
    ret;
}
"""

# An instruction of one architecture's alone.
UNKNOWN = HEADER + """
.visible .entry unknown(.param .u64 out)
{
    wgmma.fence.sync.aligned;
    ret;
}
"""


def launch_and_wait(text, name):
    """The code of a launch, or of the wait behind it."""
    out = ctypes.c_uint64(allocate(4))
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(out))
    code = code_of("cuLaunchKernel", load(text, name), 1, 1, 1, 1, 1, 1, 0, None, arguments, None)
    return code or code_of("cuCtxSynchronize")


attach()
code = launch_and_wait(LARGE, "large")
assert code == INVALID_PTX, code
call("cuCtxSynchronize")
code = launch_and_wait(UNKNOWN, "unknown")
assert code == ILLEGAL_INSTRUCTION, code
print("PASS")

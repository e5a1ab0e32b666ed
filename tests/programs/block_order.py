"""Prints the numbers that 64 blocks of a kernel took, by the blocks' indices."""

import ctypes

from driver import HEADER, allocate, attach, call, clear, launch, load, synchronize

BLOCKS = 64

TICKETS = HEADER + """
.visible .entry tickets(.param .u64 next, .param .u64 out)
{
    .reg .b32 %r<3>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [next];
    ld.param.u64 %rd2, [out];
    atom.global.add.u32 %r1, [%rd1], 1;
    mov.u32 %r2, %ctaid.x;
    mul.wide.u32 %rd3, %r2, 4;
    add.u64 %rd4, %rd2, %rd3;
    st.global.u32 [%rd4], %r1;
    ret;
}
"""

attach()
tickets = load(TICKETS, "tickets")
taken, out = allocate(4), allocate(4 * BLOCKS)
clear(taken, 4)
launch(tickets, BLOCKS, 1, ctypes.c_uint64(taken), ctypes.c_uint64(out))
synchronize()
numbers = (ctypes.c_uint32 * BLOCKS)()
call("cuMemcpyDtoH_v2", numbers, ctypes.c_uint64(out), ctypes.c_size_t(4 * BLOCKS))
assert sorted(numbers) == list(range(BLOCKS)), list(numbers)
print("order", *numbers)
print("PASS")

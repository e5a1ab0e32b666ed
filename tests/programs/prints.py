"""A kernel prints a line; whoever has waited for it finds that line before its own."""

import ctypes
import sys

from driver import HEADER, attach, launch, load, synchronize

TEXT = "from the device\n"

PRINTS = HEADER + f"""
.extern .func (.param .b32 status) vprintf(.param .b64 format, .param .b64 arguments);
.global .align 1 .b8 text[{len(TEXT) + 1}] = {{{", ".join(str(byte) for byte in TEXT.encode())}, 0}};
.visible .entry prints(.param .u64 nothing)
{{
    .reg .b32 %r<2>;
    .reg .b64 %rd<4>;
    mov.u64 %rd1, text;
    cvta.global.u64 %rd2, %rd1;
    {{
        .param .b64 format;
        st.param.b64 [format], %rd2;
        .param .b64 arguments;
        mov.u64 %rd3, 0;
        st.param.b64 [arguments], %rd3;
        .param .b32 status;
        call.uni (status), vprintf, (format, arguments);
        ld.param.b32 %r1, [status];
    }}
    ret;
}}
"""

attach()
prints = load(PRINTS, "prints")
for turn in range(3):
    launch(prints, 1, 1, ctypes.c_uint64(0))
    synchronize()
    print("waited", turn)
    sys.stdout.flush()
print("PASS")

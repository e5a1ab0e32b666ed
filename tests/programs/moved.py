"""Holds memory whose contents it knows, and does what it is told, line by line: for tests that move the memory meanwhile.

    moved.py BYTES SEED

    check       reads all of it, and says `right`
    compute     changes all of it by a kernel, and says `computed`
"""

import ctypes
import sys

from driver import HEADER, allocate, attach, call, launch, load, synchronize

# Adds `more` to each of `count` words.
ADD = HEADER + """
.visible .entry add(.param .u64 words, .param .u32 count, .param .u32 more)
{
    .reg .pred %p<2>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [words];
    ld.param.u32 %r1, [count];
    ld.param.u32 %r2, [more];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.u32 %r6, %r3, %r4, %r5;
    setp.ge.u32 %p1, %r6, %r1;
    @%p1 bra END;
    mul.wide.u32 %rd2, %r6, 4;
    add.u64 %rd1, %rd1, %rd2;
    ld.global.u32 %r7, [%rd1];
    add.u32 %r7, %r7, %r2;
    st.global.u32 [%rd1], %r7;
END:
    ret;
}
"""

# Several commitments: of one extent, of several, and of a part of one.
BLOCK = 100 << 20
PIECE = 4 << 20


def main():
    total, seed = int(sys.argv[1]), int(sys.argv[2])
    attach()
    add = load(ADD, "add")
    blocks = [(allocate(size), size) for size in (min(BLOCK, total - at) for at in range(0, total, BLOCK))]
    pattern = (ctypes.c_uint32 * (PIECE // 4))()
    added = 0

    def pieces():
        for address, size in blocks:
            for at in range(0, size, PIECE):
                yield address + at, min(PIECE, size - at)

    def expect(address, size):
        first = (address >> 12) * 2654435761 + seed + added
        return b"".join(((first + word) & 0xFFFFFFFF).to_bytes(4, "little") for word in range(16)) * (size // 64)

    for address, size in pieces():
        call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), expect(address, size), ctypes.c_size_t(size))
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "compute":
            for address, size in blocks:
                words = size // 4
                launch(add, -(-words // 256), 256, ctypes.c_uint64(address), ctypes.c_uint32(words), ctypes.c_uint32(7))
            synchronize()
            added += 7
            print("computed", flush=True)
            continue
        for address, size in pieces():
            call("cuMemcpyDtoH_v2", pattern, ctypes.c_uint64(address), ctypes.c_size_t(size))
            if ctypes.string_at(pattern, size) != expect(address, size):
                sys.exit(f"wrong at {address:#x}")
        print("right", flush=True)


if __name__ == "__main__":
    sys.exit(main())

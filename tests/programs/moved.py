"""Holds memory whose contents it knows, and does what it is told, line by line: for tests that move the memory meanwhile.

    moved.py BYTES SEED [graph]

    check       reads all of it, and says `right`
    compute     changes all of it by a kernel, and says `computed`
    child       has a process of its own do both with a small piece, and says `child right`

With `graph` it also holds a graph.
"""

import ctypes
import subprocess
import sys

from driver import HEADER, allocate, attach, call, load_module, launch, function_of, read_u32, synchronize

# `add` adds `more` to each of `count` words, and its first thread counts launches in a variable, which `tell` copies by way of local
# memory.
CODE = HEADER + """
.global .u32 launches = 100;
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
    setp.ne.u32 %p1, %r6, 0;
    @%p1 bra END;
    mov.u64 %rd3, launches;
    red.global.add.u32 [%rd3], 1;
END:
    ret;
}
.visible .entry tell(.param .u64 word)
{
    .local .align 4 .b8 depot[4096];
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [word];
    ld.global.u32 %r1, [launches];
    mov.u64 %rd2, depot;
    and.b32 %r2, %r1, 1020;
    cvt.u64.u32 %rd3, %r2;
    add.u64 %rd2, %rd2, %rd3;
    st.local.u32 [%rd2], %r1;
    ld.local.u32 %r3, [%rd2];
    st.global.u32 [%rd1], %r3;
    ret;
}
"""

# Several commitments: of one extent, of several, and of a part of one.
BLOCK = 100 << 20
PIECE = 4 << 20


def main():
    total, seed = int(sys.argv[1]), int(sys.argv[2])
    attach()
    module = load_module(CODE)
    add, tell = function_of(module, "add"), function_of(module, "tell")
    word, event, stream = allocate(4), ctypes.c_void_p(), ctypes.c_void_p()
    call("cuEventCreate", ctypes.byref(event), 0)
    call("cuStreamCreateWithPriority", ctypes.byref(stream), 1, 0)
    if "graph" in sys.argv[3:]:
        call("cuGraphCreate", ctypes.byref(ctypes.c_void_p()), 0)
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
            call("cuEventRecord", event, None)
            call("cuStreamWaitEvent", stream, event, 0)
            call("cuStreamSynchronize", stream)
            added += 7
            print("computed", flush=True)
            continue
        if line.strip() == "child":
            child = [sys.executable, __file__, str(PIECE), str(seed)]
            done = subprocess.run(child, input="compute\ncheck\n", stdout=subprocess.PIPE, text=True, check=True)
            print("child right" if done.stdout.split() == ["ready", "computed", "right"] else done.stdout, flush=True)
            continue
        for address, size in pieces():
            call("cuMemcpyDtoH_v2", pattern, ctypes.c_uint64(address), ctypes.c_size_t(size))
            if ctypes.string_at(pattern, size) != expect(address, size):
                sys.exit(f"wrong at {address:#x}")
        call("cuEventSynchronize", event)
        launch(tell, 1, 1, ctypes.c_uint64(word))
        synchronize()
        if read_u32(word) != 100 + added // 7 * len(blocks):
            sys.exit(f"{read_u32(word)} launches were counted")
        print("right", flush=True)


if __name__ == "__main__":
    sys.exit(main())

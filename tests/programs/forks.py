"""A program that loads a model and forks, for `SLUICE_FORK=clone`: each child continues with a session of its own.

    forks.py workers BYTES    children and a grandchild compute beside their parent, and none sees what another writes
    forks.py threads BYTES    the same, while another thread of the parent computes
    forks.py pool BYTES       by `multiprocessing`
    forks.py orphans BYTES    the parent ends first
    forks.py killed BYTES     the parent is killed while it forks
    forks.py refused BYTES    children get no session: `CODE` says what their calls are to answer
    forks.py held BYTES       it forks while a host function of its own has not returned
    forks.py timed BYTES      says how long it takes until a child has its session
"""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time

from driver import HEADER, allocate, attach, call, clear, code_of, free, function_of, launch, load_module, read_u32, synchronize

# `fill` writes a pattern to `count` words, `add` changes each, and `count` counts the words that are not pattern plus `more`. The variable
# counts launches of `add`.
CODE = HEADER + """
.global .u32 launches = 100;
.visible .entry fill(.param .u64 words, .param .u32 count)
{
    .reg .pred %p<2>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [words];
    ld.param.u32 %r1, [count];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.u32 %r6, %r3, %r4, %r5;
    setp.ge.u32 %p1, %r6, %r1;
    @%p1 bra END;
    mul.wide.u32 %rd2, %r6, 4;
    add.u64 %rd1, %rd1, %rd2;
    mul.lo.u32 %r7, %r6, 2654435761;
    st.global.u32 [%rd1], %r7;
END:
    ret;
}
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
.visible .entry count(.param .u64 words, .param .u32 count, .param .u32 more, .param .u64 wrong)
{
    .reg .pred %p<2>;
    .reg .b32 %r<10>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [words];
    ld.param.u32 %r1, [count];
    ld.param.u32 %r2, [more];
    ld.param.u64 %rd3, [wrong];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.u32 %r6, %r3, %r4, %r5;
    setp.ge.u32 %p1, %r6, %r1;
    @%p1 bra END;
    mul.wide.u32 %rd2, %r6, 4;
    add.u64 %rd1, %rd1, %rd2;
    ld.global.u32 %r7, [%rd1];
    mul.lo.u32 %r8, %r6, 2654435761;
    add.u32 %r8, %r8, %r2;
    setp.eq.u32 %p1, %r7, %r8;
    @%p1 bra END;
    red.global.add.u32 [%rd3], 1;
END:
    ret;
}
.visible .entry tell(.param .u64 word)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [word];
    ld.global.u32 %r1, [launches];
    st.global.u32 [%rd1], %r1;
    ret;
}
"""

# Several commitments.
BLOCK = 40 << 20


class Model:
    """Memory with a pattern, to which `added` has been added by `launches` launches."""

    def __init__(self, total):
        attach()
        self.module = load_module(CODE)
        self.kernels = {name: function_of(self.module, name) for name in ("fill", "add", "count", "tell")}
        self.word, self.event, self.stream = allocate(4), ctypes.c_void_p(), ctypes.c_void_p()
        call("cuEventCreate", ctypes.byref(self.event), 0)
        call("cuStreamCreateWithPriority", ctypes.byref(self.stream), 1, 0)
        self.blocks = [(allocate(size), size) for size in (min(BLOCK, total - at) for at in range(0, total, BLOCK))]
        self.added, self.launches = 0, 0
        self.each("fill")
        synchronize()

    def each(self, name, *more):
        for address, size in self.blocks:
            words = size // 4
            launch(self.kernels[name], -(-words // 256), 256, ctypes.c_uint64(address), ctypes.c_uint32(words), *more)

    def compute(self, more):
        """Changes all of it; the work need not have finished."""
        self.each("add", ctypes.c_uint32(more))
        call("cuEventRecord", self.event, None)
        call("cuStreamWaitEvent", self.stream, self.event, 0)
        self.added, self.launches = self.added + more & 0xFFFFFFFF, self.launches + len(self.blocks)

    def check(self):
        call("cuStreamSynchronize", self.stream)
        call("cuEventSynchronize", self.event)
        clear(self.word, 4)
        self.each("count", ctypes.c_uint32(self.added), ctypes.c_uint64(self.word))
        wrong = read_u32(self.word)
        assert wrong == 0, f"process {os.getpid()}: {wrong} words are wrong"
        launch(self.kernels["tell"], 1, 1, ctypes.c_uint64(self.word))
        told = read_u32(self.word)
        assert told == 100 + self.launches, f"process {os.getpid()}: {told} launches were counted, and {self.launches} made"

    def go_on(self, rounds, number):
        """What a worker does: it changes what it has got, and makes more of its own."""
        self.check()
        for round in range(rounds):
            self.compute(number + round)
            self.check()
        own = allocate(1 << 20)
        module = load_module(CODE)
        launch(function_of(module, "fill"), 1024, 256, ctypes.c_uint64(own), ctypes.c_uint32(1 << 18))
        assert read_u32(own + 4) == 2654435761
        call("cuModuleUnload", module)
        free(own)
        self.check()


def forked(body):
    """Runs it in a child, and returns the child's process."""
    sys.stdout.flush()
    child = os.fork()
    if child != 0:
        return child
    code = 1
    try:
        body()
        code = 0
    except BaseException as error:
        print(f"process {os.getpid()}: {error!r}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(code)


def ended(child):
    _, status = os.waitpid(child, 0)
    assert status == 0, f"process {child} ended with {status}"


class Step:
    """Processes wait for each other here: each says that it has come, and hears when all have."""

    def __init__(self, count):
        self.count, self.come, self.go = count, os.pipe(), os.pipe()

    def arrive(self):
        os.write(self.come[1], b".")
        assert os.read(self.go[0], 1)

    def lead(self):
        for _ in range(self.count):
            assert os.read(self.come[0], 1)
        os.write(self.go[1], b"." * self.count)


def workers(total):
    model = Model(total)
    # Work is under way when it forks.
    model.compute(7)
    begun, written = Step(2), Step(2)

    def worker(number):
        begun.arrive()
        model.go_on(3, 1000 * number)
        if number == 1:
            ended(forked(lambda: model.go_on(1, 5)))
            model.check()
        written.arrive()
        # The parent and the other one have written meanwhile.
        model.check()

    children = [forked(lambda number=number: worker(number)) for number in (1, 2)]
    model.check()
    begun.lead()
    model.compute(11)
    model.check()
    written.lead()
    for child in children:
        ended(child)
    model.check()


class Storage:
    """The hidden table with which the CUDA runtime attaches values to contexts; each of its calls begins there."""

    KEY = 0x5107

    def __init__(self):
        uuid = (ctypes.c_uint8 * 16)(*bytes.fromhex("C693336E1121DF11A8C368F355D89593"))
        table = ctypes.POINTER(ctypes.c_void_p)()
        call("cuGetExportTable", ctypes.byref(table), uuid)
        pointer = ctypes.c_void_p
        self.slot_put = ctypes.CFUNCTYPE(ctypes.c_int, pointer, pointer, pointer, pointer)(table[0])
        self.slot_get = ctypes.CFUNCTYPE(ctypes.c_int, pointer, pointer, pointer)(table[2])

    def put(self, word):
        assert self.slot_put(None, self.KEY, word, None) == 0

    def check(self, word):
        got = ctypes.c_void_p()
        assert self.slot_get(ctypes.byref(got), None, self.KEY) == 0 and got.value == word, got


def threads(total):
    model, is_over, wrong, storage = Model(total), threading.Event(), [], Storage()
    storage.put(1)
    call("cuCtxGetCurrent", ctypes.byref(context := ctypes.c_void_p()))

    def busy():
        try:
            call("cuCtxSetCurrent", context)
            own = allocate(4096)
            while not is_over.is_set():
                launch(model.kernels["fill"], 4, 256, ctypes.c_uint64(own), ctypes.c_uint32(1024))
                assert read_u32(own + 4) == 2654435761
                free(allocate(1 << 16))
        except BaseException as error:
            wrong.append(error)

    def child(number):
        storage.check(1)
        storage.put(2)
        storage.check(2)
        model.go_on(1, number)

    others = [threading.Thread(target=run) for run in (busy, busy)]
    for other in others:
        other.start()
    for number in range(5):
        ended(forked(lambda: child(number)))
        model.check()
    is_over.set()
    for other in others:
        other.join()
    assert not wrong, wrong
    model.check()


MODEL = None


def task(number):
    MODEL.go_on(1, number)
    return MODEL.added


def pool(total):
    global MODEL
    MODEL = Model(total)
    with multiprocessing.get_context("fork").Pool(2) as processes:
        results = processes.map(task, range(4), chunksize=1)
    assert all(results[1:]), results
    MODEL.check()


def orphans(total):
    go, done = os.pipe(), os.pipe()

    def orphan(model, number):
        # Its parent has ended by then.
        assert os.read(go[0], 1)
        model.go_on(2, number)
        os.write(done[1], b".")

    def parent():
        model = Model(total)
        for number in (1, 2):
            forked(lambda number=number: orphan(model, number))

    ended(forked(parent))
    os.write(go[1], b"..")
    os.close(done[1])
    got = b""
    while piece := os.read(done[0], 2):
        got += piece
    assert got == b"..", f"{len(got)} of 2 children were right"


def killed(total):
    forks = os.pipe()

    def parent():
        model = Model(total)
        while True:
            os.write(forks[1], b".")
            ended(forked(model.check))

    for count in (1, 2, 4):
        child = forked(parent)
        for _ in range(count):
            os.read(forks[0], 1)
        # It is about to fork, forks, or waits for its child.
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    print("killed", flush=True)
    # Until the test has seen that nothing is left of them.
    sys.stdin.readline()


def hold_host_memory():
    """`CUmemAllocationProp`: pinned, no handle to share, on the host."""
    prop = (ctypes.c_uint32 * 8)(1, 0, 2, 0)
    call("cuMemCreate", ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(2 << 20), prop, ctypes.c_uint64(0))


def refused(total):
    code = int(os.environ["CODE"])
    model = Model(total)
    if "GRAPH" in os.environ:
        call("cuGraphCreate", ctypes.byref(ctypes.c_void_p()), 0)

    if "HOST_MEMORY" in os.environ:
        hold_host_memory()

    def child():
        address = ctypes.c_uint64()
        answers = [code_of("cuInit", 0), code_of("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(4))]
        answers.append(code_of("cuCtxSynchronize"))
        assert answers == [code] * 3, f"{answers} instead of {code}"

    for _ in range(2):
        ended(forked(child))
        model.compute(3)
        model.check()


def held(total):
    """`os.fork` keeps Python's lock, without which the function cannot return."""
    code = int(os.environ["CODE"])
    model, begun, released = Model(total), os.pipe(), os.pipe()

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def hold(_):
        os.write(begun[1], b".")
        os.read(released[0], 1)

    call("cuLaunchHostFunc", model.stream, hold, None)
    assert os.read(begun[0], 1)

    def child():
        answers = [code_of("cuInit", 0), code_of("cuCtxSynchronize")]
        assert answers == [code] * 2, f"{answers} instead of {code}"

    ended(forked(child))
    os.write(released[1], b".")
    model.check()
    # It can be cloned again.
    ended(forked(model.check))
    model.check()


def timed(total):
    model = Model(total)
    for round in range(int(os.environ.get("ROUNDS", "3"))):
        if "WRITES" in os.environ:
            model.compute(1)
            synchronize()
        ends = os.pipe()
        begin = time.monotonic()

        def child():
            word = read_u32(model.blocks[0][0] + 4)
            os.write(ends[1], b".")
            assert word != 0

        process = forked(child)
        forked_s = time.monotonic() - begin
        os.read(ends[0], 1)
        ready_s = time.monotonic() - begin
        ended(process)
        print(f"fork {forked_s * 1000:.1f} ms, first answer of the child {ready_s * 1000:.1f} ms", flush=True)


def main():
    globals()[sys.argv[1]](int(sys.argv[2]))
    print("PASS")


if __name__ == "__main__":
    main()

// Kernels and host threads that hand each other data through mapped host memory while the kernel runs, as collective libraries do:
// whoever has written data sets a flag, and the other reads the data once it sees the flag.
//
//     handover [SCALE]         everything, on each device; so many times as many rounds
//     handover unanswered      a kernel that is served for a while and then no more, until its time is up
//
// What is shown: nothing is seen before what was written before it, in either direction, however the data lie; a kernel that nobody
// serves goes on when it is served; two ranks add up what they have through their kernels, two host threads and a pipe.

#include <cuda/atomic>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include <unistd.h>

#define CHECK(call)                                                                                    \
    do {                                                                                               \
        cudaError_t error = (call);                                                                    \
        if (error != cudaSuccess) {                                                                    \
            std::printf("FAIL: %s: %s (line %d)\n", #call, cudaGetErrorString(error), __LINE__);      \
            std::exit(1);                                                                              \
        }                                                                                              \
    } while (0)

static void expect(bool holds, const char* what, long number) {
    if (!holds) {
        std::printf("FAIL: %s (%ld)\n", what, number);
        std::exit(1);
    }
}

using system_atomic = cuda::atomic_ref<uint64_t, cuda::thread_scope_system>;

/// Mapped memory as both sides know it.
struct Mapped {
    uint64_t* host;
    uint64_t* device;
};

static Mapped mapped(size_t words) {
    Mapped memory;
    CHECK(cudaHostAlloc(&memory.host, words * sizeof(uint64_t), cudaHostAllocMapped));
    std::memset(memory.host, 0, words * sizeof(uint64_t));
    CHECK(cudaHostGetDevicePointer(reinterpret_cast<void**>(&memory.device), memory.host, 0));
    // With unified addresses a kernel may be given the program's pointer.
    expect(memory.device == memory.host, "mapped memory has two addresses", static_cast<long>(words));
    return memory;
}

static uint64_t host_load(uint64_t* word) {
    return reinterpret_cast<std::atomic<uint64_t>*>(word)->load(std::memory_order_acquire);
}

static void host_store(uint64_t* word, uint64_t value) {
    reinterpret_cast<std::atomic<uint64_t>*>(word)->store(value, std::memory_order_release);
}

static void host_wait(uint64_t* flag, uint64_t value) {
    while (host_load(flag) < value) std::this_thread::yield();
}

/// Of what a round's data consist.
__host__ __device__ inline uint64_t datum(uint64_t round, uint64_t index) {
    return (round * 0x9E3779B97F4A7C15u) ^ (index * 0xD1B54A32D192ED03u);
}

// ---- There and back: each round one side writes `count` words and then its flag, the other checks and answers in kind.

/// Threads of a block take part: the first one waits and tells, all of them read and write.
__global__ void answer(uint64_t* to_device, uint64_t* to_host, uint64_t* flags, int flag_here, int flag_there, int count,
                       int stride, uint64_t rounds, unsigned long long* wrong) {
    system_atomic asked(flags[flag_here]), answered(flags[flag_there]);
    for (uint64_t round = 1; round <= rounds; ++round) {
        if (threadIdx.x == 0) {
            while (asked.load(cuda::memory_order_acquire) < round) {}
        }
        __syncthreads();
        for (int index = threadIdx.x; index < count; index += blockDim.x) {
            uint64_t got = reinterpret_cast<volatile uint64_t*>(to_device)[index * stride];
            if (got != datum(round, index)) atomicAdd(wrong, 1ull);
            to_host[index * stride] = ~got;
        }
        __syncthreads();
        if (threadIdx.x == 0) answered.store(round, cuda::memory_order_release);
    }
}

static void there_and_back(int count, int stride, bool flag_first, bool same_page, uint64_t rounds) {
    size_t words = static_cast<size_t>(count) * stride + 8;
    // Flags of a page of their own, or among the data, before or behind them.
    Mapped flags = mapped(1024);
    Mapped there = mapped(words + 1024), back = mapped(words + 1024);
    uint64_t *asked = flags.host, *answered = flags.host + 512;
    uint64_t* device_flags = flags.device;
    int here_at = 0, there_at = 512;
    size_t first = 0;
    if (same_page) {
        // Both flags lie in the memory of the data; one address serves both directions.
        asked = flag_first ? there.host : there.host + words;
        answered = asked + 4;
        device_flags = there.device;
        here_at = flag_first ? 0 : static_cast<int>(words);
        there_at = here_at + 4;
        first = flag_first ? 8 : 0;
    }
    unsigned long long* wrong;
    CHECK(cudaMalloc(&wrong, sizeof *wrong));
    CHECK(cudaMemset(wrong, 0, sizeof *wrong));
    answer<<<1, 64>>>(there.device + first, back.device, device_flags, here_at, there_at, count, stride, rounds, wrong);
    CHECK(cudaGetLastError());
    for (uint64_t round = 1; round <= rounds; ++round) {
        for (int index = 0; index < count; ++index) there.host[first + static_cast<size_t>(index) * stride] = datum(round, index);
        host_store(asked, round);
        host_wait(answered, round);
        for (int index = 0; index < count; ++index) {
            uint64_t got = reinterpret_cast<volatile uint64_t*>(back.host)[static_cast<size_t>(index) * stride];
            expect(got == ~datum(round, index), "the program saw a flag before its data, in round", static_cast<long>(round));
        }
    }
    CHECK(cudaDeviceSynchronize());
    unsigned long long count_wrong = 0;
    CHECK(cudaMemcpy(&count_wrong, wrong, sizeof count_wrong, cudaMemcpyDeviceToHost));
    expect(count_wrong == 0, "the kernel saw a flag before its data, so often", static_cast<long>(count_wrong));
    CHECK(cudaFree(wrong));
    for (Mapped memory : {flags, there, back}) CHECK(cudaFreeHost(memory.host));
    std::printf("%d words, %d apart, flag %s: %lu rounds\n", count, stride, same_page ? (flag_first ? "before" : "behind") : "apart",
                static_cast<unsigned long>(rounds));
}

// ---- Neighbours: both sides count in halves of one word; neither disturbs the other.

__global__ void count_beside(volatile uint32_t* pair, uint32_t rounds) {
    for (uint32_t round = 1; round <= rounds; ++round) {
        pair[1] = round;
        __threadfence_system();
        while (pair[0] < round) {}
    }
}

static void neighbours(uint32_t rounds) {
    Mapped memory = mapped(1);
    auto* pair = reinterpret_cast<std::atomic<uint32_t>*>(memory.host);
    count_beside<<<1, 1>>>(reinterpret_cast<uint32_t*>(memory.device), rounds);
    CHECK(cudaGetLastError());
    for (uint32_t round = 1; round <= rounds; ++round) {
        uint32_t seen;
        while ((seen = pair[1].load()) < round) std::this_thread::yield();
        expect(seen == round, "half a word was disturbed, in round", round);
        pair[0].store(round);
    }
    CHECK(cudaDeviceSynchronize());
    expect(pair[1].load() == rounds && pair[0].load() == rounds, "the last round was", pair[1].load());
    CHECK(cudaFreeHost(memory.host));
    std::printf("halves of a word: %u rounds\n", rounds);
}

// ---- A ring of slots, which both sides run ahead in: head and tail, as NCCL has them, and data in registered memory.

constexpr int SLOTS = 8, SLOT_WORDS = 2048;

/// Sends what it has through one ring while it takes from another and adds.
__global__ void exchange(const uint64_t* mine, uint64_t* sum, uint64_t chunks, uint64_t* out, uint64_t* in, uint64_t* steps) {
    // steps: [0] sent by the kernel, [64] taken by the host, [128] brought by the host, [192] taken by the kernel.
    system_atomic sent(steps[0]), room(steps[64]), brought(steps[128]), taken(steps[192]);
    for (uint64_t chunk = 0; chunk < chunks; ++chunk) {
        if (threadIdx.x == 0) {
            while (chunk >= room.load(cuda::memory_order_acquire) + SLOTS) {}
        }
        __syncthreads();
        size_t slot = chunk % SLOTS * SLOT_WORDS;
        for (int index = threadIdx.x; index < SLOT_WORDS; index += blockDim.x) out[slot + index] = mine[chunk * SLOT_WORDS + index];
        __threadfence_system();
        __syncthreads();
        if (threadIdx.x == 0) {
            sent.store(chunk + 1, cuda::memory_order_relaxed);
            while (brought.load(cuda::memory_order_relaxed) <= chunk) {}
            __threadfence_system();
        }
        __syncthreads();
        for (int index = threadIdx.x; index < SLOT_WORDS; index += blockDim.x) {
            sum[chunk * SLOT_WORDS + index] = mine[chunk * SLOT_WORDS + index] + reinterpret_cast<volatile uint64_t*>(in)[slot + index];
        }
        __syncthreads();
        if (threadIdx.x == 0) taken.store(chunk + 1, cuda::memory_order_release);
    }
}

static void move_all(int file, void* data, size_t bytes, bool writes) {
    auto* at = static_cast<char*>(data);
    while (bytes > 0) {
        ssize_t done = writes ? write(file, at, bytes) : read(file, at, bytes);
        expect(done > 0, "a pipe has ended", done);
        at += done;
        bytes -= static_cast<size_t>(done);
    }
}

/// One of two ranks; the pipes lead to the other. System calls read and write the mapped memory itself.
static void rank(int device, int number, uint64_t chunks, int to_other, int from_other) {
    CHECK(cudaSetDevice(device));
    size_t words = chunks * SLOT_WORDS, bytes = words * sizeof(uint64_t);
    std::vector<uint64_t> mine(words), sum(words);
    for (size_t index = 0; index < words; ++index) mine[index] = datum(static_cast<uint64_t>(number) + 1, index);
    uint64_t *device_mine, *device_sum;
    CHECK(cudaMalloc(&device_mine, bytes));
    CHECK(cudaMalloc(&device_sum, bytes));
    CHECK(cudaMemcpy(device_mine, mine.data(), bytes, cudaMemcpyHostToDevice));
    Mapped steps = mapped(256);
    size_t ring_bytes = SLOTS * SLOT_WORDS * sizeof(uint64_t);
    auto* rings = static_cast<uint64_t*>(std::aligned_alloc(4096, 2 * ring_bytes));
    std::memset(rings, 0, 2 * ring_bytes);
    CHECK(cudaHostRegister(rings, 2 * ring_bytes, cudaHostRegisterMapped));
    uint64_t* device_rings;
    CHECK(cudaHostGetDevicePointer(reinterpret_cast<void**>(&device_rings), rings, 0));
    uint64_t *out = rings, *in = rings + SLOTS * SLOT_WORDS;
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    exchange<<<1, 128, 0, stream>>>(device_mine, device_sum, chunks, device_rings, device_rings + SLOTS * SLOT_WORDS, steps.device);
    CHECK(cudaGetLastError());
    std::thread sender([&] {
        for (uint64_t chunk = 0; chunk < chunks; ++chunk) {
            host_wait(steps.host, chunk + 1);
            move_all(to_other, out + chunk % SLOTS * SLOT_WORDS, SLOT_WORDS * sizeof(uint64_t), true);
            host_store(steps.host + 64, chunk + 1);
        }
    });
    std::thread receiver([&] {
        for (uint64_t chunk = 0; chunk < chunks; ++chunk) {
            if (chunk >= SLOTS) host_wait(steps.host + 192, chunk - SLOTS + 1);
            move_all(from_other, in + chunk % SLOTS * SLOT_WORDS, SLOT_WORDS * sizeof(uint64_t), false);
            host_store(steps.host + 128, chunk + 1);
        }
    });
    CHECK(cudaStreamSynchronize(stream));
    sender.join();
    receiver.join();
    CHECK(cudaMemcpy(sum.data(), device_sum, bytes, cudaMemcpyDeviceToHost));
    for (size_t index = 0; index < words; ++index) {
        uint64_t expected = datum(1, index) + datum(2, index);
        expect(sum[index] == expected, "a sum is wrong at", static_cast<long>(index));
    }
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaHostUnregister(rings));
    std::free(rings);
    CHECK(cudaFreeHost(steps.host));
    CHECK(cudaFree(device_mine));
    CHECK(cudaFree(device_sum));
}

/// Two ranks in this process, each with a device of its own: with several nodes the first and the last are of two of them.
static void ranks(uint64_t chunks, int devices) {
    int there[2], back[2];
    expect(pipe(there) == 0 && pipe(back) == 0, "no pipe", 0);
    std::thread other([&] { rank(devices - 1, 1, chunks, back[1], there[0]); });
    rank(0, 0, chunks, there[1], back[0]);
    other.join();
    for (int file : {there[0], there[1], back[0], back[1]}) close(file);
    std::printf("two ranks on devices 0 and %d: %lu chunks each way\n", devices - 1, static_cast<unsigned long>(chunks));
}

// ---- A word that changes all the time keeps nobody back.

__global__ void beat(uint64_t* clock, uint64_t* flags, uint64_t rounds) {
    system_atomic asked(flags[0]), answered(flags[64]);
    if (threadIdx.x == 0) {
        for (uint64_t round = 1; round <= rounds; ++round) {
            while (asked.load(cuda::memory_order_acquire) < round) ++*reinterpret_cast<volatile uint64_t*>(clock);
            answered.store(round, cuda::memory_order_release);
        }
    }
}

static void beside_clocks(uint64_t rounds) {
    Mapped clocks = mapped(1024), flags = mapped(128);
    std::atomic<bool> done{false};
    std::thread ticking([&] {
        for (uint64_t tick = 1; !done.load(); ++tick) host_store(clocks.host + 512, tick);
    });
    beat<<<1, 32>>>(clocks.device, flags.device, rounds);
    CHECK(cudaGetLastError());
    for (uint64_t round = 1; round <= rounds; ++round) {
        host_store(flags.host, round);
        host_wait(flags.host + 64, round);
    }
    done.store(true);
    ticking.join();
    CHECK(cudaDeviceSynchronize());
    for (Mapped memory : {clocks, flags}) CHECK(cudaFreeHost(memory.host));
    std::printf("beside clocks of both sides: %lu rounds\n", static_cast<unsigned long>(rounds));
}

// ---- A kernel that is not served any more is ended.

static void unanswered() {
    constexpr uint64_t SERVED = 3;
    Mapped flags = mapped(1024), there = mapped(1), back = mapped(1);
    unsigned long long* wrong;
    CHECK(cudaMalloc(&wrong, sizeof *wrong));
    answer<<<1, 32>>>(there.device, back.device, flags.device, 0, 512, 1, 1, SERVED + 1, wrong);
    CHECK(cudaGetLastError());
    for (uint64_t round = 1; round <= SERVED; ++round) {
        *there.host = datum(round, 0);
        host_store(flags.host, round);
        host_wait(flags.host + 512, round);
    }
    std::puts("served");
    std::fflush(stdout);
    cudaError_t ended = cudaDeviceSynchronize();
    expect(ended == cudaErrorLaunchTimeout, cudaGetErrorString(ended), ended);
    std::puts("PASS");
}

int main(int count, char** arguments) {
    if (count > 1 && std::strcmp(arguments[1], "unanswered") == 0) {
        unanswered();
        return 0;
    }
    uint64_t scale = count > 1 ? std::strtoull(arguments[1], nullptr, 10) : 1;
    int devices;
    CHECK(cudaGetDeviceCount(&devices));
    for (int device : {0, devices - 1}) {
        CHECK(cudaSetDevice(device));
        there_and_back(1, 1, false, false, 100 * scale);      // one word, and a flag elsewhere
        there_and_back(100, 1, false, false, 40 * scale);     // a run of words
        there_and_back(40, 700, false, false, 40 * scale);    // words each in a page of its own
        there_and_back(60, 1, true, true, 40 * scale);        // the flag at a lower address of the same page
        there_and_back(60, 1, false, true, 40 * scale);       // and at a higher one
        there_and_back(30000, 1, true, true, 4 * scale);      // as much as does not fit into one message
        neighbours(static_cast<uint32_t>(100 * scale));
        beside_clocks(20 * scale);
        if (devices == 1) break;
    }
    // Two that wait for each other cannot take turns on one device, which runs one kernel at a time.
    if (devices > 1) ranks(20 * scale, devices);
    std::puts("PASS");
}

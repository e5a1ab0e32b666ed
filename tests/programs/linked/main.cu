// A C++ program of several files, as `nvcc -rdc=true main.cu operations.cu shapes.cu` builds it: device functions and variables of
// one file are used by others. Exits with the number of failures.

#include <cstdio>
#include <cstdlib>

#include "shapes.h"

static int failures = 0;

#define CUDA(call)                                                                          \
    do {                                                                                    \
        cudaError_t error = (call);                                                         \
        if (error != cudaSuccess) {                                                         \
            printf("FAIL %s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error)); \
            exit(1);                                                                        \
        }                                                                                   \
    } while (0)

static void check(const char* name, int got, int expected) {
    printf("%s %s: %d\n", got == expected ? "ok  " : "FAIL", name, got);
    failures += got != expected;
}

static __device__ int bias = 7;

static __device__ __noinline__ int helper(int value) { return value * bias; }

__device__ Operation chosen;

__global__ void across_files(int* out) {
    int i = threadIdx.x;
    out[i] = helper(weighted(i % 4, i));
}

/// Each thread calls another function, and one of them of a pointer that the host chose.
__global__ void by_pointer(int* out, int skew) {
    int i = threadIdx.x;
    out[i] = operations[(i + skew) % 4](i, 10);
    if (i % 2) out[i] = chosen(out[i], helper(1));
}

__global__ void choose(int which) { chosen = operations[which]; }

__global__ void virtual_calls(int* out) {
    int i = threadIdx.x;
    Shape* shape = make_shape(i % 3, i);
    Square here(i);
    const Shape* any = i == 0 ? &here : shape;
    out[i] = measure(any);
    delete shape;
}

static int host_operation(int which, int a, int b) {
    switch (which) {
        case 0: return a + b;
        case 1: return a - b;
        case 2: return a * b;
        default: return a > b ? a : b;
    }
}

int main() {
    setvbuf(stdout, nullptr, _IOLBF, 0);  // what has passed is told also if the rest crashes
    constexpr int N = 96;
    static int got[N];
    int* out;
    CUDA(cudaMalloc(&out, sizeof got));
    auto fetch = [&] { CUDA(cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost)); };
    auto wrong = [&](auto expected) {
        int count = 0;
        for (int i = 0; i < N; i++) count += got[i] != expected(i);
        return count;
    };

    across_files<<<1, N>>>(out);
    CUDA(cudaGetLastError());
    fetch();
    const int weight[4] = {1, 10, 100, 1000};
    check("functions of other files", wrong([&](int i) { return 2 * weight[i % 4] * (i + 5) * 7; }), 0);
    int count = 0;
    CUDA(cudaMemcpyFromSymbol(&count, calls, sizeof count));
    check("a variable of another file", count, N);

    // What the host writes is seen by every file, and a static variable only by its own.
    int heavier[4] = {2, 20, 200, 2000}, other = 3;
    CUDA(cudaMemcpyToSymbol(weights, heavier, sizeof heavier));
    CUDA(cudaMemcpyToSymbol(bias, &other, sizeof other));
    across_files<<<1, N>>>(out);
    fetch();
    check("after the host has written", wrong([&](int i) { return 4 * weight[i % 4] * (i + 5) * 3; }), 0);

    for (int which = 0; which < 4; which++) {
        choose<<<1, 1>>>(which);
        by_pointer<<<1, N>>>(out, which);
        fetch();
        check("functions by pointer", wrong([&](int i) {
                  int value = host_operation((i + which) % 4, i, 10);
                  return i % 2 ? host_operation(which, value, 3) : value;
              }), 0);
    }

    virtual_calls<<<1, N>>>(out);
    CUDA(cudaGetLastError());
    fetch();
    check("virtual functions", wrong([](int i) {
              if (i % 3 == 0) return 2 * i * i + 4;
              return i % 3 == 1 ? 2 * (i * (i + 1) / 2) + 3 : 2 * -1000;
          }), 0);
    printf("%s: %d failed\n", failures ? "FAIL" : "PASS", failures);
    return failures;
}

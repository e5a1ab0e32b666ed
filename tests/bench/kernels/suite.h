// Times a kernel and the same computation in C by turns, and compares what they computed.
#pragma once
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "baseline.h"

inline void check(cudaError_t code, const char *what) {
    if (code == cudaSuccess) return;
    std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(code));
    std::exit(1);
}

// The same content in device memory, which kernels use, and in host memory, which C uses.
template <typename T> struct Array {
    std::vector<T> host;
    T *device = nullptr;

    template <typename Value> Array(size_t count, Value value) : host(count) {
        for (size_t i = 0; i < count; i++) host[i] = value(i);
        size_t bytes = count * sizeof(T);
        check(cudaMalloc(&device, bytes), "cudaMalloc");
        check(cudaMemcpy(device, host.data(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    }
    Array(const Array &) = delete;
    ~Array() { cudaFree(device); }

    T *c() { return host.data(); }
};

// Pseudo-random numbers that are the same in each run.
inline unsigned mixed(size_t i) {
    unsigned x = unsigned(i) * 0x9e3779b9u;
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x = (x ^ x >> 13) * 0xc2b2ae35u;
    return x ^ x >> 16;
}

// One of them in [-1, 1).
inline float signed_unit(size_t i) { return mixed(i) * (2.0f / 4294967296.0f) - 1.0f; }

inline double number(float value) { return value; }
inline double number(double value) { return value; }
inline double number(int value) { return value; }
inline double number(unsigned value) { return value; }
inline double number(signed char value) { return value; }
inline double number(__half value) { return __half2float(value); }
inline double number(__nv_bfloat16 value) { return __bfloat162float(value); }

inline const std::vector<std::string> &wanted_names(int argc = 0, char **argv = nullptr) {
    static std::vector<std::string> names(argv + std::min(argc, 1), argv + argc);
    return names;
}

// Whether the command line asks for this kernel; without names it asks for all.
inline bool is_wanted(const char *name) {
    const auto &names = wanted_names();
    return names.empty() || std::find(names.begin(), names.end(), name) != names.end();
}

template <typename Work> double milliseconds(Work work) {
    auto begin = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

// Prints the first launch's time and the medians of both. `tolerance` is relative to the value in C, or to 1 where
// that is smaller; of a million results, `outliers` may differ by more.
template <typename T, typename Gpu, typename C>
void compare(const char *name, Gpu launch, C compute, Array<T> &result, double tolerance, size_t outliers = 0) {
    enum { ROUNDS = 5 };
    auto gpu = [&] {
        launch();
        check(cudaDeviceSynchronize(), name);
    };
    double gpu_ms[ROUNDS], c_ms[ROUNDS], first_ms = milliseconds(gpu);
    compute();
    for (int round = 0; round < ROUNDS; round++) {
        gpu_ms[round] = milliseconds(gpu);
        c_ms[round] = milliseconds(compute);
    }
    size_t count = result.host.size();
    std::vector<T> found(count);
    check(cudaMemcpy(found.data(), result.device, count * sizeof(T), cudaMemcpyDeviceToHost), name);
    size_t differ = 0;
    for (size_t i = 0; i < count; i++) {
        double one = number(found[i]), other = number(result.host[i]);
        if (std::fabs(one - other) <= tolerance * std::max(1.0, std::fabs(other))) continue;
        if (++differ * 1000000 <= outliers * count) continue;
        std::fprintf(stderr, "%s: element %zu is %g, and %g in C\n", name, i, one, other);
        std::exit(1);
    }
    std::sort(gpu_ms, gpu_ms + ROUNDS);
    std::sort(c_ms, c_ms + ROUNDS);
    std::printf("%s_first_ms %.4f\n%s_gpu_ms %.4f\n%s_c_ms %.4f\n", name, first_ms, name, gpu_ms[ROUNDS / 2], name,
                c_ms[ROUNDS / 2]);
    std::fflush(stdout);
}

void vectors(), products(), tensor(), reductions(), grids(), sparse(), textures(), models(), functions();

// Three kernels as CUDA programmers write them. Times include the launch and the wait for its end.
#include <cstdio>
#include <cstdlib>
#include <algorithm>
#include <chrono>

enum { N = 1 << 24, M = 512, ROUNDS = 7, TILE = 16, BLOCK = 256 };

__global__ void saxpy(float a, const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}

__global__ void sgemm(const float *a, const float *b, float *c, int m) {
    __shared__ float left[TILE][TILE], right[TILE][TILE];
    int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < m; k += TILE) {
        left[threadIdx.y][threadIdx.x] = a[row * m + k + threadIdx.x];
        right[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * m + column];
        __syncthreads();
        for (int i = 0; i < TILE; i++) sum += left[threadIdx.y][i] * right[i][threadIdx.x];
        __syncthreads();
    }
    c[row * m + column] += sum;
}

__global__ void reduce(const float *x, float *sum, int n) {
    __shared__ float part[BLOCK];
    float own = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) own += x[i];
    part[threadIdx.x] = own;
    __syncthreads();
    for (int half = BLOCK / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) atomicAdd(sum, part[0]);
}

static void check(cudaError_t code) {
    if (code == cudaSuccess) return;
    std::fprintf(stderr, "%s\n", cudaGetErrorString(code));
    std::exit(1);
}

template <typename Work> static void measure(const char *name, Work work) {
    double ms[ROUNDS];
    for (int round = -1; round < ROUNDS; round++) {
        auto begin = std::chrono::steady_clock::now();
        work();
        check(cudaDeviceSynchronize());
        std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
        if (round >= 0) ms[round] = took.count();
    }
    std::sort(ms, ms + ROUNDS);
    std::printf("%s %.6f\n", name, ms[ROUNDS / 2]);
}

template <typename Value> static float *filled(int count, Value value) {
    float *host = new float[count], *device;
    for (int i = 0; i < count; i++) host[i] = value(i);
    check(cudaMalloc(&device, count * sizeof(float)));
    check(cudaMemcpy(device, host, count * sizeof(float), cudaMemcpyHostToDevice));
    delete[] host;
    return device;
}

int main() {
    float *x = filled(N, [](int i) { return (i % 1000) * 0.001f; }), *y = filled(N, [](int) { return 1.0f; });
    float *a = filled(M * M, [](int i) { return (i % 13) * 0.1f; });
    float *b = filled(M * M, [](int i) { return (i % 17) * 0.1f; });
    float *c = filled(M * M, [](int) { return 0.0f; }), *sum = filled(1, [](int) { return 0.0f; });
    dim3 tiles(M / TILE, M / TILE), tile(TILE, TILE);
    measure("saxpy_ms", [&] { saxpy<<<N / BLOCK, BLOCK>>>(1.0001f, x, y, N); });
    measure("sgemm_ms", [&] { sgemm<<<tiles, tile>>>(a, b, c, M); });
    measure("reduce_ms", [&] { reduce<<<1024, BLOCK>>>(x, sum, N); });
    return 0;
}

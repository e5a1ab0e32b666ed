// Sums, running sums and histograms.
#include "suite.h"

enum { BLOCK = 256, SEGMENT = 512 };

static __global__ void sum_shared(const float *x, float *sum, int n) {
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

static __global__ void dot_shuffle(const double *x, const double *y, double *sum, int n) {
    double own = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) own += x[i] * y[i];
    for (int step = 16; step > 0; step /= 2) own += __shfl_xor_sync(~0u, own, step);
    if (threadIdx.x % 32 == 0) atomicAdd(sum, own);
}

// Inclusive, by warps and then over the warps' sums.
static __global__ void scan_shuffle(const float *in, float *out) {
    __shared__ float sums[SEGMENT / 32];
    int at = blockIdx.x * SEGMENT + threadIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float sum = in[at];
    for (int step = 1; step < 32; step *= 2) {
        float other = __shfl_up_sync(~0u, sum, step);
        if (lane >= step) sum += other;
    }
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    float before = 0;
    for (int i = 0; i < warp; i++) before += sums[i];
    out[at] = before + sum;
}

// The tree of partial sums in shared memory, up and down (Blelloch), made inclusive at the end.
static __global__ void scan_tree(const float *in, float *out) {
    __shared__ float tree[SEGMENT];
    int thread = threadIdx.x, start = blockIdx.x * SEGMENT;
    tree[thread] = in[start + thread];
    tree[thread + SEGMENT / 2] = in[start + thread + SEGMENT / 2];
    int step = 1;
    for (int active = SEGMENT / 2; active > 0; active /= 2, step *= 2) {
        __syncthreads();
        if (thread < active) tree[step * (2 * thread + 2) - 1] += tree[step * (2 * thread + 1) - 1];
    }
    if (thread == 0) tree[SEGMENT - 1] = 0;
    for (int active = 1; active < SEGMENT; active *= 2) {
        step /= 2;
        __syncthreads();
        if (thread < active) {
            int left = step * (2 * thread + 1) - 1, right = step * (2 * thread + 2) - 1;
            float value = tree[left];
            tree[left] = tree[right];
            tree[right] += value;
        }
    }
    __syncthreads();
    out[start + thread] = tree[thread] + in[start + thread];
    out[start + thread + SEGMENT / 2] = tree[thread + SEGMENT / 2] + in[start + thread + SEGMENT / 2];
}

static __global__ void histogram_shared(const unsigned *in, unsigned *bins, int n) {
    __shared__ unsigned own[256];
    own[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        unsigned word = in[i];
        atomicAdd(&own[word & 255], 1);
        atomicAdd(&own[word >> 8 & 255], 1);
        atomicAdd(&own[word >> 16 & 255], 1);
        atomicAdd(&own[word >> 24], 1);
    }
    __syncthreads();
    atomicAdd(&bins[threadIdx.x], own[threadIdx.x]);
}

static __global__ void histogram_global(const unsigned *in, unsigned *bins, int n, unsigned count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(&bins[in[i] % count], 1);
}

void reductions() {
    enum { N = 1 << 22 };
    auto zero = [](size_t) { return 0; };
    if (is_wanted("sum_shared")) {
        Array<float> x(4 * N, [](size_t i) { return float(mixed(i) % 3); }), sum(1, zero);
        compare("sum_shared", [&] { sum_shared<<<512, BLOCK>>>(x.device, sum.device, 4 * N); },
                [&] { c_sum(x.c(), sum.c(), 4 * N); }, sum, 1e-3);
    }
    if (is_wanted("dot_shuffle")) {
        Array<double> x(N, signed_unit), y(N, signed_unit), sum(1, zero);
        compare("dot_shuffle", [&] { dot_shuffle<<<512, BLOCK>>>(x.device, y.device, sum.device, N); },
                [&] { c_dot(x.c(), y.c(), sum.c(), N); }, sum, 1e-6);
    }
    if (is_wanted("scan_shuffle") || is_wanted("scan_tree")) {
        Array<float> in(N, signed_unit), out(N, zero);
        auto in_c = [&] { c_scan(in.c(), out.c(), N, SEGMENT); };
        if (is_wanted("scan_shuffle"))
            compare("scan_shuffle", [&] { scan_shuffle<<<N / SEGMENT, SEGMENT>>>(in.device, out.device); }, in_c, out, 1e-3);
        if (is_wanted("scan_tree"))
            compare("scan_tree", [&] { scan_tree<<<N / SEGMENT, SEGMENT / 2>>>(in.device, out.device); }, in_c, out, 1e-3);
    }
    if (is_wanted("histogram_shared")) {
        Array<unsigned> in(N, [](size_t i) { return mixed(i); }), bins(256, zero);
        auto bytes = [&] { return reinterpret_cast<const unsigned char *>(in.c()); };
        compare("histogram_shared", [&] { histogram_shared<<<128, BLOCK>>>(in.device, bins.device, N); },
                [&] { c_histogram(bytes(), bins.c(), 4 * N); }, bins, 0);
    }
    if (is_wanted("histogram_global")) {
        enum { BINS = 1000 };
        Array<unsigned> in(N, [](size_t i) { return mixed(i); }), bins(BINS, zero);
        compare("histogram_global", [&] { histogram_global<<<N / BLOCK, BLOCK>>>(in.device, bins.device, N, BINS); },
                [&] { c_histogram_wide(in.c(), bins.c(), N, BINS); }, bins, 0);
    }
}

// Sparse products, a step of a breadth-first search, and sorting.
#include "suite.h"

static __global__ void spmv_scalar(const int *starts, const int *columns, const float *values, const float *x, float *y,
                                   int rows) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float sum = 0;
    for (int at = starts[row]; at < starts[row + 1]; at++) sum += values[at] * x[columns[at]];
    y[row] = sum;
}

static __global__ void spmv_warp(const int *starts, const int *columns, const float *values, const float *x, float *y,
                                 int rows) {
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    float sum = 0;
    for (int at = starts[row] + lane; at < starts[row + 1]; at += 32) sum += values[at] * x[columns[at]];
    for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(~0u, sum, step);
    if (lane == 0) y[row] = sum;
}

static __global__ void bfs_step(const int *starts, const int *neighbours, const int *levels, int *next, int level,
                                int nodes) {
    int node = blockIdx.x * blockDim.x + threadIdx.x;
    if (node >= nodes || levels[node] != level) return;
    for (int at = starts[node]; at < starts[node + 1]; at++)
        if (levels[neighbours[at]] < 0) next[neighbours[at]] = level + 1;
}

// Each block sorts its segment in shared memory.
static __global__ void bitonic(const unsigned *in, unsigned *out) {
    enum { SEGMENT = 512 };
    __shared__ unsigned keys[SEGMENT];
    int thread = threadIdx.x, start = blockIdx.x * SEGMENT;
    keys[thread] = in[start + thread];
    for (int size = 2; size <= SEGMENT; size *= 2)
        for (int distance = size / 2; distance > 0; distance /= 2) {
            __syncthreads();
            int other = thread ^ distance;
            if (other > thread) {
                unsigned a = keys[thread], b = keys[other];
                if ((a > b) == ((thread & size) == 0)) keys[thread] = b, keys[other] = a;
            }
        }
    __syncthreads();
    out[start + thread] = keys[thread];
}

void sparse() {
    enum { ROWS = 1 << 17, KEYS = 1 << 19 };
    auto zero = [](size_t) { return 0; };
    if (is_wanted("spmv_scalar") || is_wanted("spmv_warp") || is_wanted("bfs_step")) {
        // 8 to 39 entries in a row, at columns that scatter.
        std::vector<int> begins(ROWS + 1, 0);
        for (int row = 0; row < ROWS; row++) begins[row + 1] = begins[row] + 8 + mixed(row) % 32;
        Array<int> starts(ROWS + 1, [&](size_t i) { return begins[i]; });
        size_t count = begins[ROWS];
        Array<int> columns(count, [](size_t i) { return int(mixed(i) % ROWS); });
        Array<float> values(count, signed_unit), x(ROWS, signed_unit), y(ROWS, zero);
        auto in_c = [&] { c_spmv(starts.c(), columns.c(), values.c(), x.c(), y.c(), ROWS); };
        if (is_wanted("spmv_scalar"))
            compare("spmv_scalar",
                    [&] { spmv_scalar<<<ROWS / 256, 256>>>(starts.device, columns.device, values.device, x.device, y.device, ROWS); },
                    in_c, y, 1e-4);
        if (is_wanted("spmv_warp"))
            compare("spmv_warp",
                    [&] { spmv_warp<<<ROWS / 8, 256>>>(starts.device, columns.device, values.device, x.device, y.device, ROWS); },
                    in_c, y, 1e-4);
        if (is_wanted("bfs_step")) {
            // A fifth of the nodes is on the frontier, half is unseen.
            auto level = [](size_t i) { return mixed(i * 3) % 10 < 5 ? -1 : mixed(i * 3) % 10 < 7 ? 4 : 2; };
            Array<int> levels(ROWS, level), next(ROWS, zero);
            compare("bfs_step",
                    [&] { bfs_step<<<ROWS / 256, 256>>>(starts.device, columns.device, levels.device, next.device, 4, ROWS); },
                    [&] { c_bfs_step(starts.c(), columns.c(), levels.c(), next.c(), 4, ROWS); }, next, 0);
        }
    }
    if (is_wanted("bitonic")) {
        Array<unsigned> in(KEYS, mixed), out(KEYS, zero);
        compare("bitonic", [&] { bitonic<<<KEYS / 512, 512>>>(in.device, out.device); },
                [&] { c_sort(in.c(), out.c(), KEYS, 512); }, out, 0);
    }
}

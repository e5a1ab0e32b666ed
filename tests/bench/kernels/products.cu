// Products of matrices, and of a matrix and a vector, on plain arithmetic.
#include "suite.h"

enum { TILE = 16 };

static __global__ void sgemm_naive(const float *a, const float *b, float *c, int n) {
    int row = blockIdx.y * blockDim.y + threadIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < n; k++) sum += a[row * n + k] * b[k * n + column];
    c[row * n + column] = sum;
}

template <typename T, typename Sum> static __global__ void tiled(const T *a, const T *b, Sum *c, int n) {
    __shared__ T left[TILE][TILE], right[TILE][TILE];
    int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    Sum sum = 0;
    for (int k = 0; k < n; k += TILE) {
        left[threadIdx.y][threadIdx.x] = a[row * n + k + threadIdx.x];
        right[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + column];
        __syncthreads();
        for (int i = 0; i < TILE; i++) sum += Sum(left[threadIdx.y][i]) * Sum(right[i][threadIdx.x]);
        __syncthreads();
    }
    c[row * n + column] = sum;
}

// A block of 256 threads has a tile of 64 x 64, each thread 4 x 4 of it in registers.
static __global__ void sgemm_register(const float *a, const float *b, float *c, int n) {
    __shared__ float left[TILE][64], right[TILE][64];
    int thread = threadIdx.x, x = thread % 16, y = thread / 16;
    int row0 = blockIdx.y * 64, column0 = blockIdx.x * 64;
    float sums[4][4] = {};
    for (int k = 0; k < n; k += TILE) {
        for (int at = thread; at < 64 * TILE; at += 256) {
            left[at % TILE][at / TILE] = a[(row0 + at / TILE) * n + k + at % TILE];
            right[at / 64][at % 64] = b[(k + at / 64) * n + column0 + at % 64];
        }
        __syncthreads();
        for (int i = 0; i < TILE; i++) {
            float rows[4], columns[4];
            for (int j = 0; j < 4; j++) rows[j] = left[i][y * 4 + j], columns[j] = right[i][x * 4 + j];
            for (int r = 0; r < 4; r++)
                for (int s = 0; s < 4; s++) sums[r][s] += rows[r] * columns[s];
        }
        __syncthreads();
    }
    for (int r = 0; r < 4; r++)
        for (int s = 0; s < 4; s++) c[(row0 + y * 4 + r) * n + column0 + x * 4 + s] = sums[r][s];
}

// Rows of both matrices are read four bytes at a time.
static __global__ void igemm_dp4a(const int *a, const int *b, int *c, int n) {
    int row = blockIdx.y * blockDim.y + threadIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
    int sum = 0;
    for (int k = 0; k < n / 4; k++) sum = __dp4a(a[row * (n / 4) + k], b[column * (n / 4) + k], sum);
    c[row * n + column] = sum;
}

// A warp for each row.
static __global__ void sgemv(const float4 *a, const float4 *x, float *y, int n) {
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    float sum = 0;
    for (int k = lane; k < n / 4; k += 32) {
        float4 left = a[row * (n / 4) + k], right = x[k];
        sum += left.x * right.x + left.y * right.y + left.z * right.z + left.w * right.w;
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(~0u, sum, step);
    if (lane == 0) y[row] = sum;
}

void products() {
    enum { N = 512, SMALL = 384, LONG = 2048 };
    dim3 tile(TILE, TILE), tiles(N / TILE, N / TILE), few(SMALL / TILE, SMALL / TILE);
    auto zero = [](size_t) { return 0; };
    if (is_wanted("sgemm_naive") || is_wanted("sgemm_tiled") || is_wanted("sgemm_register")) {
        Array<float> a(N * N, signed_unit), b(N * N, signed_unit), c(N * N, zero);
        auto in_c = [&] { c_sgemm(a.c(), b.c(), c.c(), N); };
        if (is_wanted("sgemm_naive"))
            compare("sgemm_naive", [&] { sgemm_naive<<<dim3(N / 32, N / 8), dim3(32, 8)>>>(a.device, b.device, c.device, N); },
                    in_c, c, 1e-3);
        if (is_wanted("sgemm_tiled"))
            compare("sgemm_tiled", [&] { tiled<<<tiles, tile>>>(a.device, b.device, c.device, N); }, in_c, c, 1e-3);
        if (is_wanted("sgemm_register"))
            compare("sgemm_register", [&] { sgemm_register<<<dim3(N / 64, N / 64), 256>>>(a.device, b.device, c.device, N); },
                    in_c, c, 1e-3);
    }
    if (is_wanted("dgemm_tiled")) {
        Array<double> a(SMALL * SMALL, signed_unit), b(SMALL * SMALL, signed_unit), c(SMALL * SMALL, zero);
        compare("dgemm_tiled", [&] { tiled<<<few, tile>>>(a.device, b.device, c.device, SMALL); },
                [&] { c_dgemm(a.c(), b.c(), c.c(), SMALL); }, c, 1e-9);
    }
    if (is_wanted("hgemm_tiled")) {
        auto value = [](size_t i) { return __float2half(signed_unit(i)); };
        Array<__half> a(SMALL * SMALL, value), b(SMALL * SMALL, value);
        Array<float> c(SMALL * SMALL, zero);
        compare("hgemm_tiled", [&] { tiled<<<few, tile>>>(a.device, b.device, c.device, SMALL); },
                [&] { c_hgemm(a.c(), b.c(), c.c(), SMALL); }, c, 1e-3);
    }
    if (is_wanted("bgemm_tiled")) {
        auto value = [](size_t i) { return __float2bfloat16(signed_unit(i)); };
        Array<__nv_bfloat16> a(SMALL * SMALL, value), b(SMALL * SMALL, value);
        Array<float> c(SMALL * SMALL, zero);
        auto bits = [](Array<__nv_bfloat16> &array) { return reinterpret_cast<bf16 *>(array.c()); };
        compare("bgemm_tiled", [&] { tiled<<<few, tile>>>(a.device, b.device, c.device, SMALL); },
                [&] { c_bgemm(bits(a), bits(b), c.c(), SMALL); }, c, 1e-3);
    }
    if (is_wanted("igemm_dp4a")) {
        auto value = [](size_t i) { return (signed char)(mixed(i) >> 24); };
        Array<signed char> a(N * N, value), b(N * N, value);
        Array<int> c(N * N, zero);
        auto words = [](Array<signed char> &array) { return reinterpret_cast<const int *>(array.device); };
        compare("igemm_dp4a", [&] { igemm_dp4a<<<tiles, tile>>>(words(a), words(b), c.device, N); },
                [&] { c_igemm(a.c(), b.c(), c.c(), N); }, c, 0);
    }
    if (is_wanted("sgemv")) {
        Array<float> a(LONG * LONG, signed_unit), x(LONG, signed_unit), y(LONG, zero);
        auto fours = [](Array<float> &array) { return reinterpret_cast<const float4 *>(array.device); };
        compare("sgemv", [&] { sgemv<<<LONG / 8, 256>>>(fours(a), fours(x), y.device, LONG); },
                [&] { c_sgemv(a.c(), x.c(), y.c(), LONG); }, y, 1e-3);
    }
}

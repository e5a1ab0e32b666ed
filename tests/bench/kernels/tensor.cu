// Products on tensor cores: a warp computes one tile of the result.
#include <mma.h>

#include "suite.h"

using namespace nvcuda;

template <typename T, typename Sum>
static __global__ void wmma_product(const T *a, const T *b, Sum *c, int n) {
    int warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    int row = warp / (n / 16) * 16, column = warp % (n / 16) * 16;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, T, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, T, wmma::col_major> right;
    wmma::fragment<wmma::accumulator, 16, 16, 16, Sum> sums;
    wmma::fill_fragment(sums, Sum(0));
    for (int k = 0; k < n; k += 16) {
        wmma::load_matrix_sync(left, a + row * n + k, n);
        wmma::load_matrix_sync(right, b + column * n + k, n);
        wmma::mma_sync(sums, left, right, sums);
    }
    wmma::store_matrix_sync(c + row * n + column, sums, n, wmma::mem_row_major);
}

// 16 x 8 of the result by mma.m16n8k16, with fragments read from memory as PTX lays them out.
static __global__ void mma_bfloat(const __nv_bfloat16 *a, const __nv_bfloat16 *b, float *c, int n) {
    int warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    int row = warp / (n / 8) * 16 + lane / 4, column = warp % (n / 8) * 8, pair = lane % 4 * 2;
    auto word = [](const __nv_bfloat16 *at) { return *reinterpret_cast<const unsigned *>(at); };
    float sums[4] = {};
    for (int k = 0; k < n; k += 16) {
        const __nv_bfloat16 *left = a + row * n + k + pair, *right = b + (column + lane / 4) * n + k + pair;
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                     : "r"(word(left)), "r"(word(left + 8 * n)), "r"(word(left + 8)), "r"(word(left + 8 * n + 8)),
                       "r"(word(right)), "r"(word(right + 8)));
    }
    float *out = c + row * n + column + pair;
    out[0] = sums[0], out[1] = sums[1], out[8 * n] = sums[2], out[8 * n + 1] = sums[3];
}

void tensor() {
    enum { N = 512, WARPS = (N / 16) * (N / 16) };
    auto zero = [](size_t) { return 0; };
    // The second matrix column after column for the kernels, row after row for C.
    auto turned = [](size_t i) { return i % N * N + i / N; };
    if (is_wanted("wmma_half")) {
        auto value = [](size_t i) { return __float2half(signed_unit(i)); };
        Array<__half> a(N * N, value), rows(N * N, value), b(N * N, [&](size_t i) { return value(turned(i)); });
        Array<float> c(N * N, zero);
        compare("wmma_half", [&] { wmma_product<<<WARPS / 4, 128>>>(a.device, b.device, c.device, N); },
                [&] { c_hgemm(a.c(), rows.c(), c.c(), N); }, c, 1e-3);
    }
    if (is_wanted("wmma_int8")) {
        auto value = [](size_t i) { return (signed char)(mixed(i) >> 24); };
        Array<signed char> a(N * N, value), b(N * N, value);
        Array<int> c(N * N, zero);
        compare("wmma_int8", [&] { wmma_product<<<WARPS / 4, 128>>>(a.device, b.device, c.device, N); },
                [&] { c_igemm(a.c(), b.c(), c.c(), N); }, c, 0);
    }
    if (is_wanted("mma_bfloat")) {
        auto value = [](size_t i) { return __float2bfloat16(signed_unit(i)); };
        Array<__nv_bfloat16> a(N * N, value), rows(N * N, value), b(N * N, [&](size_t i) { return value(turned(i)); });
        Array<float> c(N * N, zero);
        auto bits = [](Array<__nv_bfloat16> &array) { return reinterpret_cast<bf16 *>(array.c()); };
        compare("mma_bfloat", [&] { mma_bfloat<<<WARPS / 2, 128>>>(a.device, b.device, c.device, N); },
                [&] { c_bgemm(bits(a), bits(rows), c.c(), N); }, c, 1e-3);
    }
}

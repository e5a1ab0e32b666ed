// Element by element: floats, doubles, halves, bfloat16, bytes.
#include "suite.h"

static __global__ void saxpy(float a, const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}

static __global__ void daxpy_loop(double a, const double *x, double *y, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = a * x[i] + y[i];
}

static __global__ void haxpy(float a, const __half2 *x, __half2 *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = __hfma2(__float2half2_rn(a), x[i], y[i]);
}

static __global__ void bfloat_relu(float a, const __nv_bfloat16 *x, const __nv_bfloat16 *y, __nv_bfloat16 *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = __float2bfloat16(fmaxf(a * __bfloat162float(x[i]) + __bfloat162float(y[i]), 0.0f));
}

static __global__ void transpose(const float *in, float *out, int n) {
    __shared__ float tile[32][33];
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    for (int row = 0; row < 32; row += 8) tile[threadIdx.y + row][threadIdx.x] = in[(y + row) * n + x];
    __syncthreads();
    x = blockIdx.y * 32 + threadIdx.x, y = blockIdx.x * 32 + threadIdx.y;
    for (int row = 0; row < 32; row += 8) out[(y + row) * n + x] = tile[threadIdx.x][threadIdx.y + row];
}

static __global__ void gather(const float *x, const int *index, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[index[i]];
}

static __global__ void quantize(const float *x, signed char *out, float scale, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = (signed char)max(-127, min(127, __float2int_rn(x[i] * scale)));
}

void vectors() {
    enum { N = 1 << 23, SIDE = 2048, BLOCK = 256 };
    if (is_wanted("saxpy")) {
        Array<float> x(N, signed_unit), y(N, [](size_t) { return 1.0f; });
        compare("saxpy", [&] { saxpy<<<N / BLOCK, BLOCK>>>(0.5f, x.device, y.device, N); },
                [&] { c_saxpy(0.5f, x.c(), y.c(), N); }, y, 1e-5);
    }
    if (is_wanted("daxpy_loop")) {
        Array<double> x(N / 2, signed_unit), y(N / 2, [](size_t) { return 1.0; });
        compare("daxpy_loop", [&] { daxpy_loop<<<512, BLOCK>>>(0.5, x.device, y.device, N / 2); },
                [&] { c_daxpy(0.5, x.c(), y.c(), N / 2); }, y, 1e-12);
    }
    if (is_wanted("haxpy")) {
        Array<__half> x(N, [](size_t i) { return __float2half(signed_unit(i)); });
        Array<__half> y(N, [](size_t) { return __float2half(1.0f); });
        auto pairs = [](Array<__half> &array) { return reinterpret_cast<__half2 *>(array.device); };
        compare("haxpy", [&] { haxpy<<<N / 2 / BLOCK, BLOCK>>>(0.25f, pairs(x), pairs(y), N / 2); },
                [&] { c_haxpy(0.25f, x.c(), y.c(), N); }, y, 4e-3);
    }
    if (is_wanted("bfloat_relu")) {
        auto value = [](size_t i) { return __float2bfloat16(signed_unit(i)); };
        Array<__nv_bfloat16> x(N, value), y(N, value), out(N, value);
        auto bits = [](Array<__nv_bfloat16> &array) { return reinterpret_cast<bf16 *>(array.c()); };
        compare("bfloat_relu", [&] { bfloat_relu<<<N / BLOCK, BLOCK>>>(0.3f, x.device, y.device, out.device, N); },
                [&] { c_bfloat_relu(0.3f, bits(x), bits(y), bits(out), N); }, out, 1e-2);
    }
    if (is_wanted("transpose")) {
        Array<float> in(SIDE * SIDE, signed_unit), out(SIDE * SIDE, [](size_t) { return 0.0f; });
        dim3 blocks(SIDE / 32, SIDE / 32), threads(32, 8);
        compare("transpose", [&] { transpose<<<blocks, threads>>>(in.device, out.device, SIDE); },
                [&] { c_transpose(in.c(), out.c(), SIDE); }, out, 0);
    }
    if (is_wanted("gather")) {
        Array<float> x(N / 2, signed_unit), out(N / 2, [](size_t) { return 0.0f; });
        Array<int> index(N / 2, [](size_t i) { return int(mixed(i) % (N / 2)); });
        compare("gather", [&] { gather<<<N / 2 / BLOCK, BLOCK>>>(x.device, index.device, out.device, N / 2); },
                [&] { c_gather(x.c(), index.c(), out.c(), N / 2); }, out, 0);
    }
    if (is_wanted("quantize")) {
        Array<float> x(N, signed_unit);
        Array<signed char> out(N, [](size_t) { return 0; });
        compare("quantize", [&] { quantize<<<N / BLOCK, BLOCK>>>(x.device, out.device, 150.0f, N); },
                [&] { c_quantize(x.c(), out.c(), 150.0f, N); }, out, 0);
    }
}

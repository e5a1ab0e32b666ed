// Parts of a transformer.
#include "suite.h"

// By all threads of a block, whose warps leave their parts in shared memory.
template <typename Combine> static __device__ float of_block(float value, Combine combine) {
    __shared__ float parts[32];
    for (int step = 16; step > 0; step /= 2) value = combine(value, __shfl_xor_sync(~0u, value, step));
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    value = parts[0];
    for (int warp = 1; warp < blockDim.x / 32; warp++) value = combine(value, parts[warp]);
    return value;
}

static __device__ float sum_of_block(float value) {
    return of_block(value, [](float a, float b) { return a + b; });
}

static __global__ void softmax(const float *in, float *out, int columns) {
    const float *row = in + blockIdx.x * columns;
    float top = -INFINITY, sum = 0;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) top = fmaxf(top, row[i]);
    top = of_block(top, [](float a, float b) { return fmaxf(a, b); });
    for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += expf(row[i] - top);
    float scale = 1.0f / sum_of_block(sum);
    for (int i = threadIdx.x; i < columns; i += blockDim.x) out[blockIdx.x * columns + i] = expf(row[i] - top) * scale;
}

static __global__ void layernorm(const float *in, const float *gain, float *out, int columns) {
    const float *row = in + blockIdx.x * columns;
    float sum = 0, squares = 0;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += row[i], squares += row[i] * row[i];
    float mean = sum_of_block(sum) / columns;
    float scale = rsqrtf(sum_of_block(squares) / columns - mean * mean + 1e-5f);
    for (int i = threadIdx.x; i < columns; i += blockDim.x)
        out[blockIdx.x * columns + i] = (row[i] - mean) * scale * gain[i];
}

enum { WIDTH = 64, KEYS = 32 };

// One query for each thread, keys and values through shared memory, with a running maximum.
static __global__ void attention(const float *q, const float *k, const float *v, float *out, int length) {
    __shared__ float keys[KEYS][WIDTH], values[KEYS][WIDTH];
    int query = blockIdx.x * blockDim.x + threadIdx.x;
    float own[WIDTH], sums[WIDTH] = {}, top = -INFINITY, total = 0;
    for (int d = 0; d < WIDTH; d++) own[d] = q[query * WIDTH + d] * 0.125f;
    for (int start = 0; start < length; start += KEYS) {
        __syncthreads();
        for (int at = threadIdx.x; at < KEYS * WIDTH; at += blockDim.x) {
            keys[at / WIDTH][at % WIDTH] = k[start * WIDTH + at];
            values[at / WIDTH][at % WIDTH] = v[start * WIDTH + at];
        }
        __syncthreads();
        for (int key = 0; key < KEYS; key++) {
            float score = 0;
            for (int d = 0; d < WIDTH; d++) score += own[d] * keys[key][d];
            float higher = fmaxf(top, score), keep = __expf(top - higher), weight = __expf(score - higher);
            total = total * keep + weight;
            for (int d = 0; d < WIDTH; d++) sums[d] = sums[d] * keep + weight * values[key][d];
            top = higher;
        }
    }
    for (int d = 0; d < WIDTH; d++) out[query * WIDTH + d] = sums[d] / total;
}

static __global__ void gelu(const float *in, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 0.5f * in[i] * (1.0f + tanhf(0.79788456f * (in[i] + 0.044715f * in[i] * in[i] * in[i])));
}

void models() {
    enum { ROWS = 2048, COLUMNS = 1024, LENGTH = 512, N = 1 << 21 };
    auto zero = [](size_t) { return 0; };
    auto value = [](size_t i) { return 4 * signed_unit(i); };
    if (is_wanted("softmax") || is_wanted("layernorm") || is_wanted("gelu")) {
        Array<float> in(ROWS * COLUMNS, value), gain(COLUMNS, signed_unit), out(ROWS * COLUMNS, zero);
        if (is_wanted("softmax"))
            compare("softmax", [&] { softmax<<<ROWS, 256>>>(in.device, out.device, COLUMNS); },
                    [&] { c_softmax(in.c(), out.c(), ROWS, COLUMNS); }, out, 1e-5);
        if (is_wanted("layernorm"))
            compare("layernorm", [&] { layernorm<<<ROWS, 256>>>(in.device, gain.device, out.device, COLUMNS); },
                    [&] { c_layernorm(in.c(), gain.c(), out.c(), ROWS, COLUMNS); }, out, 1e-3);
        if (is_wanted("gelu"))
            compare("gelu", [&] { gelu<<<N / 256, 256>>>(in.device, out.device, N); },
                    [&] { c_gelu(in.c(), out.c(), N); }, out, 1e-5);
    }
    if (is_wanted("attention")) {
        Array<float> q(LENGTH * WIDTH, value), k(LENGTH * WIDTH, value), v(LENGTH * WIDTH, signed_unit);
        Array<float> out(LENGTH * WIDTH, zero);
        compare("attention", [&] { attention<<<LENGTH / 64, 64>>>(q.device, k.device, v.device, out.device, LENGTH); },
                [&] { c_attention(q.c(), k.c(), v.c(), out.c(), LENGTH, WIDTH); }, out, 1e-3);
    }
}

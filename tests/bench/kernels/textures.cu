// Images through textures: bilinear, by elements, and a row of memory.
#include "suite.h"

static __global__ void rotate(cudaTextureObject_t image, float *out, int n, float cosine, float sine) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    float u = x - 0.5f * n, v = y - 0.5f * n;
    out[y * n + x] = tex2D<float>(image, u * cosine - v * sine + 0.5f * n, u * sine + v * cosine + 0.5f * n);
}

static __global__ void box(cudaTextureObject_t image, float *out, int n) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    float sum = 0;
    for (int dy = -1; dy <= 1; dy++)
        for (int dx = -1; dx <= 1; dx++) sum += tex2D<float>(image, x + dx + 0.5f, y + dy + 0.5f);
    out[y * n + x] = sum * (1.0f / 9.0f);
}

static __global__ void fetch(cudaTextureObject_t row, const int *index, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = tex1Dfetch<float>(row, index[i]);
}

// Of an image whose edges repeat.
static cudaTextureObject_t texture_of(const cudaResourceDesc &resource, cudaTextureFilterMode filter) {
    cudaTextureDesc how = {};
    how.addressMode[0] = how.addressMode[1] = cudaAddressModeClamp;
    how.filterMode = filter;
    cudaTextureObject_t texture;
    check(cudaCreateTextureObject(&texture, &resource, &how, nullptr), "cudaCreateTextureObject");
    return texture;
}

void textures() {
    enum { SIDE = 1024, N = 1 << 21 };
    auto zero = [](size_t) { return 0; };
    dim3 threads(32, 8), blocks(SIDE / 32, SIDE / 8);
    if (is_wanted("texture_rotate") || is_wanted("texture_box")) {
        Array<float> in(SIDE * SIDE, signed_unit), out(SIDE * SIDE, zero);
        cudaChannelFormatDesc channel = cudaCreateChannelDesc<float>();
        cudaResourceDesc resource = {};
        resource.resType = cudaResourceTypeArray;
        check(cudaMallocArray(&resource.res.array.array, &channel, SIDE, SIDE), "cudaMallocArray");
        check(cudaMemcpy2DToArray(resource.res.array.array, 0, 0, in.c(), 4 * SIDE, 4 * SIDE, SIDE, cudaMemcpyHostToDevice),
              "cudaMemcpy2DToArray");
        if (is_wanted("texture_rotate")) {
            cudaTextureObject_t image = texture_of(resource, cudaFilterModeLinear);
            float cosine = std::cos(0.3f), sine = std::sin(0.3f);
            // Weights of a texture have 8 bits behind the point.
            compare("texture_rotate", [&] { rotate<<<blocks, threads>>>(image, out.device, SIDE, cosine, sine); },
                    [&] { c_bilinear(in.c(), out.c(), SIDE, cosine, sine); }, out, 2e-2);
        }
        if (is_wanted("texture_box")) {
            cudaTextureObject_t image = texture_of(resource, cudaFilterModePoint);
            compare("texture_box", [&] { box<<<blocks, threads>>>(image, out.device, SIDE); },
                    [&] { c_box(in.c(), out.c(), SIDE); }, out, 1e-5);
        }
    }
    if (is_wanted("texture_fetch")) {
        Array<float> x(N, signed_unit), out(N, zero);
        Array<int> index(N, [](size_t i) { return int(mixed(i) % N); });
        cudaResourceDesc resource = {};
        resource.resType = cudaResourceTypeLinear;
        resource.res.linear = {x.device, cudaCreateChannelDesc<float>(), N * sizeof(float)};
        cudaTextureObject_t row = texture_of(resource, cudaFilterModePoint);
        compare("texture_fetch", [&] { fetch<<<N / 256, 256>>>(row, index.device, out.device, N); },
                [&] { c_gather(x.c(), index.c(), out.c(), N); }, out, 0);
    }
}

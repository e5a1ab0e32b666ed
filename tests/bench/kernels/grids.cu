// Stencils and a convolution.
#include "suite.h"

static __global__ void stencil5(const float *in, float *out, int n) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < 1 || y < 1 || x >= n - 1 || y >= n - 1) return;
    int at = y * n + x;
    out[at] = 0.5f * in[at] + 0.125f * (in[at - 1] + in[at + 1] + in[at - n] + in[at + n]);
}

// Through shared memory, with the edge of the tile read by the threads at its edge.
static __global__ void stencil5_shared(const float *in, float *out, int n) {
    __shared__ float tile[10][34];
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y, at = y * n + x;
    int column = threadIdx.x + 1, row = threadIdx.y + 1;
    tile[row][column] = in[at];
    if (threadIdx.x == 0 && x > 0) tile[row][0] = in[at - 1];
    if (threadIdx.x == 31 && x < n - 1) tile[row][33] = in[at + 1];
    if (threadIdx.y == 0 && y > 0) tile[0][column] = in[at - n];
    if (threadIdx.y == 7 && y < n - 1) tile[9][column] = in[at + n];
    __syncthreads();
    if (x < 1 || y < 1 || x >= n - 1 || y >= n - 1) return;
    out[at] = 0.5f * tile[row][column] +
              0.125f * (tile[row][column - 1] + tile[row][column + 1] + tile[row - 1][column] + tile[row + 1][column]);
}

static __global__ void stencil7(const float *in, float *out, int n) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y, z = blockIdx.z;
    if (x < 1 || y < 1 || z < 1 || x >= n - 1 || y >= n - 1 || z >= n - 1) return;
    int at = (z * n + y) * n + x, plane = n * n;
    out[at] = 0.4f * in[at] +
              0.1f * (in[at - 1] + in[at + 1] + in[at - n] + in[at + n] + in[at - plane] + in[at + plane]);
}

static __constant__ float weights[25];

static __global__ void convolution(const float *in, float *out, int n) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    float sum = 0;
    for (int dy = -2; dy <= 2; dy++)
        for (int dx = -2; dx <= 2; dx++) {
            int column = min(max(x + dx, 0), n - 1), row = min(max(y + dy, 0), n - 1);
            sum += weights[(dy + 2) * 5 + dx + 2] * in[row * n + column];
        }
    out[y * n + x] = sum;
}

void grids() {
    enum { SIDE = 2048, CUBE = 160, IMAGE = 1024 };
    auto zero = [](size_t) { return 0; };
    dim3 threads(32, 8), blocks(SIDE / 32, SIDE / 8);
    if (is_wanted("stencil5") || is_wanted("stencil5_shared")) {
        Array<float> in(SIDE * SIDE, signed_unit), out(SIDE * SIDE, zero);
        auto in_c = [&] { c_stencil5(in.c(), out.c(), SIDE); };
        if (is_wanted("stencil5"))
            compare("stencil5", [&] { stencil5<<<blocks, threads>>>(in.device, out.device, SIDE); }, in_c, out, 1e-5);
        if (is_wanted("stencil5_shared"))
            compare("stencil5_shared", [&] { stencil5_shared<<<blocks, threads>>>(in.device, out.device, SIDE); }, in_c,
                    out, 1e-5);
    }
    if (is_wanted("stencil7")) {
        Array<float> in(CUBE * CUBE * CUBE, signed_unit), out(CUBE * CUBE * CUBE, zero);
        dim3 cubes(CUBE / 32, CUBE / 8, CUBE);
        compare("stencil7", [&] { stencil7<<<cubes, threads>>>(in.device, out.device, CUBE); },
                [&] { c_stencil7(in.c(), out.c(), CUBE); }, out, 1e-5);
    }
    if (is_wanted("convolution")) {
        Array<float> in(IMAGE * IMAGE, signed_unit), out(IMAGE * IMAGE, zero), filter(25, signed_unit);
        check(cudaMemcpyToSymbol(weights, filter.c(), sizeof weights), "weights");
        compare("convolution", [&] { convolution<<<dim3(IMAGE / 32, IMAGE / 8), threads>>>(in.device, out.device, IMAGE); },
                [&] { c_convolution(in.c(), filter.c(), out.c(), IMAGE); }, out, 1e-4);
    }
}

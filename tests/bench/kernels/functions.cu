// Much arithmetic on few numbers: transcendental, divergent, on integers.
#include "suite.h"

static __device__ float normal(float x) { return 0.5f * erfcf(-x * 0.70710678f); }

static __global__ void black_scholes(const float *price, const float *strike, const float *years, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float root = sqrtf(years[i]), spread = 0.3f * root;
    float d1 = (logf(price[i] / strike[i]) + (0.02f + 0.045f) * years[i]) / spread;
    out[i] = price[i] * normal(d1) - strike[i] * expf(-0.02f * years[i]) * normal(d1 - spread);
}

static __global__ void mandelbrot(int *out, int n, int steps) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    float cx = 3.0f * x / n - 2.0f, cy = 2.0f * y / n - 1.0f, zx = 0, zy = 0;
    int step = 0;
    while (step < steps && zx * zx + zy * zy < 4.0f) {
        float next = zx * zx - zy * zy + cx;
        zy = 2.0f * zx * zy + cy;
        zx = next;
        step++;
    }
    out[y * n + x] = step;
}

static __global__ void collatz(int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned long long value = i + 1;
    int steps = 0;
    while (value != 1) {
        if (value % 2 == 0) value /= 2;
        else value = 3 * value + 1;
        steps++;
    }
    out[i] = steps;
}

static __global__ void nbody(const float4 *bodies, float *forces, int n) {
    __shared__ float4 tile[256];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float4 own = bodies[i];
    float x = 0, y = 0, z = 0;
    for (int start = 0; start < n; start += 256) {
        tile[threadIdx.x] = bodies[start + threadIdx.x];
        __syncthreads();
        for (int j = 0; j < 256; j++) {
            float dx = tile[j].x - own.x, dy = tile[j].y - own.y, dz = tile[j].z - own.z;
            float inverse = rsqrtf(dx * dx + dy * dy + dz * dz + 0.01f);
            float force = tile[j].w * inverse * inverse * inverse;
            x += dx * force, y += dy * force, z += dz * force;
        }
        __syncthreads();
    }
    forces[3 * i] = x, forces[3 * i + 1] = y, forces[3 * i + 2] = z;
}

static __global__ void hash(unsigned *out, int n, int rounds) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned x = i;
    for (int round = 0; round < rounds; round++) {
        x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15;
        x = __funnelshift_l(x, x, 7) + __popc(x);
    }
    out[i] = x;
}

static __global__ void waves(const float *in, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = sinf(20.0f * in[i]) * cosf(7.0f * in[i]) + powf(fabsf(in[i]), 1.7f);
}

void functions() {
    enum { N = 1 << 20, IMAGE = 512, BODIES = 2048 };
    auto zero = [](size_t) { return 0; };
    auto positive = [](size_t i) { return 1.5f + signed_unit(i); };
    if (is_wanted("black_scholes")) {
        Array<float> price(N, [&](size_t i) { return 50 * positive(i); }), years(N, [&](size_t i) { return positive(i * 7); });
        Array<float> strike(N, [&](size_t i) { return 50 * positive(i * 3); }), out(N, zero);
        compare("black_scholes",
                [&] { black_scholes<<<N / 256, 256>>>(price.device, strike.device, years.device, out.device, N); },
                [&] { c_black_scholes(price.c(), strike.c(), years.c(), out.c(), N); }, out, 1e-4);
    }
    if (is_wanted("mandelbrot")) {
        Array<int> out(IMAGE * IMAGE, zero);
        // The orbits of a few points near the border depend on how each step is rounded.
        compare("mandelbrot", [&] { mandelbrot<<<dim3(IMAGE / 32, IMAGE / 8), dim3(32, 8)>>>(out.device, IMAGE, 100); },
                [&] { c_mandelbrot(out.c(), IMAGE, 100); }, out, 0, 3000);
    }
    if (is_wanted("collatz")) {
        Array<int> out(N / 4, zero);
        compare("collatz", [&] { collatz<<<N / 4 / 256, 256>>>(out.device, N / 4); }, [&] { c_collatz(out.c(), N / 4); },
                out, 0);
    }
    if (is_wanted("nbody")) {
        Array<float> bodies(4 * BODIES, positive), forces(3 * BODIES, zero);
        compare("nbody",
                [&] { nbody<<<BODIES / 256, 256>>>(reinterpret_cast<float4 *>(bodies.device), forces.device, BODIES); },
                [&] { c_nbody(bodies.c(), forces.c(), BODIES); }, forces, 1e-2);
    }
    if (is_wanted("hash")) {
        Array<unsigned> out(N, zero);
        compare("hash", [&] { hash<<<N / 256, 256>>>(out.device, N, 16); }, [&] { c_hash(out.c(), N, 16); }, out, 0);
    }
    if (is_wanted("waves")) {
        Array<float> in(N, signed_unit), out(N, zero);
        compare("waves", [&] { waves<<<N / 256, 256>>>(in.device, out.device, N); }, [&] { c_waves(in.c(), out.c(), N); },
                out, 1e-4);
    }
}

/* The baseline of functions.cu. */
#include "baseline.h"

#include <math.h>

static float normal(float x) { return 0.5f * erfcf(-x * 0.70710678f); }

void c_black_scholes(const float *restrict price, const float *restrict strike, const float *restrict years,
                     float *restrict out, int n) {
#pragma omp parallel for
    for (int i = 0; i < n; i++) {
        float root = sqrtf(years[i]), spread = 0.3f * root;
        float d1 = (logf(price[i] / strike[i]) + (0.02f + 0.045f) * years[i]) / spread;
        out[i] = price[i] * normal(d1) - strike[i] * expf(-0.02f * years[i]) * normal(d1 - spread);
    }
}

void c_mandelbrot(int *restrict out, int n, int steps) {
#pragma omp parallel for schedule(dynamic, 8)
    for (int y = 0; y < n; y++)
        for (int x = 0; x < n; x++) {
            float cx = 3.0f * x / n - 2, cy = 2.0f * y / n - 1, zx = 0, zy = 0;
            int step = 0;
            while (step < steps && zx * zx + zy * zy < 4) {
                float next = zx * zx - zy * zy + cx;
                zy = 2 * zx * zy + cy;
                zx = next;
                step++;
            }
            out[y * n + x] = step;
        }
}

void c_collatz(int *restrict out, int n) {
#pragma omp parallel for schedule(dynamic, 1024)
    for (int i = 0; i < n; i++) {
        unsigned long long value = i + 1;
        int steps = 0;
        while (value != 1) {
            value = value % 2 == 0 ? value / 2 : 3 * value + 1;
            steps++;
        }
        out[i] = steps;
    }
}

void c_nbody(const float *restrict bodies, float *restrict forces, int n) {
#pragma omp parallel for
    for (int i = 0; i < n; i++) {
        float x = 0, y = 0, z = 0;
        for (int j = 0; j < n; j++) {
            float dx = bodies[4 * j] - bodies[4 * i], dy = bodies[4 * j + 1] - bodies[4 * i + 1];
            float dz = bodies[4 * j + 2] - bodies[4 * i + 2];
            float inverse = 1 / sqrtf(dx * dx + dy * dy + dz * dz + 0.01f);
            float force = bodies[4 * j + 3] * inverse * inverse * inverse;
            x += dx * force, y += dy * force, z += dz * force;
        }
        forces[3 * i] = x, forces[3 * i + 1] = y, forces[3 * i + 2] = z;
    }
}

void c_hash(unsigned *restrict out, int n, int rounds) {
#pragma omp parallel for
    for (int i = 0; i < n; i++) {
        unsigned x = i;
        for (int round = 0; round < rounds; round++) {
            x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15;
            x = (x << 7 | x >> 25) + __builtin_popcount(x);
        }
        out[i] = x;
    }
}

void c_waves(const float *restrict in, float *restrict out, int n) {
#pragma omp parallel for
    for (int i = 0; i < n; i++) out[i] = sinf(20 * in[i]) * cosf(7 * in[i]) + powf(fabsf(in[i]), 1.7f);
}

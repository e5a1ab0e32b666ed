/* The baseline of vectors.cu. */
#include "baseline.h"

#include <math.h>
#include <string.h>

void c_saxpy(float a, const float *restrict x, float *restrict y, int n) {
#pragma omp parallel for
    for (int i = 0; i < n; i++) y[i] = a * x[i] + y[i];
}

void c_daxpy(double a, const double *restrict x, double *restrict y, int n) {
#pragma omp parallel for
    for (int i = 0; i < n; i++) y[i] = a * x[i] + y[i];
}

void c_haxpy(float a, const f16 *restrict x, f16 *restrict y, int n) {
    f16 factor = (f16)a;
#pragma omp parallel for
    for (int i = 0; i < n; i++) y[i] = factor * x[i] + y[i];
}

static float widened(bf16 bits) {
    unsigned word = (unsigned)bits << 16;
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

/* To the nearest, ties to even; not for NaNs. */
static bf16 narrowed(float value) {
    unsigned word;
    memcpy(&word, &value, sizeof word);
    return (word + 0x7fff + (word >> 16 & 1)) >> 16;
}

void c_bfloat_relu(float a, const bf16 *restrict x, const bf16 *restrict y, bf16 *restrict out, int n) {
#pragma omp parallel for
    for (int i = 0; i < n; i++) {
        float value = a * widened(x[i]) + widened(y[i]);
        out[i] = narrowed(value > 0 ? value : 0);
    }
}

void c_transpose(const float *restrict in, float *restrict out, int n) {
    enum { TILE = 32 };
#pragma omp parallel for
    for (int y0 = 0; y0 < n; y0 += TILE)
        for (int x0 = 0; x0 < n; x0 += TILE)
            for (int y = y0; y < y0 + TILE; y++)
                for (int x = x0; x < x0 + TILE; x++) out[y * n + x] = in[x * n + y];
}

void c_gather(const float *restrict x, const int *restrict index, float *restrict out, int n) {
#pragma omp parallel for
    for (int i = 0; i < n; i++) out[i] = x[index[i]];
}

void c_quantize(const float *restrict x, signed char *restrict out, float scale, int n) {
#pragma omp parallel for
    for (int i = 0; i < n; i++) {
        int value = (int)rintf(x[i] * scale);
        out[i] = value > 127 ? 127 : value < -127 ? -127 : value;
    }
}

/* The baseline of products.cu and tensor.cu. */
#include "baseline.h"

#include <stdlib.h>
#include <string.h>

enum { TILE = 32 };

static float of_float(float value) { return value; }
static double of_double(double value) { return value; }

static float of_bf16(bf16 bits) {
    unsigned word = (unsigned)bits << 16;
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

#define PRODUCT(name, type, sum, widen)                                                           \
    void name(const type *restrict a, const type *restrict b, sum *restrict c, int n) {            \
        _Pragma("omp parallel for") for (int i0 = 0; i0 < n; i0 += TILE) {                         \
            memset(c + i0 * n, 0, TILE * n * sizeof *c);                                           \
            for (int k0 = 0; k0 < n; k0 += TILE)                                                   \
                for (int i = i0; i < i0 + TILE; i++)                                               \
                    for (int k = k0; k < k0 + TILE; k++) {                                         \
                        sum s = widen(a[i * n + k]);                                               \
                        for (int j = 0; j < n; j++) c[i * n + j] += s * widen(b[k * n + j]);       \
                    }                                                                              \
        }                                                                                          \
    }

PRODUCT(c_sgemm, float, float, of_float)
PRODUCT(c_dgemm, double, double, of_double)
PRODUCT(c_bgemm, bf16, float, of_bf16)

static float *widened(const f16 *values, int count) {
    float *wide = malloc(count * sizeof *wide);
    for (int i = 0; i < count; i++) wide[i] = values[i];
    return wide;
}

/* By floats: compilers do not turn a loop that widens halves as it goes into vectors. */
void c_hgemm(const f16 *a, const f16 *b, float *c, int n) {
    float *left = widened(a, n * n), *right = widened(b, n * n);
    c_sgemm(left, right, c, n);
    free(left), free(right);
}

void c_igemm(const signed char *restrict a, const signed char *restrict b, int *restrict c, int n) {
#pragma omp parallel for
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            int sum = 0;
            for (int k = 0; k < n; k++) sum += a[i * n + k] * b[j * n + k];
            c[i * n + j] = sum;
        }
}

void c_sgemv(const float *restrict a, const float *restrict x, float *restrict y, int n) {
#pragma omp parallel for
    for (int i = 0; i < n; i++) {
        float sum = 0;
        for (int k = 0; k < n; k++) sum += a[i * n + k] * x[k];
        y[i] = sum;
    }
}

/* The baseline of the software GPU: the same computations as `kernels.cu`, as C programmers write them.
 * Built with `gcc -O3 -march=native -fopenmp` (no -ffast-math, so that sums keep their order as the language says).
 */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 1 << 24, M = 512, ROUNDS = 7, TILE = 32 };

static void saxpy(float a, const float *restrict x, float *restrict y) {
#pragma omp parallel for
    for (int i = 0; i < N; i++) y[i] = a * x[i] + y[i];
}

static void sgemm(const float *restrict a, const float *restrict b, float *restrict c) {
#pragma omp parallel for
    for (int i0 = 0; i0 < M; i0 += TILE)
        for (int k0 = 0; k0 < M; k0 += TILE)
            for (int i = i0; i < i0 + TILE; i++)
                for (int k = k0; k < k0 + TILE; k++) {
                    float s = a[i * M + k];
                    for (int j = 0; j < M; j++) c[i * M + j] += s * b[k * M + j];
                }
}

static float reduce(const float *restrict x) {
    float sum = 0;
#pragma omp parallel for reduction(+ : sum)
    for (int i = 0; i < N; i++) sum += x[i];
    return sum;
}

static double median(double *seconds) {
    for (int i = 1; i < ROUNDS; i++) /* by insertion: they are few */
        for (int j = i; j > 0 && seconds[j] < seconds[j - 1]; j--) {
            double swap = seconds[j];
            seconds[j] = seconds[j - 1], seconds[j - 1] = swap;
        }
    return seconds[ROUNDS / 2];
}

int main(void) {
    float *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y);
    float *a = malloc(M * M * sizeof *a), *b = malloc(M * M * sizeof *b), *c = calloc(M * M, sizeof *c);
    for (int i = 0; i < N; i++) x[i] = (i % 1000) * 0.001f, y[i] = 1;
    for (int i = 0; i < M * M; i++) a[i] = (i % 13) * 0.1f, b[i] = (i % 17) * 0.1f;
    double seconds[ROUNDS];
    volatile float sink = 0;
#define MEASURE(name, work)                                       \
    for (int round = -1; round < ROUNDS; round++) {               \
        double begin = omp_get_wtime();                           \
        work;                                                     \
        if (round >= 0) seconds[round] = omp_get_wtime() - begin; \
    }                                                             \
    printf(name " %.6f\n", median(seconds) * 1e3)
    MEASURE("saxpy_ms", saxpy(1.0001f, x, y));
    MEASURE("sgemm_ms", sgemm(a, b, c));
    MEASURE("reduce_ms", sink += reduce(x));
    return sink == 12345;
}

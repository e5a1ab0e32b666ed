/* The baseline of reductions.cu. Sums are added to what is there, as by the kernels. */
#include "baseline.h"

#include <string.h>

void c_sum(const float *restrict x, float *sum, int n) {
    float total = 0;
#pragma omp parallel for reduction(+ : total)
    for (int i = 0; i < n; i++) total += x[i];
    *sum += total;
}

void c_dot(const double *restrict x, const double *restrict y, double *sum, int n) {
    double total = 0;
#pragma omp parallel for reduction(+ : total)
    for (int i = 0; i < n; i++) total += x[i] * y[i];
    *sum += total;
}

void c_scan(const float *restrict in, float *restrict out, int n, int segment) {
#pragma omp parallel for
    for (int start = 0; start < n; start += segment) {
        float sum = 0;
        for (int i = start; i < start + segment; i++) out[i] = sum += in[i];
    }
}

void c_histogram(const unsigned char *restrict in, unsigned *bins, int n) {
#pragma omp parallel
    {
        unsigned own[256] = {0};
#pragma omp for
        for (int i = 0; i < n; i++) own[in[i]]++;
#pragma omp critical
        for (int i = 0; i < 256; i++) bins[i] += own[i];
    }
}

void c_histogram_wide(const unsigned *restrict in, unsigned *bins, int n, unsigned count) {
#pragma omp parallel
    {
        unsigned own[count];
        memset(own, 0, sizeof own);
#pragma omp for
        for (int i = 0; i < n; i++) own[in[i] % count]++;
#pragma omp critical
        for (unsigned i = 0; i < count; i++) bins[i] += own[i];
    }
}

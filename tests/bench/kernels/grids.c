/* The baseline of grids.cu. */
#include "baseline.h"

void c_stencil5(const float *restrict in, float *restrict out, int n) {
#pragma omp parallel for
    for (int y = 1; y < n - 1; y++)
        for (int x = 1; x < n - 1; x++) {
            int at = y * n + x;
            out[at] = 0.5f * in[at] + 0.125f * (in[at - 1] + in[at + 1] + in[at - n] + in[at + n]);
        }
}

void c_stencil7(const float *restrict in, float *restrict out, int n) {
    int plane = n * n;
#pragma omp parallel for
    for (int z = 1; z < n - 1; z++)
        for (int y = 1; y < n - 1; y++)
            for (int x = 1; x < n - 1; x++) {
                int at = z * plane + y * n + x;
                out[at] = 0.4f * in[at] + 0.1f * (in[at - 1] + in[at + 1] + in[at - n] + in[at + n] +
                                                  in[at - plane] + in[at + plane]);
            }
}

static int clamped(int at, int n) { return at < 0 ? 0 : at >= n ? n - 1 : at; }

void c_convolution(const float *restrict in, const float *restrict weights, float *restrict out, int n) {
#pragma omp parallel for
    for (int y = 0; y < n; y++)
        for (int x = 0; x < n; x++) {
            float sum = 0;
            for (int dy = -2; dy <= 2; dy++)
                for (int dx = -2; dx <= 2; dx++)
                    sum += weights[(dy + 2) * 5 + dx + 2] * in[clamped(y + dy, n) * n + clamped(x + dx, n)];
            out[y * n + x] = sum;
        }
}
